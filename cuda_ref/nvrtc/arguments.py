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
        """A 2-D tensor."""
        return cls(tensor.data_ptr(), *tensor.shape, *tensor.stride(), 0)

    def transposed(self) -> Matrix:
        return Matrix(self.data, self.cols, self.rows, self.col_stride, self.row_stride, 0)

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
    def of(cls, matrix: Matrix) -> Operand:
        """As operand in csrc/tile/predicated_loader.cuh, of 16-bit elements."""
        stored = matrix.transposed() if matrix.column_major else matrix
        sides = stored.rows, stored.cols, stored.row_stride, stored.col_stride
        return cls(matrix.data, *sides, 0, rows_aligned(stored, ITEM))


class Epilogue(ctypes.Structure):
    """tcgemm::Epilogue<float>."""

    _fields_ = (
        ("c_in", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("row_stride", "col_stride", "batch_stride")),
        ("c_in_vectors", ctypes.c_bool),
        *((name, Vector) for name in ("bias", "scale_a", "scale_b")),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("activation", ctypes.c_int32),
    )


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


class Schedule(ctypes.Structure):
    """tcgemm::sm90::Schedule, whatever its template arguments."""

    _fields_ = tuple(
        (name, ctypes.c_int32)
        for name in ("M", "N", "cluster", "batch", "a_step", "b_step", "rows", "cols")
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


def rows_aligned(matrix: Matrix, item: int) -> bool:
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


def gemm_of(a: Matrix, b: Matrix, c: Matrix, dtype_in: str, dtype_out: str) -> Gemm:
    """The plain product. What a launcher reads of it and a kernel does not is left 0."""
    gemm = Gemm(a=a, b=b, c=c, out=DTYPES[dtype_out], batch=1, alpha=1.0)
    setattr(gemm, "in", DTYPES[dtype_in])
    return gemm
