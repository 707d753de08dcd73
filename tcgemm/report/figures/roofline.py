"""Rate over arithmetic intensity, below the roof of the data sheet."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ..derive import (
    DISPLAY,
    Gpu,
    best,
    pairs_text,
)
from ..shapes import at_shape, key_shapes
from ..style import INK, MUTED, PAPER, RC, backend_colour
from .picture import (
    WIDTH,
    Picture,
    hover,
    number_text,
    of_panel,
    panels,
    save,
)


def draw_roofline(table: pd.DataFrame, gpu: Gpu) -> Picture:
    """(d) Rate over arithmetic intensity, every kernel, below the roof of the data sheet."""
    title = "The roofline"
    timed = table[table["tflops"].notna() & table["intensity"].notna()]
    if timed.empty:
        return Picture("roofline", title, "Not drawn: nothing was timed.", None)
    shapes = key_shapes([timed])
    pairs, _ = panels(timed)
    backends = list(timed["backend"].cat.categories)
    leaders = best(timed)
    low_x, high_x = float(timed["intensity"].min()) / 1.5, float(timed["intensity"].max()) * 1.3
    low_y = float(timed["paired_tflops"].min()) / 1.6
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
        axes = figure.subplots(1, len(pairs), squeeze=False, sharey=True)[0]
        for ax, pair in zip(axes, pairs, strict=True):
            peak, bandwidth = gpu.peak_tflops.get(pair[0]), gpu.bandwidth_gb_s
            high_y = 1.5 * max(float(timed["paired_tflops"].max()), peak or 0)
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
                for rows, size, alpha in ((rest, 5, 0.35), (lead, 17, 1.0)):
                    if len(rows):
                        dots = ax.scatter(
                            rows["intensity"], rows["paired_tflops"], s=size, color=colour,
                            alpha=alpha, linewidths=0.4 if size > 5 else 0, edgecolors=PAPER,
                        )  # fmt: skip
                        hover(dots, [int(number) for number in rows.index])
            _name_shapes(ax, of_panel(leaders, pair), shapes, low_y)
            for place, backend in enumerate(backends):
                ax.annotate(
                    DISPLAY.get(str(backend), str(backend)), (0, 1), xycoords="axes fraction",
                    xytext=(6 + 52 * place, -14), textcoords="offset points", fontweight="bold",
                    color=backend_colour(backend, backends), fontsize=9,
                )  # fmt: skip
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
        "on a shape, small ones the other rungs; a dot under the pointer says which it is. "
    )
    if gpu.bandwidth_gb_s and any(gpu.peak_tflops.get(pair[0]) for pair in pairs):
        guide += (
            "The line is the roof of the data sheet: memory bandwidth on its slope, the dense peak "
            "on its flat part. A dot far below the slope waits on something other than memory."
        )
    else:
        guide += "No data sheet of this GPU is known, so there is no roof."
    return Picture("roofline", title, guide, svg)


def _name_shapes(
    ax: Axes, leaders: pd.DataFrame, shapes: Sequence[tuple[int, int, int]], floor: float
) -> None:
    """A dashed line at the intensity of each of a few shapes, with the shape's name along it."""
    for shape in shapes:
        rows = at_shape(leaders, shape)
        if rows.empty:
            continue
        x = float(rows["intensity"].iloc[0])
        top = float(rows["paired_tflops"].max())
        ax.plot([x, x], [floor, top], color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)), zorder=0.5)
        ax.annotate(
            str(rows["shape"].iloc[0]), (x, floor), xytext=(-2, 5), textcoords="offset points",
            ha="right", va="bottom", rotation=90, fontsize=7.5, color=MUTED,
        )  # fmt: skip
