"""What the simulator counted of the CUDA ladder, and of the order of tiles: table and figure.

A folder may hold ``simulated.json``, written by ``tcgemm simulate ladder --out DIR``: counts of
what a kernel does, never a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from .. import gpus
from ..bench.store import SIMULATED
from ..errors import ResultsError
from .figures import WIDTH, Picture, save, spread
from .rows import check_depth, printable_facts
from .style import MUTED, RC, backend_colour, line_colour

RIDGES = (
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA T4",
    "NVIDIA H200",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA B200",
)
"""Boards whose ridge points stand in the figure: those of the published run times."""

TITLE = "What the CUDA rungs do, counted"
SLUG = "counts"
"""The figure's file name."""


def read_counts(folder: Path) -> dict[str, list[dict[str, Any]]] | None:
    """``simulated.json`` of a results folder; None where there is none.

    Raises ResultsError where it is not what ``tcgemm simulate ladder --out`` writes.
    """
    path = folder / SIMULATED
    if not path.is_file():
        return None
    try:
        counts = json.loads(path.read_text(encoding="utf-8"))
        check_depth(path, counts)
        counts = printable_facts(counts)
        counted = [row for row in counts["ladder"] if not row["refused"]]
        orders = list(counts["orders"])
        _check_counts(counted, orders)
        return {"ladder": counted, "orders": orders}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, ResultsError):
            raise
        raise ResultsError(
            f"{path} is not what 'tcgemm simulate ladder --out {folder}' writes ({error!r}): "
            "write it again, or remove it"
        ) from None


def _check_counts(ladder: list[dict[str, Any]], orders: list[dict[str, Any]]) -> None:
    """Raise ValueError where a count is none, KeyError where one is missing."""
    if not ladder or not orders:
        raise ValueError("it counts no rung, or no order of tiles")
    whole, real = (int,), (int, float)
    of_ladder: dict[str, tuple[type, ...]] = {
        **dict.fromkeys(("kernel", "dtype_in", "layout"), (str,)),
        **dict.fromkeys(("M", "N", "K", "shared_wavefronts", "bank_conflicts"), whole),
        **dict.fromkeys(("flop_per_byte", "sectors_per_load_request", "barriers_per_block"), real),
        "l2_hit_rate": (*real, type(None)),
    }
    of_orders: dict[str, tuple[type, ...]] = {
        "gpu": (str,),
        **dict.fromkeys(("M", "N", "K", "BLOCK_M", "BLOCK_N"), whole),
        "GROUP_M": (int, type(None)),
        "l2_hit_rate": real,
    }
    counts: list[tuple[Any, tuple[type, ...]]] = [
        *((row[name], types) for row in ladder for name, types in of_ladder.items()),
        *((row[name], types) for row in orders for name, types in of_orders.items()),
        *((count, whole) for row in ladder for count in row["mma"].values()),
    ]
    for value, types in counts:
        in_range = not isinstance(value, (int, float)) or 0 <= value < 2**63
        if not isinstance(value, types) or not in_range:
            raise ValueError(f"{value!r} is no count")


