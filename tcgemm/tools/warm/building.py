"""Finding what calls need, and compiling it, in a pool of processes.

Processes of a pool first find, each for some of the products of covering.py, what has to be
compiled, and then compile it, as many at a time as there are cores. What they make stays in the
stores that calls look into: Triton's cache, and cuda_ref's (docs/design.md).
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from multiprocessing import get_context
from typing import Any

from ...choosing.sums import as_summed
from ...dispatch import BACKENDS
from ...errors import TcgemmError
from ...problem import Problem
from ...request import plan_for

CHUNK = 400
"""Products that a process is given at once to find out what they need."""

Task = tuple[str, str, dict[str, Any], Problem, tuple[str, ...]]
"""(backend, kernel, plan, problem, what is compiled for it, one line each)."""


@dataclass(slots=True)
class Outcome:
    """What became of it all."""

    built: dict[str, int] = field(default_factory=dict)
    """Backend -> how many were compiled."""
    there: dict[str, int] = field(default_factory=dict)
    """Backend -> how many were compiled already."""
    left: dict[str, int] = field(default_factory=dict)
    """Backend -> how many were not begun when time was over."""
    failed: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """(backend, reason) -> what was not compiled, one line each."""
    seconds: float = 0.0


Watch = Callable[[int, int, str], None]
"""``watch(done, known, what)``: after every step. More becomes known for a while."""


def backends() -> list[str]:
    """Those that compile ahead: they have ``compiles`` and ``prepare``."""
    return [name for name, module in BACKENDS.items() if hasattr(import_module(module), "prepare")]


def warm(
    problems: Iterable[Problem],
    names: Sequence[str],
    *,
    jobs: int = 0,
    within_s: float | None = None,
    gpu: tuple[tuple[int, int], str, int] | None = None,
    watch: Watch = lambda done, known, what: None,
    pool: Callable[..., Any] | None = None,
) -> Outcome:
    """Compile what the products need.

    Args:
        problems: in the order of need.
        names: backends, of ``backends()``.
        jobs: processes; by default one for each core that this process may use.
        within_s: seconds after which nothing more is begun.
        gpu: (capability, slug, SMs) of the GPU that plans are for where there is none.
        watch: told of progress.
        pool: makes an executor, by default of processes.
    """
    began = time.monotonic()
    given = list(problems)
    chunks = [given[at : at + CHUNK] for at in range(0, len(given), CHUNK)]
    outcome, seen = Outcome(), set[str]()
    known = done = 0
    jobs = jobs or len(os.sched_getaffinity(0))
    waiting = Waiting(longest_first=within_s is None)
    with (pool or _processes)(jobs, gpu) as executor:
        with _uninterrupted():
            pending: dict[Future[Any], Task | None] = {
                executor.submit(find, chunk, tuple(names)): None for chunk in chunks
            }
        known = len(pending)
        try:
            while pending:
                rest = None if within_s is None else max(0.0, began + within_s - time.monotonic())
                finished, _ = wait(pending, timeout=rest, return_when=FIRST_COMPLETED)
                if not finished:
                    break
                for future in finished:
                    task = pending.pop(future)
                    done += 1
                    if task is not None:
                        waiting.done(task)
                        _note(outcome, task, future)
                        watch(done, known, f"{task[0]}/{task[1]}")
                        continue
                    for found in future.result():
                        if not seen.issuperset(found[4]):
                            seen.update(found[4])
                            waiting.add(found)
                            known += 1
                    watch(done, known, "looking for what is needed")
                while len(pending) < jobs and (following := waiting.begin()) is not None:
                    pending[executor.submit(build, following)] = following
        except BaseException:
            _end(executor)
            raise
        for future, task in pending.items():
            if future.cancel() and task is not None:
                outcome.left[task[0]] = outcome.left.get(task[0], 0) + 1
    for future, task in pending.items():
        if task is not None and not future.cancelled():
            _note(outcome, task, future)
    for task in waiting.left():
        outcome.left[task[0]] = outcome.left.get(task[0], 0) + 1
    outcome.seconds = time.monotonic() - began
    return outcome


class Waiting:
    """What is to be compiled: in the order of need, where time may not be enough for all of it;
    else the longest first, as one of 25 s would end alone if it began last.

    How long one of a kernel takes is what the last one took; of which none is known begins first.
    """

    def __init__(self, longest_first: bool) -> None:
        self._longest_first = longest_first
        self._tasks: dict[tuple[str, str], deque[Task]] = {}
        self._took: dict[tuple[str, str], float] = {}
        self._began: dict[int, float] = {}

    def add(self, task: Task) -> None:
        kernel = task[:2] if self._longest_first else ("", "")
        self._tasks.setdefault(kernel, deque()).append(task)

    def begin(self) -> Task | None:
        """The task to begin now; None where none waits."""
        kernel = max(self._tasks, key=lambda each: self._took.get(each, math.inf), default=None)
        if kernel is None:
            return None
        task = self._tasks[kernel].popleft()
        if not self._tasks[kernel]:
            del self._tasks[kernel]
        self._began[id(task)] = time.monotonic()
        return task

    def done(self, task: Task) -> None:
        self._took[task[:2]] = time.monotonic() - self._began.pop(id(task))

    def left(self) -> Iterator[Task]:
        """Those that were not begun."""
        return chain.from_iterable(self._tasks.values())


def _note(outcome: Outcome, task: Task, future: Future[Any]) -> None:
    built, reason = future.result() if future.exception() is None else (0, str(future.exception()))
    if reason:
        line = f"{task[1]}: {task[3]}"
        outcome.failed.setdefault((task[0], reason), []).append(line)
        return
    counts = outcome.built if built else outcome.there
    counts[task[0]] = counts.get(task[0], 0) + 1


def _processes(jobs: int, gpu: tuple[tuple[int, int], str, int] | None) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=begin, initargs=(gpu,)
    )


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C, which a terminal sends to every process, waits until the block is over; processes
    that begin within it hear of none before ``begin``, or they would end with a pool half made."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(executor: Any) -> None:
    """End the processes of a pool now: what one was compiling is of no use, and the stores clear
    away what a killed builder leaves."""
    for process in list((getattr(executor, "_processes", None) or {}).values()):
        process.kill()


def begin(gpu: tuple[tuple[int, int], str, int] | None) -> None:
    """In each process, before Triton is imported: it compiles, whether there is a GPU or not."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the process that asked ends this one
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.environ["TRITON_INTERPRET"] = "0"
    os.nice(5)  # a program that runs beside it comes first
    if gpu is not None:
        plan_for(*gpu)


def find(problems: Sequence[Problem], names: Sequence[str]) -> list[Task]:
    """What has to be compiled for the products, each once; those that are refused need nothing."""
    from ... import repacking

    found: list[Task] = []
    seen: set[str] = set()
    for problem in problems:
        for backend in names:
            try:
                choose = repacking.chooser(backend)
                summed = as_summed(problem, backend)
                copied = repacking.worth(summed, backend, choose)
                asked = summed if copied is None else copied.problem
                row = choose(asked)
            except TcgemmError:
                continue
            module = import_module(BACKENDS[backend])
            wanted = [(row.name, dict(row.plan(asked)))]
            if copied is not None and hasattr(module, "COPIES"):
                wanted.append((module.COPIES, {}))
            for kernel, plan in wanted:
                needs = module.compiles(kernel, plan, asked)
                if not seen.issuperset(needs):
                    seen.update(needs)
                    found.append((backend, kernel, plan, asked, tuple(needs)))
    return found


def build(task: Task) -> tuple[int, str]:
    """(how many were compiled, why it failed or nothing)."""
    backend, kernel, plan, problem, _ = task
    try:
        return import_module(BACKENDS[backend]).prepare(kernel, plan, problem), ""
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return 0, lines[0] if lines else repr(error)
