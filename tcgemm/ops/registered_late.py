"""What parts of torch that are loaded late learn of the operators: once they are loaded."""

from __future__ import annotations

import sys
from typing import Any

import torch

from . import operator

_done: set[str] = set()


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
    """The formula, for torch's table and for a FlopCounterMode that has copied it already."""
    flop_counter = sys.modules["torch.utils.flop_counter"]
    packets = (torch.ops.tcgemm.gemm, torch.ops.tcgemm.gemm_out)
    if "flops" not in _done:
        _done.add("flops")
        flop_counter.register_flop_formula(list(packets))(_flops)
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    for mode in _get_current_dispatch_mode_stack():
        table = getattr(getattr(mode, "counter", mode), "flop_registry", None)
        if isinstance(table, dict):
            for packet in packets:
                table.setdefault(packet, flop_counter.flop_registry[packet])
