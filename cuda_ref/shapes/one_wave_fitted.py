"""Tiles of one_wave that fit the shorter side of C: of few rows, or of few columns.

wgmma multiplies 64 rows by a number of columns that is any multiple of 8. Where C has few rows its
columns have to run along them: the kernel computes the transposed product then, and stores it
transposed (SWAPS in one_wave_build.cuh). A plan says so by a BLOCK_M that is no multiple of 64.
Every function is given the problem with M <= N.
"""

from __future__ import annotations

from typing import Any

from ..planning.cost import ceil_div
from ..planning.refusals import column_major

WIDTHS = (80, 96, 112, 144, 160, 176, 208, 224)
"""Columns of wgmma along the shorter side. Of multiples of 64 there are tiles in any case."""

MOST = 256
"""Columns that wgmma has at most."""

LENGTHS = (64, 128, 192)
"""The tile along the longer side: rows of wgmma, for one to three warpgroups."""

TALLEST = 112
"""The widest that three warpgroups take: their accumulators fill the registers beyond it."""

LONGEST_SIDE = 2 * MOST
"""The shorter side that is fitted, at most: of a longer one a last tile of 64 rows, half of it
empty, is a sixteenth."""

FITTED = tuple(
    (width, length) for width in WIDTHS for length in LENGTHS if length < 192 or width <= TALLEST
)
"""All of them, along the shorter side and along the longer one."""


def by_columns(problem: Any) -> bool:
    """Whether C is column-major: then the launcher computes the transposed product."""
    return column_major((problem.M, problem.N), problem.c_strides)


def fitted(problem: Any) -> tuple[tuple[int, int], ...]:
    """BLOCK_M x BLOCK_N of the narrowest width that covers M in as few tiles as the widest does.

    None where a multiple of 64 is as narrow, where something is fused, or where C is of 32 bits and
    would be stored transposed.
    """
    if not problem.plain or problem.M > LONGEST_SIDE or 1 not in problem.c_strides:
        return ()
    if not by_columns(problem) and problem.dtype_out not in ("float16", "bfloat16"):
        return ()
    side = ceil_div(problem.M, ceil_div(problem.M, MOST))
    width = min((width for width in WIDTHS if width >= side), default=MOST)
    if width > ceil_div(side, 64) * 64:
        return ()
    return tuple(tile for tile in FITTED if tile[0] == width)


def swaps(block_m: int) -> bool:
    """Whether the kernel of a plan computes the transposed product."""
    return block_m % 64 > 0
