"""What the figures share: the picture, its SVG, panels by dtype and layout, labels set apart."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from ..style import DARK, backend_colour, variable

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


def panels(table: pd.DataFrame) -> tuple[list[tuple[str, str]], list[str]]:
    """The (dtype in, dtype out) pairs and layouts present, in order of appearance by name."""
    pairs = sorted({(i, o) for i, o in table[["dtype_in", "dtype_out"]].to_numpy()})
    return pairs, sorted(set(table["layout"]))


def of_panel(table: pd.DataFrame, pair: tuple[str, str], layout: str | None = None) -> pd.DataFrame:
    keep = table["dtype_in"].eq(pair[0]) & table["dtype_out"].eq(pair[1])
    return table[keep & (table["layout"].eq(layout) if layout else True)]


def kernels_of(table: pd.DataFrame) -> list[tuple[str, str]]:
    """(backend, kernel) in ladder order."""
    seen = table[["backend", "kernel"]].drop_duplicates().sort_values(["backend", "kernel"])
    return [(b, k) for b, k in seen.astype(str).to_numpy()]


def rows_of_kernels(kernels: list[tuple[str, str]]) -> tuple[dict[tuple[str, str], float], float]:
    """Vertical position of each kernel, backends set apart by one free row; and the height."""
    place, y, before = {}, 0.0, None
    for backend, kernel in kernels:
        if backend != before:
            y, before = y + 1.0, backend
        place[backend, kernel] = y
        y += 1
    return place, y


def kernel_axis(ax: Axes, place: dict[tuple[str, str], float], height: float, show: bool) -> None:
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


def number_text(value: float) -> str:
    """Three significant digits at most, thousands separated, no exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
