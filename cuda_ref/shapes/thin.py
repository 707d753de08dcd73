"""thin: few rows or columns of C, by operands that may lie anywhere, on CUDA cores.

All is said of the problem with M <= N.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..planning.cost import (
    MOST_SPLITS,
    ceil_div,
    divisions_of_k,
    memory_us,
    more_waves,
    power_of_two,
)
from ..planning.gpu import of as gpu_of
from ..planning.refusals import MOST_TILES, column_major, refuse_tma, refuse_uncounted
from ..planning.rows import FUSES, row
from ..planning.tuning import wide
from . import gemv, skinny, small

ORDER = 195

MOST = 2**31 - 65537
"""Of M, N and K: csrc/tile/lanes.cuh."""

MOST_ROWS = 4
"""As in thin.cu, as what follows."""

COLS, AT_ONCE = 4, 4
ALL_WARPS = 8

BLOCKS = 2
"""Of which an SM has room, by registers."""

START_US = 0.86
"""Before the first load and after the last store."""

TRIP_US = 0.7
"""A further trip of a thread's loads, after the first, which the instructions hide."""

WARPS_US = 0.1
"""The sums of warps that divide K, for each doubling of their number."""

EXCHANGE_US, PART_US = 0.98, 0.08
"""The sums of a cluster, and of each of its blocks."""

ISSUED, ISSUED_BY_LOAD, ISSUED_BY_SUM = 170, 10, 20
"""Instructions of a warp: all others, those for an element of an operand, those for a sum of C."""

ISSUE_PER_US = 3900
"""Instructions of warps that an SM issues in a microsecond."""

INTO_SM_BYTES_PER_US = 36e3
"""Of B into one SM. These constants are fitted to some 500 timed plans of 39 products
(reports/nvidia-h100-sxm/trials/thin.csv): of the plans raced, the one that they take is about 4 %
slower than the fastest."""

BESIDE = 4
"""The power of the mean of what goes on at once, as in small.py."""


def refuse_thin(problem: Any) -> str | None:
    """As ``refuse_uncounted``."""
    return refuse_uncounted(problem, "thin", MOST)


