"""wgmma_specialized: warps that load or multiply."""

from __future__ import annotations

from ..planning.refusals import refuse_tma
from ..planning.rows import TMA_ROWS, row

ORDER = 120

ROW = row(
    "wgmma_specialized",
    "a producer warp fills a ring of stages for two consumer warpgroups; 128 x 256 tiles",
    (9, 0),
    shapes=TMA_ROWS,
    refuse=refuse_tma,
    wgmma=True,
)
