"""Partial sums of tiles whose K is divided, and the second pass that adds them.

A split tile's SPLITS programs each store BLOCK_M x BLOCK_N partial sums in a workspace of the
accumulators' dtype, part after part: partials[part, split tile, BLOCK_M, BLOCK_N]. A second kernel
adds them in that dtype and in the order of the parts, whoever finished first, so that the same
inputs give the same bits; atomics would not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..host.recording import Step
from ..host.runtime import INTERPRETED, starts_early, tl, triton
from .dot import narrow
from .ordering import grouped

CHUNK = 512
"""Elements of C that one program of the second pass adds: a vector of 16 bytes to a thread."""

REGISTERS = 64
"""Of a thread of the second pass. Told nothing, ptxas keeps to 32, has two or three loads under way
at a time, and each further two wait for a trip to the L2. Partial sums of 8 bytes take two each."""


@triton.jit
def launch_dependents_and_wait(PDL: tl.constexpr):
    """With PDL (programmatic dependent launch), let the next kernel start, and wait for the end of
    the one before.

    Nothing that an earlier kernel wrote may be read, nor anything it reads be written, before.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def bounds(k_tiles, part, splits):
    """The first step of K of a part of ``splits``, and the one after its last."""
    return k_tiles * part // splits, k_tiles * (part + 1) // splits


@triton.jit
def store_partial(partials, slot, acc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store acc[BLOCK_M, BLOCK_N] as the slot-th block of the workspace."""
    at = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(partials + slot.to(tl.int64) * (BLOCK_M * BLOCK_N) + at, acc)


@triton.jit
def sum_of_parts(at, part, splits, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum of ``splits`` blocks, in their order and in their dtype.

    Args:
        at: pointers to the first block [ROWS, COLUMNS].
        part: elements from a block to the next, in 64 bits.
    """
    acc = tl.zeros((ROWS, COLUMNS), dtype=at.dtype.element_ty)
    # Eight parts are asked for before the first is added (see REGISTERS). How many there are is no
    # constant: each number would be a kernel. A block holds it, since the interpreter of Triton 3.8
    # and later takes no comparison of two scalars as a mask.
    count = tl.full((1, 1), splits, tl.int32)
    for first in range(0, splits, 8):
        x0 = tl.load(at)
        x1 = tl.load(at + part, mask=first + 1 < count, other=0.0)
        x2 = tl.load(at + 2 * part, mask=first + 2 < count, other=0.0)
        x3 = tl.load(at + 3 * part, mask=first + 3 < count, other=0.0)
        x4 = tl.load(at + 4 * part, mask=first + 4 < count, other=0.0)
        x5 = tl.load(at + 5 * part, mask=first + 5 < count, other=0.0)
        x6 = tl.load(at + 6 * part, mask=first + 6 < count, other=0.0)
        x7 = tl.load(at + 7 * part, mask=first + 7 < count, other=0.0)
        acc = (((acc + x0) + x1) + x2) + x3
        acc = (((acc + x4) + x5) + x6) + x7
        at += 8 * part
    return acc


@triton.jit(do_not_specialize=["M", "N", "first_tile", "splits"])
def add_kernel(
    partials,
    c,
    M,
    N,
    first_tile,
    splits,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
    EMULATED: tl.constexpr,
):
    launch_dependents_and_wait(PDL)
    chunks: tl.constexpr = BLOCK_M // ROWS
    program = tl.program_id(0)
    split_tile, chunk = program // chunks, program % chunks
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    split_tiles = tiles_m * tiles_n - first_tile
    tile_m, tile_n = grouped(first_tile + split_tile, tiles_m, tiles_n, GROUP_M)

    rows, columns = chunk * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    at = partials + split_tile.to(tl.int64) * (BLOCK_M * BLOCK_N)
    at += rows[:, None] * BLOCK_N + columns[None, :]
    part = split_tiles.to(tl.int64) * (BLOCK_M * BLOCK_N)
    acc = sum_of_parts(at, part, splits, ROWS, BLOCK_N)

    m, n = tile_m * BLOCK_M + rows, tile_n * BLOCK_N + columns
    c_ptrs = c + m.to(tl.int64)[:, None] * stride_cm + n.to(tl.int64)[None, :] * stride_cn
    value = narrow(acc, c.dtype.element_ty, EMULATED)
    tl.store(c_ptrs, value, mask=(m < M)[:, None] & (n < N)[None, :])


def workspace(
    split_tiles: int,
    splits: int,
    block: int,
    like: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Room for the partial sums, from torch's caching allocator: ordered on the current stream,
    and part of a graph's own pool during capture."""
    return torch.empty(split_tiles * splits * block, dtype=dtype, device=like.device)


def registers(partials: torch.Tensor) -> int:
    """Registers of a thread of a second pass that adds such partial sums."""
    return REGISTERS * max(1, partials.itemsize // 4)


def add(partials: torch.Tensor, c: torch.Tensor, first_tile: int, plan: Mapping[str, int]) -> Step:
    """The launch that adds partial sums to C's tiles, from ``first_tile`` on in grouped order."""
    block_m, block_n, pdl = plan["BLOCK_M"], plan["BLOCK_N"], plan["PDL"]
    split_tiles = partials.numel() // (block_m * block_n * plan["SPLITS"])
    rows = max(1, min(block_m, CHUNK // block_n))
    constants: dict[str, Any] = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "GROUP_M": plan["GROUP_M"],
        "ROWS": rows,
        **starts_early(pdl),
        "EMULATED": INTERPRETED and c.dtype == torch.bfloat16,
        "num_warps": 4,
        "maxnreg": registers(partials),
    }
    grid = (split_tiles * (block_m // rows),)
    args = (partials, c, *c.shape, first_tile, plan["SPLITS"], *c.stride())
    return add_kernel, grid, args, constants
