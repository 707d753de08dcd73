"""Blocks of a float32 A that threads read, in Gluon: wgmma has them in registers.

wgmma reads 32-bit blocks from shared memory along K alone. Its first operand may stand in
registers, and threads read shared memory any way round: rows of a block that lies across K are
columns of A, [BLOCK_K, 64] as TMA left it. In registers a number is also split into its two terms.

    wgmma's A, of each 64 x 8    thread t of a warp has rows t / 4 and t / 4 + 8 of the warp's 16,
                                 columns t % 4 and t % 4 + 4

The rows of a tile may be taken in any order, as long as those of C are stored in it. In A's own
order two threads would meet in each bank: a row of the block is 32 banks, its units of 16 bytes are
exchanged by the row's number, and a warp reads two units that are neighbours from each of 4 rows.
So what wgmma takes for rows t / 4 and t / 4 + 8 are neighbours in memory, read as one vector of 8
bytes, and half of a warp reads two units that lie 4 apart from each of 4 rows: all 32 banks once.

    bit of the row to wgmma      5   4   3   2   1   0
    bit of the row in memory     5   3   0   2   4   1
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RET505
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .accumulators import start_others


@gluon.constexpr_function
def lies(DEPTH):
    """Which thread reads which elements of a block of 64 rows and DEPTH columns."""
    columns = [[0, 4 << bit] for bit in range((DEPTH // 4).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=[[1, 0], *columns],
        lane_bases=[[0, 1], [0, 2], [2, 0], [16, 0], [4, 0]],
        warp_bases=[[8, 0], [32, 0]],
        block_bases=[],
        shape=[64, DEPTH],
    )


@gluon.jit
def operand_of(block, LAYOUT: gl.constexpr, CONFIG: gl.constexpr):
    """A block of A as wgmma's first operand [64, BLOCK_K], for accumulators of a layout. Of one
    that lies across K rows are in another order, which ``in_order`` undoes."""
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 1)
    if CONFIG.A_TRANSPOSED:
        DEPTH: gl.constexpr = block.shape[0]
        gl.static_assert(block.shape[1] == 64)
        x = block.permute((1, 0)).load(lies(DEPTH))
        x = gl.permute(gl.reshape(x, (2, 2, 2, 2, 2, 2, DEPTH)), (0, 2, 5, 3, 1, 4, 6))
        return gl.convert_layout(gl.reshape(x, (64, DEPTH)), OPERAND)
    else:
        return block.load(OPERAND)


@gluon.jit
def in_order(acc, CONFIG: gl.constexpr):
    """An accumulator with its rows as they lie in memory: no element moves."""
    if CONFIG.A_TRANSPOSED:
        COLUMNS: gl.constexpr = acc.shape[1]
        acc = gl.permute(gl.reshape(acc, (2, 2, 2, 2, 2, 2, COLUMNS)), (0, 4, 1, 3, 5, 2, 6))
        return gl.reshape(acc, (64, COLUMNS))
    else:
        return acc


@gluon.jit
def all_in_order(accs, CONFIG: gl.constexpr):
    """``in_order`` of each accumulator of a tile."""
    if len(accs) == 1:
        return (in_order(accs[0], CONFIG),)
    elif len(accs) == 2:
        return in_order(accs[0], CONFIG), in_order(accs[1], CONFIG)
    else:
        return in_order(accs[0], CONFIG), in_order(accs[1], CONFIG), in_order(accs[2], CONFIG)


@gluon.jit
def terms_of(x, CONFIG: gl.constexpr):
    """What stands in registers of x: itself, or its terms hi and lo, of which the tensor cores
    ignore the lower 13 bits. hi is x cut off so, and lo, at most 2^-10 of it, is rounded. Where x
    is Inf or NaN, hi is 1 with the sign of x and lo is x (host/repack.py says why)."""
    if CONFIG.TERMS == 1:
        return (x,)
    else:
        bits = x.to(gl.int32, bitcast=True)
        rest = x - (bits & -0x2000).to(gl.float32, bitcast=True)
        low = (rest.to(gl.int32, bitcast=True) + 0x1000).to(gl.float32, bitcast=True)
        finite = (bits & 0x7F800000) != 0x7F800000
        one = ((bits & -0x80000000) | 0x3F800000).to(gl.float32, bitcast=True)
        return gl.where(finite, x, one), gl.where(finite, low, x + x)


@gluon.jit
def moved(x):
    """x without the bits that wgmma ignores, in other registers: those of a product in flight are
    not to be written before it is awaited."""
    return gl.inline_asm_elementwise(
        "and.b32 $0, $1, 0xffffe000;", "=r,r", [x], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def all_moved(terms):
    """``moved`` of each."""
    if len(terms) == 1:
        return (moved(terms[0]),)
    else:
        return moved(terms[0]), moved(terms[1])


@gluon.jit
def block_at(
    a_ring, full, slot, phase, part: gl.constexpr, LAYOUT: gl.constexpr, CONFIG: gl.constexpr
):
    """The terms of this consumer's block of a stage, once it is there."""
    CONSUMERS: gl.constexpr = a_ring.shape[0] // full.shape[0]
    mbarrier.wait(full.index(slot), phase)
    x = operand_of(a_ring.index(slot * CONSUMERS + part), LAYOUT, CONFIG)
    return terms_of(x, CONFIG)


