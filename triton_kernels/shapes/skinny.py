"""skinny: few rows (or columns) of C, a wide weight matrix streamed once.

    C[M, N] = A[M, K] @ B[K, N] with M or N small, computed as it stands or as C' = B' A'

Adds:     the wide side first. wgmma's m is 64 at least and its n as small as 8: with 16 rows of A
          as n nothing is multiplied for rows that are not there, and what remains is to read the
          wide operand at the rate of memory: deep pipelines of small steps, K divided among
          SPLITS programs where tiles alone leave SMs idle, and programmatic dependent launch (PDL):
          the next kernel's programs are resident before this one ends, so that a launch of two
          microseconds is not paid on a product of ten, and prefetch their first L2_PREFETCH steps
          of the wide operand into L2, which is safe whoever still writes it. It takes all types of
          tl.dot but uint8, and float16 that is summed in float16. Partial sums are of the
          accumulators' dtype.
Missing:  the loads are 16-byte copies with an address each, issued by the threads that multiply.
          `split_k` leaves them to the TMA unit.

Tiles:    C in block tiles of BLOCK_M (wide side) x BLOCK_N (thin side) x SPLITS parts of K, one a
          program; K in steps of BLOCK_K, each a stage. Parts are added in a second pass, in
          order: the same inputs give the same bits (device/split_k_partials.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..device.bands import in_bands
from ..device.dot import compute_mode, emulated, multiply_add, narrow, summed_in, zeros
from ..device.epilogue import prefetch_l2
from ..device.flat_block import block_of, flat, places
from ..device.split_k_partials import (
    add,
    bounds,
    launch_dependents_and_wait,
    store_partial,
    workspace,
)
from ..host.launching import Rung
from ..host.recording import Step
from ..host.runtime import cdiv, starts_early, tl, triton
from ..host.units import copied_at_once, unit_of_stride, units


@triton.jit(do_not_specialize=["M", "N", "K", "splits"])
def kernel(
    a,
    b,
    c,
    partials,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    splits,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UNIT_M: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_K: tl.constexpr,
    UNIT_STRIDES: tl.constexpr,
    PDL: tl.constexpr,
    L2_PREFETCH: tl.constexpr,
    FLAT_B: tl.constexpr,
    COMPUTE: tl.constexpr,
    EMULATED: tl.constexpr,
):
    # The sizes as they are, which the compiler now knows to be such multiples.
    M, N, K = M // UNIT_M * UNIT_M, N // UNIT_N * UNIT_N, K // UNIT_K * UNIT_K
    # And rows of 16 bytes, which are copied in vectors like those of 32.
    if UNIT_STRIDES[0] > 1:
        stride_am = stride_am // UNIT_STRIDES[0] * UNIT_STRIDES[0]
    if UNIT_STRIDES[1] > 1:
        stride_ak = stride_ak // UNIT_STRIDES[1] * UNIT_STRIDES[1]
    if UNIT_STRIDES[2] > 1:
        stride_bk = stride_bk // UNIT_STRIDES[2] * UNIT_STRIDES[2]
    if UNIT_STRIDES[3] > 1:
        stride_bn = stride_bn // UNIT_STRIDES[3] * UNIT_STRIDES[3]
    if UNIT_STRIDES[4] > 1:
        stride_cm = stride_cm // UNIT_STRIDES[4] * UNIT_STRIDES[4]
    if UNIT_STRIDES[5] > 1:
        stride_cn = stride_cn // UNIT_STRIDES[5] * UNIT_STRIDES[5]
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n
    part = 0
    if partials is None:
        # The kernel behind a product mostly reads C from its beginning, which is so stored last.
        tile = tiles - 1 - tl.program_id(0)
    else:
        tile, part = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    tile_m, tile_n = in_bands(tile, tiles_m, tiles_n, 1)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    k_tiles = tl.cdiv(K, BLOCK_K)
    begin, end = 0, k_tiles
    if partials is not None:
        begin, end = bounds(k_tiles, part, splits)

    # Offsets are elements, and 64-bit before any multiplication by a stride.
    row, col = offs_m.to(tl.int64), offs_n.to(tl.int64)
    k0_first = tl.cast(begin, tl.int64) * BLOCK_K
    k0 = k0_first + offs_k
    a_ptrs = a + row[:, None] * stride_am + k0[None, :] * stride_ak
    k_of_b, n_of_b = places(BLOCK_K, BLOCK_N, FLAT_B)
    n_of_b += tile_n * BLOCK_N
    b_ptrs = b + (k0_first + k_of_b) * stride_bk + n_of_b.to(tl.int64) * stride_bn
    a_step = tl.cast(stride_ak, tl.int64) * BLOCK_K
    b_step = tl.cast(stride_bk, tl.int64) * BLOCK_K

    if L2_PREFETCH:
        if stride_ak == 1:
            prefetch_l2(a, row, k0_first, M, K, stride_am, stride_ak, L2_PREFETCH * BLOCK_K)
        else:
            k = k0_first + tl.arange(0, L2_PREFETCH * BLOCK_K)
            prefetch_l2(a, k, tile_m * BLOCK_M, K, M, stride_ak, stride_am, BLOCK_M)
    launch_dependents_and_wait(PDL)

    in_m = (offs_m < M)[:, None] | (UNIT_M == BLOCK_M)
    in_n = (offs_n < N)[None, :] | (UNIT_N == BLOCK_N)
    in_n_of_b = (n_of_b < N) | (UNIT_N == BLOCK_N)
    acc = zeros(BLOCK_M, BLOCK_N, COMPUTE)
    # No part is empty: there are no more than steps of K. The maximum tells the compiler.
    for step in range(tl.maximum(end - begin, 1)):
        # Both operands are zero-filled past K: a stale Inf on one side would make 0 * Inf NaN.
        left = K - (begin + step) * BLOCK_K
        in_k = (offs_k < left)[None, :] | (UNIT_K == BLOCK_K)
        in_k_of_b = (k_of_b < left) | (UNIT_K == BLOCK_K)
        a_block = tl.load(a_ptrs, mask=in_m & in_k, other=0.0)
        b_block = tl.load(b_ptrs, mask=in_k_of_b & in_n_of_b, other=0.0)
        b_block = block_of(b_block, BLOCK_K, BLOCK_N, FLAT_B)
        acc = multiply_add(a_block, b_block, acc, EMULATED, COMPUTE)
        a_ptrs += a_step
        b_ptrs += b_step

    if partials is not None:
        store_partial(partials, tl.program_id(0), acc, BLOCK_M, BLOCK_N)
    else:
        c_ptrs = c + row[:, None] * stride_cm + col[None, :] * stride_cn
        tl.store(c_ptrs, narrow(acc, c.dtype.element_ty, EMULATED), mask=in_m & in_n)


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
    SPLITS: int,
    PDL: int,
    NUM_STAGES: int,
    NUM_WARPS: int,
    L2_PREFETCH: int = 0,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``."""
    if SWAP:
        a, b, c = b.mT, a.mT, c.mT
    (M, K), N = a.shape, b.shape[1]
    tiles, compute = cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N), compute_mode(fusion, 0)
    partials = None
    if SPLITS > 1:
        partials = workspace(tiles, SPLITS, BLOCK_M * BLOCK_N, a, summed_in(compute))
    strides: tuple[int | None, ...] = (*a.stride(), *b.stride(), *c.stride())
    stored: torch.Tensor | None = c
    if partials is not None:
        # Partial sums lie as they do whatever C is: one kernel serves all its types and layouts.
        strides, stored = (*strides[:4], None, None), None
    vector = copied_at_once(a.itemsize)
    constants = {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        **units(a, b, stored, BLOCK_M, BLOCK_N, BLOCK_K, vector),
        "UNIT_STRIDES": tuple(unit_of_stride(stride, vector) for stride in strides),
        **starts_early(PDL),
        "L2_PREFETCH": L2_PREFETCH,
        "FLAT_B": flat(b, compute, vector),
        "COMPUTE": compute,
        "EMULATED": emulated(a),
        "num_warps": NUM_WARPS,
        "num_stages": NUM_STAGES,
    }
    return (tiles * SPLITS,), (a, b, stored, partials, M, N, K, *strides, SPLITS), constants


def second(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    args: tuple[Any, ...],
    plan: Mapping[str, int],
) -> Step | None:
    """The launch that adds the parts, where K is divided."""
    if plan["SPLITS"] == 1:
        return None
    return add(args[3], c.mT if plan["SWAP"] else c, 0, {**plan, "GROUP_M": 1})


run = Rung(kernel, arguments, second=second)
"""C[M, N] = A[M, K] @ B[K, N] into ``c``; a fusion says how the product is summed, and no more.

Its plan: SWAP (1: B' A' is computed, so that BLOCK_M runs along N), BLOCK_M, BLOCK_N, BLOCK_K
(elements), SPLITS (parts of K, at most its steps), PDL (0 or 1: start before the kernel ahead has
ended; sm_90), NUM_STAGES, NUM_WARPS and optionally L2_PREFETCH, with PDL: steps of the wide operand
that are prefetched into L2 meanwhile.
"""
