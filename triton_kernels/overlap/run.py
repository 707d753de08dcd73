"""The kernels of tcgemm.dist.overlap in Triton: each function starts one on the current stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..host.runtime import INTERPRETED, check, one_at_a_time
from . import gather as gathering
from . import scatter as scattering
from . import signals

looks_per_s = 20_000 if INTERPRETED else 1_000_000
"""How often a kernel looks at a flag, roughly; on a GPU a round trip to the L2."""


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
    kept = [(x, x.clone()) for x in (call.epoch, call.stamps) if x is not None]
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


def enter(call: Any) -> None:
    """Wait until the peers are done with the slot, and count this use of it."""

    def launch(call: Any) -> None:
        args = (call.epoch, call.done, call.trouble, call.rank, call.limit, int(call.debug))
        signals.enter[(1,)](*args, PDL=_early(call), **_signal(call))

    start(call, launch)


def leave(call: Any) -> None:
    """Tell the peers that this rank is done with the slot."""
    with one_at_a_time:
        early = {"PDL": True, "launch_pdl": True} if _early(call) else {}
        signals.leave[(1,)](call.epoch, call.words, call.rank, **early, **_signal(call))


def await_stored(call: Any, owner: int, part: int, count: int) -> None:
    """Wait until so many tiles of an owner's part are stored here, and set the count back."""
    at = owner * call.most + part
    args = (call.stored, at, count, call.trouble, call.limit, int(call.debug), owner, part)
    with one_at_a_time:
        signals.await_stored[(1,)](*args, num_warps=1)


def _early(call: Any) -> bool:
    """Whether kernels of the call start while the ones before them run."""
    return call.early and not INTERPRETED


def _signal(call: Any) -> dict[str, Any]:
    return {"WORLD": call.world, "INTERPRETED": INTERPRETED, "num_warps": 1, "stamps": call.stamps}


def gather(
    own: torch.Tensor, gathered: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
    bias: torch.Tensor | None, epilogue: str, call: Any, plan: Any,
) -> None:  # fmt: skip
    """See gather.py. ``plan``: with tile.config, parts and part_tiles."""
    check(b)
    config = {**plan.tile.config, "PARTS": call.most, "part_tiles": plan.part_tiles}

    def launch(call: Any) -> None:
        grid, args, constants = gathering.arguments(
            own, gathered, b, out, bias, epilogue, call, **config
        )
        gathering.kernel[grid](*args, **constants, **_optional(call))

    start(call, launch)


def sent_shape(plan: Any, N: int) -> tuple[int, ...]:
    """Of what a peer sends to a slot: rows."""
    return plan.chunk, N


def scatter(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, slots: torch.Tensor,
    bias: torch.Tensor | None, epilogue: str, call: Any, plan: Any, tiles: str = "all",
) -> None:  # fmt: skip
    """See scatter.py. ``plan``: with tile.config and part_tiles."""
    check(b)
    config = {**plan.tile.config, "part_tiles": plan.part_tiles if plan.carried else 0}

    def launch(call: Any) -> None:
        grid, args, constants = scattering.arguments(
            a, b, out, slots, bias, epilogue, call, TILES=tiles, WIDE=plan.wide, **config
        )
        # Blocks wait for tiles of peers' blocks, so all of a grid have to be there at once: the
        # interpreter runs one after the other.
        grid = (1,) if INTERPRETED else grid
        early = {"PDL": True, "launch_pdl": True} if _early(call) else {}
        scattering.kernel[grid](*args, **early, **constants, **_optional(call))

    start(call, launch)


def _optional(call: Any) -> dict[str, Any]:
    """What products are given of a call that has it: scales of 8-bit floats, and stamps."""
    return {
        "scale_a": call.scale_a,
        "scale_b": call.scale_b,
        "ROW_SCALES_A": call.scale_a is not None and call.scale_a.dim() > 0,
        "ROW_SCALES_B": call.scale_b is not None and call.scale_b.dim() > 0,
        "stamps": call.stamps,
    }
