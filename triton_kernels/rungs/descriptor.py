"""descriptor: blocks copied by the TMA unit through tensor descriptors; persistent.

    C[M, N] = f(alpha A[M, K] @ B[K, N] + beta C[M, N] + bias[N]), for each of a batch

Adds:     tensor descriptors. The host describes A, B and C once (address, shape, strides, block);
          one thread then loads a whole block by its coordinates (UTMALDG), the unit computes
          the addresses, fills with zeros past the edges, and stores C the same way (UTMASTG).
          The threads do nothing but multiply.
          The epilogue stores two halves of BLOCK_N / 2 columns: C's staging buffer shrinks from
          64 to 32 KB for 128 x 256 in 16 bits, which is room for a stage of A and B.
Missing:  the threads that multiply also wait for the loads and store C; the next rung,
          `warp_specialized`, gives each of these to warps of its own. Tiles that do not fill the
          last wave of SMs leave some idle: the specialist `split_k` divides them.

Tiles:    C in block tiles of BLOCK_M x BLOCK_N, many a program; K in steps of BLOCK_K, each a
          stage; wgmma m64nBLOCK_Nk16 by warpgroups of four warps.

Storage:  A descriptor's last dimension is the contiguous one. An operand stored transposed is
          described as it lies, [K, M] or [N, K], and its block transposed in the kernel, where
          wgmma reads either order from shared memory: no copy. A column-major C is computed as
          its transpose, C' = B' A', by swapping the operands on the host; bias then goes along
          rows. A batch is a third dimension of the descriptors, save of an operand that all of
          the batch shares.
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RET505

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import compute_mode, emulated, multiply_add, narrow, zeros
from ..device.epilogue import finish, prefetch_l2, read
from ..device.ordering import grouped
from ..host.descriptors import describe, reachable, stored
from ..host.fused_arguments import batch_size, batch_strides, operands
from ..host.launching import Rung
from ..host.repack import repack
from ..host.runtime import cdiv, programs, tl, triton


@triton.jit(do_not_specialize=["M", "K", "batches"])
def kernel(
    a,
    b,
    c,
    M,
    N,
    K,
    batches,
    before,
    c_in,
    bias,
    scale_a,
    scale_b,
    alpha: tl.float64,
    beta: tl.float64,
    stride_im,
    stride_in,
    stride_bias,
    batch_in,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    FLATTEN: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    A_BATCHED: tl.constexpr,
    B_BATCHED: tl.constexpr,
    C_BATCHED: tl.constexpr,
    C_IN_BATCHED: tl.constexpr,
    COMPUTE: tl.constexpr,
    FUSED: tl.constexpr,
    ROW_SCALES_A: tl.constexpr,
    ROW_SCALES_B: tl.constexpr,
    BIAS_ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EMULATED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    k_tiles = tl.maximum(tl.cdiv(K, BLOCK_K), 1)

    tiles = tiles_m * tiles_n
    if C_BATCHED:
        tiles *= batches

    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        if C_BATCHED:
            batch = tile // (tiles_m * tiles_n)
            tile_m, tile_n = grouped(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
        else:
            batch = 0
            tile_m, tile_n = grouped(tile, tiles_m, tiles_n, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        HALF: tl.constexpr = BLOCK_N // 2
        if c_in is not None:
            source = c_in
            if C_BATCHED:
                source += batch.to(tl.int64) * batch_in
            row = (m + tl.arange(0, BLOCK_M)).to(tl.int64)
            col = (n + tl.arange(0, HALF)).to(tl.int64)
            if not INTERPRETED:
                # The mainloop hides the way from DRAM.
                prefetch_l2(source, row, n, M, N, stride_im, stride_in, BLOCK_N)
        acc = zeros(BLOCK_M, BLOCK_N, COMPUTE)
        for step in range(k_tiles):
            k = step * BLOCK_K
            # The unit writes zeros past the edges of A and B, so the K tail adds 0 * 0.
            a_block = load(a, batch, m, k, BLOCK_M, BLOCK_K, A_TRANSPOSED, A_BATCHED)
            b_block = load(b, batch, k, n, BLOCK_K, BLOCK_N, B_TRANSPOSED, B_BATCHED)
            acc = multiply_add(a_block, b_block, acc, EMULATED, COMPUTE)

        before_left, before_right = None, None
        if before is not None:
            before_left = load(before, batch, m, n, BLOCK_M, HALF, False, C_IN_BATCHED)
            before_right = load(before, batch, m, n + HALF, BLOCK_M, HALF, False, C_IN_BATCHED)
        elif c_in is not None:
            before_left = read(source, row, col, M, N, stride_im, stride_in)
            before_right = read(source, row, col + HALF, M, N, stride_im, stride_in)
        # Columns j and j + BLOCK_N / 2 lie in one thread after the permutation: splitting there
        # moves no data between threads.
        left, right = in_halves(acc)
        for half in tl.static_range(2):
            x = left if half == 0 else right
            first = n + half * HALF
            if FUSED:
                x = finish(
                    x,
                    (m + tl.arange(0, BLOCK_M)).to(tl.int64),
                    (first + tl.arange(0, HALF)).to(tl.int64),
                    M,
                    N,
                    before_left if half == 0 else before_right,
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
            x = narrow(x, c.dtype, EMULATED)
            if C_BATCHED:
                c.store([batch, m, first], tl.reshape(x, (1, BLOCK_M, HALF)))
            else:
                c.store([m, first], x)


@triton.jit
def in_halves(x):
    """The left and the right half of the columns of a block."""
    halves = tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2))
    return tl.split(tl.permute(halves, (0, 2, 1)))


@triton.jit
def load(
    x,
    batch,
    row,
    column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BATCHED: tl.constexpr,
):
    """The block x[row:, column:] of a descriptor in storage order, of this batch."""
    if BATCHED and TRANSPOSED:
        return tl.reshape(x.load([batch, column, row]), (COLUMNS, ROWS)).T
    elif BATCHED:
        return tl.reshape(x.load([batch, row, column]), (ROWS, COLUMNS))
    elif TRANSPOSED:
        return x.load([column, row]).T
    else:
        return x.load([row, column])


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
    FLATTEN: int,
    NUM_STAGES: int,
    NUM_WARPS: int,
    REPACK: int = 0,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``."""
    transposed = stored(c) == "t"
    if transposed:
        a, b, c = b.mT, a.mT, c.mT
    (M, K), N = a.shape[-2:], b.shape[-1]
    a_transposed, b_transposed = stored(a) == "t", stored(b) == "t"
    descriptors = (
        describe(a, (BLOCK_M, BLOCK_K), a_transposed),
        describe(b, (BLOCK_K, BLOCK_N), b_transposed),
        describe(c, (BLOCK_M, BLOCK_N // 2), False),
    )
    batches = batch_size(c)
    c_in = None if fusion is None or fusion.c is None else fusion.c.mT if transposed else fusion.c
    before = None
    if c_in is not None and reachable(c_in):
        before = describe(c_in, (BLOCK_M, BLOCK_N // 2), False)
    grid = (min(programs(a), batches * cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)),)
    fused, fused_constants = operands(fusion, transposed)
    constants = {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        "GROUP_M": GROUP_M,
        "FLATTEN": bool(FLATTEN),
        "A_TRANSPOSED": a_transposed,
        "B_TRANSPOSED": b_transposed,
        "A_BATCHED": len(descriptors[0].shape) == 3,
        "B_BATCHED": len(descriptors[1].shape) == 3,
        "C_BATCHED": len(descriptors[2].shape) == 3,
        "C_IN_BATCHED": before is not None and len(before.shape) == 3,
        "COMPUTE": compute_mode(fusion, REPACK),
        "FUSED": fusion is not None,
        **fused_constants,
        "EMULATED": emulated(a),
        "num_warps": NUM_WARPS,
        "num_stages": NUM_STAGES,
    }
    batch_in = batch_strides(a, b, c, fusion)[3]
    return grid, (*descriptors, M, N, K, batches, before, *fused, batch_in), constants


run = Rung(kernel, arguments, repack=repack)
"""C[M, N] = A[M, K] @ B[K, N] into ``c``, or the same for each of a batch [batch, M, K].

Its plan: BLOCK_M, BLOCK_N, BLOCK_K (elements), GROUP_M (tile rows), FLATTEN (0 or 1), NUM_STAGES,
NUM_WARPS and, where A and B are copied first, REPACK=1.
"""
