"""Products over several GPUs: ratios to NCCL and cuBLAS by M, and one call's time line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..style import INK, MUTED, RC, line_colour
from .picture import WIDTH, Picture, hover, save

RATIOS, TIME_LINE = "several_ratios", "several_time_line"
SLUGS = (RATIOS, TIME_LINE)
RATIOS_TITLE = "Over several GPUs: against NCCL and cuBLAS, by rows"
TIME_LINE_TITLE = "Over several GPUs: one call's time line"
LIMIT, TORCH = "limit", "torch's fused"


def draw_ratios(rows: Sequence[Mapping[str, Any]]) -> Picture:
    """A panel for each operation; a dot a layer, a line through the geometric means."""
    rows = [row for row in rows if row["ratio_nccl"]]
    if not rows:
        return Picture(RATIOS, RATIOS_TITLE, "Not drawn: nothing was timed.", None)
    ops = list(dict.fromkeys(row["op"] for row in rows))
    lines = _lines(rows)
    sizes = sorted({row["M"] for row in rows})
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        axes = figure.subplots(1, len(ops), squeeze=False, sharey=True)[0]
        for ax, op in zip(axes, ops, strict=True):
            ax.axhline(1, color=MUTED, linewidth=0.8)
            for number, (name, points) in enumerate(lines.items()):
                of = [(M, ratio, text) for each, M, ratio, text in points if each == op]
                if not of:
                    continue
                colour = INK if name == LIMIT else line_colour(number)
                means = [(M, geometric_mean([r for m, r, _ in of if m == M])) for M in sizes
                         if any(m == M for m, _, _ in of)]  # fmt: skip
                ax.plot(*zip(*means, strict=True), color=colour, label=name,
                        linestyle="--" if name == LIMIT else "-")  # fmt: skip
                if name != LIMIT:
                    dots = ax.scatter([m for m, _, _ in of], [r for _, r, _ in of], s=14,
                                      color=colour, alpha=0.6)  # fmt: skip
                    hover(dots, [text for _, _, text in of])
            ax.set_title(op)
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(FixedLocator(sizes))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0f}"))
            ax.set_xlabel("M, rows of all ranks")
        axes[0].set_ylabel("speed over NCCL + cuBLAS")
        axes[-1].legend(loc="best", frameon=False)
        svg = save(figure)
    guide = (
        "How many times as fast as NCCL and then cuBLAS, above 1 is faster: a dot a layer, a line "
        "through the geometric means. The dashed line is the limit: the longer of the product "
        "alone and the bare transfer, beside NCCL and cuBLAS."
    )
    return Picture(RATIOS, RATIOS_TITLE, guide, svg)


def _lines(
    rows: Sequence[Mapping[str, Any]],
) -> dict[str, list[tuple[str, float, float, str]]]:
    """Name of a line -> (operation, M, ratio, words)."""
    made: dict[str, list[tuple[str, float, float, str]]] = {}
    for row in rows:
        case = f"{row['model']} {row['layer']} {row['M']:.0f}x{row['N']:.0f}x{row['K']:.0f}"
        names = {row["contender"]: row["ratio_nccl"]}
        if row["contender"] == "planned":
            if row["torch_fused_ms"]:
                names[TORCH] = row["nccl_ms"] / row["torch_fused_ms"]
            if row["of_limit"]:
                names[LIMIT] = row["nccl_ms"] / (row["of_limit"] * row["ms_p50"])
        for name, ratio in names.items():
            text = f"{case}, {name}: {ratio:.2f}"
            made.setdefault(name, []).append((row["op"], row["M"], ratio, text))
    return made


def draw_time_line(stamps: Sequence[Mapping[str, str]]) -> Picture:
    """A row for each rank and kind of work, a bar for each piece of the last call of the file."""
    if not stamps:
        return Picture(
            TIME_LINE, TIME_LINE_TITLE,
            "Not drawn: no clock stamps were stored; the overlapped way takes them on a GPU.", None,
        )  # fmt: skip
    key = ("run", "op", "M", "N", "K", "dtype")
    last = tuple(stamps[-1][name] for name in key)
    of = [row for row in stamps if tuple(row[name] for name in key) == last]
    kinds = list(dict.fromkeys(row["what"] for row in of))
    ranks = sorted({int(row["rank"]) for row in of})
    places = [(rank, kind) for rank in ranks for kind in kinds]
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.26 * len(places)), layout="constrained")
        ax = figure.subplots()
        for y, (rank, kind) in enumerate(places):
            bars = [row for row in of if (int(row["rank"]), row["what"]) == (rank, kind)]
            spans = [
                (float(r["begin_us"]), float(r["end_us"]) - float(r["begin_us"])) for r in bars
            ]
            ax.broken_barh(spans, (y - 0.38, 0.76), color=line_colour(kinds.index(kind)))
        ax.set_yticks(range(len(places)), [f"rank {rank}: {kind}" for rank, kind in places])
        ax.set_ylim(len(places) - 0.4, -0.6)
        ax.grid(False, axis="y")
        ax.set_xlabel("microseconds since the call's first stamp")
        svg = save(figure)
    _, op, M, N, K, dtype = last
    guide = (
        f"One {op} of {M}×{N}×{K} {dtype}: what each rank did from when to when, by clock stamps "
        "of its GPU. Gaps in the bars of the product are waits for a piece that had not arrived."
    )
    return Picture(TIME_LINE, TIME_LINE_TITLE, guide, svg)
