"""What kernels cannot take, as sentences with the numbers. Imports no triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..host.storage import UNIT, column_major, itemsize, why_not_tma

if TYPE_CHECKING:
    from .planner import Planner

MOST_TILES = 2**31 - 2**16
"""Programs of a grid in its one dimension; a program that loops over tiles adds their number."""


def refuse_tiles(problem: Any, planner: Planner) -> str | None:
    """Why C has more tiles than a kernel counts to; None when it has fewer.

    A group of tile rows has its tiles counted as if it were whole, so that one row of 2^28 tiles is
    as many as eight. No tile is smaller than 8 x 8 and no group has more than 16 rows, so that
    hardly a problem has to be planned for it.
    """
    M, N, batch = problem.M, problem.N, problem.batch
    if -(-M // 8) * -(-N // 8) * batch <= MOST_TILES // 16:
        return None
    planned = planner(problem)
    block_m, block_n = planned["BLOCK_M"], planned["BLOCK_N"]
    across = planned.get("SWAP", planner.transposes(problem))
    if across:
        block_m, block_n = block_n, block_m
    tiles_m, tiles_n = -(-M // block_m), -(-N // block_n)
    tiles, group = tiles_m * tiles_n * batch, planned.get("GROUP_M", 1)
    what = f"{batch} results of {M} x {N}" if batch > 1 else f"a result of {M} x {N}"
    whole = group * (tiles_m if across else tiles_n)
    if tiles > MOST_TILES:
        return (
            f"{what} are {tiles} tiles of {block_m} x {block_n}, and it counts to {MOST_TILES}: "
            "split it"
        )
    if whole > MOST_TILES:
        return (
            f"{group} rows of tiles of {block_m} x {block_n} of {what} are {whole}, and it counts "
            f"to {MOST_TILES}: split it"
        )
    return None


def refuse_8_bit_floats(problem: Any) -> str | None:
    """Why this GPU has no tensor core for the type, as a sentence; None when it has."""
    capability = problem.capability
    if problem.dtype_in.startswith("float8") and capability is not None and capability < (8, 9):
        return (
            f"{problem.dtype_in} needs compute capability 8.9 and this GPU has "
            f"{capability[0]}.{capability[1]}: bfloat16 holds the same numbers"
        )
    return None


def refuse_tma(problem: Any, operands: str = "ABC") -> str | None:
    """Why TMA cannot reach an operand, as a sentence with the numbers; None when it can."""
    M, N, K = problem.M, problem.N, problem.K
    for name, shape, dtype in (
        ("A", (M, K), problem.dtype_in),
        ("B", (K, N), problem.dtype_in),
        ("C", (M, N), problem.dtype_out),
    ):
        if name not in operands:
            continue
        strides = getattr(problem, f"{name.lower()}_strides")
        alignment = getattr(problem, f"{name.lower()}_alignment")
        reason = why_not_tma(name, shape, strides, alignment, itemsize(dtype))
        if reason:
            return reason
    # Stores are cut at the edge by units of 16 bytes, not by elements, except in the interpreter.
    width = (M if column_major(problem) else N) * itemsize(problem.dtype_out)
    if "C" in operands and width % UNIT and problem.device != "cpu":
        step = UNIT // itemsize(problem.dtype_out)
        return (
            f"C has rows of {width // itemsize(problem.dtype_out)} elements, {width} bytes, and "
            f"TMA stores whole units of {UNIT}, past the row's end: a multiple of {step} fits"
        )
    if problem.batch > 1:
        dtypes = (problem.dtype_in, problem.dtype_in, problem.dtype_out)
        for name, stride, dtype in zip("ABC", problem.batch_strides, dtypes, strict=True):
            if stride * itemsize(dtype) % UNIT:
                step = UNIT // itemsize(dtype)
                return (
                    f"{name} has a batch stride of {stride} elements, {stride * itemsize(dtype)} "
                    f"bytes, and TMA needs a multiple of {UNIT}: {-(-stride // step) * step} "
                    "elements fit"
                )
    return None
