"""The process that does the work: verifies, then times, kernel by kernel, and sends rows back.

It may hang, crash or lose its GPU context at any launch of a kernel; the parent (``run``) watches,
writes the row that says so, and starts another worker with what is left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import torch

from .. import dispatch
from .case import Case
from .case_bench import CaseBench
from .environment import set_precision


@dataclass(frozen=True, slots=True)
class Unit:
    """One kernel on one case: what becomes one row."""

    index: int
    case: Case
    backend: str
    kernel: str

    @property
    def full_name(self) -> str:
        return f"{self.backend}/{self.kernel}"


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is told."""

    units: tuple[Unit, ...]
    """In the order of their cases: the operands of a case are made once."""
    backends: dict[str, str]
    """The table ``dispatch.BACKENDS`` of the parent."""
    device: str
    seed: int
    budget_s: float
    log: Log
    """What takes the worker's standard output and error."""
    parent: int
    """Process id of the parent, without which the worker does not live on."""


class Log:
    """A file without a name that parent and worker share: it is gone when both are."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        else:
            self._file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115

    def __reduce__(self) -> Any:  # pickled for a process that is being spawned
        return _inherited, (reduction.DupFd(self._file.fileno()),)

    def take_output(self) -> None:
        """Let this process's standard output and error go to the file's end."""
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            os.dup2(self._file.fileno(), number)

    def text(self) -> str:
        """All that was written."""
        size = os.fstat(self._file.fileno()).st_size
        return os.pread(self._file.fileno(), size, 0).decode(errors="replace")

    def close(self) -> None:
        self._file.close()


def _inherited(descriptor: Any) -> Log:
    return Log(descriptor.detach())


PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that this process gets when the thread that started it ends."""


def die_with(parent: int) -> None:
    """End this process when its parent ends, whatever this process is doing then."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before prctl was called
        os._exit(1)


def work(connection: Connection, job: Job) -> None:
    """Entry of the worker process.

    Sends ("ready",), then for each unit ("begin", index) and ("rows", index, rows, throttle
    reasons), and at last ("done",).
    """
    die_with(job.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    job.log.take_output()
    dispatch.BACKENDS.update(job.backends)
    set_precision()
    connection.send(("ready",))
    bench: CaseBench | None = None
    compiled: set[tuple[str, ...]] = set()
    for unit in job.units:
        connection.send(("begin", unit.index))
        if bench is None or bench.case != unit.case:
            bench = None
            _release_memory(job.device)
            bench = CaseBench(unit.case, job.device, job.seed, job.budget_s, compiled)
        rows, throttle = bench.measure(unit.backend, unit.kernel)
        connection.send(("rows", unit.index, rows, throttle))
        if rows[0]["status"] == "failed" and not _healthy(job.device):
            os._exit(1)  # the context is lost: another process goes on
    connection.send(("done",))


def _release_memory(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()


def _healthy(device: str) -> bool:
    """Whether this process can still use its device."""
    if device != "cuda":
        return True
    try:
        return float(torch.ones(8, device="cuda").sum()) == 8
    except RuntimeError:
        return False
