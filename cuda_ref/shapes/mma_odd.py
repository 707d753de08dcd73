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
from ..planning.parts import NORM, Sizes, divisions, fits
from ..planning.refusals import column_major, operands, sides, storage
from ..planning.rows import FUSES, row, source_constants
from .mma_types import by_elements, refuse_long_k, room_for_parts

ORDER = 208

FEW = 9, 32
"""Rows or columns of C that it is chosen for. Fewer are gemv_types', and of more mma_types was
faster in each product that was timed."""

MOST_ACROSS = 16
"""Of float32 whose long side lies across K: with more of them mma_odd took 7 to 37 % longer than
mma_types at all five products (reports/nvidia-h200/trials/columns_drawn.csv)."""

LEAST_K_BYTES = 4096
"""Along K, of a row of the long side, from which on it is chosen."""

LEAST_LONG = 2
"""Times as many rows as the few, which the long side has at least, to be chosen."""

STEP_K = 32
"""Elements along K of a step, of any type: 128 bytes of float32, and 256 of float64. Steps of 256
bytes of float32 were slower, and of 128 bytes of float64 too."""


class Tile(NamedTuple):
    """Rows of a tile of C along the long side, and along the other."""

    long: int
    few: int


MOST_RESIDENT, SM_BYTES = 4, 227 * 1024

TILES = {
    4: tuple(Tile(long, few) for few in (16, 32) for long in (64, 128)),
    8: tuple(Tile(64, few) for few in (16, 32)),
}
"""Bytes of an element -> the tiles of C."""

DEFAULT = Tile(64, 32)
"""Of a build that names none, which is that of the simulator; its long side is A."""


def stages(itemsize: int) -> int:
    """With which two blocks of an SM of Hopper, or more, have room for their rings."""
    return 4 if itemsize == 8 else 5


def ring_bytes(tile: Tile, itemsize: int) -> int:
    """At most: where both sides lie along K. A row of the long side has 16 bytes more."""
    row = STEP_K * itemsize
    return stages(itemsize) * (tile.long * (row + 16) + tile.few * row)


def resident(tile: Tile, itemsize: int) -> int:
    """Blocks of an SM, as BLOCKS in mma_odd.cu."""
    return max(1, min(MOST_RESIDENT, SM_BYTES // (ring_bytes(tile, itemsize) + 1024)))


class Step(NamedTuple):
    """A step along K, in microseconds."""

    alone: float
    """Of a block that has its SM for itself."""
    beside: float
    """What it takes of an SM that has as many blocks as it has room for."""


STEPS = {
    "float64": {(64, 16): Step(0.60, 0.432), (64, 32): Step(0.817, 0.546)},
    "tf32x3": {(64, 16): Step(0.70, 0.364), (128, 16): Step(1.0, 0.71), (64, 32): Step(0.97, 0.537),
               (128, 32): Step(0.947, 0.947)},
    "tf32": {(64, 16): Step(0.60, 0.313), (128, 16): Step(0.80, 0.611), (64, 32): Step(0.83, 0.397),
             (128, 32): Step(0.522, 0.686)},
}  # fmt: skip
"""How products are summed -> tile -> its step. All constants are of scripts/fit_mma_odd.py, fitted
to reports/nvidia-h200/trials/columns.csv. Of its products of the class the choice between mma_odd
and the rung before loses 0.4 % to the fastest in float64, 3.4 % in tf32x3 and 2.1 % in tf32; and
0.5, 3.4 and 2.1 % where the constants were fitted to the other half of them."""

START_US, COLD_US = 1.79, 0.926
"""Before the first step and after the last; and what the first one waits longer for operands that
lie in memory."""

WAVE_US = 0.148
"""Of each wave of blocks but the first, whose first stages nothing hides."""

MEMORY_BYTES_PER_US = 3.98e6
"""Of A and B."""

STORED_BYTES_PER_US = 1.2e6
"""Of a C whose K is whole: predicted, no such plan was timed yet."""

SECOND_US, PART_US, SUMS_BYTES_PER_US = 1.11, 0.0209, 2.08e6
"""The launch that adds parts of K, each of them, and bytes of them that are written and read."""


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
    itemsize = _itemsize(problem)
    needed = max(ring_bytes(tile, itemsize) for tile in TILES[itemsize])
    most = shared_kb(problem.capability or (9, 0)) * 1024
    if needed > most:
        here = "{}.{}".format(*problem.capability)
        return (
            f"a block needs {needed} bytes of shared memory and compute capability {here} has "
            f"{most}: mma_types takes less"
        )
    return None


def _itemsize(problem: Any) -> int:
    return 8 if problem.dtype_in == "float64" else 4


def sizes(problem: Any) -> Sizes:
    """The long side as M and the few as N, in steps along K of this rung."""
    few, long = sorted((problem.M, problem.N))
    return Sizes(long, few, ceil_div(problem.K, STEP_K), _itemsize(problem), problem.batch)


def ways(problem: Any, sms: int, room_bytes: int) -> Iterator[tuple[Tile, int]]:
    """The tiles that few rows fit in best, each with K whole and in parts."""
    of = sizes(problem)
    tiles = TILES[of.sum_bytes]
    best = min((tile.few for tile in tiles if tile.few >= of.N), default=tiles[-1].few)
    for tile in tiles:
        if tile.few != best:
            continue
        yield tile, 1
        if problem.batch == 1:
            for parts in divisions(of, tile.long, tile.few, sms):
                if fits(of, parts, STEP_K, room_bytes):
                    yield tile, parts


def us(compute: str, of: Sizes, tile: Tile, parts: int, sms: int) -> float:
    """Microseconds of a product with K in so many parts."""
    step, beside = STEPS[compute][tile], resident(tile, of.sum_bytes)
    blocks = ceil_div(of.M, tile.long) * ceil_div(of.N, tile.few) * of.batch * parts
    whole, rest = divmod(ceil_div(blocks, sms), beside)
    waves = whole + (rest > 0)
    multiplied = whole * max(step.alone, beside * step.beside)
    multiplied += max(step.alone, rest * step.beside) if rest else 0.0
    read = (of.M + of.N) * of.steps * STEP_K * of.sum_bytes * of.batch
    delivered = read / MEMORY_BYTES_PER_US
    body = ((ceil_div(of.steps, parts) * multiplied) ** NORM + delivered**NORM) ** (1 / NORM)
    begun = START_US + COLD_US * min(1.0, read / COLD_BYTES) + WAVE_US * (waves - 1)
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
        "BLOCK_K": STEP_K,
        "GROUP_M": source_constants("mma_odd")["GROUP_M"],
        "NUM_STAGES": stages(_itemsize(problem)),
    }
    return {**found, "SPLITS": parts} if parts > 1 else found


def suits(problem: Any) -> bool:
    """Whether it may be taken unnamed: few rows or columns over a long K, whose long side begins
    anywhere."""
    (few, long), (a, b, _) = sorted((problem.M, problem.N)), by_elements(problem)
    lies_anywhere = a if _long_is_a(problem) else b
    long_enough = problem.K * _itemsize(problem) >= LEAST_K_BYTES and long >= LEAST_LONG * few
    most = FEW[1] if _itemsize(problem) == 8 or _along_k(problem) else MOST_ACROSS
    return bool(FEW[0] <= few <= most and long_enough and lies_anywhere and problem.batch == 1)


def _along_k(problem: Any) -> bool:
    """Whether the long side has its neighbours along K."""
    of_a, of_b = problem.a_strides[-1], problem.b_strides[-2]
    return bool((of_a if problem.M >= problem.N else of_b) == 1)


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
