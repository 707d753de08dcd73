"""The cost model that the specialists share: microseconds of a product on an H200.

A product takes as long as the slower of memory and the busiest SM, and what comes before and after.
The constants are fitted to timed cases (reports/nvidia-h200/trials); a rung with constants of its
own has them in its Python file. What a cost is for is a comparison: the choice among rungs, and
among settings of one, on a GPU that has no table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

LAUNCH_US = 3.0
"""From the end of the kernel before to the first bytes, and from the last bytes to the end."""

MEMORY_BYTES_PER_US = 4.3e6
"""Bytes that memory delivers in a microsecond to all SMs."""

MEMORY_TO_SM_BYTES_PER_US = 43e3
"""Bytes a microsecond out of memory to one SM."""

L2_TO_SM_BYTES_PER_US = 85e3
"""Bytes a microsecond from the L2 into one SM."""

COLD_BYTES = 0.4e6
"""Of operands from which on a model counts that they lie in memory when a product begins. Fewer are
often in the L2: what is timed in turns has some hundred of them there."""

STORE_US = 2.0
"""Storing 128 x 128 elements of C."""

TILE_K = 64
"""Elements of K in a step of a TMA rung, 128 bytes of 16-bit operands."""


MOST_SPLITS = 8
"""Blocks of a cluster, the most that every GPU with clusters runs."""


def power_of_two(least: int, most: int) -> int:
    """The least power of two that is ``least`` or more, and ``most`` where that is less."""
    found = 1
    while found < most and found < least:
        found *= 2
    return found


def divisions_of_k(
    lanes: Iterable[int], loads: int, warps: int, on_gpu: bool
) -> Iterator[tuple[int, int, int]]:
    """(lanes along N, warps that divide K, blocks that do) worth trying, where a lane has ``loads``
    along K to share with others: csrc/tile/lanes.cuh. In the simulator blocks are alone."""
    for along_n in lanes:
        some = 1
        while some <= warps:
            steps = ceil_div(loads, 32 // along_n * some)
            most = max(1, min(MOST_SPLITS, steps)) if on_gpu else 1
            yield from ((along_n, some, splits) for splits in range(1, most + 1))
            if steps <= 1:
                break
            some *= 2


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def most_splits(K: int) -> int:
    """The most splits of K that have two steps of TILE_K each."""
    return max(1, ceil_div(K, TILE_K) // 2)


def memory_us(problem: Any) -> float:
    """Reading A and B and writing C once, 2 bytes an element."""
    M, N, K = problem.M, problem.N, problem.K
    return float(2 * (M * K + K * N + M * N) / MEMORY_BYTES_PER_US)


def into_sm_us(waves: float, steps: int, tile_m: int, tile_n: int) -> float:
    """What the busiest SM reads of the L2: ``steps`` along K of a tile in each of its waves."""
    return waves * steps * (tile_m + tile_n) * 2 * TILE_K / L2_TO_SM_BYTES_PER_US


def store_us(tile_m: int, tile_n: int) -> float:
    """Storing a tile of C."""
    return STORE_US * tile_m * tile_n / 128 / 128


SMS_OF_A_GROUP = 16.5
"""SMs that lie in a group, in the mean of an H200's, which clusters do not cross."""


def clusters_at_once(blocks: int, sms: int, resident: int = 1) -> int:
    """Clusters of so many blocks, ``resident`` blocks to an SM, that run at once.

    An H200's 132 SMs take 30 clusters of 4 blocks and 14 of 8. Where an SM has several blocks, a
    group of SMs is taken to have room for half a cluster less one block that no cluster fills.
    """
    if resident == 1:
        return int(sms / blocks * {1: 1.0, 2: 1.0, 4: 0.91}.get(blocks, 0.85))
    filled = 1 - (blocks - 1) / 2 / (SMS_OF_A_GROUP * resident)
    return int(sms * resident / blocks * filled)


def more_waves(clusters: int, blocks: int, sms: int, resident: int) -> float:
    """By what factor so many clusters of so many blocks take more waves than as many blocks that
    are in none. 2281 x 3 x 16051 (tt) takes 69 us by thin in 36 clusters of 7, two blocks to an SM,
    of which 34 run at once, and 47 in 36 of 6 (reports/nvidia-h200/trials/races.csv)."""
    at_once = max(1, clusters_at_once(blocks, sms, resident))
    alone = max(1, ceil_div(clusters * blocks, sms * resident))
    return max(1.0, ceil_div(clusters, at_once) / alone) if blocks > 1 else 1.0
