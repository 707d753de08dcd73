"""What a call asks for, told by shapes, dtypes and numbers alone: no element is looked at.

A kernel's launch and a trace, whose tensors have no memory, are described by the same checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .errors import OperandError
from .operands import (
    batch_shape,
    check_bias,
    check_c,
    check_compute,
    check_factors,
    check_operands,
    check_scale,
    dtype_name,
    output_dtype,
)
from .problem import Fusion


@dataclass(slots=True)
class Description:
    """A checked call of ``gemm``."""

    shape: tuple[int, ...]
    """Of the result, as the caller sees it."""
    dtype: torch.dtype
    """Of the result."""
    batch: tuple[int, ...]
    """The leading dimensions of the result."""
    vectors: tuple[bool, bool]
    """Whether A, B has one dimension."""
    asked: Fusion
    """What is asked besides the product; its tensors are None."""
    scales: tuple[bool, bool]
    """Whether the scale of A, of B is a tensor."""
    row_scales: bool
    """Whether each row of A has a scale of its own."""


def describe(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    bias: torch.Tensor | None,
    epilogue: str | None,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    compute: str | None,
    scale_a: Any,
    scale_b: Any,
    mma_shape: str | None,
) -> Description:
    """The description of a call with these arguments of ``gemm``; raises as ``gemm`` does.

    Sizes may be symbols of a trace, which are then compared as their hints say.
    """
    check_operands(a, b)
    dtype = dtype_name(a.dtype)
    result_dtype = output_dtype(a, out, out_dtype)
    alpha, beta = check_factors(dtype, alpha, beta, epilogue)
    compute = check_compute(dtype, compute)
    vector_a, vector_b = a.dim() == 1, b.dim() == 1
    M = 1 if vector_a else a.shape[-2]
    N = 1 if vector_b else b.shape[-1]
    batch = batch_shape(a[None, :] if vector_a else a, b[:, None] if vector_b else b)
    shape = (*batch, *(() if vector_a else (M,)), *(() if vector_b else (N,)))
    factor_a = check_scale("scale_a", scale_a, M, "rows of A", a)
    factor_b = check_scale("scale_b", scale_b, N, "columns of B", b)
    if bias is not None:
        check_bias(bias, N, result_dtype, a)
    if c is not None:
        check_c(c, shape, result_dtype, a)
    elif beta != 0:
        raise OperandError(
            f"beta is {beta} and there is no C to multiply: pass c=, or c=out to add in place"
        )
    scale_tensors = [isinstance(scale, torch.Tensor) for scale in (scale_a, scale_b)]
    return Description(
        shape=shape,
        dtype=result_dtype,
        batch=batch,
        vectors=(vector_a, vector_b),
        asked=Fusion(
            alpha=alpha * factor_a * factor_b,
            beta=beta,
            epilogue=epilogue or "",
            compute=compute,
            mma_shape=mma_shape or "",
        ),
        scales=(scale_tensors[0], scale_tensors[1]),
        row_scales=scale_tensors[0] and scale_a.numel() > 1,
    )
