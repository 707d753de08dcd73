"""grouped: the same tile as `naive`, visited in bands of GROUP_M tile rows.

    C[M, N] = A[M, K] @ B[K, N]

Adds:     the grouped ordering of program ids. The programs that run at one time (one or two an
          SM) cover a block of tiles near to square, not one long row: 132 tiles as 8 x 16 read
          24 strips of A and B, as 1 x 132 they read 133. What is read again comes from L2.
Missing:  overlap. Each step loads its blocks, waits for them and multiplies. The next rung,
          `pipelined`, keeps the loads of later steps in flight during the multiply.

Tiles:    as in `naive`: C in block tiles of BLOCK_M x BLOCK_N, one a program; K in steps of
          BLOCK_K; warp and mma tiles are the compiler's choice.
"""

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import multiply_add, narrow
from ..device.ordering import grouped
from ..host.launching import Rung
from ..host.runtime import INTERPRETED, cdiv, tl, triton


@triton.jit
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
    EMULATED: tl.constexpr,
):
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

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    # K >= 1. The maximum tells the compiler: with a path that skips the loop, ptxas serialises
    # wgmma (C7515).
    for k in range(tl.maximum(tl.cdiv(K, BLOCK_K), 1)):
        # Both operands are zero-filled past K: a stale Inf on one side would make 0 * Inf NaN.
        in_k = offs_k < K - k * BLOCK_K
        a_block = tl.load(a_ptrs, mask=(offs_m < M)[:, None] & in_k[None, :], other=0.0)
        b_block = tl.load(b_ptrs, mask=in_k[:, None] & (offs_n < N)[None, :], other=0.0)
        acc = multiply_add(a_block, b_block, acc, EMULATED)
        a_ptrs += a_step
        b_ptrs += b_step

    c_ptrs = c + row[:, None] * stride_cm + col[None, :] * stride_cn
    in_c = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(c_ptrs, narrow(acc, c.dtype.element_ty, EMULATED), mask=in_c)


def arguments(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    BLOCK_M: int,
    BLOCK_N: int,
    BLOCK_K: int,
    GROUP_M: int,
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
        "EMULATED": INTERPRETED and a.dtype == torch.bfloat16,
        "num_warps": NUM_WARPS,
        "num_stages": 1,
    }
    return grid, (a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride()), constants


run = Rung(kernel, arguments)
"""C[M, N] = A[M, K] @ B[K, N] into ``c``; float16 or bfloat16 in, the same or float32 out.

Its plan: BLOCK_M, BLOCK_N, BLOCK_K (elements), GROUP_M (tile rows) and NUM_WARPS.
"""
