"""persistent: its row and its plans."""

from __future__ import annotations

from typing import Any

from ..planning.planner import Planner, few_rows, tile
from ..planning.rows import row


class PersistentPlanner(Planner):
    """A table's configuration."""

    offered = (tile(64, 32, 64, GROUP_M=1, FLATTEN=0, NUM_STAGES=3),)

    def pays(self, problem: Any) -> bool:
        """On an H200 at M = 16, bfloat16 nt, over six weights of language models, one program a
        tile takes 0.94 to 1.03 of its time."""
        return not few_rows(problem)


PLANNER = PersistentPlanner(
    "persistent",
    ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "FLATTEN", "NUM_STAGES", "NUM_WARPS"),
)

ROW = row(PLANNER, "one program per SM loops over tiles")
