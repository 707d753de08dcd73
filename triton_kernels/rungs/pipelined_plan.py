"""pipelined: its row, its plans, and the configurations worth trying."""

from __future__ import annotations

from typing import Any

from ..host.storage import itemsize
from ..planning.k_division import by_elements
from ..planning.planner import Config, Planner, groups, square_tiles, tile
from ..planning.refusals import refuse_tma
from ..planning.rows import row

SHORT_K, LARGE_C = 128, 540_672
"""Elements along K, and of C, of a product whose elements are loaded one by one, up to and from
which tiles of 64 x 64 are taken: several programs of them on an SM wait beside each other. At three
drawn shapes they were the fastest of all that was timed, by 9 to 45 %, where tiles of 128 x 128, or
copies, were taken. Where TMA reaches both operands, which copies are made for, none is settled.
One program to an SM that loops over tiles was slower at eleven of twelve
pairs of plans with the same tile (reports/nvidia-h200/trials/races.csv)."""


class PipelinedPlanner(Planner):
    """A table's configuration."""

    tunable = True
    offered = (
        tile(64, 64, 32, GROUP_M=8, NUM_STAGES=3), tile(64, 64, 64, GROUP_M=8, NUM_STAGES=6),
        tile(128, 32, 128, GROUP_M=1, NUM_STAGES=5),
    )  # fmt: skip

    offered_by_elements = (
        tile(64, 32, 64, GROUP_M=1, NUM_STAGES=3), tile(64, 64, 32, GROUP_M=8, NUM_STAGES=3),
        tile(128, 128, 32, 8, GROUP_M=8, NUM_STAGES=3),
    )  # fmt: skip

    def settled(self, problem: Any) -> bool:
        return bool(
            problem.plain
            and problem.batch == 1
            and itemsize(problem.dtype_in) == itemsize(problem.dtype_out) == 2
            and problem.K <= SHORT_K
            and problem.M * problem.N >= LARGE_C
            and by_elements(problem)
            and refuse_tma(problem, "AB")
        )

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
