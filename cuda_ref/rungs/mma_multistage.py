"""mma_multistage: below WMMA: ldmatrix and mma.sync."""

from __future__ import annotations

from ..planning.refusals import refuse_vector_rows
from ..planning.rows import FUSES, VECTOR_ROWS, row, source_constants

ORDER = 90

ROW = row(
    "mma_multistage",
    "ldmatrix and mma.sync from swizzled stages; no address is worked out in the loop",
    (8, 0),
    fuses=FUSES,
    shapes=VECTOR_ROWS,
    refuse=lambda problem: refuse_vector_rows(problem, source_constants("mma_multistage")),
)
