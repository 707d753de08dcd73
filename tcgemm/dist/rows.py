"""Who holds which rows: as DTensor's Shard(0), which is torch.chunk.

A chunk is ceil(M / world) rows, rank r holds rows r * chunk up to (r + 1) * chunk, and the last
ranks have fewer or none. So the M rows are the first M of world * chunk rows in memory, which
torch.tensor_split's division is not.
"""

from __future__ import annotations


def chunk_of(M: int, world: int) -> int:
    """Rows of a full chunk."""
    return -(-M // world)


def rows_of(M: int, world: int, rank: int) -> tuple[int, int]:
    """The first row that a rank holds, and the first that it holds no more."""
    chunk = chunk_of(M, world)
    return min(rank * chunk, M), min((rank + 1) * chunk, M)
