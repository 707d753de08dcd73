"""skinny: its row, its plans, and the configurations worth trying."""

from __future__ import annotations

from typing import Any

from ..planning.k_division import KDivisionPlanner, thin_side
from ..planning.planner import Config
from ..planning.rows import row

LEAST_DEPTH = 64
"""Elements of K in a step, at least."""


class SkinnyPlanner(KDivisionPlanner):
    """All parts of all tiles are launched at once."""

    def adjust(self, config: Config, problem: Any, limit: int) -> tuple[Config, int]:
        """No step along K is deeper than K: past it are zeros, which are copied like others."""
        depth = max(LEAST_DEPTH, 1 << (problem.K - 1).bit_length())
        config = {**config, "BLOCK_K": min(config["BLOCK_K"], depth)}
        return super().adjust(config, problem, limit)

    def divide(self, config: Config, problem: Any, processors: int, transposed: bool) -> Config:
        """Of a single step nothing is ahead: with fewer stages an SM has room for more programs."""
        found = super().divide(config, problem, processors, transposed)
        steps = -(-problem.K // (found["BLOCK_K"] * found["SPLITS"]))
        return {**found, "NUM_STAGES": 2} if steps <= 1 else found

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
