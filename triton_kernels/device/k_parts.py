"""Tiles whose K is divided, in Gluon: a part of K is to the kernel what a product of a batch is.

Part p of a tile has whole steps of K, from one bound to the next, and stores its sums, float32 or
int32, in a workspace [parts, rows, columns] of whole tiles, where no element needs a mask.
matrix_parts.py adds them. The threads store what they have: of a row four of them hold 8 elements,
one whole sector of the L2, so no shared memory is needed on the way and all of it is left to
stages.
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RET505
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .split_k_partials import bounds as bounds_of_part

bounds = gluon.jit(bounds_of_part.fn)


@gluon.jit
def columns_of(part, K, parts, BLOCK_K: gl.constexpr, CONFIG: gl.constexpr):
    """The first column of A that a tile multiplies, and the one where it ends or the next part
    begins."""
    if CONFIG.IN_PARTS:
        first, last = bounds(gl.cdiv(K, BLOCK_K), part, parts)
        return first * BLOCK_K, last * BLOCK_K
    else:
        return 0, K


@gluon.jit
def steps_of(part, k_tiles, parts, CONFIG: gl.constexpr):
    """How many of the steps of K those are."""
    if CONFIG.IN_PARTS:
        first, last = bounds(k_tiles, part, parts)
        return last - first
    else:
        return k_tiles


@gluon.jit
def store_part(to, accs, part, m, n, rows, columns):
    """The accumulators of a tile to the workspace, at row m and column n of a part.

    Args:
        to: pointer to [parts, rows, columns] of the accumulators' dtype, aligned to 16 bytes.
        accs: blocks of the tile beside each other.
    """
    for number in gl.static_range(len(accs)):
        x = accs[number]
        row = m + gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
        column = n + gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
        at = (part.to(gl.int64) * rows + row) * columns
        gl.store(to + gl.expand_dims(at, 1) + gl.expand_dims(column, 0), x)
        n += x.shape[1]
