"""Tiles and parts of K of skinny for types other than 16-bit floats, by the model of their times.

Of each kind of operands and each thin side there is one tile, so that few kernels serve all shapes:
the largest whose step of K stays in registers, by what the compiler says for sm_90. A step is 256
bytes of K where numbers of 4 and 8 bytes pass through registers, or 128 of them under 64 columns;
of 8 bits it is 256 where both operands lie along K, and 128 where they pass through registers too.
Tens of columns over a long K in odd rows have tiles of their own, by what was timed.
Imports no triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..planning.dtypes import kind
from ..planning.k_division import MOST_PARTS, PARTS, by_elements, thin_side
from ..planning.planner import Config
from ..rungs.type_times import us

WIDE = 64
"""Rows of a tile, along the wide side."""

MOST_THIN = 64
"""Columns of a tile, along the thin side; a wider one has several."""

STAGES = 4

BY_ELEMENTS_STAGES = 3
"""The same of float32 on tensor cores where no vector can be loaded: 33 x 4097 x 4099 (nn, tf32)
takes 44 us with three stages, 54 with four and more with six
(reports/nvidia-h200/trials/odd_rows_float32.csv)."""

DEPTHS = {
    "tf32x3": {16: 64, 32: 64, 64: 32},
    "tf32": {16: 64, 32: 64, 64: 32},
    "ieee": {16: 32, 32: 32, 64: 16},
    "float64": {16: 32, 32: 32, 64: 16},
    "int8": {16: 256, 32: 128, 64: 128},
    "float8": {16: 256, 32: 128, 64: 128},
    "float8_promoted": {16: 128, 32: 128, 64: 128},
}
"""Elements of K in a step, by the columns of a tile. The sum of 8-bit products leaves the tensor
core every 128 of them; two such sums a step would be two chains of wgmma, one after the other."""

MOST_BY_ELEMENTS = {"tf32x3": 32, "tf32": 32, "int8": 64, "float8": 64, "float8_promoted": 64}
"""The same, at most, of a tile of 32 columns and more where no vector can be loaded: twice as many
spill."""

TENS, LONG_K, LEAST_WIDE = (9, 32), 512, 256
"""Rows or columns of the thin side, and the least K and wide side, of products in odd rows that
have the tiles of ``IN_ODD_ROWS``."""

IN_ODD_ROWS = {
    "float64": ((64, 16, 4, 4),),
    "tf32": ((128, 32, 3, 8),),
    "tf32x3": ((128, 32, 3, 8), (64, 32, 3, 4)),
}
"""BLOCK_M, BLOCK_K, stages and warps. Of the plans of 12 products of each kind that were timed
(reports/nvidia-h200/trials/columns_triton.csv) the one that the model takes loses 2 % to the
fastest in float64, 3 % in tf32 and 10 % in tf32x3; what was taken before lost 53, 16 and 14 %. In
float64 four stages of 32 elements along K leave room for too few programs beside each other."""

LEAST_STEPS = 7
"""Along K, of a part of theirs: of fewer nothing was timed."""

OF_8_BITS_BY_REGISTERS = 128
"""The same, at most, of 8 bits where an operand does not lie along K or no vector can be loaded."""

PROGRAMS = 4
"""For each SM, at most: they wait for memory beside each other."""


def tile(problem: Any) -> tuple[int, int, int]:
    """BLOCK_M, BLOCK_N and BLOCK_K for a problem with M <= N."""
    name, thin = kind(problem.dtype_in, problem.compute), min(thin_side(problem), MOST_THIN)
    depth = DEPTHS[name][thin]
    one_by_one = by_elements(problem)
    if one_by_one and thin > 16:
        depth = min(depth, MOST_BY_ELEMENTS.get(name, depth))
    along_k = problem.a_strides[1] == problem.b_strides[0] == 1
    if name in ("int8", "float8", "float8_promoted"):
        depth = depth if along_k and not one_by_one else min(depth, OF_8_BITS_BY_REGISTERS)
    return WIDE, thin, depth


def in_odd_rows(problem: Any) -> bool:
    """Whether tiles of ``IN_ODD_ROWS`` are its."""
    if kind(problem.dtype_in, problem.compute) not in IN_ODD_ROWS or not by_elements(problem):
        return False
    few, wide = sorted((problem.M, problem.N))
    return bool(TENS[0] <= few <= TENS[1] and problem.K >= LONG_K and wide >= LEAST_WIDE)


def tiles(problem: Any) -> Iterator[tuple[int, int, int, int, int]]:
    """BLOCK_M, BLOCK_N and BLOCK_K, stages and warps, for a problem with M <= N."""
    name, (rows, columns, depth) = kind(problem.dtype_in, problem.compute), tile(problem)
    if in_odd_rows(problem):
        for own_rows, own_depth, stages, warps in IN_ODD_ROWS[name]:
            yield own_rows, columns, own_depth, stages, warps
        return
    one_by_one = name in ("tf32x3", "tf32") and by_elements(problem)
    yield rows, columns, depth, BY_ELEMENTS_STAGES if one_by_one else STAGES, 4


def configs(problem: Any, processors: int) -> Iterator[Config]:
    """What the model chooses from, for a problem with M <= N."""
    capability = problem.capability or (9, 0)
    least = LEAST_STEPS if in_odd_rows(problem) else 1
    for rows, columns, depth, stages, warps in tiles(problem):
        config = {
            "BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": depth,
            "PDL": int(capability >= (9, 0)), "NUM_STAGES": stages, "NUM_WARPS": warps,
        }  # fmt: skip
        of_c, steps = -(-problem.N // rows) * -(-problem.M // columns), -(-problem.K // depth)
        for parts in PARTS:
            at_once = of_c * parts <= PROGRAMS * processors
            counted = steps * parts < 2**31  # which the kernel does in 32 bits
            if parts == 1 or (at_once and counted and parts <= min(steps // least, MOST_PARTS)):
                yield {**config, "SPLITS": parts}


def fastest(problem: Any, processors: int) -> Config:
    """The configuration that takes least by the model, for a problem with M <= N."""
    return min(
        configs(problem, processors),
        key=lambda each: us("skinny", problem, {**each, "SWAP": 1}, processors),
    )
