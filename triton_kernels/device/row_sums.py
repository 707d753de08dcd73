"""The sums of A's rows in Gluon, from the blocks of A that a product has in shared memory anyway.

A is the gradient of a layer's result, transposed, in the product that is its weight's gradient; the
sums of its rows are the gradient of the bias. Read once more for that it would cost what a copy
costs: 50 MB of 8192 x 3072 take 10 us of an H200's memory alone.

All tiles of a row of C have the same rows of A. They share the steps of K, so that all end at the
same time: of as many steps as there are tiles each adds one, while the tensor cores multiply it.
Each stores what it has in float32, and a second launch adds these in order (``sums.add``): the same
bits in each call, which atomics would not give.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

PARTS = gl.constexpr(64)
"""Tiles of a row of C that share the steps of K, at most."""

DEPTH = gl.constexpr(16)
"""Rows of a stored block that a warp reads at a time, of 16 columns: each of eight threads that are
served together reads other banks of a block that is swizzled by 128 bytes."""

LAYOUT = gl.constexpr(gl.BlockedLayout([1, 8], [16, 2], [1, 4], [0, 1]))
"""How a stored block, or DEPTH rows of it, lies in a warpgroup's registers: by 16 bytes, and with
all of a row of A in one warp."""


@gluon.jit
def zeros(a_ring):
    """Zero for each row of a block of A, in DEPTH parts that no thread shares."""
    columns: gl.constexpr = a_ring.shape[2]
    return gl.zeros((DEPTH, columns), gl.float32, LAYOUT)


@gluon.jit
def first_step(part: gl.constexpr, tile_n, tiles_n):
    """The first step of K whose rows a tile adds, -1 for none. The warpgroups of a program begin at
    different steps, so that while one adds the others keep the tensor cores busy."""
    first = -1
    if tile_n < PARTS:
        first = (tile_n + part) % gl.minimum(tiles_n, PARTS)
    return first


@gluon.jit
def add(sums, due, block, step, tiles_n):
    """The sums with the rows of a block of A, which is stored transposed, where the step is
    ``due``; and the step that is due next."""
    if step == due:
        columns: gl.constexpr = block.shape[1]
        times: gl.constexpr = block.shape[0] // DEPTH
        of_thread = gl.reshape(block.load(LAYOUT).to(gl.float32), (times, DEPTH, columns))
        sums += gl.convert_layout(gl.sum(of_thread, 0), LAYOUT, assert_trivial=True)
        due += gl.minimum(tiles_n, PARTS)
    return sums, due


@gluon.jit
def store(to, sums, tile_n, m, M):
    """Store a tile's sums, of rows from m on, as its part of to[PARTS, M]."""
    total = gl.sum(sums, 0)
    row = m + gl.arange(0, total.shape[0], total.type.layout)
    gl.store(to + tile_n.to(gl.int64) * M + row, total, mask=(row < M) & (tile_n < PARTS))
