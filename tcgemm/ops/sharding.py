"""DTensor: how a product is divided among the ranks of a mesh dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from . import operator

_CHANGES_RULES = ["alpha", "beta", "epilogue", "out_dtype", "compute", "backend", "rung"]
"""Arguments that a kept decision may not be shared between."""


def register() -> None:
    """Give DTensor the rules of ``tcgemm::gemm``."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    register_sharding(operator.gemm)(_rules)
    known = getattr(propagator, "op_to_schema_info", {})
    if operator.gemm in known:
        # register_sharding keeps decisions apart by shapes and integers only.
        kind = type(known[operator.gemm])
        known[operator.gemm] = kind(100, list(_CHANGES_RULES), needs_pytree=True)
    else:  # a decision may be shared with an epilogue: none may leave a partial sum
        register_sharding(operator.gemm)(_whole_sums)


def _whole_sums(*operands: Any, **how: Any) -> list[tuple[list[Any], list[Any]]]:
    return _rules(*operands, **{**how, "epilogue": "any"})


def _rules(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, **how: Any
) -> list[tuple[list[Any], list[Any]]]:
    """Each way to divide: (placements of the result, placements of the operands).

    Replicated; by rows of A; by columns of B; by a leading dimension that A has; along K, where
    each rank has a partial sum. The last is left out with an epilogue, which is not linear. Bias
    and C are then partial themselves, so that the sum has them once.
    """
    rank = max(len(a.shape), len(b.shape))
    operands = a, b, c, bias, scale_a, scale_b

    def placed(*placements: Any) -> list[Any]:
        return [p if t is not None else None for t, p in zip(operands, placements, strict=True)]

    def of(t: Any, dim: int) -> Any:
        """How C, or a scale, lies where the result is divided by its dimension ``dim`` from the
        end: whole, where it repeats itself along it."""
        if t is None or len(t.shape) < dim or t.shape[-dim] == 1:
            return Replicate()
        return Shard(len(t.shape) - dim)

    whole: Any = Replicate()
    rows_of_scale = whole if scale_a is None or _elements(scale_a) == 1 else Shard(0)
    columns_of_scale = whole if scale_b is None or _elements(scale_b) == 1 else Shard(0)
    rules: list[tuple[list[Any], list[Any]]] = [
        ([whole], placed(whole, whole, whole, whole, whole, whole)),
        (
            [Shard(rank - 2)],
            placed(Shard(len(a.shape) - 2), whole, of(c, 2), whole, rows_of_scale, whole),
        ),
        (
            [Shard(rank - 1)],
            placed(whole, Shard(len(b.shape) - 1), of(c, 1), Shard(0), whole, columns_of_scale),
        ),
    ]
    for dim in range(3, rank + 1):
        a_lies, b_lies = of(a, dim), of(b, dim)
        if Shard in (type(a_lies), type(b_lies)):
            rules.append(
                ([Shard(rank - dim)], placed(a_lies, b_lies, of(c, dim), whole, whole, whole))
            )
    if not how.get("epilogue") and a.shape[-1] > 1:
        along_k = Shard(len(a.shape) - 1), Shard(len(b.shape) - 2)
        rules.append(([Partial()], placed(*along_k, Partial(), Partial(), whole, whole)))
    return rules


def _elements(t: Any) -> int:
    return torch.Size(t.shape).numel()
