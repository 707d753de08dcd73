"""Products that no tensor core computes: in float64, and exact ones of integers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import OperandError

EXACT_LIMIT = {
    "float32": 2**24,
    "ieee": 2**24,
    "tf32": 2**24,
    "tf32x3": 2**24,
    "float64": 2**53,
    "float16": 2**11,
    "fast": 2**13,
}
"""By compute: integers up to here are exact in the running sum."""

LARGEST_INTEGER = {
    torch.float8_e4m3fn: 8,
    torch.float8_e5m2: 8,
    torch.float64: 2**20,
}
"""By dtype of A and B: the largest integer operands, where it is neither 64 (32-bit C) nor 8."""


def largest_integer(
    K: int,
    dtype_out: torch.dtype,
    dtype_in: torch.dtype | None = None,
    compute: str = "float32",
) -> int:
    """How large integer operands may be, so that |A| @ |B| stays exact in the running sum.

    At most 64, or 8 for 16-bit C and 8-bit floats, 2^20 for float64; 0 where K is beyond the sums
    that are exact, so that only sparse operands do.

    Raises OperandError where K itself is above 2^24.
    """
    if compute in ("int32", ""):
        return 0
    limit = EXACT_LIMIT[compute]
    if K > 2**24:
        raise OperandError(f"K is {K}: sums of more than {2**24} integers are not exact")
    if dtype_in is not None and dtype_in.itemsize == 1:
        limit = min(limit, EXACT_LIMIT["fast"] * (1 if compute == "fast" else max(1, K // 128)))
    largest = 64 if dtype_out == torch.float32 else 8
    if dtype_in is not None:
        largest = LARGEST_INTEGER.get(dtype_in, largest)
    return min(largest, math.isqrt(limit // K))


def exact_product(a: torch.Tensor, b: torch.Tensor, dtype_out: torch.dtype) -> torch.Tensor:
    """A @ B, exact and rounded once to the dtype of C; int32 wraps as two's complement."""
    if not a.is_floating_point():
        product = float64_product(a.double(), b.double()).to(torch.int64)
        return product.to(torch.int32)
    if a.dtype == torch.float64:
        return float64_product(a, b).to(dtype_out)
    with _float32_without_tensor_cores():
        return torch.mm(a.float(), b.float()).to(dtype_out)


def float64_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ B in float64; on a GPU by matrix-vector products, which no tensor core computes."""
    if not a.is_cuda:
        return torch.mm(a, b)
    if a.shape[0] > b.shape[1]:
        return float64_product(b.mT, a.mT).mT
    result = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    for row, out in zip(a, result, strict=True):
        torch.mv(b.mT, row, out=out)
    return result


@contextmanager
def _float32_without_tensor_cores() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
