"""skinny: its row, its plans, and the configurations worth trying."""

from __future__ import annotations

from typing import Any

from ..planning.k_division import KDivisionPlanner, thin_side
from ..planning.planner import Config
from ..planning.rows import row


class SkinnyPlanner(KDivisionPlanner):
    """All parts of all tiles are launched at once."""

    def tiles_to_divide(self, tiles: int, processors: int) -> int:
        return tiles

    def tiles(self, problem: Any) -> list[tuple[int, int, int]]:
        side = thin_side(problem)
        if min(problem.M, problem.N) > 128:
            return []
        return [(m, side, k) for m, k in ((32, 256), (64, 64), (64, 128), (64, 256), (128, 64))]

    def variants(self, tile: tuple[int, int, int], problem: Any, processors: int) -> list[Config]:
        return self.parts(tile, problem, processors, swap=True)


PLANNER = SkinnyPlanner(
    "skinny", ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLITS", "PDL", "NUM_STAGES", "NUM_WARPS")
)

ROW = row(
    PLANNER,
    "the wide side first, so that few rows waste nothing; K divided among idle SMs; programmatic "
    "dependent launch",
    kind="shape",
)
