"""wmma: a warp's tile of C by tensor cores."""

from __future__ import annotations

from typing import Any

from ..planning.refusals import ANY, operands, refuse_no_multiples, storage
from ..planning.rows import row

ORDER = 30

# A WMMA load computes row offsets in 32 bits.
WMMA_LD_LIMIT = 2**26


def refuse_wmma_loads(problem: Any) -> str | None:
    """Why fragments cannot be loaded from A and B where they are; None when they can."""
    if problem.dtype_in == "bfloat16" and (problem.capability or (8, 0)) < (8, 0):
        here = "{}.{}".format(*problem.capability)
        return f"bfloat16 fragments need compute capability 8.0 and this GPU has {here}"
    reason = refuse_no_multiples(problem, {"M": 16, "N": 16, "K": 16})
    if reason:
        return reason
    for name, shape, strides, alignment in operands(problem):
        ld, inner = storage(shape, strides)
        if inner != 1:
            return f"{name} has strides {strides} and neither is 1: {ANY}, or copy it"
        if ld % 8 or not 16 <= ld < WMMA_LD_LIMIT:
            return (
                f"{name} has rows {ld} elements apart; WMMA loads a multiple of 8 "
                f"from 16 to {WMMA_LD_LIMIT - 8}: {ANY}"
            )
        if alignment < 32:
            return f"{name} is {alignment}-byte aligned and WMMA loads need 32: {ANY}"
    return None


ROW = row(
    "wmma",
    "tensor cores: one warp per 16 x 16 tile, fragments straight from global memory",
    (7, 0),
    shapes="M, N and K multiples of 16; 32-byte aligned A and B, rows 8 elements apart or a "
    "multiple; bfloat16 from compute capability 8.0",
    refuse=refuse_wmma_loads,
)
