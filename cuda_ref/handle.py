"""A kind of call as C++ keeps it: a Gemm whose address is the handle of every call of the kind.

``bind`` fills the structures of csrc/host/gemm.cuh once, with shapes, strides, types, factors and
the plan. A call passes that handle, the stream and the operands' addresses to a C function of the
rung's library (csrc/host/binding.cpp): no list, no tensor and no name crosses the border.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .fusion import ACTIVATIONS, AUX, COMPUTES, dtype_number, mma_tile
from .planning.launch import FIELDS, launch_plan

OUT_OF_MEMORY = -2
"""What they return where torch's allocator has no memory left."""


class Matrix(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("col_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
    )


class Vector(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("col_stride", ctypes.c_int64),
    )


class Plan(ctypes.Structure):
    _fields_ = tuple((name.lower(), ctypes.c_int32) for name in FIELDS)


class Gemm(ctypes.Structure):
    _fields_ = (
        ("a", Matrix),
        ("b", Matrix),
        ("c", Matrix),
        ("in", ctypes.c_int32),
        ("out", ctypes.c_int32),
        ("batch", ctypes.c_int64),
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("c_in", Matrix),
        ("bias", Vector),
        ("scale_a", Vector),
        ("scale_b", Vector),
        ("activation", ctypes.c_int32),
        ("aux", ctypes.c_int32),
        ("compute", ctypes.c_int32),
        ("mma_m", ctypes.c_int32),
        ("mma_n", ctypes.c_int32),
        ("scratch", ctypes.c_void_p),
        ("plan", ctypes.POINTER(Plan)),
    )


def open_library(path: str) -> ctypes.CDLL:
    """The library of a rung, with the types of its functions.

    Raises OSError, or AttributeError where it has other functions.
    """
    library = ctypes.CDLL(path)
    library.tcgemm_start.argtypes = [ctypes.c_void_p] * 5
    library.tcgemm_start_fused.argtypes = [ctypes.c_void_p] * 9
    library.tcgemm_error.argtypes = [ctypes.c_int]
    library.tcgemm_error.restype = ctypes.c_char_p
    return library


def gemm_of(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any, plan: Mapping[str, int] | None
) -> Gemm:
    """What calls like this one have in common; of the tensors it holds no address.

    Args:
        a, b, c: matrices, or all of them batches with the batch first.
        fusion: what is asked besides the product (see fusion.py), or None.
        plan: how the rung is to run it; None where the rung chooses.
    """
    gemm = Gemm(a=_matrix(a), b=_matrix(b), c=_matrix(c), alpha=1.0, beta=0.0)
    setattr(gemm, "in", dtype_number(a.dtype))
    gemm.out = dtype_number(c.dtype)
    gemm.batch = c.shape[0] if c.dim() == 3 else 1
    # ctypes keeps what a pointer points to alive with the structure.
    gemm.plan = ctypes.pointer(Plan(*(launch_plan(plan) if plan is not None else ())))
    if fusion is None:
        return gemm
    gemm.alpha, gemm.beta = fusion.alpha, fusion.beta
    gemm.activation, gemm.aux = ACTIVATIONS[fusion.epilogue], AUX[fusion.aux]
    gemm.compute = COMPUTES[fusion.compute]
    gemm.mma_m, gemm.mma_n = mma_tile(fusion.mma_shape)
    if fusion.c is not None:
        gemm.c_in = _matrix(fusion.c)
    gemm.bias = _vector(fusion.bias, 1)
    gemm.scale_a = _vector(fusion.scale_a, 0)
    gemm.scale_b = _vector(fusion.scale_b, 1)
    return gemm


def _matrix(x: torch.Tensor) -> Matrix:
    *batch, rows, cols = x.shape
    strides = x.stride()
    return Matrix(None, rows, cols, *strides[-2:], strides[0] if batch else 0)


def _vector(x: torch.Tensor | None, dimension: int) -> Vector:
    """One element for all, or one for each row (dimension 0) or column (1) of C."""
    strides = [0, 0]
    if x is not None and x.numel() > 1:
        strides[dimension] = x.stride(-1)
    return Vector(None, *strides)


def bound(
    name: str, library: ctypes.CDLL, device: int, gemm: Gemm, plain: bool
) -> Callable[..., None]:
    """A function of (a, b, c, c_in, bias, scale_a, scale_b) for calls of one kind.

    It starts them on the current stream of the device, which has to be the current one. Of the
    tensors it reads their addresses alone. ``plain``: nothing follows C.
    """
    stream_of, handle = torch._C._cuda_getCurrentRawStream, ctypes.addressof(gemm)
    # A C function gives the GIL up; it returns an int by default.
    plainly, with_all = library.tcgemm_start, library.tcgemm_start_fused

    def start_plain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *none: Any) -> None:
        code = plainly(handle, stream_of(device), a.data_ptr(), b.data_ptr(), c.data_ptr())
        if code:
            raise _error(name, library, code, gemm)

    def start_fused(
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        c_in: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale_a: torch.Tensor | None,
        scale_b: torch.Tensor | None,
    ) -> None:
        code = with_all(
            handle, stream_of(device), a.data_ptr(), b.data_ptr(), c.data_ptr(),
            None if c_in is None else c_in.data_ptr(),
            None if bias is None else bias.data_ptr(),
            None if scale_a is None else scale_a.data_ptr(),
            None if scale_b is None else scale_b.data_ptr(),
        )  # fmt: skip
        if code:
            raise _error(name, library, code, gemm)

    start = start_plain if plain else start_fused
    start.by_address = True  # type: ignore[attr-defined]
    return start


def _error(name: str, library: ctypes.CDLL, code: int, gemm: Gemm) -> RuntimeError:
    says = library.tcgemm_error(code).decode()
    if code == OUT_OF_MEMORY:
        return torch.OutOfMemoryError(says)
    c = gemm.c
    return RuntimeError(
        f"the launch of {name} failed at M={c.rows} N={c.cols} K={gemm.a.cols} "
        f"batch={gemm.batch}: {says}"
    )
