"""wgmma_tma: copies by TMA, wgmma."""

from __future__ import annotations

from ..planning.refusals import refuse_tma
from ..planning.rows import TMA_ROWS, row

ORDER = 110

ROW = row(
    "wgmma_tma",
    "TMA copies whole tiles, an mbarrier counts them in, wgmma reads them from shared memory",
    (9, 0),
    shapes=TMA_ROWS,
    refuse=refuse_tma,
    wgmma=True,
)
