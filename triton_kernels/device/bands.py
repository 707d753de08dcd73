"""The order of ordering.py with few divisions, for kernels whose start shows in their time."""

from __future__ import annotations

from ..host.runtime import tl, triton


@triton.jit
def in_bands(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """As ``ordering.grouped``, but divides only where it has to.

    The first load of a program waits for this, and a division is some 200 cycles. A C of one band
    has no band to look for, and a whole band has a constant number of rows, by which dividing is a
    shift.
    """
    # Numbers of one type on either way: sizes of 2^31 and more are of 64 bits.
    within = tile + (tiles_m + tiles_n) * 0
    first_m = within * 0
    if tiles_m > GROUP_M:
        band = GROUP_M * tiles_n
        first_m = within // band * GROUP_M
        within = within % band
    rows = tiles_m - first_m
    # A shift, or the compiler makes one division of this and the one by fewer rows.
    BITS: tl.constexpr = (GROUP_M > 1) + (GROUP_M > 2) + (GROUP_M > 4) + (GROUP_M > 8)
    if GROUP_M == 1 << BITS:
        tile_m, tile_n = first_m + (within & (GROUP_M - 1)), within >> BITS
    else:
        tile_m, tile_n = first_m + within % GROUP_M, within // GROUP_M
    if rows < GROUP_M:
        tile_m, tile_n = first_m, within
        if rows > 1:
            tile_m, tile_n = first_m + within % rows, within // rows
    return tile_m, tile_n