def counts_table(counts: dict[str, list[dict[str, Any]]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a rung a line."""
    header = [
        *("kernel", "FLOP per byte loaded", "sectors per load request", "bank conflicts"),
        *("barriers per block", "tensor-core instructions", "L2 hit rate (model)"),
    ]
    rows = []
    for row in counts["ladder"]:
        mma = ", ".join(f"{n:,} {kind}" for kind, n in row["mma"].items()) or "none"
        rows.append(
            [
                row["kernel"],
                f"{row['flop_per_byte']:.3g}",
                _or_dash(row["sectors_per_load_request"] or None, "{:.3g}"),
                _or_dash(_conflict_share(row), "{:.0%}"),
                f"{row['barriers_per_block']:.3g}",
                mma,
                _or_dash(row["l2_hit_rate"], "{:.0%}"),
            ]
        )
    return header, rows


def draw_counts(counts: dict[str, list[dict[str, Any]]]) -> Picture:
    """(g) FLOP per byte against ridge points, sectors, bank conflicts, and the L2 over orders."""
    ladder, orders = counts["ladder"], counts["orders"]
    names = [row["kernel"] for row in ladder]
    boards = map(gpus.lookup, RIDGES)
    ridges = {board.name: ridge for board in boards if (ridge := board.ridge("float16"))}
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 2.2 + 0.36 * len(names)), layout="constrained")
        axes = figure.subplots(2, 2)
        flop_axes = axes[0][0]
        _bars(flop_axes, names, [row["flop_per_byte"] for row in ladder], "{:.3g}")
        flop_axes.set_title("FLOP per byte loaded from global memory")
        flop_axes.set_xscale("log")
        flops = [row["flop_per_byte"] for row in ladder if row["flop_per_byte"] > 0]
        flop_axes.set_xlim(
            min(0.3, 0.5 * min(flops, default=1)), max(900, 5 * max(flops, default=1))
        )
        flop_axes.xaxis.set_major_locator(FixedLocator([1, 10, 100]))
        flop_axes.xaxis.set_minor_locator(NullLocator())
        flop_axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        if ridges:
            low, high = min(ridges.values()), max(ridges.values())
            flop_axes.axvspan(low, high, color=MUTED, alpha=0.25, linewidth=0)
            flop_axes.annotate(
                "ridge points", (low, -0.55), ha="right", va="center", fontsize=8, color=MUTED,
                xytext=(-3, 0), textcoords="offset points", annotation_clip=False,
            )  # fmt: skip
        _bars(
            axes[0][1], names, [row["sectors_per_load_request"] or None for row in ladder], "{:.3g}"
        )
        axes[0][1].set_title("32-byte sectors per load request")
        most = max((row["sectors_per_load_request"] for row in ladder), default=0)
        axes[0][1].set_xlim(0, 1.25 * max(most, 16))
        axes[0][1].xaxis.set_major_locator(FixedLocator(list(range(0, int(max(most, 16)) + 1, 4))))
        axes[0][1].set_yticklabels([])
        shares = [_conflict_share(row) for row in ladder]
        _bars(axes[1][0], names, [None if s is None else 100 * s for s in shares], "{:.0f} %")
        axes[1][0].set_title("Bank conflicts, % of shared-memory wavefronts")
        axes[1][0].set_xlim(0, 115)  # room for "100 %" beside the longest bar
        axes[1][0].xaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
        _hit_rates(axes[1][1], orders)
        svg = save(figure)
    first = ladder[0]
    shape = f"{first['M']} × {first['N']} × {first['K']}"
    said = ", ".join(f"{name.removeprefix('NVIDIA ')} {ridge:.0f}" for name, ridge in
                     sorted(ridges.items(), key=lambda item: item[1]))  # fmt: skip
    big = orders[0]
    guide = (
        f"The simulator ran every rung at {shape} in {first['dtype_in']}, {first['layout']}, and "
        "counted; nothing here is a time. Above left, on a logarithmic scale: where a rung stays "
        f"left of a board's ridge point (FLOP per byte of memory: {said}), L2 has to serve most "
        "of what it loads. Above right: 16 sectors are 32 lanes with 16 bytes each, side by side "
        "(a dash: TMA loads, not the lanes). Below left: padding and swizzles against none (a "
        "dash: no lane reads or writes shared memory). "
        "Below right: a model of "
        f"the {big['gpu']}'s L2 at {big['M']} × {big['N']} × {big['K']}, tiles visited row after "
        "row and in groups of GROUP_M tile rows."
    )
    return Picture(SLUG, TITLE, guide, svg)


def _conflict_share(row: dict[str, Any]) -> float | None:
    wavefronts = row["shared_wavefronts"]
    return row["bank_conflicts"] / wavefronts if wavefronts else None


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _bars(ax: Axes, names: list[str], values: list[float | None], form: str) -> None:
    for y, value in enumerate(values):
        if value is not None:
            ax.barh(y, value, height=0.62, color=backend_colour("cuda", []), linewidth=0)
        ax.annotate(
            _or_dash(value, form), (value or ax.get_xlim()[0], y), va="center", fontsize=8.5,
            xytext=(4, 0), textcoords="offset points",
        )  # fmt: skip
    ax.set_ylim(len(names) - 0.4, -0.9)
    ax.yaxis.set_major_locator(FixedLocator(list(range(len(names)))))
    ax.set_yticklabels(names)
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)


def _hit_rates(ax: Axes, orders: list[dict[str, Any]]) -> None:
    sizes = list(dict.fromkeys((row["BLOCK_M"], row["BLOCK_N"]) for row in orders))
    groups = list(dict.fromkeys(row["GROUP_M"] for row in orders))
    names = [f"{m} × {n}" for m, n in sizes]
    ends = []
    for name, size in zip(names, sizes, strict=True):
        of = [row for row in orders if (row["BLOCK_M"], row["BLOCK_N"]) == size]
        of = list({row["GROUP_M"]: row for row in of}.values())
        ys = [100 * row["l2_hit_rate"] for row in of]
        ax.plot(
            [groups.index(row["GROUP_M"]) for row in of], ys, marker="o", markersize=4,
            markeredgewidth=0, linewidth=1.6, color=line_colour(names.index(name)),
        )  # fmt: skip
        ends.append(ys[-1])
    low, high = ax.get_ylim()
    for y, name in zip(spread(ends, 0.08 * (high - low), low, high), names, strict=True):
        ax.annotate(
            name, (len(groups) - 1, y), fontsize=8.5, va="center", xytext=(6, 0),
            color=line_colour(names.index(name)), textcoords="offset points", annotation_clip=False,
        )  # fmt: skip
    ax.set_title("L2 hit rate by the order of tiles, %")
    ax.xaxis.set_major_locator(FixedLocator(list(range(len(groups)))))
    ax.set_xticklabels(["row by\nrow" if g is None else str(g) for g in groups])
    ax.set_xlabel("GROUP_M")
    ax.set_xlim(-0.2, len(groups) - 0.2)
