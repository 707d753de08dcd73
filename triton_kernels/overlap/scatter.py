"""scatter: C = A @ B, of which each rank keeps its rows of the sum over all ranks.

    C[rows of this rank, N] = f(sum over ranks of A_r[M, K_r] @ B_r[K_r, N] + bias[N])

Adds:     to `descriptor`, an owner. A program begins with tiles of rank + 1, rank + 2, ...: it
          stores them in C's dtype into this rank's part of the owner's slot, over the link, and
          sets the tile's flag there. Tiles of its own rank come last: by then the peers have sent
          theirs, since they go the same way. The owner adds all ranks' tiles in the order of ranks
          in float32, its own unrounded, so that a call repeats to the bit.
          Where copy engines carry tiles to their owners, a part at a time, a program stores them in
          ``staging``, here, and counts them in ``stored``. It does not wait for the link then.
Missing:  the release of a flag waits for the stores over the link. It is therefore done a tile
          later, when they have arrived; a warp of its own would not delay it at all.

Memory:   flags are those of signals.py. Stores and loads are ordinary ones: no proxy fence.
"""

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import narrow, widen
from ..device.epilogue import finish
from ..device.ordering import grouped
from ..host.descriptors import describe
from ..host.runtime import tl, triton
from .signals import await_kernel_before, count_call, stamp, wait, words_at
from .signals import begin as begin_call
from .tile import STAMPS_AT, halves, multiply, place, rows_of, scaled, shared


@triton.jit
def send(
    acc,
    to,
    m,
    n,
    rows,
    N,
    scale_a,
    scale_b,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROW_SCALES_A: tl.constexpr,
    ROW_SCALES_B: tl.constexpr,
    EMULATED: tl.constexpr,
):
    """acc times its scales to rows m and on of to[rows, N], in two halves."""
    HALF: tl.constexpr = BLOCK_N // 2
    left, right = halves(acc)
    row = (m + tl.arange(0, BLOCK_M)).to(tl.int64)
    for half in tl.static_range(2):
        x = left if half == 0 else right
        col = n + half * HALF + tl.arange(0, HALF)
        # N is a multiple of 8 and rows are contiguous: stores of 16 bytes.
        inside = (row < rows)[:, None] & (col < N)[None, :]
        x = scaled(x, row, col, rows, N, scale_a, scale_b, ROW_SCALES_A, ROW_SCALES_B)
        x = narrow(x, to.dtype.element_ty, EMULATED)
        tl.store(to + row[:, None] * N + col[None, :], x, mask=inside)


