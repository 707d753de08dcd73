"""How float16 is summed where that is left open: in float32, where it costs nothing.

compute="float16" says that sums of float16 are precise enough. On boards whose tensor cores sum in
float32 half as fast that buys time. On others it buys none, and the kernels that sum in float32 are
the ones that are tuned: there a call that names no kernel is given those. cuBLAS words its
CUBLAS_COMPUTE_16F in the same way: compute precisions "with at least 16-bit half precision"
(cuBLAS library documentation, cublasComputeType_t).
"""

from __future__ import annotations

from dataclasses import replace

from ..problem import Problem
from ..vocabulary import AUTO

EQUAL_RATE = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities whose tensor cores sum float16 in either type at the same rate: the data
sheets of A100, H100, H200 and B200 print one for both."""

TUNED = ("triton", "cuda", AUTO)
"""Backends whose kernels sum in float32 as a rule."""


def as_summed(problem: Problem, backend: str, kernel: str | None = None) -> Problem:
    """The problem with the sums that it gets of a backend.

    Args:
        kernel: the one that is named; it sums as it is asked to, as the kernel does that has a
            named WMMA shape.
    """
    left_open = problem.compute == "float16" and kernel is None and not problem.mma_shape
    if left_open and backend in TUNED and problem.capability in EQUAL_RATE:
        return replace(problem, compute="float32")
    return problem
