"""Which configuration a rung takes: tables per GPU, read from configs-*.json. Imports no triton.

A table holds, for every rung, an ordered list of rows {"when": conditions, "config": values}; the
first row whose conditions all hold is taken, and the last has none. Conditions: M_max, M_min, the
same of N, K and MN (M times N, elements of C, of all of a batch), layout, dtype_out and aligned.
Under "kernels" stand the rungs for 16-bit operands summed in float32, under "types" the same by
``kind`` for everything else.

A table is named after the device as torch names it: "NVIDIA H200" is configs-nvidia-h200.json.
A GPU without a table of its own takes the one of its architecture, with NUM_STAGES lowered until
the program fits its shared memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from .storage import UNIT, letter, why_not_tma

SHARED_BYTES = {
    (8, 0): 166_912,
    (8, 6): 101_376,
    (8, 7): 166_912,
    (8, 9): 101_376,
    (9, 0): 232_448,
    (10, 0): 232_448,
    (12, 0): 101_376,
}
"""Compute capability -> most shared memory of one program, in bytes (CUDA programming guide)."""

ITEMSIZE = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}

THROUGH_REGISTERS = {"tf32": 1, "tf32x3": 2, "uint8": 1, "ieee": 0, "float64": 0}
"""Kinds whose blocks pass through registers, and copies of B's that go back to shared memory. The
slot of the step at work is free by then: they need one less."""


def kind(dtype_in: str, compute: str) -> str:
    """Which tables of "types" a problem takes; "" for 16-bit operands summed in float32."""
    if dtype_in in ("float16", "bfloat16"):
        return "" if compute == "float32" else compute
    if dtype_in.startswith("float8"):
        return "float8" if compute == "fast" else "float8_promoted"
    return dtype_in if compute == "int32" else compute


TMA_RUNGS = ("descriptor", "warp_specialized")
"""They compute a column-major C as its transpose."""


@lru_cache(maxsize=4096)
def plan(kernel: str, problem: Any) -> Mapping[str, int]:
    """Keyword arguments of the rung's ``run`` for a problem (M, N, K, dtypes, strides, device)."""
    if kernel in TMA_RUNGS and _column_major(problem):
        problem = _transposed(problem)
    if problem.device == "cpu":
        return _interpreter(kernel, problem)
    capability = problem.capability or (9, 0)
    gpu, limit = _gpu() if problem.device == "cuda" else ("", 0)
    architecture = "sm90" if capability >= (9, 0) else "sm80"
    name = kind(problem.dtype_in, problem.compute)
    rows = _rows(gpu, kernel, name) or _rows(architecture, kernel, name)
    if rows is None:
        raise ValueError(f"configs-{architecture}.json has no rows of {kernel} for {name}")
    config = choose(rows, problem)
    if kernel == "descriptor" and problem.beta:
        # Flattened, the next tile's loads hold the memory through which C_in passes.
        config["FLATTEN"] = 0
    limit = limit or SHARED_BYTES.get(capability, 101_376)
    return fit(kernel, config, problem.dtype_out, limit, problem.dtype_in, problem.compute)


def _rows(table: str, kernel: str, name: str) -> list[dict[str, Any]] | None:
    found = _table(table)
    if found is None:
        return None
    rows: list[dict[str, Any]] | None = (
        found["types"].get(name, {}) if name else found["kernels"]
    ).get(kernel)
    return rows


def _transposed(problem: Any) -> Any:
    """C' = B' A': what the kernel calls M is the caller's N."""
    return replace(
        problem,
        M=problem.N,
        N=problem.M,
        a_strides=problem.b_strides[::-1],
        b_strides=problem.a_strides[::-1],
        c_strides=problem.c_strides[::-1],
    )


def choose(rows: list[dict[str, Any]], problem: Any) -> dict[str, int]:
    """The config of the first row whose conditions hold."""
    for row in rows:
        if all(_holds(name, value, problem) for name, value in row.get("when", {}).items()):
            return dict(row["config"])
    raise ValueError(f"the table has no row for {problem}: its last row must have no conditions")


