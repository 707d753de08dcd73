"""pipelined: loads of later K steps in flight during the multiply, tile chosen per shape.

    C[M, N] = A[M, K] @ B[K, N]

Adds:     NUM_STAGES slots of shared memory. In steady state NUM_STAGES - 1 steps are being copied
          (cp.async, no registers in between) while the oldest is multiplied; on sm_90 wgmma reads
          both operands from those slots. What a slot costs: 128 x 256 x 64 in 16 bits is
          (128 + 256) * 64 * 2 = 49,152 bytes, so four fit in 232,448.
          Masks are compiled only where the tile does not divide the problem, and the tile comes
          from a table per GPU and shape (planning/configs-*.json, read by planning/tables.py).
Missing:  operands of 16 bits and one plain product are all that it takes. The next rung, `fused`,
          has every type, batches and the epilogue in the same main loop.

Tiles:    C in block tiles of BLOCK_M x BLOCK_N, one a program; K in steps of BLOCK_K, each a
          stage; wgmma m64nBLOCK_Nk16 by warpgroups of four warps on sm_90, mma.sync on sm_80.
"""

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import multiply_add, narrow
from ..device.ordering import grouped
from ..host.launching import Rung
from ..host.runtime import INTERPRETED, cdiv, tl, triton
from ..host.units import units


@triton.jit(do_not_specialize=["M", "N", "K"])
def kernel(
    a,
    b,
    c,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    UNIT_M: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_K: tl.constexpr,
    EMULATED: tl.constexpr,
):
    # The sizes as they are, which the compiler now knows to be such multiples.
    M, N, K = M // UNIT_M * UNIT_M, N // UNIT_N * UNIT_N, K // UNIT_K * UNIT_K
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = grouped(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)

    # Offsets are elements, and 64-bit before any multiplication by a stride.
    row, col, k0 = offs_m.to(tl.int64), offs_n.to(tl.int64), offs_k.to(tl.int64)
    a_ptrs = a + row[:, None] * stride_am + k0[None, :] * stride_ak
    b_ptrs = b + k0[:, None] * stride_bk + col[None, :] * stride_bn
    a_step = tl.cast(stride_ak, tl.int64) * BLOCK_K
    b_step = tl.cast(stride_bk, tl.int64) * BLOCK_K

    in_m = (offs_m < M)[:, None] | (UNIT_M == BLOCK_M)
    in_n = (offs_n < N)[None, :] | (UNIT_N == BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    # K >= 1. The maximum tells the compiler: with a path that skips the loop, ptxas serialises
    # wgmma (C7515).
    for k in range(tl.maximum(tl.cdiv(K, BLOCK_K), 1)):
        # Both operands are zero-filled past K: a stale Inf on one side would make 0 * Inf NaN.
        in_k = (offs_k < K - k * BLOCK_K) | (UNIT_K == BLOCK_K)
        a_block = tl.load(a_ptrs, mask=in_m & in_k[None, :], other=0.0)
        b_block = tl.load(b_ptrs, mask=in_k[:, None] & in_n, other=0.0)
        acc = multiply_add(a_block, b_block, acc, EMULATED)
        a_ptrs += a_step
        b_ptrs += b_step

    c_ptrs = c + row[:, None] * stride_cm + col[None, :] * stride_cn
    tl.store(c_ptrs, narrow(acc, c.dtype.element_ty, EMULATED), mask=in_m & in_n)


def arguments(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    BLOCK_M: int,
    BLOCK_N: int,
    BLOCK_K: int,
    GROUP_M: int,
    NUM_STAGES: int,
    NUM_WARPS: int,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``."""
    (M, K), N = a.shape, b.shape[1]
    grid = (cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N),)
    constants = {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        "GROUP_M": GROUP_M,
        **units(a, b, c, BLOCK_M, BLOCK_N, BLOCK_K),
        "EMULATED": INTERPRETED and a.dtype == torch.bfloat16,
        "num_warps": NUM_WARPS,
        "num_stages": NUM_STAGES,
    }
    return grid, (a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride()), constants


run = Rung(kernel, arguments)
"""C[M, N] = A[M, K] @ B[K, N] into ``c``; float16 or bfloat16 in, the same or float32 out.

Its plan: BLOCK_M, BLOCK_N, BLOCK_K (elements), GROUP_M (tile rows), NUM_STAGES, NUM_WARPS.
"""
