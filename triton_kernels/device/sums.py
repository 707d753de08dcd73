"""The second launch of what is summed in parts: it adds them in order."""

from __future__ import annotations

from typing import Any

import torch

from ..host.recording import Step
from ..host.runtime import INTERPRETED, cdiv, tl, triton
from .dot import narrow

AT_A_TIME, COLUMNS = 64, 16
"""Parts that a program adds at a time, of as many columns."""


@triton.jit
def add_kernel(
    sums,
    total,
    N,
    parts,
    stride_total,
    AT_A_TIME: tl.constexpr,
    COLUMNS: tl.constexpr,
    EMULATED: tl.constexpr,
):
    """total[n] = the sum of sums[parts, n], AT_A_TIME of them at a time."""
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    acc = tl.zeros((COLUMNS,), dtype=tl.float32)
    for first in range(0, parts, AT_A_TIME):
        part = first + tl.arange(0, AT_A_TIME)
        inside = (part < parts)[:, None] & (n < N)[None, :]
        at = sums + part.to(tl.int64)[:, None] * N + n[None, :]
        acc += tl.sum(tl.load(at, mask=inside, other=0.0), 0)
    tl.store(total + n * stride_total, narrow(acc, total.dtype.element_ty, EMULATED), mask=n < N)


def add(sums: Any, total: Any, parts: int) -> Step:
    """The launch: total[N] = the sum of the float32 sums[parts, N], in total's dtype."""
    constants = {
        "AT_A_TIME": AT_A_TIME,
        "COLUMNS": COLUMNS,
        "EMULATED": INTERPRETED and total.dtype == torch.bfloat16,
        "num_warps": 4,
    }
    (N,) = total.shape
    return add_kernel, (cdiv(N, COLUMNS),), (sums, total, N, parts, total.stride(0)), constants
