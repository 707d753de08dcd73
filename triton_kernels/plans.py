"""Which configuration a rung takes: tables per GPU, read from configs-*.json. Imports no triton.

A table holds, for every rung, an ordered list of rows {"when": conditions, "config": values}; the
first row whose conditions all hold is taken, and the last has none. Conditions: M_max, M_min, the
same of N, K and MN (M times N, elements of C, of all of a batch), layout, dtype_out and aligned.
Rows with a "rate" compete: of those that hold, the one that ends first is taken.
Under "kernels" stand the rungs for 16-bit operands summed in float32, under "types" the same by
``kind`` for everything else.

Under "prefer" stand rows {"when": conditions, "kernel": name}: which rung was measured fastest for
a plain product; where none holds, the highest that accepts the problem. These conditions, and those
of skinny and split_k, are of the problem with M <= N, transposed where it has to be.

A table is named after the device as torch names it: "NVIDIA H200" is configs-nvidia-h200.json.
A GPU without a table of its own takes the one of its architecture, with NUM_STAGES lowered until
the program fits its shared memory. The rows of a table of the same name in the user's folder
($TCGEMM_CACHE_DIR, or ~/.cache/tcgemm), as ``tcgemm tune`` writes it, come before the shipped ones.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from .storage import UNIT, letter, why_not_tma

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "TCGEMM_CACHE_DIR"
"""Environment variable that names the folder of the user's own tables."""

DIVIDING = ("skinny", "split_k")
"""They divide K among programs, and compute C' = B' A' where that makes the wide side BLOCK_M's."""

MOST_PARTS = 32
"""Of a tile: the second pass adds them all in one program."""

INTERPRETER_PROGRAMS = 4
"""Programs of a persistent kernel in the interpreter, which runs them one after another."""

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
    if turned or (kernel in TMA_RUNGS and _column_major(problem)):
        problem = _transposed(problem)
    name = kind(problem.dtype_in, problem.compute)
    if problem.device == "cpu":
        config = {**_interpreter(kernel, problem), **_preparation(name, problem)}
        return divide(kernel, config, problem, INTERPRETER_PROGRAMS, turned)
    capability = problem.capability or (9, 0)
    gpu, limit, processors = _gpu_of(problem)
    architecture = _architecture(capability)
    rows = _rows(gpu, kernel, name) or _rows(architecture, kernel, name)
    if rows is None:
        raise ValueError(f"configs-{architecture}.json has no rows of {kernel} for {name}")
    if not name:
        rows = [*_user_table(gpu)["kernels"].get(kernel, []), *rows]
    processors = processors or PROCESSORS.get(capability, PROGRAMS)
    config = choose(rows, problem, processors)
    if kernel == "descriptor" and problem.beta:
        # Flattened, the next tile's loads hold the memory through which C_in passes.
        config["FLATTEN"] = 0
    config |= _preparation(name, problem)
    limit = limit or SHARED_BYTES.get(capability, 101_376)
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


def _preparation(name: str, problem: Any) -> dict[str, int]:
    """PREPARE=1 where A and B are copied first (see prepared.py): 8-bit ones that do not lie with K
    contiguous, and float32 ones in products large enough, for tf32 to be rounded."""
    if name in ("int8", "uint8", "float8", "float8_promoted"):
        return {} if problem.a_strides[1] == problem.b_strides[0] == 1 else {"PREPARE": 1}
    large = min(problem.M, problem.N) >= 256 and problem.capability not in OF_MMA_SYNC
    if name == "tf32x3" and problem.a_strides[1] == problem.b_strides[0] == 1:
        return {}
    return {"PREPARE": 1} if name in ("tf32", "tf32x3") and large else {}


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
        a_alignment=problem.b_alignment,
        b_alignment=problem.a_alignment,
    )


PROGRAMS = 132
"""Programs at a time of a persistent kernel on a GPU that is not there: SMs of an H100 or H200."""


