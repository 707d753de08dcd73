"""Tiles of warp_specialized that fit the short side of C, or the SMs. Imports no triton.

A tile's rows are wgmma's m, multiples of 64; its columns are wgmma's n, multiples of 8, of which a
tile has up to three blocks (host/tile_blocks.py). So 134 rows of C are 192 rows of tiles, or 144
columns of tiles that lie across C (SWAP), and a quarter fewer operations. Such a tile is offered
where it has at least GAIN more of C in it than any multiple of 64 can have, and of all of them the
one that has most: each is a kernel of its own, which costs a first call its compilation. Of larger
products it is offered where it is the narrowest with which all tiles run at once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..planning.planner import Config
from ..planning.refusals import refuse_tma

COLUMNS = {80: 16, 96: 32, 112: 48, 144: 16, 160: 32, 176: 48, 208: 80, 224: 96}
"""BLOCK_N -> REST, the columns of it that are not the first accumulator's, of 64 or 128."""

ROWS = ((64, 1), (128, 2), (256, 2))
"""BLOCK_M, and warpgroups."""

MOST_OF_256 = 176
"""BLOCK_N beside 256 rows: of more no thread has room for the accumulators, and 192 has a table."""

LEAST_SIDE = 65
"""Of C, in elements: fewer rows or columns are less than a tile, and other kernels are for them."""

MOST_TILES = 2
"""Across the short side: of more than two tiles multiples of 64 leave little out."""

GAIN = 1.06
"""Of the share of tiles that lies in C, over that of multiples of 64."""

NARROW = ((256, 144), (256, 160))
"""Tiles in epilogue subtiles of 32 columns: beside their buffers there is room for four stages. Of
three, rows that begin within lines of the L2 seem to come too late: at 16316 x 296 x 4008 (nt)
CUDA's one_wave takes 58 us with four stages and wgmma_persistent 71 with three, which reads as much
(reports/nvidia-h200/trials/fit_ncu.csv)."""


def tile_of(rows: int, consumers: int, columns: int, rest: int, subtile: int = 64) -> Config:
    """A tile in subtiles of so many columns, or of what an accumulator beside the first has."""
    first = columns - rest
    return {
        "BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": 64, "GROUP_M": 1, "CONSUMERS": consumers,
        "SUBTILES": first // min(first, subtile) + rest.bit_count(), "BUFFERS": 1,
        **({"REST": rest} if rest else {}),
    }  # fmt: skip


TILES: tuple[Config, ...] = tuple(
    {
        **tile_of(rows, consumers, columns, rest, 32 if (rows, columns) in NARROW else 64),
        "SWAP": swap,
    }
    for columns, rest in COLUMNS.items()
    for rows, consumers in ROWS
    if rows < 256 or 128 < columns <= MOST_OF_256
    for swap in (1, 0)
)
"""In subtiles of 64 columns, or of what an accumulator beside the first has, but for NARROW; of as
many stages as shared memory holds."""


@lru_cache(maxsize=4096)
def columns_for(size: int, overlap: int = 0) -> int:
    """BLOCK_N of the tiles that fit a side of C of so many elements; 0 where multiples of 64 do.

    Args:
        overlap: elements that neighbouring tiles share.
    """
    usual = size / (-(-size // 64) * 64)
    found = [
        (size / (tiles * columns), columns)
        for columns in COLUMNS
        if (tiles := -(-size // (columns - overlap))) <= MOST_TILES
    ]
    filled, columns = max(found, default=(0.0, 0))
    return columns if filled >= GAIN * usual else 0


@lru_cache(maxsize=4096)
def columns_at_once(side: int, other: int, rows: int, sms: int) -> int:
    """BLOCK_N of the narrowest tiles of ``rows`` rows along ``other`` that all run at once; 0 where
    a multiple of 64 is as narrow, or no tile of COLUMNS is wide enough."""
    tiles = sms // -(-other // rows)
    least = -(-side // tiles) if tiles else side
    columns = min((each for each in COLUMNS if each >= least), default=0)
    return columns if columns < -(-least // 64) * 64 else 0


def suits(config: Config, problem: Any, overlap: int, sms: int) -> bool:
    """Whether one of TILES fits a problem whose C lies by rows."""
    M, N, rows = problem.M, problem.N, config["BLOCK_M"]
    if min(M, N) < LEAST_SIDE:
        return False
    side, other = (M, N) if config["SWAP"] else (N, M)
    if config["SWAP"] and refuse_tma(problem, "C") is not None:
        return False
    lost = 0 if config["SWAP"] else overlap
    fits = {columns_for(side, lost)} if rows < 256 else set()
    if not lost:
        fits.add(columns_at_once(side, other, rows, sms))
    return config["BLOCK_N"] in fits
