"""How a tile of C leaves in Gluon: scaled, in pieces, through shared memory, by TMA.

A piece is all rows of the tile and a part of its columns. Each warpgroup has BUFFERS buffers of a
piece and takes them in turn: it writes one while the TMA unit reads the other, and goes on to its
next tile while the last are still being read.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

store_block = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def scaled(acc, scale, start, size, ACROSS: gl.constexpr, ROW_SCALES: gl.constexpr):
    """The accumulator times one number; with ROW_SCALES, times one of each row (ACROSS 1) or column
    (ACROSS 0), from ``start`` on of ``size``. Without a scale, as it is."""
    if scale is not None:
        if ROW_SCALES:
            at = start + gl.arange(
                0, acc.shape[1 - ACROSS], gl.SliceLayout(ACROSS, acc.type.layout)
            )
            acc *= gl.expand_dims(gl.load(scale + at, mask=at < size, other=0.0), ACROSS)
        else:
            acc *= gl.load(scale)
    return acc


@gluon.jit
def halves(x):
    """Left and right half of the columns; both lie in the same threads, so nothing moves."""
    rows: gl.constexpr = x.shape[0]
    columns: gl.constexpr = x.shape[1]
    return gl.split(gl.permute(gl.reshape(x, (rows, 2, columns // 2)), (0, 2, 1)))


@gluon.jit
def store_piece(c, buffer, piece, m, n, PENDING: gl.constexpr):
    """One piece, once at most PENDING earlier ones still have to be read.

    The compiler puts a barrier of the warpgroup after the wait, which only the thread that issues
    the stores has reason to make, and one after the fence, before that thread stores.
    """
    tma.store_wait(PENDING)
    buffer.store(piece.to(c.dtype))
    fence_async_shared()
    store_block(c, [m, n], buffer)


@gluon.jit
def store_tile(c, buffers, first: gl.constexpr, BUFFERS: gl.constexpr, acc, m, n):
    """The accumulator in 1, 2 or 4 pieces to C at row m and column n; narrowed to C's dtype.

    Args:
        c: descriptor of C in pieces.
        buffers: shared memory of pieces; the warpgroup's are BUFFERS from ``first`` on.
    """
    WIDTH: gl.constexpr = c.block_shape[1]
    PIECES: gl.constexpr = acc.shape[1] // WIDTH
    even, odd = buffers.index(first), buffers.index(first + BUFFERS - 1)
    if PIECES == 1:
        store_piece(c, even, acc, m, n, BUFFERS - 1)
    elif PIECES == 2:
        left, right = halves(acc)
        store_piece(c, even, left, m, n, BUFFERS - 1)
        store_piece(c, odd, right, m, n + WIDTH, BUFFERS - 1)
    else:
        left, right = halves(acc)
        for side in gl.static_range(2):
            x, y = halves(left if side == 0 else right)
            column = n + side * 2 * WIDTH
            store_piece(c, even, x, m, column, BUFFERS - 1)
            store_piece(c, odd, y, m, column + WIDTH, BUFFERS - 1)
