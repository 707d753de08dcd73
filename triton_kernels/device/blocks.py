"""Blocks of matrices in Gluon: which tile is next, and how the TMA unit loads and stores a block.

A descriptor has two dimensions, or three: a batch, of which a block is one matrix; or the two
terms of a float32 operand, hi and lo, of which each is a matrix.
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RUF005, RET505 - Gluon takes no starred list.
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from ..host import storage, tile_blocks
from . import bands

load_block = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_block = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
in_bands = gluon.jit(bands.in_bands.fn)

OVERLAP = gl.constexpr(storage.OVERLAP)
MOST_BLOCKS = gl.constexpr(tile_blocks.MOST_BLOCKS)


@gluon.constexpr_function
def step_of(BLOCK_N, CONFIG):
    """Columns from a tile to the next."""
    return BLOCK_N - OVERLAP.value if CONFIG.UNALIGNED_C else BLOCK_N


@gluon.constexpr_function
def swizzled(COLUMNS, bits):
    """How a block of 16-bit elements lies in shared memory, seen as elements of so many bits."""
    return gl.NVMMASharedLayout(min(2 * COLUMNS, 128), bits, rank=2)


@gluon.jit
def tiles_of(size, ROWS: gl.constexpr, COLUMNS: gl.constexpr, CONFIG: gl.constexpr):
    """Tiles of so many rows and columns: down a C, across it, and of all of the batch."""
    M, N, _, batches = size
    tiles_m, tiles_n = gl.cdiv(M, ROWS), gl.cdiv(N, step_of(COLUMNS, CONFIG))
    return tiles_m, tiles_n, tiles_m * tiles_n * (batches if CONFIG.BATCHED else 1)


@gluon.jit
def place(tile, tiles_m, tiles_n, batches, CONFIG: gl.constexpr):
    """Which tile programs come to as number ``tile``: its matrix in the batch, row and column.

    They go from the last tile to the first. The kernel behind a product mostly reads C from its
    beginning: of a C that the L2 cannot hold, that is what was stored last, and is still there.
    """
    batch = 0
    if CONFIG.BATCHED:
        batch = batches - 1 - tile // (tiles_m * tiles_n)
        tile = tile % (tiles_m * tiles_n)
    tile_m, tile_n = in_bands(tiles_m * tiles_n - 1 - tile, tiles_m, tiles_n, CONFIG.GROUP_M)
    return batch, tile_m, tile_n


@gluon.constexpr_function
def pairs(dtype):
    """Elements of a descriptor for one of a matrix: TMA's float64 are pairs of int32."""
    return 2 if dtype == gl.float64 else 1


@gluon.jit
def in_elements(at, block):
    """Two coordinates of a block in elements of its descriptor."""
    return [at[0], at[1] * pairs(block.dtype)]


@gluon.jit
def load(x, matrix, at, ready, block):
    """Load the block of x at two coordinates, of this matrix where x holds several."""
    at = in_elements(at, block)
    if len(x.block_shape) == 3:
        load_block(x, [matrix] + at, ready, block._reinterpret(x.dtype, x.block_shape, x.layout))
    else:
        load_block(x, at, ready, block._reinterpret(x.dtype, x.block_shape, x.layout))


@gluon.jit
def store(x, matrix, at, block):
    """Have a block written to x at two coordinates, of this matrix where x holds several."""
    at = in_elements(at, block)
    if len(x.block_shape) == 3:
        store_block(x, [matrix] + at, block._reinterpret(x.dtype, x.block_shape, x.layout))
    else:
        store_block(x, at, block._reinterpret(x.dtype, x.block_shape, x.layout))


@gluon.jit
def load_subtiles(c_in, matrix, m, n, c_ring, CONSUMERS: gl.constexpr, phase):
    """Load each consumer's subtiles of C_in, once those of the tile before have been stored."""
    buffers, full, empty = c_ring
    SUBTILES: gl.constexpr = buffers.shape[0] // CONSUMERS
    PART_M: gl.constexpr = buffers.shape[1]
    WIDTH: gl.constexpr = buffers.shape[2]
    for part in gl.static_range(CONSUMERS):
        mbarrier.wait(empty.index(part), phase)
        mbarrier.expect(full.index(part), SUBTILES * c_in.block_type.nbytes)
        for subtile in gl.static_range(SUBTILES):
            at = [m + part * PART_M, n + subtile * WIDTH]
            load(c_in, matrix, at, full.index(part), buffer_of(buffers, subtile, part, SUBTILES))


@gluon.jit
def buffer_of(buffers, number, part: gl.constexpr, BUFFERS: gl.constexpr):
    """A consumer's buffer for its subtile of that number, of BUFFERS that each consumer has."""
    CONSUMERS: gl.constexpr = buffers.shape[0] // BUFFERS
    return buffers.index(number % BUFFERS * CONSUMERS + part)