def _holds(name: str, value: Any, problem: Any) -> bool:
    if name == "aligned":
        return aligned(problem) == value
    if name in ("layout", "dtype_out"):
        return bool(getattr(problem, name) == value)
    what, side = name.split("_")
    size = problem.M * problem.N * problem.batch if what == "MN" else getattr(problem, what)
    return bool(size <= value if side == "max" else size >= value)


def aligned(problem: Any) -> bool:
    """Whether pointer rungs copy 16 bytes at a time: rows, row pitches and addresses of A, B and C
    are multiples of 16 elements or bytes, the one divisor that Triton's compiler is told of.

    Where they are not, every element is a copy of its own with its own registers: 128 x 256 x 64
    then spills 4 KB a thread on sm_90, 128 x 128 x 32 nothing.
    """
    M, N, K = problem.M, problem.N, problem.K
    for shape, strides, alignment in (
        ((M, K), problem.a_strides, problem.a_alignment),
        ((K, N), problem.b_strides, problem.b_alignment),
        ((M, N), problem.c_strides, problem.c_alignment),
    ):
        order = letter(shape, strides)
        outer, inner = (0, 1) if order == "n" else (1, 0)
        pitch = strides[outer] if shape[outer] > 1 else 0
        if order == "s" or alignment < 16 or shape[inner] % 16 or pitch % 16:
            return False
    return True


def shared_bytes(
    kernel: str,
    config: Mapping[str, int],
    dtype_out: str,
    dtype_in: str = "bfloat16",
    compute: str = "float32",
) -> int:
    """Upper bound of a program's shared memory: its stages, staged C and barriers, in bytes."""
    m, n, k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    slots, copies = config.get("NUM_STAGES", 1), 0
    name = kind(dtype_in, compute)
    if name in THROUGH_REGISTERS:
        slots, copies = max(slots - 1, 1), THROUGH_REGISTERS[name]
    stages = (slots * (m + n) + copies * n) * k * ITEMSIZE[dtype_in]
    if kernel == "descriptor":
        return stages + m * n // 2 * ITEMSIZE[dtype_out] + 256
    if kernel == "warp_specialized":
        piece = m // config["CONSUMERS"] * n // config["PIECES"] * ITEMSIZE[dtype_out]
        return stages + config["CONSUMERS"] * config["BUFFERS"] * piece + 512
    # C is staged in the memory of the stages, except where the next tile's loads fill them.
    staged = m * n * ITEMSIZE[dtype_out]
    return stages + staged if config.get("FLATTEN") else max(stages, staged)


def fit(
    kernel: str,
    config: dict[str, int],
    dtype_out: str,
    limit: int,
    dtype_in: str = "bfloat16",
    compute: str = "float32",
) -> dict[str, int]:
    """The config with as many stages, then as much BLOCK_K, as fit ``limit`` bytes."""
    config = dict(config)
    least = 32 if ITEMSIZE[dtype_in] == 1 else 16
    while shared_bytes(kernel, config, dtype_out, dtype_in, compute) > limit:
        if config.get("NUM_STAGES", 1) > 2:
            config["NUM_STAGES"] -= 1
        elif config["BLOCK_K"] > least:
            config["BLOCK_K"] //= 2
        else:
            break
    return config


def tables() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Every shipped table by name: sm80, sm90 and the GPUs that have their own."""
    paths = sorted(Path(__file__).parent.glob("configs-*.json"))
    names = [path.stem.removeprefix("configs-") for path in paths]
    return {name: table["kernels"] for name in names if (table := _table(name))}


def type_tables() -> dict[str, dict[str, dict[str, list[dict[str, Any]]]]]:
    """Table's name -> kind -> rung -> rows, of the tables that have types."""
    return {name: table["types"] for name in tables() if (table := _table(name))}


@cache
def _table(name: str) -> dict[str, Any] | None:
    path = Path(__file__).parent / f"configs-{name}.json"
    if not name or not path.is_file():
        return None
    return {"types": {}, **json.loads(path.read_text())}


