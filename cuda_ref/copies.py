"""The launch of copies.cu: odd rows of 16-bit elements into aligned ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from .build.toolchain import source
from .handle import bound, gemm_of

NAME = "copies"

MOST = 1 << 30
"""Elements of a matrix: it counts vectors of eight in 31 bits, with some to spare."""


def copier(
    x: torch.Tensor, copy: torch.Tensor, *second: torch.Tensor
) -> Callable[..., None] | None:
    """``start(copy, x)``, which copies matrices like these, of contiguous rows, into aligned rows;
    given a second matrix and its copy, ``start(copy, x, copy of the second, second)``, by one
    launch.

    None where torch's own copy has to: of other sizes of elements, with a step between them, or of
    more than MOST. A GPU's first one builds it.
    """
    if not (_takes(x, copy) and (not second or _takes(*second))):
        return None
    device = x.get_device()
    if device < 0:
        return _simulate
    b, copy_2 = second or (x, None)
    gemm = gemm_of(x, b, copy, _second(copy_2), None)
    start = bound(NAME, _library(device), device, gemm, not second)
    if second:
        return lambda copy, x, copy_2, b: start(x, b, copy, copy_2, None, None, None)
    return lambda copy, x: start(x, x, copy)


def _takes(x: torch.Tensor, copy: torch.Tensor) -> bool:
    fits = x.itemsize == 2 and x.stride(1) == 1 and copy.stride(1) == 1
    aligned = copy.data_ptr() % 16 == copy.stride(0) * 2 % 16 == 0
    return fits and aligned and x.data_ptr() % 2 == 0 and 0 < x.numel() <= MOST


def _second(copy: torch.Tensor | None) -> SimpleNamespace | None:
    """The copy of the second matrix, if any, in the place of a pre-activation that is written."""
    return copy if copy is None else SimpleNamespace(
        alpha=1.0, beta=0.0, c=copy, bias=None, epilogue="", scale_a=None, scale_b=None,
        compute="float32", mma_shape="", aux="write",
    )  # fmt: skip


@cache
def _library(device: int) -> Any:
    from .build.extensions import library

    return library(NAME, torch.cuda.get_device_capability(device), ())


def _simulate(copy: torch.Tensor, x: torch.Tensor, *second: torch.Tensor) -> None:
    from .simulator import simulate

    copy_2, b = second or (None, x)
    simulate(source(NAME), x, b, copy, fusion=_second(copy_2)).raise_if_stopped()
