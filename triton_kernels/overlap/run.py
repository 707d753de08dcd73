"""The kernels of tcgemm.dist.overlap in Triton: each function starts one on the current stream.

A call of tens of microseconds must not wait for the host. So what a kind of call passes to the
driver is recorded once (host/recording.py), and later calls pass it again with their own addresses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch

from ..host.launching import hooked
from ..host.recording import Step, record
from ..host.runtime import INTERPRETED, check, one_at_a_time, starts_early
from . import gather as gathering
from . import scatter as scattering
from . import signals
from .tile import ranks

looks_per_s = 20_000 if INTERPRETED else 1_000_000
"""How often a kernel looks at a flag, roughly; on a GPU a round trip to the L2."""


AWAITS = False
"""A product begins a call only where the slot is known to be free."""

LOOKS_OF_A_TURN = 2_000
"""Looks at a flag after which a launch of the interpreter lets other threads' launches go first."""


def start(call: Any, launch: Callable[[Any], None]) -> None:
    """``launch(call)``, of a kernel that waits for peers.

    The interpreter runs one launch at a time. While a thread's kernel waits there, a peer may wait
    for what another thread of this process sends. So a kernel that has waited for a turn in vain
    ends, and starts anew behind the others'; it stores what it stored before.
    """
    if not INTERPRETED:
        launch(call)
        return
    counts = call.epoch, call.last, call.count, call.stamps
    kept = [(x, x.clone()) for x in counts if x is not None]
    left = 0 if call.trouble[0] else call.limit
    while True:
        with one_at_a_time:
            launch(replace(call, limit=min(left, LOOKS_OF_A_TURN)))
        left -= LOOKS_OF_A_TURN
        if left <= 0 or not call.trouble[0]:
            return
        time.sleep(0.001)  # a lock that is taken again at once is given to nobody else
        call.trouble.zero_()
        for x, before in kept:
            x.copy_(before)


KEPT = 512
"""Launches that are kept of a kind of call: those with descriptors hold addresses."""


def again(call: Any, key: Hashable, own: tuple[int, ...] = ()) -> bool:
    """Whether such a launch was recorded, and so has been started again.

    Args:
        call: with ``kept``, where recordings are kept, or None; and ``addresses``.
        key: which launch of the kind of call it is, with all that recordings rest on.
        own: addresses of the operands.
    """
    kept = None if call.kept is None else call.kept.get(key)
    if kept is None or hooked():
        return False
    stream = torch._C._cuda_getCurrentRawStream(call.epoch.get_device())
    kept[0](stream, own + call.addresses)
    return True


def first(
    call: Any, key: Hashable, step: Callable[[Any], Step], own: tuple[int, ...] = (), *,
    waits: bool = True, behind_early: bool = False,
) -> None:  # fmt: skip
    """Launch as Triton does, and record it.

    Args:
        step: the launch, of a call.
        waits: whether the kernel waits for peers; see ``start``.
        behind_early: whether the kernel ahead lets this one start before its end.
    """

    def launch(call: Any) -> Any:
        kernel, grid, args, constants = step(call)
        return kernel[grid](*args, **constants)

    if INTERPRETED and waits:
        start(call, launch)
        return
    with one_at_a_time:
        compiled = launch(call)
    if INTERPRETED or call.kept is None or hooked() or key in call.kept:
        return
    ahead: Step = (None, (), (), {"PDL": behind_early})
    recorded = record(compiled, step(call), own + call.addresses, None, ahead)
    if len(call.kept) >= KEPT:
        call.kept.clear()
    # With what Triton compiled, whose binary is kept alive so.
    call.kept[key] = None if recorded is None else (recorded, compiled)


def enter(call: Any) -> None:
    """Tell the peers of the calls that have ended here, wait until they are done with the slot, and
    count this call."""
    if again(call, "enter"):
        return

    def step(call: Any) -> Step:
        counts = call.epoch, call.last, call.done, call.words, call.done_at
        args = (*counts, call.trouble, call.rank, call.limit, int(call.debug))
        constants = {**ranks(call), "INTERPRETED": INTERPRETED, "stamps": call.stamps}
        return signals.enter, (1,), args, {**constants, "num_warps": 1, "PDL": _early(call)}

    first(call, "enter", step)


def await_stored(call: Any, owner: int, part: int, count: int) -> None:
    """Wait until so many tiles of an owner's part are stored here, and set the count back."""
    key = "stored", owner, part, count
    if again(call, key):
        return

    def step(call: Any) -> Step:
        at = owner * call.most + part
        args = (call.stored, at, count, call.trouble, call.limit, int(call.debug), owner, part)
        return signals.await_stored, (1,), args, {"num_warps": 1}

    first(call, key, step, waits=False)


def _early(call: Any) -> bool:
    """Whether kernels of the call start while the ones before them run."""
    return call.early and not INTERPRETED


def gather(
    own: torch.Tensor, gathered: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
    bias: torch.Tensor | None, epilogue: str, call: Any, plan: Any,
) -> None:  # fmt: skip
    """See gather.py. ``plan``: with tile.config, parts and part_tiles."""
    lies, key = _known_by(own, b, out, bias)
    if again(call, key, lies):
        return
    check(b)
    config = {**plan.tile.config, "PARTS": call.most, "part_tiles": plan.part_tiles}

    def step(call: Any) -> Step:
        grid, args, constants = gathering.arguments(
            own, gathered, b, out, bias, epilogue, call, **config
        )
        return gathering.kernel, grid, args, {**constants, **_optional(call)}

    first(call, key, step, lies)


def sent_shape(plan: Any, N: int) -> tuple[int, ...]:
    """Of what a peer sends to a slot: rows."""
    return plan.chunk, N


def scatter(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, slots: torch.Tensor,
    bias: torch.Tensor | None, epilogue: str, call: Any, plan: Any, tiles: str = "all",
) -> None:  # fmt: skip
    """See scatter.py. ``plan``: with tile.config and part_tiles."""
    lies, key = _known_by(a, b, out, bias)
    if again(call, key, lies):
        return
    check(b)
    config = {**plan.tile.config, "part_tiles": plan.part_tiles if plan.carried else 0}

    def step(call: Any) -> Step:
        grid, args, constants = scattering.arguments(
            a, b, out, slots, bias, epilogue, call, TILES=tiles, WIDE=plan.wide, **config
        )
        # Blocks wait for tiles of peers' blocks, so all of a grid have to be there at once: the
        # interpreter runs one after the other.
        grid = (1,) if INTERPRETED else grid
        constants |= {**starts_early(_early(call)), **_optional(call)}
        return scattering.kernel, grid, args, constants

    first(call, key, step, lies, behind_early=_early(call))


def _known_by(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None
) -> tuple[tuple[int, ...], Hashable]:
    """Addresses of a product's operands, and what its recording is known by: descriptors hold the
    addresses of A and B, and kernels are compiled for those of others modulo 16 bytes."""
    lies = a.data_ptr(), b.data_ptr(), out.data_ptr(), 0 if bias is None else bias.data_ptr()
    return lies, ("product", *lies[:2], lies[2] % 16, lies[3] % 16)


def _optional(call: Any) -> dict[str, Any]:
    """What products are given of a call that has it: scales of 8-bit floats, and stamps."""
    return {
        "scale_a": call.scale_a,
        "scale_b": call.scale_b,
        "ROW_SCALES_A": call.scale_a is not None and call.scale_a.dim() > 0,
        "ROW_SCALES_B": call.scale_b is not None and call.scale_b.dim() > 0,
        "stamps": call.stamps,
    }
