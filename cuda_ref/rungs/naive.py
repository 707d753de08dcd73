"""naive: the definition, for any type."""

from __future__ import annotations

from ..planning.refusals import refuse_integer_epilogues
from ..planning.rows import FP8_PAIRS, FUSES, WMMA_PAIRS, row

ORDER = 10

ROW = row(
    "naive",
    "one thread per element of C, of any type pair and with all that can be fused",
    (7, 0),
    pairs=(
        *WMMA_PAIRS,
        ("float16", "float32", "float16"),
        ("float32", "float32", "ieee"),
        *FP8_PAIRS,
    ),
    fuses=(*FUSES, "scales"),
    refuse=refuse_integer_epilogues,
)
