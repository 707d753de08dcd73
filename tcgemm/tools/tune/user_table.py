"""The user's own table: the rows that say what was found, and how they come to its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...bench.case import Case
from ...errors import ResultsError
from ...files import locked, write_whole
from .backends import part_of
from .search import Found

BUCKETS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Problems of up to so many rows share their rows of a table, as do those of more than the last."""


def rows_of(found: Found, backend: str = "triton") -> dict[str, Any]:
    """The rows of a table that say what was found: {"kernels": {rung: rows}, "prefer": rows}."""
    best = found.best
    if best is None:
        return {"kernels": {}, "prefer": []}
    kernel = best.candidate.kernel
    transposed = found.case.M > found.case.N
    own = bucket_of(found.case, transposed and kernel in part_of(backend, "plans").DIVIDING)
    return {
        "kernels": {kernel: [{"when": own, "config": best.candidate.config}]},
        "prefer": [{"when": bucket_of(found.case, transposed), "kernel": kernel}],
    }


def bucket_of(case: Case, transposed: bool) -> dict[str, Any]:
    """The conditions of a problem's bucket; of its transpose C' = B' A' where transposed."""
    M, N, layout = case.M, case.N, case.layout
    if transposed:
        flip = {"n": "t", "t": "n"}
        M, N, layout = N, M, flip[layout[1]] + flip[layout[0]]
    most = next((size for size in BUCKETS if size >= M), None)
    least = max((size + 1 for size in BUCKETS if size < M), default=1)
    when: dict[str, Any] = {"M_min": least, **({"M_max": most} if most else {})}
    for name, size in (("N", N), ("K", case.K)):
        when |= {f"{name}_min": size, f"{name}_max": size}
    when["layout"] = layout
    if case.dtype_out != case.dtype_in:
        when["dtype_out"] = case.dtype_out
    return when


def merge(table: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The table with new rows before the old, which they replace where the conditions are equal."""

    def joined(old: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        settled = [row.get("when") for row in rows]
        return [*rows, *(row for row in old if row.get("when") not in settled)]

    kernels = dict(table.get("kernels", {}))
    for kernel, rows in new["kernels"].items():
        kernels[kernel] = joined(kernels.get(kernel, []), rows)
    return {**table, "kernels": kernels, "prefer": joined(table.get("prefer", []), new["prefer"])}


def read_table(path: Path, backend: str = "triton") -> dict[str, Any]:
    """The table of a file, or an empty one where there is no file.

    Raises ResultsError where the file is no table.
    """
    if not path.exists():
        return {"kernels": {}, "prefer": []}
    try:
        table: dict[str, Any] = part_of(backend, "tables").read(path)
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} is no table of configurations: {error}; move it away") from None
    return table


def write_table(path: Path, table: dict[str, Any], backend: str = "triton") -> None:
    """Write a table whole or not at all. Raises ResultsError where that cannot be."""
    part_of(backend, "tables").check(table)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, json.dumps(table, indent=1) + "\n")
    except OSError as error:
        raise unwritable(path, error) from None


def keep(path: Path, new: dict[str, Any], backend: str = "triton") -> None:
    """Merge new rows into the table of a file, as it is by then: other processes write it too.

    Raises ResultsError where the file is no table or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            write_table(path, merge(read_table(path, backend), new), backend)
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> ResultsError:
    """Why the file is not there, and where else it could be."""
    return ResultsError(
        f"cannot write {path}: {error.strerror}; --out or TCGEMM_CACHE_DIR names another place"
    )
