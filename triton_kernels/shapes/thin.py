"""thin: a few rows or columns of C, by operands that may lie anywhere, on CUDA cores.

    C[M, N] = A[M, K] @ B[K, N] with M or N a few, computed as it stands or as C' = B' A'

Adds:     no tl.dot. Of a tensor core's tile a row or two fill an eighth at most, and what is loaded
          element by element has to go through registers on its way there. Here it stays in the
          registers that it was loaded to: a program multiplies one row of A by BLOCK_N columns of
          B, elementwise, and adds up along K at the end. Types are those of 16 bits, float64 and
          float32, whose own products and sums serve tf32 and tf32x3 too. Nothing is asked of
          alignment, and everything that a step of a thousand elements loads is on its way at once,
          so that a K of some thousands takes one trip to memory or two.
Missing:  each row of C reads B again, from L2, and K is not divided among programs: with more than
          a few rows, or a long K over very few columns, `skinny` is faster.

Tiles:    C in one row x BLOCK_N columns, one a program; K in steps of BLOCK_K.
"""

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import narrow, widen
from ..device.split_k_partials import launch_dependents_and_wait
from ..host.launching import Rung
from ..host.runtime import INTERPRETED, cdiv, starts_early, tl, triton
from ..host.units import COPIED


@triton.jit(
    do_not_specialize=[
        "N", "K", "stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn",
    ],
    do_not_specialize_on_alignment=["c"],
)  # fmt: skip
def kernel(
    a,
    b,
    c,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    A_UNIT: tl.constexpr,
    B_ALONG_K: tl.constexpr,
    B_ALONG_N: tl.constexpr,
    PDL: tl.constexpr,
    EMULATED: tl.constexpr,
):
    # Sizes and strides as they are, of which the compiler now knows what the units say.
    if A_UNIT:
        stride_ak = 1
        stride_am = stride_am // A_UNIT * A_UNIT
    if B_ALONG_K:
        stride_bk = 1
        K, stride_bn = K // B_ALONG_K * B_ALONG_K, stride_bn // B_ALONG_K * B_ALONG_K
    elif B_ALONG_N:
        stride_bn = 1
        N, stride_bk = N // B_ALONG_N * B_ALONG_N, stride_bk // B_ALONG_N * B_ALONG_N
    # Offsets are elements, and 64-bit before any multiplication by a stride.
    row = tl.program_id(1).to(tl.int64)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    col, k = offs_n.to(tl.int64), offs_k.to(tl.int64)
    a_ptrs = a + row * stride_am + k * stride_ak
    b_ptrs = b + col[:, None] * stride_bn + k[None, :] * stride_bk
    a_step = tl.cast(stride_ak, tl.int64) * BLOCK_K
    b_step = tl.cast(stride_bk, tl.int64) * BLOCK_K
    in_n = offs_n < N
    launch_dependents_and_wait(PDL)

    SUMS: tl.constexpr = tl.float64 if b.dtype.element_ty == tl.float64 else tl.float32
    acc = tl.zeros((BLOCK_N, BLOCK_K), dtype=SUMS)
    for k0 in range(0, K, BLOCK_K):
        in_k = offs_k < K - k0
        x = tl.load(a_ptrs, mask=in_k, other=0.0)
        y = tl.load(b_ptrs, mask=in_n[:, None] & in_k[None, :], other=0.0)
        acc += widen(x, EMULATED)[None, :] * widen(y, EMULATED)
        a_ptrs += a_step
        b_ptrs += b_step

    c_ptrs = c + row * stride_cm + col * stride_cn
    tl.store(c_ptrs, narrow(tl.sum(acc, axis=1), c.dtype.element_ty, EMULATED), mask=in_n)


def arguments(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Any = None,
    *,
    SWAP: int,
    BLOCK_M: int,
    BLOCK_N: int,
    BLOCK_K: int,
    PDL: int,
    NUM_WARPS: int,
) -> tuple[tuple[int, int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``.

    Raises ValueError where BLOCK_M is not 1: a program has one row.
    """
    if BLOCK_M != 1:
        raise ValueError(f"BLOCK_M is {BLOCK_M}, and a program of thin has one row: it is 1")
    if SWAP:
        a, b, c = b.mT, a.mT, c.mT
    (M, K), N = a.shape, b.shape[1]

    vector = COPIED // b.itemsize
    b_along_k = _unit(vector, b.stride(0), b.stride(1) if N > 1 else 0, K)
    a_unit = _unit(vector, a.stride(1), a.stride(0) if M > 1 else 0)
    constants = {
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        # Threads have of A what they have of B, or it would have to change places.
        "A_UNIT": min(a_unit, max(b_along_k, 1)),
        "B_ALONG_K": b_along_k,
        "B_ALONG_N": 0 if b_along_k else _unit(vector, b.stride(1), b.stride(0), N),
        **starts_early(PDL),
        "EMULATED": INTERPRETED and a.dtype == torch.bfloat16,
        "num_warps": NUM_WARPS,
    }
    strides = (*a.stride(), *b.stride(), *c.stride())
    return (cdiv(N, BLOCK_N), M), (a, b, c, N, K, *strides), constants


def _unit(vector: int, along: int, across: int, size: int = 0) -> int:
    """What an operand's rows are multiples of, of size ``size`` and ``across`` elements apart: a
    vector of so many or 1; 0 where a step ``along`` a row is no single element."""
    if along != 1:
        return 0
    return vector if across % vector == size % vector == 0 else 1


run = Rung(kernel, arguments)
"""C[M, N] = A[M, K] @ B[K, N] into ``c``: float16 or bfloat16 in, the same or float32 out, or
float32 or float64; a fusion says how float32 is summed, and no more.

Its plan: SWAP (1: B' A' is computed, so that BLOCK_M runs along N), BLOCK_M (1), BLOCK_N and
BLOCK_K (elements), PDL (0 or 1: start before the kernel ahead has ended; sm_90) and NUM_WARPS.
"""
