"""What both overlapped products have alike: their tiles, and what their launches are made of.

The rows of C are divided among the ranks, ``chunk`` rows to each but the last. Tiles never span two
ranks: each rank has cdiv(chunk, BLOCK_M) rows of tiles, of which the last may lie past its end.
"""

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import emulated, multiply_add, zeros
from ..device.epilogue import finish
from ..device.ordering import grouped
from ..host.descriptors import describe, stored
from ..host.runtime import INTERPRETED, cdiv, programs, tl, triton

STAMPS_AT = tl.constexpr(2)
"""Where the stamps of blocks begin, behind those of the call: for each block and each piece of the
work, in the order in which a rank comes to it, four: when it came there, when it had seen the flag
that it waits for, when its last tile was stored, when the last flag was set. A piece is a part of a
rank's rows (gather), or the tiles of an owner (scatter)."""


@triton.jit
def rows_of(M, chunk, rank):
    """Rows that a rank has of M."""
    return tl.minimum(tl.maximum(M - rank * chunk, 0), chunk)


@triton.jit
def place(within, rows, tiles_n, part_tiles, GROUP_M: tl.constexpr):
    """Number of a tile of one rank -> its part, tile row and tile column.

    ``rows``: rows of tiles of a rank, ``part_tiles`` of a part. The last part has what is left.
    """
    part = within // (part_tiles * tiles_n)
    first = part * part_tiles
    height = tl.minimum(rows - first, part_tiles)
    tile_m, tile_n = grouped(within - first * tiles_n, height, tiles_n, GROUP_M)
    return part, first + tile_m, tile_n


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
        if a_block.dtype.is_fp8() and not EMULATED:
            # BLOCK_K is 128: as often as sums of 8 bits have to leave the tensor core. Of
            # multiply_add's way to the same, ptxas serializes the wgmma here (C7514).
            acc += tl.dot(a_block, b_block, out_dtype=tl.float32)
        else:
            acc = multiply_add(a_block, b_block, acc, EMULATED)
    return acc


@triton.jit
def scaled(
    x, row, col, rows, N, scale_a, scale_b, ROW_SCALES_A: tl.constexpr, ROW_SCALES_B: tl.constexpr
):
    """x times the scales of its rows, those of ``rows``, and of its columns; x without scales."""
    if scale_a is not None or scale_b is not None:
        x = finish(
            x, row, col, rows, N, None, None, scale_a, scale_b, 1.0, 0.0, 1,
            ROW_SCALES_A, ROW_SCALES_B, False, "", False, False,
        )  # fmt: skip
    return x


@triton.jit
def halves(x):
    """The left and the right half of the columns: no data moves between threads."""
    parts = tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2))
    return tl.split(tl.permute(parts, (0, 2, 1)))


def ranks(call: Any) -> dict[str, Any]:
    """The number of ranks, and of lanes of which each looks at one."""
    return {"WORLD": call.world, "LANES": 1 << (call.world - 1).bit_length()}


def shared(
    b: torch.Tensor,
    epilogue: str,
    call: Any,
    *,
    BLOCK_M: int,
    BLOCK_N: int,
    BLOCK_K: int,
    GROUP_M: int,
    NUM_STAGES: int,
    NUM_WARPS: int,
) -> tuple[tuple[int], Any, tuple[Any, ...], dict[str, Any]]:
    """Of a launch of either kernel: its grid, B as it is read, the last arguments, the constants.

    Args:
        b: [K, N], stored either way.
        call: with world, chunk, trouble (int32[4]), limit, debug and spare (SMs that stay free).
    """
    transposed = stored(b) == "t"
    tiles = cdiv(call.chunk, BLOCK_M) * cdiv(b.shape[1], BLOCK_N) * call.world
    constants = {
        **ranks(call),
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        "GROUP_M": GROUP_M,
        "B_TRANSPOSED": transposed,
        "ACTIVATION": epilogue,
        "EMULATED": emulated(b),
        "INTERPRETED": INTERPRETED,
        "num_warps": NUM_WARPS,
        "num_stages": NUM_STAGES,
    }
    b_read = describe(b, (BLOCK_K, BLOCK_N), transposed)
    waits = (call.trouble, call.limit, int(call.debug))
    return (min(programs(b) - call.spare, tiles),), b_read, waits, constants
