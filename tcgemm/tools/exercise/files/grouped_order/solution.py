"""Exercise 4: a grouped order of tiles.

A solution.
"""


def place(tile, tiles_m, tiles_n, GROUP_M):
    """The (tile row, tile column) of program number ``tile``."""
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    rows = min(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return first + within % rows, within // rows
