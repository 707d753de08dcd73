"""Rate over arithmetic intensity, below the roof of the data sheet."""

from __future__ import annotations

import math

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ..derive import (
    Gpu,
    at_shape,
    best,
    ladder_shape,
    pairs_text,
    shape_text,
)
from ..style import INK, MUTED, PAPER, RC, backend_colour
from .picture import (
    WIDTH,
    Picture,
    number_text,
    of_panel,
    panels,
    save,
    spread,
)


def draw_roofline(table: pd.DataFrame, gpu: Gpu) -> Picture:
    """(d) Rate over arithmetic intensity, every kernel, below the roof of the data sheet."""
    title = "The roofline"
    timed = table[table["tflops"].notna() & table["intensity"].notna()]
    if timed.empty:
        return Picture("roofline", title, "Not drawn: nothing was timed.", None)
    shape = ladder_shape([timed])
    pairs, layouts = panels(timed)
    backends = list(timed["backend"].cat.categories)
    leaders = best(timed)
    low_x, high_x = float(timed["intensity"].min()) / 1.5, float(timed["intensity"].max()) * 1.3
    low_y = float(timed["tflops"].min()) / 1.6
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
        axes = figure.subplots(1, len(pairs), squeeze=False, sharey=True)[0]
        for ax, pair in zip(axes, pairs, strict=True):
            peak, bandwidth = gpu.peak_tflops.get(pair[0]), gpu.bandwidth_gb_s
            high_y = 1.5 * max(float(timed["tflops"].max()), peak or 0)
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_xlim(low_x, high_x)
            ax.set_ylim(low_y, high_y)
            if peak and bandwidth:
                ridge = peak * 1e3 / bandwidth
                ax.plot(
                    [low_x, ridge, high_x], [low_x * bandwidth / 1e3, peak, peak],
                    color=INK, linewidth=1.6,
                )  # fmt: skip
                ax.annotate(
                    f"peak {number_text(peak)} TFLOPS, memory {number_text(bandwidth)} GB/s, "
                    f"ridge at {number_text(ridge)}",
                    (0, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points",
                    fontsize=8, color=MUTED,
                )  # fmt: skip
            of = of_panel(timed, pair)
            for backend in backends:
                colour = backend_colour(backend, backends)
                rest = of[of["backend"].eq(backend)]
                lead = of_panel(leaders, pair)
                lead = lead[lead["backend"].eq(backend)]
                ax.scatter(
                    rest["intensity"], rest["tflops"], s=5, color=colour, alpha=0.35, linewidths=0
                )
                ax.scatter(
                    lead["intensity"], lead["tflops"], s=17, color=colour, linewidths=0.4,
                    edgecolors=PAPER,
                )  # fmt: skip
            _name_column(ax, at_shape(of_panel(of, pair, layouts[0]), shape) if shape else of[:0],
                         backends, (low_y, high_y), high_x)  # fmt: skip
            ax.set_title(pairs_text(*pair) + "\n", pad=2)
            ax.set_xlabel("FLOP per byte of least traffic")
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda v, _: number_text(v)))
                axis.set_minor_locator(NullLocator())
        axes[0].set_ylabel("TFLOPS")
        svg = save(figure)
    guide = (
        "Every kernel on every shape: across, the operations per byte that must at least move; "
        "up, the rate reached, both logarithmic. Large dots are the fastest rung of each backend "
        "on a shape, small ones the other rungs. "
    )
    if gpu.bandwidth_gb_s and any(gpu.peak_tflops.get(pair[0]) for pair in pairs):
        guide += (
            "The line is the roof of the data sheet: memory bandwidth on its slope, the dense peak "
            "on its flat part. A dot far below the slope waits on something other than memory."
        )
    else:
        guide += "No data sheet of this GPU is known, so there is no roof."
    if shape:
        guide += (
            f" The names on the right belong to the dots at {shape_text(*shape)}, {layouts[0]}."
        )
    return Picture("roofline", title, guide, svg)


def _name_column(
    ax: Axes, rows: pd.DataFrame, backends: list[str], limits: tuple[float, float], edge: float
) -> None:
    """Names right of the panel at the height of their dots, moved apart where they would touch."""
    if rows.empty:
        return
    x = float(rows["intensity"].iloc[0])
    ax.axvline(x, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0.5)
    ax.annotate(
        str(rows["shape"].iloc[0]), (x, limits[0]), xytext=(-4, 5), textcoords="offset points",
        ha="right", fontsize=8, color=MUTED,
    )  # fmt: skip
    low, high = (math.log10(v) for v in limits)
    rows = rows.sort_values("tflops")
    at = [math.log10(v) for v in rows["tflops"]]
    ys = spread(at, (high - low) * 0.031, low + 0.02, high - 0.05 * (high - low))
    for y, (_, row) in zip(ys, rows.iterrows(), strict=True):
        backend = str(row["backend"])
        colour = backend_colour(backend, backends)
        ax.annotate(
            str(row["kernel"]), (edge, row["tflops"]), xytext=(edge * 1.5, 10**y),
            fontsize=7.5, va="center", color=colour, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7,
                        "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
        )  # fmt: skip
