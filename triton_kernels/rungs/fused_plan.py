"""fused: its row, what it refuses, and its plans."""

from __future__ import annotations

from typing import Any

from ..planning.dtypes import EVERY, FUSES
from ..planning.planner import Planner
from ..planning.rows import row


class FusedPlanner(Planner):
    """A table's configuration; for 16-bit operands that of the plain rung below."""

    def pays(self, problem: Any) -> bool:
        """Where more is asked for than one plain product, which the rung below compiles to the same
        machine code."""
        return bool(not problem.plain or problem.batch > 1)


def refuse(problem: Any) -> str | None:
    """Why this GPU has no tensor core for the type, as a sentence; None when it has."""
    capability = problem.capability
    if problem.dtype_in.startswith("float8") and capability is not None and capability < (8, 9):
        return (
            f"{problem.dtype_in} needs compute capability 8.9 and this GPU has "
            f"{capability[0]}.{capability[1]}: bfloat16 holds the same numbers"
        )
    return None


PLANNER = FusedPlanner(
    "fused",
    ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "NUM_STAGES", "NUM_WARPS"),
    table="pipelined",
)

ROW = row(
    PLANNER,
    "every type, batches, and what follows the product, in the same launch",
    pairs=EVERY,
    fuses=FUSES,
    refuse=refuse,
)
