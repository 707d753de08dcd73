"""Which rung the tables say was measured fastest. Imports no triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import gpus, tables


def preferred(problem: Any, able: Sequence[str]) -> str | None:
    """The rung measured fastest for a problem, of those ``able`` to run it; None where the tables
    say nothing of it: they speak of plain products only.
    """
    if not problem.plain or problem.batch > 1:
        return None
    gpu = gpus.gpu_of(problem)[0]
    table = tables.shipped()[tables.names(gpu, problem.capability or (9, 0))[0]]
    thin = problem.transposed() if problem.M > problem.N else problem
    for row in (*tables.of_user(gpu)["prefer"], *table["prefer"]):
        if tables.all_hold(row, thin) and row["kernel"] in ("", *able):
            return row["kernel"] or None
    return None


def planned_by_user(problem: Any, kernel: str) -> bool:
    """Whether a row of the user's own table has a configuration of the rung for the problem."""
    rows = tables.of_user(gpus.gpu_of(problem)[0])["kernels"].get(kernel, [])
    thin = problem.transposed() if problem.M > problem.N else problem
    return any(tables.all_hold(row, each) for row in rows for each in (problem, thin))


def tuned_by_user(problem: Any) -> bool:
    """Whether a row of the user's own table names the rung of a problem."""
    if not problem.plain or problem.batch > 1:
        return False
    thin = problem.transposed() if problem.M > problem.N else problem
    rows = tables.of_user(gpus.gpu_of(problem)[0])["prefer"]
    return any(tables.all_hold(row, thin) for row in rows)
