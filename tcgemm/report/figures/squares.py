"""Rate over size, for squares: the backends side by side, and then rung by rung."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..derive import (
    BASELINE,
    DISPLAY,
    Gpu,
    best,
    pairs_text,
)
from ..style import GRID, INK, MUTED, RC, backend_colour
from .picture import (
    WIDTH,
    Picture,
    hover,
    kernels_of,
    number_text,
    of_panel,
    panels,
    save,
    spread,
)


def _squares(table: pd.DataFrame) -> pd.DataFrame:
    """The cubes that were timed, from 256 on where there are two such sizes."""
    square = table[table["M"].eq(table["N"]) & table["N"].eq(table["K"]) & table["tflops"].notna()]
    if square.loc[square["M"].ge(256), "M"].nunique() >= 2:
        square = square[square["M"].ge(256)]
    return square


def _size_axis(ax: Axes, sizes: list[int], ticks: list[int], top: float) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xlim(sizes[0] / 1.1, sizes[-1] * 1.1)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0f}"))
    ax.set_ylim(0, top)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: number_text(v)))


def draw_squares(table: pd.DataFrame, gpu: Gpu) -> Picture:
    """(b) TFLOPS over size for squares: best kernel per backend, cuBLAS, the peak on top."""
    import seaborn as sns  # here, since it imports much of SciPy

    title = "Rate over size"
    square = _squares(table)
    if square["M"].nunique() < 2:
        return Picture("squares", title, "Not drawn: it needs squares of two sizes.", None)
    pairs, layouts = panels(square)
    leaders = best(square)
    backends = list(square["backend"].cat.categories)
    sizes = sorted({int(s) for s in square["M"]})
    ticks = [s for s in sizes if s & (s - 1) == 0] or sizes
    with mpl.rc_context(RC):
        figure = Figure(
            figsize=(WIDTH, (3.3 if len(layouts) > 1 else 4.2) * len(pairs)), layout="constrained"
        )
        axes = figure.subplots(len(pairs), len(layouts), squeeze=False, sharex=True)
        for i, pair in enumerate(pairs):
            peak = gpu.peak_tflops.get(pair[0])
            top = peak or 1.15 * float(of_panel(square, pair)["paired_tflops"].max())
            for j, layout in enumerate(layouts):
                ax = axes[i][j]
                ax.set_title(f"{pairs_text(*pair)}, {layout}", pad=14 if peak else 6)
                ends = []
                for backend, line in of_panel(leaders, pair, layout).groupby(
                    "backend", observed=True
                ):
                    line = line.sort_values("M")
                    colour = backend_colour(str(backend), backends)
                    sns.lineplot(
                        data=line, x="M", y="paired_tflops", ax=ax, color=colour, linewidth=2,
                        errorbar=None,
                    )  # fmt: skip
                    dots = ax.scatter(
                        line["M"], line["paired_tflops"], s=20, color=colour, linewidths=0, zorder=3
                    )
                    hover(dots, [int(k) for k in line.index])
                    last = line.iloc[-1]
                    name = DISPLAY.get(str(backend), str(backend))
                    ends.append((float(last["paired_tflops"]), float(last["M"]), name, colour))
                ys = spread([e[0] for e in ends], 0.065 * top, 0.03 * top, 0.97 * top)
                for y, (_, _, name, colour) in zip(ys, ends, strict=True):
                    ax.annotate(
                        name, (sizes[-1] * 1.18, y), color=colour, va="center", fontsize=8.5,
                        fontweight="bold", annotation_clip=False,
                    )  # fmt: skip
                _size_axis(ax, sizes, ticks, top)
                ax.set_xlabel("M = N = K" if i == len(pairs) - 1 else "")
                ax.set_ylabel("TFLOPS" if j == 0 else "")
                if peak:
                    ax.spines["top"].set_visible(True)
                    ax.spines["top"].set_color(INK)
                    ax.spines["top"].set_linewidth(1.6)
                    ax.annotate(
                        f"dense peak {number_text(peak)} TFLOPS",
                        (1, 1), xycoords="axes fraction", xytext=(0, 3),
                        textcoords="offset points", ha="right", fontsize=8.5, color=MUTED,
                    )  # fmt: skip
        svg = save(figure)
    peaks = any(gpu.peak_tflops.get(pair[0]) for pair in pairs)
    edge = (
        "the upper edge of each panel is the dense peak of the data sheet, so height is % of peak"
        if peaks
        else "no dense peak is known for this GPU, so the upper edge has no meaning"
    )
    guide = (
        f"cuBLAS and the fastest kernel of each backend at each size; {edge}. All rates of a size "
        "stand on one clock, that of cuBLAS beside the fastest kernels: where a line runs below "
        "the grey one, that backend is slower than cuBLAS."
    )
    return Picture("squares", title, guide, svg)


COLUMNS = 6
"""Small panels beside each other."""


def draw_rungs(table: pd.DataFrame, gpu: Gpu) -> Picture:
    """Rate over size of every kernel in a small panel of its own, before cuBLAS in grey."""
    import seaborn as sns  # here, since it imports much of SciPy

    title = "Rate over size, kernel by kernel"
    square = _squares(table)
    square = square[square["paired_tflops"].notna()]
    if square["M"].nunique() < 2:
        return Picture("rungs", title, "Not drawn: it needs squares of two sizes.", None)
    pairs, layouts = panels(square)
    pair = next((p for p in pairs if p[0] == "bfloat16"), pairs[0])
    square = of_panel(square, pair, layouts[0])
    kernels = [each for each in kernels_of(square) if each[0] != BASELINE]
    base = square[square["backend"].eq(BASELINE)].sort_values("M")
    if not kernels:
        return Picture("rungs", title, "Not drawn: only cuBLAS was timed.", None)
    backends = list(square["backend"].cat.categories)
    sizes = sorted({int(s) for s in square["M"]})
    ticks = [s for s in sizes if s in (1024, 4096, 16384)] or [sizes[0], sizes[-1]]
    top = gpu.peak_tflops.get(pair[0]) or 1.15 * float(square["paired_tflops"].max())
    rows = -(-len(kernels) // COLUMNS)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 1.35 * rows + 0.3), layout="constrained")
        axes = figure.subplots(rows, COLUMNS, squeeze=False, sharex=True, sharey=True)
        for ax in axes.flat[len(kernels) :]:
            ax.set_visible(False)
        for ax, (backend, kernel) in zip(axes.flat, kernels, strict=False):
            of = square[square["backend"].eq(backend) & square["kernel"].eq(kernel)]
            of = of.sort_values("M")
            colour = backend_colour(backend, backends)
            ax.fill_between(base["M"], base["paired_tflops"], color=GRID, linewidth=0)
            sns.lineplot(
                data=of, x="M", y="paired_tflops", ax=ax, color=colour, linewidth=1.8, errorbar=None
            )
            dots = ax.scatter(of["M"], of["paired_tflops"], s=14, color=colour, linewidths=0)
            hover(dots, [int(k) for k in of.index])
            ax.set_title(kernel, color=colour, fontsize=8.5 if len(kernel) < 18 else 7.2, pad=3)
            _size_axis(ax, sizes, ticks, top)
            ax.set_xlabel("")
            ax.set_ylabel("")
        figure.supylabel("TFLOPS", fontsize=9, color=INK)
        svg = save(figure)
    names = " and ".join(DISPLAY.get(b, b) for b in dict.fromkeys(b for b, _ in kernels))
    guide = (
        f"Every kernel of {names} on cubes in {pairs_text(*pair)}, {layouts[0]}, in ladder order, "
        "a panel each; the grey hill behind is cuBLAS, on the same clock."
    )
    return Picture("rungs", title, guide, svg)
