"""Products of float64 in Gluon: wgmma has none, so threads read blocks, and mma.sync multiplies.

    of 16 x 8 x 16   thread t of a warp has rows t / 4 and t / 4 + 8 of A at columns t % 4 + 4 j,
                     and of column t / 4 of B the rows t % 4 + 4 j, for j of 0 to 3

Columns of A may be taken in any order, as long as rows of B are taken in the same. Here a thread
has columns 2 (t % 4) + 8 i and the next one, for i of 0 and 1: neighbours, which are one vector of
16 bytes where an operand lies along K.

    along K     rows of a block are 8 elements, 64 bytes. Eight threads, which shared memory serves
                at once, read two rows, 128 bytes in turn
    across K    rows are 16 elements along M or N, 128 bytes, whose units of 16 bytes are exchanged
                by the row's number. Half a warp reads two units of rows 0, 2, 4 and 6: all 32 banks

Four warps lie 2 x 2 over the consumer's tile, each of 32 rows and half of the columns. Columns are
multiplied in parts of 32. While a part is multiplied, the next part of B is read, and with the last
but one A of the next step; more does not fit in registers.
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RUF005, RET505 - Gluon takes no starred tuple.
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

DEPTH = gl.constexpr(16)
"""Of a step, and of mma.sync."""

PART = gl.constexpr(32)
"""Columns that are multiplied at once."""


@gluon.constexpr_function
def lies(ROWS, SIDE):
    """Which thread reads which elements of [ROWS, DEPTH], rows of A (SIDE 0) or columns of B (1).

    The second warp lies beside the first. Those beside each other read the same rows of A, those
    above each other the same columns of B.
    """
    own = 16 if SIDE == 0 else 8
    further = [[own * 2 << bit, 0] for bit in range((ROWS // own // 2).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 8], *([[8, 0]] if SIDE == 0 else []), *further],
        lane_bases=[[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[0, 0], [own, 0]] if SIDE == 0 else [[own, 0], [0, 0]],
        block_bases=[],
        shape=[ROWS, DEPTH.value],
    )


@gluon.jit
def read(block, SIDE: gl.constexpr, LAYOUT: gl.constexpr):
    """A block [rows, DEPTH] as mma.sync's operand, for accumulators of a layout: A (SIDE 0), or B,
    which the block is the transpose of. Both have their K in the same other order."""
    ROWS: gl.constexpr = block.shape[0]
    x = block.load(lies(ROWS, SIDE))
    x = gl.permute(gl.reshape(x, (ROWS, 2, 4, 2)), (0, 1, 3, 2))
    x = gl.reshape(x, (ROWS, DEPTH))
    OPERAND: gl.constexpr = gl.DotOperandLayout(SIDE, LAYOUT, 1)
    return gl.convert_layout(gl.permute(x, (1, 0)) if SIDE else x, OPERAND)


@gluon.jit
def a_of(ring, slot, part: gl.constexpr, LAYOUT: gl.constexpr, CONFIG: gl.constexpr):
    """This consumer's rows of A of a stage."""
    CONSUMERS: gl.constexpr = ring[0].shape[0] // ring[2].shape[0]
    block = ring[0].index(slot * CONSUMERS + part)
    return read(block.permute((1, 0)) if CONFIG.A_TRANSPOSED else block, 0, LAYOUT)


@gluon.jit
def b_of(ring, slot, number: gl.constexpr, LAYOUT: gl.constexpr, CONFIG: gl.constexpr):
    """Columns of B of a stage, of part ``number`` of the tile."""
    block = ring[1][0].index(slot)
    rows = block if CONFIG.B_TRANSPOSED else block.permute((1, 0))
    return read(rows.slice(number * PART, PART), 1, LAYOUT)


@gluon.jit
def beside(accs):
    """The accumulators of all parts as that of a tile; no element moves."""
    if len(accs) == 1:
        return accs[0]
    else:
        HALF: gl.constexpr = len(accs) // 2
        left, right = beside(accs[:HALF]), beside(accs[HALF:])
        ROWS: gl.constexpr = left.shape[0]
        joined = gl.permute(gl.join(left, right), (0, 2, 1))
        return gl.reshape(joined, (ROWS, 2 * left.shape[1]))


@gluon.jit
def step_of(
    ring,
    accs,
    x,
    y,
    slot,
    following,
    phase,
    part: gl.constexpr,
    LAYOUT: gl.constexpr,
    LAST: gl.constexpr,
    CONFIG: gl.constexpr,
):
    """One step's products, and what the next one begins with."""
    PARTS: gl.constexpr = len(accs)
    x_next = x
    done = ()
    for number in gl.static_range(PARTS):
        y_next = y
        if number + 1 < PARTS:
            y_next = b_of(ring, slot, number + 1, LAYOUT, CONFIG)
        elif not LAST:
            mbarrier.wait(ring[2].index(following), phase)
            y_next = b_of(ring, following, 0, LAYOUT, CONFIG)
            x_next = a_of(ring, following, part, LAYOUT, CONFIG)
        done = done + (mma_v2(x, y, accs[number]),)
        y = y_next
    return done, x_next, y


@gluon.jit
def product(ring, zeros, slot, phase, steps, part: gl.constexpr, CONFIG: gl.constexpr):
    """A tile's accumulators after all of its steps, and the slot and the phase that follow."""
    _, b_rings, full, empty = ring
    gl.static_assert(len(b_rings) == 1)
    NUM_STAGES: gl.constexpr = full.shape[0]
    LAYOUT: gl.constexpr = zeros[0].type.layout
    ROWS: gl.constexpr = zeros[0].shape[0]
    PARTS: gl.constexpr = zeros[0].shape[1] // PART
    accs = ()
    for _ in gl.static_range(PARTS):
        accs = accs + (gl.zeros((ROWS, PART), gl.float64, LAYOUT),)
    mbarrier.wait(full.index(slot), phase)
    x, y = a_of(ring, slot, part, LAYOUT, CONFIG), b_of(ring, slot, 0, LAYOUT, CONFIG)
    for _ in range(steps - 1):
        following = slot + 1
        if following == NUM_STAGES:
            following = 0
            phase ^= 1
        accs, x, y = step_of(ring, accs, x, y, slot, following, phase, part, LAYOUT, False, CONFIG)
        mbarrier.arrive(empty.index(slot), count=1)
        slot = following
    accs, x, y = step_of(ring, accs, x, y, slot, slot, phase, part, LAYOUT, True, CONFIG)
    mbarrier.arrive(empty.index(slot), count=1)
    slot += 1
    if slot == NUM_STAGES:
        slot = 0
        phase ^= 1
    return (gl.convert_layout(beside(accs), LAYOUT),), slot, phase
