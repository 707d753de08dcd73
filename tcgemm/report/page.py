"""The HTML page: one file that opens offline, made from templates in this folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from ..bench.store import COLUMNS
from .counts import counts_table
from .derive import BASELINE, DERIVED, DISPLAY, NUMBERS, TIMED, why_empty
from .figures import Picture, inline
from .folder import Folder, facts
from .headline import headline, method, sentence
from .sections import Section, sections
from .style import DARK, backend_colour, variable
from .summary import kernels_summary, problems, suspects

MAIN_COLUMNS = (
    *("backend", "kernel", "dtype_in", "dtype_out", "compute", "fused", "layout", "M", "N", "K"),
    *("status", "tflops", "pct_of_peak", "ratio_p50", "pct_of_floor", "ms_p50", "error_ratio"),
)
"""What the table of results shows at first; the rest unfolds."""

FILTERS = (
    *(
        "backend",
        "kernel",
        "dtype_in",
        "dtype_out",
        "compute",
        "fused",
        "layout",
        "status",
        "suites",
    ),
)
"""Columns that get a menu above the table."""

DERIVED_TEXT = ("shape", "suites", "floor_by", "suspect")

NO_RATE = {
    *TIMED,
    "timer",
    "cache",
    "among",
    "ratio_alone",
    "tflops",
    "paired_tflops",
    "etops",
    "pct_of_peak",
    "gb_s",
    "floor_ms",
} | {
    *("floor_by", "pct_of_floor", "pct_of_cublas", "flop_per_clock_sm", "suspect"),
}
"""Columns that a folder without a GPU does not show."""


@dataclass(frozen=True)
class Part:
    """One folder as the page shows it."""

    folder: Folder
    title: str
    sentence: str
    method: list[str]
    facts: list[tuple[str, str]]
    pictures: list[tuple[Picture, Markup | None]]
    kernels: tuple[list[str], list[list[str]]]
    counts: tuple[list[str], list[list[str]]] | None
    sections: list[Section]
    problems: Markup
    n_problems: int
    suspects: list[str]
    results: Markup


def page(
    folders: Sequence[tuple[Folder, Sequence[Picture]]], shared: Sequence[Picture] = ()
) -> str:
    """The whole page for one folder or several; ``shared`` are figures across GPUs."""
    parts = [_part(folder, pictures) for folder, pictures in folders]
    gpus = [folder for folder, _ in folders if folder.on_gpu]
    head = headline(gpus)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=lambda name: name == "page.html.j2",
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    shown = {slug for line in head.lines for slug, _ in line.cells}
    return environment.get_template("page.html.j2").render(
        parts=parts,
        shared=[(p, _inline(p, f"all-{p.slug}")) for p in shared],
        head=head,
        baseline=BASELINE,
        display={b: DISPLAY.get(b, b) for b in head.backends},
        head_gpus=[g for g in gpus if g.slug in shown],
        colour={b: f"var({variable(backend_colour(b, head.backends))})" for b in head.backends},
        light={variable(light): light for light in DARK},
        dark={variable(light): dark for light, dark in DARK.items()},
        definitions=[(n, m, "measured") for n, m in COLUMNS.items()]
        + [(n, m, "derived") for n, m in DERIVED.items()],
        style=Markup(environment.get_template("style.css").render()),
        script=Markup(environment.get_template("table.js.j2").render()),
    )


def _inline(picture: Picture, prefix: str) -> Markup | None:
    return None if picture.svg is None else Markup(inline(picture.svg, prefix))


def _part(folder: Folder, pictures: Sequence[Picture]) -> Part:
    found = problems(folder)
    bad = pd.DataFrame(
        [(p.kernel, p.status, p.cases, p.reason, p.example) for p in found],
        columns=["kernel", "status", "cases", "reason", "for example"],
    )
    return Part(
        folder=folder,
        title=folder.name if folder.on_gpu else "Checked on the CPU",
        sentence=sentence(folder),
        method=method(folder),
        facts=facts(folder),
        pictures=[(p, _inline(p, f"{folder.slug}-{p.slug}")) for p in pictures],
        kernels=kernels_summary(folder),
        counts=counts_table(folder.counts) if folder.counts else None,
        sections=sections(folder),
        problems=_packed(bad, main=list(bad.columns), filters=["kernel", "status"]),
        n_problems=len(found),
        suspects=suspects(folder),
        results=_results(folder),
    )


def _results(folder: Folder) -> Markup:
    """Every derived row, as data for the table script; an empty cell holds its reason."""
    table = folder.table
    said = {
        "dtype_out": table["dtype_out"].ne(table["dtype_in"]),
        "compute": table["compute"].ne("float32"),
        "fused": table["fused"].ne(""),
    }
    main = [name for name in MAIN_COLUMNS if name not in said or said[name].any()]
    names = [*MAIN_COLUMNS, *(c for c in (*COLUMNS, *DERIVED) if c not in MAIN_COLUMNS)]
    if not folder.on_gpu:
        names = [n for n in names if n not in NO_RATE]
    shown = pd.DataFrame(index=table.index)
    for name in names:
        column = table[name].astype(object)
        empty = column.isna() | column.eq("")
        if empty.any():
            reasons = table[empty].apply(why_empty, axis=1, args=(name, folder.gpu))
            column = column.mask(empty, reasons)
        shown[name] = column
    meanings = {**COLUMNS, **DERIVED}
    return _packed(
        shown,
        main=[n for n in main if n in names],
        filters=list(FILTERS),
        meanings=meanings,
        numbers=[n for n in names if n in NUMBERS or (n in DERIVED and n not in DERIVED_TEXT)],
    )


def _packed(
    frame: pd.DataFrame,
    *,
    main: Sequence[str],
    filters: Sequence[str],
    meanings: dict[str, str] | None = None,
    numbers: Sequence[str] = ("cases",),
) -> Markup:
    """A frame as JSON by column; repeated strings are stored once and referred to by number."""
    columns: list[dict[str, Any]] = []
    for name in frame.columns:
        values = list(frame[name])
        column: dict[str, Any] = {"name": name, "main": name in main}
        if meanings:
            column["title"] = meanings.get(name, "")
        if name in filters:
            column["filter"] = True
        if name in numbers:
            column["number"] = True
            column["values"] = [_compact(v) for v in values]
        else:
            texts = list(dict.fromkeys(map(str, values)))
            code = {text: i for i, text in enumerate(texts)}
            column["texts"] = texts
            column["values"] = [code[str(v)] for v in values]
        columns.append(column)
    text = json.dumps({"rows": len(frame), "columns": columns}, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _compact(value: Any) -> Any:
    """A number to five digits, whole where it is whole; a reason stays text."""
    if isinstance(value, str):
        return value
    number = float(value)
    if not np.isfinite(number):
        return str(number)
    if number == int(number) and abs(number) < 1e15:
        return int(number)
    return float(f"{number:.5g}")
