"""pipelined: its row, its plans, and the configurations worth trying."""

from __future__ import annotations

from typing import Any

from ..planning.planner import Config, Planner, groups, square_tiles
from ..planning.rows import row


class PipelinedPlanner(Planner):
    """A table's configuration."""

    tunable = True

    def tiles(self, problem: Any) -> list[tuple[int, int, int]]:
        return square_tiles(problem)

    def variants(self, tile: tuple[int, int, int], problem: Any, processors: int) -> list[Config]:
        return [{"GROUP_M": group} for group in groups(problem)]


PLANNER = PipelinedPlanner(
    "pipelined", ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "NUM_STAGES", "NUM_WARPS")
)

ROW = row(
    PLANNER, "loads of NUM_STAGES - 1 later K steps in flight; the tile from a table of shapes"
)
