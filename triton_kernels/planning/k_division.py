"""Planning of the kernels that divide K among programs. Imports no triton.

They compute C' = B' A' where that makes the wide side BLOCK_M's.
"""

from __future__ import annotations

from typing import Any

from .planner import Config, Planner

MOST_PARTS = 32
"""Of a tile: the second pass adds them all in one program."""


class KDivisionPlanner(Planner):
    """The planner of a rung that divides K; a subclass says how many tiles share the SMs."""

    divides_k = True
    tunable = True

    def pays(self, problem: Any) -> bool:
        """Only where a table prefers it."""
        return False

    def transposes(self, problem: Any) -> bool:
        return bool(problem.M > problem.N)

    def tiles_to_divide(self, tiles: int, processors: int) -> int:
        """How many of C's tiles have their K divided."""
        raise NotImplementedError

    def divide(self, config: Config, problem: Any, processors: int, transposed: bool) -> Config:
        """SPLITS of a config is the parts of K, or 0 for as many as fill the SMs once."""
        config = dict(config)
        swap = bool(config.pop("SWAP", 1))
        M, N = (problem.N, problem.M) if swap else (problem.M, problem.N)
        tiles = -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"])
        left = self.tiles_to_divide(tiles, processors)
        parts = config["SPLITS"] or processors // max(left, 1)
        parts = max(1, min(parts, -(-problem.K // config["BLOCK_K"]), MOST_PARTS)) if left else 1
        config["SPLITS"] = parts
        whole = self.whole_tiles(tiles, left, parts)
        return {"SWAP": int(swap != transposed), **config, **whole}

    def whole_tiles(self, tiles: int, left: int, parts: int) -> Config:
        """The setting WHOLE of a rung that has whole tiles beside divided ones."""
        return {}

    def parts(
        self, tile: tuple[int, int, int], problem: Any, processors: int, swap: bool
    ) -> list[Config]:
        """SPLITS and PDL worth trying with a tile."""
        pdl = int((problem.capability or (9, 0)) >= (9, 0))
        tiles = self.tiles_of(tile, problem, swap)
        most = min(-(-problem.K // tile[2]), MOST_PARTS)
        fills = processors // max(self.tiles_to_divide(tiles, processors), 1)
        parts = {x for x in (1, 0 if fills > 1 else 1, fills // 2) if x <= most and x >= 0}
        if tiles * 3 < processors and most > 1:
            parts.discard(1)  # most SMs would idle
        parts = {x for x in parts if x != fills or x == 1} or {1}
        return [{"SPLITS": x, "PDL": e} for x in sorted(parts) for e in sorted({pdl, 0})]

    def tiles_of(self, tile: tuple[int, int, int], problem: Any, swap: bool) -> int:
        """How many tiles C has, as C' = B' A' where ``swap``."""
        m, n, _ = tile
        M, N = sorted((problem.M, problem.N), reverse=swap)
        return -(-M // m) * -(-N // n)


def thin_side(problem: Any) -> int:
    """The smaller of M and N in whole tiles of a power of two, 16 at least."""
    return max(16, 1 << (min(problem.M, problem.N) - 1).bit_length())
