"""Whether the blocks of a persistent Hopper rung work in pairs that share an operand's loads."""

from __future__ import annotations

from typing import Any

SECTOR_BYTES = 32
"""Of the L2: what one of its tags answers for at a time."""


def splits_sectors(itemsize: int, *strides: tuple[int, int]) -> bool:
    """Whether rows of an operand of such strides, in elements, begin within a sector."""
    return any(max(of) * itemsize % SECTOR_BYTES for of in strides)


def least_tiles(block_m: int, block_n: int, K: int, splits: bool, sms: int) -> int:
    """The most tiles that are still computed by single blocks.

    A cluster of 2 pays from five waves on (1.6 % at 8192 cubed), and costs the launch of fewer, but
    for tiles of 64 x 128, which read the most for what they multiply: +5 % at 768 x 1024 x 1024,
    though in one wave with a short K -8 % (1024 x 1024 x 512). Operands whose rows are no whole
    sectors cost two requests to the L2 for each row of a box, and the L2's tags are then the limit:
    there a cluster, which asks for half of one operand, always pays.
    """
    if splits:
        return 1
    if (block_m, block_n) != (64, 128):
        return 4 * sms
    return sms if K < 768 else 1


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
