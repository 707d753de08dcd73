"""mma_float64: float64 in large instructions."""

from __future__ import annotations

from ..planning.refusals import refuse_vector_rows
from ..planning.rows import FUSES, VECTOR_ROWS, row, source_constants

ORDER = 100

ROW = row(
    "mma_float64",
    "float64 by mma.sync, 16 x 8 x 16 in one instruction where WMMA has 8 x 8 x 4",
    (8, 0),
    pairs=(("float64", "float64"),),
    fuses=FUSES,
    shapes=VECTOR_ROWS,
    refuse=lambda problem: refuse_vector_rows(problem, source_constants("mma_float64")),
)