def choose(rows: list[dict[str, Any]], problem: Any, programs: int = PROGRAMS) -> dict[str, int]:
    """The config of the first row whose conditions hold.

    Where that row has a rate, all rows that hold and have one compete, and the least time wins: the
    rounds that ``programs`` programs need for the tiles, times a tile's area over its rate, the
    speed of a busy SM with this tile relative to the others. 288 tiles of 128 x 256 (3072 x 3072)
    are 3 rounds; 384 of 192 x 128 are 3 rounds of tiles three quarters as large.
    """
    held = [row for row in rows if _all_hold(row, problem)]
    if held and "rate" in held[0]:

        def time(row: dict[str, Any]) -> float:
            m, n = row["config"]["BLOCK_M"], row["config"]["BLOCK_N"]
            rounds = -(-(-(-problem.M // m) * -(-problem.N // n)) // programs)
            return float(rounds * m * n / row["rate"])

        return dict(min((row for row in held if "rate" in row), key=time)["config"])
    if held:
        return dict(held[0]["config"])
    raise ValueError(f"the table has no row for {problem}: its last row must have no conditions")


def _all_hold(row: Mapping[str, Any], problem: Any) -> bool:
    return all(_holds(name, value, problem) for name, value in row.get("when", {}).items())


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
    if name in THROUGH_REGISTERS and not (name == "tf32" and config.get("PREPARE")):
        slots, copies = max(slots - 1, 1), THROUGH_REGISTERS[name]
    stages = (slots * (m + n) + copies * n) * k * ITEMSIZE[dtype_in]
    if kernel == "descriptor":
        return stages + m * n // 2 * ITEMSIZE[dtype_out] + 256
    if kernel == "split_k":
        # Half of a whole tile, transposed on its way where C is.
        return stages + m * n // 2 * ITEMSIZE[dtype_out] + 2048
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
    return {"types": {}, "prefer": [], **json.loads(path.read_text())}


def user_table(gpu: str) -> Path:
    """Where the user's own table of a GPU lies, or would lie."""
    folder = os.environ.get(FOLDER_VARIABLE) or Path.home() / ".cache" / "tcgemm"
    return Path(folder) / f"configs-{gpu}.json"


@cache
def _user_table(gpu: str) -> dict[str, Any]:
    """The user's rows, or none; a file that is no table is passed over with a warning."""
    path = user_table(gpu)
    if not gpu or not path.is_file():
        return {"kernels": {}, "prefer": []}
    try:
        return read_table(path)
    except (OSError, ValueError) as error:
        logger.warning("the table %s is passed over (%s): move it away, or mend it", path, error)
        return {"kernels": {}, "prefer": []}


def read_table(path: Path) -> dict[str, Any]:
    """The user's table of a file. Raises OSError or ValueError where it is none."""
    table = json.loads(path.read_text())
    if not isinstance(table, dict):
        raise ValueError(f"it holds a {type(table).__name__}, not a table")
    table = {"kernels": {}, "prefer": [], **table}
    check_table(table)
    return table


def check_table(table: Any) -> None:
    """Raise ValueError, naming the row, where a table's rows are not as ``plan`` reads them."""
    known = (_table("sm90") or {})["kernels"]
    for kernel, rows in table["kernels"].items():
        if kernel not in known:
            raise ValueError(f"{kernel} is no rung that has a table: {', '.join(known)}")
        settings = set(known[kernel][-1]["config"])
        for row in rows:
            _check_conditions(row)
            if set(row.get("config", ())) != settings:
                raise ValueError(f"a row of {kernel} sets not all of {', '.join(sorted(settings))}")
            if not all(type(value) is int for value in row["config"].values()):
                raise ValueError(f"a row of {kernel} has values that are no whole numbers: {row}")
    for row in table["prefer"]:
        _check_conditions(row)
        if row.get("kernel") not in ("", *known):
            raise ValueError(f"{row.get('kernel')!r} is no rung that has a table")


SIZES = ("M", "N", "K", "MN")
CONDITIONS = (
    "aligned",
    "layout",
    "dtype_out",
    *(f"{x}_{y}" for x in SIZES for y in ("min", "max")),
)


def _check_conditions(row: Any) -> None:
    unknown = set(row.get("when", {})) - set(CONDITIONS) if isinstance(row, dict) else {repr(row)}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))} is no condition: {', '.join(CONDITIONS)}")


