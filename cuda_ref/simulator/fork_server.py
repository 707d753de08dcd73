"""The processes that fork a run's leader: src/fork_server.cpp says why this process does not."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from .build import fork_server

NO_ANSWER = -4
"""What ``tcgemm_simulate`` returns where the fork server does not answer."""
THIS_PROCESS = -1
"""In the place of a socket: this process forks."""


@dataclass(frozen=True, slots=True, eq=False)
class _Server:
    socket: socket.socket
    pid: int

    def end(self) -> None:
        self.socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


# A server does one run at a time: a thread takes one that is idle, or starts another.
_idle: list[_Server] = []
_all: set[_Server] = set()


def call(run: Callable[[int], int]) -> int:
    """What ``run`` returns for the socket of a fork server; of another one where that had ended."""
    for _ in range(2):
        try:
            server = _idle.pop()
        except IndexError:
            server = _start()
        failure = NO_ANSWER
        try:
            failure = run(server.socket.fileno())
        finally:
            if failure:
                _all.discard(server)
                server.end()
            else:
                _idle.append(server)
        if failure != NO_ANSWER:
            break
    return failure


def _start() -> _Server:
    program = str(fork_server())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # What a kernel writes goes where this process writes at that time, not to what it has now.
        pid = os.posix_spawn(
            program,
            [program],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
    server = _Server(ours, pid)
    _all.add(server)
    return server


def environment() -> bytes:
    """This process's, as a kernel's process is given it."""
    return b"".join(b"%b=%b\0" % variable for variable in os.environb.items())


def _after_fork_in_child() -> None:
    # A server ends when nobody holds the other end of its socket, and its caller is the parent.
    _idle.clear()
    while _all:
        _all.pop().socket.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


@atexit.register
def _end_all() -> None:
    # They would end by themselves, and here their time counts as this process's.
    while _idle:
        _idle.pop().end()
