"""What may be asked besides the plain product, in the numbers that csrc/gemm.cuh gives it.

``fusion`` is any object with the attributes alpha and beta (numbers), c (C_in, [M, N] or
[batch, M, N] of the output's dtype, or None), bias ([N] of the output's dtype, or None), epilogue
(a key of ACTIVATIONS), scale_a and scale_b (float32 of one element, or of [M] and [N], or None),
compute (a key of COMPUTES) and mma_shape ("" or a WMMA shape, e.g. "32x8x16").
"""

from __future__ import annotations

from functools import cache
from typing import Any

ACTIVATIONS = {"": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
"""The values of tcgemm::Activation in csrc/gemm.cuh."""

COMPUTES = {
    "float32": 0,
    "fast": 1,
    "float16": 2,
    "int32": 3,
    "float64": 4,
    "ieee": 5,
    "tf32": 6,
    "tf32x3": 7,
}
"""The values of tcgemm::Compute in csrc/gemm.cuh."""


@cache
def mma_tile(shape: str) -> tuple[int, int]:
    """(m, n) of a WMMA shape such as "32x8x16"; (0, 0) where none is named."""
    if not shape:
        return 0, 0
    m, n, _ = shape.split("x")
    return int(m), int(n)


def arguments(fusion: Any) -> tuple[Any, ...]:
    """The operator's arguments after A, B and C, in the order of csrc/binding.cpp."""
    return (
        fusion.c,
        fusion.bias,
        fusion.scale_a,
        fusion.scale_b,
        float(fusion.alpha),
        float(fusion.beta),
        ACTIVATIONS[fusion.epilogue],
        COMPUTES[fusion.compute],
        *mma_tile(fusion.mma_shape),
    )
