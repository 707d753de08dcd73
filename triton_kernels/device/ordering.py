"""The order in which programs visit the tiles of C."""

from __future__ import annotations

from ..host.runtime import tl, triton


@triton.jit
def grouped(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Tile number -> (tile row, tile column), down a band of GROUP_M tile rows, then rightwards.

    The last band holds only the rows that are left, so every tile is visited once whatever the
    grid: 5 tile rows with GROUP_M = 4 make a band of 4 and a band of 1. Consecutive tiles share
    columns of B and the band shares GROUP_M rows of A, which keeps both in L2.
    """
    band = GROUP_M * tiles_n
    first_m = (tile // band) * GROUP_M
    rows = tl.minimum(tiles_m - first_m, GROUP_M)
    within = tile % band
    return first_m + within % rows, within // rows
