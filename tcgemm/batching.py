"""Batches: how leading dimensions become launches, as few as there can be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch


class Part(NamedTuple):
    """The matrices of one launch: [rows, columns], or [batch, rows, columns]."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    c_in: torch.Tensor | None


def parts(
    batch: tuple[int, ...],
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    c_in: torch.Tensor | None,
    row_scales: bool = False,
) -> Iterator[Part]:
    """What each launch multiplies.

    A batch that shares B is one product with more rows, where A and C are stored as one matrix.
    Dimensions that step as one are one launch; others are one launch each.

    Args:
        batch: the leading dimensions of the result.
        a, b, c, c_in: [*batch, rows, columns] each; C_in may be None.
        row_scales: whether each row of A has a scale of its own, which a batch repeats.
    """
    if not batch:
        yield Part(a, b, c, c_in)
        return
    if math.prod(batch) == 1:
        yield Part(_flat(a), _flat(b), _flat(c), None if c_in is None else _flat(c_in))
        return
    shared_b = not any(b.stride()[: len(batch)])
    if shared_b and not row_scales:
        rows = (*batch, c.shape[-2])
        tall = [_as_rows(rows, t) for t in (a, c, *([] if c_in is None else [c_in]))]
        if tall[0] is not None and tall[1] is not None and tall[-1] is not None:
            yield Part(tall[0], b[(0,) * len(batch)], tall[1], (*tall, None)[2])
            return
    for outer in range(len(batch)):
        inner = batch[outer:]
        if _one_batch_dimension(
            inner, *(t[(0,) * outer] for t in (a, b, c, c_in) if t is not None)
        ):
            break
    else:
        outer, inner = len(batch), ()

    def matrices(t: torch.Tensor, index: tuple[int, ...]) -> torch.Tensor:
        return _as_one_batch(inner, t[index]) if math.prod(inner) > 1 else _flat(t[index])

    for index in itertools.product(*(range(size) for size in batch[:outer])):
        yield Part(
            matrices(a, index),
            matrices(b, index),
            matrices(c, index),
            None if c_in is None else matrices(c_in, index),
        )


def with_vectors(t: torch.Tensor, vector_a: bool, vector_b: bool) -> torch.Tensor:
    """The result with the dimensions that vectors lack: [..., M, N]."""
    t = t.unsqueeze(-1) if vector_b else t
    return t.unsqueeze(-2) if vector_a else t


def _flat(t: torch.Tensor) -> torch.Tensor:
    """The one matrix of a tensor whose leading dimensions are all 1."""
    return t[(0,) * (t.dim() - 2)]


def _as_rows(rows: tuple[int, ...], t: torch.Tensor) -> torch.Tensor | None:
    """The view [product of rows, columns], where the leading dimensions and rows step as one."""
    columns = t[..., None, :]
    if not _one_batch_dimension(rows, columns):
        return None
    return _as_one_batch(rows, columns)[:, 0, :]


def _one_batch_dimension(batch: tuple[int, ...], *tensors: torch.Tensor | None) -> bool:
    """Whether the leading dimensions of every tensor step as one, with one stride."""
    return all(t is None or _batch_stride(batch, t) is not None for t in tensors)


def _batch_stride(batch: tuple[int, ...], t: torch.Tensor) -> int | None:
    """The stride that walks the leading dimensions as one; None where there is none."""
    stride: int | None = None
    reach = 0
    for size, step in zip(reversed(batch), reversed(t.stride()[: len(batch)]), strict=True):
        if size == 1:
            continue
        if stride is None:
            stride, reach = step, step * size
        elif step != reach:
            return None
        else:
            reach *= size
    return stride or 0


def _as_one_batch(batch: tuple[int, ...], t: torch.Tensor) -> torch.Tensor:
    """The view [batch, rows, columns] of a tensor whose leading dimensions step as one."""
    stride = _batch_stride(batch, t)
    assert stride is not None
    return t.as_strided((math.prod(batch), *t.shape[-2:]), (stride, *t.stride()[-2:]))
