"""wmma_double_buffered: copies under multiplies."""

from __future__ import annotations

from ..planning.refusals import refuse_tiled_copies
from ..planning.rows import row, source_constants

ORDER = 40

ROW = row(
    "wmma_double_buffered",
    "cp.async in 16-byte vectors into the other half of shared memory; 32 x 32 per warp",
    (8, 0),
    shapes="M and N multiples of 64, K of 16; 16-byte aligned rows",
    refuse=lambda problem: refuse_tiled_copies(problem, source_constants("wmma_double_buffered")),
)
