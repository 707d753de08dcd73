"""Each rung of both ladders as a share of cuBLAS."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from ..derive import (
    BASELINE,
    ordered_backends,
    pairs_text,
    shape_text,
)
from ..shapes import at_shape, ladder_shape
from ..style import INK, MUTED, PAPER, RC, backend_colour
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


def _ladder_panel(
    ax: Axes,
    table: pd.DataFrame,
    kernels: list[tuple[str, str]],
    specialists: Collection[tuple[str, str]],
    *,
    labels: bool,
    top: float,
) -> None:
    """Bars of % of cuBLAS, one a rung, with the 20th to 80th percentile of the pairs."""
    place, height = rows_of_kernels(kernels, specialists)
    backends = ordered_backends([b for b, _ in kernels])
    ax.axvline(100, color=backend_colour(BASELINE, backends), linewidth=1.4)
    rows = {(str(r["backend"]), str(r["kernel"])): r for _, r in table.iterrows()}
    for (backend, kernel), y in place.items():
        row = rows.get((backend, kernel))
        if row is None or pd.isna(row["pct_of_cublas"]):
            why = "not measured" if row is None else row["status"]
            why = "no ratio" if why == "ok" else why
            ax.text(top * 0.01, y, why, va="center", color=MUTED, fontsize=8, style="italic")
            continue
        value = row["pct_of_cublas"]
        colour = backend_colour(backend, backends)
        bars = ax.barh(y, value, height=0.68, color=colour, linewidth=0)
        hover(bars[0], [_said(row)])
        low, high = 100 * row["ratio_p20"], 100 * row["ratio_p80"]
        if not (pd.isna(low) or pd.isna(high)):
            ax.plot([low, high], [y, y], color=INK, linewidth=1.1, solid_capstyle="butt")
        end = max(value, high if pd.notna(high) else value)
        ax.annotate(
            f"{value:.1f} %" if value >= 1 else f"{value:.2f} %",
            (end, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6},
        ).set_zorder(3)
        ax.text(
            top * 0.995,
            y,
            f"{number_text(row['paired_tflops'])}",
            va="center",
            ha="right",
            fontsize=8.5,
            color=MUTED,
        )
    ax.text(top * 0.995, -0.1, "TFLOPS", ha="right", va="center", fontsize=8, color=MUTED)
    ax.set_xlim(0, top)
    ax.xaxis.set_major_locator(FixedLocator(list(range(0, int(top / 1.38) + 1, 25))))
    ax.set_xlabel("% of cuBLAS")
    kernel_axis(ax, place, height, labels, specialists)


def _said(row: pd.Series) -> str:
    """The row behind a bar, in words."""
    said = f"{row['backend']}/{row['kernel']}: {row['pct_of_cublas']:.1f} % of cuBLAS"
    low, high = row["ratio_p20"], row["ratio_p80"]
    spread = (
        "" if pd.isna(low) else f" (20th to 80th percentile {100 * low:.1f} to {100 * high:.1f})"
    )
    return f"{said}{spread}, {number_text(row['paired_tflops'])} TFLOPS; {row['config']}"


def _baseline_text(table: pd.DataFrame) -> str:
    rate = table.loc[table["backend"].eq(BASELINE), "paired_tflops"].dropna()
    return f"cuBLAS {number_text(float(rate.iloc[0]))} TFLOPS" if len(rate) else "cuBLAS not timed"


def draw_ladder(tables: Sequence[tuple[str, pd.DataFrame]]) -> Picture:
    """(a) Both ladders rung by rung as % of cuBLAS.

    One GPU: a panel per dtype and layout. Several: a column per GPU, a row per dtype.
    """
    title = "The ladder and the specialists: each kernel as a share of cuBLAS"
    shape = ladder_shape([t for _, t in tables])
    if shape is None:
        return Picture("ladder", title, "Not drawn: no shape was timed on every GPU.", None)
    here = [(name, at_shape(t, shape)) for name, t in tables]
    every = pd.concat([t for _, t in here], ignore_index=True)
    every["backend"] = pd.Categorical(
        every["backend"].astype(str), ordered_backends(every["backend"]), ordered=True
    )
    order = list(dict.fromkeys(k for _, t in tables for k in t["kernel"].cat.categories))
    every["kernel"] = pd.Categorical(every["kernel"].astype(str), order, ordered=True)
    kernels = [k for k in kernels_of(every) if k[0] != BASELINE]
    if not kernels:
        return Picture("ladder", title, "Not drawn: only cuBLAS was measured.", None)
    of_shapes = every[every["kind"].eq("shape")]
    specialists = set(
        zip(of_shapes["backend"].astype(str), of_shapes["kernel"].astype(str), strict=True)
    )
    pairs, layouts = panels(every[every["tflops"].notna()])
    grid: list[list[tuple[str, pd.DataFrame]]] = []
    for pair in pairs:
        name = pairs_text(*pair)
        if len(here) == 1:
            of = here[0][1]
            row = [(f"{name}, {layout}", of_panel(of, pair, layout)) for layout in layouts]
        else:
            row = [
                (f"{gpu}: {name}, {layouts[0]}", of_panel(t, pair, layouts[0])) for gpu, t in here
            ]
        grid.append(row)
    columns = max(len(row) for row in grid)
    height = 0.9 + rows_of_kernels(kernels, specialists)[1] * 0.2
    top = 1.42 * max(100.0, float(every["pct_of_cublas"].max(skipna=True)))
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, height * len(grid)), layout="constrained")
        axes = figure.subplots(len(grid), columns, squeeze=False)
        for i, row in enumerate(grid):
            for j, (name, t) in enumerate(row):
                _ladder_panel(axes[i][j], t, kernels, specialists, labels=j == 0, top=top)
                axes[i][j].set_title(f"{name}\n", pad=2)
                axes[i][j].annotate(
                    f"100 % is {_baseline_text(t)}",
                    (0, 1),
                    xycoords="axes fraction",
                    xytext=(0, 3),
                    textcoords="offset points",
                    color=MUTED,
                    fontsize=8.5,
                )
        svg = save(figure)
    guide = (
        f"Every rung of both ladders at {shape_text(*shape)} (M, N, K), from the first to the "
        "last, and the specialists. A bar's length is the median of paired rounds against cuBLAS, "
        "the dark line at its end spans the 20th to the 80th percentile, and the grey line at "
        "100 % is cuBLAS itself. "
        "On the right the rate on one clock, that of cuBLAS beside the fastest rungs: the board "
        "runs cooler and faster beside a slow one. A rung without a bar says why. The specialists "
        "below each ladder are for shapes of their own, and this may be none of them."
    )
    if len(here) > 1:
        guide += f" One column a GPU, layout {layouts[0]}."
    return Picture("ladder", title, guide, svg)
