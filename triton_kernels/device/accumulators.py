"""The accumulators of a tile in Gluon, and the blocks of B that they take, beside each other.

Sides of blocks are powers of two. A tile of 224 columns is 128, 64 and 32 of them: three blocks of
B a stage, three accumulators a consumer, three wgmma a step of K. All of these come as tuples of
one, two or three.
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RET505
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from .blocks import block_of, layout_of, load, ring_of


@gluon.jit
def rings_of(b, COUNT: gl.constexpr, CONFIG: gl.constexpr):
    """Shared memory of ``COUNT`` blocks of each of B's descriptors, of which two may be None."""
    if b[1] is None:
        return (ring_of(b[0], COUNT, CONFIG),)
    elif b[2] is None:
        return ring_of(b[0], COUNT, CONFIG), ring_of(b[1], COUNT, CONFIG)
    else:
        return (
            ring_of(b[0], COUNT, CONFIG),
            ring_of(b[1], COUNT, CONFIG),
            ring_of(b[2], COUNT, CONFIG),
        )


@gluon.jit
def load_blocks(b, rings, matrix, k, n, ready, number, CONFIG: gl.constexpr):
    """Load the blocks of B at row k, from column n on, as number ``number`` of each ring."""
    for each in gl.static_range(len(rings)):
        at = [n, k] if CONFIG.B_TRANSPOSED else [k, n]
        load(b[each], matrix, at, ready, rings[each].index(number))
        n += rings[each].shape[1 if CONFIG.B_TRANSPOSED else 2]


@gluon.constexpr_function
def sum_type(dtype):
    """What products of a type are summed in."""
    return gl.int32 if dtype.is_int() else gl.float64 if dtype == gl.float64 else gl.float32


@gluon.jit
def zeros(ring, ROWS: gl.constexpr, CONFIG: gl.constexpr):
    """An accumulator of ROWS rows and the columns of a block of B."""
    COLUMNS: gl.constexpr = ring.shape[1 if CONFIG.B_TRANSPOSED else 2]
    TYPE: gl.constexpr = sum_type(ring.dtype)
    layout: gl.constexpr = layout_of(COLUMNS, ring.dtype)
    return gl.zeros((ROWS, COLUMNS), TYPE, layout)


@gluon.jit
def zeros_of(rings, ROWS: gl.constexpr, CONFIG: gl.constexpr):
    """The accumulators of a tile, before its first step."""
    if len(rings) == 1:
        return (zeros(rings[0], ROWS, CONFIG),)
    elif len(rings) == 2:
        return zeros(rings[0], ROWS, CONFIG), zeros(rings[1], ROWS, CONFIG)
    else:
        first, second = zeros(rings[0], ROWS, CONFIG), zeros(rings[1], ROWS, CONFIG)
        return first, second, zeros(rings[2], ROWS, CONFIG)


@gluon.jit
def start_mma(x, ring, number, acc, use_acc, CONFIG: gl.constexpr):
    """Begin to multiply x by a block of B: what to wait for."""
    y = block_of(ring, number, CONFIG)
    return warpgroup_mma(x, y, acc, use_acc=use_acc, is_async=True)


@gluon.jit
def start_others(first, x, rings, number, accs, use_acc, CONFIG: gl.constexpr):
    """The same of all blocks of a stage but the first, which ``first`` is begun for: as many to
    wait for as there are accumulators."""
    if len(rings) == 1:
        return (first,)
    else:
        second = start_mma(x, rings[1], number, accs[1], use_acc, CONFIG)
        if len(rings) == 2:
            return first, second
        else:
            return first, second, start_mma(x, rings[2], number, accs[2], use_acc, CONFIG)


@gluon.jit
def wait_for_mmas(started, PENDING: gl.constexpr):
    """The accumulators, once no more than PENDING products are in flight."""
    if len(started) == 1:
        return (warpgroup_mma_wait(PENDING, deps=[started[0]]),)
    elif len(started) == 2:
        return warpgroup_mma_wait(PENDING, deps=[started[0], started[1]])
    else:
        return warpgroup_mma_wait(PENDING, deps=[started[0], started[1], started[2]])
