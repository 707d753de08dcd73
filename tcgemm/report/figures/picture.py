"""What the figures share: the picture, its SVG, panels by dtype and layout, labels set apart."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
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


def hover(artist: Artist, behind: Sequence[int] | Sequence[str]) -> None:
    """Say what is behind each mark of an artist, in the order in which it draws them.

    Args:
        artist: dots, bars or cells, none of them masked.
        behind: for each, the number of its row in the folder's table, which the page looks up, or
            the text itself.
    """
    setattr(artist, _BEHIND, list(behind))


_BEHIND = "_tcgemm_behind"


def save(figure: Figure) -> str:
    """The figure as an SVG document without date or creator."""
    told = figure.findobj(lambda artist: hasattr(artist, _BEHIND))
    for number, artist in enumerate(told):
        artist.set_gid(f"hover-{number}")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r"\d+\.\d{5,}", lambda m: f"{float(m[0]):.2f}", buffer.getvalue())
    for number, artist in enumerate(told):
        svg = _with_behind(svg, f"hover-{number}", getattr(artist, _BEHIND))
    return "\n".join(line.strip() for line in svg.splitlines()) + "\n"


def _with_behind(svg: str, gid: str, behind: Sequence[int | str]) -> str:
    """The SVG with what is behind each mark of the group of that id."""
    start = svg.index(f'<g id="{gid}">')
    depth, end = 0, start
    for tag in re.finditer(r"<g\b|</g>", svg[start:]):
        depth += 1 if tag[0] == "<g" else -1
        if not depth:
            end = start + tag.end()
            break
    group = svg[start:end]
    defined = group.rfind("</defs>") + 1
    kind = "use" if "<use " in group[defined:] else "path"
    marks = list(re.finditer(rf"<{kind} [^>]*/>", group[defined:]))
    if len(marks) != len(behind):
        raise ValueError(f"{len(marks)} marks are drawn and {len(behind)} are explained")
    pieces, at = [group[:defined]], 0
    for mark, what in zip(marks, behind, strict=True):
        pieces.append(group[defined:][at : mark.start()])
        at = mark.end()
        if isinstance(what, str):
            pieces.append(f"{mark[0][:-2]}><title>{escape(what)}</title></{kind}>")
        else:
            pieces.append(f'{mark[0][:-2]} data-row="{what}"/>')
    return svg[:start] + "".join(pieces) + group[defined:][at:] + svg[end:]


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


def rows_of_kernels(
    kernels: list[tuple[str, str]], specialists: Collection[tuple[str, str]] = ()
) -> tuple[dict[tuple[str, str], float], float]:
    """Vertical position of each kernel, and the height: backends, and within each of them the
    specialists behind the ladder, are set apart by one free row."""
    place: dict[tuple[str, str], float] = {}
    y, before = 0.0, None
    for backend in dict.fromkeys(backend for backend, _ in kernels):
        of = [each for each in kernels if each[0] == backend]
        for each in sorted(of, key=lambda each: each in specialists):
            group = (backend, each in specialists)
            if group != before:
                y, before = y + 1.0, group
            place[each] = y
            y += 1
    return place, y


def kernel_axis(
    ax: Axes,
    place: dict[tuple[str, str], float],
    height: float,
    show: bool,
    specialists: Collection[tuple[str, str]] = (),
) -> None:
    ax.set_ylim(height - 0.3, -0.5)
    ax.yaxis.set_major_locator(FixedLocator(list(place.values())))
    ax.set_yticklabels([kernel for _, kernel in place] if show else [])
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)
    groups: dict[tuple[str, bool], float] = {}
    for (backend, kernel), y in place.items():
        groups.setdefault((backend, (backend, kernel) in specialists), y)
    backends = list(dict.fromkeys(b for b, _ in place))
    for (backend, special), top in groups.items() if show else []:
        name = f"{backend}, specialists" if special else backend
        ax.annotate(
            f"{backend}, the ladder" if (backend, True) in groups and not special else name,
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
