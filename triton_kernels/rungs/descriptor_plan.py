"""descriptor: its row, its plans, and the configurations worth trying."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..host.storage import column_major, itemsize
from ..planning.dtypes import FUSES, ON_TENSOR_CORES, kind
from ..planning.planner import Config, Planner, few_rows, groups, square_tiles, tile
from ..planning.refusals import refuse_tma
from ..planning.rows import row
from ..planning.shared_memory import stage_bytes, tile_bytes


class DescriptorPlanner(Planner):
    """A table's configuration; a column-major C is planned as its transpose."""

    tunable = True
    by_tma = True
    offered = (
        tile(64, 32, 256, GROUP_M=1, FLATTEN=0),
        tile(128, 128, 64, warps=8, GROUP_M=1, FLATTEN=0, NUM_STAGES=5),
        tile(128, 256, 64, warps=8, GROUP_M=4, FLATTEN=1),
    )  # fmt: skip

    def pays(self, problem: Any) -> bool:
        """Not for int8: Triton waits for every step's wgmma of integers, and two programs an SM,
        which rungs without TMA have, fill the gaps: 113 us against 124 at 4096 cubed on an H200.

        Nor for few rows: at M = 16, bfloat16 nt, over six weights of language models, a rung
        without TMA takes 0.66 to 1.02 (median 0.81) of its time, since its blocks of 64 rows lie
        mostly past the edge.
        """
        return problem.dtype_in != "int8" and not few_rows(problem)

    def transposes(self, problem: Any) -> bool:
        return column_major(problem)

    def adjust(self, config: Config, problem: Any, limit: int) -> tuple[Config, int]:
        config, limit = super().adjust(config, problem, limit)
        if problem.beta:
            # Flattened, the next tile's loads hold the stages while half of C_in passes beside
            # them.
            plain = not kind(problem.dtype_in, problem.compute)
            config["FLATTEN"] *= int(plain and itemsize(problem.dtype_out) == 2)
            limit -= tile_bytes(config, problem.dtype_out) // 2 * config["FLATTEN"]
        return config, limit

    def shared_bytes(
        self,
        config: Mapping[str, int],
        dtype_out: str,
        dtype_in: str = "bfloat16",
        compute: str = "float32",
    ) -> int:
        """The stages, half of a tile of C, and barriers."""
        return stage_bytes(config, dtype_in, compute) + tile_bytes(config, dtype_out) // 2 + 256

    def tiles(self, problem: Any) -> list[tuple[int, int, int]]:
        return square_tiles(problem)

    def variants(self, tile: tuple[int, int, int], problem: Any, processors: int) -> list[Config]:
        return [{"GROUP_M": group, "FLATTEN": f} for group in groups(problem) for f in (0, 1)]


PLANNER = DescriptorPlanner(
    "descriptor",
    ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "FLATTEN", "NUM_STAGES", "NUM_WARPS"),
)

ROW = row(
    PLANNER,
    "blocks copied by the TMA unit through tensor descriptors; C stored in halves",
    pairs=ON_TENSOR_CORES,
    fuses=FUSES,
    capability=(9, 0),
    shapes="A, B and C with one stride of 1, rows and addresses in multiples of 16 bytes",
    refuse=refuse_tma,
)
