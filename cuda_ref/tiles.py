"""Which tile of C a block of wgmma_persistent computes: that whose last round ends first.

A tile is compiled into a build of its own (see fusion.case), so a plan names all that the source
needs. The choice is a model of one line: the time of a product is the rounds that the SMs need for
its tiles, times the area of a tile over its rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

PROCESSORS = {(9, 0): 132}
"""Compute capability -> SMs of its largest GPU, for problems on a GPU that is not here."""


class Tile(NamedTuple):
    """BLOCK_M x BLOCK_N of C, NUM_STAGES, and whether consumers take turns or share each tile."""

    BLOCK_M: int
    BLOCK_N: int
    NUM_STAGES: int
    PINGPONG: int
    rate: float
    """Speed of a busy SM relative to 128 x 256, measured (docs/hopper_rungs.md)."""
    fused_rate: float
    """The same where something is fused; 0: has no room for it."""

    @property
    def plan(self) -> dict[str, int]:
        """As the constants of csrc/wgmma_persistent.cu."""
        return {
            "BLOCK_M": self.BLOCK_M,
            "BLOCK_N": self.BLOCK_N,
            "BLOCK_K": 64,
            "NUM_STAGES": self.NUM_STAGES,
            "PINGPONG": self.PINGPONG,
            "GROUP_M": 2048 // self.BLOCK_M,
        }


TILES = (
    Tile(128, 256, 4, 0, 1.00, 0.95),
    Tile(256, 192, 3, 0, 1.02, 0),
    Tile(192, 128, 5, 0, 0.99, 0.94),
    Tile(128, 192, 4, 0, 0.99, 0.94),
    Tile(128, 128, 6, 1, 0.98, 0.98),
    Tile(128, 128, 6, 0, 0.98, 0.93),
    Tile(128, 64, 8, 0, 0.84, 0.80),
    Tile(64, 128, 8, 0, 0.83, 0.80),
    Tile(64, 64, 8, 0, 0.72, 0.70),
)

SIMULATED = Tile(128, 128, 6, 1, 0, 0)
"""The tile of a build that names none; problems on the CPU all take it."""


def tile_of(problem: Any) -> Tile:
    """The tile for a problem, which the rung turns where C is column-major."""
    if problem.device == "cpu":
        return SIMULATED
    M, N = problem.M, problem.N
    if problem.c_strides[0] == 1 and (problem.c_strides[1] != 1 or M > N):
        M, N = N, M
    fused = not problem.plain or problem.batch > 1
    return _fastest(M, N, problem.batch, fused, _processors(problem.capability))


@cache
def _fastest(M: int, N: int, batch: int, fused: bool, processors: int) -> Tile:
    def time(tile: Tile) -> float:
        tiles = -(-M // tile.BLOCK_M) * -(-N // tile.BLOCK_N) * batch
        rate = tile.fused_rate if fused else tile.rate
        return -(-tiles // processors) * tile.BLOCK_M * tile.BLOCK_N / rate

    return min((tile for tile in TILES if tile.fused_rate or not fused), key=time)


@cache
def _processors(capability: tuple[int, int] | None) -> int:
    import torch

    here = torch.cuda.is_available() and torch.cuda.get_device_capability()
    if here and capability in (None, here):
        device = torch.cuda.current_device()
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return PROCESSORS.get(capability or (9, 0), 132)


def plan(problem: Any) -> Mapping[str, int]:
    """How wgmma_persistent runs a problem."""
    return tile_of(problem).plan
