"""What the compilers made of each rung, beside its rate: ``compiled.csv`` of a results folder.

The file is what ``tcgemm show-kernel --all --csv FILE`` writes. Rates and the time to the first
result are those of the folder's results, at the sizes and layout that the rung was compiled for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import ResultsError
from .derive import BASELINE, DISPLAY, of_normal_data, rate_text, shape_text
from .rows import printable

COMPILED = "compiled.csv"

COUNTED = {
    "wgmma": ("wgmma",),
    "mma": ("mma",),
    "TMA": ("TMA loads", "TMA stores"),
    "cp.async": ("cp.async",),
    "ldmatrix": ("ldmatrix",),
    "barriers": ("barriers of a block", "barriers of a cluster", "mbarrier operations"),
}
"""Column of the table -> the columns of the file that it adds up."""

BUILT_BEFORE_S = 0.05
"""A first call that took less has compiled nothing: no compiler is that fast. Nor has one that took
less than half of what the compiler took for compiled.csv."""

SHARES = (0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
"""Of cuBLAS: how far a rung gets, as steps."""

NEEDED = ("backend", "kernel", "status", "dtype_in", "layout", "M", "N", "K", "lines of source")

NUMBERED = ("M", "N", "K", "lines of source")
"""Columns that hold a whole number in every row that is ok."""

TEXTS = (
    *("backend", "kernel", "adds", "gpu", "dtype_in", "dtype_out", "compute", "layout", "status"),
    *("reason", "plan", "compiler", "target", "wgmma serialized", "kind"),
)
"""Columns of text; all others hold numbers."""

PLAIN = ("float16", "bfloat16")


def read_compiled(folder: Path) -> pd.DataFrame | None:
    """``compiled.csv`` of a results folder, every cell text; None where there is none.

    Raises ResultsError where it is not what ``tcgemm show-kernel --all --csv`` writes.
    """
    path = folder / COMPILED
    if not path.is_file():
        return None
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} cannot be read ({error}): {_REMEDY.format(path)}") from None
    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        raise ResultsError(f"{path} lacks {', '.join(missing)}: {_REMEDY.format(path)}")
    table = table.map(printable)
    if "kind" not in table:  # a file of before kernels had one
        table["kind"] = "ladder"
    for number, row in enumerate(table.to_dict("records"), start=2):
        _check_row(path, number, row)
    return table


_REMEDY = "write it again with 'tcgemm show-kernel --all --csv {}', or remove it"


def _check_row(path: Path, number: int, row: Mapping[Any, str]) -> None:
    """Raise ResultsError where a cell that is a number, or empty, is neither."""
    for name, text in row.items():
        if name in TEXTS or not text:
            if name in NUMBERED and row["status"] == "ok":
                raise ResultsError(f"{path}: line {number} has no {name}: {_REMEDY.format(path)}")
            continue
        digits = text if name in NUMBERED else text.replace(".", "", 1)
        if not (text.isascii() and digits.isdigit() and len(text) < 19):
            raise ResultsError(
                f"{path}: line {number} has {name}={text[:80]!r}, which is no number: "
                f"{_REMEDY.format(path)}"
            )


def with_rates(compiled: pd.DataFrame, table: pd.DataFrame, stored: pd.DataFrame) -> pd.DataFrame:
    """The compiled rungs in file order, with what the results say of them.

    Args:
        compiled: as ``read_compiled`` gives it.
        table: ``derive`` of the stored rows.
        stored: the rows of results.csv, every run's.

    Returns:
        The rows that are ok, with ``paired_tflops`` and ``ratio_p50`` of that very product, and
        ``first_s``, the longest first call of the rung where it sums in this way; NaN where
        nothing was timed.
    """
    rung, sizes = ["backend", "kernel", "compute"], ["M", "N", "K"]
    product = [*rung, "dtype_in", "dtype_out", "layout", *sizes]
    usual = of_normal_data(table)
    usual = usual[usual["fused"].eq("") & usual["mma_shape"].eq("")].copy()
    usual[rung[:2]] = usual[rung[:2]].astype(str)
    usual[sizes] = usual[sizes].astype(float)
    calls = stored[rung].assign(first_s=pd.to_numeric(stored["compile_s"], errors="coerce"))
    first = calls.groupby(rung)["first_s"].max().reset_index()
    rated = compiled[compiled["status"].eq("ok")].copy()
    rated[sizes] = rated[sizes].astype(float)
    rates = usual[[*product, "paired_tflops", "ratio_p50"]]
    return rated.merge(rates, on=product, how="left").merge(first, on=rung, how="left")


def compiled_rows(rated: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a rung a line, in ladder order, language after language."""
    header = ["language", "rung", "product", "TFLOPS", "of cuBLAS", *COUNTED, "instructions"]
    header += ["registers", "spilled bytes", "shared memory, KiB", "lines", "with what is shared"]
    header += ["compiled in, s", "first result, s"]
    rows = []
    for row in rated.to_dict("records"):
        shape = shape_text(row["M"], row["N"], row["K"])
        product = f"{row['dtype_in']} {row['layout']} {shape}"
        cells = [DISPLAY.get(row["backend"], row["backend"]), row["kernel"], product]
        rate = row["paired_tflops"]
        cells += ["–" if np.isnan(rate) else rate_text(rate), _two(row["ratio_p50"])]
        for names in COUNTED.values():
            cells.append(f"{sum(_number(row.get(name)) for name in names):.0f}")
        cells += [_whole(row.get("instructions")), _whole(row.get("registers"))]
        cells += [_whole(row.get("spilled bytes")), shared(row)]
        cells += [_whole(row["lines of source"]), _whole(row.get("lines with what is shared"))]
        cells += [_seconds(_number(row.get("seconds to compile"))), _first(row)]
        rows.append(cells)
    return header, rows


