"""Rate over size, for squares."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..derive import (
    BASELINE,
    Gpu,
    best,
    pairs_text,
)
from ..style import INK, MUTED, RC, backend_colour
from .picture import (
    WIDTH,
    Picture,
    number_text,
    of_panel,
    panels,
    save,
    spread,
)


def draw_squares(table: pd.DataFrame, gpu: Gpu) -> Picture:
    """(b) TFLOPS over size for squares: best rung per backend, cuBLAS, the peak on top."""
    title = "Rate over size"
    square = table[table["M"].eq(table["N"]) & table["N"].eq(table["K"]) & table["tflops"].notna()]
    if square.loc[square["M"].ge(256), "M"].nunique() >= 2:
        square = square[square["M"].ge(256)]
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
                for _, rung in of_panel(square, pair, layout).groupby(
                    ["backend", "kernel"], observed=True, sort=True
                ):
                    colour = backend_colour(str(rung["backend"].iloc[0]), backends)
                    ax.plot(
                        rung["M"], rung["paired_tflops"], color=colour, linewidth=0.7, alpha=0.35
                    )
                ends = []
                for backend, line in of_panel(leaders, pair, layout).groupby(
                    "backend", observed=True
                ):
                    colour = backend_colour(str(backend), backends)
                    sns.lineplot(
                        data=line, x="M", y="paired_tflops", ax=ax, color=colour, marker="o",
                        markersize=4.5, markeredgewidth=0, linewidth=2, errorbar=None,
                    )  # fmt: skip
                    last = line.sort_values("M").iloc[-1]
                    name = str(backend) if backend == BASELINE else f"{backend} {last['kernel']}"
                    ends.append((float(last["paired_tflops"]), float(last["M"]), name, colour))
                ys = spread([e[0] for e in ends], 0.065 * top, 0.03 * top, 0.97 * top)
                for y, (_, _, name, colour) in zip(ys, ends, strict=True):
                    ax.annotate(
                        name, (sizes[-1] * 1.12, y), color=colour, va="center", fontsize=8.5,
                        fontweight="bold", annotation_clip=False,
                    )  # fmt: skip
                ax.set_xscale("log", base=2)
                ax.set_xlim(sizes[0] / 1.1, sizes[-1] * 1.05)
                ax.xaxis.set_major_locator(FixedLocator(ticks))
                ax.xaxis.set_minor_locator(NullLocator())
                ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0f}"))
                ax.set_ylim(0, top)
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
        "Thick lines are cuBLAS and the fastest rung of each backend at each size (named by the "
        f"rung that leads at the largest), thin lines the other rungs; {edge}. All rates of a size "
        "stand on one clock, that of cuBLAS beside the fastest rungs: where a thick line runs "
        "below the grey one, that backend is slower than cuBLAS."
    )
    return Picture("squares", title, guide, svg)
