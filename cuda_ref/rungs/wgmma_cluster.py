"""wgmma_cluster: pairs of blocks that share their loads of B."""

from __future__ import annotations

from ..planning.refusals import refuse_tma
from ..planning.rows import TMA_ROWS, row

ORDER = 124

ROW = row(
    "wgmma_cluster",
    "clusters of two blocks: each loads half of B's tile and multicasts it to both",
    (9, 0),
    shapes=TMA_ROWS,
    refuse=refuse_tma,
    wgmma=True,
)
