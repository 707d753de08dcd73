"""The launch of copies.cu: odd rows of 16-bit elements into aligned ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from .build.toolchain import source
from .handle import bound, gemm_of

NAME = "copies"

MOST = 1 << 30
"""Elements of a matrix: it counts vectors of eight in 31 bits, with some to spare."""


def copier(x: torch.Tensor, copy: torch.Tensor) -> Callable[..., None] | None:
    """``start(copy, x)``, which copies matrices like these into aligned rows or columns; None where
    torch's own copy has to: of other sizes of elements, with a step between them, or of more than
    MOST. A GPU's first one builds it."""
    by_columns = x.stride(0) == 1 and x.stride(1) != 1
    if by_columns:
        x, copy = x.mT, copy.mT
    fits = x.itemsize == 2 and x.stride(1) == 1 and copy.stride(1) == 1
    aligned = copy.data_ptr() % 16 == copy.stride(0) * 2 % 16 == 0
    if not fits or not aligned or x.data_ptr() % 2 or not 0 < x.numel() <= MOST:
        return None
    device = x.get_device()
    if device < 0:
        start = _simulate
    else:
        start = bound(NAME, _library(device), device, gemm_of(x, x, copy, None, None), True)

    def run(copy: torch.Tensor, x: torch.Tensor) -> None:
        if by_columns:
            x, copy = x.mT, copy.mT
        start(x, x, copy)

    return run


@cache
def _library(device: int) -> Any:
    from .build.extensions import library

    return library(NAME, torch.cuda.get_device_capability(device), ())


def _simulate(x: torch.Tensor, _: torch.Tensor, copy: torch.Tensor) -> None:
    from .simulator import simulate

    simulate(source(NAME), x, x, copy).raise_if_stopped()
