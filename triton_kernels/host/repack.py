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
from typing import Any, NamedTuple

import torch
from torch import Size

from ..device.dot import round_tf32
from .recording import Step
from .runtime import INTERPRETED, cdiv, tl, triton
from .storage import UNIT, letter

log = logging.getLogger(__name__)

BLOCK = 64

LINE = 256
"""Bytes: copies begin at whole multiples, as torch's own tensors do."""


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


def arguments(
    x: torch.Tensor, _: torch.Tensor, copy: torch.Tensor, *, ROUND: bool, SPLIT: bool
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``.

    Args:
        x: [R, K] or [batch, R, K].
        copy: [R, pitch], [batch, R, pitch] or, with SPLIT, [2, R, pitch].
    """
    R, K = x.shape[-2:]
    pitch = copy.shape[-1]
    batch, step = (x.shape[0], x.stride(0)) if x.dim() == 3 else (1, 0)
    if x.itemsize == 1:
        x, copy = x.view(torch.int8), copy.view(torch.int8)
    sizes = (R, K, step, x.stride(-2), x.stride(-1), R * pitch, pitch, R * pitch)
    constants = {"ROUND": ROUND, "SPLIT": SPLIT, "BLOCK": BLOCK, "EMULATED": INTERPRETED}
    return (batch * cdiv(R, BLOCK) * cdiv(K, BLOCK),), (x, copy, *sizes), constants


class Copy(NamedTuple):
    """Where the copy of an operand lies, as rows of K."""

    shape: tuple[int, ...]
    """[R, pitch], [batch, R, pitch] or, of two terms, [2, R, pitch]."""
    bytes: int


class Repack:
    """A and B, or copies of them: see launching.Repack.

    Copies have K contiguous and rows in whole 16 bytes; they are rounded to tf32, or are the two
    terms in tf32 that a float32 number is the sum of, [2, M, K] and [2, K, N].
    """

    def __init__(self, compute: str, terms: bool = False) -> None:
        """
        Args:
            compute: how products are summed; "tf32" operands are always copied.
            terms: whether the copies are two terms.
        """
        self._parts = 2 if terms else int(compute == "tf32")

    def room(self, a: torch.Tensor, b: torch.Tensor) -> int:
        """Bytes of the copies of A and B."""
        return sum(copy.bytes for copy in map(self._copy_of, (a, b.mT)) if copy is not None)

    def steps(
        self, a: torch.Tensor, b: torch.Tensor, room: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[Step]]:
        """A and B, or their copies in ``room``, and the launches that make these."""
        steps: list[Step] = []
        made = []
        for name, x in (("A", a), ("B", b.mT)):
            copy = self._copy_of(x)
            if copy is None:
                made.append(x)
                continue
            mine, room = room[: copy.bytes], room[copy.bytes :]
            size = Size(copy.shape).numel() * x.itemsize
            rows = mine[:size].view(x.dtype).view(copy.shape)
            one = x[0] if x.dim() == 3 and x.stride(0) == 0 else x
            tf32 = " in tf32" if self._parts else ""
            log.info("%s: %d bytes copied, for rows of K%s", name, one.nbytes, tf32)
            constants = {"ROUND": self._parts > 0, "SPLIT": self._parts == 2}
            steps.append((kernel, *arguments(one, one, rows, **constants)))
            rows = rows[..., : x.shape[-1]]
            made.append(rows.expand(x.shape) if one is not x else rows)
        return made[0], made[1].mT, steps

    def _copy_of(self, x: torch.Tensor) -> Copy | None:
        """Of x [..., R, K]; None where it can be read as it lies."""
        if not self._parts and letter(x.shape[-2:], x.stride()[-2:]) == "n":
            return None
        R, K = x.shape[-2:]
        step = UNIT // x.itemsize
        shared = x.dim() == 3 and x.stride(0) == 0
        leading = (2,) if self._parts == 2 else () if shared else tuple(x.shape[:-2])
        shape = (*leading, R, cdiv(K, step) * step)
        return Copy(shape, cdiv(Size(shape).numel() * x.itemsize, LINE) * LINE)


def repack(compute: str, plan: Mapping[str, int]) -> Repack | None:
    """Copies of A and B where the plan says REPACK."""
    return Repack(compute) if plan.get("REPACK") else None


def repack_for_wgmma(compute: str, plan: Mapping[str, int]) -> Repack | None:
    """A and B as wgmma reads them: float32 as two terms of tf32, others with K contiguous where
    the plan says REPACK."""
    if compute == "tf32x3":
        return Repack(compute, terms=True)
    return Repack("") if plan.get("REPACK") else None
