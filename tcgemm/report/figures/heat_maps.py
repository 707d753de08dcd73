"""Ratios to cuBLAS as heat maps: of language-model shapes, and of all shapes."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ..derive import (
    BASELINE,
    best,
    pairs_text,
    shape_text,
)
from ..style import MUTED, PAPER, RC, backend_colour
from .picture import (
    WIDTH,
    Picture,
    of_panel,
    panels,
    save,
)


def _heat(ax: Axes, values: pd.DataFrame, cells: pd.DataFrame) -> None:
    """Ratio cells on a symmetric log scale: blue is faster than cuBLAS, red slower."""
    filled = np.log2(values.to_numpy(dtype=float))
    sns.heatmap(
        pd.DataFrame(filled, index=values.index, columns=values.columns),
        ax=ax, cmap="RdBu", norm=Normalize(-1, 1), annot=cells.to_numpy(), fmt="",
        annot_kws={"fontsize": 7.5}, cbar=False, linewidths=0.6, linecolor=PAPER,
        mask=np.isnan(filled),
    )  # fmt: skip
    for y, x in zip(*np.nonzero(np.isnan(filled)), strict=True):
        ax.text(
            x + 0.5, y + 0.5, cells.iloc[y, x], ha="center", va="center", fontsize=7.5, color=MUTED
        )
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_xlabel("")
    ax.set_ylabel("")
    ax.tick_params(length=0)


def _ratio_text(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:.2f}"


def draw_llm(table: pd.DataFrame) -> Picture:
    """(c) Heat map of the best rung's ratio, M by (N, K), over the llm suite."""
    title = "Language-model shapes against cuBLAS"
    named = table[table["suites"].str.split().map(lambda s: "llm" in s).astype(bool)]
    weights = set(zip(named["N"], named["K"], strict=True))
    # A shape may stand in the results under another suite that names it too.
    fits = np.array([pair in weights for pair in zip(table["N"], table["K"], strict=True)], bool)
    llm = table[table["M"].isin(set(named["M"])) & fits]
    leaders = best(llm)
    leaders = leaders[leaders["backend"].ne(BASELINE) & leaders["ratio_p50"].notna()]
    if leaders.empty:
        return Picture("llm", title, "Not drawn: no shape of the llm suite was timed.", None)
    pairs, layouts = panels(leaders)
    backends = [b for b in leaders["backend"].cat.categories if b in set(leaders["backend"])]
    sides = sorted(
        {(int(n), int(k)) for n, k in llm[["N", "K"]].to_numpy()}, key=lambda s: (s[0] * s[1], s)
    )
    Ms = sorted({int(m) for m in llm["M"]})
    index = [f"{n} × {k}" for n, k in sides]
    columns = [(layout, backend) for backend in backends for layout in layouts]
    with mpl.rc_context(RC):
        figure = Figure(
            figsize=(WIDTH, (0.75 + 0.24 * len(sides)) * len(pairs)), layout="constrained"
        )
        axes = figure.subplots(len(pairs), len(columns), squeeze=False, sharey=True)
        for i, pair in enumerate(pairs):
            for j, (layout, backend) in enumerate(columns):
                of = of_panel(leaders, pair, layout)
                of = of[of["backend"].eq(backend)]
                found = {
                    (int(r["N"]), int(r["K"]), int(r["M"])): float(r["ratio_p50"])
                    for _, r in of.iterrows()
                }
                values = pd.DataFrame(
                    [[found.get((n, k, m), np.nan) for m in Ms] for n, k in sides],
                    index=index, columns=[str(m) for m in Ms], dtype=float,
                )  # fmt: skip
                _heat(axes[i][j], values, values.map(_ratio_text))
                axes[i][j].set_title(
                    f"{backend}, {layout}" if i == 0 else " ",
                    color=backend_colour(backend, backends),
                )
                axes[i][j].set_xlabel("M" if i == len(pairs) - 1 else "")
                axes[i][j].tick_params(axis="both", labelrotation=0)
            axes[i][0].set_ylabel(f"{pairs_text(*pair)}: N × K")
        svg = save(figure)
    guide = (
        "Weight matrices N × K down, tokens M across; each cell is the time of cuBLAS over that "
        "of the backend's fastest rung. Blue and above 1 is faster than cuBLAS, red and below 1 "
        "slower, white equal; the scale is logarithmic and ends at 0.5 and 2. A dash: no rung of "
        "that backend was timed there."
    )
    return Picture("llm", title, guide, svg)


def draw_shapes(table: pd.DataFrame) -> Picture:
    """(c) Heat map of the best rung's ratio over all shapes."""
    title = "All shapes against cuBLAS"
    leaders = best(table)
    leaders = leaders[leaders["backend"].ne(BASELINE) & leaders["ratio_p50"].notna()]
    if leaders.empty:
        return Picture("shapes", title, "Not drawn: nothing was timed beside cuBLAS.", None)
    timed = table[table["tflops"].notna()]
    shapes = sorted(
        {(int(m), int(n), int(k)) for m, n, k in timed[["M", "N", "K"]].to_numpy()},
        key=lambda s: (not s[0] == s[1] == s[2], s[0], s[1] * s[2], s),
    )
    pairs, layouts = panels(leaders)
    backends = [b for b in leaders["backend"].cat.categories if b in set(leaders["backend"])]
    found = {
        (str(r["backend"]), r["dtype_in"], r["dtype_out"], r["layout"], int(r["M"]), int(r["N"]),
         int(r["K"])): (float(r["ratio_p50"]), str(r["kernel"]))
        for _, r in leaders.iterrows()
    }  # fmt: skip
    columns = [(pair, layout) for pair in pairs for layout in layouts]
    names = [f"{pairs_text(*pair)}\n{layout}" for pair, layout in columns]
    index = [shape_text(*s) for s in shapes]
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.185 * len(shapes)), layout="constrained")
        axes = figure.subplots(1, len(backends), squeeze=False, sharey=True)[0]
        for ax, backend in zip(axes, backends, strict=True):
            grid = [[found.get((backend, *p, lay, *s)) for p, lay in columns] for s in shapes]
            values = pd.DataFrame(
                [[c[0] if c else np.nan for c in row] for row in grid],
                index=index, columns=names, dtype=float,
            )  # fmt: skip
            cells = pd.DataFrame(
                [[f"{c[0]:.2f} {c[1]}" if c else "–" for c in row] for row in grid],
                index=index, columns=names,
            )  # fmt: skip
            if len(columns) * len(backends) > 4:
                cells = values.map(_ratio_text)
            _heat(ax, values, cells)
            ax.xaxis.tick_top()
            ax.set_title(backend, pad=6, color=backend_colour(backend, backends))
            ax.tick_params(axis="both", labelrotation=0)
        svg = save(figure)
    guide = (
        "Every shape that was timed (M × N × K; cubes first, then by M): the time of cuBLAS over "
        "that of the backend's fastest rung, coloured as above. A dash: no rung of that backend "
        "was timed there; the tables below say why."
    )
    return Picture("shapes", title, guide, svg)
