"""mma_float64: float64 in large instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..planning.cost import ceil_div
from ..planning.gpu import SIMULATED_SMS
from ..planning.gpu import of as gpu_of
from ..planning.parts import STEP_BYTES, Sizes, Way, best, divisions, fits, room, us
from ..planning.refusals import column_major, refuse_vector_rows, sides
from ..planning.rows import FUSES, VECTOR_ROWS, row, source_constants

ORDER = 100

STEP_US = 0.59
"""What an SM takes for a step along K of a tile. Two tiles on an SM take twice that, so that one to
an SM is a wave."""

STAGES = 6
"""Of the two blocks of an SM."""

VECTOR = 2
"""Elements of 16 bytes."""

CHECKED_US = 5.0
"""What a step along K takes longer that is not copied by cp.async; 583 x 1248 x 567 (tt) takes 138
us by this rung (reports/nvidia-h200/trials/mma_types.csv)."""

STORED_BYTES_PER_US = 2.4e6
"""Of C."""


def _sizes(problem: Any) -> Sizes:
    M, N = sides(problem)
    return Sizes(M, N, ceil_div(problem.K * 8, STEP_BYTES), 8, problem.batch)


def _way() -> Way:
    numbers = source_constants("mma_float64")
    return Way(numbers["BLOCK_M"], numbers["BLOCK_N"], STEP_US, STAGES)


def _parts(problem: Any, sms: int) -> int:
    """Of K, 1 where it stays whole."""
    if problem.batch > 1:
        return 1
    of, way, room_bytes = _sizes(problem), _way(), room()
    ways = [
        (way, parts)
        for parts in divisions(of, way.block_m, way.block_n, sms)
        if fits(of, parts, STEP_BYTES // 8, room_bytes)
    ]
    found = best(of, way, ways, sms)
    return found[1] if found else 1


def plan(problem: Any) -> Mapping[str, int]:
    """The constants of the source, and the parts of K where there are several."""
    sms = SIMULATED_SMS if problem.device == "cpu" else gpu_of(problem).sms
    numbers, parts = source_constants("mma_float64"), _parts(problem, sms)
    return {**numbers, "SPLITS": parts} if parts > 1 else numbers


def _checked_steps(problem: Any, parts: int, sms: int) -> int:
    """Steps along K that the last block to end copies by ordinary stores: all of its own, where a
    vector lies across the end of M or N, or the end of K in each of its waves."""
    of, way, M, N, K = _sizes(problem), _way(), problem.M, problem.N, problem.K
    across_a = column_major((M, K), problem.a_strides)
    across_b = not column_major((K, N), problem.b_strides)
    if (across_a and M % VECTOR) or (across_b and N % VECTOR):
        return ceil_div(of.steps, parts)
    if K % (STEP_BYTES // 8) == 0:
        return 0
    tiles = ceil_div(of.M, way.block_m) * ceil_div(of.N, way.block_n) * of.batch
    return ceil_div(tiles, sms)


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds by the model of parts, and what it leaves out; None of other types."""
    if problem.dtype_in != "float64":
        return None
    parts = _parts(problem, sms)
    checked = _checked_steps(problem, parts, sms) * CHECKED_US
    stored = 8 * problem.M * problem.N * problem.batch / STORED_BYTES_PER_US
    return us(_sizes(problem), _way(), parts, sms) + checked + stored


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
