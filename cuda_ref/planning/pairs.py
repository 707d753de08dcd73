"""Whether the blocks of a persistent Hopper rung work in pairs that share an operand's loads."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

SECTOR_BYTES, LINE_BYTES = 32, 128
"""Of the L2: what one of its tags answers for at a time, and a line, which has four of them."""

WHOLE, SPLIT_LINES, SPLIT_SECTORS = 0, 1, 2
"""How rows of A and B lie: each begins with a line, or within one of them, or within a sector."""

LEAST_STEPS = {WHOLE: 30, SPLIT_LINES: 50, SPLIT_SECTORS: 30}
"""Steps along K, of all waves, from which on a pair saves more than it costs.

A pair starts 0.7 to 1.2 us later than a block, and of a short K it has next to nothing to save:
6352 x 4224 x 64 (whole lines, 13 waves of one step) takes 13.3 us in pairs and 12.3 without. Where
rows split sectors it saves 2 to 6 % at 32 steps, 10 % at 37, 25 % at 148; where they split lines it
costs 3 % at 47 and saves 6 to 16 % at 146 (reports/nvidia-h100-sxm/trials/races.csv).
"""

LEAST_STEPS_NARROW = 12
"""The same of tiles of 64 x 128 in whole lines."""

LARGE_TILE, LEAST_STEPS_LARGE = 128 * 128, 9
"""Elements of a tile from which on, where rows split sectors, a pair saves more than it costs from
so many steps on: 8 to 10 % at 9 (14742 x 168 x 568), 17 to 25 % at 16 (1509 x 2440 x 1000; both
reports/nvidia-h200/trials/races.csv)."""


@lru_cache(maxsize=1024)
def rows_lie(itemsize: int, *strides: tuple[int, int]) -> int:
    """WHOLE, SPLIT_LINES or SPLIT_SECTORS: how rows of operands of such strides, in elements, lie;
    of several the worst."""
    apart = [max(of) * itemsize for of in strides]
    if any(each % SECTOR_BYTES for each in apart):
        return SPLIT_SECTORS
    return SPLIT_LINES if any(each % LINE_BYTES for each in apart) else WHOLE


def least_steps(block_m: int, block_n: int, lie: int) -> int:
    """Steps along K, of all waves, from which on tiles are computed by pairs of blocks."""
    if lie == WHOLE and (block_m, block_n) == (64, 128):
        return LEAST_STEPS_NARROW
    if lie == SPLIT_SECTORS and block_m * block_n >= LARGE_TILE:
        return LEAST_STEPS_LARGE
    return LEAST_STEPS[lie]


def least_tiles(block_m: int, block_n: int, K: int, sms: int) -> int:
    """The most tiles that are still computed by single blocks, of operands in whole lines.

    A cluster of 2 pays from five waves on (1.6 % at 8192 cubed), and costs the launch of fewer, but
    for tiles of 64 x 128, which read the most for what they multiply: +5 % at 768 x 1024 x 1024,
    though in one wave with a short K -8 % (1024 x 1024 x 512).
    """
    if (block_m, block_n) != (64, 128):
        return 4 * sms
    return sms if K < 768 else 1


def waves_of_pairs(rows: int, cols: int, batch: int, shares_a: bool, sms: int) -> int:
    """Waves of pairs of tiles beside each other, which share A, or of those one above the other."""
    pairs = rows * -(-cols // 2) if shares_a else -(-rows // 2) * cols
    return -(-pairs * batch // (sms // 2))


def cluster_of(rows: int, cols: int, batch: int, shares_a: bool, least: int) -> int:
    """Blocks of a cluster, 1 or 2, for so many rows and columns of tiles and products.

    An odd number of tiles along the pair makes one more, which pays only beside many.
    """
    along = cols if shares_a else rows
    return 2 if rows * cols * batch > least and (along % 2 == 0 or along > 16) else 1


def strides_of(problem: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Strides of A and of B, 0 along a dimension of extent 1."""
    M, N, K = problem.M, problem.N, problem.K
    (am, ak), (bk, bn) = problem.a_strides, problem.b_strides
    return (am * (M > 1), ak * (K > 1)), (bk * (K > 1), bn * (N > 1))
