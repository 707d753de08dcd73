"""wmma_any: any size, stride and alignment."""

from __future__ import annotations

from typing import Any

from ..planning.cost import LAUNCH_US, ceil_div
from ..planning.gpu import of as gpu_of
from ..planning.refusals import refuse_tma
from ..planning.rows import FUSES, row

ORDER = 60

WAVE_US = 4.0
"""Two tiles of unaligned rows on each SM, beside their steps along K."""

STEP_US = 4.0
"""32 along K of such a wave."""


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds of a product whose rows TMA cannot read; None where it can."""
    if refuse_tma(problem) is None:
        return None
    tiles = ceil_div(problem.M, 128) * ceil_div(problem.N, 128) * problem.batch
    return LAUNCH_US + ceil_div(tiles, 2 * sms) * (WAVE_US + ceil_div(problem.K, 32) * STEP_US)


ROW = row(
    "wmma_any",
    "checked copies for any size, stride and alignment; 64 x 64 per warp, four stages",
    (8, 0),
    unaligned_us=lambda problem: cost(problem, gpu_of(problem).sms),
    fuses=FUSES,
)
