"""Plans worth a look besides the one that a rung's own tables and model take, of all rungs that
accept a product and have a cost: tcgemm/choosing/plans.py takes one by a model of what was timed.

A rung's Python file may say ``offered(problem, sms)``: such plans of its own. They are for plain
products whose operands TMA can read, of more than one row and column: of others a race said little.
Where C lies by columns a rung computes the transposed product, and the model, whose every row had
its C by rows, is asked about that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from . import tables
from .gpu import of as gpu_of
from .ladder import by_name, tunings
from .refusals import column_major, refuse_tma
from .tuning import wide

HOPPER = (9, 0)
"""The compute capability that plans were timed on."""

SWAPPED = {"BLOCK_M": "BLOCK_N", "BLOCK_N": "BLOCK_M", "CLUSTER_M": "CLUSTER_N"}
SWAPPED |= {new: old for old, new in SWAPPED.items()}
"""Setting -> what it is of the transposed product."""


@lru_cache(maxsize=1024)
def raced(problem: Any) -> bool:
    """Whether such products were raced, so that the model speaks of them. A choice asks for it some
    twenty times."""
    if problem.capability != HOPPER or problem.batch > 1 or not problem.plain:
        return False
    return min(problem.M, problem.N) > 1 and refuse_tma(problem) is None


def named(problem: Any, kernel: str) -> str:
    """As what the model knows a kernel: by its name where such products were raced, and else by one
    that it does not know."""
    return kernel if raced(problem) else f"{kernel}, not raced"


def plans(problem: Any, able: Sequence[str]) -> Iterator[tuple[str, Mapping[str, int]]]:
    """(rung, plan) of rungs in ``able``; none of one that the user's own table speaks of."""
    if not raced(problem):
        return
    gpu = gpu_of(problem)
    sms, of_user = gpu.sms, tables.of_user(gpu.name)["kernels"]
    for name in able:
        module = by_name()[name]
        if not hasattr(module, "cost") or (name in of_user and planned_by_user(problem, name)):
            continue
        yield name, module.ROW["plan"](problem)
        if hasattr(module, "offered"):
            for plan in module.offered(problem, sms):
                yield name, plan


def planned_by_user(problem: Any, name: str) -> bool:
    """Whether a row of the user's own table has settings of the rung for the problem."""
    gpu = gpu_of(problem)
    rows = tables.of_user(gpu.name)["kernels"].get(name)
    if not rows:
        return False
    seen, fits = wide(problem), tunings()[name].fits
    return tables.first(rows, seen, lambda config: fits(config, seen, gpu.sms)) is not None


def by_rows(problem: Any, name: str, plan: Mapping[str, int]) -> tuple[Any, Mapping[str, int]]:
    """The same product and plan where C lies by rows. A plan is of that product already, but of a
    rung with settings that does not go by how C lies: it names its tile as the caller's M and N
    have it."""
    tuning = tunings().get(name)
    if tuning is not None:
        plan = tuning.as_raced(plan)
    if not column_major((problem.M, problem.N), problem.c_strides):
        return problem, plan
    if tuning is not None and tuning.oriented(problem) is problem:
        plan = {SWAPPED.get(setting, setting): value for setting, value in plan.items()}
    return problem.transposed(), plan
