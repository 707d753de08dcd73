"""The epilogue in Gluon: a tile of C is stored in subtiles, through shared memory, by TMA.

A subtile is all rows of the tile and a part of its columns. Each warpgroup alternates between its
BUFFERS buffers of a subtile: it writes one while the TMA unit reads the other, and goes on to its
next tile while the last are still being read. Where it has no next tile, these are its blocks of A.

    C = activation(alpha * scale_a * scale_b * acc + beta * C_in + bias)

Where there is a C_in, every subtile has its buffer: the producer loads C_in there while the
mainloop runs, the warpgroup writes the result over it, and gives the buffers back once they are
read. A C_in that TMA cannot reach is read in place.

With a pre-activation Z [M, N], in C's dtype, it is one of these:

    Z = alpha * acc + bias, C = activation(Z before it is narrowed)     CONFIG.AUX "write"
    C = alpha * acc * activation's derivative at Z                      CONFIG.AUX "read"

Z that is read takes the way of C_in. Z that is written passes the buffers as C does, a subtile of Z
before that of C; where TMA cannot reach it, it is stored in place.
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RET505
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from .blocks import buffer_of, pairs, store
from .epilogue import activate, through


@gluon.jit
def along(start, x, ACROSS: gl.constexpr):
    """Indices from ``start`` on of x's rows (ACROSS 1) or columns (ACROSS 0)."""
    return start + gl.arange(0, x.shape[1 - ACROSS], gl.SliceLayout(ACROSS, x.type.layout))


@gluon.jit
def vector(source, stride, start, size, x, ACROSS: gl.constexpr):
    """A number for each row (ACROSS 1) or column (ACROSS 0) of x, from ``start`` on of ``size``."""
    at = along(start, x, ACROSS)
    return gl.load(source + at.to(gl.int64) * stride, mask=at < size, other=0)


