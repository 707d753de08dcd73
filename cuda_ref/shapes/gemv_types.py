"""gemv_types: few rows or columns of float32 and float64, on CUDA cores.

All is said of the problem with M <= N. scripts/fit_gemv_types.py fitted the constants that are not
counted in instructions to 370 timed plans (reports/nvidia-h200/trials/few_types.csv). The operands
of most products lay in memory when these began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ..planning.cost import (
    COLD_BYTES,
    MOST_SPLITS,
    ceil_div,
    clusters_at_once,
    divisions_of_k,
    more_waves,
    power_of_two,
)
from ..planning.gpu import of as gpu_of
from ..planning.refusals import MOST_TILES, column_major, operands, refuse_uncounted, storage
from ..planning.rows import FUSES, row, source_constants
from ..planning.tuning import wide

ORDER = 206

MOST = 2**31 - 65537
"""Of M, N and K: csrc/tile/lanes.cuh."""

COLS, ALL_WARPS = 4, 8
"""Columns of a thread, and warps of a block: csrc/tile/lanes.cuh."""

MOST_CHOSEN_ROWS = 16
"""Beyond which it is taken by name alone: B would be read a third time. At 16 rows it still won at
1000 x 16 x 333 in float32, and lost where K is long."""

START_US, COLD_US = 1.5, 0.98
"""Before the first load and after the last store, behind a kernel in a graph; and what the first
load waits longer where memory delivers it and not the L2 (COLD_BYTES)."""

ROW_US = {4: 0.07, 8: 0.13}
"""Bytes of an element -> what a row of C of a block takes: its loads in the first trip, and its
sums on their way from lane to lane."""

STORE_US = 0.045
"""An element of C of each thread, which the warps that divide K have to add before it is stored."""

TRIP_US, WAIT_US = 0.57, 0.0006
"""A further trip of a thread's loads, after the first, and what an instruction of it takes that no
other warp hides."""

WARPS_US = 0.02
"""The sums of warps that divide K, for each doubling of their number."""

EXCHANGE_US, PART_US, FETCH_US = 0.46, 0.07, 0.235
"""The sums of a cluster, each of its blocks, and each element of C that a thread adds of theirs."""

WAVE_US = 2.7
"""Blocks, or clusters, that begin when others end."""

ISSUED, ISSUED_BY_SUM = 170, {4: 10, 8: 15}
"""Instructions of a warp: those that are neither loads nor products, and, by bytes of an element,
those for a sum of C, of which lanes exchange halves. Counted, as ISSUED_BY_LOAD."""

ISSUED_BY_TRIP, ISSUED_BY_LOAD = 15, 4
"""Those of a trip, and of each of its loads, of an element or of 16 bytes, with what it takes to
find its address: counted in the machine code."""

MULTIPLY = {4: 1, 8: 2}
"""Bytes of an element -> what an FMA takes, in instructions: Hopper has twice as many units for
float32 as for float64."""

ISSUE_PER_US = 7000
"""Instructions of warps that an SM issues in a microsecond: four a clock."""

LINE_BYTES, LINES_PER_US = 128, 2300
"""Of the L1: a warp's load takes as long as it has lines."""

MEMORY_BYTES_PER_US = 4.77e6
"""Of operands and C, of all SMs."""

SECTOR_BYTES = 32
"""What memory delivers for an element whose neighbours nobody asks for."""

BESIDE = 2
"""The power of the mean of what goes on at once: none of it hides all of the others."""


