"""What a kernel is checked on: operands at random, and memory that it has to overwrite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

POISON = 0x5A5A5A5A
"""Of int32 results, before a kernel runs."""

DATA = ("normal", "uniform", "ints", "zeros")
"""What ``operands`` draws. The fewer bits change from element to element, the less power a tensor
core takes, and the higher it clocks."""

LARGEST_OF_INTS = 8
"""Of the data ``ints``: exact in every dtype, 8-bit floats included."""


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
    data: str = "normal",
) -> tuple[torch.Tensor, torch.Tensor]:
    """A[M, K] and B[K, N], stored as the layout says.

    Args:
        largest: integers from -largest to largest, uniform, whatever ``data`` says, where A and B
            are no integers. A largest of 0 means that only sums of few terms are exact: A is then
            -1, 0 or 1, mostly 0.
        data: of DATA. normal: standard normal, or for integer dtypes uniform over all of the
            dtype's range; uniform: from 0 to 1, or that range; ints: whole numbers from
            -LARGEST_OF_INTS (0 for uint8) to LARGEST_OF_INTS; zeros: nothing but zeros.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int, letter: str, sparse: bool) -> torch.Tensor:
        stored = (rows, columns) if letter == "n" else (columns, rows)
        whole = not dtype.is_floating_point
        exact = largest is not None and not whole
        wide = torch.float32 if dtype.itemsize == 1 and not whole else dtype
        if data == "zeros" and not exact:
            drawn = torch.zeros(stored, device=device, dtype=dtype)
        elif exact or data == "ints":
            bound = max(largest, 1) if exact and largest is not None else LARGEST_OF_INTS
            least = 0 if dtype == torch.uint8 else -bound
            drawn = torch.randint(
                least, bound + 1, stored, generator=generator, device=device, dtype=torch.int32
            )
            if exact and sparse:
                kept = torch.rand(stored, generator=generator, device=device)
                drawn = drawn * (kept < _FEW_TERMS / (2 * K))
            drawn = drawn.to(wide).to(dtype)
        elif whole:
            info = torch.iinfo(dtype)
            drawn = torch.randint(
                info.min, info.max + 1, stored, generator=generator, device=device, dtype=dtype
            )
        else:
            draw = torch.rand if data == "uniform" else torch.randn
            drawn = draw(stored, generator=generator, device=device, dtype=wide).to(dtype)
        return drawn if letter == "n" else drawn.T

    few = largest == 0
    return matrix(M, K, layout[0], few), matrix(K, N, layout[1], False)


_FEW_TERMS = 2**11
"""Of sparse operands: the sums of float16 accumulation are exact up to here."""


BETWEEN_PRODUCTS = 1_000_033
"""From the seed of one product of a batch to that of the next."""


def batch_of_operands(
    batch: int,
    M: int,
    N: int,
    K: int,
    dtype: torch.dtype,
    layout: str,
    device: torch.device | str,
    seed: int,
    largest: int | None = None,
    data: str = "normal",
) -> tuple[torch.Tensor, torch.Tensor]:
    """A[batch, M, K] and B[batch, K, N], products one after another in memory; of one product
    ``operands``. The first product has the operands that ``operands`` gives by this seed."""
    each = [
        operands(M, N, K, dtype, layout, device, seed + i * BETWEEN_PRODUCTS, largest, data)
        for i in range(batch)
    ]
    if batch == 1:
        return each[0]
    a, b = (
        one_behind_another(of, letter)
        for of, letter in zip(zip(*each, strict=True), layout, strict=True)
    )
    return a, b


def one_behind_another(matrices: Sequence[torch.Tensor], letter: str) -> torch.Tensor:
    """The matrices as a batch, each stored as the letter of a layout says."""
    if letter == "t":
        return torch.stack([t.T for t in matrices]).mT
    return torch.stack(tuple(matrices))
