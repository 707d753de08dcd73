"""Tiles of one_wave that fit a product: its shorter side, or the SMs of a GPU.

wgmma multiplies 64 rows by a number of columns that is any multiple of 8. Where its columns have to
run along rows of C, as of few rows, the kernel computes the transposed product and stores it
transposed (SWAPS in one_wave/build.cuh). A plan says so by a BLOCK_M that is no multiple of 64.
Every function is given the problem with M <= N.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from .cost import ceil_div
from .refusals import column_major, odd_rows_of_c

WIDTHS = (80, 96, 112, 144, 160, 176, 208, 224)
"""Columns of wgmma. Of multiples of 64 there are tiles in any case."""

MOST = 256
"""Columns that wgmma has at most."""

WIDEST = {64: 224, 128: 224, 192: 176, 256: 176}
"""The other side of a tile -> the widest that it goes with. Of 192 and 256 rows no thread has room
for more accumulators; the widest of others is the widest there is."""

LONGEST_SIDE = 2 * MOST
"""The shorter side that is fitted, at most: of a longer one a last tile of 64 rows, half of it
empty, is a sixteenth."""

FITTED = tuple((width, rows) for width in WIDTHS for rows, most in WIDEST.items() if width <= most)
"""All of them, of one of the two ways that each may lie."""


def by_columns(problem: Any) -> bool:
    """Whether C is column-major: then the launcher computes the transposed product."""
    return column_major((problem.M, problem.N), problem.c_strides)


def fitted(problem: Any, sms: int) -> tuple[tuple[int, int], ...]:
    """BLOCK_M x BLOCK_N of the tiles that fit a plain product's shorter side, or the SMs; none of a
    C in odd rows, and what is stored transposed has 16 bits."""
    if not problem.M or not takes_fitted(problem):
        return ()
    found = dict.fromkeys((*_of_few_rows(problem.M), *_of_one_wave(problem.M, problem.N, sms)))
    return tuple(tile for tile in found if stores(*tile, problem))


def takes_fitted(problem: Any) -> bool:
    """Whether the kernel stores tiles that fit: of a plain product, and no C in odd rows, which
    threads store in runs of one chunk where a width is no multiple of 64."""
    columns = problem.M if by_columns(problem) else problem.N
    lies_in_rows = 1 in problem.c_strides and not odd_rows_of_c(problem, columns)
    return bool(problem.plain) and lies_in_rows


def stores(block_m: int, block_n: int, problem: Any) -> bool:
    """Whether the kernel can store such a tile: transposed it stores 16 bits alone."""
    across = block_n if by_columns(problem) else block_m
    return across % 64 == 0 or problem.dtype_out in ("float16", "bfloat16")


def sms_for_clusters(sms: int) -> int:
    """SMs that blocks in clusters of four and more run on at once: SMs come in groups that clusters
    do not cross, so an H200's 132 SMs take 30 clusters of 4."""
    return sms * 10 // 11


def _of_few_rows(M: int) -> Iterator[tuple[int, int]]:
    """The narrowest width that covers M in as few tiles as the widest does; none where a multiple
    of 64 is as narrow."""
    if M > LONGEST_SIDE:
        return
    side = ceil_div(M, ceil_div(M, MOST))
    width = _width(side)
    if width and width <= ceil_div(side, 64) * 64:
        yield from (tile for tile in FITTED if tile[0] == width and tile[1] < MOST)


def _of_one_wave(M: int, N: int, sms: int) -> Iterator[tuple[int, int]]:
    """The narrowest widths with which all tiles run at once, along one side and the other."""
    for rows in WIDEST:
        for most in (sms, sms_for_clusters(sms)):
            for side, other, along_n in ((M, N, False), (N, M, True)):
                tiles = most // ceil_div(other, rows)
                width = _width(ceil_div(side, tiles)) if tiles else None
                if width and (width, rows) in FITTED and width < ceil_div(side, 64) * 64:
                    yield (rows, width) if along_n else (width, rows)


def _width(side: int) -> int | None:
    """The narrowest that is as wide as ``side``; None of none."""
    at = bisect_left(WIDTHS, side)
    return WIDTHS[at] if at < len(WIDTHS) else None


def swaps(block_m: int) -> bool:
    """Whether the kernel of a plan computes the transposed product."""
    return block_m % 64 > 0
