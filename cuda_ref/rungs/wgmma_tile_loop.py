"""wgmma_tile_loop: blocks that stay and loop over tiles."""

from __future__ import annotations

from ..planning.refusals import refuse_tma
from ..planning.rows import TMA_ROWS, row

ORDER = 122

ROW = row(
    "wgmma_tile_loop",
    "blocks stay and loop over tiles: the next tile is loaded while C is stored",
    (9, 0),
    shapes=TMA_ROWS,
    refuse=refuse_tma,
    wgmma=True,
)
