"""What both overlapped products do with a tile: where it lies, its sum over K, its way out.

The rows of C are divided among the ranks, ``chunk`` rows to each but the last. Tiles never span two
ranks: each rank has cdiv(chunk, BLOCK_M) rows of tiles, of which the last may lie past its end.
"""

from __future__ import annotations

from ..device.dot import multiply_add, zeros
from ..host.runtime import tl, triton


@triton.jit
def rows_of(M, chunk, rank):
    """Rows that a rank has of M."""
    return tl.minimum(tl.maximum(M - rank * chunk, 0), chunk)


@triton.jit
def multiply(
    a,
    b,
    m,
    n,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    EMULATED: tl.constexpr,
):
    """A[m:, :] @ B[:, n:] of two descriptors, BLOCK_M x BLOCK_N."""
    acc = zeros(BLOCK_M, BLOCK_N, "float32")
    for step in range(tl.maximum(tl.cdiv(K, BLOCK_K), 1)):
        k = step * BLOCK_K
        a_block = a.load([m, k])
        if B_TRANSPOSED:  # noqa: SIM108 (Triton compiles no conditional expression of blocks)
            b_block = b.load([n, k]).T
        else:
            b_block = b.load([k, n])
        acc = multiply_add(a_block, b_block, acc, EMULATED)
    return acc


@triton.jit
def halves(x):
    """The left and the right half of the columns: no data moves between threads."""
    parts = tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2))
    return tl.split(tl.permute(parts, (0, 2, 1)))
