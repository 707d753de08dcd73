"""``tcgemm tune``: find faster configurations of a backend's rungs on this GPU, and keep them.

A backend can be tuned whose folder has the modules ``candidates`` (RUNGS and candidates), ``plans``
(DIVIDING, divide, transposed, forget) and ``tables`` (read, check, user_path), as those of
triton_kernels and cuda_ref. For each problem the candidates of every rung are compiled in threads
where the settings are part of the code, those that spill are dropped, the rest are verified by both
checks of ``accuracy``, and what is right is ranked by its time beside that of the present choice,
launch for launch in turns. What beats the present choice becomes rows of the user's own table,
which comes first from then on. Imports no torch until it runs.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from . import options
from .bench.cases import Case, build
from .errors import (
    OperandError,
    ResultsError,
    TcgemmError,
    UnknownNameError,
    UnsupportedError,
    first_line,
)
from .files import locked, write_whole
from .problem import settings

if TYPE_CHECKING:
    from .problem import Plan, Problem


log = logging.getLogger(__name__)

VARIABLE = "TCGEMM_TUNE"
"""Environment variable: 1 tunes at the first call of each bucket, once for a GPU."""

BUCKETS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Problems of up to so many rows share their rows of a table, as do those of more than the last."""

WORTH = 1.01
"""A candidate is kept where it is faster than the present choice by more than this."""


TUNABLE = ("triton", "cuda")
"""Backends with rungs that can be tuned, the default first."""


MODULES = {
    "triton": {
        "plans": "by_name",
        "candidates": "by_name",
        "tables": "planning.tables",
        "compile_only": "inspection.compile_only",
    },
    "cuda": {"plans": "planning", "candidates": "planning", "tables": "planning"},
}
"""Backend -> where it keeps what is asked for, where that is no module of that name."""


def _module(backend: str, module: str) -> Any:
    """A module of a backend's folder, which this package knows by name only."""
    from .dispatch import BACKENDS

    return import_module(f"{BACKENDS[backend]}.{MODULES[backend].get(module, module)}")


@dataclass(frozen=True)
class Candidate:
    """A configuration of a rung: as tables hold it, and as the rung's ``run`` takes it."""

    kernel: str
    config: dict[str, int]
    plan: dict[str, int]

    def __str__(self) -> str:
        return f"{self.kernel} {settings(self.config)}"


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate."""

    candidate: Candidate
    status: str
    """ok, or why it was dropped: failed, spills, wrong."""
    reason: str = ""
    ms: float = 0.0
    speedup: float = 0.0
    """The present choice's time over its own, pair by pair."""


@dataclass
class Found:
    """What tuning a problem gave."""

    case: Case
    present: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def best(self) -> Outcome | None:
        """The fastest right candidate, where it beats the present choice; else None."""
        right = [o for o in self.outcomes if o.status == "ok"]
        best = max(right, key=lambda o: o.speedup, default=None)
        return best if best is not None and best.speedup > WORTH else None


class Machine(Protocol):
    """What tuning needs of a GPU; a test brings its own."""

    gpu: str
    """The table's name, e.g. nvidia-h200."""

    def capturing(self) -> bool:
        """Whether launches go into a graph, and cannot be timed."""
        ...

    def candidates(self, case: Case, kernels: Sequence[str]) -> list[Candidate]:
        """What to try."""
        ...

    def compile(self, case: Case, candidates: Sequence[Candidate]) -> list[Outcome | None]:
        """Compile them, in parallel: why one is dropped, or None."""
        ...

    def prepare(self, case: Case) -> tuple[str, Bench]:
        """The present choice in words, and what judges candidates of this problem."""
        ...


class Bench(Protocol):
    """The operands of a problem on a GPU, and the present choice to be beaten."""

    def verify(self, candidate: Candidate) -> str:
        """What is wrong with the result; empty where nothing is."""
        ...

    def time(self, candidate: Candidate) -> tuple[float, float]:
        """(ms a launch, the present choice's time over it), taken in turns."""
        ...


