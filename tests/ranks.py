"""Processes that are the ranks of a gloo group, made once for a test file and used by its tests.

Each is forked from a process that has imported torch (workers.py): a rank costs milliseconds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import tempfile
import traceback
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import workers

SECONDS = 60
"""After which a rank that says nothing fails the test."""
AFTER_A_FAILURE = 5
"""Seconds for what the other ranks have to say once one of them has failed."""
WHERE = signal.SIGUSR1
"""Asks a rank which calls its threads are in."""


def serve(connection, rank, world, folder, backend):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    threads = open(f"{folder}/{os.getpid()}.threads", "w")  # noqa: SIM115
    faulthandler.register(WHERE, threads)
    if backend == "nccl":
        from tcgemm.bench.several.command import NO_MULTICAST

        os.environ.update(NO_MULTICAST)
        torch.cuda.set_device(rank)
    if world:
        where = f"file://{folder}/meet"
        dist.init_process_group(backend, init_method=where, rank=rank, world_size=world)
    while True:
        task = connection.recv()
        if task is None:
            os._exit(0)  # gloo's threads may outlive the interpreter's end, which then aborts
        function, arguments = task
        try:
            function(rank, *arguments)
            connection.send((True, ""))
        except BaseException:
            connection.send((False, traceback.format_exc()))


class Ranks:
    """``world`` processes, each a rank of one group."""

    def __init__(self, world, backend="gloo", seconds=SECONDS):
        self.world, self._backend, self._seconds = world, backend, seconds
        self._begin()

    def _begin(self):
        context = workers.forked()
        self._folder = tempfile.TemporaryDirectory()
        self._ends, self._processes = [], []
        for rank in range(self.world):
            here, there = context.Pipe()
            given = (there, rank, self.world, self._folder.name, self._backend)
            process = context.Process(target=serve, args=given, daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)

    def __call__(self, function, *arguments):
        """Run ``function(rank, *arguments)`` on all ranks at once; fail where it fails on one.

        Where a rank says nothing, others take the place of all of them for the next call.
        """
        for end in self._ends:
            end.send((function, arguments))
        failed, left = [], self._seconds
        waiting = dict(zip(self._ends, range(self.world), strict=True))
        while waiting:
            ready = wait(list(waiting), left)
            if not ready:
                break
            for end in ready:
                rank = waiting.pop(end)
                try:
                    ok, text = end.recv()
                except (EOFError, ConnectionResetError):
                    ok, text = False, "its process died"
                if not ok:
                    failed.append(f"rank {rank}: {text}")
                    left = min(left, AFTER_A_FAILURE)
        silent = [
            f"rank {rank} says nothing for {left} s, and is here:\n{self._where(rank)}"
            for rank in waiting.values()
        ]
        if failed or silent:
            self.close()  # a thread or a lock that a failure left would fail the next test as well
            self._begin()
        assert not failed + silent, "\n".join(failed + silent)

    def _where(self, rank):
        """The calls that each of a rank's threads is in."""
        process = self._processes[rank]
        path = Path(self._folder.name, f"{process.pid}.threads")
        if not path.exists() or not process.is_alive():
            return "at its start"
        os.kill(process.pid, WHERE)
        process.join(1)
        return path.read_text()

    def close(self):
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.send(None)
        for end, process in zip(self._ends, self._processes, strict=True):
            process.join(2)
            if process.is_alive():
                process.kill()
            end.close()
        self._folder.cleanup()
        assert not Path(self._folder.name).exists()


@pytest.fixture(scope="module", name="pair")
def two_ranks():
    """Two ranks for all tests of a file."""
    made = Ranks(2)
    yield made
    made.close()


def groups_of(*worlds):
    """A fixture of a test file: groups of so many ranks, for all of its tests."""

    @pytest.fixture(scope="module", params=worlds, ids=lambda n: f"{n} rank{'s' * (n > 1)}")
    def group(request):
        made = Ranks(request.param)
        yield made
        made.close()

    return group
