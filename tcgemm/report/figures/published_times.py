"""Run times as others have published them, with ours beside."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from importlib.resources import files

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..derive import (
    pairs_text,
    shape_text,
)
from ..style import MUTED, PAPER, RC, backend_colour
from .picture import (
    WIDTH,
    Picture,
    save,
)

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
    with files(__package__.rpartition(".")[0]).joinpath("published_runtimes.csv").open() as file:
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
