"""fused: its row, what it refuses, and its plans."""

from __future__ import annotations

from typing import Any

from ..planning.dtypes import EVERY, FUSES
from ..planning.planner import Planner
from ..planning.refusals import refuse_8_bit_floats
from ..planning.rows import row


class FusedPlanner(Planner):
    """A table's configuration; for 16-bit operands that of the plain rung below."""

    def pays(self, problem: Any) -> bool:
        """Where more is asked for than one plain product, which the rung below compiles to the same
        machine code."""
        return bool(not problem.plain or problem.batch > 1)


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
    refuse=refuse_8_bit_floats,
)
