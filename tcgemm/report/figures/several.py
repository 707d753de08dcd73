"""Products over several GPUs: ratios to NCCL and cuBLAS by M, and time lines of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ...dist.options import ALL_GATHER, OPS
from ..style import INK, MUTED, RC, backend_colour, line_colour
from .picture import WIDTH, Picture, hover, save, spread

RATIOS = "several_ratios"
TIME_LINES = {op: f"several_time_line_{op}" for op in OPS}
SLUGS = (RATIOS, *TIME_LINES.values())
RATIOS_TITLE = "Over several GPUs: against NCCL and cuBLAS, by rows"
KINDS = ("enter", "copy", "wait", "tiles", "flags")
"""Of work in a time line, from top to bottom."""
MEANINGS = {
    "enter": "tells the peers of calls that have ended here, and waits until theirs have",
    "copy": "rows on their way to the peers",
    "wait": "the longest of a block for a piece, to the moment at which it saw the flag",
    "tiles": "from the first block that could begin with a piece until its last tile was stored",
    "flags": "from there until its last flag was set",
}
SEEN_US = 320.0
"""The longest call that is drawn, where there is a shorter one: a kernel of a warp, about a
microsecond, is then as wide as a line."""
PLANNED, LIMIT, TORCH = "planned", "limit", "torch's fused"
OURS = ("triton", "cuda")


def draw_ratios(rows: Sequence[Mapping[str, Any]]) -> Picture:
    """A panel for each operation; a dot a layer, a line through the geometric means."""
    rows = [row for row in rows if row["ratio_nccl"]]
    if not rows:
        return Picture(RATIOS, RATIOS_TITLE, "Not drawn: nothing was timed.", None)
    ops = list(dict.fromkeys(row["op"] for row in rows))
    lines = _lines(rows)
    colours = _colours(list(lines))
    sizes = sorted({row["M"] for row in rows})
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        axes = figure.subplots(1, len(ops), squeeze=False, sharey=True)[0]
        named = []
        for ax, op in zip(axes, ops, strict=True):
            ax.axhline(1, color=MUTED, linewidth=0.8)
            ends = []
            for name, points in lines.items():
                of = [(M, ratio, text) for each, M, ratio, text in points if each == op]
                if not of:
                    continue
                means = [(M, geometric_mean([r for m, r, _ in of if m == M])) for M in sizes
                         if any(m == M for m, _, _ in of)]  # fmt: skip
                ax.plot(*zip(*means, strict=True), color=colours[name], zorder=2.0,
                        linewidth=4.5 if name == PLANNED else 1.5,
                        linestyle="--" if name == LIMIT else "-")  # fmt: skip
                ends.append((means[-1][1], name))
                if name != LIMIT:
                    dots = ax.scatter([m for m, _, _ in of], [r for _, r, _ in of], s=14,
                                      color=colours[name], alpha=0.6, linewidths=0)  # fmt: skip
                    hover(dots, [text for _, _, text in of])
            named.append(ends)
            ax.set_title(op)
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(FixedLocator(sizes))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
            ax.set_xlabel("M, rows of all ranks")
        axes[0].set_ylabel("speed over NCCL + cuBLAS")
        low, high = axes[0].get_ylim()
        for ax, ends in zip(axes, named, strict=True):
            ys = spread([y for y, _ in ends], 0.065 * (high - low), low, high)
            for y, (_, name) in zip(ys, ends, strict=True):
                ax.annotate(
                    name, (1, y), xycoords=("axes fraction", "data"), xytext=(5, 0),
                    textcoords="offset points", color=colours[name], va="center", fontsize=8.5,
                    fontweight="bold", annotation_clip=False,
                )  # fmt: skip
        svg = save(figure)
    guide = (
        "How many times as fast as NCCL and then cuBLAS, above 1 is faster: a dot a layer, a line "
        "through the geometric means. The dashed line is the limit, a mean too: the longer of the "
        "product alone and the bare transfer, beside NCCL and cuBLAS. “planned” is what a call "
        "does unasked, by the plan's model of time: one of the other ways."
    )
    return Picture(RATIOS, RATIOS_TITLE, guide, svg)


def _colours(names: Sequence[str]) -> dict[str, str]:
    """Name of a line -> its colour: the languages have their own, and no two lines share one."""
    fixed = {LIMIT: INK} | {
        name: backend_colour(name.partition("/")[2], [])
        for name in names
        if name.partition("/")[2] in OURS
    }
    others = [name for name in names if name not in fixed]
    return fixed | {name: line_colour(number) for number, name in enumerate(others)}


def _lines(
    rows: Sequence[Mapping[str, Any]],
) -> dict[str, list[tuple[str, float, float, str]]]:
    """Name of a line -> (operation, M, ratio, words)."""
    made: dict[str, list[tuple[str, float, float, str]]] = {}
    for row in rows:
        case = f"{row['model']} {row['layer']} {row['M']:.0f}x{row['N']:.0f}x{row['K']:.0f}"
        names = {row["contender"]: row["ratio_nccl"]}
        if row["contender"] == PLANNED:
            if row["torch_fused_ms"]:
                names[TORCH] = row["nccl_ms"] / row["torch_fused_ms"]
            if row["of_limit"]:
                names[LIMIT] = row["nccl_ms"] / (row["of_limit"] * row["ms_p50"])
        for name, ratio in names.items():
            text = f"{case}, {name}: {ratio:.2f}"
            made.setdefault(name, []).append((row["op"], row["M"], ratio, text))
    return made


def draw_time_line(op: str, stamps: Sequence[Mapping[str, str]]) -> Picture:
    """Of the last run's longest call in which single kernels are seen: a panel for each contender,
    in it a row for each rank and kind of work, a bar for each piece."""
    slug, title = TIME_LINES[op], f"Over several GPUs: the time line of one {op}"
    stamps = [row for row in stamps if row["op"] == op]
    calls: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in stamps:
        if row["run"] == stamps[-1]["run"]:
            case = tuple(row[name] for name in ("M", "N", "K", "dtype"))
            calls.setdefault(case, []).append(row)
    ends = {case: max(float(row["end_us"]) for row in rows) for case, rows in calls.items()}
    drawn = max((end for end in ends.values() if end <= SEEN_US), default=min(ends.values()))
    (M, N, K, dtype), of = next(each for each in calls.items() if ends[each[0]] == drawn)
    panels = list(dict.fromkeys(row["contender"] for row in of))
    ranks = sorted({int(row["rank"]) for row in of})
    kinds = [kind for kind in KINDS if any(row["what"] == kind for row in of)]
    places = [(rank, kind) for rank in ranks for kind in kinds]
    with mpl.rc_context(RC):
        height = 0.7 + len(panels) * (0.5 + 0.2 * len(places))
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for ax, contender in zip(axes, panels, strict=True):
            for y, (rank, kind) in enumerate(places):
                bars = [
                    (float(row["begin_us"]), float(row["end_us"]) - float(row["begin_us"]))
                    for row in of
                    if (row["contender"], int(row["rank"]), row["what"]) == (contender, rank, kind)
                ]
                colour = line_colour(KINDS.index(kind))
                # A white edge parts neighbours, and would hide what is as narrow as itself.
                edges = ["white" if width > drawn / 100 else colour for _, width in bars]
                ax.broken_barh(
                    bars, (y - 0.38, 0.76), color=colour, edgecolor=edges or "white", linewidth=0.4
                )
            ax.set_yticks(range(len(places)), [f"rank {rank}: {kind}" for rank, kind in places])
            ax.set_ylim(len(places) - 0.4, -0.6)
            ax.grid(False, axis="y")
            ax.set_title(contender)
        axes[-1].set_xlabel("microseconds since the first rank began")
        svg = save(figure)
    guide = (
        f"{M}×{N}×{K} {dtype}: what each rank did from when to when, by the clocks of its GPU, "
        "which agree within a few microseconds. "
        + "; ".join(f"{kind}: {MEANINGS[kind]}" for kind in kinds)
        + "."
    )
    if op != ALL_GATHER:
        guide += " Copies of partial sums are not drawn, since each waits for its tiles."
    return Picture(slug, title, guide, svg)
