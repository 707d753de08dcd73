"""Exercise 15: the tile that ends first.

A solution.
"""

from math import ceil


def best_tile(M, N, tiles, sms=132):
    """The (m, n) of ``tiles`` that takes the least time."""

    def time(tile):
        m, n = tile
        waves = ceil(ceil(M / m) * ceil(N / n) / sms)
        return waves * m * n

    return min(tiles, key=time)
