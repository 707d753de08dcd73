"""warp_specialized: one warp loads, warpgroups multiply; written in Gluon, for Hopper.

    C[M, N] = A[M, K] @ B[K, N]

Adds:     warps with a role. One producer warp does nothing but ask the TMA unit for blocks; each
          of CONSUMERS warpgroups multiplies its own BLOCK_M / CONSUMERS rows of the tile. They
          meet in a ring of NUM_STAGES stages and two barriers a stage: ``full`` counts the bytes
          that arrive, ``empty`` the consumers that are done. The producer runs ahead into the next
          tile, so its first stages are there before C of this one is stored; C leaves in PIECES
          through small buffers while the next tile multiplies; and registers move from the
          producer (24) to the consumers (up to 240).
          With ``griddepcontrol`` the kernel sets up its barriers while the one before it ends.
Missing:  clusters, whose blocks share an operand by TMA multicast: Triton 3.6 has none.

Tiles:    C in block tiles of BLOCK_M x BLOCK_N, many a program; K in steps of BLOCK_K, each a
          stage; wgmma m64nBLOCK_N by each consumer, one group in flight.

Storage:  as in ``descriptor``: an operand stored transposed is loaded as it lies and its block in
          shared memory read through a transposed view; a column-major C is C' = B' A'.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from . import ordering
from .descriptors import describe
from .launcher import keep, kept, prepare, stream_of
from .runtime import cdiv, check, programs
from .storage import letter

load_block = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_block = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
grouped = gluon.jit(ordering.grouped.fn)


@gluon.jit
def produce(
    a,
    b,
    ring,
    size,
    GROUP_M: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
):
    """One warp: every block of A and B of every tile of this program, in order."""
    a_ring, b_ring, full, empty = ring
    M, N, K = size
    NUM_STAGES: gl.constexpr = full.shape[0]
    CONSUMERS: gl.constexpr = a_ring.shape[0] // NUM_STAGES
    PART_M: gl.constexpr = a.block_shape[1 if A_TRANSPOSED else 0]
    BLOCK_M: gl.constexpr = PART_M * CONSUMERS
    BLOCK_K: gl.constexpr = a.block_shape[0 if A_TRANSPOSED else 1]
    BLOCK_N: gl.constexpr = b.block_shape[0 if B_TRANSPOSED else 1]
    STAGE_BYTES: gl.constexpr = CONSUMERS * a.block_type.nbytes + b.block_type.nbytes
    tiles_m, tiles_n = gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N)
    slot, phase = 0, 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = grouped(tile, tiles_m, tiles_n, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        for k in range(0, K, BLOCK_K):
            # The first round waits for the phase before the first, which counts as complete.
            mbarrier.wait(empty.index(slot), phase)
            ready = full.index(slot)
            mbarrier.expect(ready, STAGE_BYTES)
            for part in gl.static_range(CONSUMERS):
                row = m + part * PART_M
                at = [k, row] if A_TRANSPOSED else [row, k]
                load_block(a, at, ready, a_ring.index(slot * CONSUMERS + part))
            load_block(b, [n, k] if B_TRANSPOSED else [k, n], ready, b_ring.index(slot))
            slot += 1
            if slot == NUM_STAGES:
                slot = 0
                phase ^= 1


@gluon.jit
def halves(x):
    """Left and right half of the columns; both lie in the same threads, so nothing moves."""
    rows: gl.constexpr = x.shape[0]
    columns: gl.constexpr = x.shape[1]
    return gl.split(gl.permute(gl.reshape(x, (rows, 2, columns // 2)), (0, 2, 1)))


@gluon.jit
def store_piece(c, buffer, piece, m, n, PENDING: gl.constexpr):
    """One piece of C by TMA, once at most PENDING earlier ones still read their buffers."""
    tma.store_wait(PENDING)
    buffer.store(piece.to(c.dtype))
    fence_async_shared()
    store_block(c, [m, n], buffer)


@gluon.jit
def consume(
    ring,
    c_ring,
    c,
    size,
    part: gl.constexpr,
    GROUP_M: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
):
    """One warpgroup: rows ``part`` of every tile of this program."""
    a_ring, b_ring, full, empty = ring
    M, N, K = size
    NUM_STAGES: gl.constexpr = full.shape[0]
    CONSUMERS: gl.constexpr = a_ring.shape[0] // NUM_STAGES
    BUFFERS: gl.constexpr = c_ring.shape[0] // CONSUMERS
    PART_M: gl.constexpr = c_ring.shape[1]
    PIECE_N: gl.constexpr = c_ring.shape[2]
    BLOCK_M: gl.constexpr = PART_M * CONSUMERS
    BLOCK_K: gl.constexpr = a_ring.shape[1 if A_TRANSPOSED else 2]
    BLOCK_N: gl.constexpr = b_ring.shape[1 if B_TRANSPOSED else 2]
    PIECES: gl.constexpr = BLOCK_N // PIECE_N
    acc_type: gl.constexpr = gl.int32 if a_ring.dtype.is_int() else gl.float32
    # Triton knows no m64n256k32 of integers.
    MMA_N: gl.constexpr = min(BLOCK_N, 128) if a_ring.dtype.is_int() else BLOCK_N
    MMA_K: gl.constexpr = 256 // a_ring.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, MMA_N, MMA_K]
    )
    tiles_m, tiles_n = gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N)
    k_tiles = gl.cdiv(K, BLOCK_K)
    slot, phase = 0, 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = grouped(tile, tiles_m, tiles_n, GROUP_M)
        m, n = tile_m * BLOCK_M + part * PART_M, tile_n * BLOCK_N
        acc = gl.zeros((PART_M, BLOCK_N), acc_type, layout)
        for step in range(k_tiles):
            mbarrier.wait(full.index(slot), phase)
            a_block = a_ring.index(slot * CONSUMERS + part)
            b_block = b_ring.index(slot)
            acc = warpgroup_mma(
                a_block.permute((1, 0)) if A_TRANSPOSED else a_block,
                b_block.permute((1, 0)) if B_TRANSPOSED else b_block,
                acc,
                use_acc=step > 0,
                is_async=True,
            )
            # One group stays in flight, so the stage before is free now, and this one is not.
            acc = warpgroup_mma_wait(1, deps=[acc])
            before = (slot + NUM_STAGES - 1) % NUM_STAGES
            mbarrier.arrive(empty.index(before), count=1, pred=step > 0)
            slot += 1
            if slot == NUM_STAGES:
                slot = 0
                phase ^= 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index((slot + NUM_STAGES - 1) % NUM_STAGES), count=1)

        first = part * BUFFERS
        if PIECES == 1:
            store_piece(c, c_ring.index(first), acc, m, n, BUFFERS - 1)
        else:
            left, right = halves(acc)
            if PIECES == 2:
                store_piece(c, c_ring.index(first), left, m, n, BUFFERS - 1)
                store_piece(
                    c, c_ring.index(first + 1 % BUFFERS), right, m, n + PIECE_N, BUFFERS - 1
                )
            else:
                for side in gl.static_range(2):
                    x, y = halves(left if side == 0 else right)
                    at = n + side * 2 * PIECE_N
                    store_piece(c, c_ring.index(first), x, m, at, BUFFERS - 1)
                    store_piece(
                        c, c_ring.index(first + 1 % BUFFERS), y, m, at + PIECE_N, BUFFERS - 1
                    )
    # Shared memory has to outlive the stores that read it.
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K"])
def kernel(
    a,
    b,
    c,
    M,
    N,
    K,
    GROUP_M: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
    BUFFERS: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
):
    a_ring = gl.allocate_shared_memory(a.dtype, [NUM_STAGES * CONSUMERS] + a.block_shape, a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [NUM_STAGES] + b.block_shape, b.layout)
    c_ring = gl.allocate_shared_memory(c.dtype, [CONSUMERS * BUFFERS] + c.block_shape, c.layout)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(NUM_STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=CONSUMERS)
    # Nothing above touches global memory, so it overlaps the end of the kernel before.
    gdc_wait()
    gdc_launch_dependents()

    ring = (a_ring, b_ring, full, empty)
    size = (M, N, K)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume, (ring, c_ring, c, size, 0, GROUP_M, A_TRANSPOSED, B_TRANSPOSED)),
                (produce, (a, b, ring, size, GROUP_M, A_TRANSPOSED, B_TRANSPOSED)),
            ],
            [1],
            [24],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (ring, c_ring, c, size, 0, GROUP_M, A_TRANSPOSED, B_TRANSPOSED)),
                (consume, (ring, c_ring, c, size, 1, GROUP_M, A_TRANSPOSED, B_TRANSPOSED)),
                (produce, (a, b, ring, size, GROUP_M, A_TRANSPOSED, B_TRANSPOSED)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (ring, c_ring, c, size, 0, GROUP_M, A_TRANSPOSED, B_TRANSPOSED)),
                (consume, (ring, c_ring, c, size, 1, GROUP_M, A_TRANSPOSED, B_TRANSPOSED)),
                (consume, (ring, c_ring, c, size, 2, GROUP_M, A_TRANSPOSED, B_TRANSPOSED)),
                (produce, (a, b, ring, size, GROUP_M, A_TRANSPOSED, B_TRANSPOSED)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


DTYPES = {
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float32: gl.float32,
    torch.int8: gl.int8,
    torch.int32: gl.int32,
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.float8_e5m2: gl.float8e5,
}


def swizzled(base: Any, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    """A descriptor whose blocks lie in shared memory as wgmma reads them."""
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[base.dtype])
    return TensorDescriptor(base, shape, strides, block, layout)


def arguments(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    BLOCK_M: int,
    BLOCK_N: int,
    BLOCK_K: int,
    GROUP_M: int,
    NUM_STAGES: int,
    CONSUMERS: int,
    PIECES: int,
    BUFFERS: int,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``."""
    if letter(c.shape, c.stride()) == "t":
        a, b, c = b.mT, a.mT, c.mT
    (M, K), N = a.shape, b.shape[1]
    a_transposed = letter(a.shape, a.stride()) == "t"
    b_transposed = letter(b.shape, b.stride()) == "t"
    part = BLOCK_M // CONSUMERS
    descriptors = (
        describe(a, (part, BLOCK_K), a_transposed, swizzled),
        describe(b, (BLOCK_K, BLOCK_N), b_transposed, swizzled),
        describe(c, (part, BLOCK_N // PIECES), False, swizzled),
    )
    grid = (min(programs(a), cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)),)
    constants = {
        "GROUP_M": GROUP_M,
        "NUM_STAGES": NUM_STAGES,
        "CONSUMERS": CONSUMERS,
        "BUFFERS": BUFFERS,
        "A_TRANSPOSED": a_transposed,
        "B_TRANSPOSED": b_transposed,
        "num_warps": 4,
        "launch_pdl": True,
    }
    return grid, (*descriptors, M, N, K), constants


def run(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: None = None, **plan: int
) -> None:
    """C[M, N] = A[M, K] @ B[K, N] into ``c``; float16 or bfloat16 in, the same or float32 out.

    Args:
        fusion: None: the row fuses nothing.
        plan: BLOCK_M, BLOCK_N, BLOCK_K (elements), GROUP_M (tile rows), NUM_STAGES; CONSUMERS, 1 to
            3 warpgroups of BLOCK_M / CONSUMERS rows, 64 or 128; PIECES, 1, 2 or 4, of BLOCK_N in
            which C leaves; BUFFERS, 1 or 2, of a piece for each consumer.

    Raises:
        RuntimeError: the operands are on the CPU.
    """
    device = a.get_device()
    key = (
        kernel, device, a.dtype, c.dtype, a.data_ptr(), b.data_ptr(), c.data_ptr(),
        a.shape, b.shape, a.stride(), b.stride(), c.stride(), *plan.values(),
    )  # fmt: skip
    launch = kept(key)
    if launch is None:
        check(a)
        launch = prepare(kernel, *arguments(a, b, c, **plan))
        keep(key, launch)
    launch(stream_of(device))
