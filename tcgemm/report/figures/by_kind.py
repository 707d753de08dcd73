"""The first picture: each backend against cuBLAS, by kind of product."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..answer import KINDS, Answer, Share
from ..derive import ordered_backends
from ..style import INK, MUTED, PAPER, RC, backend_colour
from .picture import Picture, hover, save

NARROW = 5.6
"""Width in inches: it has to be read on a telephone too."""

FIRST = "answer"
"""The slug of the picture that a report opens with."""

TITLE = "Each backend against cuBLAS, by kind of product"


def draw_answer(answers: Sequence[Answer], *, rows: bool = True) -> Picture:
    """Ratios to cuBLAS by kind, a dot a case and the geometric mean of each backend.

    Args:
        answers: a panel each, one below the other.
        rows: whether dots name rows of one folder's table, rather than say in words what they are.
    """
    answers = [answer for answer in answers if answer.shares]
    if not answers:
        return Picture(FIRST, TITLE, "Not drawn: nothing was timed beside cuBLAS.", None)
    lines = [sum(len(shares) + 1 for shares in answer.shares.values()) for answer in answers]
    every = pd.concat(
        [s.rows["ratio_p50"] for a in answers for of in a.shares.values() for s in of]
    )
    low, high = min(0.8, float(every.min()) / 1.05), max(1.6, float(every.max()) * 1.05)
    with mpl.rc_context(RC):
        figure = Figure(
            figsize=(NARROW, 0.55 + 0.26 * sum(lines) + 0.3 * len(lines)), layout="constrained"
        )
        axes = figure.subplots(len(answers), 1, squeeze=False, sharex=True, height_ratios=lines)
        for ax, answer in zip(axes[:, 0], answers, strict=True):
            _panel(ax, answer, rows)
            if len(answers) > 1:
                ax.set_title(answer.name, pad=14)
        last = axes[-1, 0]
        last.set_xscale("log")
        last.set_xlim(low, high)
        ticks = [t for t in (0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5) if low <= t <= high]
        last.xaxis.set_major_locator(FixedLocator(ticks))
        last.xaxis.set_minor_locator(NullLocator())
        last.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}×"))
        last.set_xlabel("rate over that of cuBLAS; right of 1 is faster")
        svg = save(figure)
    guide = (
        f"A dot is a case (a shape, dtype and layout) in float16 or bfloat16: the rate of "
        f"{answers[0].counted}, over the rate of cuBLAS beside it. The diamond and its number are "
        f"the geometric mean. {'; '.join(_said(kind) for kind in _kinds(answers))}."
    )
    alone = sum(answer.alone for answer in answers)
    if alone:
        guide += (
            f" {alone:,} dots are of products under 100 us, timed as launches of nothing but "
            "themselves: one starts while the one before it ends, which flatters kernels that "
            "start early. Among other kernels is what a program sees."
        )
    return Picture(FIRST, TITLE, guide, svg)


def _kinds(answers: Sequence[Answer]) -> list[str]:
    return [kind for kind in KINDS if any(kind in answer.shares for answer in answers)]


def _said(kind: str) -> str:
    return f"{kind[0].upper()}{kind[1:]}: {KINDS[kind][0]}"


def _panel(ax: Axes, answer: Answer, rows: bool) -> None:
    backends = ordered_backends(s.backend for of in answer.shares.values() for s in of)
    ax.axvline(1, color=MUTED, linewidth=1.4)
    ax.annotate(
        "cuBLAS", (1, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
        textcoords="offset points", ha="center", color=MUTED, fontsize=9, fontweight="bold",
    )  # fmt: skip
    y, names = 0.0, {}
    for kind, shares in answer.shares.items():
        counts = sorted({len(share.rows) for share in shares})
        cases = " or ".join(f"{count:,}" for count in counts)
        ax.annotate(
            f"{kind}, {cases} case{'s' * (counts[-1] > 1)}", (0, y - 0.1),
            xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=9, color=INK,
            fontweight="bold", bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1}, zorder=4,
        )  # fmt: skip
        for share in shares:
            y += 1
            names[y] = share.backend
            _line(ax, share, y, backend_colour(share.backend, backends), rows)
        y += 1
    ax.set_ylim(y - 0.45, -0.5)
    ax.yaxis.set_major_locator(FixedLocator(list(names)))
    ax.set_yticklabels([])
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)


def _line(ax: Axes, share: Share, y: float, colour: str, rows: bool) -> None:
    import seaborn as sns  # here, since it imports much of SciPy

    of = share.rows
    ratio = of["ratio_p50"].astype(float)
    heights = [y + 0.5 * ((0.618 * i) % 1 - 0.5) for i in range(len(of))]
    sns.scatterplot(x=ratio, y=heights, ax=ax, color=colour, s=15, alpha=0.35, linewidth=0)
    dots = ax.collections[-1]
    hover(
        dots, [int(i) for i in of.index] if rows else [_case_text(row) for _, row in of.iterrows()]
    )
    mean = ax.scatter([share.mean], [y], s=52, marker="D", color=colour, edgecolors=PAPER, zorder=4)
    hover(mean, [f"{share.text}: geometric mean of {len(of)} cases"])
    ax.annotate(
        share.text, (1, y), xycoords=("axes fraction", "data"), xytext=(5, 0),
        textcoords="offset points", va="center", color=colour, fontsize=10, fontweight="bold",
    )  # fmt: skip


def _case_text(row: pd.Series) -> str:
    """The row behind a dot, where no table of the page holds it."""
    words = [row["backend"], row["kernel"], row["shape"], row["dtype_in"], row["layout"]]
    return f"{' '.join(map(str, words))}: {row['ratio_p50']:.2f}× cuBLAS"
