"""small: a small C whose rows may lie anywhere, in as few trips to memory as there can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..planning.cost import ceil_div, memory_us
from ..planning.gpu import of as gpu_of
from ..planning.refusals import beyond_tma, refuse_tma
from ..planning.rows import FUSES, row

ORDER = 190

BLOCK = 32
"""Rows and columns of C that a block computes."""

LAUNCH_US = 0.6
"""By words: before the first load, which waits for no ring, and after the last store."""

WAVE_US = 1.3
"""A tile on each SM, beside its steps along K, by words."""

STEP_US = 0.05
"""16 along K of such a tile."""

DEPTH = {8: 128, 1: 64}
"""Elements along K of a stage, by the elements of a word, where operands are staged."""

THREADS = 256
"""Of a staged block."""

STAGED_BLOCKS = 4
"""Of which an SM has room for so many."""

STAGED_LAUNCH_US = 0.9
"""Staged: before the first load and after the last store. This and what follows is by counts of
instructions and sectors, and by what Triton's skinny takes (docs/lab/cuda_small.md); it waits for
its timing."""

TRIP_US = 0.8
"""A stage's way from memory, while the one before is multiplied."""

ISSUE_US = {8: 0.2, 1: 0.25}
"""An SM's instructions for a stage, by the elements of a word."""

EXCHANGE_US = 0.7
"""Two barriers of a cluster, and the sums of its blocks."""

MOST_PARTS = 8
"""Of K, one to a block of a cluster."""


def vector(problem: Any) -> int:
    """How many elements of A and B are words that no end of them divides: 8, 4, 2 or 1."""
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

    return next(elements for elements in (8, 4, 2, 1) if elements == 1 or fits(elements))


def tiles(problem: Any) -> int:
    """Of all matrices of the batch."""
    return int(ceil_div(problem.M, BLOCK) * ceil_div(problem.N, BLOCK) * problem.batch)


def plan(problem: Any) -> Mapping[str, int]:
    """The tile, its warps, the elements of a load (VECTOR), and the parts of K (SPLITS)."""
    elements, sms = vector(problem), gpu_of(problem).sms
    tile = {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "BLOCK_K": DEPTH.get(elements, 16)}
    if elements in DEPTH:
        splits = 1 if problem.device == "cpu" else parts(problem, sms)
        return {**tile, "WARPS": THREADS // 32, "VECTOR": elements, "SPLITS": splits}
    return {**tile, "WARPS": _warps(problem, sms), "VECTOR": elements, "SPLITS": 1}


def _warps(problem: Any, sms: int) -> int:
    """Of words: as warps_of in small.cu."""
    steps = max(1, ceil_div(problem.K, 16))
    return min(max(8, ceil_div(steps, 2)), 16) if tiles(problem) <= sms else min(steps, 8)


def parts(problem: Any, sms: int) -> int:
    """The parts of K, where operands are staged: the fastest by the model."""
    most = min(MOST_PARTS, max(1, ceil_div(problem.K, DEPTH[vector(problem)])))
    return min(range(1, most + 1), key=lambda splits: staged_us(problem, splits, sms))


def staged_us(problem: Any, splits: int, sms: int) -> float:
    """Microseconds where operands are staged: trips to memory one after the other, or what an SM
    has to do for all of its blocks, or memory."""
    elements = vector(problem)
    blocks = tiles(problem) * splits
    stages = ceil_div(max(1, ceil_div(problem.K, DEPTH[elements])), splits)
    trips = ceil_div(blocks, STAGED_BLOCKS * sms) * stages * TRIP_US
    issued = ceil_div(blocks, sms) * stages * ISSUE_US[elements]
    body = max(trips, issued, problem.batch * memory_us(problem))
    return STAGED_LAUNCH_US + body + EXCHANGE_US * (splits > 1)


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds of a product whose rows TMA cannot read; else None: of those, rungs with tensor
    maps were measured to be faster than this one was before it staged operands."""
    if refuse_tma(problem) is None:
        return None
    if vector(problem) in DEPTH:
        return staged_us(problem, parts(problem, sms), sms)
    waves, steps = ceil_div(tiles(problem), sms), ceil_div(problem.K, 16)
    return LAUNCH_US + waves * (WAVE_US + steps * STEP_US)


def instance(problem: Any) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: see inspection.py."""
    elements = vector(problem)
    return {"BYTES": lambda value: value == str(2 * elements)}


ROW = row(
    "small",
    "a small C of any rows: one trip from memory to mma.sync, by nothing that takes time to begin",
    (9, 0),
    refuse=beyond_tma,
    plan=plan,
    unaligned_us=lambda problem: cost(problem, gpu_of(problem).sms),
    fuses=FUSES,
)
