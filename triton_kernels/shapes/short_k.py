"""short_k: float32 and float64 over a K of a few elements, on CUDA cores.

    C[M, N] = f(alpha A[M, K] @ B[K, N] + beta C[M, N] + bias[N]), for each of a batch

Adds:     outer products. tl.dot multiplies 16 elements along K at least and a step has 32, whatever
          there is. Here a program multiplies as often as K asks for: a column of A by a row of B,
          each element of which a thread loads to a register. What takes the time is C, and a warp
          stores neighbours of a row, wherever rows begin. Sums are float32's own, in order of K,
          which is more than tf32 and tf32x3 promise. A C by columns is computed as C' = B' A'.
Missing:  a K beyond 64. Each element of A and B is loaded by every warp that multiplies it, from
          the L1, so that a longer K costs more than a tensor core's step; a B that lies along K
          costs a line for each of its columns.

Tiles:    C in BLOCK_M x BLOCK_N, one a program; BLOCK_K elements along K are on their way at once.
"""

from __future__ import annotations

from typing import Any

import torch

from ..device.epilogue import finish, read
from ..device.split_k_partials import launch_dependents_and_wait
from ..host.fused_arguments import batch_size, batch_strides, finishes, operands
from ..host.launching import Rung
from ..host.runtime import cdiv, starts_early, tl, triton
from ..host.units import COPIED

REGISTERS = 128
"""Of a thread, at most: so that two programs of eight warps share an SM. Told nothing, ptxas takes
up to 255, and one waits while the other stores."""


