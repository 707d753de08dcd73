"""The order of tiles against a model of the L2: what grouped ordering gains, at any size.

The model knows tiles, not threads. As many tiles as the GPU has places run at once and walk along
K in step; in each step a tile reads its rows of A and its columns of B. What was read last stays
in the L2 (least recently used leaves first); the rest comes from memory. C is not modelled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

STEP_BYTES = 2**16
"""A step along K is as long as makes the larger operand's part this many bytes, at least."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one order of tiles costs. Bytes are of A and B; C is written once whatever the order."""

    hit_rate: float
    """Of the bytes that the tiles read, by the L2."""
    read_bytes: int
    """What the tiles read."""
    dram_bytes: int
    """What of it the L2 did not hold."""
    waves: int


def visit(tiles_m: int, tiles_n: int, group_m: int | None) -> Iterator[tuple[int, int]]:
    """(tile row, tile column) in the order of the grid: row after row, or down groups of
    ``group_m`` tile rows, the last group as high as the rows that are left."""
    if group_m is None:
        for m in range(tiles_m):
            for n in range(tiles_n):
                yield m, n
        return
    for first in range(0, tiles_m, group_m):
        for n in range(tiles_n):
            for m in range(first, min(first + group_m, tiles_m)):
                yield m, n


def traffic(
    M: int,
    N: int,
    K: int,
    *,
    block_m: int,
    block_n: int,
    group_m: int | None,
    places: int,
    l2_bytes: int,
    itemsize: int = 2,
) -> Traffic:
    """The traffic of C[M, N] = A[M, K] @ B[K, N] in tiles of block_m x block_n.

    Args:
        group_m: None for row after row.
        places: tiles that run at once: SMs times blocks per SM.
    """
    tiles = list(visit(-(-M // block_m), -(-N // block_n), group_m))
    step = max(1, STEP_BYTES // (max(block_m, block_n) * itemsize))
    a_bytes, b_bytes = block_m * step * itemsize, block_n * step * itemsize
    held: OrderedDict[tuple[bool, int, int], int] = OrderedDict()
    used = read = hit = 0
    for start in range(0, len(tiles), places):
        running = tiles[start : start + places]
        for k in range(-(-K // step)):
            for m, n in running:
                for part, size in (((True, m, k), a_bytes), ((False, n, k), b_bytes)):
                    read += size
                    if part in held:
                        hit += size
                        held.move_to_end(part)
                        continue
                    held[part] = size
                    used += size
                    while used > l2_bytes:
                        used -= held.popitem(last=False)[1]
    return Traffic(
        hit_rate=hit / read,
        read_bytes=read,
        dram_bytes=read - hit,
        waves=-(-len(tiles) // places),
    )
