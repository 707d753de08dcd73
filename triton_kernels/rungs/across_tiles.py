"""Plans of warp_specialized that read an operand of float32 as it lies. Imports no triton.

wgmma reads tf32 from shared memory along K alone, and its first operand from registers as well,
where threads bring it any way round (device/across_k.py). So the operand that lies across K is made
the first: A where SWAP is 0, and B, by C' = B' A', where it is 1. The other one lies along K or is
copied. In tf32x3 the first has its two terms made in registers, whichever way it lies, and copies
hold those of the other alone: either may be the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..host.storage import letter
from ..planning.dtypes import kind
from ..planning.planner import MOST_STAGES, Config

ROWS = 64
"""That a consumer has in registers."""


def ways(problem: Any) -> Iterator[Config]:
    """What a plan says besides its tile: SWAP, ACROSS, and REPACK where the other operand is copied
    to lie along K."""
    name = kind(problem.dtype_in, problem.compute)
    along = (
        letter((problem.M, problem.K), problem.a_strides) == "n",
        letter((problem.N, problem.K), problem.b_strides[::-1]) == "n",
    )
    for swap in (0, 1):
        first, other = (along[1], along[0]) if swap else along
        if name == "tf32x3":
            yield {"SWAP": swap, "ACROSS": 1}
        elif name == "tf32" and not first:
            yield {"SWAP": swap, "ACROSS": 1, **({} if other else {"REPACK": 1})}


def plans(tiles: Iterable[Config], divided: Iterable[Config], problem: Any) -> Iterator[Config]:
    """Each way with the tiles of a table, whole and with their K divided.

    Args:
        divided: tiles with SWAP and SPLITS.
    """
    split = {"NUM_STAGES": MOST_STAGES} if problem.compute == "tf32x3" else {}
    whole, divided = [{**tile, **split} for tile in tiles], list(divided)
    for way in ways(problem):
        of_way = (tile for tile in divided if tile["SWAP"] == way["SWAP"])
        for tile in (*whole, *of_way):
            if tile["BLOCK_M"] == ROWS * tile["CONSUMERS"]:
                yield {**tile, **way}