def ways(problem: Any) -> list[tuple[int, int, int]]:
    """(lanes along N, warps that divide K, blocks that do) worth trying. In the simulator blocks
    are alone."""
    N, K = problem.N, problem.K
    if column_major((K, N), problem.b_strides):
        lanes = [32 // power_of_two(K, 32)]
    else:
        widest = power_of_two(ceil_div(N, COLS), 32)
        lanes = [along_n for along_n in (32, 16, 8, 4, 2, 1) if widest // 8 < along_n <= widest]
    return list(divisions_of_k(lanes, K, ALL_WARPS, problem.device != "cpu"))


def modelled_us(problem: Any, way: tuple[int, int, int], sms: int) -> float:
    """Trips to memory one after the other, an SM's instructions, or memory."""
    along_n, warps, splits = way
    along_k = 32 // along_n
    columns = COLS * along_n * (ALL_WARPS // warps)
    rows = power_of_two(problem.M, MOST_ROWS)
    tiles = ceil_div(problem.M, MOST_ROWS) * ceil_div(problem.N, columns) * problem.batch
    blocks = tiles * splits
    steps = ceil_div(problem.K, along_k * warps * splits)
    trips = ceil_div(steps, AT_ONCE)
    by_loads = trips * AT_ONCE * ISSUED_BY_LOAD * (rows + COLS)
    issued = ISSUED + by_loads + ISSUED_BY_SUM * rows * COLS
    of_sm = ceil_div(blocks, sms)
    limits = (
        max(1.0, blocks / sms) * ALL_WARPS * issued / ISSUE_PER_US,
        ceil_div(of_sm, BLOCKS) * (trips - 1) * TRIP_US,
        of_sm * columns * 2 * problem.K / splits / INTO_SM_BYTES_PER_US,
        problem.batch * memory_us(problem),
    )
    body = sum(limit**BESIDE for limit in limits) ** (1 / BESIDE)
    body *= more_waves(tiles, splits, sms, BLOCKS)
    exchange = (EXCHANGE_US + PART_US * splits) * (splits > 1)
    return float(START_US + WARPS_US * (warps.bit_length() - 1) + exchange + body)


def fastest(problem: Any, sms: int) -> tuple[float, tuple[int, int, int]]:
    """(microseconds, way), of a problem with M <= N."""
    return min((modelled_us(problem, way, sms), way) for way in ways(problem))


def plan(problem: Any) -> Mapping[str, int]:
    """The tile of C of a block, its step along K, its warps that divide K, and blocks that do."""
    _, (along_n, warps, splits) = fastest(wide(problem), gpu_of(problem).sms)
    tile = MOST_ROWS, COLS * along_n * (ALL_WARPS // warps)
    block_m, block_n = tile if problem.M <= problem.N else tile[::-1]
    depth = 32 // along_n * warps
    tiled = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": depth}
    return {**tiled, "WARPS": warps, "SPLITS": splits}


FEW_COLUMNS, MOST_AGAIN = 96, 32
"""Columns of an aligned C, of up to MOST_ROWS rows, up to which ``settled`` compares; and rows and
columns up to which B may be read more than once: for each MOST_ROWS rows of A."""

MANY_ROWS, LONG_K = 16, 2048
"""Rows up to which ``settled`` compares too, and elements along K from which on it does where there
is one row or more than MOST_ROWS, or B does not lie along K: 16 x 18 x 3760 (nn) takes 3.8 us here
and 4.3 by small, 32 x 32 x 224 (tt) 3.4 and 2.4."""

OVER = 1.08
"""By how much its model says more than was timed, of such products: they take 0.74 to 1.18 of it,
0.93 in the mean of nine (reports/nvidia-h200/trials/races.csv)."""


def settled(problem: Any, sms: int) -> bool:
    """Whether this rung is taken, whatever the model of drawn shapes says: operands lie as TMA and
    vectors want them, C has few columns, or few of both, and this rung's own model is below those
    of others that read them so. They divide a long K for more than they multiply: 3 x 64 x 14592
    (nt) takes 8.3 us by one_wave, 5.8 by gemv and 5.6 here, and 2 x 8 x 10872 (nn) 7.2, 12.3 and
    3.8; of 7 raced products that it is taken for it was the fastest at each
    (reports/nvidia-h100-sxm/trials/thin.csv, reports/nvidia-h200/trials/races.csv)."""
    seen = wide(problem)
    along_k = gemv.k_major(seen)
    columns = FEW_COLUMNS if seen.M <= MOST_ROWS else MOST_AGAIN
    any_k = 1 < seen.M <= MOST_ROWS and along_k
    if seen.M > MANY_ROWS or columns < seen.N or not (any_k or seen.K >= LONG_K):
        return False
    if not problem.plain or problem.batch > 1 or refuse_tma(problem) is not None:
        return False
    others = [small.fastest(problem, sms)[2], skinny.cost(problem, sms)]
    if along_k:
        others.append(gemv.TUNING.cost(problem, sms))
    return fastest(seen, sms)[0] < OVER * min(others)


def sure(problem: Any) -> bool:
    """Whether it stays what is taken: the model of drawn shapes knows nothing of this rung."""
    return settled(problem, gpu_of(problem).sms)


def only_by_name(problem: Any) -> bool:
    """Whether B would be read more than once, and C is more than a few numbers. With 5 to 8 rows
    another rung was faster at 9 of 10 products (reports/nvidia-h100-sxm/trials/thin.csv)."""
    few = min(problem.M, problem.N) <= MOST_ROWS
    return not few and max(problem.M, problem.N) > MOST_AGAIN


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds of a product whose rows TMA cannot read; else None."""
    return None if refuse_tma(problem) is None else fastest(wide(problem), sms)[0]


ROW = row(
    "thin",
    "up to 4 rows or columns that lie anywhere: lanes multiply what they load, one trip to memory",
    (9, 0),
    shapes="A, B and C anywhere",
    refuse=refuse_thin,
    most_tiles=MOST_TILES // MOST_SPLITS,
    tile_of_asked=True,
    plan=plan,
    unaligned_us=lambda problem: cost(problem, gpu_of(problem).sms),
    fuses=FUSES,
)
