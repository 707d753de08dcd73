"""naive: one program computes one tile of C, tiles in row-major order.

    C[M, N] = A[M, K] @ B[K, N]
    C[tile_m, tile_n] = sum over k of A[tile_m, k] @ B[k, tile_n]

Adds:     the tile. Each element of A is read N / BLOCK_N times instead of N times, and tl.dot puts
          the product on tensor cores.
Missing:  programs that run together walk along one row of tiles and share A alone; B streams
          through L2 once a row. The next rung, `grouped`, reorders them.
          Nothing overlaps either: every step loads, waits, multiplies.

Tiles:    C in block tiles of BLOCK_M x BLOCK_N, one a program (1-D grid, so that M and N may pass
          65,535 tiles); K in steps of BLOCK_K; warp and mma tiles are the compiler's choice
          (mma.sync m16n8k16 on sm_80, wgmma m64nBLOCK_Nk16 on sm_90).
"""

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import multiply_add, narrow
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
    EMULATED: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    offs_m = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
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
    NUM_WARPS: int,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``."""
    (M, K), N = a.shape, b.shape[1]
    grid = (cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N),)
    constants = {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        "EMULATED": INTERPRETED and a.dtype == torch.bfloat16,
        "num_warps": NUM_WARPS,
        "num_stages": 1,
    }
    return grid, (a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride()), constants


run = Rung(kernel, arguments)
"""C[M, N] = A[M, K] @ B[K, N] into ``c``; float16 or bfloat16 in, the same or float32 out.

Its plan: BLOCK_M, BLOCK_N, BLOCK_K (elements) and NUM_WARPS.
"""
