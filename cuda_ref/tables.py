"""The tables of settings, one per GPU: configs-*.json.

A table holds, for every rung that has settings, an ordered list of rows {"when": conditions,
"config": values}; the first row whose conditions all hold is taken. Under "prefer" stand rows
{"when": conditions, "kernel": name}: which rung was measured fastest. Where no row holds, the model
of plans.py decides. Conditions: M_max, M_min, the same of N and K, layout and dtype_out; all of the
problem with M <= N, transposed where it has to be.

A table is named after the device as torch names it: "NVIDIA H200" is configs-nvidia-h200.json.
The rows of cuda-configs-GPU.json in the user's folder ($TCGEMM_CACHE_DIR, or ~/.cache/tcgemm), as
``tcgemm tune --backend cuda`` writes it, come before the shipped ones.
"""

from __future__ import annotations

import json
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

from .waves import whole_panels

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "TCGEMM_CACHE_DIR"
"""Environment variable that names the folder of the user's own tables."""

SETTINGS = {
    "split_k": ("SPLITS", "GROUPS"),
    "skinny": ("BLOCK_N", "SPLITS", "SHARED_KB"),
    "stream_k": ("BLOCK_N",),
    "gemv": ("SPLITS", "WARPS", "BLOCKS"),
    "one_wave": ("BLOCK_M", "BLOCK_N", "CLUSTER", "SHARES_A", "SPLITS", "EARLY"),
}
"""Rung -> its settings, in the order in which the launcher unpacks them (Gemm::setting), but for
those that are compiled in."""

COMPILED_IN = {"one_wave": ("BLOCK_M", "BLOCK_N", "CLUSTER", "SHARES_A")}
"""Rung -> those of its settings that a build is for, and no launcher unpacks."""

LEAST = {"SHARES_A": 0, "EARLY": 0}
"""The least value of a setting, where that is not 1."""

UNSET = ("wgmma_persistent", "small")
"""Rungs that may be preferred and have no settings here."""

CONDITIONS = ("layout", "dtype_out", *(f"{x}_{y}" for x in "MNK" for y in ("min", "max")))

EMPTY: dict[str, Any] = {"kernels": {}, "prefer": []}


@cache
def shipped(gpu: str) -> dict[str, Any]:
    """The package's table of a GPU; an empty one where it has none."""
    path = Path(__file__).parent / f"configs-{gpu}.json"
    return {**EMPTY, **json.loads(path.read_text())} if gpu and path.is_file() else EMPTY


def user_path(gpu: str) -> Path:
    """Where the user's own table of a GPU lies, or would lie."""
    folder = os.environ.get(FOLDER_VARIABLE) or Path.home() / ".cache" / "tcgemm"
    return Path(folder) / f"cuda-configs-{gpu}.json"


@cache
def of_user(gpu: str) -> dict[str, Any]:
    """The user's rows, or none; a file that is no table is passed over with a warning."""
    path = user_path(gpu)
    if not gpu or not path.is_file():
        return EMPTY
    try:
        return read(path)
    except (OSError, ValueError) as error:
        logger.warning("the table %s is passed over (%s): move it away, or mend it", path, error)
        return EMPTY


def forget() -> None:
    """Read the user's tables anew from now on."""
    of_user.cache_clear()


def read(path: Path) -> dict[str, Any]:
    """The table of a file. Raises OSError or ValueError where it is none."""
    table = json.loads(path.read_text())
    if not isinstance(table, dict):
        raise ValueError(f"it holds a {type(table).__name__}, not a table")
    table = {**EMPTY, **table}
    check(table)
    return table


def check(table: Any) -> None:
    """Raise ValueError, naming the row, where a table's rows are not as they are read here."""
    for kernel, rows in table["kernels"].items():
        if kernel not in SETTINGS:
            raise ValueError(f"{kernel} is no rung that has a table: {', '.join(SETTINGS)}")
        for row in rows:
            _check_conditions(row)
            if set(row.get("config", ())) != set(SETTINGS[kernel]):
                wanted = ", ".join(SETTINGS[kernel])
                raise ValueError(f"a row of {kernel} does not set just {wanted}: {row}")
            if not all(type(value) is int for value in row["config"].values()):
                raise ValueError(f"a row of {kernel} has values that are no whole numbers: {row}")
            if kernel == "one_wave" and not _buildable(**row["config"]):
                raise ValueError(
                    f"one_wave has no such build: {row}; BLOCK_M is 64 or 128, BLOCK_N 48, 64, 96, "
                    "112 or 128, CLUSTER 1, 2 or 4, but not 4 with 48, 96 and 112, SHARES_A 0 or "
                    "1, SPLITS 1 or more, and 1 with 128 x 96 to 128, EARLY 0 or 1"
                )
            if not all(LEAST.get(name, 1) <= x < 65536 for name, x in row["config"].items()):
                raise ValueError(f"a row of {kernel} has values outside of 1 to 65535: {row}")
    for row in table["prefer"]:
        _check_conditions(row)
        if row.get("kernel") not in (*SETTINGS, *UNSET):
            raise ValueError(f"{row.get('kernel')!r} is no rung that has a table")


def _buildable(
    BLOCK_M: int, BLOCK_N: int, CLUSTER: int, SHARES_A: int, SPLITS: int, EARLY: int
) -> bool:
    """Whether the assertions of shapes/one_wave_build.cuh hold, of an uneven width's panels too."""
    return (
        BLOCK_M in (64, 128)
        and BLOCK_N in (48, 64, 96, 112, 128)
        and CLUSTER in ((1, 2) if BLOCK_N % 64 else (1, 2, 4))
        and SHARES_A in (0, 1)
        and EARLY in (0, 1)
        and SPLITS >= 1
        and (SPLITS == 1 or BLOCK_M * whole_panels(BLOCK_N) < 128 * 128)
    )


def _check_conditions(row: Any) -> None:
    unknown = set(row.get("when", {})) - set(CONDITIONS) if isinstance(row, dict) else {repr(row)}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))} is no condition: {', '.join(CONDITIONS)}")


def first(rows: list[dict[str, Any]], problem: Any) -> dict[str, Any] | None:
    """The first row whose conditions hold for a problem with M <= N."""
    return next((row for row in rows if _all_hold(row, problem)), None)


def _all_hold(row: dict[str, Any], problem: Any) -> bool:
    return all(_holds(name, value, problem) for name, value in row.get("when", {}).items())


def _holds(name: str, value: Any, problem: Any) -> bool:
    if name in ("layout", "dtype_out"):
        return bool(getattr(problem, name) == value)
    what, side = name.split("_")
    size = getattr(problem, what)
    return bool(size <= value if side == "max" else size >= value)
