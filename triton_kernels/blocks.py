"""Blocks of matrices in Gluon: which tile is next, and how a block is asked of the TMA unit.

A descriptor has two dimensions, or three: a batch, of which a block is one matrix; or the two
terms of a float32 operand, hi and lo, of which each is a matrix.
"""

# ruff: noqa: RUF005 - Gluon takes no starred list.
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from . import ordering

load_block = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_block = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
grouped = gluon.jit(ordering.grouped.fn)


@gluon.jit
def place(tile, tiles_m, tiles_n, HOW: gl.constexpr):
    """Number of a tile -> number of its matrix in the batch, tile row, tile column."""
    batch = 0
    if HOW.BATCHED:
        batch = tile // (tiles_m * tiles_n)
        tile = tile % (tiles_m * tiles_n)
    tile_m, tile_n = grouped(tile, tiles_m, tiles_n, HOW.GROUP_M)
    return batch, tile_m, tile_n


@gluon.jit
def load(x, matrix, at, ready, block):
    """Ask for the block of x at two coordinates, of this matrix where x holds several."""
    if len(x.block_shape) == 3:
        load_block(x, [matrix] + at, ready, block._reinterpret(x.dtype, x.block_shape, x.layout))
    else:
        load_block(x, at, ready, block)


@gluon.jit
def store(x, matrix, at, block):
    """Have a block written to x at two coordinates, of this matrix where x holds several."""
    if len(x.block_shape) == 3:
        store_block(x, [matrix] + at, block._reinterpret(x.dtype, x.block_shape, x.layout))
    else:
        store_block(x, at, block)


@gluon.jit
def load_pieces(c_in, matrix, m, n, c_ring, CONSUMERS: gl.constexpr, phase):
    """Ask for each consumer's pieces of C_in, once those of its tile before have left."""
    buffers, full, empty = c_ring
    PIECES: gl.constexpr = buffers.shape[0] // CONSUMERS
    PART_M: gl.constexpr = buffers.shape[1]
    WIDTH: gl.constexpr = buffers.shape[2]
    for part in gl.static_range(CONSUMERS):
        mbarrier.wait(empty.index(part), phase)
        mbarrier.expect(full.index(part), PIECES * c_in.block_type.nbytes)
        for piece in gl.static_range(PIECES):
            at = [m + part * PART_M, n + piece * WIDTH]
            load(c_in, matrix, at, full.index(part), buffers.index(part * PIECES + piece))


@gluon.jit
def ring_of(x, count: gl.constexpr):
    """Shared memory of ``count`` of x's blocks, each of two dimensions."""
    rows: gl.constexpr = x.block_shape[len(x.block_shape) - 2]
    columns: gl.constexpr = x.block_shape[len(x.block_shape) - 1]
    layout: gl.constexpr = gl.NVMMASharedLayout(
        x.layout.swizzle_byte_width, x.layout.element_bitwidth
    )
    return gl.allocate_shared_memory(x.dtype, [count, rows, columns], layout)
