"""The figures: derived rows -> SVG, the same bytes every time.

Each ``draw_*`` returns a ``Picture``: the SVG, or None and the sentence that says why there is
nothing to draw. Small multiples by dtype and layout; one colour a backend (``style``).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .derive import (
    BASELINE,
    Gpu,
    at_shape,
    best,
    ladder_shape,
    ordered_backends,
    pairs_text,
    shape_text,
)
from .style import ALARM, DARK, GRID, INK, MUTED, PAPER, RC, backend_colour, variable

WIDTH = 10.0
"""Width of every figure, in inches of 72 points."""


@dataclass(frozen=True)
class Picture:
    """One figure of the report."""

    slug: str
    title: str
    guide: str
    """How to read it, in one paragraph; or why it is missing."""
    svg: str | None


def save(figure: Figure) -> str:
    """The figure as an SVG document without date or creator."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r"\d+\.\d{5,}", lambda m: f"{float(m[0]):.2f}", buffer.getvalue())
    return "\n".join(line.strip() for line in svg.splitlines()) + "\n"


def inline(svg: str, prefix: str) -> str:
    """The SVG as it goes into a page: colours as CSS variables, ids unique to the figure."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1 role="img"', svg, count=1)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = svg.replace("url(#", f"url(#{prefix}-").replace('href="#', f'href="#{prefix}-')
    for colour in DARK:
        svg = svg.replace(colour, f"var({variable(colour)})")
    return svg


def _panels(table: pd.DataFrame) -> tuple[list[tuple[str, str]], list[str]]:
    """The (dtype in, dtype out) pairs and layouts present, in order of appearance by name."""
    pairs = sorted({(i, o) for i, o in table[["dtype_in", "dtype_out"]].to_numpy()})
    return pairs, sorted(set(table["layout"]))


def _of(table: pd.DataFrame, pair: tuple[str, str], layout: str | None = None) -> pd.DataFrame:
    keep = table["dtype_in"].eq(pair[0]) & table["dtype_out"].eq(pair[1])
    return table[keep & (table["layout"].eq(layout) if layout else True)]


def _kernels(table: pd.DataFrame) -> list[tuple[str, str]]:
    """(backend, kernel) in ladder order."""
    seen = table[["backend", "kernel"]].drop_duplicates().sort_values(["backend", "kernel"])
    return [(b, k) for b, k in seen.astype(str).to_numpy()]


def _rows_of_kernels(kernels: list[tuple[str, str]]) -> tuple[dict[tuple[str, str], float], float]:
    """Vertical position of each kernel, backends set apart by one free row; and the height."""
    place, y, before = {}, 0.0, None
    for backend, kernel in kernels:
        if backend != before:
            y, before = y + 1.0, backend
        place[backend, kernel] = y
        y += 1
    return place, y


def _kernel_axis(ax: Axes, place: dict[tuple[str, str], float], height: float, show: bool) -> None:
    ax.set_ylim(height - 0.3, -0.5)
    ax.yaxis.set_major_locator(FixedLocator(list(place.values())))
    ax.set_yticklabels([kernel for _, kernel in place] if show else [])
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)
    backends = list(dict.fromkeys(b for b, _ in place))
    for backend in backends if show else []:
        top = min(y for (b, _), y in place.items() if b == backend)
        ax.annotate(
            backend,
            (0, top - 0.95),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontweight="bold",
            color=backend_colour(backend, backends),
            annotation_clip=False,
        )


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions nearest to ``values`` that lie at least ``gap`` apart within [low, high].

    Least squares by pooling adjacent violators; the gap shrinks where they would not fit.
    """
    if not values:
        return []
    gap = min(gap, (high - low) / max(len(values) - 1, 1))
    order = np.argsort(values, kind="stable")
    pools: list[list[float]] = []
    for rank, index in enumerate(order):
        pools.append([values[index] - rank * gap, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (x, n), (y, m) = pools[-2:]
            pools[-2:] = [[(x * n + y * m) / (n + m), n + m]]
    flat = [x for x, n in pools for _ in range(int(n))]
    last = high - (len(values) - 1) * gap
    placed = [0.0] * len(values)
    for rank, index in enumerate(order):
        placed[index] = min(max(flat[rank], low), last) + rank * gap
    return placed


def _number(value: float) -> str:
    """Three significant digits at most, thousands separated, no exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _ladder_panel(
    ax: Axes,
    table: pd.DataFrame,
    kernels: list[tuple[str, str]],
    *,
    labels: bool,
    top: float,
) -> None:
    """Bars of % of cuBLAS, one a rung, with the 20th to 80th percentile of the pairs."""
    place, height = _rows_of_kernels(kernels)
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
        ax.barh(y, value, height=0.68, color=colour, linewidth=0)
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
            f"{_number(row['tflops'])}",
            va="center",
            ha="right",
            fontsize=8.5,
            color=MUTED,
        )
    ax.text(top * 0.995, -0.1, "TFLOPS", ha="right", va="center", fontsize=8, color=MUTED)
    ax.set_xlim(0, top)
    ax.xaxis.set_major_locator(FixedLocator(list(range(0, int(top / 1.38) + 1, 25))))
    ax.set_xlabel("% of cuBLAS")
    _kernel_axis(ax, place, height, labels)


def _baseline_text(table: pd.DataFrame) -> str:
    rate = table.loc[table["backend"].eq(BASELINE), "paired_tflops"].dropna()
    return f"cuBLAS {_number(float(rate.iloc[0]))} TFLOPS" if len(rate) else "cuBLAS not timed"


def draw_ladder(tables: Sequence[tuple[str, pd.DataFrame]]) -> Picture:
    """(a) Both ladders rung by rung as % of cuBLAS.

    One GPU: a panel per dtype and layout. Several: a column per GPU, a row per dtype.
    """
    title = "The ladder: each rung as a share of cuBLAS"
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
    kernels = [k for k in _kernels(every) if k[0] != BASELINE]
    if not kernels:
        return Picture("ladder", title, "Not drawn: only cuBLAS was measured.", None)
    pairs, layouts = _panels(every[every["tflops"].notna()])
    grid: list[list[tuple[str, pd.DataFrame]]] = []
    for pair in pairs:
        name = pairs_text(*pair)
        if len(here) == 1:
            of = here[0][1]
            row = [(f"{name}, {layout}", _of(of, pair, layout)) for layout in layouts]
        else:
            row = [(f"{gpu}: {name}, {layouts[0]}", _of(t, pair, layouts[0])) for gpu, t in here]
        grid.append(row)
    columns = max(len(row) for row in grid)
    height = 0.9 + _rows_of_kernels(kernels)[1] * 0.2
    top = 1.42 * max(100.0, float(every["pct_of_cublas"].max(skipna=True)))
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, height * len(grid)), layout="constrained")
        axes = figure.subplots(len(grid), columns, squeeze=False)
        for i, row in enumerate(grid):
            for j, (name, t) in enumerate(row):
                _ladder_panel(axes[i][j], t, kernels, labels=j == 0, top=top)
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
        "last. A bar's length is the median of paired rounds against cuBLAS, the dark line at its "
        "end spans the 20th to the 80th percentile, and the grey line at 100 % is cuBLAS itself. "
        "On the right the rate as measured; the rate of cuBLAS is that beside the fastest rungs, "
        "and beside a slow one, which leaves the board cool, it is higher. A rung without a bar "
        "says why."
    )
    if len(here) > 1:
        guide += f" One column a GPU, layout {layouts[0]}."
    return Picture("ladder", title, guide, svg)


def draw_squares(table: pd.DataFrame, gpu: Gpu) -> Picture:
    """(b) TFLOPS over size for squares: best rung per backend, cuBLAS, the peak on top."""
    title = "Rate over size"
    square = table[table["M"].eq(table["N"]) & table["N"].eq(table["K"]) & table["tflops"].notna()]
    if square.loc[square["M"].ge(256), "M"].nunique() >= 2:
        square = square[square["M"].ge(256)]
    if square["M"].nunique() < 2:
        return Picture("squares", title, "Not drawn: it needs squares of two sizes.", None)
    pairs, layouts = _panels(square)
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
            top = peak or 1.15 * float(_of(square, pair)["paired_tflops"].max())
            for j, layout in enumerate(layouts):
                ax = axes[i][j]
                ax.set_title(f"{pairs_text(*pair)}, {layout}", pad=14 if peak else 6)
                for _, rung in _of(square, pair, layout).groupby(
                    ["backend", "kernel"], observed=True, sort=True
                ):
                    colour = backend_colour(str(rung["backend"].iloc[0]), backends)
                    ax.plot(
                        rung["M"], rung["paired_tflops"], color=colour, linewidth=0.7, alpha=0.35
                    )
                ends = []
                for backend, line in _of(leaders, pair, layout).groupby("backend", observed=True):
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
                        f"dense peak {_number(peak)} TFLOPS",
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
    pairs, layouts = _panels(leaders)
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
                of = _of(leaders, pair, layout)
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
    pairs, layouts = _panels(leaders)
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


def draw_roofline(table: pd.DataFrame, gpu: Gpu) -> Picture:
    """(d) Rate over arithmetic intensity, every kernel, below the roof of the data sheet."""
    title = "The roofline"
    timed = table[table["tflops"].notna() & table["intensity"].notna()]
    if timed.empty:
        return Picture("roofline", title, "Not drawn: nothing was timed.", None)
    shape = ladder_shape([timed])
    pairs, layouts = _panels(timed)
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
                    f"peak {_number(peak)} TFLOPS, memory {_number(bandwidth)} GB/s, "
                    f"ridge at {_number(ridge)}",
                    (0, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points",
                    fontsize=8, color=MUTED,
                )  # fmt: skip
            of = _of(timed, pair)
            for backend in backends:
                colour = backend_colour(backend, backends)
                rest = of[of["backend"].eq(backend)]
                lead = _of(leaders, pair)
                lead = lead[lead["backend"].eq(backend)]
                ax.scatter(
                    rest["intensity"], rest["tflops"], s=5, color=colour, alpha=0.35, linewidths=0
                )
                ax.scatter(
                    lead["intensity"], lead["tflops"], s=17, color=colour, linewidths=0.4,
                    edgecolors=PAPER,
                )  # fmt: skip
            _name_column(ax, at_shape(_of(of, pair, layouts[0]), shape) if shape else of[:0],
                         backends, (low_y, high_y), high_x)  # fmt: skip
            ax.set_title(pairs_text(*pair) + "\n", pad=2)
            ax.set_xlabel("FLOP per byte of least traffic")
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda v, _: _number(v)))
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


def draw_accuracy(table: pd.DataFrame) -> Picture:
    """(e) Error over bound of every case, by kernel, log axis, with 1 marked."""
    title = "Accuracy: error over its bound"
    checked = table[table["error_ratio"].notna()]
    if checked.empty:
        return Picture("accuracy", title, "Not drawn: no kernel was checked.", None)
    pairs, _ = _panels(checked)
    kernels = _kernels(table)
    place, height = _rows_of_kernels(kernels)
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
                of = _of(checked, pair)
                of = of[of["backend"].eq(backend) & of["kernel"].eq(kernel)]
                if of.empty:
                    ends = _of(table, pair)
                    ends = ends[ends["backend"].eq(backend) & ends["kernel"].eq(kernel)]
                    why = ", ".join(dict.fromkeys(ends["status"].replace("ok", "not checked")))
                    ax.text(
                        0.01, y, why or "not measured", va="center", color=MUTED, fontsize=8,
                        style="italic", transform=ax.get_yaxis_transform(),
                    )  # fmt: skip
                    continue
                colour = backend_colour(backend, backends)
                xs = of["error_ratio"].clip(floor * 1.05, top / 1.05)
                ax.scatter(xs, [y] * len(of), s=14, color=colour, alpha=0.35, linewidths=0)
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
                        _number(worst), (worst, y), xytext=(4, 0), textcoords="offset points",
                        va="center", fontsize=8, color=INK,
                    )  # fmt: skip
            _kernel_axis(ax, place, height, column == 0)
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


PUBLISHED_RUNGS = {
    "naive": "naive",
    "tiled": "tiled",
    "wmma": "wmma",
    "double_buffer": "wmma_double_buffered",
    "swizzled": "wmma_grouped",
}
"""Rung of the published table -> our CUDA rung of the same idea."""


def published() -> pd.DataFrame:
    """The published run times (milliseconds) by GPU and rung; ``source`` says whose they are."""
    with files(__package__).joinpath("published_runtimes.csv").open() as file:
        return pd.read_csv(file)


def _published_case(table: pd.DataFrame) -> pd.DataFrame:
    """Our matching rungs on one square, float16 where it was timed: 1024 cubed or the nearest."""
    ours = table[
        table["backend"].eq("cuda")
        & table["kernel"].isin(list(PUBLISHED_RUNGS.values()))
        & table["ms_p50"].notna()
        & table["M"].eq(table["N"])
        & table["N"].eq(table["K"])
    ]
    if ours.empty:
        return ours
    distance = ours["M"].map(lambda side: abs(math.log2(side) - 10))
    of = ours[distance.eq(distance.min())]
    half = of["dtype_in"].eq("float16") & of["dtype_out"].eq("float16")
    of = of[half] if half.any() else of
    first = of.sort_values(["dtype_in", "dtype_out", "layout", "M"], kind="stable").iloc[0]
    return of[(of[["dtype_in", "dtype_out", "layout", "M"]] == first[["dtype_in", "dtype_out",
              "layout", "M"]]).all(axis=1)]  # fmt: skip


def draw_published(tables: Sequence[tuple[str, pd.DataFrame]]) -> Picture:
    """(f) Run time by rung and GPU as published, with ours beside it."""
    theirs = published()
    rungs = list(PUBLISHED_RUNGS)
    source = str(theirs["source"].iloc[0])
    panels: dict[str, pd.DataFrame] = {str(g): of for g, of in theirs.groupby("gpu", sort=False)}
    ours: dict[str, pd.DataFrame] = {}
    said = []
    for name, table in tables:
        rows = _published_case(table)
        if rows.empty:
            continue
        panel = next((p for p in panels if _same_gpu(p, name)), name)
        panels.setdefault(panel, theirs[:0])
        ours[panel] = rows
        row = rows.iloc[0]
        size, pair = shape_text(row["M"], row["N"], row["K"]), (row["dtype_in"], row["dtype_out"])
        said.append(f"{name} at {size}, {pairs_text(*pair)}, {row['layout']}")
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True, sharex=True)[0]
        for ax, (panel, of) in zip(axes, panels.items(), strict=True):
            place = {rung: i for i, rung in enumerate(rungs)}
            of = of[of["kernel"].isin(rungs)]
            ys = [place[k] for k in of["kernel"]]
            shift = 0.18 if panel in ours else 0.0
            ax.set_xscale("log")
            if len(of):
                ax.scatter(
                    of["runtime_ms"], [y - shift for y in ys], s=26, facecolors=PAPER,
                    edgecolors=MUTED, linewidths=1.3, zorder=3,
                )  # fmt: skip
            for x, y in zip(of["runtime_ms"], ys, strict=True):
                ax.annotate(
                    f"{x:.2f}", (x, y - shift), xytext=(5, 0), textcoords="offset points",
                    va="center", fontsize=8, color=MUTED,
                )  # fmt: skip
            colour = backend_colour("cuda", [])
            for _, row in ours.get(panel, theirs[:0]).iterrows():
                rung = next(p for p, k in PUBLISHED_RUNGS.items() if k == str(row["kernel"]))
                at = place[rung] + shift
                ax.scatter([row["ms_p50"]], [at], s=26, color=colour, linewidths=0, zorder=3)
                ax.annotate(
                    f"{row['ms_p50']:.3f}", (row["ms_p50"], at), xytext=(5, 0),
                    textcoords="offset points", va="center", fontsize=8, color=colour,
                )  # fmt: skip
            ax.set_title(panel.removeprefix("NVIDIA ") + "\n", pad=2)
            legend = [("○ published", MUTED)] if len(of) else []
            legend += [("● measured here", colour)] if panel in ours else []
            for i, (text, ink) in enumerate(legend):
                ax.annotate(
                    text, (0, 1), xycoords="axes fraction", xytext=(58 * i, 3),
                    textcoords="offset points", fontsize=8, color=ink,
                )  # fmt: skip
            ax.set_ylim(len(rungs) - 0.4, -0.6)
            ax.yaxis.set_major_locator(FixedLocator(list(place.values())))
            ax.set_yticklabels([r.replace("_", " ") for r in rungs])
            ax.spines["left"].set_visible(False)
            ax.set_xlabel("ms")
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        low, high = axes[0].get_xlim()
        axes[0].set_xlim(low / 1.3, high * 3.2)
        svg = save(figure)
    guide = (
        f"Hollow: run times as published by {source}, for one problem size that a public judge "
        "keeps hidden. Filled: our CUDA rung of the same idea, measured here"
        + (f" ({'; '.join(said)})" if said else " (none was measured)")
        + ". The two sizes need not be the same, so compare how much each rung gains over the one "
        "before it, not the levels. Milliseconds, logarithmic."
    )
    return Picture("published", "Run time by rung and GPU, as published", guide, svg)


def _same_gpu(published_name: str, ours: str) -> bool:
    """Whether two spellings name one GPU: same model word, and not another board of that model."""
    words = re.split(r"[\s\-_]+", ours.upper())
    other_boards = {"NVL", "PCIE", "PG509"} - set(published_name.upper().split())
    return published_name.split()[1].upper() in words and not other_boards & set(words)


def draw_all(name: str, table: pd.DataFrame, gpu: Gpu | None) -> list[Picture]:
    """Every figure of one folder; of a folder without a GPU, accuracy alone."""
    if gpu is None:
        return [draw_accuracy(table)]
    return [
        draw_ladder([(name, table)]),
        draw_squares(table, gpu),
        draw_llm(table),
        draw_shapes(table),
        draw_roofline(table, gpu),
        draw_accuracy(table),
        draw_published([(name, table)]),
    ]


SLUGS = ("ladder", "squares", "llm", "shapes", "roofline", "accuracy", "published")
"""Every figure of results there can be, by file name."""

__all__ = ["GRID", "SLUGS", "Picture", "draw_all", "draw_ladder", "draw_published", "inline"]
