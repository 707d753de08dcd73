"""descriptor: blocks copied by the TMA unit through tensor descriptors; persistent.

    C[M, N] = A[M, K] @ B[K, N]

Adds:     tensor descriptors. The host describes A, B and C once (address, shape, strides, block);
          one thread then asks for a whole block by its coordinates (UTMALDG), the unit computes
          the addresses, fills with zeros past the edges, and stores C the same way (UTMASTG).
          The threads do nothing but multiply.
          The epilogue leaves in two halves of BLOCK_N / 2 columns: C's staging buffer shrinks from
          64 to 32 KB for 128 x 256 in 16 bits, which is room for a stage of A and B.
Missing:  the threads that multiply also wait for the loads and store C. Producer warps apart from
          consumers (warp specialization) and clusters with multicast are beyond this ladder.

Tiles:    C in block tiles of BLOCK_M x BLOCK_N, many a program; K in steps of BLOCK_K, each a
          stage; wgmma m64nBLOCK_Nk16 by warpgroups of four warps.

Storage:  A descriptor's last dimension is the contiguous one. An operand stored transposed is
          described as it lies, [K, M] or [N, K], and its block transposed in the kernel, where
          wgmma reads either order from shared memory: no copy. A column-major C is computed as
          its transpose, C' = B' A', by swapping the operands on the host.
"""

from __future__ import annotations

from typing import Any

import torch

from .descriptors import describe
from .dot import multiply_add, narrow
from .launching import launch
from .ordering import grouped
from .runtime import INTERPRETED, cdiv, programs, tl, triton
from .storage import letter


@triton.jit
def kernel(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    FLATTEN: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    BITS: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    k_tiles = tl.maximum(tl.cdiv(K, BLOCK_K), 1)

    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FLATTEN):
        tile_m, tile_n = grouped(tile, tiles_m, tiles_n, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(k_tiles):
            k = step * BLOCK_K
            # The unit writes zeros past the edges of A and B, so the K tail adds 0 * 0.
            a_block = a.load([k, m]).T if A_TRANSPOSED else a.load([m, k])
            b_block = b.load([n, k]).T if B_TRANSPOSED else b.load([k, n])
            acc = multiply_add(a_block, b_block, acc, BITS)

        # Columns j and j + BLOCK_N / 2 lie in one thread after the permutation: splitting there
        # moves no data between threads.
        halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        c.store([m, n], narrow(left, c.dtype, BITS))
        c.store([m, n + BLOCK_N // 2], narrow(right, c.dtype, BITS))


def arguments(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    BLOCK_M: int,
    BLOCK_N: int,
    BLOCK_K: int,
    GROUP_M: int,
    FLATTEN: int,
    NUM_STAGES: int,
    NUM_WARPS: int,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``."""
    if letter(c.shape, c.stride()) == "t":
        a, b, c = b.mT, a.mT, c.mT
    (M, K), N = a.shape, b.shape[1]
    a_transposed = letter(a.shape, a.stride()) == "t"
    b_transposed = letter(b.shape, b.stride()) == "t"
    descriptors = (
        describe(a, (BLOCK_M, BLOCK_K), a_transposed),
        describe(b, (BLOCK_K, BLOCK_N), b_transposed),
        describe(c, (BLOCK_M, BLOCK_N // 2), False),
    )
    grid = (min(programs(a), cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)),)
    constants = {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        "GROUP_M": GROUP_M,
        "FLATTEN": bool(FLATTEN),
        "A_TRANSPOSED": a_transposed,
        "B_TRANSPOSED": b_transposed,
        "BITS": INTERPRETED and a.dtype == torch.bfloat16,
        "num_warps": NUM_WARPS,
        "num_stages": NUM_STAGES,
    }
    return grid, (*descriptors, M, N, K), constants


def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, **plan: int) -> None:
    """C[M, N] = A[M, K] @ B[K, N] into ``c``; float16 or bfloat16 in, the same or float32 out.

    Args:
        plan: BLOCK_M, BLOCK_N, BLOCK_K (elements), GROUP_M (tile rows), FLATTEN (0 or 1),
            NUM_STAGES and NUM_WARPS.

    Raises:
        RuntimeError: the operands are on the CPU and the interpreter is off.
    """
    launch(kernel, arguments, a, b, c, None, plan)
