"""The structures that kernels take, as csrc/ has them, made of a product's matrices.

``test_nvrtc.py`` asks NVRTC for the size and offsets of each.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from .. import handle
from ..fusion import DTYPES
from ..handle import Gemm, Vector

PANEL = 64
"""Elements in a row of 128 bytes: PANEL in csrc/ptx/wgmma.cuh."""

CHUNK_ROWS = 64
"""As in csrc/sm90/epilogue_chunks.cuh."""

MOST_ELEMENTS = 2**31 - 256
"""As in csrc/sm90/tensor_map.cuh."""

ITEM = 2
"""Bytes of an element of A and B."""


class Matrix(handle.Matrix):
    """tcgemm::Matrix, with what launchers ask of it."""

    @classmethod
    def of(cls, tensor: Any) -> Matrix:
        """A matrix, or a batch of them with the batch first."""
        *batch, rows, cols = tensor.stride()
        return cls(tensor.data_ptr(), *tensor.shape[-2:], rows, cols, batch[0] if batch else 0)

    def transposed(self) -> Matrix:
        strides = self.col_stride, self.row_stride, self.batch_stride
        return Matrix(self.data, self.cols, self.rows, *strides)

    @property
    def column_major(self) -> bool:
        """As column_major in csrc/host/select.cuh."""
        return self.row_stride == 1 and (self.col_stride != 1 or self.rows > self.cols)

    @property
    def leading_dimension(self) -> int:
        return int(self.col_stride if self.column_major else self.row_stride)


class Operand(ctypes.Structure):
    """tcgemm::Operand."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("outer", "inner", "outer_stride", "inner_stride")),
        ("batch_stride", ctypes.c_int64),
        ("vectors", ctypes.c_bool),
    )

    @classmethod
    def of(cls, matrix: Matrix, batch: int = 1, item: int = ITEM) -> Operand:
        """As operand in csrc/tile/predicated_loader.cuh."""
        stored = matrix.transposed() if matrix.column_major else matrix
        sides = stored.rows, stored.cols, stored.row_stride, stored.col_stride
        return cls(matrix.data, *sides, stored.batch_stride, rows_are_vectors(stored, batch, item))


_BEFORE_FACTORS = (
    ("c_in", ctypes.c_void_p),
    *((name, ctypes.c_int64) for name in ("row_stride", "col_stride", "batch_stride")),
    ("c_in_vectors", ctypes.c_bool),
    *((name, Vector) for name in ("bias", "scale_a", "scale_b")),
)


class Epilogue(ctypes.Structure):
    """tcgemm::Epilogue<float>."""

    _fields_ = (
        *_BEFORE_FACTORS,
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("activation", ctypes.c_int32),
    )


class WideEpilogue(ctypes.Structure):
    """tcgemm::Epilogue<double>."""

    _fields_ = (
        *_BEFORE_FACTORS,
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("activation", ctypes.c_int32),
    )


class IntegerEpilogue(ctypes.Structure):
    """tcgemm::Epilogue<int32_t>; factors are kept modulo 2^32."""

    _fields_ = (
        *_BEFORE_FACTORS,
        ("alpha", ctypes.c_int32),
        ("beta", ctypes.c_int32),
        ("activation", ctypes.c_int32),
    )


EPILOGUES = {"float": Epilogue, "double": WideEpilogue, "int32_t": IntegerEpilogue}
"""The type of the accumulators, as C++ has it -> the structure."""


def epilogue_of(gemm: Gemm, accumulator: str, item: int) -> ctypes.Structure:
    """As epilogue_of in csrc/tile/epilogue.cuh; ``item``: bytes of an element of C."""
    c = gemm.c_in
    factors = (gemm.alpha, gemm.beta)
    if accumulator == "int32_t":
        factors = (int(gemm.alpha), int(gemm.beta))  # ctypes keeps the low 32 bits
    vectors = bool(c.data) and rows_are_vectors(c, gemm.batch, item)
    return EPILOGUES[accumulator](
        c.data, c.row_stride, c.col_stride, c.batch_stride, vectors,
        gemm.bias, gemm.scale_a, gemm.scale_b, *factors, gemm.activation,
    )  # fmt: skip