def shared(row: Mapping[Any, Any]) -> str:
    """KiB of shared memory: all of it, or what is static and what the stages take; a dash
    where neither is more than barriers, and the rest is asked for at the launch."""
    size = _number(row.get("shared bytes"))
    if not size:
        size = _number(row.get("static shared bytes")) + _number(row.get("bytes of stages"))
    return f"{size / 1024:.1f}" if size >= 1024 else "–"


def language_rows(rated: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """For each share of cuBLAS the rung with the least code of its own that reaches it."""
    plain = rated[rated["dtype_in"].isin(PLAIN) & rated["ratio_p50"].notna()]
    languages = [b for b in dict.fromkeys(plain["backend"]) if b != BASELINE]
    header = ["at least, of cuBLAS"]
    for backend in languages:
        name = DISPLAY.get(backend, backend)
        header += [f"{name}: rung", "reaches", "lines", "with what is shared", "first result, s"]
    rows = []
    for share in SHARES:
        cells = [f"{share:.2f}"]
        for backend in languages:
            able = plain[plain["backend"].eq(backend) & plain["ratio_p50"].round(2).ge(share)]
            able = able.assign(lines=able["lines of source"].astype(int)).sort_values("lines")
            if able.empty:
                cells += ["none", "–", "–", "–", "–"]
                continue
            row = able.iloc[0].to_dict()
            cells += [row["kernel"], _two(row["ratio_p50"]), str(row["lines"])]
            cells += [_whole(row.get("lines with what is shared")), _first(row)]
        rows.append(cells)
    return header, rows


def _number(text: object) -> float:
    return float(str(text)) if str(text or "").strip() not in ("", "nan") else 0.0


def _whole(text: object) -> str:
    return f"{_number(text):,.0f}" if str(text or "") else "–"


def _two(ratio: float) -> str:
    return "–" if np.isnan(ratio) else f"{ratio:.2f}"


def _seconds(seconds: float) -> str:
    return "–" if np.isnan(seconds) else f"{seconds:.1f}"


def _first(row: Mapping[Any, Any]) -> str:
    """The first call, or that it compiled nothing: the rung had been built before."""
    seconds, least = float(row["first_s"]), _number(row.get("seconds to compile")) / 2
    return "built before" if seconds < max(BUILT_BEFORE_S, least) else _seconds(seconds)
