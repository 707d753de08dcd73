"""The rules that the foundation pages explain, as functions: pictures and tests call them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

SECTOR, LINE, BANK, BANKS = 32, 128, 4, 32
"""Bytes of a sector, of a cache line, of a bank's word; banks of shared memory."""


def sectors(addresses: Sequence[int], size: int) -> int:
    """Sectors that a warp's loads of ``size`` bytes at these addresses ask for."""
    return len({(a + byte) // SECTOR for a in addresses for byte in (0, size - 1)})


def lines(addresses: Sequence[int]) -> int:
    """Cache lines that a warp's loads touch: the L1 looks up one a clock."""
    return len({address // LINE for address in addresses})


def wavefronts(addresses: Sequence[int]) -> int:
    """Passes that eight lanes' 16-byte reads of shared memory take: words of one bank go one by one."""
    words: dict[int, set[int]] = {}
    for address in addresses:
        for word in range(address // BANK, address // BANK + 4):
            words.setdefault(word % BANKS, set()).add(word)
    return max(len(of_bank) for of_bank in words.values())


def blocks_per_sm(
    threads: int, registers: int, shared: int, *, most_shared: int = 228 * 1024
) -> dict[str, int]:
    """Blocks that an SM of Hopper holds, by each of its four limits.

    Registers are given out in units of 256 to a warp. ``shared`` counts the 1 KB that the system
    takes from each block. Source: CUDA C++ programming guide, technical specifications.
    """
    warps = ceil(threads / 32)
    of_warp = ceil(registers * 32 / 256) * 256
    return {
        "blocks": 32,
        "threads": 2048 // (32 * warps),
        "registers": 65536 // of_warp // warps,
        "shared memory": most_shared // shared,
    }


def accumulator(lane: int, register: int) -> tuple[int, int]:
    """(row, column) in a 16 x 8 tile of C of a lane's four accumulators of mma.sync."""
    return lane // 4 + 8 * (register // 2), lane % 4 * 2 + register % 2


def wgmma_accumulator(thread: int, register: int) -> tuple[int, int]:
    """(row, column) in 64 x N of a thread's accumulator: four warps above each other."""
    row, column = accumulator(thread % 32, register % 4)
    return thread // 32 * 16 + row, register // 4 * 8 + column


def waves(tiles: int, places: int) -> tuple[int, float]:
    """Waves that so many tiles take, and the share of the places that have work in them."""
    count = ceil(tiles / places)
    return count, tiles / (count * places)
