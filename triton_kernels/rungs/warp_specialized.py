"""warp_specialized: one warp loads, warpgroups multiply; written in Gluon, for Hopper.

    C[M, N] = f(alpha A[M, K] @ B[K, N] + beta C_in[M, N] + bias[N]), for each of a batch

Adds:     warps with a role. One producer warp does nothing but issue TMA loads; each of CONSUMERS
          warpgroups multiplies its own BLOCK_M / CONSUMERS rows of the tile. They meet in a ring
          of NUM_STAGES stages and two barriers a stage: ``full`` counts the bytes that arrive,
          ``empty`` the consumers that are done. The producer runs ahead into the next tile, which
          multiplies while C of this one is stored in SUBTILES. Where accumulators are many,
          registers move to the consumers from the producer, which keeps 24 a thread. While the
          kernel before still runs, barriers are set up and, with L2_PREFETCH, the first steps of
          the larger operand prefetched. Blocks have sides that are powers of two; a tile of 224
          columns is 128 and REST = 64 + 32: as many blocks of B a stage and accumulators a
          consumer. With SWAP rows of C are wgmma's n: 134 of them are 144 = 128 + 16, where m
          would make them 192. With SPLITS K is divided, a part is as a product of a batch, and a
          second launch adds them.
Missing:  clusters, whose blocks share an operand by TMA multicast: Triton 3.6 has none.

Tiles:    C in block tiles of BLOCK_M x BLOCK_N, many a program, from the last to the first; K in
          steps of BLOCK_K, each a stage; wgmma m64nBLOCK_N by each consumer, one step in flight.

Storage:  as in ``descriptor``: an operand stored transposed is loaded as it lies and its block in
          shared memory read through a transposed view; a column-major C is C' = B' A'. With SWAP it
          is the other way round, and accumulators go to shared memory transposed. A C that TMA
          cannot reach the threads store (unaligned_rows.py). wgmma reads blocks of 8 bits and of
          tf32 along K only: others are repacked first, or with ACROSS one of float32 is read to
          registers (across_k.py). float32 is rounded to tf32 by the TMA unit; as two terms (tf32x3)
          it is written out beforehand, or with ACROSS split in registers. float64 is read to
          registers either way, and mma.sync multiplies (by_mma_sync.py).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import across_k, by_mma_sync, promoted, row_sums
from ..device.accumulators import load_blocks, rings_of, start_others, wait_for_mmas, zeros_of
from ..device.blocks import (
    barriers,
    block_of,
    load,
    load_subtiles,
    place,
    prefetch_first_tile,
    ring_of,
    ring_of_c,
    step_of,
    tiles_of,
)
from ..device.epilogue_subtiles import bias_of
from ..device.epilogue_tile import store_accumulators
from ..device.k_parts import columns_of, steps_of, store_part
from ..host.gluon_descriptors import that_rounds
from ..host.gluon_launch import arguments, second
from ..host.launching import Rung
from ..host.repack import repack_for_wgmma
from ..host.runtime import tl


@gluon.jit
def produce(loaded, CONFIG: gl.constexpr):
    """One warp: every block of A, B and C_in of every tile of this program, in order."""
    a, b, c_in, ring, c_ring, size = loaded
    a_ring, b_rings, full, empty = ring
    _, _, K, batches = size
    NUM_STAGES: gl.constexpr = full.shape[0]
    TERMS: gl.constexpr = CONFIG.TERMS
    CONSUMERS: gl.constexpr = a_ring.shape[0] // (NUM_STAGES * CONFIG.A_TERMS)
    PART_M: gl.constexpr = a_ring.shape[2 if CONFIG.A_TRANSPOSED else 1]
    BLOCK_K: gl.constexpr = a_ring.shape[1 if CONFIG.A_TRANSPOSED else 2]
    WIDE: gl.constexpr = b_rings[0].shape[1 if CONFIG.B_TRANSPOSED else 2]
    BLOCK_N: gl.constexpr = WIDE + CONFIG.REST
    B_BYTES: gl.constexpr = b[0].block_type.nbytes // WIDE * BLOCK_N
    STAGE_BYTES: gl.constexpr = CONFIG.A_TERMS * CONSUMERS * a.block_type.nbytes + TERMS * B_BYTES
    tiles_m, tiles_n, tiles = tiles_of(size, PART_M * CONSUMERS, BLOCK_N, CONFIG)
    # The first lap of the ring waits for the phase before the first, which counts as complete.
    slot, phase, c_phase = 0, 1, 1
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, tile_m, tile_n = place(tile, tiles_m, tiles_n, batches, CONFIG)
        m, n = tile_m * (PART_M * CONSUMERS), tile_n * step_of(BLOCK_N, CONFIG)
        first, last = columns_of(batch, K, batches, BLOCK_K, CONFIG)
        for k in range(first, last, BLOCK_K):
            mbarrier.wait(empty.index(slot), phase)
            ready = full.index(slot)
            mbarrier.expect(ready, STAGE_BYTES)
            for term in gl.static_range(TERMS):
                matrix = batch if TERMS == 1 else term
                for part in gl.static_range(CONSUMERS if term < CONFIG.A_TERMS else 0):
                    row = m + part * PART_M
                    at = [k, row] if CONFIG.A_TRANSPOSED else [row, k]
                    block = a_ring.index((slot * CONSUMERS + part) * CONFIG.A_TERMS + term)
                    load(a, matrix, at, ready, block)
                load_blocks(b, b_rings, matrix, k, n, ready, slot * TERMS + term, CONFIG)
            if CONFIG.STAGED:  # noqa: SIM102 (one condition is constant, the other is not)
                # Every stage holds a step of this tile by now, and no consumer frees one before it
                # is done with the tile before: nothing is lost in waiting for the buffers of C.
                if k == gl.minimum(NUM_STAGES, (K - 1) // BLOCK_K) * BLOCK_K:
                    load_subtiles(c_in, batch, m, n, c_ring, CONSUMERS, c_phase)
            slot += 1
            if slot == NUM_STAGES:
                slot = 0
                phase ^= 1
        if CONFIG.STAGED:
            c_phase ^= 1


@gluon.jit
def consume(read, part: gl.constexpr, CONFIG: gl.constexpr):
    """One warpgroup: rows ``part`` of every tile of this program."""
    ring, c_ring, c, size, fused = read
    a_ring, b_rings, full, empty = ring
    M, N, K, batches = size
    NUM_STAGES: gl.constexpr = full.shape[0]
    CONSUMERS: gl.constexpr = a_ring.shape[0] // (NUM_STAGES * CONFIG.A_TERMS)
    PART_M: gl.constexpr = a_ring.shape[2 if CONFIG.A_TRANSPOSED else 1]
    BLOCK_K: gl.constexpr = a_ring.shape[1 if CONFIG.A_TRANSPOSED else 2]
    BLOCK_N: gl.constexpr = b_rings[0].shape[1 if CONFIG.B_TRANSPOSED else 2] + CONFIG.REST
    # Of a subtile for each consumer, or as many blocks of A as a consumer reads.
    BUFFERS: gl.constexpr = c_ring[0].shape[0] // CONSUMERS
    tiles_m, tiles_n, tiles = tiles_of(size, PART_M * CONSUMERS, BLOCK_N, CONFIG)
    slot, phase, c_phase = 0, 0, 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, tile_m, tile_n = place(tile, tiles_m, tiles_n, batches, CONFIG)
        m, n = (tile_m * CONSUMERS + part) * PART_M, tile_n * step_of(BLOCK_N, CONFIG)
        if CONFIG.AUX == "sums":
            sums, due = row_sums.zeros(a_ring), row_sums.first_step(part, tile_n, tiles_n)
        zeros = zeros_of(b_rings, PART_M, CONFIG)
        accs = zeros
        steps = steps_of(batch, gl.cdiv(K, BLOCK_K), batches, CONFIG)
        if CONFIG.FLOAT64:
            accs, slot, phase = by_mma_sync.product(ring, zeros, slot, phase, steps, part, CONFIG)
        elif CONFIG.ACROSS:
            accs, slot, phase = across_k.product(ring, zeros, slot, phase, steps, part, CONFIG)
        elif CONFIG.PROMOTE:
            accs, slot, phase = promoted.product(ring, zeros, slot, phase, steps, part, CONFIG)
        else:
            for step in range(steps):
                mbarrier.wait(full.index(slot), phase)
                a_block = a_ring.index(slot * CONSUMERS + part)
                x = a_block.permute((1, 0)) if CONFIG.A_TRANSPOSED else a_block
                y = block_of(b_rings[0], slot, CONFIG)
                # One step stays in flight: the stage before is free now, and this one is not.
                token = warpgroup_mma(x, y, accs[0], use_acc=step > 0, is_async=True)
                started = start_others(token, x, b_rings, slot, accs, step > 0, CONFIG)
                if CONFIG.AUX == "sums":
                    sums, due = row_sums.add(sums, due, a_block, step, tiles_n)
                accs = wait_for_mmas(started, len(accs))
                before = (slot + NUM_STAGES - 1) % NUM_STAGES
                mbarrier.arrive(empty.index(before), count=1, pred=step > 0)
                slot += 1
                if slot == NUM_STAGES:
                    slot = 0
                    phase ^= 1
        bias = bias_of(fused, zeros[0], m, n, (M, N), CONFIG) if CONFIG.FUSED else 0
        if not (CONFIG.PROMOTE or CONFIG.ACROSS or CONFIG.FLOAT64):
            accs = wait_for_mmas(accs, 0)
            mbarrier.arrive(empty.index((slot + NUM_STAGES - 1) % NUM_STAGES), count=1)
        if CONFIG.IN_PARTS:
            rows, columns = tiles_m * (PART_M * CONSUMERS), tiles_n * BLOCK_N
            store_part(fused[10], accs, batch, m, n, rows, columns)
        else:
            store_accumulators(
                c, c_ring, part, BUFFERS, accs, bias, batch, m, n, (M, N), fused, c_phase, CONFIG
            )  # fmt: skip
        if CONFIG.AUX == "sums":
            row_sums.store(fused[10], sums, tile_n, m, M)
        if CONFIG.STAGED:
            c_phase ^= 1
    # Shared memory has to outlive the stores that read it.
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "stride_cm"], do_not_specialize_on_alignment=["c"])
def kernel(
    a, b, rest, third, c, c_rest, c_third, staged, streamed, pitch, M, N, K, batches, c_in, bias,
    scale_a, scale_b, alpha: tl.float64, beta: tl.float64, stride_im, stride_in, stride_bias,
    batch_in, stride_cm, parts, total, CONFIG: gl.constexpr, NUM_STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    a_ring = ring_of(a, NUM_STAGES * CONSUMERS * CONFIG.A_TERMS, CONFIG)
    b, c = (b, rest, third), (c, c_rest, c_third)
    b_rings = rings_of(b, NUM_STAGES * CONFIG.TERMS, CONFIG)
    c_blocks = ring_of_c(c[0], a_ring, CONSUMERS * BUFFERS, CONFIG)
    full, empty = barriers(NUM_STAGES, CONSUMERS)
    c_full, c_empty = full, empty
    if CONFIG.STAGED:
        c_full, c_empty = barriers(CONSUMERS, 1)
    # Nothing above reads global memory, so it overlaps the end of the kernel before.
    if CONFIG.L2_PREFETCH:
        prefetch_first_tile(streamed, pitch, a, b, (M, N, K), CONSUMERS, CONFIG)
    gdc_wait()
    gdc_launch_dependents()
    ring, c_ring = (a_ring, b_rings, full, empty), (c_blocks, c_full, c_empty)
    size = (M, N, K, batches)
    # fmt: off
    fused = (c_in, bias, scale_a, scale_b, alpha, beta, stride_im, stride_in, stride_bias, batch_in,
             parts, stride_cm)
    loaded, read = (a, b, staged, ring, c_ring, size), (ring, c_ring, c, size, fused)
    if CONSUMERS == 1:
        if CONFIG.MOVES_REGISTERS:
            gl.warp_specialize([
                (consume, (read, 0, CONFIG)), (produce, (loaded, CONFIG))], [1], [24])
        else:
            gl.warp_specialize([(consume, (read, 0, CONFIG)), (produce, (loaded, CONFIG))], [1])
    elif CONSUMERS == 2:
        if CONFIG.MOVES_REGISTERS:
            gl.warp_specialize([
                (consume, (read, 0, CONFIG)), (consume, (read, 1, CONFIG)),
                (produce, (loaded, CONFIG))], [4, 1], [240, 24])
        else:
            gl.warp_specialize([
                (consume, (read, 0, CONFIG)), (consume, (read, 1, CONFIG)),
                (produce, (loaded, CONFIG))], [4, 1])
    elif CONFIG.MOVES_REGISTERS:
        gl.warp_specialize([
            (consume, (read, 0, CONFIG)), (consume, (read, 1, CONFIG)),
            (consume, (read, 2, CONFIG)), (produce, (loaded, CONFIG))], [4, 4, 1], [160, 160, 24])
    else:
        gl.warp_specialize([
            (consume, (read, 0, CONFIG)), (consume, (read, 1, CONFIG)),
            (consume, (read, 2, CONFIG)), (produce, (loaded, CONFIG))], [4, 4, 1])


run = Rung(kernel, arguments, second=second, repack=repack_for_wgmma, rounding=that_rounds(kernel))
"""C[M, N] = A[M, K] @ B[K, N] into ``c``, or the same for each of a batch [batch, M, K].

Its plan: BLOCK_M, BLOCK_N, BLOCK_K (elements), GROUP_M (tile rows), NUM_STAGES; CONSUMERS, 1 to 3
warpgroups of BLOCK_M / CONSUMERS rows, 64 or 128, of float64 32 or 64; SUBTILES of BLOCK_N in which
C is stored, 1, 2 or 4 of each accumulator; BUFFERS, of a subtile for each consumer: 1, 2, or
SUBTILES, so that C_in or Z can be loaded to them, or 0: C passes through the stages, and every tile
has a program of its own. Optional: REST, columns beside the first
accumulator's, one power of two or a sum of two; L2_PREFETCH, the steps of K of the larger operand
that are prefetched. Aux "sums": row_sums.py. SWAP: 1 computes B' A', so that BLOCK_M runs along N;
0 computes A B. Without it BLOCK_N runs along the rows of C in memory; across them it can in plain
products, with a C of 16 bits or float32 that TMA stores. ACROSS: 1 reads the A of what is computed
as it lies, in a plain product of float32; REPACK copies B.
"""