def tune_case(case: Case, kernels: Sequence[str], machine: Machine) -> Found:
    """Try every candidate of the rungs on one problem."""
    tried = machine.candidates(case, kernels)
    dropped = machine.compile(case, tried)
    present, bench = machine.prepare(case)
    found = Found(case, present, [o for o in dropped if o is not None])
    for candidate, why in zip(tried, dropped, strict=True):
        if why is None:
            found.outcomes.append(_judge(candidate, bench))
    return found


def _judge(candidate: Candidate, bench: Bench) -> Outcome:
    try:
        wrong = bench.verify(candidate)
        if wrong:
            return Outcome(candidate, "wrong", wrong)
        ms, speedup = bench.time(candidate)
    except RuntimeError as error:
        return Outcome(candidate, "failed", first_line(error)[:200])
    return Outcome(candidate, "ok", "", ms, speedup)


def rows_of(found: Found, backend: str = "triton") -> dict[str, Any]:
    """The rows of a table that say what was found: {"kernels": {rung: rows}, "prefer": rows}."""
    best = found.best
    if best is None:
        return {"kernels": {}, "prefer": []}
    kernel = best.candidate.kernel
    turned = found.case.M > found.case.N
    own = _when(found.case, turned and kernel in _module(backend, "plans").DIVIDING)
    return {
        "kernels": {kernel: [{"when": own, "config": best.candidate.config}]},
        "prefer": [{"when": _when(found.case, turned), "kernel": kernel}],
    }


def _when(case: Case, turned: bool) -> dict[str, Any]:
    """The conditions of a problem's bucket; of its transpose C' = B' A' where turned."""
    M, N, layout = case.M, case.N, case.layout
    if turned:
        flip = {"n": "t", "t": "n"}
        M, N, layout = N, M, flip[layout[1]] + flip[layout[0]]
    most = next((size for size in BUCKETS if size >= M), None)
    least = max((size + 1 for size in BUCKETS if size < M), default=1)
    when: dict[str, Any] = {"M_min": least, **({"M_max": most} if most else {})}
    for name, size in (("N", N), ("K", case.K)):
        when |= {f"{name}_min": size, f"{name}_max": size}
    when["layout"] = layout
    if case.dtype_out != case.dtype_in:
        when["dtype_out"] = case.dtype_out
    return when


