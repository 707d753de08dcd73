"""What rungs cannot take, as sentences with the numbers: what several of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from .gpu import shared_kb

ANY = "wmma_any takes it as it is"

SM90_ONLY = "compute capability 9.0 alone"


def refuse_other_than_sm90(problem: Any) -> str | None:
    """Why the GPU has no wgmma; None where it has, or where no GPU is named."""
    if problem.capability in (None, (9, 0)):
        return None
    here = "{}.{}".format(*problem.capability)
    return f"wgmma exists on compute capability 9.0 alone and this GPU has {here}"


def refuse_integer_epilogues(problem: Any) -> str | None:
    """Why an integer result has no such factor or function; None when it has."""
    if problem.dtype_out != "int32":
        return None
    for name, value in (("alpha", problem.alpha), ("beta", problem.beta)):
        if not float(value).is_integer():
            return f"{name}={value} is no integer, and C is int32: use a whole number, or a float"
    if problem.epilogue not in ("", "relu"):
        return f"the epilogue {problem.epilogue} has no int32 result: use relu, or convert C first"
    return None


def refuse_tiled_copies(problem: Any, constants: Mapping[str, int]) -> str | None:
    """Why whole tiles cannot be copied in 16-byte vectors; None when they can."""
    block_m, block_n = constants["BLOCK_M"], constants["BLOCK_N"]
    c_shape = (problem.M, problem.N)
    if column_major(c_shape, problem.c_strides):
        block_m, block_n = block_n, block_m
    reason = refuse_no_multiples(problem, {"M": block_m, "N": block_n, "K": constants["BLOCK_K"]})
    if reason:
        return reason
    c = ("C", c_shape, problem.c_strides, problem.c_alignment)
    for name, shape, strides, alignment in (*operands(problem), c):
        ld, inner = storage(shape, strides)
        if inner != 1:
            return f"{name} has strides {strides} and neither is 1: {ANY}, or copy it"
        itemsize = 4 if name == "C" and problem.dtype_out == "float32" else 2
        if alignment < 16 or ld * itemsize % 16:
            return (
                f"{name} is {alignment}-byte aligned with rows {ld * itemsize} bytes apart, and "
                f"16-byte vectors need multiples of 16: {ANY}"
            )
    return None


def refuse_vector_rows(problem: Any, constants: Mapping[str, int]) -> str | None:
    """Why A or B cannot be copied in 16-byte vectors with checked edges; None when they can.

    As operand in csrc/tile/predicated_loader.cuh. C may lie anywhere.
    """
    wide = problem.dtype_in == "float64"
    itemsize, instead = (8, "mma_types takes it as it is") if wide else (2, ANY)
    reason = _refuse_shared(problem, constants, itemsize, instead)
    if reason:
        return reason
    for name, stride in zip("AB", problem.batch_strides, strict=False):
        if problem.batch > 1 and stride * itemsize % 16:
            return (
                f"{name} has matrices {stride * itemsize} bytes apart, and 16-byte vectors need "
                f"multiples of 16: {instead}"
            )
    for name, shape, strides, alignment in operands(problem):
        rows = shape[1] if column_major(shape, strides) else shape[0]
        ld, inner = storage(shape, strides)
        if inner != 1:
            return f"{name} has strides {strides} and neither is 1: {instead}, or copy it"
        if alignment < 16 or (rows > 1 and ld * itemsize % 16):
            return (
                f"{name} is {alignment}-byte aligned with rows {ld * itemsize} bytes apart, and "
                f"16-byte vectors need multiples of 16: {instead}"
            )
    return None


def _refuse_shared(
    problem: Any, constants: Mapping[str, int], itemsize: int, instead: str
) -> str | None:
    """As SHARED_BYTES in the source: the stages, or the sums in rows 8 elements longer."""
    if problem.capability is None:
        return None
    block_m, block_n = constants["BLOCK_M"], constants["BLOCK_N"]
    stage = (block_m + block_n) * constants["BLOCK_K"] * itemsize
    sums = block_m * (block_n + 8) * max(4, itemsize)
    most = shared_kb(problem.capability) * 1024
    if (needed := max(constants["NUM_STAGES"] * stage, sums)) <= most:
        return None
    here = "{}.{}".format(*problem.capability)
    return (
        f"a block needs {needed} bytes of shared memory and compute capability {here} has {most}: "
        f"{instead}"
    )


# TMA coordinates are 32-bit, and the last tile may reach 255 past the end.
TMA_MOST = 2**31 - 256


@lru_cache(maxsize=1024)
def refuse_tma(problem: Any) -> str | None:
    """Why the bulk tensor copy cannot read A or B where they are; None when it can. A choice asks
    for it some thirty times.

    As operand_map in csrc/sm90/tensor_map.cuh. C may lie anywhere: TMA writes it where it can,
    plain stores elsewhere.
    """
    reason = beyond_tma(problem)
    if reason:
        return reason
    for name, stride in zip("AB", problem.batch_strides, strict=False):
        if problem.batch > 1 and stride and not 0 < stride * 2 < 2**40:
            return f"{name} has matrices {stride * 2} bytes apart: {ANY}, or copy it"
        if problem.batch > 1 and stride * 2 % 16:
            return (
                f"{name} has matrices {stride * 2} bytes apart and TMA takes multiples of 16: "
                f"{ANY}, or pad them to {-(-stride // 8) * 8} elements"
            )
    for name, shape, strides, alignment in operands(problem):
        if alignment < 16:
            return f"{name} is {alignment}-byte aligned and TMA needs 16: {ANY}"
        if tma_rows(shape, strides) or tma_rows(shape[::-1], strides[::-1]):
            continue
        ld, inner = storage(shape, strides)
        if inner != 1:
            return f"{name} has strides {strides} and neither is 1: {ANY}, or copy it"
        return (
            f"{name} has rows {ld * 2} bytes apart and TMA takes multiples of 16 from 16 up: "
            f"{ANY}, or pad the rows to {max(8, -(-ld // 8) * 8)} elements"
        )
    return None


MOST_TILES = 2**31 - 1
"""Blocks of a grid in its one dimension."""


def refuse_tiles(
    problem: Any,
    plan: Callable[[Any], Mapping[str, Any]],
    most: int = MOST_TILES,
    as_stored: bool = True,
) -> str | None:
    """Why C has more tiles than a grid has blocks, or a rung counts; None when it has fewer.

    A group of tile rows has its tiles counted as if it were whole (grouped_tile in
    csrc/tile/order.cuh), so that one row of 2^28 tiles is as many as eight.

    No tile of a rung is smaller than 4 x 4, of which 8 x 8 elements have four, so that hardly a
    problem has to be planned for it.

    Args:
        as_stored: BLOCK_M of the plan lies along the columns of a column-major C, whose transpose
            is computed; else along its rows whatever they are.
    """
    M, N, batch = problem.M, problem.N, problem.batch
    if -(-M // 8) * -(-N // 8) * batch <= min(most // 4, 2**27):
        return None
    planned = plan(problem)
    if "BLOCK_M" not in planned:
        return None
    block_m, block_n = planned["BLOCK_M"], planned["BLOCK_N"]
    across = as_stored and column_major((M, N), problem.c_strides)
    if across:
        block_m, block_n = block_n, block_m
    tiles_m, tiles_n = -(-M // block_m), -(-N // block_n)
    tiles, group = tiles_m * tiles_n * batch, planned.get("GROUP_M", 1)
    what = f"{batch} results of {M} x {N}" if batch > 1 else f"a result of {M} x {N}"
    whole = group * (tiles_m if across else tiles_n)
    if tiles > most:
        return (
            f"{what} are {tiles} tiles of {block_m} x {block_n}, and it counts to {most}: split it"
        )
    if whole > MOST_TILES:
        return (
            f"{group} rows of tiles of {block_m} x {block_n} of {what} are {whole}, and it counts "
            f"to {MOST_TILES}: split it"
        )
    return None


def beyond_tma(problem: Any) -> str | None:
    """Why a coordinate does not fit the 31 bits that TMA has for it."""
    for name in ("M", "N", "K", "batch"):
        size = getattr(problem, name)
        if size > TMA_MOST:
            return f"{name}={size} and TMA coordinates end at {TMA_MOST}: {ANY}"
    return None


def tma_rows(shape: tuple[int, int], strides: tuple[int, int]) -> bool:
    """Whether rows of neighbours, a multiple of 16 bytes apart, make up a 16-bit operand."""
    pitch = strides[0] * 2
    aligned = shape[0] == 1 or (0 < pitch < 2**40 and pitch % 16 == 0)
    return aligned and (shape[1] == 1 or strides[1] == 1)


def odd_rows_of_c(problem: Any, columns: int) -> bool:
    """Whether TMA cannot store a C of 16 bits, of which so many columns are a row in memory."""
    apart = max(problem.c_strides)
    return bool(columns % 8 or apart % 8 or problem.c_alignment < 16)


def operands(problem: Any) -> tuple[tuple[str, tuple[int, int], tuple[int, int], int], ...]:
    """(name, shape, strides, alignment in bytes) of A and of B."""
    return (
        ("A", (problem.M, problem.K), problem.a_strides, problem.a_alignment),
        ("B", (problem.K, problem.N), problem.b_strides, problem.b_alignment),
    )


def refuse_uncounted(problem: Any, kernel: str, most: int) -> str | None:
    """Why a size is too large to be counted by a kernel; None when none is."""
    for side, size in (("M", problem.M), ("N", problem.N), ("K", problem.K)):
        if size > most:
            return f"{side}={size} and {kernel} counts to {most}: {ANY}"
    return None


def refuse_no_multiples(problem: Any, tile: Mapping[str, int]) -> str | None:
    """Which of M, N and K are no multiples of ``tile``, by name."""
    wrong = [
        f"{name}={getattr(problem, name)} is no multiple of {step}"
        for name, step in tile.items()
        if getattr(problem, name) % step
    ]
    if not wrong:
        return None
    fits = " ".join(
        f"{name}={-(-getattr(problem, name) // step) * step}" for name, step in tile.items()
    )
    return f"{' and '.join(wrong)}: {ANY}, or pad to {fits}"


def column_major(shape: tuple[int, int], strides: tuple[int, int]) -> bool:
    """As column_major in csrc/host/select.cuh."""
    return strides[0] == 1 and (strides[1] != 1 or shape[0] > shape[1])


def sides(problem: Any) -> tuple[int, int]:
    """M and N of the product that is computed: of a column-major C the transposed one."""
    M, N = problem.M, problem.N
    return (N, M) if column_major((M, N), problem.c_strides) else (M, N)


def storage(shape: tuple[int, int], strides: tuple[int, int]) -> tuple[int, int]:
    """(elements from row to row in storage order, elements from neighbour to neighbour)."""
    return (strides[1], strides[0]) if column_major(shape, strides) else strides
