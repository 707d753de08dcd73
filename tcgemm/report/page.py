"""The HTML page: one file that opens offline, made from templates in this folder."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from ..bench.store import COLUMNS
from . import several
from .answer import answer
from .counts import counts_table
from .derive import DERIVED, NUMBERS, TIMED, why_empty
from .figures import Picture, inline
from .figures.by_kind import FIRST
from .folder import Folder, facts
from .headline import headline, headline_rows, method, sentence
from .sections import Section, sections
from .several import Several
from .style import DARK, variable
from .summary import lists, problems, suspects

MAIN_COLUMNS = (
    *("backend", "kernel", "dtype_in", "dtype_out", "compute", "fused", "layout", "M", "N", "K"),
    *(
        "batch",
        "status",
        "paired_tflops",
        "pct_of_peak",
        "ratio_p50",
        "pct_of_floor",
        "mj_per_tflop",
        "error_ratio",
    ),
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

DERIVED_TEXT = ("shape", "suites", "model", "kind", "floor_by", "suspect")

NO_RATE = {
    *TIMED,
    "timer",
    "cache",
    "among",
    "ratio_alone",
    "over_plain",
    "tflops",
    "paired_tflops",
    "etops",
    "pct_of_peak",
    "gb_s",
    "floor_ms",
} | {
    *("floor_by", "pct_of_floor", "pct_of_cublas", "flop_per_clock_sm", "mj_per_tflop", "suspect"),
}
"""Columns that a folder without a GPU does not show."""


@dataclass(frozen=True)
class Part:
    """One folder as the page shows it."""

    slug: str
    title: str
    lead: str
    """The first sentence: what the folder says."""
    sentence: str
    method: list[str]
    facts: list[tuple[str, str]]
    pictures: list[tuple[Picture, Markup | None]]
    lists: list[Section]
    """The ladder and the specialists."""
    counts: tuple[list[str], list[list[str]]] | None
    sections: list[Section]
    problems: Markup
    n_problems: int
    suspects: list[str]
    results: Markup


def page(
    folders: Sequence[tuple[Folder, Sequence[Picture]]],
    shared: Sequence[Picture] = (),
    over_several: Sequence[tuple[Several, Sequence[Picture]]] = (),
) -> str:
    """The whole page for one folder or several; ``shared`` are figures across GPUs, and
    ``over_several`` the folders of products over several GPUs."""
    parts = [_part(folder, pictures) for folder, pictures in folders]
    gpus = [folder for folder, _ in folders if folder.on_gpu]
    first = _first(folders, shared)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=lambda name: name == "page.html.j2",
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["prose"] = _prose
    head = _headline(gpus)
    return environment.get_template("page.html.j2").render(
        title=_title(bool(gpus), bool(parts)),
        parts=parts,
        several=[_several(folder, pictures) for folder, pictures in over_several],
        answer=first,
        shared=[(p, _inline(p, f"all-{p.slug}")) for p in shared if p.slug != FIRST],
        head=head,
        contents=_contents(parts, shared, bool(head["rows"]), over_several),
        light={variable(light): light for light in DARK},
        dark={variable(light): dark for light, dark in DARK.items()},
        definitions=[(n, m, "measured") for n, m in COLUMNS.items()]
        + [(n, m, "derived") for n, m in DERIVED.items()]
        + (several.DEFINITIONS if over_several else []),
        style=Markup(environment.get_template("style.css").render()),
        script=Markup(environment.get_template("table.js.j2").render()),
    )


def _title(on_gpu: bool, parts: bool) -> str:
    if not parts:
        return "Products over several GPUs"
    return "Triton, CUDA or cuBLAS?" if on_gpu else "Every kernel, checked on a CPU"


def _several(folder: Several, pictures: Sequence[Picture]) -> dict[str, Any]:
    """A folder of products over several GPUs, as the template takes it."""
    return {
        "slug": folder.slug,
        "title": f"Over {folder.name}",
        "sentence": several.sentence(folder),
        "pictures": [(p, _inline(p, f"{folder.slug}-{p.slug}")) for p in pictures],
        "sections": several.sections(folder),
        "facts": several.facts(folder),
    }


def _first(
    folders: Sequence[tuple[Folder, Sequence[Picture]]], shared: Sequence[Picture]
) -> tuple[Picture, Markup | None, str] | None:
    """The picture that the page opens with, and where its dots' rows are."""
    of_all = next((p for p in shared if p.slug == FIRST), None)
    if of_all is not None:
        return of_all, _inline(of_all, f"all-{FIRST}"), ""
    for folder, pictures in folders:
        for picture in pictures:
            if picture.slug == FIRST and picture.svg is not None:
                slug = folder.slug
                return picture, _inline(picture, f"first-{FIRST}"), f"{slug}-results"
    return None


