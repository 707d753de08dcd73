"""The derivative of an activation, and the gradient of a bias, in one pass over the gradient.

    dZ[M, N] = dY[M, N] * act'(Z[M, N])         dbias[n] = sum over m of dZ[m, n]

Z is the pre-activation; for relu it may be relu(Z), which is positive where Z is. The column sums
are taken before dZ is rounded, in float32: of ROWS rows in a program, then of all programs in a
second launch, in an order that does not change from run to run. A sum of its own would read dZ
once more, which is a quarter of all that is moved. Without Z, only the column sums of dY are taken.

Tiles:    dZ in tiles of ROWS x BLOCK_N, one a program, read in blocks of BLOCK_M rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .device.dot import narrow, widen
from .device.epilogue import through
from .device.sums import add
from .host.launching import Rung
from .host.recording import Step
from .host.runtime import INTERPRETED, cdiv, tl, triton

TILE = {"ROWS": 128, "BLOCK_M": 32, "BLOCK_N": 64}
"""16 elements of dY and of Z to a thread at a time; the partial sums are 1 % of the traffic,
3 % of sums' alone. Of eleven tiles it is the one that is fast for both (docs/decisions.md)."""


@triton.jit
def kernel(
    above,
    z,
    below,
    sums,
    total,
    M,
    N,
    stride_am,
    stride_an,
    stride_zm,
    stride_zn,
    stride_bm,
    stride_bn,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EMULATED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """``total`` is None where no sums are asked for; else it belongs to the second launch.

    ``z`` and ``below`` are None where nothing else is.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    part = tl.program_id(0) // tiles_n
    n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    col = n.to(tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in tl.static_range(0, ROWS, BLOCK_M):
        m = part * ROWS + first + tl.arange(0, BLOCK_M)
        row = m.to(tl.int64)
        inside = (m < M)[:, None] & (n < N)[None, :]
        of_above = above + row[:, None] * stride_am + col[None, :] * stride_an
        if z is not None:
            of_z = z + row[:, None] * stride_zm + col[None, :] * stride_zn
            x = widen(tl.load(of_z, mask=inside, other=0.0), EMULATED)
        grad = widen(tl.load(of_above, mask=inside, other=0.0), EMULATED)
        if z is not None:
            grad = through(grad, x, ACTIVATION, INTERPRETED)
            of_below = below + row[:, None] * stride_bm + col[None, :] * stride_bn
            tl.store(of_below, narrow(grad, below.dtype.element_ty, EMULATED), mask=inside)
        acc += grad
    if total is not None:
        tl.store(sums + part.to(tl.int64) * N + col, tl.sum(acc, 0), mask=n < N)


def arguments(
    above: torch.Tensor,
    z: torch.Tensor | None,
    below: torch.Tensor | None,
    fusion: Any,
    *,
    ROWS: int,
    BLOCK_M: int,
    BLOCK_N: int,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``."""
    M, N = above.shape
    parts, total = cdiv(M, ROWS), fusion.bias
    sums = None
    if total is not None:
        sums = torch.empty(parts * N, dtype=torch.float32, device=above.device)
    dtypes = [x.dtype for x in (above, z, below) if x is not None]
    constants = {
        "ACTIVATION": fusion.epilogue,
        "ROWS": ROWS,
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "EMULATED": INTERPRETED and torch.bfloat16 in dtypes,
        "INTERPRETED": INTERPRETED,
        "num_warps": 4,
    }
    none = (None, None)
    strides = [s for x in (above, z, below) for s in (none if x is None else x.stride())]
    args = (above, z, below, sums, total, M, N, *strides)
    return (parts * cdiv(N, BLOCK_N),), args, constants


def second(above: Any, z: Any, below: Any, args: Any, plan: Mapping[str, int]) -> Step | None:
    """The launch that adds the programs' column sums; None where none are asked for."""
    sums, total, M = args[3:6]
    if total is None:
        return None
    return add(sums, total, cdiv(M, plan["ROWS"]))


run = Rung(kernel, arguments, second=second)
"""dZ[M, N] into ``c``, of dY and Z, of 16 bits or float32 each, as ``a`` and ``b``. Of ``fusion``,
``epilogue`` names the activation, and ``bias``, where it is a tensor [N], is written: dbias. With Z
and dZ both None, only that.

Its plan: ROWS, BLOCK_M and BLOCK_N (elements).
"""