class Way(NamedTuple):
    """How a block is laid over C and K."""

    along_n: int
    """Lanes of a warp along N; the others lie along K."""
    warps: int
    """Warps of a block that divide K."""
    splits: int
    """Blocks that divide K."""

    @property
    def along_k(self) -> int:
        return 32 // self.along_n

    @property
    def columns(self) -> int:
        """Columns of C of a block."""
        return COLS * self.along_n * (ALL_WARPS // self.warps)


def refuse_large(problem: Any) -> str | None:
    """As ``refuse_uncounted``."""
    return refuse_uncounted(problem, "gemv_types", MOST)


def itemsize(problem: Any) -> int:
    """Bytes of an element."""
    return 8 if problem.dtype_in == "float64" else 4


def _vectors(problem: Any, index: int, along: int) -> bool:
    """Whether an operand, A or B, has vectors of 16 bytes along its rows (0) or its columns (1): as
    rows_are_vectors in csrc/tile/epilogue.cuh."""
    _, shape, strides, alignment = operands(problem)[index]
    size, apart = itemsize(problem), problem.batch_strides[index] if problem.batch > 1 else 0
    if strides[1 - along] != 1 or alignment < 16 or apart * size % 16:
        return False
    return shape[along] == 1 or strides[along] * size % 16 == 0


def lengths(problem: Any) -> tuple[int, int]:
    """Elements of B of a load, along N and along K: as ALONG_N and ALONG_K in gemv_types.cu. A has
    as many along K."""
    vector = 16 // itemsize(problem)
    if vector <= problem.K and _vectors(problem, 0, 0) and _vectors(problem, 1, 1):
        return 1, vector
    if vector <= problem.N and _vectors(problem, 1, 0):
        return vector, 1
    return 1, 1


def length_of_a(problem: Any) -> int:
    """Elements of A of a load of a trip that is whole: along K, or across neighbouring rows."""
    along_k, vector = lengths(problem)[1], 16 // itemsize(problem)
    rows = rows_of(problem)
    across = rows % vector == 0 and problem.M % rows == 0 and _vectors(problem, 0, 1)
    return vector if along_k > 1 or across else 1


def rows_of(problem: Any) -> int:
    """Rows of C of a block: a power of two."""
    return power_of_two(problem.M, source_constants("gemv_types")["MOST_ROWS"])


def ways(problem: Any) -> list[Way]:
    """Those worth trying. In the simulator blocks are alone."""
    along_k = lengths(problem)[1]
    loads = ceil_div(problem.K, along_k)
    if along_k > 1 or column_major((problem.K, problem.N), problem.b_strides):
        lanes = [32 // power_of_two(loads, 32)]
    else:
        widest = power_of_two(ceil_div(problem.N, COLS), 32)
        lanes = [along_n for along_n in (32, 16, 8, 4, 2, 1) if along_n <= widest]
    on_gpu = problem.device != "cpu"
    return [Way(*way) for way in divisions_of_k(lanes, loads, ALL_WARPS, on_gpu)]


def resident(problem: Any) -> int:
    """Blocks of which an SM has room, by registers: BLOCKS in gemv_types.cu."""
    rows = rows_of(problem)
    if itemsize(problem) == 4:
        return 3 if rows <= 2 else 2
    return 2 if rows <= 4 else 1


def _read_bytes(problem: Any, way: Way) -> float:
    """Of B, once: by sectors where neither its rows nor its columns have neighbours, and where a
    block has fewer columns of a row than a sector holds."""
    _, shape, strides, _ = operands(problem)[1]
    size, (_, inner) = itemsize(problem), storage(shape, strides)
    if inner > 1:
        each = max(size, min(SECTOR_BYTES, inner * size))
    elif column_major(shape, strides):
        each = size
    else:
        each = max(size, SECTOR_BYTES // min(way.columns, problem.N))
    return float(problem.K * problem.N * each)


def _lines(lanes: int, apart_bytes: int) -> int:
    """Lines of the L1 in which so many lanes load."""
    return max(1, min(lanes, ceil_div(lanes * apart_bytes, LINE_BYTES)))


def modelled_us(problem: Any, way: Way, sms: int) -> float:
    """What begins and ends a block, and beside each other an SM's instructions, its L1, trips to
    memory one after the other, and what memory delivers."""
    size, rows, at_once = itemsize(problem), rows_of(problem), resident(problem)
    along_n, along_k = lengths(problem)
    depth = source_constants("gemv_types")["AT_ONCE"]
    tiles = ceil_div(problem.M, rows) * ceil_div(problem.N, way.columns) * problem.batch
    blocks, step = tiles * way.splits, depth * way.along_k * way.warps * way.splits
    trips = ceil_div(problem.K, step)
    loads_of_a, loads_of_b = depth * rows / length_of_a(problem), depth * COLS / (along_n * along_k)
    (_, a_k), (b_k, b_n) = problem.a_strides, problem.b_strides
    lines = loads_of_a * _lines(way.along_k, a_k * along_k * size)
    of_lanes = _lines(way.along_n, b_n * along_n * size) * _lines(way.along_k, b_k * along_k * size)
    lines += loads_of_b * of_lanes
    products = depth * COLS * rows
    others = ISSUED_BY_TRIP + (loads_of_a + loads_of_b) * ISSUED_BY_LOAD
    issued = ISSUED + trips * (others + products * MULTIPLY[size])
    issued += ISSUED_BY_SUM[size] * rows * COLS
    stored = ceil_div(rows * way.columns, 32 * ALL_WARPS)
    once = ROW_US[size] * rows + STORE_US * stored
    of_sm, waves = max(1.0, blocks / sms), max(1.0, blocks / sms / at_once)
    trip = TRIP_US + WAIT_US * (others + products)
    moved = problem.batch * (_read_bytes(problem, way) + problem.M * (problem.K + problem.N) * size)
    limits = (
        of_sm * ALL_WARPS * issued / ISSUE_PER_US,
        of_sm * ALL_WARPS * problem.K / step * lines / LINES_PER_US,
        waves * (trips - 1) * trip + (waves - 1) * (WAVE_US + once),
        moved / MEMORY_BYTES_PER_US,
    )
    body = sum(limit**BESIDE for limit in limits) ** (1 / BESIDE)
    body *= more_waves(tiles, way.splits, sms, at_once)
    if way.splits > 1:
        later = ceil_div(tiles, max(1, clusters_at_once(way.splits, sms, at_once))) - 1
        once += EXCHANGE_US + PART_US * way.splits + later * WAVE_US
        once += FETCH_US * ceil_div(stored, way.splits)
    begun = START_US + COLD_US * min(1.0, moved / COLD_BYTES)
    return float(begun + WARPS_US * (way.warps.bit_length() - 1) + once + body)


@lru_cache(maxsize=1024)
def fastest(problem: Any, sms: int) -> tuple[float, Way]:
    """(microseconds, way), of a problem with M <= N."""
    return min((modelled_us(problem, way, sms), way) for way in ways(problem))


def plan(problem: Any) -> Mapping[str, int]:
    """The tile of C of a block, what its threads ask for at once along K, its warps that divide K,
    and blocks that do."""
    seen = wide(problem)
    _, way = fastest(seen, gpu_of(problem).sms)
    tile = rows_of(seen), way.columns
    block_m, block_n = tile if problem.M <= problem.N else tile[::-1]
    depth = source_constants("gemv_types")["AT_ONCE"] * way.along_k * way.warps
    tiled = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": depth}
    return {**tiled, "WARPS": way.warps, "SPLITS": way.splits}


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds by the model; None of more rows and columns than it is meant for."""
    seen = wide(problem)
    return None if seen.M > MOST_CHOSEN_ROWS else fastest(seen, sms)[0]


def instance(problem: Any, plan: Mapping[str, Any]) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: see inspection.py."""
    seen = wide(problem)
    along_n, along_k = lengths(seen)
    return {
        "Real": lambda value: value == ("double" if itemsize(seen) == 8 else "float"),
        "ROWS": lambda value: value == str(rows_of(seen)),
        "ALONG_N": lambda value: value == str(along_n),
        "ALONG_K": lambda value: value == str(along_k),
    }


ROW = row(
    "gemv_types",
    "float32 and float64 of up to 8 rows or columns, on CUDA cores: in vectors along K or along N",
    (9, 0),
    pairs=(
        ("float32", "float32", "tf32"),
        ("float32", "float32", "tf32x3"),
        ("float32", "float32", "ieee"),
        ("float64", "float64"),
    ),
    shapes="A, B and C anywhere",
    refuse=refuse_large,
    most_tiles=MOST_TILES // MOST_SPLITS,
    tile_of_asked=True,
    fuses=FUSES,
    plan=plan,
)
