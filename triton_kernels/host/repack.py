"""Copies of A and B that the tensor cores can read from shared memory.

wgmma reads 8-bit and tf32 blocks only where K is contiguous. A block that lies otherwise, or whose
float32 numbers have yet to be rounded to tf32, has to pass through registers at every step of the
mainloop, which then waits: on an H200 at 4096 cubed an eighth of the speed in 8 bits, half in tf32.
From some hundred rows on, one pass over A and B beforehand is cheaper: memory for the copy, which
is logged, and the time to read and write it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Size

from ..device.dot import round_tf32
from ..device.split_k_partials import launch_dependents_and_wait
from .recording import Step
from .runtime import INTERPRETED, cdiv, starts_early, tl, triton
from .storage import UNIT, letter
from .units import VECTOR

log = logging.getLogger(__name__)

BLOCK = 64

LINE = 256
"""Bytes: copies begin at whole multiples, as torch's own tensors do."""


@triton.jit
def copy_tile(
    tile, x, copy, R, batch_x, stride_r, stride_k, K, pitch, ROUND: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr, EMULATED: tl.constexpr,
):  # fmt: skip
    """copy[r, k] = x[r, k] in one tile of all of a batch, and zero past K; rounded to tf32 with
    ROUND. With SPLIT, where there is one matrix, what that takes away, rounded itself, is left
    behind its copy."""
    apart = tl.cast(R, tl.int64) * pitch  # from a matrix of the copy to the next
    tiles_r, tiles_k = tl.cdiv(R, BLOCK), tl.cdiv(K, BLOCK)
    batch = (tile // (tiles_r * tiles_k)).to(tl.int64)
    tile = tile % (tiles_r * tiles_k)
    r = (tile // tiles_k * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    k = (tile % tiles_k * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    inside = (r < R)[:, None] & (k < K)[None, :]
    of_x = x + batch * batch_x + r[:, None] * stride_r + k * stride_k
    block = tl.load(of_x, mask=inside, other=0)
    inside = (r < R)[:, None] & (k < pitch)[None, :]
    places = copy + batch * apart + r[:, None] * pitch + k
    if ROUND:
        high = round_tf32(block, EMULATED)
        if SPLIT:
            # Inf and NaN are in the low term alone, beside a high term of 1: products with the low
            # term of the other operand, which is 0 or of either sign, would make NaN of Inf.
            finite = high - high == 0
            low = tl.where(finite, round_tf32(block - high, EMULATED), high + block)
            tl.store(places + apart, low, mask=inside)
            high = tl.where(finite, high, tl.where(block < 0, -1.0, 1.0))
        block = high
    tl.store(places, block, mask=inside)


@triton.jit(do_not_specialize=["tiles"])
def kernel(
    x, copy, R, batch_x, stride_r, stride_k, x_2, copy_2, R_2, batch_x_2, stride_r_2, stride_k_2, K,
    pitch, tiles, ROUND: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
    EMULATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copies x, and by the programs from number ``tiles`` on a second operand, if any."""
    launch_dependents_and_wait(PDL)
    tile = tl.program_id(0)
    if x_2 is None:
        copy_tile(
            tile, x, copy, R, batch_x, stride_r, stride_k, K, pitch, ROUND, SPLIT, BLOCK,
            EMULATED,
        )  # fmt: skip
    else:
        if tile < tiles:
            copy_tile(
                tile, x, copy, R, batch_x, stride_r, stride_k, K, pitch, ROUND, SPLIT,
                BLOCK, EMULATED,
            )  # fmt: skip
        else:
            copy_tile(
                tile - tiles, x_2, copy_2, R_2, batch_x_2, stride_r_2, stride_k_2, K,
                pitch, ROUND, SPLIT, BLOCK, EMULATED,
            )  # fmt: skip


def launch(copied: Sequence[tuple[torch.Tensor, torch.Tensor]], parts: int, early: bool) -> Step:
    """The launch that copies one operand, or two of as many columns K.

    Args:
        copied: (x [R, K] or [batch, R, K], its copy [R, pitch], [batch, R, pitch] or, of two terms,
            [2, R, pitch]) of each.
        parts: what a copy is: 0 the elements as they are, 1 rounded to tf32, 2 two terms.
        early: whether it may start before the kernel ahead has ended, and lets the next do so.
    """
    tiles, *first = _arguments(*copied[0])
    more, *second = _arguments(*copied[1]) if len(copied) > 1 else (0, None, None, 0, 0, 0, 0)
    x, copy = copied[0]
    constants = {
        "ROUND": parts > 0,
        "SPLIT": parts == 2,
        "BLOCK": BLOCK,
        "EMULATED": INTERPRETED,
        **starts_early(early),
    }
    args = (*first, *second, x.shape[-1], copy.shape[-1], tiles)
    return kernel, (tiles + more,), args, constants


def _arguments(x: torch.Tensor, copy: torch.Tensor) -> tuple[Any, ...]:
    """How many tiles of x are copied, and what the kernel is told of it alone."""
    R, K = x.shape[-2:]
    batch, step = (x.shape[0], x.stride(0)) if x.dim() == 3 else (1, 0)
    if x.itemsize == 1:
        x, copy = x.view(torch.int8), copy.view(torch.int8)
    tiles = batch * cdiv(R, BLOCK) * cdiv(K, BLOCK)
    return tiles, x, copy, R, step, x.stride(-2), x.stride(-1)


class Copy(NamedTuple):
    """Where the copy of an operand lies, as rows of K."""

    shape: tuple[int, ...]
    """[R, pitch], [batch, R, pitch] or, of two terms, [2, R, pitch]."""
    bytes: int


class Repack:
    """A and B, or copies of them: see launching.Repack.

    Copies have K contiguous and rows in whole 16 bytes; they are rounded to tf32, or are the two
    terms in tf32 that a float32 number is the sum of, [2, M, K] and [2, K, N]. Rounded ones, which
    are always of both, have a K of whole vectors, with zeros: a kernel without TMA copies such in
    vectors, and of any other K by elements, wherever its rows begin.
    """

    def __init__(
        self, compute: str, terms: bool = False, early: bool = False, of: str = "AB"
    ) -> None:
        """
        Args:
            compute: how products are summed; "tf32" operands are always copied.
            terms: whether the copies are two terms.
            early: whether the GPU has programmatic dependent launch.
            of: the operands that may be copied.
        """
        self._of = of
        self._parts = 2 if terms else int(compute == "tf32")
        self._early = early and not INTERPRETED

    def room(self, a: torch.Tensor, b: torch.Tensor) -> int:
        """Bytes of the copies of A and B."""
        copies = (self._copy_of("A", a), self._copy_of("B", b.mT))
        return sum(copy.bytes for copy in copies if copy is not None)

    def steps(
        self, a: torch.Tensor, b: torch.Tensor, room: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[Step]]:
        """A and B, or their copies in ``room``, and the launch that makes these."""
        copied, made = [], []
        for name, x in (("A", a), ("B", b.mT)):
            copy = self._copy_of(name, x)
            if copy is None:
                made.append(x)
                continue
            mine, room = room[: copy.bytes], room[copy.bytes :]
            size = Size(copy.shape).numel() * x.itemsize
            rows = mine[:size].view(x.dtype).view(copy.shape)
            one = x[0] if x.dim() == 3 and x.stride(0) == 0 else x
            tf32 = " in tf32" if self._parts else ""
            log.info("%s: %d bytes copied, for rows of K%s", name, one.nbytes, tf32)
            copied.append((one, rows))
            if self._parts != 1:
                rows = rows[..., : x.shape[-1]]
            made.append(rows.expand(x.shape[0], *rows.shape) if one is not x else rows)
        steps = [launch(copied, self._parts, self._early)] if copied else []
        return made[0], made[1].mT, steps

    def _copy_of(self, name: str, x: torch.Tensor) -> Copy | None:
        """Of x [..., R, K]; None where it can be read as it lies."""
        if name not in self._of:
            return None
        if not self._parts and letter(x.shape[-2:], x.stride()[-2:]) == "n":
            return None
        R, K = x.shape[-2:]
        step = VECTOR if self._parts == 1 else UNIT // x.itemsize
        shared = x.dim() == 3 and x.stride(0) == 0
        leading = (2,) if self._parts == 2 else () if shared else tuple(x.shape[:-2])
        shape = (*leading, R, cdiv(K, step) * step)
        return Copy(shape, cdiv(Size(shape).numel() * x.itemsize, LINE) * LINE)


def repack(compute: str, plan: Mapping[str, int]) -> Repack | None:
    """Copies of A and B where the plan says REPACK."""
    return Repack(compute) if plan.get("REPACK") else None


def repack_for_wgmma(compute: str, plan: Mapping[str, int]) -> Repack | None:
    """A and B as wgmma reads them: float32 as two terms of tf32, others with K contiguous where
    the plan says REPACK. With ACROSS the kernel's A is read as it lies."""
    of = "AB"
    if plan.get("ACROSS"):
        of = "A" if plan.get("SWAP") else "B"
    if compute == "tf32x3":
        return Repack(compute, terms=True, early=True, of=of)
    return Repack("", early=True, of=of) if plan.get("REPACK") else None
