"""The one-shot way: collectives of one kernel each around the best product of one GPU.

All-gather and product                      Product and reduce-scatter
push     own rows into every rank's slot    product  partial sums, into memory of this rank
product  of the gathered rows               reduce   each owner's rows into its slot, own rows' sum

Slots, words and epochs are those of the overlapped way (protocol.py), and calls of both take the
slots in turns. docs/lab/several_gpus_protocol.md says why it is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..planning import MOST_TILES, UNIT_BYTES
from ..rows import chunk_of
from .kinds import SlotCall
from .memory import Slot
from .protocol import Rank


@dataclass(frozen=True)
class ShotCall(SlotCall):
    """What kernels are told of a kind of call, on one slot. It is made once, and kept. It has a
    flag for each block of each rank."""

    units: int
    """Of 16 bytes, in a row of what is moved."""
    blocks: int
    moved: Any
    """Of an all-gather: all rows of A in this rank's slot, and of their scales or None."""
    stamps: None = None


class Kernels(Protocol):
    """The kernels, each of which is started on the current stream."""

    looks_per_s: int

    def blocks_of(self, size: int) -> int:
        """How many blocks store ``size`` bytes at each peer; the same on every rank."""

    def push(self, call: ShotCall, own: torch.Tensor, scales: torch.Tensor | None) -> None: ...

    def reduce(
        self, call: ShotCall, partial: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None,
        epilogue: str,
    ) -> None: ...  # fmt: skip


Product = Any
"""``gemm``, or what takes its place in a test."""


def all_gather_matmul(
    rank: Rank, kernels: Kernels, product: Product, a: torch.Tensor, b: torch.Tensor,
    out: torch.Tensor, rows: int, debug: bool, **asked: Any,
) -> torch.Tensor:  # fmt: skip
    """out[rows, N] = f(all rows of A @ b + bias) by ``product(A, b, out=out, **asked)``.

    Args:
        a: [rows of this rank, K] of any dtype, whose rows are whole 16 bytes.
        asked: of ``gemm``. A scale of one dimension is of this rank's rows, and is gathered too.
    """
    a, scales = _words(a), asked.get("scale_a")
    if not (isinstance(scales, torch.Tensor) and scales.dim()):
        scales = None
    world = rank.transport.world
    chunk, of_row = chunk_of(rows, world), a.shape[1] * a.itemsize
    size = world * chunk * of_row
    slot, _ = rank.begin(size + (0 if scales is None else 4 * world * chunk), hears=True)
    key = (
        rows,
        of_row,
        a.dtype,
        scales is None,
        debug,
        slot.number,
        slot.data_addresses.data_ptr(),
    )
    call = rank.kinds.get(key)
    if call is None:
        here = slot.data[rank.transport.rank]
        whole = here[: rows * of_row].view(a.dtype).view(rows, a.shape[1])
        of_rows = None if scales is None else here[size : size + 4 * rows].view(torch.float32)
        call = _call(rank, kernels, slot, chunk, of_row, debug, (whole, of_rows))
        rank.keep(key, call)
    kernels.push(call, a, None if scales is None else scales.contiguous())
    whole, of_rows = call.moved
    if of_rows is not None:
        asked["scale_a"] = of_rows
    product(whole, b, out=out, **asked)
    rank.end(debug, "block")
    return out


def matmul_reduce_scatter(
    rank: Rank, kernels: Kernels, product: Product, a: torch.Tensor, b: torch.Tensor,
    out: torch.Tensor, debug: bool, bias: torch.Tensor | None, epilogue: str, **asked: Any,
) -> torch.Tensor:  # fmt: skip
    """out[rows of this rank, N] = f(sum over ranks of a @ b + bias), in the order of ranks.

    Args:
        out: contiguous; float16, bfloat16 or float32, with rows of whole 16 bytes.
        asked: of ``gemm``, but for what comes after the sum.
    """
    (rows, _), N = a.shape, b.shape[1]
    partial = out.new_empty((rows, N))
    product(a, b, out=partial, **asked)
    chunk, of_row = chunk_of(rows, rank.transport.world), N * out.itemsize
    slot, _ = rank.begin(rank.transport.world * chunk * of_row, hears=True)
    key = (rows, of_row, out.dtype, debug, slot.number, slot.data_addresses.data_ptr())
    call = rank.kinds.get(key)
    if call is None:
        call = _call(rank, kernels, slot, chunk, of_row, debug, None)
        rank.keep(key, call)
    kernels.reduce(call, partial, out, None if bias is None else bias.contiguous(), epilogue)
    rank.end(debug, "block")
    return out


def _call(
    rank: Rank, kernels: Kernels, slot: Slot, chunk: int, of_row: int, debug: bool, moved: Any
) -> ShotCall:
    told = rank.told(slot, chunk, slot.tiles_at, MOST_TILES, kernels.looks_per_s, debug)
    return ShotCall(
        **told,
        units=of_row // UNIT_BYTES,
        blocks=kernels.blocks_of(chunk * of_row),
        moved=moved,
    )


def _words(a: torch.Tensor) -> torch.Tensor:
    """A as it is stored 16 bytes at a time: its rows one after the other, from such an address."""
    a = a.contiguous()
    begins = a.data_ptr() % UNIT_BYTES or a.storage_offset() * a.itemsize % UNIT_BYTES
    return a.clone() if begins else a
