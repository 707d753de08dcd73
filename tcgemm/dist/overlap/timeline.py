"""The time line of a call: what a rank did from when to when, by the clocks of its GPU.

Kernels that are given ``Options.stamps`` write %globaltimer there, in nanoseconds: first the begin
and the end of ``enter`` or, where the product begins the call, of what its first block does of it;
then, for each block and each piece of its work in the order in which the rank comes to it, when the
block came there, when it had seen the flag that it waits for, when its last tile of the piece was
stored, and when its last flag was set. A piece is a part of a rank's rows to gather (own rows are
one), or an owner's tiles to scatter.

The GPUs' clocks differ. Each call here begins behind a barrier of all ranks, so the median of the
differences of the begins is the difference of the clocks, within a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from ..options import ALL_GATHER
from .memory import zeros
from .plan import MOST_PARTS
from .times import SMS
from .transports import GpuTransport

Stamp = tuple[str, int, float, float]
"""What, which piece, and its begin and end in microseconds since the first rank began."""

OF_CALL = 2
CAME, SEEN, STORED, FLAGGED = range(4)
CALLS = 9
"""The first ones compile and warm up; the last is told of."""
DELAY_CYCLES = 2_000_000
"""About a millisecond, under which the host starts all of a call."""


def stamps_of(
    op: str, transport: Any, group: Any, call: Callable[[torch.Tensor], None]
) -> list[Stamp]:
    """The stamps of the last of CALLS calls on this rank. All ranks make them.

    ``wait`` is the longest of a block for the piece, ``tiles`` reaches from the first block that
    could begin with a piece to the last that has stored it, ``flags`` from there to the last flag,
    ``copy`` is what this rank's copy engine sent, by events, within some 2 microseconds.

    Args:
        transport: of this rank.
        call: makes the call, and has its kernels write into what it is given.
    """
    world, each = transport.world, MOST_PARTS if op == ALL_GATHER else 1
    gpu = transport if isinstance(transport, GpuTransport) else None
    blocks = SMS
    if gpu is not None:
        blocks = torch.cuda.get_device_properties(gpu.device).multi_processor_count
    into = zeros(OF_CALL + blocks * world * each * 4, transport.device, torch.int64)
    begins = []
    start = None
    for _ in range(CALLS if gpu is not None else 1):
        into.zero_()
        start = _begin(group, gpu)
        call(into)
        transport.synchronize()
        begins.append(int(into[0]))
    copies = _copies(gpu, start) if gpu is not None else []
    if op != ALL_GATHER:  # a copy of partial sums waits for tiles: its begin says nothing
        copies = []
    told: list[Any] = [None] * world
    dist.all_gather_object(told, begins, group=group)
    mine = transport.rank
    apart = [0.0] * world  # clock of the rank less that of the first
    if gpu is not None:
        apart = [median(b - a for a, b in zip(told[0], of, strict=True)) for of in told]
    zero = min(of[-1] - ns for of, ns in zip(told, apart, strict=True)) + apart[mine]
    begun = (begins[-1] - zero) / 1e3
    return [
        *pieces(into.cpu(), blocks, world * each, zero),
        *(("copy", number, begun + begin, begun + end) for number, begin, end in copies),
    ]


def _begin(group: Any, gpu: GpuTransport | None) -> torch.cuda.Event | None:
    """Have this rank's stream wait for all ranks; the event behind that."""
    if gpu is None:
        dist.barrier(group)
        return None
    gpu.marks = []
    torch.cuda._sleep(DELAY_CYCLES)
    dist.all_reduce(torch.zeros(1, device=gpu.device), group=group)
    start = torch.cuda.Event(True)
    start.record()
    return start


def _copies(gpu: GpuTransport, start: Any) -> list[tuple[int, float, float]]:
    """(piece, begin, end) of the rows that were sent, in microseconds since ``start``."""
    marks, gpu.marks = gpu.marks or [], None
    at = [1e3 * start.elapsed_time(event) for event in marks]
    parts = (len(marks) - 1) // 2 // max(gpu.world - 1, 1)  # rows and a flag for each
    return [
        ((1 + i // parts) * MOST_PARTS + i % parts, at[2 * i], at[2 * i + 1])
        for i in range((len(marks) - 1) // 2)
    ]


def pieces(into: torch.Tensor, blocks: int, count: int, zero: float = 0.0) -> list[Stamp]:
    """What kernels wrote, summed up over the blocks.

    Args:
        into: int64[OF_CALL + blocks * count * 4]; zeros where nothing was written.
        zero: the moment, in nanoseconds of this clock, from which on microseconds count.
    """
    call, rest = into[:OF_CALL].tolist(), into[OF_CALL:].view(blocks, count, 4)
    us = lambda ns: (float(ns) - zero) / 1e3  # noqa: E731
    found: list[Stamp] = [("enter", 0, us(call[0]), us(call[1]))]
    for piece in range(count):
        of = rest[:, piece]
        of = of[of[:, CAME] > 0]
        if not len(of):
            continue
        longest = of[(of[:, SEEN] - of[:, CAME]).argmax()]
        if longest[SEEN] - longest[CAME] > 0:
            found.append(("wait", piece, us(longest[CAME]), us(longest[SEEN])))
        last = of[:, STORED].max()
        found.append(("tiles", piece, us(of[:, SEEN].min()), us(last)))
        if of[:, FLAGGED].any():
            found.append(("flags", piece, us(last), us(of[:, FLAGGED].max())))
    return found
