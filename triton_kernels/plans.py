"""Which configuration a rung takes, and which rung was measured fastest. Imports no triton.

Configurations come from the table of the GPU (see tables.py). A GPU without a table of its own
takes the one of its architecture, with NUM_STAGES lowered until the program fits its shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from . import tables
from .refusals import refuse_descriptor, refuse_warp_specialized
from .storage import ITEMSIZE, column_major, letter

DIVIDING = ("skinny", "split_k")
"""They divide K among programs, and compute C' = B' A' where that makes the wide side BLOCK_M's."""

MOST_PARTS = 32
"""Of a tile: the second pass adds them all in one program."""

INTERPRETER_PROGRAMS = 4
"""Programs of a persistent kernel in the interpreter, which runs them one after another."""

PROGRAMS = 132
"""SMs of a GPU that is in no table: as an H100 or H200 has."""

PROCESSORS = {(8, 0): 108, (8, 6): 84, (8, 7): 16, (8, 9): 142, (9, 0): 132}
"""Compute capability -> SMs of its largest GPU, for problems on no GPU in particular."""

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

OF_MMA_SYNC = ((8, 0), (8, 6), (8, 7), (8, 9), (12, 0))
"""Capabilities whose tensor cores take operands from registers, where rounding costs no detour."""

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
    turned = kernel in DIVIDING and problem.M > problem.N
    if turned or (kernel in TMA_RUNGS and column_major(problem)):
        problem = problem.transposed()
    name = kind(problem.dtype_in, problem.compute)
    if problem.device == "cpu":
        config = {**_interpreter(kernel, problem), **_preparation(name, problem)}
        return divide(kernel, config, problem, INTERPRETER_PROGRAMS, turned)
    capability = problem.capability or (9, 0)
    gpu, limit, processors = _gpu_of(problem)
    architecture = _architecture(capability)
    rows = tables.shipped_rows(gpu, kernel, name) or tables.shipped_rows(architecture, kernel, name)
    if rows is None:
        raise ValueError(f"configs-{architecture}.json has no rows of {kernel} for {name}")
    if not name:
        rows = [*tables.of_user(gpu)["kernels"].get(kernel, []), *rows]
    processors = processors or PROCESSORS.get(capability, PROGRAMS)
    limit = limit or SHARED_BYTES.get(capability, 101_376)
    if kernel == "warp_specialized" and problem.beta:
        rows = _with_room(rows, problem, limit)
    config = tables.choose(rows, problem, processors)
    if kernel == "descriptor" and problem.beta:
        # Flattened, the next tile's loads hold the stages while half of C_in passes beside them.
        config["FLATTEN"] *= int(not name and ITEMSIZE[problem.dtype_out] == 2)
        half = config["BLOCK_M"] * config["BLOCK_N"] // 2 * ITEMSIZE[problem.dtype_out]
        limit -= half * config["FLATTEN"]
    if kernel == "warp_specialized":
        config |= _rows_of_k(name, problem)
    else:
        config |= _preparation(name, problem)
    config = fit(kernel, config, problem.dtype_out, limit, problem.dtype_in, problem.compute)
    return divide(kernel, config, problem, processors, turned)


def divide(
    kernel: str, config: dict[str, int], problem: Any, processors: int, turned: bool
) -> dict[str, int]:
    """The plan of a rung that divides K, from a table's config; other rungs' configs as they are.

    Args:
        config: SPLITS is the parts of K, or 0 for as many as fill the SMs once.
        problem: with M <= N.
        processors: SMs.
        turned: the caller's problem is the transpose of this one.
    """
    if kernel not in DIVIDING:
        return config
    config = dict(config)
    swap = bool(config.pop("SWAP", 1))
    M, N = (problem.N, problem.M) if swap else (problem.M, problem.N)
    tiles = -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"])
    # skinny launches all parts at once; split_k has whole tiles in all waves but the last.
    left = tiles if kernel == "skinny" else tiles % processors
    parts = config["SPLITS"] or processors // max(left, 1)
    parts = max(1, min(parts, -(-problem.K // config["BLOCK_K"]), MOST_PARTS)) if left else 1
    config["SPLITS"] = parts
    if kernel == "split_k":
        config["WHOLE"] = tiles if parts == 1 else tiles - left
    return {"SWAP": int(swap != turned), **config}


def _architecture(capability: tuple[int, int]) -> str:
    return "sm90" if capability >= (9, 0) else "sm80"


def _with_room(rows: list[dict[str, Any]], problem: Any, limit: int) -> list[dict[str, Any]]:
    """The rows of warp_specialized with a buffer for every piece of C_in, fewer stages where need
    be; of those that hold, the ones that keep three, or else all. C_in does not come to the pieces
    of a second accumulator."""
    changed = []
    for row in rows:
        if "REST" in row["config"]:
            continue
        config = {**row["config"], "BUFFERS": row["config"]["PIECES"]}
        while config["NUM_STAGES"] > 2 and limit < shared_bytes(
            "warp_specialized", config, problem.dtype_out, problem.dtype_in, problem.compute
        ):
            config["NUM_STAGES"] -= 1
        changed.append({**row, "config": config})
    return [row for row in changed if row["config"]["NUM_STAGES"] > 2] or changed


def _rows_of_k(name: str, problem: Any) -> dict[str, int]:
    """PREPARE=1 where warp_specialized needs copies of A and B: wgmma reads blocks of 8 bits and of
    tf32 along K alone. float32 as two terms is copied always, and needs no word."""
    if name in ("", "tf32x3"):
        return {}
    a = letter((problem.M, problem.K), problem.a_strides)
    b = letter((problem.N, problem.K), problem.b_strides[::-1])
    return {} if a == b == "n" else {"PREPARE": 1}


def _preparation(name: str, problem: Any) -> dict[str, int]:
    """PREPARE=1 where A and B are copied first (see prepared.py): 8-bit ones that do not lie with K
    contiguous, and float32 ones in products large enough, for tf32 to be rounded."""
    if name in ("int8", "uint8", "float8", "float8_promoted"):
        return {} if problem.a_strides[1] == problem.b_strides[0] == 1 else {"PREPARE": 1}
    large = min(problem.M, problem.N) >= 256 and problem.capability not in OF_MMA_SYNC
    if name == "tf32x3" and problem.a_strides[1] == problem.b_strides[0] == 1:
        return {}
    return {"PREPARE": 1} if name in ("tf32", "tf32x3") and large else {}


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
    if kernel == "warp_specialized":
        copies = slots * (m + n) if name == "tf32x3" else 0
        stages = (slots * (m + n) + copies) * k * ITEMSIZE[dtype_in]
        piece = m // config["CONSUMERS"] * n // config["PIECES"] * ITEMSIZE[dtype_out]
        return stages + config["CONSUMERS"] * config["BUFFERS"] * piece + 512
    if name in THROUGH_REGISTERS and not (name == "tf32" and config.get("PREPARE")):
        slots, copies = max(slots - 1, 1), THROUGH_REGISTERS[name]
    stages = (slots * (m + n) + copies * n) * k * ITEMSIZE[dtype_in]
    if kernel == "descriptor":
        return stages + m * n // 2 * ITEMSIZE[dtype_out] + 256
    if kernel == "split_k":
        # Half of a whole tile, transposed on its way where C is.
        return stages + m * n // 2 * ITEMSIZE[dtype_out] + 2048
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
    """The config with as many stages, then as much BLOCK_K, as fit ``limit`` bytes; a second
    buffer for C goes first."""
    config = dict(config)
    least = 32 if ITEMSIZE[dtype_in] == 1 else 16
    while shared_bytes(kernel, config, dtype_out, dtype_in, compute) > limit:
        if config.get("BUFFERS", 1) > 1:
            config["BUFFERS"] -= 1
        elif config.get("NUM_STAGES", 1) > 2:
            config["NUM_STAGES"] -= 1
        elif config["BLOCK_K"] > least:
            config["BLOCK_K"] //= 2
        else:
            break
    return config


def forget() -> None:
    """Read all tables anew from now on."""
    tables.forget()
    for kept in (plan, preferred):
        kept.cache_clear()


def gpu_here(capability: tuple[int, int] | None = None) -> tuple[str, int, int]:
    """Name as in the table's file name, e.g. nvidia-h200, bytes of shared memory a program, SMs.

    Of the current GPU, or of the first here that has the capability; nothing where none has: a
    plan may be asked for a GPU that is not here.
    """
    import torch

    if not torch.cuda.is_available():
        return "", 0, 0
    for index in (torch.cuda.current_device(), *range(torch.cuda.device_count())):
        if capability in (None, torch.cuda.get_device_capability(index)):
            found = torch.cuda.get_device_properties(index)
            slug = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")
            shared = getattr(found, "shared_memory_per_block_optin", 0)
            return slug, shared, found.multi_processor_count
    return "", 0, 0


def _gpu_of(problem: Any) -> tuple[str, int, int]:
    return gpu_here(problem.capability) if problem.device == "cuda" else ("", 0, 0)


def _interpreter(kernel: str, problem: Any) -> dict[str, int]:
    """Tiles for the interpreter, where a program costs milliseconds whatever it computes: large,
    yet two a side where the problem allows, so that edges and ordering stay exercised."""

    def block(size: int, most: int) -> int:
        return min(max(16, 1 << (-(-size // 2) - 1).bit_length()), most)

    M, N = (problem.N, problem.M) if kernel in DIVIDING else (problem.M, problem.N)
    config = {
        "BLOCK_M": block(M, 128),
        "BLOCK_N": block(N, 128),
        "BLOCK_K": block(problem.K, 256),
        "GROUP_M": 4,
        "FLATTEN": 0,
        "SPLITS": 2,
        "EARLY": 0,
        "NUM_STAGES": 2,
        "NUM_WARPS": 4,
    }
    divided = ("SPLITS", "EARLY")
    absent = {
        "naive": ("GROUP_M", "FLATTEN", "NUM_STAGES", *divided),
        "grouped": ("FLATTEN", "NUM_STAGES", *divided),
        "pipelined": ("FLATTEN", *divided),
        "skinny": ("GROUP_M", "FLATTEN"),
        "split_k": ("FLATTEN",),
    }
    return {key: value for key, value in config.items() if key not in absent.get(kernel, divided)}


@lru_cache(maxsize=4096)
def preferred(problem: Any) -> str | None:
    """The rung measured fastest for a problem; None where that is the highest that accepts it.

    Tables speak of plain products only, and a rung that TMA keeps from the problem is passed over.
    """
    if not problem.plain or problem.batch > 1:
        return None
    capability = problem.capability or (9, 0)
    gpu = _gpu_of(problem)[0]
    shipped = tables.shipped()
    table = shipped.get(gpu) or shipped[_architecture(capability)]
    thin = problem.transposed() if problem.M > problem.N else problem
    by_tma = capability >= (9, 0) and refuse_descriptor(problem) is None
    by_wgmma = problem.device != "cpu" and refuse_warp_specialized(problem) is None
    able = {"descriptor": by_tma, "split_k": by_tma, "warp_specialized": by_tma and by_wgmma}
    for row in (*tables.of_user(gpu)["prefer"], *table["prefer"]):
        if tables.all_hold(row, thin) and able.get(row["kernel"], True):
            return row["kernel"] or None
    return None


def yields(kernel: str, problem: Any) -> bool:
    """Whether another rung was measured faster; ``few_rows`` for a rung that no table prefers.

    For int8 ``pipelined`` is faster than ``descriptor``: Triton waits for every step's wgmma of
    integers, and two programs an SM, which pipelined has, fill the gaps: 113 us against 124 at 4096
    cubed on an H200. With the exact gelu of a large C ``descriptor`` is faster than
    ``warp_specialized``: 180.8 us against 184.1, and 185.7 against 189.8 in another run, at 4096
    cubed in bfloat16 with a bias; at 1024 cubed it is slower, 9.2 against 6.4.
    """
    if kernel == "descriptor" and problem.dtype_in == "int8":
        return True
    if kernel == "warp_specialized" and _long_gelu(problem):
        return refuse_descriptor(problem) is None
    best = preferred(problem)
    if best is None:
        return kernel in DIVIDING or few_rows(problem)
    return best != kernel


def _long_gelu(problem: Any) -> bool:
    """16-bit, no C_in, and as many elements of C as 4096 squared."""
    large = problem.M * problem.N * problem.batch >= 4096**2
    plain = problem.dtype_in in ("float16", "bfloat16") and problem.compute == "float32"
    return large and plain and problem.epilogue == "gelu" and problem.beta == 0


def few_rows(problem: Any) -> bool:
    """Whether a rung with less machinery is faster: a table prefers one, or where none speaks of
    the problem, C has fewer than 64 rows in its storage order.

    On an H200 at M = 16, bfloat16 nt, over six weights of language models, ``pipelined`` takes 0.66
    to 1.02 (median 0.81) of the time of ``descriptor``, whose blocks of 64 rows lie mostly past the
    edge, and 0.94 to 1.03 of that of ``persistent``.
    """
    if preferred(problem) is not None:
        return True
    return bool((problem.N if column_major(problem) else problem.M) < 64)
