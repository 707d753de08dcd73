"""Exercise 15: the tile that ends first.

A GPU has `sms` SMs, each runs one tile at a time, and a tile of m x n takes a time of m n. Tiles
run in waves, and the last one takes as long as a full one. Return, of `tiles`, a list of (m, n),
the one with which C of M x N is finished first.
"""


def best_tile(M, N, tiles, sms=132):
    """The (m, n) of ``tiles`` that takes the least time."""
    return max(tiles, key=lambda tile: tile[0] * tile[1])