@gluon.jit
def start_mmas(x, b_rings, slot, accs, use_acc, CONFIG: gl.constexpr):
    """Begin to multiply x by all blocks of B of a stage; what is added to begins at 0 with two
    terms, of which the smallest products come first."""
    if CONFIG.TERMS == 1:
        y = b_rings[0].index(slot).permute((1, 0))
        first = warpgroup_mma(x[0], y, accs[0], use_acc=use_acc, is_async=True)
        return start_others(first, x[0], b_rings, slot, accs, use_acc, CONFIG)
    else:
        gl.static_assert(len(accs) == 1)
        y = b_rings[0].index(2 * slot).permute((1, 0))
        y_low = b_rings[0].index(2 * slot + 1).permute((1, 0))
        token = warpgroup_mma(x[1], y, accs[0], use_acc=False, is_async=True)
        token = warpgroup_mma(x[0], y_low, token, is_async=True)
        return (warpgroup_mma(x[0], y, token, is_async=True),)


@gluon.jit
def wait_for_all(started, x, accs, CONFIG: gl.constexpr):
    """The accumulators, once nothing is in flight; until then x stays in its registers."""
    if CONFIG.TERMS == 2:
        partial = warpgroup_mma_wait(0, deps=[started[0], x[0], x[1]])
        return (accs[0] + partial[0],)
    elif len(started) == 1:
        done = warpgroup_mma_wait(0, deps=[started[0], x[0]])
        return (done[0],)
    elif len(started) == 2:
        done = warpgroup_mma_wait(0, deps=[started[0], started[1], x[0]])
        return done[0], done[1]
    else:
        done = warpgroup_mma_wait(0, deps=[started[0], started[1], started[2], x[0]])
        return done[0], done[1], done[2]


@gluon.jit
def product(ring, zeros, slot, phase, steps, part: gl.constexpr, CONFIG: gl.constexpr):
    """A tile's accumulators after all of its steps, and the slot and the phase that follow.

    While a step is multiplied the next one is read. It begins once the one before is done: the
    tensor cores are kept busy by another consumer.
    """
    a_ring, b_rings, full, empty = ring
    NUM_STAGES: gl.constexpr = full.shape[0]
    LAYOUT: gl.constexpr = zeros[0].type.layout
    accs = zeros
    x = block_at(a_ring, full, slot, phase, part, LAYOUT, CONFIG)
    for step in range(steps - 1):
        begun = zeros if CONFIG.TERMS == 2 else accs
        started = start_mmas(x, b_rings, slot, begun, step > 0, CONFIG)
        now = slot
        slot += 1
        if slot == NUM_STAGES:
            slot = 0
            phase ^= 1
        following = block_at(a_ring, full, slot, phase, part, LAYOUT, CONFIG)
        accs = wait_for_all(started, x, accs, CONFIG)
        mbarrier.arrive(empty.index(now), count=1)
        x = all_moved(following)
    begun = zeros if CONFIG.TERMS == 2 else accs
    started = start_mmas(x, b_rings, slot, begun, steps > 1, CONFIG)
    accs = wait_for_all(started, x, accs, CONFIG)
    mbarrier.arrive(empty.index(slot), count=1)
    slot += 1
    if slot == NUM_STAGES:
        slot = 0
        phase ^= 1
    return all_in_order(accs, CONFIG), slot, phase
