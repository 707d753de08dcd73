"""The tables of configurations, one per GPU: configs-*.json. Imports no triton.

A table holds, for every rung, an ordered list of rows {"when": conditions, "config": values}; the
first row whose conditions all hold is taken, and the last has none. Conditions: M_max, M_min, the
same of N, K and MN (M times N, elements of C, of all of a batch), layout, dtype_out, aligned (A, B
and C, see ``aligned``), read_aligned (A and B), vectors (as aligned, of 8 elements, for the rung
that is told of them) and tma (``refuse_tma`` has nothing to say).
Rows with a "rate" compete: of those that hold, the one that ends first is taken.
Under "kernels" stand the rungs for 16-bit operands summed in float32, under "types" the same by
``dtypes.kind`` for everything else.

Under "prefer" stand rows {"when": conditions, "kernel": name}: which rung was measured fastest for
a plain product; where none holds, the highest that accepts the problem. These conditions, and those
of skinny and split_k, are of the problem with M <= N, transposed where it has to be.

A table is named after the device as torch names it: "NVIDIA H200" is configs-nvidia-h200.json.
The rows of a table of the same name in the user's folder ($TCGEMM_CACHE_DIR, or ~/.cache/tcgemm),
as ``tcgemm tune`` writes it, come before the shipped ones.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..host.storage import itemsize, letter
from .gpus import STANDS_IN, architecture
from .refusals import refuse_tma

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "TCGEMM_CACHE_DIR"
"""Environment variable that names the folder of the user's own tables."""

RENAMED = {
    "EARLY": "PDL",
    "AHEAD": "L2_PREFETCH",
    "PIECES": "SUBTILES",
    "PREPARE": "REPACK",
}
"""Settings by the names that tables had before: these are still read."""

SIZES = ("M", "N", "K", "MN")
OPTIONAL = ("L2_PREFETCH", "REST")
"""Settings that a row may leave out: none of it."""

CONDITIONS = (
    "aligned",
    "read_aligned",
    "vectors",
    "tma",
    "layout",
    "dtype_out",
    *(f"{x}_{y}" for x in SIZES for y in ("min", "max")),
)


READS = 1 / 128 + 1 / 256
"""Rows of A and columns of B that 128 x 256 reads for each element of C."""

SMALL_TILE, LONG_K, OF_SMALL = 128 * 64, 2048, 0.7
"""Area of a tile, elements along K, and share of its rate: rates of small tiles were measured where
one wave of them is all. In five waves 2048 x 2560 x 8192 took about 1.6 times what that rate says
(four H100, docs/lab/several_gpus_protocol.md): of several waves with a long K less is counted."""

SPLIT_LINES = 0.3
"""Of its rate that a tile loses where rows split lines of the L2 and it reads twice as much, and"""

FEW_K = 256
"""elements along K from which on: below, its stores are more of what it takes. Fitted to 43 drawn
shapes at which the choice differs: the time lost to the faster tile falls from 4.5 to 0.8 %."""


@cache
def shipped() -> dict[str, dict[str, Any]]:
    """Every table of the package by name: sm80, sm90 and the GPUs that have their own."""
    paths = sorted(Path(__file__).parent.glob("configs-*.json"))
    return {
        path.stem.removeprefix("configs-"): {
            "types": {},
            "prefer": [],
            **json.loads(path.read_text()),
        }
        for path in paths
    }


def shipped_rows(table: str, kernel: str, kind: str) -> list[dict[str, Any]] | None:
    """A rung's rows for a kind of operands; None where the table does not speak of it."""
    found = shipped().get(table, {"kernels": {}, "types": {}})
    rungs: dict[str, list[dict[str, Any]]] = (
        found["types"].get(kind, {}) if kind else found["kernels"]
    )
    return rungs.get(kernel)


def names(gpu: str, capability: tuple[int, int]) -> tuple[str, ...]:
    """The shipped tables that speak of a GPU, the one that is nearest to it first.

    Args:
        gpu: as in the names of tables; "" where it is unknown.
    """
    found = (gpu, STANDS_IN.get(capability, "") if gpu else "", architecture(capability))
    return tuple(name for name in found if name in shipped())


def user_path(gpu: str) -> Path:
    """Where the user's own table of a GPU lies, or would lie."""
    folder = os.environ.get(FOLDER_VARIABLE) or os.path.expanduser("~/.cache/tcgemm")
    return Path(folder) / f"configs-{gpu}.json"


_edition = 0


def edition() -> int:
    """A number that is another one from each ``forget`` on. What is kept of tables is kept by it:
    what a thread began to make of the rows before is then not found behind it."""
    return _edition


def of_user(gpu: str) -> dict[str, Any]:
    """The user's rows, or none; a file that is no table is passed over with a warning."""
    return _of_user(gpu, _edition)


@cache
def _of_user(gpu: str, edition: int) -> dict[str, Any]:
    path = user_path(gpu)
    if not gpu or not os.path.isfile(path):  # False, too, where a folder may not be searched
        return {"kernels": {}, "prefer": []}
    try:
        return read(path)
    except (OSError, ValueError) as error:
        logger.warning("the table %s is passed over (%s): move it away, or mend it", path, error)
        return {"kernels": {}, "prefer": []}


def forget() -> None:
    """Read the user's tables anew from now on."""
    global _edition
    _edition += 1
    _of_user.cache_clear()


def read(path: Path) -> dict[str, Any]:
    """The user's table of a file. Raises OSError or ValueError where it is none."""
    table = json.loads(path.read_text())
    if not isinstance(table, dict):
        raise ValueError(f"it holds a {type(table).__name__}, not a table")
    table = {"kernels": {}, "prefer": [], **table}
    renamed = {old for rows in table["kernels"].values() for row in rows for old in _rename(row)}
    if renamed:
        now = ", ".join(f"{old} as {RENAMED[old]}" for old in sorted(renamed))
        logger.warning("the table %s has settings of an older version, read %s", path, now)
    check(table)
    return table


