"""The tables of settings, one per GPU: configs-*.json.

A table holds, for every rung that has settings, an ordered list of rows {"when": conditions,
"config": values}; the first row whose conditions all hold is taken. Under "prefer" stand rows
{"when": conditions, "kernel": name}: which rung was measured fastest. Where no row holds, models
of the rungs decide. Conditions: M_max, M_min, the same of N and K, layout, dtype_out, and whether
rows of B are whole lines; all of the problem with M <= N, transposed where it has to be.

A table is named after the device as torch names it: "NVIDIA H200" is configs-nvidia-h200.json. A
GPU without one reads another's (``stand_in`` in gpu.py).
The rows of cuda-configs-GPU.json in the user's folder ($TCGEMM_CACHE_DIR, or ~/.cache/tcgemm), as
``tcgemm tune --backend cuda`` writes it, come before the shipped ones.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gpu import Gpu
    from .tuning import Tuning

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "TCGEMM_CACHE_DIR"
"""Environment variable that names the folder of the user's own tables."""

SIZES = {f"{x}_{y}": (x, y) for x in "MNK" for y in ("min", "max")}

CONDITIONS = ("layout", "dtype_out", "whole_lines", *SIZES)

LINE = 64
"""Elements of 16 bits in a line of the L2, of 128 bytes."""

EMPTY: dict[str, Any] = {"kernels": {}, "prefer": []}


@cache
def shipped(gpu: str) -> dict[str, Any]:
    """The package's table of a GPU; an empty one where it has none."""
    path = Path(__file__).parent / f"configs-{gpu}.json"
    return {**EMPTY, **json.loads(path.read_text())} if gpu and path.is_file() else EMPTY


def user_path(gpu: str) -> Path:
    """Where the user's own table of a GPU lies, or would lie."""
    folder = os.environ.get(FOLDER_VARIABLE) or os.path.expanduser("~/.cache/tcgemm")
    return Path(folder) / f"cuda-configs-{gpu}.json"


@cache
def of_user(gpu: str) -> dict[str, Any]:
    """The user's rows, or none; a file that is no table is passed over with a warning."""
    path = user_path(gpu)
    if not gpu or not os.path.isfile(path):  # False, too, where a folder may not be searched
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
    table = _with_new_names({**EMPTY, **table}, path)
    check(table)
    return table


def check(table: Any) -> None:
    """Raise ValueError, naming the row, where a table's rows are not as they are read here."""
    from .ladder import by_name, tunings

    known = tunings()
    for kernel, rows in table["kernels"].items():
        if kernel not in known:
            raise ValueError(f"{kernel} is no rung that has a table: {', '.join(known)}")
        for row in rows:
            _check_conditions(row)
            _check_config(known[kernel], row)
    for row in table["prefer"]:
        _check_conditions(row)
        preferred = by_name().get(row.get("kernel"))
        if preferred is None or not hasattr(preferred, "cost"):
            raise ValueError(f"{row.get('kernel')!r} is no rung that has a table")


def _check_config(tuning: Tuning, row: Any) -> None:
    kernel, config = tuning.kernel, row.get("config", {})
    if set(config) != set(tuning.settings):
        wanted = ", ".join(tuning.settings)
        raise ValueError(f"a row of {kernel} does not set just {wanted}: {row}")
    if not all(type(value) is int for value in config.values()):
        raise ValueError(f"a row of {kernel} has values that are no whole numbers: {row}")
    if reason := tuning.check(config):
        raise ValueError(f"{kernel} has no such build: {row}; {reason}")
    for name, value in config.items():
        if not (name not in tuning.may_be_zero) <= value < 65536:
            raise ValueError(f"a row of {kernel} has values outside of 1 to 65535: {row}")


def _with_new_names(table: dict[str, Any], path: Path) -> dict[str, Any]:
    """The table with settings by the names that they have now; a warning where some had others."""
    from .ladder import tunings

    known, old, kernels = tunings(), set(), {}
    for kernel, rows in table["kernels"].items():
        newer = known[kernel].newer if kernel in known else dict
        kernels[kernel] = [{**row, "config": newer(row.get("config", {}))} for row in rows]
        for row, now in zip(rows, kernels[kernel], strict=True):
            old |= {f"{kernel}'s {k}" for k in row.get("config", {}) if k not in now["config"]}
    if not old:
        return table
    logger.warning(
        "the table %s has settings by earlier names (%s): they are read as what they are called "
        "now, and 'tcgemm tune' writes them so",
        path,
        ", ".join(sorted(old)),
    )
    return {**table, "kernels": kernels}


def rows_of(gpu: Gpu, kernel: str) -> list[dict[str, Any]]:
    """The rows of a rung in the tables of a GPU: the user's, then the shipped ones."""
    return [row for table in _of(gpu) for row in table["kernels"].get(kernel, [])]


def preferences(gpu: Gpu) -> list[dict[str, Any]]:
    """The rows that name the rung to take: the user's, then the shipped ones."""
    return [row for table in _of(gpu) for row in table["prefer"]]


def _of(gpu: Gpu) -> tuple[dict[str, Any], dict[str, Any]]:
    own = shipped(gpu.name)
    return of_user(gpu.name), shipped(gpu.stand_in) if own is EMPTY else own


def _check_conditions(row: Any) -> None:
    unknown = set(row.get("when", {})) - set(CONDITIONS) if isinstance(row, dict) else {repr(row)}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))} is no condition: {', '.join(CONDITIONS)}")


def first(
    rows: list[dict[str, Any]], problem: Any, fits: Callable[[Any], bool] = lambda config: True
) -> dict[str, Any] | None:
    """The first row whose conditions hold for a problem with M <= N, and whose config fits."""
    for row in rows:
        for name, value in row.get("when", {}).items():
            if not _holds(name, value, problem):
                break
        else:
            if fits(row.get("config")):
                return row
    return None


def _holds(name: str, value: Any, problem: Any) -> bool:
    if name in ("layout", "dtype_out"):
        return bool(getattr(problem, name) == value)
    if name == "whole_lines":
        return whole_lines(problem) == value
    what, side = SIZES[name]
    size = getattr(problem, what)
    return bool(size <= value if side == "max" else size >= value)


def whole_lines(problem: Any) -> bool:
    """Whether each row of B begins with a line of the L2, of 128 bytes."""
    return bool(max(problem.b_strides) % LINE == 0)


def short_rows(problem: Any) -> bool:
    """Whether A lies in rows of M elements that are shorter than half a line of the L2.

    A step then takes 64 of them, whatever their length, and all blocks ask for the same few lines:
    at 4072 x 8 x 3628 (tn) 15.5 us in clusters of 2, which ask half as often, and 20.7 without
    (reports/nvidia-h200/trials/races.csv).
    """
    return bool(problem.layout[0] == "t" and problem.a_strides[1] < LINE // 2)
