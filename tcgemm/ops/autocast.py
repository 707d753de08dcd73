"""Autocast: a product under it multiplies in the dtype that it names, as torch.mm does."""

from __future__ import annotations

import weakref
from collections.abc import Callable
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


def kinds() -> list[str]:
    """The kinds of devices, of those that tcgemm runs on, for which autocast is on."""
    return [kind for kind in DEVICES if torch.is_autocast_enabled(kind)]


def enabled(device: str | None = None) -> bool:
    """Whether autocast is on for a kind of device; for any, where none is named."""
    return bool(kinds()) if device is None else device in kinds()


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


class _Region:
    """Casts of weights that hold until autocast ends, or forgets its own."""

    def __init__(self) -> None:
        self.casts: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}


_regions: dict[torch.device, Callable[[], _Region | None]] = {}
_leaves: dict[torch.device, torch.Tensor] = {}


def _region(device: torch.device) -> _Region:
    """That of autocast's own casts, which torch drops at its end without telling anybody.

    A sum with a product lets torch keep the cast of what is added, and saves no tensor, of which
    hooks would hear; of no elements, it runs no kernel. The region hangs on the node that
    differentiates that cast, and so lives as long.
    """
    region = _regions.get(device, lambda: None)()
    if region is None:
        if device not in _leaves:
            _leaves[device] = torch.empty(0, 0, device=device, requires_grad=True)
        leaf = _leaves[device]
        node: Any = torch.addmm(leaf, leaf.detach(), leaf.detach()).grad_fn
        while node is not None and "ToCopy" not in node.name():
            node = next((n for n, _ in node.next_functions if n is not None), None)
        region = _Region()
        if node is not None:
            node.metadata["tcgemm"] = region
        _regions[device] = weakref.ref(region)
    return region


def cast(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor in autocast's dtype; that of a weight is kept, as autocast keeps it."""
    if t.dtype is dtype:
        return t
    if not (
        t.requires_grad
        and t.is_leaf
        and t.dtype is torch.float32
        and torch.is_grad_enabled()
        and torch.is_autocast_cache_enabled()
    ):
        return t.to(dtype)
    casts = _region(t.device).casts
    kept = casts.get((id(t), dtype))
    if kept is None:
        kept = casts[id(t), dtype] = t, t.to(dtype)
    return kept[1]


def without(
    on: list[str], product: Any, x: Any, weight: Any, bias: Any, out_dtype: Any, compute: Any
) -> torch.Tensor | None:
    """``product(x, weight, bias, compute)`` of operands that autocast has cast, outside of it.

    They are plain tensors; what is cast is what ``tcgemm::gemm`` casts under autocast.

    Args:
        on: ``kinds()``.
    """
    if x.device.type in on and x.dtype in _CAST and weight.dtype in _CAST:
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = cast(x, dtype), cast(weight, dtype)
        bias = None if bias is None else cast(bias, out_dtype or dtype)
        if compute not in COMPUTES[dtype_name(dtype)]:
            compute = None
    for kind in on:
        torch.set_autocast_enabled(kind, False)
    try:
        result: torch.Tensor | None = product(x, weight, bias, compute)
    finally:
        for kind in on:
            torch.set_autocast_enabled(kind, True)
    return result


for key in DEVICES.values():
    operator.library.impl("gemm", product, key)
