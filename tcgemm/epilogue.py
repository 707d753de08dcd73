"""What comes after the product, in torch: the meaning of a fusion and of each epilogue's name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from .problem import Fusion


def _gelu(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.gelu(x)
    # On the CPU torch makes NaN of infinity in float32.
    return y if x.is_cuda else torch.where(x == torch.inf, x, y)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda x: x,
    "relu": torch.relu,
    "gelu": _gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
"""Epilogue's name -> the function, element by element. relu(NaN) is NaN; at minus infinity others
are NaN in torch, and a kernel may give their limit 0."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums are computed in: int64 for int32, which narrowing wraps; float64; else float32."""
    return torch.int64 if dtype == torch.int32 else torch.promote_types(dtype, torch.float32)


def finished(x: torch.Tensor, fusion: Fusion) -> torch.Tensor:
    """epilogue(alpha * scales * x + beta * C_in + bias); x, the product, is overwritten."""
    if fusion.scale_a is not None:
        x *= fusion.scale_a.reshape(-1, 1)
    if fusion.scale_b is not None:
        x *= fusion.scale_b.reshape(1, -1)
    if fusion.alpha != 1:
        x *= _factor(x, fusion.alpha)
    if fusion.c is not None:
        x.add_(fusion.c.to(x.dtype), alpha=_factor(x, fusion.beta))
    if fusion.bias is not None:
        x += fusion.bias
    if x.dtype == torch.int64:
        # The sum wraps first: relu sees its sign.
        x = x.to(torch.int32)
    return FUNCTIONS[fusion.epilogue](x)


def _factor(x: torch.Tensor, factor: float) -> float | int:
    """alpha or beta; for integers as int32 holds it modulo 2^32."""
    if x.dtype.is_floating_point:
        return factor
    return (int(factor) + 2**31) % 2**32 - 2**31
