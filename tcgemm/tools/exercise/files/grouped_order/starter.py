"""Exercise 4: a grouped order of tiles.

Program number `tile` gets the tile (row, column) of C. Row after row, the programs in flight share
one row of A and need all of B. Return instead the order that goes down a group of GROUP_M tile
rows, then one column to the right. The last group may be lower than GROUP_M; every tile has to be
visited once.
"""


def place(tile, tiles_m, tiles_n, GROUP_M):
    """The (tile row, tile column) of program number ``tile``."""
    return tile // tiles_n, tile % tiles_n
