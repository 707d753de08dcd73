"""Tuning at the first call of each bucket, where the environment asks for it."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from ...bench.case import Case
from ...errors import UnsupportedError
from .backends import part_of
from .search import Machine, tune_case
from .this_gpu import ThisGpu
from .user_table import bucket_of, keep, read_table, rows_of

if TYPE_CHECKING:
    from ...problem import Problem

log = logging.getLogger(__name__)

VARIABLE = "TCGEMM_TUNE"
"""Environment variable: 1 tunes at the first call of each bucket, once for a GPU."""


def before_choice(problem: Problem, backend: str, kernel: str | None) -> bool:
    """Tune the problem of a call that leaves the kernel to Triton's choice (see tcgemm.hooks).

    The call may have chosen before, while another thread tuned. So of a bucket that was tuned in
    this process, whichever thread did it, each first call chooses anew.
    """
    if backend != "triton" or kernel is not None:
        return False
    once(problem)
    case = case_of(problem)
    return case is not None and _named(case) in _tuned


_tuned: set[tuple[Any, ...]] = set()
"""The buckets that this process has tuned."""

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
    case = case_of(problem)
    if problem.device != "cuda" or case is None:
        return False
    with _tuning:
        machine = machine or ThisGpu(0.03, os.cpu_count() or 1)
        tables = part_of("triton", "tables")
        path = tables.user_path(machine.gpu)
        table = read_table(path)
        transposed = case.M > case.N
        bucket = bucket_of(case, transposed)
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
        found = tune_case(case, part_of("triton", "candidates").RUNGS, machine)
        rows = rows_of(found)
        if found.best is None:
            rows["prefer"] = [{"when": bucket, "kernel": found.present.split()[0]}]
        keep(path, rows)
        part_of("triton", "plans").forget()
        _tuned.add(_named(case))
    return True


def _named(case: Case) -> tuple[Any, ...]:
    """The bucket of a case, and its dtype."""
    return case.dtype_in, *bucket_of(case, case.M > case.N).items()


def case_of(problem: Problem) -> Case | None:
    """The case of a problem of contiguous operands; None of any other."""
    if "s" in problem.layout:
        return None
    sizes = problem.M, problem.N, problem.K
    case = Case("shape", *sizes, problem.dtype_in, problem.dtype_out, problem.layout, "a call")
    whole = case.product()
    strides = ("a_strides", "b_strides", "c_strides")
    return case if all(getattr(problem, x) == getattr(whole, x) for x in strides) else None
