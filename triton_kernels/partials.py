"""Partial sums of tiles whose K is divided, and the second pass that adds them.

A split tile's SPLITS programs each leave BLOCK_M x BLOCK_N float32 sums in a workspace, part after
part: partials[part, split tile, BLOCK_M, BLOCK_N]. A second kernel adds them in the order of the
parts, whoever finished first, so that the same inputs give the same bits; atomics would not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .dot import narrow
from .launching import Step, counts
from .ordering import grouped
from .runtime import INTERPRETED, programs, tl, triton

MOST_MEETING = 22
"""Parts of a tile that can meet: bits 8 to 29 of its state."""

PATIENCE = tl.constexpr(256)
"""How often a part asks for the others, about 0.7 us each, before it leaves."""

CHUNK = 1024
"""Elements of C that one program of the second pass adds."""


@triton.jit
def leave(partials, slot, acc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store acc[BLOCK_M, BLOCK_N] as the slot-th block of the workspace."""
    at = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(partials + slot.to(tl.int64) * (BLOCK_M * BLOCK_N) + at, acc)


@triton.jit
def meet(
    partials,
    arrived,
    c,
    M,
    N,
    tile,
    m,
    n,
    part,
    split_tiles,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    BITS: tl.constexpr,
):
    """Wait for the other parts of a tile, then add this part's share of it, ROWS rows, into C.

    A part that has waited too long, because the others are not running yet, leaves and says so; the
    last to arrive adds the shares of those. So no launch depends on another's progress, and every
    element is added in the order of the parts, whoever adds it.

    Args:
        arrived: two words a split tile, zero before and after every launch. The first holds how
            many parts have arrived, and from bit 8 on which have left early; the second how many
            have left.
        tile: of the split ones. m, n: its first row and column.
    """
    state, gone = arrived + 2 * tile, arrived + 2 * tile + 1
    tl.debug_barrier()  # every thread's sums are stored before one of them says so
    before = tl.atomic_add(state, 1, sem="acq_rel")
    last = (before & 255) == SPLITS - 1
    now = before + 1
    patience = PATIENCE
    while ((now & 255) < SPLITS) & (patience > 0):
        now = tl.atomic_add(state, 0, sem="acquire")
        patience -= 1
    if (now & 255) < SPLITS:
        now = tl.atomic_add(state, 256 << part, sem="acq_rel")
    shares = tl.where((now & 255) == SPLITS, 1 << part, 0)
    if last:
        shares |= before >> 8
    share = 0
    while shares != 0:
        if (shares & 1) * (share * ROWS < BLOCK_M):
            rows, columns = share * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
            at = partials + tile.to(tl.int64) * (BLOCK_M * BLOCK_N)
            at += rows[:, None] * BLOCK_N + columns[None, :]
            step = split_tiles.to(tl.int64) * (BLOCK_M * BLOCK_N)
            acc = tl.load(at, cache_modifier=".cg")
            for _ in tl.static_range(SPLITS - 1):
                at += step
                acc += tl.load(at, cache_modifier=".cg")
            row, col = (m + rows).to(tl.int64)[:, None], (n + columns).to(tl.int64)[None, :]
            value = narrow(acc, c.dtype.element_ty, BITS)
            tl.store(c + row * stride_cm + col * stride_cn, value, mask=(row < M) & (col < N))
        shares >>= 1
        share += 1
    if tl.atomic_add(gone, 1, sem="relaxed") == SPLITS - 1:
        tl.atomic_xchg(gone, 0, sem="relaxed")
        tl.atomic_xchg(state, 0, sem="relaxed")


@triton.jit
def add_kernel(
    partials,
    c,
    M,
    N,
    first_tile,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
    BITS: tl.constexpr,
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
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
    acc = tl.load(at)
    for _ in tl.static_range(SPLITS - 1):
        at += part
        acc += tl.load(at)

    m, n = tile_m * BLOCK_M + rows, tile_n * BLOCK_N + columns
    c_ptrs = c + m.to(tl.int64)[:, None] * stride_cm + n.to(tl.int64)[None, :] * stride_cn
    value = narrow(acc, c.dtype.element_ty, BITS)
    tl.store(c_ptrs, value, mask=(m < M)[:, None] & (n < N)[None, :])


def share(block_m: int, splits: int) -> int:
    """Rows of a tile that each part adds: a power of two, so that the parts cover the tile."""
    return 1 << (-(-block_m // splits) - 1).bit_length()


def meeting(items: int, splits: int, like: torch.Tensor) -> torch.Tensor | None:
    """Counters for parts that meet in their own launch; None where K is whole, or a second pass
    adds them: not all parts run at once, or there are more than the state has bits for."""
    if splits == 1 or INTERPRETED or items > programs(like) or splits > MOST_MEETING:
        return None
    return counts(like)


def workspace(split_tiles: int, splits: int, block: int, like: torch.Tensor) -> torch.Tensor:
    """Room for the partial sums, from torch's caching allocator: ordered on the current stream,
    and part of a graph's own pool during capture."""
    return torch.empty(split_tiles * splits * block, dtype=torch.float32, device=like.device)


def add(partials: torch.Tensor, c: torch.Tensor, first_tile: int, plan: Mapping[str, int]) -> Step:
    """The launch that makes C's tiles, from ``first_tile`` on in grouped order, of their parts."""
    block_m, block_n, early = plan["BLOCK_M"], plan["BLOCK_N"], plan["EARLY"]
    split_tiles = partials.numel() // (block_m * block_n * plan["SPLITS"])
    rows = max(1, min(block_m, CHUNK // block_n))
    constants: dict[str, Any] = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "GROUP_M": plan["GROUP_M"],
        "SPLITS": plan["SPLITS"],
        "ROWS": rows,
        "EARLY": bool(early),
        "BITS": INTERPRETED and c.dtype == torch.bfloat16,
        "num_warps": 4,
        **({"launch_pdl": True} if early else {}),
    }
    grid = (split_tiles * (block_m // rows),)
    return add_kernel, grid, (partials, c, *c.shape, first_tile, *c.stride()), constants
