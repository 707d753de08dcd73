"""How far a result may be from the exact one: the constants of the bound, and an error over it."""

from __future__ import annotations

import math

import torch

from ..epilogue import ACTIVATIONS
from ..problem import Fusion

ACCUMULATION = {
    "float32": 2 * 2.0**-23,
    "ieee": 2 * 2.0**-23,
    "tf32": 2 * 2.0**-23,
    "tf32x3": 2 * 2.0**-23,
    "float64": 2 * 2.0**-52,
    "float16": 2 * 2.0**-10,
    "fast": 2 * 2.0**-13,
}
"""By compute, times sqrt(K) (|A| @ |B|): what a running sum may lose."""

OPERAND_LOSS = {"tf32": 2.0**-10, "tf32x3": 3 * 2.0**-22}
"""By compute, times |A| @ |B|: what the operands lose before they are multiplied."""

PARTIAL_SUMS = 2.0**-11
"""Times |A| @ |B|: what 8-bit floats lose in the tensor core's 14-bit sums before they are promoted
to float32: each of an instruction's 32 products is cut to 13 bits below the largest."""

TERMS = 4 * 2.0**-24
"""Times |alpha D| + |beta C| + |bias|: the float32 roundings of scaling and adding."""

STEEPEST = {"": 1.0, **{name: of.steepest for name, of in ACTIVATIONS.items()}}
"""By epilogue: how much it can stretch an error of its argument."""

OF_THE_EPILOGUE = 2.0**-20
"""Times the magnitude of its argument: what the epilogue's own arithmetic may lose in float32."""

UNIT_ROUNDOFF = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
HALF_LEAST_SUBNORMAL = {
    torch.float16: 2.0**-25,
    torch.bfloat16: 2.0**-134,
    torch.float32: 2.0**-150,
    torch.float64: 0.0,
}
ROUNDS_TO_INF = {
    torch.float16: 65520.0,
    torch.bfloat16: 2.0**127 * (2 - 2.0**-8),
    torch.float32: 2.0**127 * (2 - 2.0**-24),
    torch.float64: math.inf,
}


def float32_rounding(in_float32: float, fusion: Fusion) -> float:
    """A loss that is given for float32 arithmetic, as it is where the products sum in float64."""
    return in_float32 * 2.0**-29 if fusion.compute == "float64" else in_float32


def error_ratios(c: torch.Tensor, exact: torch.Tensor, slack: torch.Tensor) -> torch.Tensor:
    """Of each element its error over its bound, infinite where no error is allowed."""
    dtype = c.dtype
    if not dtype.is_floating_point:
        wrong = c != exact.to(torch.int64).to(dtype)
        return torch.zeros_like(exact).masked_fill(wrong, math.inf)
    c = c.double()
    bound = slack + UNIT_ROUNDOFF[dtype] * exact.abs() + HALF_LEAST_SUBNORMAL[dtype]
    ratio = ((c - exact).abs() / bound).masked_fill(c == exact, 0.0)
    # NaN with a finite slack stands for the limit of an epilogue at minus infinity.
    near_limit = exact.isnan() & (c.abs() <= slack)
    limit = ROUNDS_TO_INF[dtype]
    may_overflow = c.isinf() & (c.sign() == exact.sign()) & (exact.abs() + slack >= limit)
    must_overflow = ~c.isinf() & (exact.abs() - slack >= limit)
    ratio = ratio.masked_fill(may_overflow | near_limit | (c.isnan() & exact.isnan()), 0.0)
    return ratio.masked_fill(must_overflow | ratio.isnan(), math.inf)
