"""How long a tile of mma_types takes: a small model, whose constants stand in mma_types.json.

    us = start + the longer of (what the busiest SM multiplies, what memory delivers)
         + C / stored + the launch that adds parts of K + what a cold first step waits

A step along K of a block that has its SM for itself is a chain of waits; of several blocks beside
each other it is what the SM multiplies. scripts/fit_mma_types.py fitted the constants to plans of
525 products, each behind a foreign kernel in a graph on an H200
(reports/nvidia-h200/trials/mma_types.csv). Each of those found its operands in the L2, where they
fit. What a product takes longer whose operands lie in memory has two constants of its own, fitted
to 162 products of few rows or columns (few_types.csv beside it).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from .cost import COLD_BYTES, ceil_div
from .gpu import blocks_of_sm
from .parts import NORM, STEP_BYTES, Sizes, workspace_bytes


class Step(NamedTuple):
    """A step along K, in microseconds."""

    alone: float
    """Of a block that has its SM for itself."""
    beside: float
    """What it takes of an SM that has as many blocks as it has room for."""


class Constants(NamedTuple):
    """What all tiles have in common, in microseconds and bytes for each of them."""

    start: float
    """Before the first step and after the last."""
    memory: float
    """Of A and B, where they are more than the L2 keeps."""
    stored: float
    """Of C,"""
    stored_odd: float
    """and elements of a C whose rows do not all begin at multiples of 16 bytes."""
    second: float
    """The launch that adds parts of K,"""
    part: float
    """each of them,"""
    sums: float
    """and bytes of them that are written and read."""


FILE = Path(__file__).with_name("mma_types.json")
_SHIPPED = json.loads(FILE.read_text())

CONSTANTS = Constants(**_SHIPPED["constants"])

STEPS = {
    compute: {
        (int(tile.split("x")[0]), int(tile.split("x")[1])): Step(*step)
        for tile, step in steps.items()
    }
    for compute, steps in _SHIPPED["steps"].items()
}
"""How products are summed -> tile of C -> its step."""

BY_ELEMENTS = {compute: Step(*step) for compute, step in _SHIPPED["by elements"].items()}
"""How products are summed -> what a step takes longer for 64 rows, or columns, of a tile that are
copied element by element."""

L2_BYTES = 36e6
"""Of operands, that the L2 keeps from call to call."""

COLD_US, ODD_BYTES_PER_US = 0.87, 7.5e6
"""Of operands that it does not keep: what the first step waits longer for COLD_BYTES of them or
more, and the rate at which those take longer that are copied element by element."""


class Tile(NamedTuple):
    """A tile of C; and whether A, B and C are copied, or stored, element by element."""

    block_m: int
    block_n: int
    a_by_elements: bool
    b_by_elements: bool
    c_by_elements: bool

    @property
    def most_resident(self) -> int:
        """Blocks of an SM for which there are registers: BLOCKS_PER_SM in mma_types.cu."""
        lines = self.block_m + self.block_n
        return 2 if lines > 128 else 3 if lines > 80 else 4

    @property
    def stages(self) -> int:
        """Of a ring, with which so many blocks have room in an SM of Hopper."""
        return {2: 3, 3: 4, 4: 5}[self.most_resident]

    def resident(self, capability: tuple[int, int]) -> int:
        """Blocks of an SM, for which there is shared memory, too: of 64 x 64 one in 100 KB."""
        ring = self.stages * (self.block_m + self.block_n) * STEP_BYTES
        return min(self.most_resident, blocks_of_sm(capability, ring))


def us(
    compute: str,
    of: Sizes,
    tile: Tile,
    parts: int,
    sms: int,
    capability: tuple[int, int] = (9, 0),
    kept: bool = False,
) -> float:
    """Microseconds of a product with K in so many parts.

    Args:
        kept: whether the L2 keeps operands that fit, from a call before. Else they lie in memory.
    """
    step, more = STEPS[compute][tile.block_m, tile.block_n], BY_ELEMENTS[compute]
    odd = (tile.block_m * tile.a_by_elements + tile.block_n * tile.b_by_elements) / 64
    alone, beside = step.alone + odd * more.alone, step.beside + odd * more.beside
    blocks = ceil_div(of.M, tile.block_m) * ceil_div(of.N, tile.block_n) * of.batch * parts
    steps = ceil_div(of.steps, parts)
    resident = tile.resident(capability)
    whole, rest = divmod(ceil_div(blocks, sms), resident)
    multiplied = whole * max(alone, resident * beside)
    multiplied += max(alone, rest * beside) if rest else 0.0
    row = of.steps * STEP_BYTES * of.batch
    read = (of.M + of.N) * row
    delivered = 0.0 if kept and read <= L2_BYTES else read / CONSTANTS.memory
    cold = 0.0
    if not kept:
        by_elements = (of.M * tile.a_by_elements + of.N * tile.b_by_elements) * row
        delivered += by_elements / ODD_BYTES_PER_US
        cold = COLD_US * min(1.0, read / COLD_BYTES)
    body = ((steps * multiplied) ** NORM + delivered**NORM) ** (1 / NORM)
    stored = of.M * of.N * of.batch / CONSTANTS.stored_odd
    if not tile.c_by_elements:
        stored = of.M * of.N * of.batch * of.sum_bytes / CONSTANTS.stored
    return CONSTANTS.start + cold + body + stored + _second_us(of, parts)


def _second_us(of: Sizes, parts: int) -> float:
    """What adds the sums of parts."""
    if parts == 1:
        return 0.0
    moved = 2 * workspace_bytes(of, parts)
    return CONSTANTS.second + parts * CONSTANTS.part + moved / CONSTANTS.sums
