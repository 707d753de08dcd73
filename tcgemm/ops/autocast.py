"""Autocast: a product under it multiplies in the dtype that it names, as torch.mm does."""

from __future__ import annotations

from typing import Any

import torch

from ..operands import dtype_name
from ..problem import COMPUTES
from . import operator
from .how import How

DEVICES = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)
_CAST = (torch.float16, torch.bfloat16, torch.float32)


def enabled(device: str | None = None) -> bool:
    """Whether autocast is on for a kind of device; for any, where none is named."""
    kinds = DEVICES if device is None else (device,)
    return any(kind in DEVICES and torch.is_autocast_enabled(kind) for kind in kinds)


def product(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, **how: Any
) -> torch.Tensor:
    """``tcgemm::gemm`` with its operands in autocast's dtype; C and bias in the result's.

    float64, integers and 8-bit floats stay what they are, and out_dtype what the caller says. A
    way to sum that the dtype has not is dropped.
    """
    asked = How(**how)
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        if a.dtype in _CAST and b.dtype in _CAST:
            dtype = torch.get_autocast_dtype(a.device.type)
            a, b = a.to(dtype), b.to(dtype)
            stored = asked.out_dtype or dtype
            c, bias = (None if t is None else t.to(stored) for t in (c, bias))
            if asked.compute not in COMPUTES[dtype_name(dtype)]:
                asked = asked._replace(compute="")
        result: torch.Tensor = operator.gemm(a, b, c, bias, scale_a, scale_b, **asked._asdict())
    return result


for key in DEVICES.values():
    operator.library.impl("gemm", product, key)
