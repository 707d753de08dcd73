"""split_k: tiles that do not fill the last wave of SMs are divided along K.

    C[M, N] = A[M, K] @ B[K, N]
    tiles 0 .. F - 1 whole, as in `descriptor`; tiles F .. as SPLITS parts of K each

Adds:     parts. P SMs take whole tiles in waves of P; the R tiles that remain would leave P - R of
          them idle for as long as a whole tile takes. Here they become R * SPLITS parts of about
          K / SPLITS, which fill the wave and end early. With few tiles and a long K every tile is
          split (F = 0): 256 x 256 x 16384 has four tiles of 128 x 128 for 132 SMs, and 32 parts
          of each.
          The parts store float32 partial sums in a workspace and a second pass adds them in order:
          deterministic, at the price of writing and reading 4 bytes a part and element.
          Whole tiles in full waves and the rest in parts is also what stream-K comes to in practice
          (Osama et al., PPoPP 2023, its hybrid schedules); parts of one length, and a second pass
          in place of programs that wait for one another.
          Programmatic dependent launch, as in `skinny`.
Missing:  the threads that multiply also wait for the loads and store C (`warp_specialized`).

Tiles:    C in block tiles of BLOCK_M x BLOCK_N, whole or in parts, many a program; K in steps of
          BLOCK_K, each a stage; wgmma m64nBLOCK_Nk16 by warpgroups of four warps.

Storage:  as in `descriptor`, and C' = B' A' is computed where SWAP asks for it, with C' stored
          transposed: the thin side of a skinny problem then is wgmma's n.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..device.bands import in_bands
from ..device.dot import multiply_add, narrow
from ..device.epilogue import prefetch_l2
from ..device.split_k_partials import (
    add,
    bounds,
    launch_dependents_and_wait,
    store_partial,
    workspace,
)
from ..host.descriptors import describe
from ..host.launching import Rung
from ..host.recording import Step
from ..host.runtime import INTERPRETED, cdiv, programs, starts_early, tl, triton
from ..host.storage import letter


@triton.jit
def store(
    c,
    acc,
    m,
    n,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    C_TRANSPOSED: tl.constexpr,
    EMULATED: tl.constexpr,
):
    """A whole tile by TMA, in two halves of its columns as in `descriptor`."""
    halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
    left, right = tl.split(halves)
    if C_TRANSPOSED:
        c.store([n, m], narrow(left, c.dtype, EMULATED).T)
        c.store([n + BLOCK_N // 2, m], narrow(right, c.dtype, EMULATED).T)
    else:
        c.store([m, n], narrow(left, c.dtype, EMULATED))
        c.store([m, n + BLOCK_N // 2], narrow(right, c.dtype, EMULATED))


@triton.jit
def prefetch_block(
    x, row, k, R, K, pitch, ROWS: tl.constexpr, DEPTH: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """Have x[row : row + ROWS, k : k + DEPTH] of x[R, K] prefetched into L2."""
    if TRANSPOSED:
        prefetch_l2(x, (k + tl.arange(0, DEPTH)).to(tl.int64), row, K, R, pitch, 1, ROWS)
    else:
        prefetch_l2(x, (row + tl.arange(0, ROWS)).to(tl.int64), k, R, K, pitch, 1, DEPTH)


@triton.jit(do_not_specialize=["M", "N", "K", "whole", "splits"])
def kernel(
    a,
    b,
    c,
    partials,
    M,
    N,
    K,
    whole,
    splits,
    a_at,
    b_at,
    pitch_a,
    pitch_b,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    WHOLE: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    C_TRANSPOSED: tl.constexpr,
    PDL: tl.constexpr,
    L2_PREFETCH: tl.constexpr,
    EMULATED: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    split_tiles = tiles_m * tiles_n - whole
    k_tiles = tl.cdiv(K, BLOCK_K)

    if L2_PREFETCH:
        tile, first = tl.program_id(0), 0
        if partials is not None:  # noqa: SIM102
            if tile >= whole:
                part = (tile - whole) // split_tiles
                first = bounds(k_tiles, part, splits)[0] * BLOCK_K
                tile = whole + (tile - whole) % split_tiles
        tile_m, tile_n = in_bands(tile, tiles_m, tiles_n, GROUP_M)
        # Programs that share a block of an operand prefetch different steps of it.
        DEPTH: tl.constexpr = L2_PREFETCH * BLOCK_K
        k = first + tile_n * DEPTH
        prefetch_block(a_at, tile_m * BLOCK_M, k, M, K, pitch_a, BLOCK_M, DEPTH, A_TRANSPOSED)
        k = first + tile_m * DEPTH
        prefetch_block(b_at, tile_n * BLOCK_N, k, N, K, pitch_b, BLOCK_N, DEPTH, not B_TRANSPOSED)
    launch_dependents_and_wait(PDL)
    items = whole
    if partials is not None:
        items += split_tiles * splits
    for item in tl.range(tl.program_id(0), items, tl.num_programs(0)):
        # Whole tiles come first, then part 0 of every split tile, part 1, ...: programs that run
        # together read the same steps of K.
        tile, begin, end = item, 0, k_tiles
        slot = item - whole
        if partials is not None:  # noqa: SIM102 (one condition is constant, the other is not)
            if slot >= 0:
                tile = whole + slot % split_tiles
                part = slot // split_tiles
                begin, end = bounds(k_tiles, part, splits)
        tile_m, tile_n = in_bands(tile, tiles_m, tiles_n, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(begin, tl.maximum(end, begin + 1)):
            k = step * BLOCK_K
            # The unit writes zeros past the edges of A and B, so the K tail adds 0 * 0.
            a_block = a.load([k, m]).T if A_TRANSPOSED else a.load([m, k])
            b_block = b.load([n, k]).T if B_TRANSPOSED else b.load([k, n])
            acc = multiply_add(a_block, b_block, acc, EMULATED)

        if partials is None:
            store(c, acc, m, n, BLOCK_M, BLOCK_N, C_TRANSPOSED, EMULATED)
        elif slot >= 0:
            store_partial(partials, slot, acc, BLOCK_M, BLOCK_N)
        elif WHOLE:
            store(c, acc, m, n, BLOCK_M, BLOCK_N, C_TRANSPOSED, EMULATED)


def arguments(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    SWAP: int,
    BLOCK_M: int,
    BLOCK_N: int,
    BLOCK_K: int,
    GROUP_M: int,
    WHOLE: int,
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
    a_transposed, b_transposed, c_transposed = (
        letter(x.shape, x.stride()) == "t" for x in (a, b, c)
    )
    split_tiles = cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N) - WHOLE
    partials = workspace(split_tiles, SPLITS, BLOCK_M * BLOCK_N, a) if SPLITS > 1 else None
    descriptors = (
        describe(a, (BLOCK_M, BLOCK_K), a_transposed),
        describe(b, (BLOCK_K, BLOCK_N), b_transposed),
        describe(c, (BLOCK_M, BLOCK_N // 2), c_transposed) if WHOLE else None,
    )
    grid = (min(programs(a), WHOLE + split_tiles * SPLITS),)
    constants = {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        "GROUP_M": GROUP_M,
        "WHOLE": WHOLE > 0,
        "A_TRANSPOSED": a_transposed,
        "B_TRANSPOSED": b_transposed,
        "C_TRANSPOSED": c_transposed,
        **starts_early(PDL),
        "L2_PREFETCH": L2_PREFETCH,
        "EMULATED": INTERPRETED and a.dtype == torch.bfloat16,
        "num_warps": NUM_WARPS,
        "num_stages": NUM_STAGES,
    }
    prefetched = (None, None, 0, 0)
    if L2_PREFETCH:
        prefetched = (a, b, max(a.stride()), max(b.stride()))
    return grid, (*descriptors, partials, M, N, K, WHOLE, SPLITS, *prefetched), constants


def second(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    args: tuple[Any, ...],
    plan: Mapping[str, int],
) -> Step | None:
    """The launch that adds the parts, where tiles are split."""
    if plan["SPLITS"] == 1:
        return None
    return add(args[3], c.mT if plan["SWAP"] else c, plan["WHOLE"], plan)


run = Rung(kernel, arguments, second=second)
"""C[M, N] = A[M, K] @ B[K, N] into ``c``; float16 or bfloat16 in, the same or float32 out.

Its plan: SWAP (1: B' A' is computed, so that BLOCK_M runs along N), BLOCK_M, BLOCK_N, BLOCK_K
(elements), GROUP_M (tile rows), WHOLE (tiles that are not split), SPLITS (parts of K of the others,
at most its steps), PDL (0 or 1: start before the kernel ahead has ended), NUM_STAGES, NUM_WARPS
and optionally L2_PREFETCH, with PDL: steps of A and B that are prefetched into L2 meanwhile.
"""