@triton.jit(
    do_not_specialize=[
        "M", "N", "K", "stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn",
        "batch_a", "batch_b", "batch_c",
    ],
    do_not_specialize_on_alignment=["a", "b", "c"],
)  # fmt: skip
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
    A_ALONG: tl.constexpr,
    B_ALONG: tl.constexpr,
    C_ALONG: tl.constexpr,
    UNIT: tl.constexpr,
    PDL: tl.constexpr,
    FUSED: tl.constexpr,
    BATCHED: tl.constexpr,
    ROW_SCALES_A: tl.constexpr,
    ROW_SCALES_B: tl.constexpr,
    BIAS_ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    # Strides as they are, of which the compiler now knows which are 1, and what whole vectors are.
    if A_ALONG == "k":
        stride_ak = 1
    elif A_ALONG == "m":
        stride_am = 1
    if B_ALONG == "k":
        stride_bk = 1
    elif B_ALONG == "n":
        stride_bn = 1
    if C_ALONG == "n":
        stride_cn = 1
    if UNIT > 1:
        N, stride_bk = N // UNIT * UNIT, stride_bk // UNIT * UNIT
        stride_cm = stride_cm // UNIT * UNIT
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    # The kernel behind a product mostly reads C from its beginning, which is so stored last.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    if BATCHED:
        batch = (tile // (tiles_m * tiles_n)).to(tl.int64)
        tile = tile % (tiles_m * tiles_n)
        a += batch * batch_a
        b += batch * batch_b
        c += batch * batch_c
        if c_in is not None:
            c_in += batch * batch_in
    # Columns in groups of neighbours, a warp's. Offsets are elements, and 64-bit before any
    # multiplication by a stride.
    WIDTH: tl.constexpr = min(BLOCK_N, 32 * UNIT)
    GROUPS: tl.constexpr = BLOCK_N // WIDTH
    m0, n0 = (tile // tiles_n).to(tl.int64) * BLOCK_M, (tile % tiles_n).to(tl.int64) * BLOCK_N
    down = tl.arange(0, BLOCK_M)
    along = tl.arange(0, GROUPS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    in_m = down < tl.minimum(M - m0, BLOCK_M).to(tl.int32)
    in_n = along < tl.minimum(N - n0, BLOCK_N).to(tl.int32)
    of_b, of_c = b + n0 * stride_bn, c + m0 * stride_cm + n0 * stride_cn
    if UNIT > 1:
        of_b, of_c = tl.multiple_of(of_b, 16), tl.multiple_of(of_c, 16)
    a_ptrs = a + (m0 + down) * stride_am
    b_ptrs = of_b + along.to(tl.int64) * stride_bn
    k_of_a, k_of_b = tl.cast(stride_ak, tl.int64), tl.cast(stride_bk, tl.int64)
    launch_dependents_and_wait(PDL)

    acc = no_sums(of_c, K, GROUPS, BLOCK_M, WIDTH, UNIT)
    for k in range(0, K, BLOCK_K):
        for i in tl.static_range(BLOCK_K):
            # Both are zero past K: a stale Inf on one side would make 0 * Inf NaN.
            x = tl.load(a_ptrs + i * k_of_a, mask=in_m & (k + i < K), other=0.0)
            y = tl.load(b_ptrs + i * k_of_b, mask=in_n & (k + i < K), other=0.0)
            acc += x[None, :, None] * y[:, None, :]
        a_ptrs += BLOCK_K * k_of_a
        b_ptrs += BLOCK_K * k_of_b

    if FUSED:
        before, row, col = None, m0 + down, n0 + tl.arange(0, BLOCK_N)
        if c_in is not None:
            before = read(c_in, row, col, M, N, stride_im, stride_in)
        acc = finish(
            tl.reshape(tl.permute(acc, (1, 0, 2)), (BLOCK_M, BLOCK_N)), row, col, M, N, before,
            bias, scale_a, scale_b, alpha, beta, stride_bias, ROW_SCALES_A, ROW_SCALES_B,
            BIAS_ROWS, ACTIVATION, False, INTERPRETED,
        )  # fmt: skip
        acc = tl.permute(tl.reshape(acc, (BLOCK_M, GROUPS, WIDTH)), (1, 0, 2))
    c_ptrs = of_c + down.to(tl.int64)[None, :, None] * stride_cm
    c_ptrs += along.to(tl.int64)[:, None, :] * stride_cn
    tl.store(c_ptrs, acc, mask=in_m[None, :, None] & in_n[:, None, :])


@triton.jit
def no_sums(
    of_c, K, GROUPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr
):
    """Zeros of C's dtype, [GROUPS, ROWS, WIDTH], which are kept by the threads that store such
    blocks: a load of them, that would be of K < 1, has the compiler choose these. Else it takes
    threads that have whole columns, each of which loads all of A."""
    group = tl.arange(0, GROUPS)[:, None, None] * (ROWS * WIDTH)
    at = group + tl.arange(0, ROWS)[None, :, None] * WIDTH
    column = tl.arange(0, WIDTH)[None, None, :]
    return tl.load(of_c + at + column * (1 if UNIT > 1 else K), mask=at + column < 0, other=0.0)


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
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``."""
    if SWAP:
        a, b, c = b.mT, a.mT, c.mT
    (M, K), N = a.shape[-2:], b.shape[-1]
    fused, fused_constants = operands(fusion, bool(SWAP))
    constants = {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        "A_ALONG": along(a, "mk"),
        "B_ALONG": along(b, "kn"),
        "C_ALONG": along(c, "mn"),
        "UNIT": unit(b, c),
        **starts_early(PDL),
        "FUSED": finishes(fusion),
        "BATCHED": c.dim() == 3,
        **fused_constants,
        "num_warps": NUM_WARPS,
        "maxnreg": REGISTERS,
    }
    strides = (*a.stride()[-2:], *b.stride()[-2:], *c.stride()[-2:])
    grid = (batch_size(c) * cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N),)
    return grid, (a, b, c, M, N, K, *strides, *fused, *batch_strides(a, b, c, fusion)), constants


def along(x: torch.Tensor, names: str) -> str:
    """Which side of a matrix has its neighbours in memory, the second if both have; "" if none."""
    return next((names[side] for side in (-1, -2) if x.stride(side) == 1), "")


def unit(b: torch.Tensor, c: torch.Tensor) -> int:
    """Elements that a thread loads of B, and stores of C, at once: a vector where rows of both are
    whole ones, else 1."""
    vector = COPIED // c.itemsize
    for x in (b, c):
        apart = [*x.stride()[:-2], x.stride(-2) if x.shape[-2] > 1 else 0]
        whole = x.shape[-1] % vector == 0 and all(stride % vector == 0 for stride in apart)
        if x.stride(-1) != 1 or not whole or x.data_ptr() % COPIED:
            return 1
    return vector


run = Rung(kernel, arguments)
"""C[M, N] = A[M, K] @ B[K, N] into ``c``, or the same for each of a batch [batch, M, K].

Its plan: SWAP (1: B' A' is computed, so that BLOCK_M runs along N), BLOCK_M, BLOCK_N, BLOCK_K
(elements), PDL (0 or 1: start before the kernel ahead has ended; sm_90) and NUM_WARPS.
"""
