"""mma_odd: few rows or columns of float32 and float64 over a long K, whose long side lies anywhere.

The long side is the operand with more rows, or columns, of C. It is read in units of 16 bytes, from
the multiple of 16 bytes below each of its rows on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ..planning.cost import COLD_BYTES, ceil_div
from ..planning.gpu import of as gpu_of
from ..planning.gpu import shared_kb
from ..planning.parts import NORM, STEP_BYTES, Sizes, divisions, fits
from ..planning.refusals import column_major, operands, sides, storage
from ..planning.rows import FUSES, row, source_constants
from .mma_types import by_elements, refuse_long_k, room_for_parts, sizes

ORDER = 208

FEW = 9, 64
"""Rows or columns of C that it is chosen for. Fewer are gemv_types'."""

LEAST_K_BYTES = 4096
"""Along K, of a row of the long side, from which on it is chosen."""

LEAST_LONG = 2
"""Times as many rows as the few, which the long side has at least, to be chosen."""


class Tile(NamedTuple):
    """Rows of a tile of C along the long side, and along the other."""

    long: int
    few: int

    @property
    def stages(self) -> int:
        """With which two blocks of an SM of Hopper have room for their rings."""
        return 4 if self.few == 64 else 5

    @property
    def ring_bytes(self) -> int:
        """At most: where both sides lie along K. A row of the long side has 16 bytes more."""
        return self.stages * (self.long * (STEP_BYTES + 16) + self.few * STEP_BYTES)

    @property
    def resident(self) -> int:
        """Blocks of an SM, as BLOCKS in mma_odd.cu."""
        return max(1, min(MOST_RESIDENT, SM_BYTES // (self.ring_bytes + 1024)))


MOST_RESIDENT, SM_BYTES = 4, 227 * 1024

TILES = tuple(Tile(long, few) for few in (16, 32, 64) for long in (64, 128) if long > few)

DEFAULT = Tile(128, 32)
"""Of a build that names none, which is that of the simulator; its long side is A."""


class Step(NamedTuple):
    """A step along K of 128 bytes, in microseconds."""

    alone: float
    """Of a block that has its SM for itself."""
    beside: float
    """What it takes of an SM that has as many blocks as it has room for."""


STEPS = {
    "float64": {(64, 16): Step(0.30, 0.16), (128, 16): Step(0.40, 0.27), (64, 32): Step(0.35, 0.22),
                (128, 32): Step(0.50, 0.40), (128, 64): Step(0.9, 0.7)},
    "tf32x3": {(64, 16): Step(0.45, 0.30), (128, 16): Step(0.55, 0.45), (64, 32): Step(0.55, 0.40),
               (128, 32): Step(0.80, 0.65), (128, 64): Step(1.5, 1.2)},
    "tf32": {(64, 16): Step(0.30, 0.19), (128, 16): Step(0.40, 0.28), (64, 32): Step(0.36, 0.25),
             (128, 32): Step(0.50, 0.40), (128, 64): Step(0.8, 0.55)},
}  # fmt: skip
"""How products are summed -> tile -> its step. Predicted: nothing of it was timed yet."""

START_US, COLD_US = 1.6, 0.9
"""Before the first step and after the last; and what the first one waits longer for operands that
lie in memory."""

MEMORY_BYTES_PER_US = 4.0e6
"""Of A and B."""

STORED_BYTES_PER_US = 1.2e6
"""Of a C whose K is whole."""

SECOND_US, PART_US, SUMS_BYTES_PER_US = 1.07, 0.0176, 4.3e6
"""The launch that adds parts of K, each of them, and bytes of them that are written and read: as of
mma_types."""


def _long_is_a(problem: Any) -> bool:
    """Of the product that is computed: of a column-major C the transposed one."""
    M, N = sides(problem)
    return M >= N or problem.device == "cpu"


def refuse(problem: Any) -> str | None:
    """Why it cannot be computed; None when it can be."""
    reason = refuse_long_k(problem, "mma_odd")
    if reason:
        return reason
    c_by_columns = column_major((problem.M, problem.N), problem.c_strides)
    name, shape, strides, _ = operands(problem)[_long_is_a(problem) == c_by_columns]
    if storage(shape, strides)[1] != 1:
        return (
            f"{name} has strides {strides} and mma_odd takes its elements as neighbours one way: "
            "mma_types takes any"
        )
    needed, most = DEFAULT.ring_bytes, shared_kb(problem.capability or (9, 0)) * 1024
    if needed > most:
        here = "{}.{}".format(*problem.capability)
        return (
            f"a block needs {needed} bytes of shared memory and compute capability {here} has "
            f"{most}: mma_types takes less"
        )
    return None


def ways(problem: Any, sms: int, room_bytes: int) -> Iterator[tuple[Tile, int]]:
    """The tiles that few rows fit in best, each with K whole and in parts."""
    of = sizes(problem)
    few, long = sorted((of.M, of.N))
    best = min((tile.few for tile in TILES if tile.few >= few), default=TILES[-1].few)
    for tile in TILES:
        if tile.few != best:
            continue
        yield tile, 1
        if problem.batch == 1:
            as_if = Sizes(long, few, of.steps, of.sum_bytes)
            for parts in divisions(as_if, tile.long, tile.few, sms):
                if fits(of, parts, STEP_BYTES // of.sum_bytes, room_bytes):
                    yield tile, parts


def us(compute: str, of: Sizes, tile: Tile, parts: int, sms: int) -> float:
    """Microseconds of a product with K in so many parts."""
    step = STEPS[compute][tile]
    few, long = sorted((of.M, of.N))
    blocks = ceil_div(long, tile.long) * ceil_div(few, tile.few) * of.batch * parts
    whole, rest = divmod(ceil_div(blocks, sms), tile.resident)
    multiplied = whole * max(step.alone, tile.resident * step.beside)
    multiplied += max(step.alone, rest * step.beside) if rest else 0.0
    read = (of.M + of.N) * of.steps * STEP_BYTES * of.batch
    delivered = read / MEMORY_BYTES_PER_US
    body = ((ceil_div(of.steps, parts) * multiplied) ** NORM + delivered**NORM) ** (1 / NORM)
    begun = START_US + COLD_US * min(1.0, read / COLD_BYTES)
    size = of.M * of.N * of.batch * of.sum_bytes
    if parts == 1:
        return float(begun + body + size / STORED_BYTES_PER_US)
    return float(begun + body + SECOND_US + parts * (PART_US + 2 * size / SUMS_BYTES_PER_US))


def fastest(problem: Any, sms: int) -> tuple[float, Tile, int]:
    """Microseconds, the tile and the parts of K of the product that ends first by the model."""
    return _fastest(problem, sms, room_for_parts(problem))


@lru_cache(maxsize=1024)
def _fastest(problem: Any, sms: int, room_bytes: int) -> tuple[float, Tile, int]:
    of = sizes(problem)
    return min(
        (us(problem.compute, of, tile, parts, sms), tile, parts)
        for tile, parts in ways(problem, sms, room_bytes)
    )


def plan(problem: Any) -> Mapping[str, int]:
    """The tile, and the parts of K where there are several."""
    tile, parts = DEFAULT, 1
    if problem.device != "cpu" and problem.compute in STEPS:
        _, tile, parts = fastest(problem, gpu_of(problem).sms)
    block_m, block_n = tile if _long_is_a(problem) else tile[::-1]
    found = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": STEP_BYTES // (8 if problem.dtype_in == "float64" else 4),
        "GROUP_M": source_constants("mma_odd")["GROUP_M"],
        "NUM_STAGES": tile.stages,
    }
    return {**found, "SPLITS": parts} if parts > 1 else found


def suits(problem: Any) -> bool:
    """Whether it may be taken unnamed: few rows or columns over a long K, whose long side begins
    anywhere."""
    (few, long), (a, b, _) = sorted((problem.M, problem.N)), by_elements(problem)
    lies_anywhere = a if _long_is_a(problem) else b
    itemsize = 8 if problem.dtype_in == "float64" else 4
    long_enough = problem.K * itemsize >= LEAST_K_BYTES and long >= LEAST_LONG * few
    return bool(FEW[0] <= few <= FEW[1] and long_enough and lies_anywhere and problem.batch == 1)


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds by the model; None of products that it is not for."""
    if problem.compute not in STEPS or not suits(problem):
        return None
    return fastest(problem, sms)[0]


ROW = row(
    "mma_odd",
    "float32 and float64 of few rows or columns, their long side in 16-byte units from anywhere",
    (9, 0),
    pairs=(
        ("float32", "float32", "tf32"),
        ("float32", "float32", "tf32x3"),
        ("float64", "float64"),
    ),
    shapes="the longer of A and B with neighbours one way; C anywhere",
    refuse=refuse,
    fuses=FUSES,
    plan=plan,
)
