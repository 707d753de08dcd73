"""split_k: its row, its plans, and the configurations worth trying."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..planning.k_division import KDivisionPlanner, thin_side
from ..planning.planner import Config, tile
from ..planning.refusals import refuse_tma
from ..planning.rows import row
from ..planning.shared_memory import stage_bytes, tile_bytes


class SplitKPlanner(KDivisionPlanner):
    """Tiles are whole in all waves but the last."""

    by_tma = True
    offered = (
        *(
            tile(m, n, k, GROUP_M=1, PDL=1)
            for m, n, k in (
                (64, 32, 256), (128, 16, 128), (64, 64, 128), (128, 64, 128), (64, 128, 128),
                (64, 128, 64), (128, 128, 64),
            )
        ),
        tile(64, 128, 128, GROUP_M=1, PDL=0),
    )  # fmt: skip

    def swaps(self, config: Config) -> tuple[int, ...]:
        return (1,) if config["BLOCK_M"] == config["BLOCK_N"] else (1, 0)

    def tiles_to_divide(self, tiles: int, processors: int) -> int:
        return tiles % processors

    def whole_tiles(self, tiles: int, left: int, parts: int) -> Config:
        return {"WHOLE": tiles if parts == 1 else tiles - left}

    def shared_bytes(
        self,
        config: Mapping[str, int],
        dtype_out: str,
        dtype_in: str = "bfloat16",
        compute: str = "float32",
    ) -> int:
        """The stages, half of a whole tile, transposed on its way where C is, and barriers."""
        return stage_bytes(config, dtype_in, compute) + tile_bytes(config, dtype_out) // 2 + 2048

    def tiles(self, problem: Any) -> list[tuple[int, int, int]]:
        if min(problem.M, problem.N) > 128:
            return [(64, 64, 128), (64, 128, 128), (128, 64, 128), (128, 128, 64), (256, 128, 64)]
        side = thin_side(problem)
        shapes = [(m, side, k) for m, k in ((64, 128), (128, 64), (128, 128))]
        rows = max(side, 64)
        return [*shapes, (rows, 32, 256), (rows, 64, 128), (rows, 128, 64)]

    def variants(self, tile: tuple[int, int, int], problem: Any, processors: int) -> list[Config]:
        found = []
        for swap in (False, True) if tile[0] != tile[1] else (False,):
            if swap and min(problem.M, problem.N) > 128:
                continue
            group = 4 if self.tiles_of(tile, problem, swap) > 2 * processors else 1
            for parts in self.parts(tile, problem, processors, swap):
                found.append({**parts, "GROUP_M": group, "SWAP": int(swap)})
        return found


PLANNER = SplitKPlanner(
    "split_k",
    ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SPLITS", "PDL", "NUM_STAGES", "NUM_WARPS"),
)

ROW = row(
    PLANNER,
    "tiles that do not fill the last wave of SMs divided along K and added in order",
    kind="shape",
    capability=(9, 0),
    shapes="as descriptor",
    refuse=refuse_tma,
)
