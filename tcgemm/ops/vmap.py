"""vmap: a dimension that torch.func maps over becomes a leading dimension of the product."""

from __future__ import annotations

from typing import Any

import torch

from ..operands import check_bias, output_dtype
from . import operator
from .how import How


def _batched(
    info: Any, dims: Any, a: Any, b: Any, c: Any, bias: Any, how: How
) -> tuple[torch.Tensor, int]:
    """One product for all that is mapped over, and the dimension of the result that is mapped.

    A bias of its own for each takes the place of C, which is then read: beta C + bias.
    """
    rank = max(
        t.dim() - (dim is not None)
        for t, dim in zip((a, b, c), dims[:3], strict=True)
        if t is not None
    )
    a, b, c = (_in_front(t, dim, rank) for t, dim in zip((a, b, c), dims[:3], strict=True))
    if bias is not None and dims[3] is not None:
        dtype = output_dtype(a, None, how.out_dtype)
        bias = bias.movedim(dims[3], 0)
        check_bias(bias.new_empty(bias.shape[1:]), b.shape[-1], dtype, a)
        bias = _in_front(bias, 0, rank)
        if c is not None and how.beta:
            beta = how.beta if dtype.is_floating_point else int(how.beta)
            bias = beta * c + bias
        c, bias, how = bias, None, how._replace(beta=1.0)
    if dims[0] is None and dims[1] is None:  # the result has the dimensions of A and B
        a = a.expand(info.batch_size, *(1,) * (rank - a.dim()), *a.shape)
    return operator.gemm(a, b, c, bias, None, None, **how._asdict()), 0


def _in_front(t: Any, dim: int | None, rank: int) -> Any:
    """The mapped dimension first, and ones after it up to the rank that all operands have."""
    if t is None or dim is None:
        return t
    t = t.movedim(dim, 0)
    return t.reshape(t.shape[0], *(1,) * (rank - t.dim() + 1), *t.shape[1:])


def _one_by_one(info: Any, dims: Any, operands: Any, how: How) -> tuple[torch.Tensor, int]:
    """A product each: of scales of their own, and where a sum of C and bias would be rounded."""
    results = [
        operator.gemm(
            *(
                t if dim is None else t.select(dim, index)
                for t, dim in zip(operands, dims, strict=True)
            ),
            **how._asdict(),
        )
        for index in range(info.batch_size)
    ]
    return torch.stack(results), 0


def _vmap(
    info: Any, dims: Any, a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, **how: Any
) -> tuple[torch.Tensor, int]:
    operands, asked = (a, b, c, bias, scale_a, scale_b), How(**how)
    both = c is not None and asked.beta and dims[3] is not None
    narrow = both and c.dtype.itemsize == 2
    scaled = scale_a is not None or scale_b is not None
    if info.batch_size and (narrow or scaled):  # of no product nothing is scaled or rounded
        return _one_by_one(info, dims, operands, asked)
    return _batched(info, dims[:4], a, b, c, bias, asked)


torch.library.register_vmap("tcgemm::gemm", _vmap, lib=operator.library)
