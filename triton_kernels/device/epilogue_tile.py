"""A tile of C in Gluon: accumulators beside each other are stored, each in its subtiles.

How a subtile is finished and stored is epilogue_subtiles.py's; where TMA cannot reach C, threads
store it (unaligned_rows.py).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from .blocks import halves
from .epilogue_subtiles import bias_of, scaled, store_subtile
from .unaligned_rows import store_unaligned


@gluon.constexpr_function
def columns_of(c, CONFIG):
    """Columns of an accumulator that a block of C has."""
    pair = 2 if CONFIG.FLOAT64 else 1
    return c.block_shape[len(c.block_shape) - (2 if CONFIG.C_TRANSPOSED else 1)] // pair


@gluon.jit
def store_tile(
    c, c_ring, part: gl.constexpr, BUFFERS: gl.constexpr, FIRST: gl.constexpr, acc, bias, batch,
    m, n, size, fused, phase, CONFIG: gl.constexpr,
):  # fmt: skip
    """The accumulator in 1, 2 or 4 subtiles to C at row m and column n; narrowed to C's dtype.

    Args:
        c: descriptor of C in subtiles.
        c_ring: shared memory of subtiles, BUFFERS for each part; and two barriers a part, of the
            subtiles of C_in, or Z, that have been loaded, and of those that have been stored.
        FIRST: subtiles of the tile that have been stored already, from another accumulator.
        bias: of ``bias_of``, loaded before the last products are awaited.
        fused: see ``finish``.
    """
    buffers, full, empty = c_ring
    SUBTILES: gl.constexpr = acc.shape[1] // columns_of(c, CONFIG)
    if CONFIG.FUSED:
        acc = scaled(acc, m, n, size, fused, CONFIG)
        if fused[1] is not None:
            acc += gl.expand_dims(bias.to(acc.dtype), 1 if CONFIG.BIAS_ROWS else 0)
    if CONFIG.STAGED:
        mbarrier.wait(full.index(part), phase)
    if SUBTILES == 1:
        store_subtile(c, buffers, part, BUFFERS, FIRST, 0, acc, batch, m, n, size, fused, CONFIG)
    else:
        left, right = halves(acc)
        for side in gl.static_range(2):
            half = left if side == 0 else right
            if SUBTILES == 2:
                store_subtile(
                    c, buffers, part, BUFFERS, FIRST, side, half, batch, m, n, size, fused, CONFIG
                )
            else:
                x, y = halves(half)
                store_subtile(
                    c, buffers, part, BUFFERS, FIRST, 2 * side, x, batch, m, n, size, fused, CONFIG
                )
                store_subtile(
                    c,
                    buffers,
                    part,
                    BUFFERS,
                    FIRST,
                    2 * side + 1,
                    y,
                    batch,
                    m,
                    n,
                    size,
                    fused,
                    CONFIG,
                )
    if CONFIG.STAGED:
        tma.store_wait(0)
        mbarrier.arrive(empty.index(part), count=1)


@gluon.jit
def store_rest(
    c, c_ring, part: gl.constexpr, BUFFERS: gl.constexpr, FIRST: gl.constexpr, acc, batch, m, n,
    size, fused, CONFIG: gl.constexpr,
):  # fmt: skip
    """``store_tile`` of an accumulator beside the first, with FIRST subtiles before it."""
    bias = 0
    if CONFIG.FUSED:
        bias = bias_of(fused, acc, m, n, size, CONFIG)
    store_tile(c, c_ring, part, BUFFERS, FIRST, acc, bias, batch, m, n, size, fused, 0, CONFIG)


@gluon.jit
def store_accumulators(
    c, c_ring, part: gl.constexpr, BUFFERS: gl.constexpr, accs, bias, batch, m, n, size, fused,
    phase, CONFIG: gl.constexpr,
):  # fmt: skip
    """A tile of C, from accumulators beside each other; by TMA, or where that cannot reach C by the
    threads.

    Args:
        c: for each of three accumulators a descriptor of C in its subtiles, or None where these are
            as large as the first's; or a pointer.
    """
    if CONFIG.UNALIGNED_C:
        store_unaligned(c[0], fused[11], c_ring[0], part, BUFFERS, accs, m, n, size)
    else:
        acc = accs[0]
        store_tile(
            c[0], c_ring, part, BUFFERS, 0, acc, bias, batch, m, n, size, fused, phase, CONFIG
        )
        if len(accs) > 1:
            SECOND: gl.constexpr = acc.shape[1] // columns_of(c[0], CONFIG)
            of_rest = c[0] if c[1] is None else c[1]
            n += acc.shape[1]
            store_rest(
                of_rest, c_ring, part, BUFFERS, SECOND, accs[1], batch, m, n, size, fused, CONFIG
            )
            if len(accs) > 2:
                THIRD: gl.constexpr = SECOND + accs[1].shape[1] // columns_of(of_rest, CONFIG)
                n += accs[1].shape[1]
                of_third = c[0] if c[2] is None else c[2]
                store_rest(
                    of_third, c_ring, part, BUFFERS, THIRD, accs[2], batch, m, n, size, fused,
                    CONFIG,
                )  # fmt: skip