def _rename(row: Any) -> list[str]:
    """The settings of a row that had another name before; they have their new one from now on."""
    config = row.get("config") if isinstance(row, dict) else None
    old = [name for name in config if name in RENAMED] if isinstance(config, dict) else []
    if old:
        row["config"] = {RENAMED.get(name, name): value for name, value in config.items()}
    return old


def check(table: Any) -> None:
    """Raise ValueError, naming the row, where a table's rows are not as they are read here."""
    known = shipped()["sm90"]["kernels"]
    for kernel, rows in table["kernels"].items():
        if kernel not in known:
            raise ValueError(f"{kernel} is no rung that has a table: {', '.join(known)}")
        settings = set(known[kernel][-1]["config"]) - {*OPTIONAL}
        for row in rows:
            _check_conditions(row)
            if set(row.get("config", ())) - {*OPTIONAL} != settings:
                raise ValueError(f"a row of {kernel} sets not all of {', '.join(sorted(settings))}")
            if not all(type(value) is int for value in row["config"].values()):
                raise ValueError(f"a row of {kernel} has values that are no whole numbers: {row}")
    for row in table["prefer"]:
        _check_conditions(row)
        if row.get("kernel") not in ("", *known):
            raise ValueError(f"{row.get('kernel')!r} is no rung that has a table")


def _check_conditions(row: Any) -> None:
    unknown = set(row.get("when", {})) - set(CONDITIONS) if isinstance(row, dict) else {repr(row)}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))} is no condition: {', '.join(CONDITIONS)}")


def choose(
    rows: list[dict[str, Any]], problem: Any, programs: int, overlap: int = 0
) -> dict[str, int]:
    """The config of the first row whose conditions hold.

    Where that row has a rate, all rows that hold and have one compete, and the least time wins: the
    waves of tiles that ``programs`` programs need, times a tile's area over its rate, the speed of
    a busy SM with this tile relative to the others. 288 tiles of 128 x 256 (3072 x 3072) are 3
    waves; 384 of 192 x 128 are 3 waves of tiles three quarters as large. Where rows split lines of
    the L2, a tile that reads more than 128 x 256 for each element of C is slower by it
    (reports/nvidia-h200/trials/split_lines.csv). Neighbouring tiles share ``overlap`` columns.
    """
    held = [row for row in rows if all_hold(row, problem)]
    if held and "rate" in held[0]:
        split = splits_lines(problem)

        def time(row: dict[str, Any]) -> float:
            m, n = row["config"]["BLOCK_M"], row["config"]["BLOCK_N"]
            waves = -(-(-(-problem.M // m) * -(-problem.N // (n - overlap))) // programs)
            more = max(0.0, (1 / m + 1 / n) / READS - 1) * min(1.0, problem.K / FEW_K)
            slower = max(0.5, 1 - SPLIT_LINES * more) if split else 1.0
            if waves > 1 and m * n <= SMALL_TILE and problem.K >= LONG_K:
                slower *= OF_SMALL
            return float(waves * m * n / row["rate"] / slower)

        return dict(min((row for row in held if "rate" in row), key=time)["config"])
    if held:
        return dict(held[0]["config"])
    raise ValueError(f"the table has no row for {problem}: its last row must have no conditions")


def splits_lines(problem: Any) -> bool:
    """Whether rows of A or B begin and end within lines of the L2, of 128 bytes."""
    each = itemsize(problem.dtype_in)
    return any(max(strides) * each % 128 for strides in (problem.a_strides, problem.b_strides))


def all_hold(row: Mapping[str, Any], problem: Any) -> bool:
    return all(_holds(name, value, problem) for name, value in row.get("when", {}).items())


def _holds(name: str, value: Any, problem: Any) -> bool:
    if name == "aligned":
        return aligned(problem) == value
    if name == "read_aligned":
        return aligned(problem, with_c=False) == value
    if name == "vectors":
        return aligned(problem, elements=8) == value
    if name == "tma":
        return (refuse_tma(problem) is None) == value
    if name in ("layout", "dtype_out"):
        return bool(getattr(problem, name) == value)
    what, side = name.split("_")
    size = problem.M * problem.N * problem.batch if what == "MN" else getattr(problem, what)
    return bool(size <= value if side == "max" else size >= value)


def aligned(problem: Any, with_c: bool = True, elements: int = 16) -> bool:
    """Whether pointer rungs copy 16 bytes at a time.

    Then rows, row pitches and addresses of A, B and C (or of A and B alone) are multiples of 16
    elements or bytes, the one divisor that Triton's compiler finds out by itself. Of fewer elements
    in 16 bytes it hears only from skinny (host/units.py).

    Where they are not, every element is a copy of its own with its own registers: 128 x 256 x 64
    then spills 4 KB a thread on sm_90, 128 x 128 x 32 nothing.
    """
    M, N, K = problem.M, problem.N, problem.K
    matrices = [
        ((M, K), problem.a_strides, problem.a_alignment),
        ((K, N), problem.b_strides, problem.b_alignment),
    ]
    if with_c:
        matrices.append(((M, N), problem.c_strides, problem.c_alignment))
    for shape, strides, alignment in matrices:
        order = letter(shape, strides)
        outer, inner = (0, 1) if order == "n" else (1, 0)
        pitch = strides[outer] if shape[outer] > 1 else 0
        if order == "s" or alignment < 16 or shape[inner] % elements or pitch % elements:
            return False
    return True
