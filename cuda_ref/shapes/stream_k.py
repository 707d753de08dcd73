"""stream_k: every SM the same number of steps along K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..planning.cost import LAUNCH_US, TILE_K, ceil_div, into_sm_us, memory_us, store_us
from ..planning.rows import FUSES_NO_BATCH, row
from ..planning.tuning import Tuning
from . import skinny_tile

ORDER = 170

FIXUP_US = 2.0
"""Adding a tile's partial sums from a workspace, behind a flag."""

OUT_OF_STEP = 1.4
"""By which a step takes longer where a block is at another K than its neighbours."""


def candidates(problem: Any, sms: int) -> list[dict[str, int]]:
    """The two widths of a tile."""
    return [{"BLOCK_N": width} for width in (64, 128)]


def modelled_us(config: Mapping[str, int], problem: Any, sms: int) -> float:
    """Of whole tiles in step, and of ranges of the rest, as in stream_k.cu."""
    tile_n = config["BLOCK_N"]
    tile_m = skinny_tile.tile_rows(problem.M, tile_n)
    k_tiles, tiles = ceil_div(problem.K, TILE_K), ceil_div(problem.N, tile_n)
    blocks = max(1, min(k_tiles * tiles // 4, 8 * tiles, sms))
    waves, rest = divmod(tiles, blocks)
    out_of_step = rest * k_tiles / blocks
    into_sm = into_sm_us(1, 1, tile_m, tile_n) * (waves * k_tiles + out_of_step * OUT_OF_STEP)
    memory = memory_us(problem)
    if tile_n == 64:  # fewer bytes of a row of memory at a time
        memory *= 1.3 if problem.layout[1] == "n" else 1.1
    fixup = FIXUP_US * (rest > 0 and waves == 0)
    return LAUNCH_US + max(memory, into_sm) + store_us(tile_m, tile_n) + fixup


TUNING = Tuning(
    kernel="stream_k",
    settings=("BLOCK_N",),
    simulated={"BLOCK_N": 64},
    candidates=candidates,
    modelled_us=modelled_us,
    divide=skinny_tile.divide,
)
cost = TUNING.cost
instance = skinny_tile.instance

ROW = row(
    "stream_k",
    "all steps along K of all tiles in equal ranges, one to an SM; their ends meet in order",
    (9, 0),
    shapes=skinny_tile.SKINNY_ROWS,
    refuse=skinny_tile.refuse_skinny,
    wgmma=True,
    plan=TUNING.plan,
    tile_of_asked=True,
    fuses=FUSES_NO_BATCH,
)
