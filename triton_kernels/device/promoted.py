"""A product whose sums leave the tensor cores after each step of K, in Gluon: they are added there
with fewer bits than float32 has. Of 8-bit floats, and of float32 as two terms."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .blocks import block_of


@gluon.jit
def product(ring, zeros, slot, phase, steps, part: gl.constexpr, CONFIG: gl.constexpr):
    """A tile's accumulators, two at most, after all of its steps, and the slot and the phase that
    follow. Each step's sum is added in float32, while another warpgroup multiplies."""
    a_ring, b_rings, full, empty = ring
    NUM_STAGES: gl.constexpr = full.shape[0]
    TERMS: gl.constexpr = CONFIG.TERMS
    CONSUMERS: gl.constexpr = a_ring.shape[0] // (NUM_STAGES * CONFIG.A_TERMS)
    gl.static_assert(len(zeros) <= 2)
    accs = zeros
    for _ in range(steps):
        mbarrier.wait(full.index(slot), phase)
        first_a, first_b = (slot * CONSUMERS + part) * TERMS, slot * TERMS
        a_block = a_ring.index(first_a)
        x = a_block.permute((1, 0)) if CONFIG.A_TRANSPOSED else a_block
        y = block_of(b_rings[0], first_b, CONFIG)
        token = zeros[0]
        if TERMS == 2:
            x_low, y_low = a_ring.index(first_a + 1), b_rings[0].index(first_b + 1)
            token = warpgroup_mma(x_low, y, token, use_acc=False, is_async=True)
            token = warpgroup_mma(x, y_low.permute((1, 0)), token, is_async=True)
        token = warpgroup_mma(x, y, token, use_acc=TERMS == 2, is_async=True)
        partial = warpgroup_mma_wait(0, deps=[token])
        if len(accs) == 2:
            acc = accs[0] + partial
            y = block_of(b_rings[1], first_b, CONFIG)
            token = warpgroup_mma(x, y, zeros[1], use_acc=False, is_async=True)
            partial = warpgroup_mma_wait(0, deps=[token])
        mbarrier.arrive(empty.index(slot), count=1)
        accs = (acc, accs[1] + partial) if len(accs) == 2 else (accs[0] + partial,)
        slot += 1
        if slot == NUM_STAGES:
            slot = 0
            phase ^= 1
    return accs, slot, phase
