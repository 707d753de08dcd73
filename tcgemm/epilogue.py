"""What comes after the product, in torch: the meaning of each epilogue's name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
"""Epilogue's name -> the function, element by element. relu(NaN) is NaN."""
