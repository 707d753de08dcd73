"""The comparison as a page: a figure of all changes, and tables of kernels and cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ...errors import ResultsError
from ...files import write_whole
from ..derive import ordered_backends
from ..figures.picture import WIDTH, Picture, hover, inline, kernel_axis, rows_of_kernels, save
from ..style import ALARM, DARK, MUTED, RC, line_colour, variable
from .verdicts import AMBG, FAST, SAME, SLOW, VERDICTS, counted

COLOURS = {FAST: line_colour(0), SLOW: ALARM, SAME: MUTED, AMBG: line_colour(2)}


def percent(value: float) -> str:
    """``+1.2 %``; zero has no sign."""
    text = f"{100 * value:+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def draw(table: pd.DataFrame, of_kernels: pd.DataFrame, tolerance: float) -> Picture:
    """Every case's change, a line a kernel; the kernel's mean as a tick."""
    import seaborn as sns  # here, since it imports much of SciPy

    title = "How much each case changed"
    backends = ordered_backends(table["backend"])
    names = list(zip(of_kernels["backend"], of_kernels["kernel"], strict=True))
    place, height = rows_of_kernels(sorted(names, key=lambda name: backends.index(name[0])))
    reach = max(0.08, 1.15 * float(table["change"].abs().max()))
    reach = min(reach, 0.6)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.24 * height), layout="constrained")
        ax = figure.subplots()
        ax.axvspan(-100 * tolerance, 100 * tolerance, color=MUTED, alpha=0.13, linewidth=0)
        ax.axvline(0, color=MUTED, linewidth=1.2)
        for verdict in (SAME, AMBG, FAST, SLOW):
            of = table[table["verdict"].eq(verdict)]
            if of.empty:
                continue
            lines = [place[name] for name in zip(of["backend"], of["kernel"], strict=True)]
            ys = [y + 0.4 * ((0.618 * i) % 1 - 0.5) for i, y in enumerate(lines)]
            xs = 100 * of["change"].clip(-reach, reach)
            sns.scatterplot(x=xs, y=ys, ax=ax, s=22, color=COLOURS[verdict], linewidth=0, alpha=0.7)
            hover(ax.collections[-1], [behind(row) for row in of.to_dict("records")])
        for row in of_kernels.to_dict("records"):
            y = place[row["backend"], row["kernel"]]
            at = 100 * max(-reach, min(reach, row["change"]))
            ax.plot([at, at], [y - 0.36, y + 0.36], linewidth=2, color=COLOURS[row["verdict"]])
            ax.annotate(
                f"{percent(row['change'])} {row['verdict']}", (1, y),
                xycoords=("axes fraction", "data"), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=8.5, color=COLOURS[row["verdict"]],
            )  # fmt: skip
        ax.set_xlim(-103 * reach, 103 * reach)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:+g} %" if v else "0"))
        ax.set_xlabel("change of the rate, B over A; right is faster")
        kernel_axis(ax, place, height, True)
        svg = save(figure)
    guide = (
        "A dot is a case; a tick, and the number on the right, is the geometric mean of a kernel. "
        "Within the grey band lies what the tolerance allows. Changes beyond the frame stand at "
        "its edge."
    )
    return Picture("compare", title, guide, svg)


def behind(row: Mapping[Any, Any]) -> str:
    """The row behind a dot, in words."""
    return (
        f"{row['backend']}/{row['kernel']}, {row['case']}: {row['verdict']}, "
        f"{row['ratio_a']:#.3g} to {row['ratio_b']:#.3g} of cuBLAS, {percent(row['change'])} "
        f"(noise {100 * row['noise']:.1f} %)"
    )


CASES = ("kernel", "case", "verdict", "change", "noise", "A, × cuBLAS", "B, × cuBLAS")


def case_rows(table: pd.DataFrame) -> list[list[str]]:
    """The cells of ``CASES``, what is not SAME first."""
    order = {SLOW: 0, FAST: 1, AMBG: 2, SAME: 3}
    rows = sorted(table.to_dict("records"), key=lambda r: (order[r["verdict"]], -abs(r["change"])))
    return [
        [
            f"{r['backend']}/{r['kernel']}", r["case"], r["verdict"], percent(r["change"]),
            f"{100 * r['noise']:.1f} %", f"{r['ratio_a']:#.3g}", f"{r['ratio_b']:#.3g}",
        ]
        for r in rows
    ]  # fmt: skip


KERNELS = ("kernel", "verdict", "change", "noise", "cases", *VERDICTS, "worst", "worst case")


def kernel_rows(of_kernels: pd.DataFrame) -> list[list[str]]:
    """The cells of ``KERNELS``."""
    return [
        [
            f"{r['backend']}/{r['kernel']}", r["verdict"], percent(r["change"]),
            f"{100 * r['noise']:.1f} %", str(r["cases"]), *(str(r[name]) for name in VERDICTS),
            percent(r["worst"]), r["worst case"],
        ]
        for r in of_kernels.to_dict("records")
    ]  # fmt: skip


def sentence(a: str, b: str, table: pd.DataFrame, of_kernels: pd.DataFrame) -> str:
    """The one sentence: how B stands to A."""
    of_cases, of_all = (counted(list(each["verdict"])) for each in (table, of_kernels))
    said = f"of {len(table):,} cases that both timed, {of_cases}"
    return f"From {a} to {b}: {said}; of {len(of_kernels)} kernels, {of_all}."


def write(
    path: Path,
    names: tuple[str, str],
    table: pd.DataFrame,
    of_kernels: pd.DataFrame,
    notes: Sequence[str],
    tolerance: float,
) -> None:
    """Write the page. Raises ResultsError where that is impossible."""
    picture = draw(table, of_kernels, tolerance)
    assert picture.svg is not None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tcgemm.report", "."),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    text = environment.get_template("compare/page.html.j2").render(
        names=names,
        sentence=sentence(*names, table, of_kernels),
        notes=notes,
        picture=picture,
        svg=Markup(inline(picture.svg, "compare")),
        kernels=(KERNELS, kernel_rows(of_kernels)),
        cases=(CASES, case_rows(table)),
        verdicts=VERDICTS,
        light={variable(light): light for light in DARK},
        dark={variable(light): dark for light, dark in DARK.items()},
        style=Markup(environment.get_template("style.css").render()),
        script=Markup(environment.get_template("table.js.j2").render()),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise ResultsError(
            f"cannot write {path}: {error.strerror}; give another file with --out"
        ) from None
