"""Starts the kernels of one_shot.py, each on the current stream; recorded as those of run.py."""

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import emulated
from ..host.recording import Step
from ..host.runtime import INTERPRETED, cdiv, check, starts_early
from . import one_shot
from .run import again, first, ranks
from .run import looks_per_s as looks_per_s

SLICE_BYTES = 8192
"""That a block stores at each peer before it takes the next: 16 bytes a thread."""

MOST_BLOCKS = 4 if INTERPRETED else 128
"""Of a kernel; no more than are on the GPU at once, of which an SM takes at least one."""

NUM_WARPS = 16


def blocks_of(size: int) -> int:
    """Blocks for ``size`` bytes to a peer: the same on every rank, which wait block by block."""
    return max(1, min(MOST_BLOCKS, cdiv(size, SLICE_BYTES)))


def push(call: Any, own: torch.Tensor, scales: torch.Tensor | None) -> None:
    """See one_shot.push.

    Args:
        call: with rank, world, chunk, blocks, units, most, flags_at, done_at, data, words, flags,
            done, epoch, last, count, trouble, limit, debug; and addresses and ``kept``, as for
            run.again.
        own: [rows, K], contiguous, from a multiple of 16 bytes on.
        scales: float32[rows] or None.
    """
    there = (own.data_ptr(), 0 if scales is None else scales.data_ptr())
    key = ("push", there[1] % 16)
    if again(call, key, there):
        return
    check(own)

    def step(call: Any) -> Step:
        rows = own.view(-1).view(torch.int32), scales, own.shape[0]
        constants = {**_compiled_for(call), "BLOCK": SLICE_BYTES // 4}
        return one_shot.push, (call.blocks,), (*rows, *_sizes(call), *_shared(call)), constants

    first(call, key, step, there)


def reduce(
    call: Any, partial: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None, epilogue: str
) -> None:
    """See one_shot.reduce.

    Args:
        call: as for ``push``.
        partial: [M, N] of C's dtype, contiguous; out: [rows of this rank, N], contiguous.
        bias: [N], contiguous, or None.
    """
    there = (partial.data_ptr(), out.data_ptr(), 0 if bias is None else bias.data_ptr())
    key = ("reduce", epilogue, bias is None, there[1] % 16, there[2] % 16)
    if again(call, key, there):
        return
    check(partial)
    each = 16 // partial.itemsize

    def step(call: Any) -> Step:
        args = (partial, out, bias, partial.shape[0], *_sizes(call), *_shared(call))
        constants = {
            **_compiled_for(call), "EACH": each, "BLOCK": SLICE_BYTES // partial.itemsize,
            "ACTIVATION": epilogue, "EMULATED": emulated(partial),
            **starts_early(not INTERPRETED),
        }  # fmt: skip
        return one_shot.reduce, (call.blocks,), args, constants

    first(call, key, step, there)


def _compiled_for(call: Any) -> dict[str, Any]:
    return {**ranks(call), "INTERPRETED": INTERPRETED, "num_warps": NUM_WARPS}


def _sizes(call: Any) -> tuple[int, ...]:
    return call.units, call.chunk, call.rank, call.most, call.flags_at, call.done_at


def _shared(call: Any) -> tuple[Any, ...]:
    """What lies in memory that ranks share, and this rank's own counts."""
    shared = call.data, call.words, call.flags, call.done, call.epoch, call.last, call.count
    return *shared, call.trouble, call.limit, int(call.debug)
