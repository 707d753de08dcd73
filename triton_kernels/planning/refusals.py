"""Why TMA cannot serve a problem, as a sentence with the numbers. Imports no triton."""

from __future__ import annotations

from typing import Any

from ..host.storage import UNIT, column_major, itemsize, why_not_tma


def refuse_tma(problem: Any) -> str | None:
    """Why TMA cannot reach an operand, as a sentence with the numbers; None when it can."""
    M, N, K = problem.M, problem.N, problem.K
    for name, shape, dtype in (
        ("A", (M, K), problem.dtype_in),
        ("B", (K, N), problem.dtype_in),
        ("C", (M, N), problem.dtype_out),
    ):
        strides = getattr(problem, f"{name.lower()}_strides")
        alignment = getattr(problem, f"{name.lower()}_alignment")
        reason = why_not_tma(name, shape, strides, alignment, itemsize(dtype))
        if reason:
            return reason
    # Stores are cut at the edge by units of 16 bytes, not by elements, except in the interpreter.
    width = (M if column_major(problem) else N) * itemsize(problem.dtype_out)
    if width % UNIT and problem.device != "cpu":
        step = UNIT // itemsize(problem.dtype_out)
        return (
            f"C has rows of {width // itemsize(problem.dtype_out)} elements, {width} bytes, and "
            f"TMA stores whole units of {UNIT}, past the row's end: a multiple of {step} fits"
        )
    if problem.batch > 1:
        dtypes = (problem.dtype_in, problem.dtype_in, problem.dtype_out)
        for name, stride, dtype in zip("ABC", problem.batch_strides, dtypes, strict=True):
            if stride * itemsize(dtype) % UNIT:
                step = UNIT // itemsize(dtype)
                return (
                    f"{name} has a batch stride of {stride} elements, {stride * itemsize(dtype)} "
                    f"bytes, and TMA needs a multiple of {UNIT}: {-(-stride // step) * step} "
                    "elements fit"
                )
    return None
