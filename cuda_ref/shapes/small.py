"""small: a small C whose rows may lie anywhere, in one trip to memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..planning.cost import ceil_div
from ..planning.gpu import of as gpu_of
from ..planning.refusals import beyond_tma, refuse_tma
from ..planning.rows import FUSES, row

ORDER = 190

BLOCK = 32
"""Rows and columns of C that a block computes."""

LAUNCH_US = 0.6
"""Before the first load, which waits for no ring, and after the last store."""

WAVE_US = 1.3
"""A tile on each SM, beside its steps along K."""

STEP_US = {4: 0.05, 2: 0.05, 1: 0.13}
"""16 along K of such a tile, by the elements of a load."""


def vector(problem: Any) -> int:
    """How many elements of A and B are words that no end of them divides: 4, 2 or 1."""
    sides = (
        ((problem.M, problem.K), problem.a_strides, problem.a_alignment),
        ((problem.K, problem.N), problem.b_strides, problem.b_alignment),
    )

    def fits(elements: int) -> bool:
        apart = problem.batch_strides[:2] if problem.batch > 1 else ()
        return not any(stride % elements for stride in apart) and all(
            alignment % (2 * elements) == 0
            and any(
                strides[inner] == 1
                and shape[inner] % elements == 0
                and (shape[1 - inner] == 1 or strides[1 - inner] % elements == 0)
                for inner in (0, 1)
            )
            for shape, strides, alignment in sides
        )

    return next(elements for elements in (4, 2, 1) if elements == 1 or fits(elements))


def tiles(problem: Any) -> int:
    """Of all matrices of the batch."""
    return int(ceil_div(problem.M, BLOCK) * ceil_div(problem.N, BLOCK) * problem.batch)


def plan(problem: Any) -> Mapping[str, int]:
    """The tile, the warps that divide K, and the elements of a load (VECTOR)."""
    warps = _warps(problem, gpu_of(problem).sms)
    tile = {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "BLOCK_K": 16}
    return {**tile, "WARPS": warps, "VECTOR": vector(problem)}


def _warps(problem: Any, sms: int) -> int:
    steps = max(1, ceil_div(problem.K, 16))
    in_flight = 1 if vector(problem) == 1 else 2
    most = max(8, ceil_div(steps, in_flight)) if tiles(problem) <= sms else 8
    return min(steps, most, 16)


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds of a product whose rows TMA cannot read; None where it can."""
    if refuse_tma(problem) is None:
        return None
    waves, steps = ceil_div(tiles(problem), sms), ceil_div(problem.K, 16)
    return LAUNCH_US + waves * (WAVE_US + steps * STEP_US[vector(problem)])


def instance(problem: Any) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: see inspection.py."""
    elements = vector(problem)
    found: dict[str, Callable[[str], bool]] = {"BYTES": lambda value: value == str(2 * elements)}
    if elements == 1:
        found["A"] = found["B"] = lambda value: True
    return found


ROW = row(
    "small",
    "a small C of any rows: one trip from memory to mma.sync, and one barrier before C",
    (9, 0),
    refuse=beyond_tma,
    plan=plan,
    unaligned_us=lambda problem: cost(problem, gpu_of(problem).sms),
    fuses=FUSES,
)
