"""What a kernel is checked on: operands at random, and memory that it has to overwrite."""

from __future__ import annotations

import math

import torch

POISON = 0x5A5A5A5A
"""Of int32 results, before a kernel runs."""


def poisoned(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    """Memory that a kernel has to overwrite: NaN, or POISON for integers."""
    value = math.nan if dtype.is_floating_point else POISON
    return torch.full(shape, value, dtype=dtype, device=device)


def as_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """The torch dtype of that name."""
    return dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)


def operands(
    M: int,
    N: int,
    K: int,
    dtype: torch.dtype,
    layout: str,
    device: torch.device | str,
    seed: int,
    largest: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A[M, K] and B[K, N], stored as the layout says.

    Standard normal, or for integer dtypes uniform over all of the dtype's range; integers from
    -largest to largest, uniform, where ``largest`` is given and A and B are no integers. A largest
    of 0 means that only sums of few terms are exact: A is then -1, 0 or 1, mostly 0.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int, letter: str, sparse: bool) -> torch.Tensor:
        stored = (rows, columns) if letter == "n" else (columns, rows)
        if not dtype.is_floating_point:
            info = torch.iinfo(dtype)
            data = torch.randint(
                info.min, info.max + 1, stored, generator=generator, device=device, dtype=dtype
            )
        elif largest is None:
            wide = dtype if dtype.itemsize > 1 else torch.float32
            data = torch.randn(stored, generator=generator, device=device, dtype=wide).to(dtype)
        else:
            bound = max(largest, 1)
            data = torch.randint(
                -bound, bound + 1, stored, generator=generator, device=device, dtype=torch.int32
            )
            if sparse:
                kept = torch.rand(stored, generator=generator, device=device)
                data = data * (kept < _FEW_TERMS / (2 * K))
            data = data.to(torch.float32 if dtype.itemsize == 1 else dtype).to(dtype)
        return data if letter == "n" else data.T

    few = largest == 0
    return matrix(M, K, layout[0], few), matrix(K, N, layout[1], False)


_FEW_TERMS = 2**11
"""Of sparse operands: the sums of float16 accumulation are exact up to here."""
