"""What comes after the product, in torch: the meaning of each epilogue's name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch


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
