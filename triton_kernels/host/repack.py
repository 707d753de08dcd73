"""Copies of A and B that the tensor cores can read from shared memory.

wgmma reads 8-bit and tf32 blocks only where K is contiguous. A block that lies otherwise, or whose
float32 numbers have yet to be rounded to tf32, has to pass through registers at every step of the
mainloop, which then waits: on an H200 at 4096 cubed an eighth of the speed in 8 bits, half in tf32.
From some hundred rows on, one pass over A and B beforehand is cheaper: memory for the copy, which
is logged, and the time to read and write it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from ..device.dot import round_tf32
from .runtime import INTERPRETED, cdiv, check, one_at_a_time, tl, triton
from .storage import UNIT, letter

log = logging.getLogger(__name__)

BLOCK = 64


@triton.jit
def kernel(
    x,
    copy,
    R,
    K,
    batch_x,
    stride_r,
    stride_k,
    batch_copy,
    pitch,
    term,
    ROUND: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    EMULATED: tl.constexpr,
):
    """copy[r, k] = x[r, k] for each of a batch; rounded to tf32 with ROUND. With SPLIT, what that
    takes away, rounded itself, is left ``term`` elements on."""
    tiles_r, tiles_k = tl.cdiv(R, BLOCK), tl.cdiv(K, BLOCK)
    tile = tl.program_id(0)
    batch = (tile // (tiles_r * tiles_k)).to(tl.int64)
    tile = tile % (tiles_r * tiles_k)
    r = (tile // tiles_k * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    k = (tile % tiles_k * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    inside = (r < R)[:, None] & (k < K)[None, :]
    block = tl.load(x + batch * batch_x + r[:, None] * stride_r + k * stride_k, mask=inside)
    places = copy + batch * batch_copy + r[:, None] * pitch + k
    if ROUND:
        high = round_tf32(block, EMULATED)
        if SPLIT:
            # Inf and NaN are in the low term alone, beside a high term of 1: products with the low
            # term of the other operand, which is 0 or of either sign, would make NaN of Inf.
            finite = high - high == 0
            low = tl.where(finite, round_tf32(block - high, EMULATED), high + block)
            tl.store(places + term, low, mask=inside)
            high = tl.where(finite, high, tl.where(block < 0, -1.0, 1.0))
        block = high
    tl.store(places, block, mask=inside)


def repack_operands(
    a: torch.Tensor, b: torch.Tensor, compute: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B, or copies: K contiguous, rows in whole 16 bytes, rounded where compute is tf32.

    Raises:
        RuntimeError: the operands are where kernels cannot read them.
    """
    check(a)
    rounded = compute == "tf32"
    return _rows_of_k("A", a, rounded), _rows_of_k("B", b.mT, rounded).mT


def repack(
    a: torch.Tensor, b: torch.Tensor, compute: str, plan: Mapping[str, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B, or copies of them where the plan says REPACK."""
    return repack_operands(a, b, compute) if plan.get("REPACK") else (a, b)


def repack_for_wgmma(
    a: torch.Tensor, b: torch.Tensor, compute: str, plan: Mapping[str, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B as wgmma reads them: float32 as two terms of tf32, others with K contiguous where
    the plan says REPACK."""
    if compute == "tf32x3":
        return terms(a, b)
    return repack_operands(a, b) if plan.get("REPACK") else (a, b)


def terms(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A [M, K] and B [K, N] of float32 as [2, M, K] and [2, K, N], K contiguous: the sum of two
    numbers in tf32 each.

    Raises:
        RuntimeError: the operands are where kernels cannot read them.
    """
    check(a)
    return _copy("A", a, 2), _copy("B", b.mT, 2).mT


def _rows_of_k(name: str, x: torch.Tensor, rounded: bool) -> torch.Tensor:
    """x [..., R, K] as it is, or copied."""
    if not rounded and letter(x.shape[-2:], x.stride()[-2:]) == "n":
        return x
    if x.dim() == 3 and x.stride(0) == 0:
        return _rows_of_k(name, x[0], rounded).expand(x.shape)
    return _copy(name, x, int(rounded))


def _copy(name: str, x: torch.Tensor, parts: int) -> torch.Tensor:
    """x [..., R, K] with K contiguous: 0 as it is, 1 rounded to tf32, 2 as two terms [2, R, K]."""
    R, K = x.shape[-2:]
    batch = x.shape[0] if x.dim() == 3 else 1
    step = UNIT // x.itemsize
    pitch = cdiv(K, step) * step
    leading = (2,) if parts == 2 else x.shape[:-2]
    copy = torch.empty((*leading, R, pitch), dtype=x.dtype, device=x.device)
    log.info("%s: %d bytes copied, for rows of K%s", name, x.nbytes, " in tf32" if parts else "")
    with one_at_a_time:
        kernel[(batch * cdiv(R, BLOCK) * cdiv(K, BLOCK),)](
            x.view(torch.int8) if x.itemsize == 1 else x,
            copy.view(torch.int8) if x.itemsize == 1 else copy,
            R,
            K,
            x.stride(0) if x.dim() == 3 else 0,
            x.stride(-2),
            x.stride(-1),
            R * pitch,
            pitch,
            R * pitch,
            ROUND=parts > 0,
            SPLIT=parts == 2,
            BLOCK=BLOCK,
            EMULATED=INTERPRETED,
        )
    return copy[..., :K]
