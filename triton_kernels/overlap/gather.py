"""gather: C = A @ B while the rows of A still arrive from the peers.

    C[M, N] = f(A[M, K] @ B[K, N] + bias[N]); A's rows lie on WORLD ranks, ``chunk`` rows each

Adds:     to `descriptor`, a wait. A program begins with tiles of its own rank's rows, which it
          reads where they lie. Then it visits the tiles of rank - 1, rank - 2, ...: in
          this order those rows arrive in ``gathered``. They come in parts of part_tiles rows of
          tiles, each with a flag, for which a program waits at the first of its tiles in the part.
Missing:  the loads of a tile begin when the one before is stored: no warps of their own.

Order:    a part at a time, within it grouped. All programs move through the parts together, so that
          what has arrived is used before what has not.

Memory:   flags and fences are those of signals.py. Rows past the end of a rank's are the next
          rank's or nothing that was ever written: they make rows of C that are not stored.
"""

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import narrow
from ..device.epilogue import finish
from ..host.descriptors import describe
from ..host.runtime import tl, triton
from .signals import begin as begin_call
from .signals import count_call, fence_async, stamp, wait
from .tile import STAMPS_AT, halves, multiply, place, rows_of, shared


@triton.jit
def store(
    acc,
    c,
    row,
    m,
    n,
    rows,
    N,
    stride_cm,
    bias,
    scale_a,
    scale_b,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROW_SCALES_A: tl.constexpr,
    ROW_SCALES_B: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EMULATED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """f(scales * acc + bias) to C's rows from ``row`` + m on, those of ``rows``; in two halves."""
    HALF: tl.constexpr = BLOCK_N // 2
    left, right = halves(acc)
    offs_m = (m + tl.arange(0, BLOCK_M)).to(tl.int64)
    lines = c + (row + offs_m)[:, None] * stride_cm
    if ROW_SCALES_A:
        scale_a += row
    for half in tl.static_range(2):
        x = left if half == 0 else right
        col = (n + half * HALF + tl.arange(0, HALF)).to(tl.int64)
        x = finish(
            x, offs_m, col, rows, N, None, bias, scale_a, scale_b,
            1.0, 0.0, 1, ROW_SCALES_A, ROW_SCALES_B, False, ACTIVATION, EMULATED, INTERPRETED,
        )  # fmt: skip
        inside = (offs_m < rows)[:, None] & (col < N)[None, :]
        tl.store(lines + col[None, :], narrow(x, c.dtype.element_ty, EMULATED), mask=inside)


@triton.jit(
    do_not_specialize=[
        *("M", "K", "chunk", "rank", "part_tiles", "begins", "done_at", "limit", "reports"),
    ]
)
def kernel(
    own,
    gathered,
    b,
    c,
    M,
    N,
    K,
    chunk,
    rank,
    part_tiles,
    stride_cm,
    bias,
    flags,
    epoch,
    begins,
    words,
    done_at,
    last,
    count,
    trouble,
    limit,
    reports,
    WORLD: tl.constexpr,
    LANES: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EMULATED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    scale_a=None,
    scale_b=None,
    ROW_SCALES_A: tl.constexpr = False,
    ROW_SCALES_B: tl.constexpr = False,
    stamps=None,
):
    tiles_m, tiles_n = tl.cdiv(chunk, BLOCK_M), tl.cdiv(N, BLOCK_N)
    each = tiles_m * tiles_n  # tiles of a rank
    program, step = tl.program_id(0), tl.num_programs(0)
    now = begin_call(begins, words, done_at, epoch, rank, stamps, WORLD, LANES, INTERPRETED)

    rows = rows_of(M, chunk, rank)
    first = (rank * chunk).to(tl.int64)
    for tile in range(program, each, step):
        part, tile_m, tile_n = place(tile, tiles_m, tiles_n, part_tiles, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        if m < rows:
            at = STAMPS_AT + program * WORLD * PARTS * 4  # own rows count as one part
            if tile == program:
                stamp(stamps, at, INTERPRETED)
                stamp(stamps, at + 1, INTERPRETED)
            acc = multiply(own, b, m, n, K, BLOCK_M, BLOCK_N, BLOCK_K, B_TRANSPOSED, EMULATED)
            store(
                acc, c, first, m, n, rows, N, stride_cm, bias, scale_a, scale_b, BLOCK_M, BLOCK_N,
                ROW_SCALES_A, ROW_SCALES_B, ACTIVATION, EMULATED, INTERPRETED,
            )  # fmt: skip
            stamp(stamps, at + 2, INTERPRETED)

    here = -1  # the last part that was waited for
    begin = program + tl.cdiv(tl.maximum(each - program, 0), step) * step
    for tile in range(begin, each * WORLD, step):
        source = (rank - tile // each + WORLD) % WORLD
        part, tile_m, tile_n = place(tile % each, tiles_m, tiles_n, part_tiles, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        rows = rows_of(M, chunk, source)
        first = (source * chunk).to(tl.int64)
        if m < rows:
            number = source * PARTS + part
            at = STAMPS_AT + ((program * WORLD + tile // each) * PARTS + part) * 4
            if number != here:
                stamp(stamps, at, INTERPRETED)
                wait(flags + number, now, limit, reports, trouble, source, part)
                if not INTERPRETED:
                    fence_async()
                stamp(stamps, at + 1, INTERPRETED)
                here = number
            acc = multiply(
                gathered, b, source * chunk + m, n, K,
                BLOCK_M, BLOCK_N, BLOCK_K, B_TRANSPOSED, EMULATED,
            )  # fmt: skip
            store(
                acc, c, first, m, n, rows, N, stride_cm, bias, scale_a, scale_b, BLOCK_M, BLOCK_N,
                ROW_SCALES_A, ROW_SCALES_B, ACTIVATION, EMULATED, INTERPRETED,
            )  # fmt: skip
            stamp(stamps, at + 2, INTERPRETED)
    if begins != 0:
        count_call(count, step, epoch, last, now)


def arguments(
    own: torch.Tensor,
    gathered: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    bias: torch.Tensor | None,
    epilogue: str,
    call: Any,
    *,
    PARTS: int,
    part_tiles: int,
    **config: int,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``.

    Args:
        own: [rows of this rank, K], contiguous.
        gathered: [WORLD * chunk, K], contiguous: where peers' rows arrive.
        b: [K, N]; c: [M, N], contiguous rows; bias: [N], contiguous, or None.
        call: with rank, world, chunk, flags (int32, PARTS for each rank), epoch (int32), trouble
            (int32[4]), limit, debug and spare (SMs that stay free); and what signals.begin and
            signals.count_call take.
        config: of a tile: BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, NUM_STAGES and NUM_WARPS.
    """
    (M, N), K = c.shape, b.shape[0]
    grid, b_read, waits, constants = shared(b, epilogue, call, **config)
    block = config["BLOCK_M"], config["BLOCK_K"]
    there = describe(gathered, block, False)
    here = describe(own, block, False) if own.shape[0] else there
    numbers = (M, N, K, call.chunk, call.rank, part_tiles, c.stride(0))
    begins = (int(call.begins), call.words, call.done_at, call.last, call.count)
    args = (here, there, b_read, c, *numbers, bias, call.flags, call.epoch, *begins, *waits)
    return grid, args, {**constants, "PARTS": PARTS}
