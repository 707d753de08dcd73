"""The launch of derivative.cu: an activation's derivative, and the gradient of a bias, or that
alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from .build.toolchain import built_by_case, source
from .fusion import Asked, case
from .handle import bound, gemm_of

NAME = "derivative"

DTYPES = {
    torch.float16: (torch.float16,),
    torch.bfloat16: (torch.bfloat16,),
    torch.float32: (torch.float32, torch.bfloat16, torch.float16),
}
"""dtype of dY, Z and db -> dtypes that dZ may have."""


def bind(
    dy: torch.Tensor, z: torch.Tensor | None, dz: torch.Tensor | None, fusion: Any
) -> Callable[..., None]:
    """``start(dy, z, dz, None, db)`` for such tensors: dz = dy act'(z), [M, N] of any strides, and
    unless db is None its column sums db [N]. A GPU's first one of a pair of dtypes builds it.

    Args:
        fusion: ``epilogue`` names the activation, and ``bias`` is db or None. Without an epilogue
            z and dz are None, and db gets the column sums of dy.

    Raises TypeError for dtypes that the kernel does not take together.
    """
    epilogue, db = fusion.epilogue, fusion.bias
    if z is None or dz is None:
        return _bind_sums(dy, db)
    if dz.dtype not in DTYPES.get(dy.dtype, ()) or {z.dtype, (z if db is None else db).dtype} != {
        dy.dtype
    }:
        raise TypeError(
            f"dY of {dy.dtype}, Z of {z.dtype}, dZ of {dz.dtype} and db of "
            f"{None if db is None else db.dtype}: dY, Z and db are of one dtype, and dZ too, or of "
            "16 bits where that is float32"
        )
    device = dy.get_device()
    if device < 0:
        return lambda dy, z, dz, none, db: _simulate(dy, z, dz, epilogue, db)
    library = _library(device, defines(dy.dtype, dz.dtype))
    kind = gemm_of(dy, z, dz, _asked(epilogue, db), None)
    start = bound(NAME, library, device, kind, False)
    return lambda dy, z, dz, none, db: start(dy, z, dz, None, db, None, None)


def _bind_sums(dy: torch.Tensor, db: torch.Tensor) -> Callable[..., None]:
    """The same without z and dz: db is C, of one row."""
    if dy.dtype not in DTYPES or db.dtype != dy.dtype:
        raise TypeError(f"dY of {dy.dtype} and db of {db.dtype}: both are of one floating dtype")
    device = dy.get_device()
    if device < 0:
        return lambda dy, z, dz, none, db: _simulate(dy, dy, db[None], "", None)
    library = _library(device, defines(dy.dtype, dy.dtype))
    start = bound(NAME, library, device, gemm_of(dy, dy, db[None], None, None), True)
    return lambda dy, z, dz, none, db: start(dy, dy, db)


def defines(dtype: torch.dtype, of_dz: torch.dtype) -> tuple[str, ...]:
    """The flags of the build for dY of a dtype and dZ of another."""
    return case(dtype, None, of_dz, False, built_by_case(source(NAME)))


@cache
def _library(device: int, flags: tuple[str, ...]) -> Any:
    from .build.extensions import library

    return library(NAME, torch.cuda.get_device_capability(device), flags)


def _simulate(
    dy: torch.Tensor, z: torch.Tensor, dz: torch.Tensor, epilogue: str, db: torch.Tensor | None
) -> None:
    from .simulator import simulate

    asked = _asked(epilogue, db)
    simulate(source(NAME), dy, z, dz, fusion=asked, writes_bias=True).raise_if_stopped()


def _asked(epilogue: str, db: torch.Tensor | None) -> Asked:
    return Asked(1.0, 0.0, epilogue, "float32", "", bias=db)
