"""wgmma_epilogue: C by TMA stores, under the next tile's multiplies."""

from __future__ import annotations

from ..planning.refusals import refuse_tma
from ..planning.rows import TMA_ROWS, row

ORDER = 126

ROW = row(
    "wgmma_epilogue",
    "C through shared memory by TMA stores, while the next tile is multiplied",
    (9, 0),
    shapes=TMA_ROWS,
    refuse=refuse_tma,
    wgmma=True,
)
