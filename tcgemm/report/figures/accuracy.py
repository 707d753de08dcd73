"""Error over its bound, of every case."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ..derive import (
    pairs_text,
)
from ..style import ALARM, INK, MUTED, RC, backend_colour
from .picture import (
    WIDTH,
    Picture,
    hover,
    kernel_axis,
    kernels_of,
    number_text,
    of_panel,
    panels,
    rows_of_kernels,
    save,
)


def draw_accuracy(table: pd.DataFrame) -> Picture:
    """(e) Error over bound of every case, by kernel, log axis, with 1 marked."""
    title = "Accuracy: error over its bound"
    checked = table[table["error_ratio"].notna()]
    if checked.empty:
        return Picture("accuracy", title, "Not drawn: no kernel was checked.", None)
    pairs, _ = panels(checked)
    kernels = kernels_of(table)
    place, height = rows_of_kernels(kernels)
    backends = list(table["backend"].cat.categories)
    positive = checked.loc[checked["error_ratio"].gt(0), "error_ratio"]
    floor = min(max(float(positive.min()) if len(positive) else 0.1, 1e-6) / 1.6, 0.08)
    top = max(3.0, float(checked["error_ratio"].replace(np.inf, np.nan).max()) * 1.6)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.2 * height), layout="constrained")
        axes = figure.subplots(1, len(pairs), squeeze=False)[0]
        for column, (ax, pair) in enumerate(zip(axes, pairs, strict=True)):
            ax.set_xscale("log")
            ax.set_xlim(floor, top)
            ax.axvline(1, color=ALARM, linewidth=1.3)
            ax.axvspan(1, top, color=ALARM, alpha=0.07, linewidth=0)
            for (backend, kernel), y in place.items():
                of = of_panel(checked, pair)
                of = of[of["backend"].eq(backend) & of["kernel"].eq(kernel)]
                if of.empty:
                    ends = of_panel(table, pair)
                    ends = ends[ends["backend"].eq(backend) & ends["kernel"].eq(kernel)]
                    why = ", ".join(dict.fromkeys(ends["status"].replace("ok", "not checked")))
                    ax.text(
                        0.01, y, why or "not measured", va="center", color=MUTED, fontsize=8,
                        style="italic", transform=ax.get_yaxis_transform(),
                    )  # fmt: skip
                    continue
                colour = backend_colour(backend, backends)
                xs = of["error_ratio"].clip(floor * 1.05, top / 1.05)
                dots = ax.scatter(xs, [y] * len(of), s=14, color=colour, alpha=0.35, linewidths=0)
                hover(dots, [int(number) for number in of.index])
                wrong = of[of["status"].eq("wrong")]
                if len(wrong):
                    ax.scatter(
                        wrong["error_ratio"].clip(floor * 1.05, top / 1.05), [y] * len(wrong),
                        s=34, marker="x", color=ALARM, linewidths=1.6, zorder=4,
                    )  # fmt: skip
                worst = float(of.loc[of["status"].ne("wrong"), "error_ratio"].max())
                if worst > 0:
                    ax.plot([worst] * 2, [y - 0.33, y + 0.33], color=INK, linewidth=1.4)
                    ax.annotate(
                        number_text(worst), (worst, y), xytext=(4, 0), textcoords="offset points",
                        va="center", fontsize=8, color=INK,
                    )  # fmt: skip
            kernel_axis(ax, place, height, column == 0)
            ax.set_title(pairs_text(*pair))
            ax.set_xlabel("worst error of a case / bound")
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        svg = save(figure)
    guide = (
        "One dot a case: the largest error of any element over the bound for that element, against "
        "a float64 reference. Right of the red line at 1 a result is wrong (a cross). The dark "
        "tick and its number are the worst case that passed. With a 16-bit C, rounding the result "
        "once takes up most of the bound, so values just below 1 are what a good kernel has; a "
        "kernel that lies right of cuBLAS loses digits that cuBLAS keeps."
    )
    return Picture("accuracy", title, guide, svg)
