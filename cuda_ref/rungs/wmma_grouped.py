"""wmma_grouped: tiles in an order that reuses the L2."""

from __future__ import annotations

from ..planning.refusals import refuse_tiled_copies
from ..planning.rows import row, source_constants

ORDER = 50

ROW = row(
    "wmma_grouped",
    "grouped ordering of the tiles, padded shared memory, BLOCK_K 32, fragments reused",
    (8, 0),
    shapes="M and N multiples of 64, K of 32; 16-byte aligned rows",
    refuse=lambda problem: refuse_tiled_copies(problem, source_constants("wmma_grouped")),
)
