"""Kernels built ahead of the benchmark, as many at a time as there are cores.

A process of its own loads every kernel of a run, and compiles what is compiled for each problem,
in the order in which the worker will ask for it. What it builds stays in the backends' caches; the
worker waits on a cache's lock for what is being built, and builds itself what was not. A build that
fails, or that takes this process with it, is left to the worker, which says why.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import torch

from .. import dispatch, repacking
from ..problem import settings
from .contender import UNASKED
from .worker import Log, Unit, die_with

AT_ONCE = 4
"""Problems that one child process of a compiler is given."""

Built = tuple[str, str, float]
"""(full name of a kernel, its settings or none where they are not compiled, seconds)."""


class Ahead:
    """The process that builds; ``seconds`` says what it has built so far.

    Args:
        units: what will be measured, in that order.
        device: "cuda" or "cpu".
        jobs: builds at once; by default one for each core that this process may use.
    """

    def __init__(self, units: Sequence[Unit], device: str, jobs: int = 0) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe(duplex=False)
        self._log = Log()
        jobs = jobs or len(os.sched_getaffinity(0))
        given = (theirs, tuple(units), dict(dispatch.BACKENDS), device, jobs, self._log)
        self._process = context.Process(target=build, args=(*given, os.getpid()), daemon=True)
        self._process.start()
        theirs.close()
        self._seconds: dict[tuple[str, str], float] = {}

    def seconds(self, full_name: str, config: str) -> float:
        """How long the kernel's build took, and with these settings; 0 where it was not built."""
        with suppress(EOFError, OSError):
            while self._connection.poll():
                name, of, seconds = self._connection.recv()
                self._seconds[name, of] = max(seconds, self._seconds.get((name, of), 0.0))
        return sum(self._seconds.get((full_name, of), 0.0) for of in dict.fromkeys(("", config)))

    def wait(self, timeout_s: float) -> None:
        """Wait until everything is built, or for so long."""
        until = time.monotonic() + timeout_s
        while self._process.is_alive() and (left := until - time.monotonic()) > 0:
            self.seconds("", "")  # what it sends has to be taken, or it waits for a place
            self._process.join(min(left, 0.1))

    def end(self) -> None:
        """Stop building."""
        if self._process.pid is not None and self._process.is_alive():
            with suppress(OSError):  # its compilers are in its group; there is none at the start
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join(30)
        self._connection.close()
        self._log.close()


def build(
    connection: Connection,
    units: Sequence[Unit],
    backends: Mapping[str, str],
    device: str,
    jobs: int,
    log: Log,
    parent: int,
) -> None:
    """Entry of the process: build all that the units need, and send a ``Built`` for each."""
    die_with(parent)
    os.setsid()  # Ctrl-C is the parent's to handle, and compilers end with this group
    os.nice(5)  # the worker that measures comes first
    log.take_output()
    dispatch.BACKENDS.update(backends)
    with ThreadPoolExecutor(jobs) as threads:
        for done in [threads.submit(_quietly, task) for task in tasks(units, device)]:
            for built in done.result():
                connection.send(built)


def _quietly(task: Callable[[], list[Built]]) -> list[Built]:
    try:
        return task()
    except Exception:
        return []


