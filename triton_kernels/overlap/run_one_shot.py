"""Starts the kernels of one_shot.py, each on the current stream.

A call of tens of microseconds must not wait for the host: what a kind of call passes to the driver
is recorded once (host/recording.py), and later calls pass it again with their own addresses.
"""

from __future__ import annotations

from typing import Any

import torch

from ..device.dot import emulated
from ..host.launching import hooked
from ..host.recording import record
from ..host.runtime import INTERPRETED, cdiv, check, one_at_a_time
from . import one_shot
from .run import looks_per_s as looks_per_s
from .run import start

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
        call: with rank, world, chunk, blocks, units, most, flags_at, data, words, flags, done,
            epoch, trouble, limit, debug; addresses of these tensors; and ``kept``, for recordings.
        own: [rows, K], contiguous, from a multiple of 16 bytes on.
        scales: float32[rows] or None.
    """
    there = (own.data_ptr(), 0 if scales is None else scales.data_ptr())
    key = ("push", there[1] % 16)
    if _again(call, key, own, there):
        return
    check(own)

    def step(call: Any) -> Any:
        sizes = (own.shape[0], call.units, call.chunk, call.rank, call.most, call.flags_at)
        shared = (call.data, call.words, call.flags, call.done, call.epoch, *_waits(call))
        args = (own.view(-1).view(torch.int32), scales, *sizes, *shared)
        constants = {**_ranks(call), "BLOCK": SLICE_BYTES // 4, "INTERPRETED": INTERPRETED}
        return one_shot.push, (call.blocks,), args, constants | {"num_warps": NUM_WARPS}

    _first(call, key, step, there)


def leave(call: Any) -> None:
    """See one_shot.leave: the end of a call that ``push`` began."""
    if _again(call, ("leave",), call.epoch, ()):
        return
    args = (call.epoch, call.words, call.rank)
    _first(
        call,
        ("leave",),
        lambda _: (one_shot.leave, (1,), args, _ranks(call) | {"num_warps": 1}),
        (),
    )


def reduce(
    call: Any, partial: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None, epilogue: str
) -> None:
    """See one_shot.reduce.

    Args:
        call: as for ``push``, with ``count`` besides.
        partial: [M, N] of C's dtype, contiguous; out: [rows of this rank, N], contiguous.
        bias: [N], contiguous, or None.
    """
    there = (partial.data_ptr(), out.data_ptr(), 0 if bias is None else bias.data_ptr())
    key = ("reduce", epilogue, bias is None, there[1] % 16, there[2] % 16)
    if _again(call, key, partial, there):
        return
    check(partial)
    each = 16 // partial.itemsize

    def step(call: Any) -> Any:
        sizes = (partial.shape[0], call.units, call.chunk, call.rank, call.most, call.flags_at)
        shared = (call.data, call.words, call.flags, call.done, call.epoch, call.count)
        args = (partial, out, bias, *sizes, *shared, *_waits(call))
        constants = {
            **_ranks(call), "EACH": each, "BLOCK": SLICE_BYTES // partial.itemsize,
            "ACTIVATION": epilogue, "EMULATED": emulated(partial), "INTERPRETED": INTERPRETED,
        }  # fmt: skip
        return one_shot.reduce, (call.blocks,), args, constants | {"num_warps": NUM_WARPS}

    _first(call, key, step, there)


def _ranks(call: Any) -> dict[str, Any]:
    return {"WORLD": call.world, "LANES": 1 << (call.world - 1).bit_length()}


def _waits(call: Any) -> tuple[Any, ...]:
    return call.trouble, call.limit, int(call.debug)


def _again(call: Any, key: Any, like: torch.Tensor, there: tuple[int, ...]) -> bool:
    """Whether such a launch was recorded, and so has been started again."""
    kept = call.kept.get(key)
    if kept is None or hooked():
        return False
    stream = torch._C._cuda_getCurrentRawStream(like.get_device())
    kept[0](stream, there + call.addresses)
    return True


def _first(call: Any, key: Any, step: Any, there: tuple[int, ...]) -> None:
    """Launch as Triton does, and record it. The interpreter waits in turns; see run.py."""

    def launch(call: Any) -> Any:
        kernel, grid, args, constants = step(call)
        return kernel[grid](*args, **constants)

    if INTERPRETED and key[0] != "leave":
        start(call, launch)
        return
    with one_at_a_time:
        compiled = launch(call)
    if INTERPRETED or hooked() or key in call.kept:
        return
    recorded = record(compiled, step(call), there + call.addresses)
    # With what Triton compiled, whose binary is kept alive so.
    call.kept[key] = None if recorded is None else (recorded, compiled)
