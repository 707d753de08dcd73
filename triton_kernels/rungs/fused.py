"""fused: the main loop of `pipelined` for every type, with the epilogue in the same launch.

    C[M, N] = f(alpha A[M, K] @ B[K, N] + beta C[M, N] + bias[N]), for each of a batch

Adds:     every type that tl.dot has (device/dot.py), batches, and what follows the product
          (device/epilogue.py): C never goes to memory and back between the product and its bias,
          scales or activation. Each is under a compile-time switch, so a plain product of 16-bit
          operands compiles to the machine code of `pipelined`.
Missing:  a program ends with its tile. While it stores C nothing loads, and the next program on
          that SM fills its pipeline from empty. The next rung, `persistent`, joins the tiles.

Tiles:    C in block tiles of BLOCK_M x BLOCK_N, one a program; K in steps of BLOCK_K, each a
          stage; wgmma m64nBLOCK_Nk16 by warpgroups of four warps on sm_90, mma.sync on sm_80.
"""

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import compute_mode, emulated, less_128, multiply_add, narrow, zeros
from ..device.epilogue import finish, read
from ..device.flat_block import block_of, flat, places
from ..device.ordering import grouped
from ..host.fused_arguments import batch_size, batch_strides, operands
from ..host.launching import Rung
from ..host.repack import repack
from ..host.runtime import cdiv, tl, triton
from ..host.units import VECTOR, units


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
    c_in,
    bias,
    scale_a,
    scale_b,
    alpha: tl.float64,
    beta: tl.float64,
    stride_im,
    stride_in,
    stride_bias,
    batch_a,
    batch_b,
    batch_c,
    batch_in,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    UNIT_M: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_K: tl.constexpr,
    FLAT_B: tl.constexpr,
    COMPUTE: tl.constexpr,
    FUSED: tl.constexpr,
    BATCHED: tl.constexpr,
    ROW_SCALES_A: tl.constexpr,
    ROW_SCALES_B: tl.constexpr,
    BIAS_ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EMULATED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    # The sizes as they are, which the compiler now knows to be such multiples.
    M, N, K = M // UNIT_M * UNIT_M, N // UNIT_N * UNIT_N, K // UNIT_K * UNIT_K
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    if BATCHED:
        batch = (tile // (tiles_m * tiles_n)).to(tl.int64)
        tile = tile % (tiles_m * tiles_n)
        a += batch * batch_a
        b += batch * batch_b
        c += batch * batch_c
        if c_in is not None:
            c_in += batch * batch_in
    tile_m, tile_n = grouped(tile, tiles_m, tiles_n, GROUP_M)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)

    # Offsets are elements, and 64-bit before any multiplication by a stride.
    row, col, k0 = offs_m.to(tl.int64), offs_n.to(tl.int64), offs_k.to(tl.int64)
    a_ptrs = a + row[:, None] * stride_am + k0[None, :] * stride_ak
    k_of_b, n_of_b = places(BLOCK_K, BLOCK_N, FLAT_B)
    n_of_b += tile_n * BLOCK_N
    b_ptrs = b + k_of_b.to(tl.int64) * stride_bk + n_of_b.to(tl.int64) * stride_bn
    a_step = tl.cast(stride_ak, tl.int64) * BLOCK_K
    b_step = tl.cast(stride_bk, tl.int64) * BLOCK_K

    in_m = (offs_m < M)[:, None] | (UNIT_M == BLOCK_M)
    in_n = (offs_n < N)[None, :] | (UNIT_N == BLOCK_N)
    in_n_of_b = (n_of_b < N) | (UNIT_N == BLOCK_N)
    acc = zeros(BLOCK_M, BLOCK_N, COMPUTE)
    UNSIGNED: tl.constexpr = a.dtype.element_ty == tl.uint8
    if UNSIGNED:
        sums_a = tl.zeros((BLOCK_M,), dtype=tl.int32)
        sums_b = tl.zeros((BLOCK_N,), dtype=tl.int32)
    k_tiles = tl.maximum(tl.cdiv(K, BLOCK_K), 1)
    # K >= 1. The maximum tells the compiler: with a path that skips the loop, ptxas serialises
    # wgmma (C7515).
    for k in range(k_tiles):
        # Both operands are zero-filled past K: a stale Inf on one side would make 0 * Inf NaN.
        in_k = (offs_k < K - k * BLOCK_K)[None, :] | (UNIT_K == BLOCK_K)
        in_k_of_b = (k_of_b < K - k * BLOCK_K) | (UNIT_K == BLOCK_K)
        a_block = tl.load(a_ptrs, mask=in_m & in_k, other=0.0)
        b_block = tl.load(b_ptrs, mask=in_k_of_b & in_n_of_b, other=0.0)
        b_block = block_of(b_block, BLOCK_K, BLOCK_N, FLAT_B)
        if UNSIGNED:
            sums_a += tl.sum(a_block.to(tl.int32), 1)
            sums_b += tl.sum(b_block.to(tl.int32), 0)
            a_block, b_block = less_128(a_block), less_128(b_block)
        acc = multiply_add(a_block, b_block, acc, EMULATED, COMPUTE)
        a_ptrs += a_step
        b_ptrs += b_step

    if UNSIGNED:
        # (u - 128) (v - 128) = u v - 128 u - 128 v + 16384, over the zeros past K too.
        acc += 128 * (sums_a[:, None] + sums_b[None, :]) - 16384 * BLOCK_K * k_tiles
    if FUSED:
        before = None
        if c_in is not None:
            before = read(c_in, row, col, M, N, stride_im, stride_in)
        acc = finish(
            acc,
            row,
            col,
            M,
            N,
            before,
            bias,
            scale_a,
            scale_b,
            alpha,
            beta,
            stride_bias,
            ROW_SCALES_A,
            ROW_SCALES_B,
            BIAS_ROWS,
            ACTIVATION,
            EMULATED,
            INTERPRETED,
        )
    c_ptrs = c + row[:, None] * stride_cm + col[None, :] * stride_cn
    tl.store(c_ptrs, narrow(acc, c.dtype.element_ty, EMULATED), mask=in_m & in_n)


def arguments(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Any = None,
    *,
    BLOCK_M: int,
    BLOCK_N: int,
    BLOCK_K: int,
    GROUP_M: int,
    NUM_STAGES: int,
    NUM_WARPS: int,
    REPACK: int = 0,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``."""
    (M, K), N = a.shape[-2:], b.shape[-1]
    grid = (batch_size(c) * cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N),)
    fused, fused_constants = operands(fusion, False)
    compute = compute_mode(fusion, REPACK)
    constants = {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        "GROUP_M": GROUP_M,
        **units(a, b, c, BLOCK_M, BLOCK_N, BLOCK_K),
        "FLAT_B": flat(b, compute, VECTOR),
        "COMPUTE": compute,
        "FUSED": fusion is not None,
        "BATCHED": c.dim() == 3,
        **fused_constants,
        "EMULATED": emulated(a),
        "num_warps": NUM_WARPS,
        "num_stages": NUM_STAGES,
    }
    strides = (*a.stride()[-2:], *b.stride()[-2:], *c.stride()[-2:])
    return grid, (a, b, c, M, N, K, *strides, *fused, *batch_strides(a, b, c, fusion)), constants


run = Rung(kernel, arguments, repack=repack)
"""C[M, N] = A[M, K] @ B[K, N] into ``c``, or the same for each of a batch [batch, M, K].

Its plan: BLOCK_M, BLOCK_N, BLOCK_K (elements), GROUP_M (tile rows), NUM_STAGES, NUM_WARPS and,
where A and B are copied first, REPACK=1.
"""