@cache
def _gpu() -> tuple[str, int]:
    """Name as in the table's file name, e.g. nvidia-h200, and bytes of shared memory a program."""
    import torch

    if not torch.cuda.is_available():
        return "", 0
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    slug = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")
    return slug, getattr(found, "shared_memory_per_block_optin", 0)


def _column_major(problem: Any) -> bool:
    return letter((problem.M, problem.N), problem.c_strides) == "t"


def _interpreter(kernel: str, problem: Any) -> dict[str, int]:
    """Tiles for the interpreter, where a program costs milliseconds whatever it computes: large,
    yet two a side where the problem allows, so that edges and ordering stay exercised."""

    def block(size: int, most: int) -> int:
        return min(max(16, 1 << (-(-size // 2) - 1).bit_length()), most)

    config = {
        "BLOCK_M": block(problem.M, 128),
        "BLOCK_N": block(problem.N, 128),
        "BLOCK_K": block(problem.K, 256),
        "GROUP_M": 4,
        "FLATTEN": 0,
        "NUM_STAGES": 2,
        "NUM_WARPS": 4,
    }
    absent = {
        "naive": ("GROUP_M", "FLATTEN", "NUM_STAGES"),
        "grouped": ("FLATTEN", "NUM_STAGES"),
        "pipelined": ("FLATTEN",),
    }
    return {key: value for key, value in config.items() if key not in absent.get(kernel, ())}


def few_rows(problem: Any) -> bool:
    """Whether a rung with less machinery is faster: C has fewer than 64 rows in its storage order.

    On an H200 at M = 16, bfloat16 nt, over six weights of language models, ``pipelined`` takes 0.66
    to 1.02 (median 0.81) of the time of ``descriptor``, whose blocks of 64 rows lie mostly past the
    edge, and 0.94 to 1.03 of that of ``persistent``.
    """
    return bool((problem.N if _column_major(problem) else problem.M) < 64)


def refuse_descriptor(problem: Any) -> str | None:
    """Why TMA cannot reach an operand, as a sentence with the numbers; None when it can."""
    M, N, K = problem.M, problem.N, problem.K
    for name, shape, dtype in (
        ("A", (M, K), problem.dtype_in),
        ("B", (K, N), problem.dtype_in),
        ("C", (M, N), problem.dtype_out),
    ):
        strides = getattr(problem, f"{name.lower()}_strides")
        alignment = getattr(problem, f"{name.lower()}_alignment")
        reason = why_not_tma(name, shape, strides, alignment, ITEMSIZE[dtype])
        if reason:
            return reason
    if problem.batch > 1:
        dtypes = (problem.dtype_in, problem.dtype_in, problem.dtype_out)
        for name, stride, dtype in zip("ABC", problem.batch_strides, dtypes, strict=True):
            if stride * ITEMSIZE[dtype] % UNIT:
                step = UNIT // ITEMSIZE[dtype]
                return (
                    f"{name} has a batch stride of {stride} elements, {stride * ITEMSIZE[dtype]} "
                    f"bytes, and TMA needs a multiple of {UNIT}: {-(-stride // step) * step} "
                    "elements fit"
                )
    return None


def refuse_float8(problem: Any) -> str | None:
    """Why this GPU has no tensor core for the type, as a sentence; None when it has."""
    capability = problem.capability
    if problem.dtype_in.startswith("float8") and capability is not None and capability < (8, 9):
        return (
            f"{problem.dtype_in} needs compute capability 8.9 and this GPU has "
            f"{capability[0]}.{capability[1]}: bfloat16 holds the same numbers"
        )
    return None


def refuse_warp_specialized(problem: Any) -> str | None:
    """Why wgmma or TMA cannot do it, as a sentence with the numbers; None when they can."""
    if problem.capability is not None and problem.capability >= (10, 0):
        here = "{}.{}".format(*problem.capability)
        return (
            f"wgmma exists on compute capability 9.0 alone and this GPU has {here}: take descriptor"
        )
    return refuse_descriptor(problem)
