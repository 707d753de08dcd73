"""What comes after the product, in torch: the meaning of a fusion and of each epilogue's name.

The table of epilogues is here and nowhere else in this package. Importing it imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from .problem import Fusion


class Activation(NamedTuple):
    """An epilogue's function of one element."""

    function: Callable[[torch.Tensor], torch.Tensor]
    """In torch; relu(NaN) is NaN. At minus infinity others are NaN in torch, and a kernel may give
    their limit 0."""
    steepest: float
    """How much it can stretch an error of its argument: the largest slope."""


def _relu(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


def _gelu(x: torch.Tensor) -> torch.Tensor:
    import torch

    y = torch.nn.functional.gelu(x)
    # On the CPU torch makes NaN of infinity in float32.
    return y if x.is_cuda else torch.where(x == torch.inf, x, y)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.gelu(x, approximate="tanh")


def _silu(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.silu(x)


ACTIVATIONS = {
    "relu": Activation(_relu, 1.0),
    "gelu": Activation(_gelu, 1.13),
    "gelu_tanh": Activation(_gelu_tanh, 1.13),
    "silu": Activation(_silu, 1.1),
}
"""Epilogue's name -> what it does. A kernel's row says which of them it fuses."""

NONE = Activation(lambda x: x, 1.0)

FUNCTIONS = {name: of.function for name, of in {"": NONE, **ACTIVATIONS}.items()}
"""Epilogue's name, "" for none -> its function."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums are computed in: int64 for int32, which narrowing wraps; float64; else float32."""
    import torch

    return torch.int64 if dtype == torch.int32 else torch.promote_types(dtype, torch.float32)


def finished(x: torch.Tensor, fusion: Fusion) -> torch.Tensor:
    """epilogue(alpha * scales * x + beta * C_in + bias); x, the product, is overwritten."""
    import torch

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