class PlainOutput(ctypes.Structure):
    """tcgemm::sm90::PlainOutput."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("col_stride", ctypes.c_int64),
        ("pairs", ctypes.c_bool),
        ("batch_stride", ctypes.c_int64),
    )

    @classmethod
    def of(cls, c: Matrix, item: int) -> PlainOutput:
        """As plain_output in csrc/sm90/tensor_map.cuh."""
        even = c.row_stride % 2 == 0 and c.cols % 2 == 0 and (c.data or 0) % (2 * item) == 0
        return cls(c.data, c.row_stride, c.col_stride, c.col_stride == 1 and even, 0)


class Output(ctypes.Structure):
    """tcgemm::sm90::Output."""

    _fields_ = (
        *PlainOutput._fields_,
        ("in_rows", ctypes.c_bool),
        ("odd", ctypes.c_bool),
        ("overlap", ctypes.c_bool),
    )


class Divisor(ctypes.Structure):
    """tcgemm::Divisor."""

    _fields_ = (("factor", ctypes.c_uint32), ("shift", ctypes.c_int32))

    @classmethod
    def of(cls, d: int) -> Divisor:
        """Of a number from 1 to 2**31, as Divisor::of in csrc/tile/divisor.cuh."""
        shift = (d - 1).bit_length()
        return cls(((1 << shift) - d << 32) // d + 1, shift)


class Schedule(ctypes.Structure):
    """tcgemm::sm90::Schedule, whatever its template arguments."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in ("M", "N", "cluster", "batch", "a_step", "b_step", "rows", "cols", "apart")
        ),
        ("together", ctypes.c_int32),
        *((name, Divisor) for name in ("by_matrix", "by_group", "by_height", "by_last")),
    )


class Plain(ctypes.Structure):
    """tcgemm::sm90::Plain, which is empty."""

    _fields_ = (("nothing", ctypes.c_char),)


@dataclass(frozen=True)
class TensorMap:
    """What a CUtensorMap is encoded from: a box of a matrix whose ``inner`` side is contiguous."""

    data: int
    inner: int
    outer: int
    pitch_bytes: int
    box_inner: int
    box_outer: int
    dtype: str


def rows_are_vectors(matrix: Any, batch: int, item: int) -> bool:
    """As rows_are_vectors in csrc/tile/epilogue.cuh: of every matrix of a batch."""
    return rows_aligned(matrix, item) and (batch == 1 or matrix.batch_stride * item % 16 == 0)


def rows_aligned(matrix: Any, item: int) -> bool:
    """As rows_aligned in csrc/: 16-byte vectors reach along every row."""
    rows_apart = matrix.rows == 1 or matrix.row_stride * item % 16 == 0
    return matrix.col_stride == 1 and rows_apart and (matrix.data or 0) % 16 == 0


def tensor_map(
    matrix: Matrix, inner_is_rows: bool, dtype: str, item: int, box: tuple[int, int]
) -> TensorMap | None:
    """As tensor_map in csrc/sm90/tensor_map.cuh; None where TMA cannot read or write it so."""
    side = matrix.transposed() if inner_is_rows else matrix
    inner, outer = int(side.cols), int(side.rows)
    pitch = -(-inner * item // 16) * 16 if outer == 1 else int(side.row_stride) * item
    if (
        max(inner, outer) > MOST_ELEMENTS
        or (inner > 1 and side.col_stride != 1)
        or pitch <= 0
        or pitch % 16
        or pitch >= 2**40
        or (matrix.data or 0) % 16
    ):
        return None
    return TensorMap(int(matrix.data or 0), inner, outer, pitch, *box, dtype)


def plain_gemm(a: Matrix, b: Matrix, c: Matrix, dtype_in: str, dtype_out: str) -> Gemm:
    """The plain product. What a launcher reads of it and a kernel does not is left 0."""
    gemm = Gemm(a=a, b=b, c=c, out=DTYPES[dtype_out], batch=1, alpha=1.0)
    setattr(gemm, "in", DTYPES[dtype_in])
    return gemm


def fused_gemm(
    a: Any, b: Any, c: Any, fusion: Any, c_in: Any, bias: Any, scale_a: Any, scale_b: Any
) -> Gemm:
    """What is asked of tensors, with the addresses of all that follows the product."""
    gemm = handle.gemm_of(a, b, c, fusion, None)
    given = {"c_in": c_in, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    for name, tensor in given.items():
        if tensor is not None:
            getattr(gemm, name).data = tensor.data_ptr()
    return gemm


def transpose_fused(gemm: Gemm) -> None:
    """What follows the product becomes that of C transposed, as in csrc/host/select.cuh."""
    c = gemm.c_in
    c.rows, c.cols, c.row_stride, c.col_stride = c.cols, c.rows, c.col_stride, c.row_stride
    for vector in (gemm.bias, gemm.scale_a, gemm.scale_b):
        vector.row_stride, vector.col_stride = vector.col_stride, vector.row_stride
    gemm.mma_m, gemm.mma_n = gemm.mma_n, gemm.mma_m
