"""The short answer: the best rung of each backend against cuBLAS at a few key shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from .derive import (
    AMONG_OTHERS,
    BASELINE,
    CASE,
    DISPLAY,
    best,
    pairs_text,
    rate_text,
    shape_text,
)
from .folder import Folder
from .shapes import at_shape, key_shapes


@dataclass(frozen=True)
class Cell:
    """The best rung of one backend on one case; ``why`` alone where there is none.

    Rates are ``paired_tflops``: on one clock for all backends.
    """

    kernel: str = ""
    tflops: float = np.nan
    pct_of_cublas: float = np.nan
    pct_of_peak: float = np.nan
    pct_of_floor: float = np.nan
    floor_by: str = ""
    why: str = ""

    @property
    def rate(self) -> str:
        """``650 TFLOPS, 66 % of peak``; where memory bounds the case, % of bandwidth."""
        rate = f"{rate_text(self.tflops)} TFLOPS"
        if self.floor_by == "memory":
            return f"{rate}, {self.pct_of_floor:.0f} % of bandwidth"
        return rate if np.isnan(self.pct_of_peak) else f"{rate}, {self.pct_of_peak:.0f} % of peak"

    @property
    def share(self) -> str:
        """``91 %`` of cuBLAS, or that it was not paired."""
        return "not paired" if np.isnan(self.pct_of_cublas) else f"{self.pct_of_cublas:.0f} %"


@dataclass(frozen=True)
class Line:
    """One case of the headline table."""

    shape: str
    dtype: str
    layout: str
    cells: dict[tuple[str, str], Cell]
    """(folder slug, backend) -> cell."""


@dataclass(frozen=True)
class Headline:
    """The table: the same cases for every GPU."""

    backends: list[str]
    lines: list[Line]


def headline(folders: Sequence[Folder]) -> Headline:
    """The best rung of each backend at the key shapes, on each GPU."""
    folders = [f for f in folders if f.on_gpu and f.plain["tflops"].notna().any()]
    if not folders:
        return Headline([], [])
    tables = [f.plain for f in folders]
    every = pd.concat(tables, ignore_index=True)
    found = list(dict.fromkeys(str(b) for t in tables for b in t["backend"].cat.categories))
    backends = [b for b in found if b == BASELINE] + [b for b in found if b != BASELINE]
    leaders = {f.slug: best(f.plain) for f in folders}
    timed = every[every["tflops"].notna()]
    cases = sorted({tuple(c) for c in timed[["dtype_in", "dtype_out", "layout"]].to_numpy()})
    lines = []
    for dtype_in, dtype_out in dict.fromkeys(case[:2] for case in cases):
        layouts = [case[2] for case in cases if case[:2] == (dtype_in, dtype_out)]
        for shape, layout in product(key_shapes(tables), layouts):
            cells = {}
            for f in folders:
                of = at_shape(f.plain, shape)
                case = {"dtype_in": dtype_in, "dtype_out": dtype_out, "layout": layout}
                of = of[(of[list(case)] == pd.Series(case)).all(axis=1)]
                for backend in backends:
                    cells[f.slug, backend] = _cell(of, leaders[f.slug], backend)
            if any(not cell.why for cell in cells.values()):
                dtype = pairs_text(dtype_in, dtype_out)
                lines.append(Line(shape_text(*shape), dtype, layout, cells))
    return Headline(backends, lines)


def headline_rows(head: Headline, folder: Folder) -> tuple[list[str], list[list[str]], list[int]]:
    """The headline table of one GPU: header, rows, and which columns are numbers."""
    others = [b for b in head.backends if b != BASELINE]
    header = ["M × N × K", "dtype", "layout", "cuBLAS"]
    for backend in others:
        header += [f"{DISPLAY.get(backend, backend)}: best rung", "TFLOPS", "of cuBLAS"]
    rows = []
    for line in head.lines:
        if not any(slug == folder.slug for slug, _ in line.cells):
            continue
        base = line.cells.get((folder.slug, BASELINE))
        row = [line.shape, line.dtype, line.layout]
        row.append("not measured" if base is None else base.why or base.rate)
        for backend in others:
            cell = line.cells[folder.slug, backend]
            known = [cell.kernel, rate_text(cell.tflops), cell.share]
            row += [cell.why, "–", "–"] if cell.why else known
        rows.append(row)
    return header, rows, [3] + [i for i in range(4, len(header)) if (i - 4) % 3]


def _cell(case: pd.DataFrame, leaders: pd.DataFrame, backend: str) -> Cell:
    rows = case[case["backend"].eq(backend)]
    if rows.empty:
        return Cell(why="not measured")
    lead = rows.index.intersection(leaders.index)
    if lead.empty:
        return Cell(why=", ".join(dict.fromkeys(rows["status"].replace("ok", "not timed"))))
    row = rows.loc[lead[0]]
    rate, share = float(row["paired_tflops"]), float(row["pct_of_cublas"])
    peak, floor = (float(row[c]) for c in ("pct_of_peak", "pct_of_floor"))
    return Cell(str(row["kernel"]), rate, share, peak, floor, str(row["floor_by"]))


def sentence(folder: Folder) -> str:
    """One paragraph: where each backend stands on this GPU."""
    table = folder.table
    if table.empty:
        return f"{folder.name}: the results file holds no row yet."
    if not folder.on_gpu:
        counts = table["status"].value_counts()
        said = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
        return (
            f"Checked on the CPU, without a GPU: {_kernels(table)} kernels on "
            f"{len(cases_of(table))} cases ({said}). Nothing is timed there."
        )
    leaders = best(folder.plain)
    ratios = leaders[leaders["backend"].ne(BASELINE)].dropna(subset=["ratio_p50"])
    if ratios.empty:
        return f"{folder.name}: no kernel was timed beside cuBLAS on 16-bit products."
    top = headline([folder])
    lines = [line for line in top.lines if line.shape == "4096³"] or top.lines
    lines = [line for line in lines if line.dtype == "bfloat16"] or lines
    lines = [line for line in lines if line.shape == lines[0].shape]
    parts = []
    for backend, of in ratios.groupby("backend", observed=True):
        median = f"{of['ratio_p50'].median():.2f}"
        wins = int(of["ratio_p50"].ge(1).sum())
        parts.append(
            f"{DISPLAY.get(str(backend), backend)}'s fastest rungs have a median ratio of {median} "
            f"over {len(of)} cases and are at or above cuBLAS on {wins or 'none'} of them"
        )
    reached = []
    for line in lines:
        cells = [(b, line.cells[folder.slug, b]) for b in top.backends if b != BASELINE]
        shares = [f"{DISPLAY.get(b, b)} {c.share} ({c.kernel})" for b, c in cells if not c.why]
        if shares:
            reached.append(f"{' and '.join(shares)} in layout {line.layout}")
    where = f"{lines[0].dtype} at {lines[0].shape}" if lines else ""
    at = f" In {where}, of the rate of cuBLAS: {'; '.join(reached)}." if reached else ""
    return f"{folder.name}.{at} Over all shapes, {'; '.join(parts)}."


def cases_of(table: pd.DataFrame) -> pd.DataFrame:
    """The distinct cases of a table."""
    return table[CASE].drop_duplicates()


def _kernels(table: pd.DataFrame) -> int:
    return len(table[["backend", "kernel"]].drop_duplicates())


def method(folder: Folder) -> list[str]:
    """How it was measured, in sentences made from the rows."""
    table = folder.table
    if table.empty:
        return ["Nothing was measured yet."]
    checked = int(table["error_ratio"].notna().sum())
    said = [
        f"{len(table)} results: {_kernels(table)} kernels of {table['backend'].nunique()} backends "
        f"on {len(cases_of(table))} cases. Every kernel is "
        f"verified on every case before it is timed; {checked} were checked against a float64 "
        "reference element by element and with exact integers. A kernel that is wrong gets a "
        "status, not a time. Only the latest row of a kernel and case counts."
    ]
    if unknown := int((~table["run"].isin(folder.runs)).sum()):
        said.append(
            f"{unknown} of them are of runs that environment.json says nothing about: nobody knows "
            "on which GPU and with which versions they were made."
        )
    data = ", ".join(sorted(set(table["data"]) - {""}))
    if data:
        said.append(f"Operands: {data}; each row keeps its seed.")
    timed = table[table["tflops"].notna()]
    if not folder.on_gpu:
        said.append(
            "The kernels ran without a GPU, through an interpreter, a simulator or torch's own "
            "matmul: their values are compared, their times mean nothing and are left out."
        )
        return said
    if timed.empty:
        return [*said, "Nothing was timed."]
    timers = timed["timer"].value_counts()
    caches = timed["cache"].value_counts()
    said.append(
        "Each kernel was timed in turn with cuBLAS, round by round"
        + _range(",", timed["rounds"], " rounds a case")
        + ". The ratio is the median of the pairs, the time the median of the rounds. Timers: "
        + ", ".join(f"{t} on {n}" for t, n in sorted(timers.items()))
        + ". Caches: "
        + ", ".join(f"{c} on {n}" for c, n in sorted(caches.items()))
        + "."
    )
    alone = int(timed["among"].eq("alone").sum())
    beside = int(timed["among"].isin(AMONG_OTHERS).sum())
    if alone or beside:
        said.append(
            f"Of the products under 100 us, {beside} count as timed among other kernels (a foreign "
            "kernel after each, in a graph or in a stream, whichever ratio is lower) and "
            f"{alone} alone: launches of nothing but themselves, where one starts while the one "
            "before it ends, which no program offers."
        )
    clocks = _range("SM clock", timed["sm_clock_mhz"], " MHz")
    power = _range("board power", timed["power_w"], " W")
    if clocks or power:
        said.append("While it ran: " + ", ".join(p for p in (clocks, power) if p) + ".")
    said += _above_the_limit(folder, timed)
    if folder.gpu and folder.gpu.source:
        said.append(f"Peaks and bandwidth: {folder.gpu.source}; dense rates only.")
    elif folder.gpu:
        said.append("No data sheet of this GPU is known: % of peak and floors stay empty.")
    return said


def _above_the_limit(folder: Folder, timed: pd.DataFrame) -> list[str]:
    """Why rows show more watts than the board may take, where some do."""
    limits = [folder.runs.get(run, {}).get("power_limit_w") for run in timed["run"]]
    limit = pd.Series(limits, index=timed.index, dtype=float)
    above = timed["power_w"].gt(limit)
    if not above.any():
        return []
    return [
        f"{int(above.sum()):,} of {int(timed['power_w'].notna().sum()):,} rows read more watts "
        f"than the limit of {limit.max():.0f} W. A reading is NVML's instantaneous one, the median "
        "of those taken in the fraction of a second in which a kernel was timed; the limit holds "
        "for the average over a longer time, in which the clock is lowered. A kernel that runs "
        "for seconds stays below it, and slower."
    ]


def _range(name: str, values: pd.Series, unit: str) -> str:
    values = values.dropna()
    if values.empty:
        return ""
    low, high = values.min(), values.max()
    span = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
    return f"{name} {span}{unit}"
