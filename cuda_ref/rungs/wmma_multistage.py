"""wmma_multistage: WMMA with nothing waiting."""

from __future__ import annotations

from ..planning.refusals import refuse_vector_rows
from ..planning.rows import FUSES, VECTOR_ROWS, row, source_constants

ORDER = 80

ROW = row(
    "wmma_multistage",
    "WMMA at its best: 128 x 256 tiles, the next fragments loaded while these are multiplied",
    (8, 0),
    fuses=FUSES,
    shapes=VECTOR_ROWS,
    refuse=lambda problem: refuse_vector_rows(problem, source_constants("wmma_multistage")),
)