def _headline(gpus: Sequence[Folder]) -> dict[str, Any]:
    """The table of key shapes; of several GPUs or runs, each in a row of its own."""
    head = headline(gpus)
    header: list[str] = []
    rows: list[list[str]] = []
    numbers: list[int] = []
    for folder in gpus:
        header, of, numbers = headline_rows(head, folder)
        rows += [[*row[:3], *([folder.name] if len(gpus) > 1 else []), *row[3:]] for row in of]
    if len(gpus) > 1 and rows:
        header = [*header[:3], "on", *header[3:]]
        numbers = [number + 1 for number in numbers]
        rows.sort(key=lambda row: row[:3])
    return {"header": header, "rows": rows, "numbers": numbers}


def _contents(
    parts: Sequence[Part],
    shared: Sequence[Picture],
    head: bool,
    over_several: Sequence[tuple[Several, Sequence[Picture]]] = (),
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Groups of (id, title): what the contents lead to."""
    top = [("headline", "Key shapes")] if head else []
    if any(picture.slug != FIRST for picture in shared):
        top.append(("side-by-side", "Side by side"))
    groups = [("Summary", top)] if top else []
    for part in parts:
        slug = part.slug
        of = [(f"{slug}-{p.slug}", p.title.partition(":")[0]) for p, _ in part.pictures]
        of += [(f"{slug}-{s.slug}", s.title) for s in [*part.sections, *part.lists]]
        of += [(f"{slug}-not-ok", "Results that are not ok"), (f"{slug}-all", "All results")]
        groups.append((part.title, [*of, (f"{slug}-method", "How it was measured")]))
    for of_several, pictures in over_several:
        slug = of_several.slug
        titled = [(picture.slug, picture.title) for picture in pictures]
        titled += [(table.slug, table.title) for table in several.sections(of_several)]
        of = [(f"{slug}-{name}", _capital(title.partition(": ")[2])) for name, title in titled]
        groups.append((f"Over {of_several.name}", of))
    return [*groups, ("Reference", [("columns", "What the columns mean")])]


def _capital(title: str) -> str:
    return title[:1].upper() + title[1:]


def _prose(text: str) -> Markup:
    """A sentence as HTML: backticks are code, and a percent sign stays with its number."""
    kept = str(escape(text)).replace(" %", "\u00a0%")
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", kept))


def _inline(picture: Picture, prefix: str) -> Markup | None:
    return None if picture.svg is None else Markup(inline(picture.svg, prefix))


def _part(folder: Folder, pictures: Sequence[Picture]) -> Part:
    shown, part = folder.kept.get("part", (None, None))
    if shown is not pictures:
        part = _part_of(folder, pictures)
        folder.kept["part"] = pictures, part
    found: Part = part
    return found


def _part_of(folder: Folder, pictures: Sequence[Picture]) -> Part:
    found = problems(folder)
    bad = pd.DataFrame(
        [(p.kernel, p.status, p.cases, p.reason, p.example) for p in found],
        columns=["kernel", "status", "cases", "reason", "for example"],
    )
    return Part(
        slug=folder.slug,
        title=folder.name if folder.on_gpu else "Checked on the CPU",
        lead=answer(folder.name, folder.plain).sentence if folder.on_gpu else sentence(folder),
        sentence=sentence(folder) if folder.on_gpu else "",
        method=method(folder),
        facts=facts(folder),
        pictures=[(p, _inline(p, f"{folder.slug}-{p.slug}")) for p in pictures if p.slug != FIRST],
        lists=lists(folder),
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
        "batch": table["batch"].ne(1),
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
