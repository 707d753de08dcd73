"""wmma_types: every type and shape of WMMA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..planning.refusals import refuse_integer_epilogues
from ..planning.rows import FUSES, WMMA_PAIRS, row, source_constants

ORDER = 70

WMMA_SHAPES = ("16x16x16", "32x8x16", "8x32x16")
"""m x n x k of the WMMA tiles of 8- and 16-bit types."""


def wmma_shapes(dtype: str) -> tuple[str, ...]:
    """The shapes of WMMA tiles of one dtype, the default first."""
    return {"float32": ("16x16x8",), "float64": ("8x8x4",)}.get(dtype, WMMA_SHAPES)


def refuse_wmma_types(problem: Any) -> str | None:
    """Why WMMA has no such tile, or an integer no such epilogue."""
    able = wmma_shapes(problem.dtype_in)
    if problem.mma_shape and problem.mma_shape not in able:
        return (
            f"mma_shape {problem.mma_shape} is none of WMMA's for {problem.dtype_in}: "
            f"{', '.join(able)}"
        )
    return refuse_integer_epilogues(problem)


def plan(problem: Any) -> Mapping[str, int]:
    """The tile, as Shape in wmma_types.cu has it for the type, and the shape of WMMA's tile."""
    itemsize = {"float64": 8, "float32": 4, "int8": 1, "uint8": 1}.get(problem.dtype_in, 2)
    constants = source_constants("wmma_types")
    shape = problem.mma_shape or wmma_shapes(problem.dtype_in)[0]
    mma = zip(("MMA_M", "MMA_N", "MMA_K"), map(int, shape.split("x")), strict=True)
    return {
        "BLOCK_M": constants["BLOCK_M"],
        "BLOCK_N": 64 if itemsize == 8 or problem.compute == "tf32x3" else 128,
        "BLOCK_K": constants["BLOCK_K_BYTES"] // itemsize,
        "NUM_STAGES": constants["NUM_STAGES"],
        "GROUP_M": constants["GROUP_M"],
        **dict(mma),
    }


def only_by_name(problem: Any) -> bool:
    """Whether a rung with the same loop, which has the default shape alone, takes the types."""
    return bool(problem.compute == "float32" and not problem.mma_shape)


ROW = row(
    "wmma_types",
    "every type that WMMA multiplies, in all of its shapes; float32 as three products of tf32",
    (8, 0),
    pairs=WMMA_PAIRS,
    fuses=FUSES,
    mma_shapes=(*WMMA_SHAPES, "16x16x8", "8x8x4"),
    refuse=refuse_wmma_types,
    plan=plan,
)
