"""pipelined: its row, its plans, and the configurations worth trying."""

from __future__ import annotations

from typing import Any

from ..planning.planner import Config, Planner, groups, square_tiles, tile
from ..planning.rows import row


class PipelinedPlanner(Planner):
    """A table's configuration."""

    tunable = True
    offered = (
        tile(64, 64, 32, GROUP_M=8, NUM_STAGES=3), tile(64, 64, 64, GROUP_M=8, NUM_STAGES=6),
        tile(128, 32, 128, GROUP_M=1, NUM_STAGES=5),
    )  # fmt: skip

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
