"""Cases and kernels -> rows. The parent of the worker: it owns the store and the timeouts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from .. import dispatch
from ..errors import ToolchainError
from .ahead import Ahead
from .case import CASE_COLUMNS, Case
from .case_bench import AT_ITS_BEST, BASELINE
from .contender import UNASKED
from .store import Store
from .worker import Job, Log, Unit, work

STARTUP_S = 300.0
"""A worker that is not ready by then is given up: it imports torch and nothing else."""

Row = dict[str, Any]
Watcher = Callable[[str, Unit, Row | None], None]
"""Called with ("begin", unit, None) and ("row", unit, row)."""


def contenders(
    backends: Sequence[str] = (), kernels: Sequence[str] = (), device: str = "cuda"
) -> list[dispatch.Kernel]:
    """``dispatch.select``, the baseline first.

    On "cuda", kernels that are for the CPU only are no contenders and left out.
    """
    rows = dispatch.select(backends, kernels)
    if device == "cuda":
        rows = [row for row in rows if "cuda" in row.devices]
    return sorted(rows, key=lambda row: row.backend != "cublas")


def unasked(backends: Sequence[str] = ()) -> list[dispatch.Kernel]:
    """The baseline, cuBLAS at its best, and each backend's own choice as one contender.

    Args:
        backends: whose choice; by default every backend's but cuBLAS's.
    """
    rows = [dispatch.find(*BASELINE), dispatch.find(BASELINE[0], AT_ITS_BEST)]
    for backend in backends or [name for name in dispatch.BACKENDS if name != BASELINE[0]]:
        every = dispatch.ladder(backend)
        pairs = dict.fromkeys(pair for row in every for pair in row.pairs)
        fuses = dict.fromkeys(name for row in every for name in row.fuses)
        shapes = dict.fromkeys(name for row in every for name in row.mma_shapes)
        adds = "What the backend takes where no kernel is named."
        rows.append(
            dispatch.Kernel(
                backend, UNASKED, adds, tuple(pairs), fuses=tuple(fuses), mma_shapes=tuple(shapes)
            )
        )
    return rows


def units_of(
    cases: Sequence[Case],
    kernels: Sequence[dispatch.Kernel],
    done: Collection[tuple[str, ...]] = (),
) -> list[Unit]:
    """Every kernel on every case that its row names, but for those whose ``key`` is in ``done``.

    A row that names the type pair and what is fused may still refuse the case: that is a result.
    A backend's own choice is done where a result of the backend says that it was chosen.
    """
    pairs = [(case, kernel) for case in cases for kernel in kernels if _names(kernel, case)]
    pairs = [(case, row) for case, row in pairs if key(case, row.backend, row.name) not in done]
    return [Unit(i, case, row.backend, row.name) for i, (case, row) in enumerate(pairs)]


def _names(row: dispatch.Kernel, case: Case) -> bool:
    """Whether the row speaks of such cases at all. The baseline has no WMMA shapes to choose."""
    if case.mma_shape and row.backend != BASELINE[0] and case.mma_shape not in row.mma_shapes:
        return False
    words = {"residual": "beta"}
    fused = {words.get(word, word) for word in case.fused.split()}
    fused |= {"batch"} if case.batch > 1 else set()
    types = row.takes_types(case.dtype_in, case.dtype_out, case.compute)
    return types and fused <= set(row.fuses)


def key(case: Case, backend: str, kernel: str) -> tuple[str, ...]:
    """What identifies a row besides its run."""
    return (backend, kernel, *(str(getattr(case, name)) for name in CASE_COLUMNS))


def keys_of_row(row: dict[str, str]) -> list[tuple[str, ...]]:
    """The ``key`` of a stored row, and of its backend's own choice where it was that."""
    named = tuple(row[name] for name in ("backend", "kernel", *CASE_COLUMNS))
    return [named] + [(row["backend"], UNASKED, *named[2:])] * (row["chosen"] == "yes")


def given_up(timeout_s: float) -> str:
    """Why there is no result of a kernel that took longer."""
    return f"no result within {timeout_s:g} s; --timeout allows more"


def settled(row: dict[str, str], seed: int, timeout_s: float) -> bool:
    """Whether a stored row is what a run with these options would find: it is of the same operands,
    and was not given up after another time."""
    waited = row["status"] != "timeout" or row["reason"] == given_up(timeout_s)
    return waited and row["seed"] in ("", str(seed))


