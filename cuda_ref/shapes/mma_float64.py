"""mma_float64: float64 in large instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..planning.gpu import SIMULATED_SMS
from ..planning.gpu import of as gpu_of
from ..planning.parts import Sizes, Way, best, divisions, fits
from ..planning.refusals import column_major, refuse_vector_rows
from ..planning.rows import FUSES, VECTOR_ROWS, row, source_constants

ORDER = 100

STEP_US = 0.59
"""What an SM takes for a step along K of a tile. Two tiles on an SM take twice that, so that one to
an SM is a wave."""

STAGES = 6
"""Of the two blocks of an SM."""


def plan(problem: Any) -> Mapping[str, int]:
    """The constants of the source, and the parts of K where there are several."""
    numbers = source_constants("mma_float64")
    if problem.batch > 1:
        return numbers
    M, N = problem.M, problem.N
    if column_major((M, N), problem.c_strides):
        M, N = N, M
    sms = SIMULATED_SMS if problem.device == "cpu" else gpu_of(problem).sms
    width = numbers["BLOCK_K"]
    of = Sizes(M, N, -(-problem.K // width), 8)
    way = Way(numbers["BLOCK_M"], numbers["BLOCK_N"], STEP_US, STAGES)
    ways = [
        (way, parts)
        for parts in divisions(of, way.block_m, way.block_n, sms)
        if fits(of, parts, width)
    ]
    found = best(of, way, ways, sms)
    return {**numbers, "SPLITS": found[1]} if found else numbers


def instance(problem: Any, plan: Mapping[str, Any]) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: see inspection.py."""
    divides = plan.get("SPLITS", 1) > 1
    return {"Extra": lambda value: value.endswith("Part") == divides}


ROW = row(
    "mma_float64",
    "float64 by mma.sync, 16 x 8 x 16 in one instruction where WMMA has 8 x 8 x 4",
    (8, 0),
    pairs=(("float64", "float64"),),
    fuses=FUSES,
    shapes=VECTOR_ROWS,
    refuse=lambda problem: refuse_vector_rows(problem, source_constants("mma_float64")),
    plan=plan,
)
