"""Ratios to cuBLAS as heat maps: of language-model shapes, and of all shapes."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ..derive import (
    BASELINE,
    best,
    pairs_text,
    shape_text,
)
from ..models import WEIGHTS
from ..style import MUTED, PAPER, RC, backend_colour
from .picture import (
    WIDTH,
    Picture,
    hover,
    of_panel,
    panels,
    save,
)

Cell = tuple[float, str, int]
"""A ratio, the kernel that has it, and the number of its row."""


def _heat(ax: Axes, found: pd.DataFrame, named: bool = False) -> None:
    """Ratio cells on a symmetric log scale: blue is faster than cuBLAS, red slower.

    Args:
        found: a ``Cell`` or None in each place.
        named: whether a cell shows the kernel too.
    """
    import seaborn as sns  # here, since it imports much of SciPy

    values = found.map(lambda cell: cell[0] if cell else np.nan).astype(float)
    cells = values.map(_ratio_text)
    if named:
        cells = found.map(lambda cell: f"{cell[0]:.2f} {cell[1]}" if cell else "–")
    filled = np.log2(values.to_numpy(dtype=float))
    sns.heatmap(
        pd.DataFrame(filled, index=values.index, columns=values.columns),
        ax=ax, cmap="RdBu", norm=Normalize(-1, 1), annot=cells.to_numpy(), fmt="",
        annot_kws={"fontsize": 7.5}, cbar=False, linewidths=0.6, linecolor=PAPER,
        mask=np.isnan(filled),
    )  # fmt: skip
    flat = found.to_numpy().ravel().tolist()
    hover(ax.collections[0], [cell[2] if cell else "not timed" for cell in flat])
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


def _cell(number: object, row: pd.Series) -> Cell:
    return float(row["ratio_p50"]), str(row["kernel"]), int(str(number))


def _frame(grid: list[list[Cell | None]], index: list[str], columns: list[str]) -> pd.DataFrame:
    """Cells as a frame of objects: tuples and None stay what they are."""
    cells = np.empty((len(index), len(columns)), dtype=object)
    for i, row in enumerate(grid):
        for j, cell in enumerate(row):
            cells[i, j] = cell
    return pd.DataFrame(cells, index=index, columns=columns)


def _weight(N: int, K: int) -> str:
    """``Llama 3 8B: down, 4096 × 14336``; the sizes alone where no model is known."""
    name = WEIGHTS.get((N, K))
    return f"{name}, {N} × {K}" if name else f"{N} × {K}"


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
    index = [_weight(*side) for side in sides]
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
                    (int(r["N"]), int(r["K"]), int(r["M"])): _cell(number, r)
                    for number, r in of.iterrows()
                }
                grid = [[found.get((n, k, m)) for m in Ms] for n, k in sides]
                _heat(axes[i][j], _frame(grid, index, [str(m) for m in Ms]))
                axes[i][j].set_title(
                    f"{backend}, {layout}" if i == 0 else " ",
                    color=backend_colour(backend, backends),
                )
                axes[i][j].set_xlabel("M" if i == len(pairs) - 1 else "")
                axes[i][j].tick_params(axis="both", labelrotation=0)
                axes[i][j].tick_params(axis="x", labelsize=7.5)
            axes[i][0].set_ylabel(pairs_text(*pair), fontweight="bold")
        svg = save(figure)
    guide = (
        "Weights of language models down, by the first model that has them, with N × K; tokens M "
        "across; each cell is the time of cuBLAS over that "
        "of the backend's fastest rung. Blue and above 1 is faster than cuBLAS, red and below 1 "
        "slower, white equal; the scale is logarithmic and ends at 0.5 and 2. A dash: no rung of "
        "that backend was timed there."
    )
    return Picture("llm", title, guide, svg)


def draw_shapes(table: pd.DataFrame) -> Picture:
    """(c) Heat map of the best rung's ratio over all shapes that are no model's."""
    title = "All other shapes against cuBLAS"
    others = table[table["model"].eq("") | ~table["suites"].str.contains("llm")]
    leaders = best(others)
    leaders = leaders[leaders["backend"].ne(BASELINE) & leaders["ratio_p50"].notna()]
    if leaders.empty:
        return Picture("shapes", title, "Not drawn: nothing was timed beside cuBLAS.", None)
    timed = others[others["tflops"].notna()]
    shapes = sorted(
        {(int(m), int(n), int(k)) for m, n, k in timed[["M", "N", "K"]].to_numpy()},
        key=lambda s: (not s[0] == s[1] == s[2], s[0], s[1] * s[2], s),
    )
    pairs, layouts = panels(leaders)
    backends = [b for b in leaders["backend"].cat.categories if b in set(leaders["backend"])]
    found = {
        (str(r["backend"]), r["dtype_in"], r["dtype_out"], r["layout"], int(r["M"]), int(r["N"]),
         int(r["K"])): _cell(number, r)
        for number, r in leaders.iterrows()
    }  # fmt: skip
    columns = [(pair, layout) for pair in pairs for layout in layouts]
    names = [f"{pairs_text(*pair)}\n{layout}" for pair, layout in columns]
    index = [shape_text(*s) for s in shapes]
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.185 * len(shapes)), layout="constrained")
        axes = figure.subplots(1, len(backends), squeeze=False, sharey=True)[0]
        for ax, backend in zip(axes, backends, strict=True):
            grid = [[found.get((backend, *p, lay, *s)) for p, lay in columns] for s in shapes]
            _heat(ax, _frame(grid, index, names), len(columns) * len(backends) <= 4)
            ax.xaxis.tick_top()
            ax.set_title(backend, pad=6, color=backend_colour(backend, backends))
            ax.tick_params(axis="both", labelrotation=0)
        svg = save(figure)
    guide = (
        "Every other shape that was timed (M × N × K; cubes first, then by M): the time of cuBLAS "
        "over that of the backend's fastest rung, coloured as above. A dash: no rung of that "
        "backend was timed there; the tables below say why."
    )
    return Picture("shapes", title, guide, svg)