@triton.jit
def add(
    x,
    c,
    slots,
    m,
    n,
    rows,
    N,
    size,
    stride_cm,
    bias,
    scale_a,
    scale_b,
    rank,
    WORLD: tl.constexpr,
    ROW_SCALES_A: tl.constexpr,
    ROW_SCALES_B: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EMULATED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """f(sum over ranks + bias) to C from (m, n) on: x is this rank's, slots hold the others'.

    size: elements of a rank's part of ``slots``.
    """
    row = (m + tl.arange(0, x.shape[0])).to(tl.int64)
    col = (n + tl.arange(0, x.shape[1])).to(tl.int64)
    inside = (row < rows)[:, None] & (col < N)[None, :]
    x = scaled(x, row, col, rows, N, scale_a, scale_b, ROW_SCALES_A, ROW_SCALES_B)
    total = tl.zeros((x.shape[0], x.shape[1]), tl.float32)
    for source in range(WORLD):
        if source == rank:
            total += x
        else:
            at = slots + source * size + row[:, None] * N + col[None, :]
            total += widen(tl.load(at, mask=inside, other=0.0), EMULATED).to(tl.float32)
    total = finish(
        total, row, col, rows, N, None, bias, None, None, 1.0, 0.0, 1,
        False, False, False, ACTIVATION, EMULATED, INTERPRETED,
    )  # fmt: skip
    to = c + row[:, None] * stride_cm + col[None, :]
    tl.store(to, narrow(total, c.dtype.element_ty, EMULATED), mask=inside)


@triton.jit
def await_peers(flags, most, number, now, limit, reports, trouble, rank, WORLD: tl.constexpr):
    """Wait for every peer's flag of a tile, or of a part."""
    for source in range(WORLD):
        if source != rank:
            wait(flags + source * most + number, now, limit, reports, trouble, source, number)


@triton.jit
def release(pending, now, COUNTS: tl.constexpr):
    """Set the flag at an address, where there is one, or with COUNTS count a tile there."""
    if pending != 0:
        tl.debug_barrier()
        to = pending.to(tl.pointer_type(tl.int32))
        if COUNTS:
            tl.atomic_add(to, 1, sem="release", scope="gpu")
        else:
            tl.atomic_xchg(to, now, sem="release", scope="sys")


@triton.jit(
    do_not_specialize=[
        *("M", "K", "chunk", "rank", "most", "flags_at", "begins", "done_at", "limit", "reports"),
        "part_tiles",
    ]
)
def kernel(
    a,
    b,
    c,
    slots,
    M,
    N,
    K,
    chunk,
    rank,
    most,
    flags_at,
    stride_cm,
    bias,
    data,
    words,
    flags,
    epoch,
    begins,
    done_at,
    counted,
    count,
    trouble,
    limit,
    reports,
    WORLD: tl.constexpr,
    LANES: tl.constexpr,
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
    staging=None,
    stored=None,
    part_tiles=0,
    TILES: tl.constexpr = "all",
    PDL: tl.constexpr = False,
    WIDE: tl.constexpr = False,
):
    CARRIED: tl.constexpr = staging is not None
    tiles_m, tiles_n = tl.cdiv(chunk, BLOCK_M), tl.cdiv(N, BLOCK_N)
    each = tiles_m * tiles_n  # tiles of a rank
    program, step = tl.program_id(0), tl.num_programs(0)
    if PDL:
        now = tl.full((), 0, tl.int32)  # ``enter`` may still run
    else:
        now = begin_call(begins, words, done_at, epoch, rank, stamps, WORLD, LANES, INTERPRETED)
    size = chunk.to(tl.int64) * N  # elements of a rank's part of a slot
    last = each * (WORLD - 1)  # tiles of others

    pending = tl.full((), 0, tl.int64)  # the flag of the tile before, not set yet
    here = -1  # the owner of the tile before, as a number of the order
    for tile in range(program, 0 if TILES == "own" else last, step):
        owner = (rank + 1 + tile // each) % WORLD
        within = tile % each
        if CARRIED:
            part, tile_m, tile_n = place(within, tiles_m, tiles_n, part_tiles, GROUP_M)
        else:
            tile_m, tile_n = grouped(within, tiles_m, tiles_n, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        rows = rows_of(M, chunk, owner)
        if m < rows:
            at = STAMPS_AT + (program * WORLD + tile // each) * 4
            if stamps is not None and tile // each != here:
                stamp(stamps, at, INTERPRETED)
                stamp(stamps, at + 1, INTERPRETED)
            acc = multiply(
                a, b, owner * chunk + m, n, K, BLOCK_M, BLOCK_N, BLOCK_K, B_TRANSPOSED, EMULATED
            )
            if PDL:  # noqa: SIM102 (a condition of constants alone is decided by the compiler)
                if now == 0:
                    await_kernel_before(PDL)
                    now = tl.load(epoch)
            release(pending, now, CARRIED)
            if stamps is not None:
                if here >= 0:
                    stamp(stamps, STAMPS_AT + (program * WORLD + here) * 4 + 3, INTERPRETED)
                here = tile // each
            if CARRIED:
                to = staging + owner * size
            else:
                to = tl.load(data + owner).to(tl.pointer_type(slots.dtype.element_ty))
                if WIDE:
                    to = tl.multiple_of(to, 16)  # bytes; slots begin at multiples of 1024
                to += rank * size
            scales = scale_a
            if ROW_SCALES_A:
                scales += owner * chunk
            send(
                acc, to, m, n, rows, N, scales, scale_b, BLOCK_M, BLOCK_N,
                ROW_SCALES_A, ROW_SCALES_B, EMULATED,
            )  # fmt: skip
            if CARRIED:
                pending = (stored + owner * most + part).to(tl.int64)
            else:
                pending = (words_at(words, owner) + flags_at + rank * most + within).to(tl.int64)
            stamp(stamps, at + 2, INTERPRETED)
    release(pending, now, CARRIED)
    if stamps is not None and here >= 0:
        stamp(stamps, STAMPS_AT + (program * WORLD + here) * 4 + 3, INTERPRETED)

    if PDL:
        await_kernel_before(PDL)
        now = tl.load(epoch)
    begin = program + tl.cdiv(tl.maximum(last - program, 0), step) * step
    rows = rows_of(M, chunk, rank)
    HALF: tl.constexpr = BLOCK_N // 2
    scales = scale_a
    if ROW_SCALES_A:
        scales += rank * chunk
    came = -1  # the part that was waited for last
    for tile in range(begin, 0 if TILES == "others" else each * WORLD, step):
        within = tile - last
        number = within  # of the flag among a peer's
        if CARRIED:
            number, tile_m, tile_n = place(within, tiles_m, tiles_n, part_tiles, GROUP_M)
        else:
            tile_m, tile_n = grouped(within, tiles_m, tiles_n, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        if m < rows:
            acc = multiply(
                a, b, rank * chunk + m, n, K, BLOCK_M, BLOCK_N, BLOCK_K, B_TRANSPOSED, EMULATED
            )
            at = STAMPS_AT + (program * WORLD + WORLD - 1) * 4
            if tile == begin:
                stamp(stamps, at, INTERPRETED)
            if not CARRIED:
                await_peers(flags, most, number, now, limit, reports, trouble, rank, WORLD)
            elif number != came:
                await_peers(flags, most, number, now, limit, reports, trouble, rank, WORLD)
                came = number
            if tile == begin:
                stamp(stamps, at + 1, INTERPRETED)
            left, right = halves(acc)
            for half in tl.static_range(2):
                x = left if half == 0 else right
                col = n + half * HALF
                if BLOCK_N == 256:
                    one, two = halves(x)
                    for quarter in tl.static_range(2):
                        add(
                            one if quarter == 0 else two, c, slots, m, col + quarter * (HALF // 2),
                            rows, N, size, stride_cm, bias, scales, scale_b, rank, WORLD,
                            ROW_SCALES_A, ROW_SCALES_B, ACTIVATION, EMULATED, INTERPRETED,
                        )  # fmt: skip
                else:
                    add(
                        x, c, slots, m, col, rows, N, size, stride_cm, bias, scales, scale_b,
                        rank, WORLD, ROW_SCALES_A, ROW_SCALES_B, ACTIVATION, EMULATED, INTERPRETED,
                    )  # fmt: skip
            stamp(stamps, at + 2, INTERPRETED)
    if begins != 0:
        count_call(count, step, epoch, counted, now)


def arguments(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    slots: torch.Tensor,
    bias: torch.Tensor | None,
    epilogue: str,
    call: Any,
    *,
    part_tiles: int = 0,
    TILES: str = "all",
    WIDE: bool = False,
    **config: int,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``.

    Args:
        a: [M, K], contiguous; b: [K, N]; c: [rows of this rank, N], contiguous rows.
        slots: [WORLD, chunk, N] of C's dtype, contiguous: where peers' partial sums arrive.
        bias: [N], contiguous, or None.
        call: with rank, world, chunk, data and words (int64[world]: addresses of every rank's
            ``slots`` and words), flags_at (where in the words flags begin), flags (they, here),
            most (flags for each rank), epoch, trouble, limit, debug and spare; and what
            signals.begin and signals.count_call take. Where copy engines carry partial sums,
            ``staging`` and ``stored`` besides, and flags are of parts.
        part_tiles: rows of tiles in a part, then.
        WIDE: whether stores to owners are of 16 bytes.
        TILES: "all", or those of "others" or "own" alone.
        config: as for gather.arguments.
    """
    (M, K), N = a.shape, b.shape[1]
    grid, b_read, waits, constants = shared(b, epilogue, call, **config)
    a_read = describe(a, (config["BLOCK_M"], config["BLOCK_K"]), False)
    numbers = (M, N, K, call.chunk, call.rank, call.most, call.flags_at, c.stride(0))
    # Of two launches the first begins the call.
    begins = int(call.begins and TILES != "own")
    flags = (call.data, call.words, call.flags, call.epoch)
    flags += (begins, call.done_at, call.last, call.count)
    constants |= {"part_tiles": part_tiles, "TILES": TILES, "WIDE": WIDE}
    constants |= {"staging": call.staging, "stored": call.stored}
    return grid, (a_read, b_read, c, slots, *numbers, bias, *flags, *waits), constants