def forget() -> None:
    """Read all tables anew from now on."""
    for kept in (plan, preferred, _table, _user_table):
        kept.cache_clear()


@cache
def _gpu() -> tuple[str, int, int]:
    """Name as in the table's file name, e.g. nvidia-h200, bytes of shared memory a program, SMs."""
    import torch

    if not torch.cuda.is_available():
        return "", 0, 0
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    slug = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")
    shared = getattr(found, "shared_memory_per_block_optin", 0)
    return slug, shared, found.multi_processor_count


def _gpu_of(problem: Any) -> tuple[str, int, int]:
    """``_gpu`` where the problem's GPU is like it: a plan may be asked for one that is not here."""
    if problem.device != "cuda":
        return "", 0, 0
    import torch

    if torch.cuda.is_available() and problem.capability not in (
        None,
        torch.cuda.get_device_capability(),
    ):
        return "", 0, 0
    return _gpu()


def _column_major(problem: Any) -> bool:
    return letter((problem.M, problem.N), problem.c_strides) == "t"


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
    table = _table(gpu) or _table(_architecture(capability)) or {"prefer": []}
    thin = _transposed(problem) if problem.M > problem.N else problem
    by_tma = capability >= (9, 0) and refuse_descriptor(problem) is None
    by_wgmma = problem.device != "cpu" and refuse_warp_specialized(problem) is None
    able = {"descriptor": by_tma, "split_k": by_tma, "warp_specialized": by_tma and by_wgmma}
    for row in (*_user_table(gpu)["prefer"], *table["prefer"]):
        if _all_hold(row, thin) and able.get(row["kernel"], True):
            return row["kernel"] or None
    return None


def yields(kernel: str, problem: Any) -> bool:
    """Whether another rung was measured faster; ``few_rows`` for a rung that no table prefers.

    For int8 ``pipelined`` is faster than ``descriptor``: Triton waits for every step's wgmma of
    integers, and two programs an SM, which pipelined has, fill the gaps: 113 us against 124 at 4096
    cubed on an H200.
    """
    if kernel == "descriptor" and problem.dtype_in == "int8":
        return True
    best = preferred(problem)
    if best is None:
        return kernel in DIVIDING or few_rows(problem)
    return best != kernel


def few_rows(problem: Any) -> bool:
    """Whether a rung with less machinery is faster: a table prefers one, or where none speaks of
    the problem, C has fewer than 64 rows in its storage order.

    On an H200 at M = 16, bfloat16 nt, over six weights of language models, ``pipelined`` takes 0.66
    to 1.02 (median 0.81) of the time of ``descriptor``, whose blocks of 64 rows lie mostly past the
    edge, and 0.94 to 1.03 of that of ``persistent``.
    """
    if preferred(problem) is not None:
        return True
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
    # Stores are cut at the edge by units of 16 bytes, not by elements, except in the interpreter.
    width = (M if _column_major(problem) else N) * ITEMSIZE[problem.dtype_out]
    if width % UNIT and problem.device != "cpu":
        step = UNIT // ITEMSIZE[problem.dtype_out]
        return (
            f"C has rows of {width // ITEMSIZE[problem.dtype_out]} elements, {width} bytes, and "
            f"TMA stores whole units of {UNIT}, past the row's end: a multiple of {step} fits"
        )
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
        return f"wgmma exists on compute capability 9.0 alone and this GPU has {here}"
    reason = refuse_descriptor(problem)
    if reason is None and ITEMSIZE[problem.dtype_in] == 1:
        for name, shape, strides, wanted, remedy in (
            ("A", (problem.M, problem.K), problem.a_strides, "n", "A.contiguous()"),
            ("B", (problem.K, problem.N), problem.b_strides, "t", "B.mT.contiguous().mT"),
        ):
            if letter(shape, strides) != wanted:
                return (
                    f"{name} has strides ({strides[0]}, {strides[1]}) and wgmma reads "
                    f"{problem.dtype_in} along K only: pass {remedy}"
                )
    return reason
