"""How the columns of a tile are divided among accumulators and epilogue subtiles. Imports nothing.

Blocks have sides that are powers of two, so a tile of 224 columns is three: 128, 64 and 32.
"""

from __future__ import annotations

MOST_BLOCKS = 3
"""Accumulators of a tile beside each other."""


def blocks_of(BLOCK_N: int, REST: int) -> list[int]:
    """Columns of each accumulator of a tile, of which all but the first have ``REST``.

    Raises ValueError where ``REST`` is no sum of two powers of two at most.
    """
    others = [1 << bit for bit in range(REST.bit_length())[::-1] if REST >> bit & 1]
    if len(others) >= MOST_BLOCKS:
        raise ValueError(f"REST={REST} is a sum of {len(others)} powers of two, and two are most")
    return [BLOCK_N - REST, *others]


def subtile_columns(BLOCK_N: int, REST: int, SUBTILES: int) -> int:
    """Columns of an epilogue subtile of the first accumulator, in elements.

    All subtiles are as wide, where SUBTILES divides BLOCK_N into powers of two; else those of the
    first accumulator are, and each other accumulator, if no wider, is a subtile.
    """
    width = BLOCK_N // SUBTILES
    if BLOCK_N % SUBTILES == 0 and width & (width - 1) == 0:
        return width
    first, *others = blocks_of(BLOCK_N, REST)
    return first // (SUBTILES - len(others))
