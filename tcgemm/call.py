"""``gemm`` and ``matmul``: the first call of a kind makes a launch, and every one of it runs it."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.overrides import handle_torch_function

from .arrays import as_given, as_tensors, in_words_of_arrays, is_array
from .dispatch import default_backend
from .errors import OperandTypeError
from .launch_cache import forget as forget
from .launch_cache import guessed, key_of, launches, remember_guess, run, run_launch
from .ops import autocast_enabled, multiply, seen_by_torch, traced
from .tensors import as_number, recorders, traces

_autocast = getattr(torch._C, "_is_any_autocast_enabled", autocast_enabled)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    backend: str | None = None,
    kernel: str | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """C = A @ B: ``gemm`` without what comes after the product.

    Args:
        a: A, [..., M, K] or [K]; any strides and storage offset.
        b: B, [..., K, N] or [K], the dtype and device of A. Leading dimensions broadcast.
        backend: "triton", "cuda", "cublas", or "auto", the faster of the first two, of what is
            built here; by default the environment variable TCGEMM_BACKEND, or "triton".
        kernel: a rung by name (see ``tcgemm.kernels()``); by default, of those of the backend that
            accept the problem, the fastest by its tables and costs and by models of what was
            timed; where these say nothing, the highest rung.
        out: C, written in place: any strides without overlap, disjoint from A and B.
        out_dtype: dtype of C; by default that of A, int32 for 8-bit integers and bfloat16 for
            8-bit floats.

    Returns:
        C, which is ``out`` where that is given; row-major otherwise.

    Raises:
        As ``gemm``.
    """
    if traces():
        return traced(a, b, out=out, out_dtype=out_dtype, backend=backend, kernel=kernel)
    arguments = (
        a, b, None, 1.0, 0.0, None, None, out, out_dtype, None, None, None, None,
        backend or default_backend(), kernel,
    )  # fmt: skip
    try:
        return _call(arguments)
    except _Recorded as by:
        return handle_torch_function(
            matmul, by.recorders, a, b, backend=backend, kernel=kernel, out=out,
            out_dtype=out_dtype,
        )  # fmt: skip


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: torch.Tensor | None = None,
    epilogue: str | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    compute: str | None = None,
    scale_a: float | torch.Tensor | None = None,
    scale_b: float | torch.Tensor | None = None,
    mma_shape: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """epilogue(alpha * A @ B + beta * C + bias), in one kernel.

    Args:
        a: A, [..., M, K] or [K]; a tensor, or an array of numpy or of anything that speaks DLPack,
            and then all are such and so is the result: float16, bfloat16, float32, float64, int8,
            uint8, float8_e4m3fn or float8_e5m2; any strides and storage offset.
        b: B, [..., K, N] or [K], the dtype and device of A. Leading dimensions broadcast.
        c: C, which ``beta`` multiplies: broadcasts to the result, has its dtype; never read where
            beta is 0. It may be ``out`` itself.
        alpha, beta: factors; whole numbers for integer products.
        bias: [N], added to each row; the dtype of the result.
        epilogue: one of problem.EPILOGUES, e.g. "relu" or "gelu" (with erf), applied last, in
            float32.
        out: the result, written in place: any strides without overlap, disjoint from A, B, bias
            and the scales.
        out_dtype: dtype of the result; by default that of A, int32 for 8-bit integers and bfloat16
            for 8-bit floats.
        compute: how the products are summed, "float32" by default. For float16 operands also
            "float16", in which a GPU sums that is faster by it, as GeForce boards are; an A100,
            H100, H200 or B200 is not, and sums in float32 still, unless a kernel is named that sums
            in float16; for float32 "tf32x3" (the default: float32's accuracy on tensor cores),
            "tf32" (operands rounded to 11 bits) or "ieee" (no tensor core); for 8-bit floats
            also "fast" (the tensor core's own accumulator).
        scale_a, scale_b: factors of 8-bit floats: a number, or a float32 tensor of one element or
            of one for each row of A, column of B.
        mma_shape: the WMMA shape, "16x16x16", "32x8x16", ..., for a kernel that has several.
        backend, kernel: as for ``matmul``.

    Returns:
        The result, [..., M, N] without the dimension that a vector lacks; ``out`` where given.

    Raises:
        OperandError: shapes that do not fit, operands on two devices, an ``out`` that overlaps,
            factors or names that do not exist.
        OperandTypeError: dtypes that differ, a dtype that no kernel takes, not a tensor.
        UnsupportedError: the kernel or backend refuses this problem; the message says why.
        UnknownNameError: no backend or kernel of that name.
        ToolchainError: the kernel cannot be compiled or run here.

    The work is ordered on the current stream of A's device. alpha = 0 or K = 0 leaves A and B
    unread. Batches whose dimensions step as one are one launch; others one launch each for the
    outer dimensions. The result has a gradient by A, B, C and bias, of any order and mode, but for
    8-bit operands and with ``out`` (docs/pytorch.md).
    """
    if traces():
        return traced(
            a, b, c, alpha, beta, bias, epilogue, out, out_dtype, compute, scale_a, scale_b,
            mma_shape, backend, kernel,
        )  # fmt: skip
    arguments = (
        a, b, c, alpha, beta, bias, epilogue, out, out_dtype, compute, scale_a, scale_b, mma_shape,
        backend or default_backend(), kernel,
    )  # fmt: skip
    try:
        return _call(arguments)
    except _Recorded as by:
        return handle_torch_function(
            gemm, by.recorders, a, b, c, alpha=alpha, beta=beta, bias=bias, epilogue=epilogue,
            out=out, out_dtype=out_dtype, compute=compute, scale_a=scale_a, scale_b=scale_b,
            mma_shape=mma_shape, backend=backend, kernel=kernel,
        )  # fmt: skip


class _Recorded(Exception):
    """Nothing is to be multiplied: the call is recorded, as torch.fx does."""

    def __init__(self, found: tuple[Any, ...]) -> None:
        self.recorders = found


def _call(arguments: tuple[Any, ...]) -> torch.Tensor:
    """By the launch that is kept for such calls; all that is special about others is found here."""
    may_guess = arguments[2] is None  # no C
    launch = guessed(arguments) if may_guess else None
    if launch is None:
        try:
            launch = launches.get(key_of(*arguments))
        except (AttributeError, RuntimeError, TypeError):
            launch = None
        if launch is not None and may_guess:
            remember_guess(arguments, launch)
    if launch is None or _autocast():
        return _unkept(arguments)
    return run_launch(launch, arguments)


def _unkept(arguments: tuple[Any, ...]) -> Any:
    """A call that no launch is kept for yet, or that is more than a product of plain tensors."""
    if found := recorders(arguments):
        raise _Recorded(found)
    if is_array(arguments[0]):
        try:
            result = _call(as_tensors(arguments))
        except OperandTypeError as error:
            raise in_words_of_arrays(error) from None
        out = arguments[7]
        return as_given(result, arguments[0]) if out is None else out
    if seen_by_torch(arguments):
        return multiply(arguments)
    factors = tuple(map(as_number, ("alpha", "beta"), arguments[3:5]))
    if any(map(operator.is_not, factors, arguments[3:5])):  # a kept launch has Python's numbers
        return _call((*arguments[:3], *factors, *arguments[5:]))
    return run(arguments)