def merge(table: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The table with new rows before the old, which they replace where the conditions are equal."""

    def joined(old: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        settled = [row.get("when") for row in rows]
        return [*rows, *(row for row in old if row.get("when") not in settled)]

    kernels = dict(table.get("kernels", {}))
    for kernel, rows in new["kernels"].items():
        kernels[kernel] = joined(kernels.get(kernel, []), rows)
    return {**table, "kernels": kernels, "prefer": joined(table.get("prefer", []), new["prefer"])}


def read_table(path: Path, backend: str = "triton") -> dict[str, Any]:
    """The table of a file, or an empty one where there is no file.

    Raises ResultsError where the file is no table.
    """
    if not path.exists():
        return {"kernels": {}, "prefer": []}
    try:
        table: dict[str, Any] = _module(backend, "tables").read(path)
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} is no table of configurations: {error}; move it away") from None
    return table


def write_table(path: Path, table: dict[str, Any], backend: str = "triton") -> None:
    """Write a table whole or not at all. Raises ResultsError where that cannot be."""
    _module(backend, "tables").check(table)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, json.dumps(table, indent=1) + "\n")
    except OSError as error:
        raise _unwritable(path, error) from None


def keep(path: Path, new: dict[str, Any], backend: str = "triton") -> None:
    """Merge new rows into the table of a file, as it is by then: other processes write it too.

    Raises ResultsError where the file is no table or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            write_table(path, merge(read_table(path, backend), new), backend)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> ResultsError:
    return ResultsError(
        f"cannot write {path}: {error.strerror}; --out or TCGEMM_CACHE_DIR names another place"
    )


_tuning = threading.Lock()


def _free_in_child() -> None:
    # Tuning takes minutes, and a fork does not wait for it.
    global _tuning
    _tuning = threading.Lock()


os.register_at_fork(after_in_child=_free_in_child)


def once(problem: Problem, machine: Machine | None = None) -> bool:
    """Tune the bucket of a problem where VARIABLE is 1 and no call has done so on this GPU.

    What was found, be it that the present choice stays, goes to the user's own table, so that later
    calls and processes take it from there. Minutes on a slow machine, 13 s with 16 cores.

    Args:
        problem: only plain products of contiguous 16-bit operands on a GPU are tuned.
        machine: by default the current GPU.

    Returns:
        Whether it tuned.

    Raises:
        UnsupportedError: a graph is being captured, where nothing can be timed.
    """
    if os.environ.get(VARIABLE) != "1" or not problem.plain or problem.batch > 1:
        return False
    case = _case_of(problem)
    if problem.device != "cuda" or case is None:
        return False
    with _tuning:
        machine = machine or _Gpu(0.03, os.cpu_count() or 1)
        tables = _module("triton", "tables")
        path = tables.user_path(machine.gpu)
        table = read_table(path)
        turned = case.M > case.N
        bucket = _when(case, turned)
        if any(row.get("when") == bucket for row in table["prefer"]):
            return False
        if machine.capturing():
            raise UnsupportedError(
                f"{VARIABLE}=1 asks to tune {problem} first, which times candidates, and a graph "
                "capture forbids that: call it once with these shapes before the capture, run "
                f"'tcgemm tune --shape {case.M}x{case.N}x{case.K} --layout {case.layout}', or "
                f"unset {VARIABLE}"
            )
        log.info("tuning %s: %s keeps what is found", case, path)
        found = tune_case(case, _module("triton", "candidates").RUNGS, machine)
        rows = rows_of(found)
        if found.best is None:
            rows["prefer"] = [{"when": bucket, "kernel": found.present.split()[0]}]
        keep(path, rows)
        _module("triton", "plans").forget()
    return True


def _case_of(problem: Problem) -> Case | None:
    """The case of a problem of contiguous operands; None of any other."""
    if "s" in problem.layout:
        return None
    sizes = problem.M, problem.N, problem.K
    case = Case("shape", *sizes, problem.dtype_in, problem.dtype_out, problem.layout, "a call")
    whole = case.product()
    strides = ("a_strides", "b_strides", "c_strides")
    return case if all(getattr(problem, x) == getattr(whole, x) for x in strides) else None


def tune(
    shape: Annotated[
        list[str] | None, typer.Option(help="A problem to tune. Repeatable.", metavar="MxNxK")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help="All problems of a suite: quick, squares, seeds, llm.", metavar="NAME"),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="Only candidates of this rung. Repeatable.", metavar="NAME"),
    ] = None,
    backend: Annotated[str, typer.Option(help="Whose rungs: triton, cuda.")] = "triton",
    dtype: Annotated[str, typer.Option(help="Of A and B: float16, bfloat16.")] = "bfloat16",
    out_dtype: Annotated[
        str | None, typer.Option(help="Of C: as A and B unless told, or float32.")
    ] = None,
    layout: options.Layouts = None,
    budget: Annotated[
        float, typer.Option(help="Seconds of timing for each candidate.", min=0.001, max=60)
    ] = 0.03,
    jobs: Annotated[
        int, typer.Option(help="Compilations at once; 0: one for each CPU.", min=0, max=256)
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="The table to write; by default the user's own of this GPU."),
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print JSON: every candidate and what became of it.")
    ] = False,
) -> None:
    """Find faster configurations of a backend's kernels on this GPU and keep them.

    Wrong candidates are dropped. What beats the present choice goes to configs-GPU.json (of CUDA
    cuda-configs-GPU.json) in TCGEMM_CACHE_DIR (~/.cache/tcgemm unless set), which every later call
    prefers.
    """
    cases = _cases(shape, suite, dtype, out_dtype, layout)
    if backend not in TUNABLE:
        raise UnknownNameError(
            f"backend {backend!r} is not tuned: choose from {', '.join(TUNABLE)}"
        )
    tunable = _module(backend, "candidates").RUNGS
    for name in kernel or ():
        if name not in tunable:
            raise UnknownNameError(
                f"kernel {name!r} is not tuned: choose from {', '.join(tunable)}"
            )
    import torch

    from .call import forget

    if not torch.cuda.is_available():
        raise UnsupportedError(
            "tune measures on a GPU and there is none here: 'tcgemm doctor' says what was found"
        )
    machine = _Gpu(budget, jobs or os.cpu_count() or 1, backend)
    path = out or _module(backend, "tables").user_path(machine.gpu)
    read_table(path, backend)
    results = []
    for found in _each(cases, kernel or tunable, machine, quiet=json_):
        results.append(found)
        if found.best is not None:
            keep(path, rows_of(found, backend), backend)
    _module(backend, "plans").forget()
    forget()
    if json_:
        typer.echo(json.dumps([_as_json(found) for found in results], indent=1))
    else:
        _print_table(results, path)


