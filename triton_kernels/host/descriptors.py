"""Tensor descriptors of matrices, kept between calls."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import torch

from .runtime import INTERPRETED, TensorDescriptor
from .storage import UNIT, letter, why_not_tma

CACHED = 256
"""Descriptors kept; making one and checking it costs about 10 us of Python."""

_cache: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


class _Base(NamedTuple):
    """What a launch reads of a tensor. A cached descriptor holds this, so it keeps no memory
    alive, and stays right for any later tensor at that address with that shape and strides."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


def describe(
    x: torch.Tensor, block: tuple[int, int], transposed: bool, make: Any = TensorDescriptor
) -> Any:
    """The descriptor of a matrix in its storage order, in blocks.

    Args:
        x: 2-D, or 3-D with a batch first, described in three dimensions unless all of the batch
            is one matrix (stride 0), which needs two; ``storage.why_not_tma`` has accepted it.
        block: elements of a block along x's two dimensions.
        transposed: x is stored transposed; the descriptor is then that of x.mT.
        make: makes it of base, shape, strides and block.
    """
    key = (x.data_ptr(), x.dtype, x.shape, x.stride(), block, transposed, make)
    kept = _cache.get(key)
    if kept is not None:
        return kept
    (rows, columns), pitch = x.shape[-2:], x.stride(-2)
    if transposed:
        rows, columns, pitch, block = columns, rows, x.stride(-1), block[::-1]
    if rows == 1:
        # Never stepped along, yet encoded: any multiple of 16 bytes past the row.
        step = UNIT // x.itemsize
        pitch = -(-columns // step) * step
    base = x if INTERPRETED else _Base(x.data_ptr(), x.dtype)
    shape, strides, sizes = [rows, columns], [pitch, 1], list(block)
    if x.dim() == 3 and x.shape[0] > 1 and x.stride(0):
        shape, strides, sizes = [x.shape[0], *shape], [x.stride(0), *strides], [1, *sizes]
    made = make(base, shape, strides, sizes)
    if not INTERPRETED:
        _cache[key] = made
        if len(_cache) > CACHED:
            _cache.popitem(last=False)
    return made


def stored(x: torch.Tensor) -> str:
    """Storage of each matrix of x: n by rows, t by columns."""
    return letter(x.shape[-2:], x.stride()[-2:])


def reachable(c_in: torch.Tensor) -> bool:
    """Whether TMA reads C_in [..., M, N] in rows; a tensor without memory counts as aligned."""
    whole = c_in.dim() == 2 or c_in.stride(0) * c_in.itemsize % UNIT == 0
    alignment = c_in.data_ptr() & -c_in.data_ptr() or UNIT
    shape, strides = c_in.shape[-2:], c_in.stride()[-2:]
    reason = why_not_tma("C_in", shape, strides, alignment, c_in.itemsize)
    return whole and reason is None and stored(c_in) == "n"


def storable(c: torch.Tensor) -> bool:
    """Whether TMA stores C [..., M, N] in rows, of which it stores whole units."""
    return reachable(c) and c.shape[-1] * c.itemsize % UNIT == 0
