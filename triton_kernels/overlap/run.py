"""The kernels of tcgemm.dist.overlap in Triton: each function starts one on the current stream."""

from __future__ import annotations

from typing import Any

import torch

from ..host.runtime import INTERPRETED, check, one_at_a_time
from . import gather as gathering
from . import scatter as scattering
from . import signals

looks_per_s = 20_000 if INTERPRETED else 1_000_000
"""How often a kernel looks at a flag, roughly; on a GPU a round trip to the L2."""


def _start(kernel: Any, grid: tuple[int], args: tuple[Any, ...], constants: dict[str, Any]) -> None:
    with one_at_a_time:
        kernel[grid](*args, **constants)


def enter(call: Any) -> None:
    """Wait until the peers are done with the slot, and count this use of it."""
    args = (call.epoch, call.done, call.trouble, call.rank, call.limit, int(call.debug))
    _start(signals.enter, (1,), args, _signal(call))


def leave(call: Any) -> None:
    """Tell the peers that this rank is done with the slot."""
    _start(signals.leave, (1,), (call.epoch, call.words, call.rank), _signal(call))


def _signal(call: Any) -> dict[str, Any]:
    return {"WORLD": call.world, "INTERPRETED": INTERPRETED, "num_warps": 1, "stamps": call.stamps}


def gather(
    own: torch.Tensor, gathered: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
    bias: torch.Tensor | None, epilogue: str, call: Any, plan: Any,
) -> None:  # fmt: skip
    """See gather.py. ``plan``: with tile.config, parts and part_tiles."""
    check(b)
    config = {**plan.tile.config, "PARTS": call.most, "PART_TILES": plan.part_tiles}
    grid, args, constants = gathering.arguments(
        own, gathered, b, out, bias, epilogue, call, **config
    )
    _start(gathering.kernel, grid, args, constants | _optional(call))


def scatter(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, slots: torch.Tensor,
    bias: torch.Tensor | None, epilogue: str, call: Any, plan: Any,
) -> None:  # fmt: skip
    """See scatter.py. ``plan``: with tile.config."""
    check(b)
    grid, args, constants = scattering.arguments(
        a, b, out, slots, bias, epilogue, call, **plan.tile.config
    )
    # Blocks wait for tiles of peers' blocks, so all of a grid have to be there at once: the
    # interpreter runs one after the other.
    grid = (1,) if INTERPRETED else grid
    _start(scattering.kernel, grid, args, constants | _optional(call))


def _optional(call: Any) -> dict[str, Any]:
    """What products are given of a call that has it: scales of 8-bit floats, and stamps."""
    return {
        "scale_a": call.scale_a,
        "scale_b": call.scale_b,
        "ROW_SCALES_A": call.scale_a is not None and call.scale_a.dim() > 0,
        "ROW_SCALES_B": call.scale_b is not None and call.scale_b.dim() > 0,
        "stamps": call.stamps,
    }