def _cases(
    shapes: list[str] | None,
    suite: str | None,
    dtype: str,
    out_dtype: str | None,
    layouts: list[str] | None,
) -> list[Case]:
    if not shapes and suite is None:
        raise OperandError("nothing to tune: give --shape MxNxK or --suite NAME")
    cases = build(
        suite or "quick",
        shapes=shapes or (),
        dtypes=[dtype],
        dtypes_out=[out_dtype] if out_dtype else (),
        layouts=layouts or (),
    )
    plain = [c for c in cases if c.dtype_in in ("float16", "bfloat16") and not c.fused]
    if not plain:
        raise OperandError(f"only plain products of float16 and bfloat16 are tuned, not {dtype}")
    return plain


def _each(
    cases: Sequence[Case], kernels: Sequence[str], machine: Machine, quiet: bool
) -> Iterable[Found]:
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    for index, case in enumerate(cases, 1):
        with console.status(f"{index} of {len(cases)}: {case}"):
            yield tune_case(case, kernels, machine)


def _as_json(found: Found) -> dict[str, Any]:
    return {
        "case": str(found.case),
        "present": found.present,
        "best": None if found.best is None else str(found.best.candidate),
        "candidates": [
            {
                "kernel": o.candidate.kernel,
                "config": o.candidate.config,
                "status": o.status,
                "reason": o.reason,
                "ms": o.ms or None,
                "speedup": o.speedup or None,
            }
            for o in found.outcomes
        ],
    }


