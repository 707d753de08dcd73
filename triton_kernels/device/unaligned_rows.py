"""The store of a C whose rows begin anywhere, in Gluon: vectors of 16 bytes that threads store.

TMA needs rows that begin at multiples of 16 bytes. Row m of any other C begins ``shift`` elements
behind one, 0 to 7, and each row has its own. So the vectors of memory are those of the row moved by
shift: vector t of a row holds its columns 8 t - shift to 8 t - shift + 7.

    a thread of vector t has      columns 8 t .. 8 t + 7 of a subtile, read from shared memory
    its neighbour's, by a shuffle columns 8 t - 8 .. 8 t - 1
    it stores, of these 16        columns 8 t - shift .. 8 t - shift + 7, as one aligned vector

The neighbour of a subtile's first vector is the last one of the subtile before. The first vector of
a tile has none: it belongs to the tile on the left, since tiles overlap by the OVERLAP columns of a
vector. So every vector lies in one tile as a whole, and only at C's own first and last columns are
there parts of one, which go by elements, past a branch that all other warps jump over.
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RET505
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .blocks import OVERLAP, buffer_of, halves, swizzled


@gluon.constexpr_function
def store_vector(lanes):
    """PTX for one vector: inputs as ``store_subtile`` passes them, each 4 times since a thread has
    4 words of a vector. A word is two elements.

    Args:
        lanes: of a row, neighbours in a warp.
    """
    words = range(4)
    lines = [
        # What the lane on the right needs: of a row's last lane that is the first, which needs the
        # vector of the subtile before.
        "mov.u32 lane, %laneid;",
        f"and.b32 t, lane, {lanes - 1};",
        f"setp.eq.u32 p, t, {lanes - 1};",
        "sub.u32 t, lane, 1;",
        *(f"selp.b32 c{k}, ${8 + k}, ${4 + k}, p;" for k in words),
        *(f"shfl.sync.idx.b32 c{k}, c{k}, t, {(32 - lanes) << 8 | 31}, -1;" for k in words),
        *(f"mov.b32 c{4 + k}, ${4 + k};" for k in words),
        # c0 to c7 are 16 elements, and the vector begins at element 8 - shift: at word
        # 3 - shift / 2, and there one element further where shift is odd, and two where it is even.
        "mad.wide.s32 at, $20, $16, $12;",
        "cvt.u32.u64 t, at;",
        "bfe.u32 shift, t, 1, 3;",
        "and.b32 t, shift, 4;",
        "setp.ne.u32 p, t, 0;",
        *(f"selp.b32 c{k}, c{k}, c{k + 2}, p;" for k in range(6)),
        "and.b32 t, shift, 2;",
        "setp.ne.u32 p, t, 0;",
        *(f"selp.b32 c{k}, c{k}, c{k + 1}, p;" for k in range(5)),
        "and.b32 t, shift, 1;",
        "setp.ne.u32 p, t, 0;",
        "selp.b32 t, 16, 32, p;",
        *(f"shf.r.clamp.b32 c{k}, c{k}, c{k + 1}, t;" for k in words),
        # Its first column, and whether all of it, or some, is this tile's to store.
        "sub.s32 first, $24, shift;",
        "mad.wide.s32 at, first, 2, at;",
        "add.s32 t, first, 8;",
        "setp.lt.s32 mine, $20, $28;",
        "setp.lt.and.s32 mine, first, $32, mine;",
        "setp.ge.and.s32 mine, first, $36, mine;",
        "setp.ge.and.s32 p, first, 0, mine;",
        "setp.le.and.s32 p, t, $32, p;",
        "@p st.global.v4.b32 [at], {c0, c1, c2, c3};",
        "not.pred p, p;",
        "and.pred p, p, mine;",
        "@!p bra DONE;",
        # As unsigned, a column below 0 is beyond every last one.
        *(f"mov.b32 {{e{2 * k}, e{2 * k + 1}}}, c{k};" for k in words),
        *(
            f"add.u32 t, first, {j}; setp.lt.u32 p, t, $32; @p st.global.b16 [at + {2 * j}], e{j};"
            for j in range(8)
        ),
        "DONE:",
        *(f"mov.b32 ${k}, 0;" for k in words),
    ]
    registers = (
        ".reg .pred p, mine;",
        ".reg .b64 at;",
        ".reg .b32 lane, t, shift, first, c<8>;",
        ".reg .b16 e<8>;",
    )
    return "\n".join(("{", *registers, *lines, "}"))


@gluon.jit
def store_subtile(
    c, stride, buffer, x, before, m, n, column, size, ROWS: gl.constexpr, COLUMNS: gl.constexpr
):
    """One subtile at ``column`` of C, of the tile at row m and column n; returns what threads have
    read of it, words of two elements [ROWS, COLUMNS / 2], which is the next one's ``before``."""
    M, N = size
    LANES: gl.constexpr = COLUMNS // OVERLAP
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32 // LANES, LANES], [4, 1], [1, 0])
    bytes_apart = (2 * stride).to(gl.int32)
    buffer.store(x.to(c.dtype.element_ty))
    words = buffer._reinterpret(gl.int32, [ROWS, COLUMNS // 2], swizzled(COLUMNS, 32)).load(layout)
    row = m + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    first = column + gl.arange(0, COLUMNS // 2, gl.SliceLayout(0, layout)) // 4 * OVERLAP
    # A vector that begins at n or before is another tile's, or at C's first columns.
    least = gl.where(n > 0, n + 1, -OVERLAP)
    gl.inline_asm_elementwise(
        store_vector(LANES),
        "=r,=r,=r,=r,r,r,r,r,r,r,r,r,l,l,l,l,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r",
        [words, words if before is None else before, c.to(gl.int64), bytes_apart,
         gl.expand_dims(row, 1), gl.expand_dims(first, 0), M, N, least],
        dtype=gl.int32,
        is_pure=False,
        pack=4,
    )  # fmt: skip
    return words


@gluon.jit
def subtiles_of(x, COUNT: gl.constexpr):
    """x in 1, 2, 4 or 8 parts of its columns, from left to right."""
    if COUNT == 1:
        return (x,)
    else:
        left, right = halves(x)
        if COUNT == 2:
            return left, right
        else:
            return subtiles_of(left, COUNT // 2) + subtiles_of(right, COUNT // 2)


@gluon.jit
def store_unaligned(
    c, stride, buffers, part: gl.constexpr, BUFFERS: gl.constexpr, tile, m, n, size
):
    """A tile of C, from accumulators beside each other, narrowed to C's dtype.

    Args:
        c: pointer to C[M, N], which is ``size``.
        stride: elements from a row of C to the next.
        buffers: shared memory of subtiles, BUFFERS for each part.
        tile: the accumulators.
    """
    ROWS: gl.constexpr = buffers.shape[1]
    COLUMNS: gl.constexpr = buffers.shape[2]
    FIRST: gl.constexpr = tile[0].shape[1] // COLUMNS
    SECOND: gl.constexpr = FIRST + (tile[1].shape[1] // COLUMNS if len(tile) > 1 else 0)
    THIRD: gl.constexpr = SECOND + (tile[2].shape[1] // COLUMNS if len(tile) > 2 else 0)
    before = None
    for number in gl.static_range(THIRD):
        if number < FIRST:
            x = subtiles_of(tile[0], FIRST)[number]
        elif number < SECOND:
            x = subtiles_of(tile[1], SECOND - FIRST)[number - FIRST]
        else:
            x = subtiles_of(tile[2], THIRD - SECOND)[number - SECOND]
        before = store_subtile(
            c, stride, buffer_of(buffers, number, part, BUFFERS), x, before, m, n,
            n + number * COLUMNS, size, ROWS, COLUMNS,
        )  # fmt: skip