def tasks(units: Sequence[Unit], device: str) -> list[Callable[[], list[Built]]]:
    """What there is to build, in the order of need: functions that build and say how long it took.

    Each kernel is loaded once. Problems of a backend that has ``inspection.compile_only`` are
    compiled by that, some at a time; another that has ``prepare`` compiles each case of its kernels
    besides, once. The kernels of any other backend are complete once they are loaded.
    """
    made: list[Callable[[], list[Built]]] = []
    waiting: dict[str, list[Any]] = {}
    seen: set[Any] = set()

    def compile_waiting(backend: str) -> None:
        if problems := waiting.pop(backend, []):
            made.append(lambda: _compile(backend, problems))

    for unit in map(_named, units):
        if unit is None:
            continue
        row = dispatch.find(unit.backend, unit.kernel)
        if device not in row.devices:
            continue
        if (unit.backend, unit.kernel) not in seen:
            seen.add((unit.backend, unit.kernel))
            made.append(lambda unit=unit: _load(unit))  # type: ignore[misc]
        if device != "cuda":
            continue
        if _compiler(unit.backend) is None:
            module = import_module(dispatch.BACKENDS[unit.backend])
            problem = _quietly_asked(row, unit) if hasattr(module, "prepare") else None
            if problem is None:
                continue
            plan = _plan(unit, problem)
            needs = " ".join(module.compiles(unit.kernel, plan, problem))
            if needs != unit.kernel and needs not in seen:
                seen.add(needs)
                made.append(partial(_prepare, module.prepare, unit, problem))
            continue
        request = _quietly_requested(row, unit)
        if request is not None and str(request) not in seen:
            seen.add(str(request))
            waiting.setdefault(unit.backend, []).append(request)
            if len(waiting[unit.backend]) == AT_ONCE:
                compile_waiting(unit.backend)
    for backend in list(waiting):
        compile_waiting(backend)
    return made


def _named(unit: Unit) -> Unit | None:
    """The unit of the kernel that its backend chooses, where it leaves that to the backend."""
    if unit.kernel != UNASKED:
        return unit
    try:
        problem = unit.case.product(capability=torch.cuda.get_device_capability())
        if (copies := repacking.worth(problem, unit.backend)) is not None:
            problem = copies.problem
        return replace(unit, kernel=dispatch.choose(problem, unit.backend).name)
    except Exception:
        return None


def _plan(unit: Unit, problem: Any) -> dict[str, Any]:
    """The plan of the unit's kernel, as its contender has it."""
    return dict(dispatch.plan(problem, unit.backend, unit.kernel).config)


def _load(unit: Unit) -> list[Built]:
    began = time.perf_counter()
    dispatch.load(unit.backend, unit.kernel)
    return [(unit.full_name, "", time.perf_counter() - began)]


def _prepare(prepare: Callable[..., int], unit: Unit, problem: Any) -> list[Built]:
    began = time.perf_counter()
    plan = _plan(unit, problem)
    prepare(unit.kernel, plan, problem)
    return [(unit.full_name, settings(plan), time.perf_counter() - began)]


def _quietly_asked(row: dispatch.Kernel, unit: Unit) -> Any:
    """The problem of the unit; None where the kernel refuses it, or who knows."""
    try:
        problem = unit.case.problem(
            capability=torch.cuda.get_device_capability(), mma_shape=unit.case.mma_shape
        )
        return None if row.why_not(problem) is not None else problem
    except Exception:
        return None


def _compiler(backend: str) -> Any:
    """The module that compiles a backend's problems without a GPU; None where it has none."""
    try:
        return import_module(f"{dispatch.BACKENDS[backend]}.inspection.compile_only")
    except ModuleNotFoundError:
        return None


def _compile(backend: str, requests: Sequence[Any]) -> list[Built]:
    compile_only = _compiler(backend)
    return [
        (f"{backend}/{request.kernel}", settings(request.plan), built.seconds)
        for request, built in zip(requests, compile_only.compile_rungs(requests), strict=True)
    ]


def _quietly_requested(row: dispatch.Kernel, unit: Unit) -> Any:
    """What the backend's compiler is asked for; None where the kernel refuses, or who knows."""
    case = unit.case
    words = case.fused.split()
    problem = _quietly_asked(row, unit)
    if problem is None:
        return None
    try:
        return _compiler(unit.backend).Request(
            unit.kernel, _plan(unit, problem), case.dtype_in, case.dtype_out, case.layout,
            problem.capability, case.M, case.N, case.K,
            compute="" if problem.plain else case.compute, epilogue=problem.epilogue,
            bias="bias" in words, c_in="residual" in words,
        )  # fmt: skip
    except Exception:
        return None