def _print_table(results: Sequence[Found], path: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("problem", "present choice", "best found", "speed-up", "ms", "right", "dropped")
    for found in results:
        right = [o for o in found.outcomes if o.status == "ok"]
        dropped: dict[str, int] = {}
        for outcome in found.outcomes:
            if outcome.status != "ok":
                dropped[outcome.status] = dropped.get(outcome.status, 0) + 1
        best = found.best
        table.add_row(
            str(found.case),
            escape(found.present),
            escape(str(best.candidate)) if best else "the present choice",
            f"{best.speedup:.3f}" if best else "",
            f"{best.ms:.4g}" if best else "",
            str(len(right)),
            ", ".join(f"{count} {status}" for status, count in dropped.items()),
        )
    console = Console()
    console.print(table)
    kept = sum(found.best is not None for found in results)
    where = f": {escape(str(path))}" if kept else ""
    console.print(f"{kept} of {len(results)} problems have a faster choice now{where}")


class _Gpu:
    """The current GPU, with the project's own oracle and timer."""

    def __init__(self, budget_s: float, jobs: int, backend: str = "triton") -> None:
        import torch

        self._backend = backend
        plans = _module(backend, "plans")
        self.gpu, self._shared, self._processors = plans.gpu_here()
        self._capability = torch.cuda.get_device_capability()
        self._budget_s, self._jobs = budget_s, jobs

    def capturing(self) -> bool:
        import torch

        return torch.cuda.is_current_stream_capturing()

    def candidates(self, case: Case, kernels: Sequence[str]) -> list[Candidate]:
        from . import dispatch

        of = _module(self._backend, "candidates").candidates
        plans = _module(self._backend, "plans")
        problem = case.product(capability=self._capability)
        found = []
        for kernel in kernels:
            if dispatch.find(self._backend, kernel).why_not(problem) is not None:
                continue
            turned = kernel in plans.DIVIDING and problem.M > problem.N
            seen = problem.transposed() if turned else problem
            for config in of(kernel, seen, self._shared, self._processors):
                plan = plans.divide(kernel, config, seen, self._processors, turned)
                found.append(Candidate(kernel, config, plan))
        return found

    def compile(self, case: Case, candidates: Sequence[Candidate]) -> list[Outcome | None]:
        # CUDA's are built where they are called: one build a rung, of one_wave one a setting.
        if self._backend != "triton":
            return [None] * len(candidates)
        compile_only = _module(self._backend, "compile_only")
        requests = [
            compile_only.Request(
                c.kernel, c.plan, case.dtype_in, case.dtype_out, case.layout, self._capability,
                case.M, case.N, case.K,
            )
            for c in candidates
        ]  # fmt: skip
        return compile_in_threads(compile_only.compile_rungs, requests, candidates, self._jobs)

    def prepare(self, case: Case) -> tuple[str, Bench]:
        from . import dispatch

        plan = dispatch.plan(case.product(capability=self._capability), self._backend)
        return f"{plan.kernel} {plan.settings}", _Operands(case, plan, self._budget_s)


def compile_in_threads(
    compile_rungs: Callable[[Sequence[Any]], list[Any]],
    requests: Sequence[Any],
    candidates: Sequence[Candidate],
    jobs: int,
) -> list[Outcome | None]:
    """Compile in ``jobs`` threads, each a child process at a time: why each is dropped, or None."""
    from concurrent.futures import ThreadPoolExecutor

    def group(indices: Sequence[int]) -> list[tuple[int, Outcome | None]]:
        try:
            built = compile_rungs([requests[i] for i in indices])
        except RuntimeError as error:
            if len(indices) > 1:  # one of them fails: find out which
                return [answer for i in indices for answer in group([i])]
            (i,) = indices
            lines = str(error).strip().splitlines() or [""]
            return [(i, Outcome(candidates[i], "failed", lines[-1][:200]))]
        return [(i, _why_dropped(candidates[i], b)) for i, b in zip(indices, built, strict=True)]

    groups = [range(start, len(requests), jobs) for start in range(min(jobs, len(requests)))]
    answers: dict[int, Outcome | None] = {}
    with ThreadPoolExecutor(jobs) as threads:
        for part in threads.map(group, groups):
            answers.update(part)
    return [answers[i] for i in range(len(requests))]


def _why_dropped(candidate: Candidate, built: Any) -> Outcome | None:
    if built.spill_bytes:
        return Outcome(candidate, "spills", f"{built.spill_bytes} bytes a thread")
    if built.serialized:
        return Outcome(candidate, "spills", "ptxas serialises its tensor-core instructions")
    return None


class _Operands:
    """A problem on the GPU: the oracle, the buffers to rotate over, the present choice's timer."""

    def __init__(self, case: Case, present: Plan, budget_s: float) -> None:
        from . import accuracy, dispatch
        from .bench.launches import Launches, rotating_operands

        self._oracle = accuracy.Oracle(
            case.M, case.N, case.K, case.dtype_in, case.dtype_out, case.layout, "cuda"
        )
        self._sets, _, self._ring = rotating_operands(case)
        self._budget_s, self._backend = budget_s, present.backend
        self._present = Launches(
            self._bound(dispatch.load(present.backend, present.kernel), present.config), self._ring
        )

    def _bound(self, run: Callable[..., None], plan: Mapping[str, Any]) -> list[Callable[[], None]]:
        return [partial(run, *abc, **plan) for abc in self._sets]

    def verify(self, candidate: Candidate) -> str:
        from . import dispatch

        run = dispatch.load(self._backend, candidate.kernel)
        verdict = self._oracle.check(lambda a, b, c: run(a, b, c, **candidate.plan))
        return "" if verdict.ok else verdict.reason

    def time(self, candidate: Candidate) -> tuple[float, float]:
        from . import dispatch
        from .bench.launches import Launches
        from .bench.timing import measure

        run = dispatch.load(self._backend, candidate.kernel)
        mine = Launches(self._bound(run, candidate.plan), self._ring)
        timing = measure(mine, self._present, budget_s=self._budget_s)
        if timing.ratio_p50 is None:
            raise TcgemmError(f"{candidate} has no time beside the present choice")
        return timing.ms_p50, timing.ratio_p50
