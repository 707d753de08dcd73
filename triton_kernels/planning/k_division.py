"""Planning of the kernels that divide K among programs. Imports no triton.

They compute C' = B' A' where that makes the wide side BLOCK_M's.
"""

from __future__ import annotations

from typing import Any

from ..host.storage import itemsize
from .planner import UNALIGNED_STEP_US, Config, Planner
from .tables import aligned

MOST_PARTS = 32
"""Of a tile: the second pass adds them all in one program."""

PARTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
"""Of K, worth a try."""

SECOND_US = 2.6
"""The second pass, behind the first (H200, in a graph among other kernels, as what follows):
64 x 64 x 384 takes 4.9 us in six parts, and 64 cubed 1.8."""

PART_US = 0.03
"""For each part that it adds."""

BYTES_PER_US = 55e3
"""Of A and B, that one program reads and multiplies: a step of 64 of a tile of 64 x 64 takes 0.3
us."""

PROGRAMS_BY_ELEMENTS = 3
"""That an SM runs beside each other, where elements are loaded one by one: each of them waits."""


def by_elements(problem: Any) -> bool:
    """Whether no vector of A and B can be loaded, so that a step along K is a trip to memory."""
    return not aligned(problem, with_c=False, elements=16 // itemsize(problem.dtype_in))


def parts_of(problem: Any, config: Config, most: int) -> int:
    """The parts of K that take the least time, of at most ``most``: fewer steps one after the
    other, or no second pass."""
    depth = config["BLOCK_K"]
    steps = -(-problem.K // depth)
    step_us = depth * (config["BLOCK_M"] + config["BLOCK_N"]) * 2 / BYTES_PER_US
    if by_elements(problem):
        step_us = max(step_us, UNALIGNED_STEP_US)

    def us(parts: int) -> float:
        return -(-steps // parts) * step_us + (SECOND_US + parts * PART_US) * (parts > 1)

    return min(range(1, max(1, min(most, steps, MOST_PARTS)) + 1), key=us)


class KDivisionPlanner(Planner):
    """The planner of a rung that divides K; a subclass says how many tiles share the SMs."""

    divides_k = True
    tunable = True

    def pays(self, problem: Any) -> bool:
        """Only where a table prefers it."""
        return False

    def copies(self, problem: Any) -> Config:
        """Elements are read where they lie."""
        return {}

    def transposes(self, problem: Any) -> bool:
        return bool(problem.M > problem.N)

    def tiles_to_divide(self, tiles: int, processors: int) -> int:
        """How many of C's tiles have their K divided."""
        raise NotImplementedError

    def swaps(self, config: Config) -> tuple[int, ...]:
        """SWAP worth trying with a tile of ``offered``."""
        return (1,)

    def divide(self, config: Config, problem: Any, processors: int, transposed: bool) -> Config:
        """SPLITS of a config is the parts of K, or 0 for the fastest number of them, up to what
        fills the SMs once."""
        config = dict(config)
        swap = bool(config.pop("SWAP", 1))
        M, N = (problem.N, problem.M) if swap else (problem.M, problem.N)
        tiles = -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"])
        left = self.tiles_to_divide(tiles, processors)
        parts = 1
        if left:
            programs = processors * (PROGRAMS_BY_ELEMENTS if by_elements(problem) else 1)
            parts = config["SPLITS"] or parts_of(problem, config, programs // left)
            parts = max(1, min(parts, -(-problem.K // config["BLOCK_K"]), MOST_PARTS))
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