@gluon.jit
def halves(x):
    """Left and right half of the columns; both lie in the same threads, so nothing moves."""
    rows: gl.constexpr = x.shape[0]
    columns: gl.constexpr = x.shape[1]
    return gl.split(gl.permute(gl.reshape(x, (rows, 2, columns // 2)), (0, 2, 1)))


@gluon.jit
def ring_of(x, count: gl.constexpr, CONFIG: gl.constexpr):
    """Shared memory of ``count`` of x's blocks, each of two dimensions."""
    TYPE: gl.constexpr = gl.float64 if CONFIG.FLOAT64 else x.dtype
    rows: gl.constexpr = x.block_shape[len(x.block_shape) - 2]
    columns: gl.constexpr = x.block_shape[len(x.block_shape) - 1] // pairs(TYPE)
    layout: gl.constexpr = gl.NVMMASharedLayout(
        x.layout.swizzle_byte_width, TYPE.primitive_bitwidth
    )
    return gl.allocate_shared_memory(TYPE, [count, rows, columns], layout)


@gluon.jit
def ring_of_c(c, a_ring, COUNT: gl.constexpr, CONFIG: gl.constexpr):
    """Shared memory of ``COUNT`` epilogue subtiles of C, which are what a descriptor's blocks are;
    of a C that is a pointer, as many rows as a block of A has. Parts of K need none, and with a
    COUNT of 0 subtiles lie in A's blocks: a consumer's in those that it alone has read."""
    if CONFIG.IN_PARTS or COUNT == 0:
        return a_ring
    elif CONFIG.UNALIGNED_C:
        ROWS: gl.constexpr = a_ring.shape[2 if CONFIG.A_TRANSPOSED else 1]
        layout: gl.constexpr = swizzled(CONFIG.UNALIGNED_C, 16)
        return gl.allocate_shared_memory(
            c.dtype.element_ty, [COUNT, ROWS, CONFIG.UNALIGNED_C], layout
        )
    else:
        return ring_of(c, COUNT, CONFIG)


@gluon.jit
def barriers(COUNT: gl.constexpr, READERS: gl.constexpr):
    """Two barriers for each of COUNT buffers: full, of bytes, and empty, of READERS arrivals."""
    full = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for number in gl.static_range(COUNT):
        mbarrier.init(full.index(number), count=1)
        mbarrier.init(empty.index(number), count=READERS)
    return full, empty


@gluon.jit
def block_of(b_ring, number, CONFIG: gl.constexpr):
    """A block of B as wgmma takes it, [BLOCK_K, columns]."""
    block = b_ring.index(number)
    return block.permute((1, 0)) if CONFIG.B_TRANSPOSED else block


@gluon.constexpr_function
def layout_of(columns, dtype):
    """How a warpgroup's accumulators lie in its registers, which names its wgmma: m64, n, k. Of
    float64 mma.sync makes them, of 16 x 8 for each of 2 x 2 warps (by_mma_sync.py)."""
    if dtype == gl.float64:
        return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[2, 2], instr_shape=[16, 8])
    # Triton knows no m64n256k32 of integers.
    n = min(columns, 128) if dtype.is_int() else columns
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, n, 256 // dtype.primitive_bitwidth]
    )


@gluon.jit
def prefetch_block(
    x, row, k, R, K, pitch, ROWS: gl.constexpr, DEPTH: gl.constexpr, TRANSPOSED: gl.constexpr
):
    """Have DEPTH columns from k on of ROWS rows of x[R, K] prefetched into L2, by 128 bytes."""
    EACH: gl.constexpr = 1024 // x.dtype.element_ty.primitive_bitwidth
    # Rows and columns in storage order.
    HIGH: gl.constexpr = DEPTH if TRANSPOSED else ROWS
    LINES: gl.constexpr = max((ROWS if TRANSPOSED else DEPTH) // EACH, 1)
    one = gl.arange(0, HIGH * LINES, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    high, low = one // LINES, one % LINES * EACH
    if TRANSPOSED:
        high, low = gl.minimum(k + high, K - 1), gl.minimum(row + low, R - 1)
    else:
        high, low = gl.minimum(row + high, R - 1), gl.minimum(k + low, K - 1)
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [x + high.to(gl.int64) * pitch + low],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def prefetch_first_tile(x, pitch, a, b, size, CONSUMERS: gl.constexpr, CONFIG: gl.constexpr):
    """Prefetch CONFIG.L2_PREFETCH columns of the larger operand, of this program's first tile.

    Args:
        b: descriptors of B's blocks beside each other, of which two may be None.
    """
    M, N, K = size
    BLOCK_M: gl.constexpr = CONSUMERS * a.block_shape[1 if CONFIG.A_TRANSPOSED else 0]
    WIDE: gl.constexpr = b[0].block_shape[0 if CONFIG.B_TRANSPOSED else 1]
    BLOCK_N: gl.constexpr = WIDE + CONFIG.REST
    tiles_m, tiles_n, _ = tiles_of((M, N, K, 1), BLOCK_M, BLOCK_N, CONFIG)
    _, tile_m, tile_n = place(gl.program_id(0), tiles_m, tiles_n, 1, CONFIG)
    # Programs that share a block of the operand ask for different columns of it.
    k = (tile_n if CONFIG.STREAM_A else tile_m) * CONFIG.L2_PREFETCH
    if CONFIG.STREAM_A:
        prefetch_block(
            x, tile_m * BLOCK_M, k, M, K, pitch, BLOCK_M, CONFIG.L2_PREFETCH, CONFIG.A_TRANSPOSED
        )
    else:
        n = tile_n * step_of(BLOCK_N, CONFIG)
        for each in gl.static_range(MOST_BLOCKS):
            if b[each] is not None:
                prefetch_block(
                    x,
                    n,
                    k,
                    N,
                    K,
                    pitch,
                    b[each].block_shape[0 if CONFIG.B_TRANSPOSED else 1],
                    CONFIG.L2_PREFETCH,
                    not CONFIG.B_TRANSPOSED,
                )
                n += b[each].block_shape[0 if CONFIG.B_TRANSPOSED else 1]
