"""The rows of the ladder: what dispatch knows of a rung before it is loaded."""

from __future__ import annotations

from typing import Any

from .dtypes import PLAIN
from .planner import Planner
from .refusals import refuse_tiles


def row(planner: Planner, adds: str, **limits: Any) -> dict[str, Any]:
    """The row of a rung; ``limits`` are fields of tcgemm.dispatch.Kernel.

    Args:
        planner: its plans.
        adds: one sentence, what it adds to the rung before.
        limits: what differs from a rung of 16-bit operands on any GPU from sm_80 on.
    """
    refuse = limits.pop("refuse", lambda problem: None)
    return {
        "name": planner.name,
        "adds": adds,
        "pairs": PLAIN,
        "devices": ("cuda", "cpu"),
        "capability": (8, 0),
        "plan": planner,
        "unaligned_us": planner.unaligned_us,
        "refuse": lambda problem: refuse(problem) or refuse_tiles(problem, planner),
        **limits,
    }
