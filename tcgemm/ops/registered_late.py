"""What parts of torch that are loaded late learn of the operators: once they are loaded."""

from __future__ import annotations

import sys
from typing import Any

import torch

from . import operator

_PRODUCTS = ("gemm", "gemm_out", "gemm_with_z", "gemm_through_z", "gemm_with_sums")
"""Operators that multiply their first two operands."""

_done: set[str] = set()
_formulas: dict[Any, Any] = {}


def also_counted(formulas: dict[Any, Any]) -> None:
    """Let torch's flop counter know of operators that are registered later: packet -> formula."""
    _formulas.update(formulas)
    _done.discard("flops")


def look() -> None:
    """Register with every such part that is loaded by now."""
    if "sharding" not in _done and "torch.distributed.tensor" in sys.modules:
        _done.add("sharding")
        from . import sharding

        sharding.register()
    if "lowering" not in _done and "torch._inductor.lowering" in sys.modules:
        _done.add("lowering")
        from . import lowering

        if lowering.works():
            lowering.register()
    if "torch.utils.flop_counter" in sys.modules:
        _count_flops()


operator.at_traces.append(look)  # what traces may have loaded what writes programs


def _flops(a: Any, b: Any, *others: Any, out_shape: Any = None, **how: Any) -> int:
    """2 M N K for each product of the batch, from the operands' shapes."""
    operations: int = 2 * a[-2] * a[-1] * b[-1]
    for size in torch.broadcast_shapes(a[:-2], b[:-2]):
        operations *= size
    return operations


def _count_flops() -> None:
    """The formulas, for torch's table and for a FlopCounterMode that has copied it already."""
    flop_counter = sys.modules["torch.utils.flop_counter"]
    own = [getattr(torch.ops.tcgemm, name) for name in _PRODUCTS]
    formulas = {**dict.fromkeys(own, _flops), **_formulas}
    if "flops" not in _done:
        _done.add("flops")
        for packet, formula in formulas.items():
            if packet not in flop_counter.flop_registry:
                flop_counter.register_flop_formula(packet)(formula)
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    for mode in _get_current_dispatch_mode_stack():
        table = getattr(getattr(mode, "counter", mode), "flop_registry", None)
        if isinstance(table, dict):
            for packet in formulas:
                table.setdefault(packet, flop_counter.flop_registry[packet])