@gluon.jit
def bias_of(fused, x, m, n, size, CONFIG: gl.constexpr):
    """The bias along the tile's columns, or rows where C' is computed; zero without one."""
    bias = fused[1]
    stride_bias = fused[8]
    M, N = size
    if bias is None:
        return 0
    elif CONFIG.BIAS_ROWS:
        return vector(bias, stride_bias, m, M, x, 1)
    else:
        # Rows of C are whole units of 16 bytes; told so, the compiler loads by twos.
        UNIT: gl.constexpr = 128 // bias.dtype.element_ty.primitive_bitwidth
        return vector(bias, stride_bias, n, N // UNIT * UNIT, x, 0)


@gluon.jit
def scaled(x, m, n, size, fused, CONFIG: gl.constexpr):
    """alpha * scale_a * scale_b * x, the whole accumulator."""
    scale_a, scale_b, alpha = fused[2], fused[3], fused[4]
    M, N = size
    if CONFIG.SCALED:
        factor = alpha.to(x.dtype)
        if scale_a is not None and not CONFIG.ROW_SCALES_A:
            factor *= gl.load(scale_a)
        if scale_b is not None and not CONFIG.ROW_SCALES_B:
            factor *= gl.load(scale_b)
        x *= factor
    if CONFIG.ROW_SCALES_A:
        x *= gl.expand_dims(vector(scale_a, 1, m, M, x, 1), 1)
    if CONFIG.ROW_SCALES_B:
        x *= gl.expand_dims(vector(scale_b, 1, n, N, x, 0), 0)
    return x


@gluon.jit
def finish(x, staged, batch, m, n, size, fused, CONFIG: gl.constexpr):
    """activation(x + beta * C_in), of the subtile at row m and column n of C[M, N]; or x times the
    activation's derivative.

    Args:
        staged: shared memory that holds this subtile of C_in, or Z, where CONFIG.STAGED.
        fused: (C_in or Z in place, or a descriptor of the Z to be written, or None; bias, scale_a,
            scale_b, alpha, beta, strides of what is in place, bias's, C_in's batch stride), as
            ``arguments`` has them.
    """
    c_in, beta = fused[0], fused[5]
    READ: gl.constexpr = CONFIG.AUX == "read"
    ACTIVATION: gl.constexpr = CONFIG.ACTIVATION
    if CONFIG.STAGED:
        before = staged.load(x.type.layout).to(x.dtype)
        x = through(x, before, ACTIVATION, False) if READ else x + beta.to(x.dtype) * before
    if c_in is not None and CONFIG.AUX != "write":
        at, inside = places(x, batch, m, n, size, fused)
        before = gl.load(c_in + at, mask=inside, other=0).to(x.dtype)
        x = through(x, before, ACTIVATION, False) if READ else x + beta.to(x.dtype) * before
    return x if READ else activate(x, ACTIVATION, False)


@gluon.jit
def places(x, batch, m, n, size, fused):
    """Where the elements of C_in or Z lie behind its first, and which of them exist."""
    stride_im, stride_in, batch_in = fused[6], fused[7], fused[9]
    M, N = size
    row, column = along(m, x, 1), along(n, x, 0)
    at = gl.expand_dims(row.to(gl.int64) * stride_im, 1)
    at += gl.expand_dims(column.to(gl.int64) * stride_in, 0)
    if batch_in is not None:
        at += batch.to(gl.int64) * batch_in
    return at, gl.expand_dims(row < M, 1) & gl.expand_dims(column < N, 0)


@gluon.jit
def store_by_tma(c, buffer, subtile, batch, m, n, PENDING: gl.constexpr, CONFIG: gl.constexpr):
    """One subtile, once at most PENDING earlier ones still have to be read; with SWAP it is stored
    transposed, and c is [N, M].

    The compiler puts a barrier of the warpgroup after the wait, which only the thread that issues
    the stores has reason to make, and one after the fence, before that thread stores.
    """
    tma.store_wait(PENDING)
    if CONFIG.C_TRANSPOSED:
        buffer.permute((1, 0)).store(subtile.to(buffer.dtype))
        fence_async_shared()
        store(c, batch, [n, m], buffer)
    else:
        buffer.store(subtile.to(buffer.dtype))
        fence_async_shared()
        store(c, batch, [m, n], buffer)


@gluon.jit
def as_block_of(c, buffer):
    """The memory of a buffer, or the beginning of it, as a block of a descriptor."""
    rows: gl.constexpr = c.block_shape[len(c.block_shape) - 2]
    columns: gl.constexpr = c.block_shape[len(c.block_shape) - 1] // pairs(buffer.dtype)
    if rows == buffer.shape[0] and columns == buffer.shape[1]:
        return buffer
    else:
        layout: gl.constexpr = gl.NVMMASharedLayout(
            c.layout.swizzle_byte_width, buffer.dtype.primitive_bitwidth
        )
        return buffer._reinterpret(buffer.dtype, [rows, columns], layout)


@gluon.jit
def store_subtile(
    c, buffers, part: gl.constexpr, BUFFERS: gl.constexpr, FIRST: gl.constexpr,
    subtile: gl.constexpr, x, batch, m, n, size, fused, CONFIG: gl.constexpr,
):  # fmt: skip
    """Subtile number subtile of the accumulator, finished, to C; before that to Z, as it is."""
    column = n + subtile * x.shape[1]
    z, stride_zm = fused[0], fused[6]
    WRITE: gl.constexpr = CONFIG.AUX == "write"
    STORES: gl.constexpr = 2 if WRITE and stride_zm is None else 1
    LAST: gl.constexpr = STORES * (FIRST + subtile + 1) - 1
    buffer = as_block_of(c, buffer_of(buffers, LAST, part, BUFFERS))
    if STORES == 2:
        first = buffer_of(buffers, LAST - 1, part, BUFFERS)
        store_by_tma(z, first, x, batch, m, column, BUFFERS - 1, CONFIG)
    elif WRITE:
        at, inside = places(x, batch, m, column, size, fused)
        gl.store(z + at, x.to(c.dtype), mask=inside)
    if WRITE:
        # A branch, lest the compiler begin all subtiles' activations while the first Z is stored:
        # for that there are not enough registers. A part of a last tile may have no row of C.
        if m < size[0]:
            x = finish(x, buffer, batch, m, column, size, fused, CONFIG)
            store_by_tma(c, buffer, x, batch, m, column, BUFFERS - 1, CONFIG)
    else:
        if CONFIG.FUSED:
            x = finish(x, buffer, batch, m, column, size, fused, CONFIG)
        store_by_tma(c, buffer, x, batch, m, column, BUFFERS - 1, CONFIG)