def run(
    units: Sequence[Unit],
    store: Store,
    *,
    device: str = "cuda",
    seed: int = 0,
    budget_s: float = 0.25,
    timeout_s: float = 120.0,
    watch: Watcher = lambda event, unit, row: None,
    build_ahead: bool | None = None,
) -> list[Row]:
    """Verify and time every unit in worker processes; append a row for each to the store.

    A kernel that is wrong, raises, hangs longer than ``timeout_s`` or kills its process becomes a
    row with the reason, and the run goes on. KeyboardInterrupt ends the worker and is passed on;
    the store then holds all rows but the one in progress.

    Where there is a GPU, or ``build_ahead`` is set, kernels are built by a process of their own
    while others are measured (see ``ahead``), so that the GPU waits for few of them.

    Raises ToolchainError where a worker process cannot start.
    """
    log = Log()
    job = Job((), dict(dispatch.BACKENDS), device, seed, budget_s, log, os.getpid())
    parent = _Parent(units, store, job)
    parent.watch, parent.timeout_s = watch, timeout_s
    if device == "cuda" if build_ahead is None else build_ahead:
        parent.ahead = Ahead(units, device)
    try:
        while parent.left:
            parent.run_worker()
    finally:
        parent.end_worker()
        if parent.ahead is not None:
            parent.ahead.end()
        log.close()
        store.update(throttle_reasons_seen=sorted(parent.throttle))
    return parent.rows


class _Parent:
    def __init__(self, units: Sequence[Unit], store: Store, job: Job) -> None:
        self.units = {unit.index: unit for unit in units}
        self.left = list(units)
        self.rows: list[Row] = []
        self.throttle: set[str] = set()
        self.ahead: Ahead | None = None
        self.watch: Watcher
        self.timeout_s: float
        self._store = store
        self._job = job
        self._process: Any = None
        self._said_before = 0

    def run_worker(self) -> None:
        """Start a worker with the units that are left and follow it until it ends."""
        connection = self._start()
        before, current = len(self.left), None
        deadline = time.monotonic() + STARTUP_S
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            if not wait([connection], timeout=left_s):
                break
            try:
                message = connection.recv()
            except (EOFError, OSError):
                self._process.join(30)
                if current is not None:
                    self._finish(current, {"status": "failed", "reason": self._why_died()})
                elif len(self.left) == before:
                    raise ToolchainError(
                        f"the benchmark's worker does not start: {self._why_died()}"
                    ) from None
                return
            if message[0] == "done":
                self._process.join(30)
                return
            if message[0] == "begin":
                current = self.units[message[1]]
                self.watch("begin", current, None)
            elif message[0] == "rows":
                current = None
                self.throttle.update(message[3])
                self._finish(self.units[message[1]], *message[2])
            deadline = time.monotonic() + self.timeout_s
        if current is None and len(self.left) == before:
            raise ToolchainError(f"the benchmark's worker does not start: {self._last_words()}")
        self.end_worker()
        if current is not None:
            reason = given_up(self.timeout_s)
            self._finish(current, {"status": "timeout", "reason": reason})

    def _start(self) -> Connection:
        self.end_worker()
        self._said_before = len(self._job.log.text())
        job = replace(self._job, units=tuple(self.left))
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=work, args=(theirs, job), daemon=True)
        self._process.start()
        theirs.close()
        return connection

    def end_worker(self) -> None:
        """Kill the worker where it still runs."""
        if self._process is not None:
            if self._process.is_alive():
                self._process.kill()
                self._process.join(30)
            self._process = None

    def _finish(self, unit: Unit, measured: Row, *among_others: Row) -> None:
        """Store what became of a unit: its row, and those of it among other kernels.

        The watcher is told the one that counts: of those among others the lower ratio.
        """
        row = self._stored(unit, measured)
        if among_others:
            stored = [self._stored(unit, other) for other in among_others]
            row = min(stored, key=lambda other: other["ratio_p50"])
        self.left = [each for each in self.left if each.index != unit.index]
        self.watch("row", unit, row)

    def _stored(self, unit: Unit, measured: Row) -> Row:
        case = unit.case
        row = {
            "run": self._store.run,
            "suite": case.suite,
            "backend": unit.backend,
            "kernel": unit.kernel,
            **{column: getattr(case, column) for column in CASE_COLUMNS},
            "timer": "none",
            "seed": self._job.seed,
            **measured,
        }
        if self.ahead is not None and row.get("compile_s") is not None:
            built_s = self.ahead.seconds(unit.full_name, str(row.get("config", "")))
            row["compile_s"] = max(row["compile_s"], built_s)
        self._store.append(row)
        self.rows.append(row)
        return row

    def _why_died(self) -> str:
        code = self._process.exitcode
        if code is None:
            how = "stopped answering"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with status {code}"
        return f"the process {how}: {self._last_words()}"

    def _last_words(self) -> str:
        lines = self._job.log.text()[self._said_before :].split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:300] if said else "it said nothing"
