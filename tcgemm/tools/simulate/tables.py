"""What ``tcgemm simulate`` prints: kernels side by side, and the orders of tiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import gpus

if TYPE_CHECKING:
    from ...gpus import Gpu


CLUSTER = "blocks of a cluster"
"""A row of the table where a kernel has one."""


def _number(value: float | int | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    """The cells of one kernel, each under its name."""
    plan = row.get("plan", {})
    tile = [str(plan[key]) for key in ("BLOCK_M", "BLOCK_N", "BLOCK_K") if key in plan]
    kinds = ", ".join(" ".join(kind.split()[:2]) for kind in row["mma"]) or "-"
    conflicts = row["bank_conflicts"]
    wavefronts = row["shared_wavefronts"]
    return [
        ("block tile", " x ".join(tile) or "-"),
        ("grid, block", f"{_dims(row['grid'])}, {_dims(row['block'])}"),
        (CLUSTER, _number(row.get("cluster"))),
        ("shared memory, bytes", _number(row["shared_bytes"])),
        ("bytes loaded by threads", _number(row["load_bytes"])),
        ("FLOP per byte loaded", _number(row["flop_per_byte"])),
        ("sectors per load request", _number(row["sectors_per_load_request"] or None)),
        ("FLOP per byte of sectors", _number(row["flop_per_sector_byte"])),
        ("L2 hit rate (model)", _percent(row.get("l2_hit_rate"))),
        ("FLOP per byte of memory (model)", _number(row.get("flop_per_dram_byte"))),
        ("waves of blocks", _number(row.get("waves"))),
        ("shared wavefronts", _number(wavefronts)),
        ("of them bank conflicts", _percent(conflicts / wavefronts if wavefronts else None)),
        ("barriers per block", _number(row["barriers_per_block"])),
        ("tensor-core instructions", _number(sum(row["mma"].values()))),
        ("of kind", kinds),
        ("error / bound", _error(row)),
    ]


def _error(row: dict[str, Any]) -> str:
    if row["error_ratio"] is not None:
        return _number(row["error_ratio"], 2)
    return "see below" if row["wrong"] or row["findings"] else "-"


def _dims(extents: list[int]) -> str:
    kept = extents[: max((i + 1 for i, e in enumerate(extents) if e > 1), default=1)]
    return "x".join(map(str, kept))


def print_table(
    rows: list[dict[str, Any]],
    shape: tuple[int, int, int],
    layout: str,
    gpu: Gpu,
    check: bool,
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    ran = [row for row in rows if not row["refused"]]
    # A rung's column and the titles take some 22 and 30 characters: a table for as many as fit.
    at_once = max(1, (console.width - 30) // 22)
    for start in range(0, len(ran), at_once):
        part = ran[start : start + at_once]
        types = f"{part[0]['dtype_in']} -> {part[0]['dtype_out']}"
        table = Table(
            title=f"{'x'.join(map(str, shape))} {types} {layout}, counted on a CPU; "
            f"L2 of the {gpu.name}",
            title_justify="left",
        )
        table.add_column("", no_wrap=True)
        for row in part:
            name = Path(row["kernel"]).name if row["kernel"].endswith(".cu") else row["kernel"]
            table.add_column(name, justify="right", overflow="fold")
        columns = [_lines(row) for row in part]
        for i, (title, _) in enumerate(columns[0]):
            if title == CLUSTER and all(column[i][1] == "-" for column in columns):
                continue
            table.add_row(title, *(escape(column[i][1]) for column in columns))
        console.print(table)
    if ran:
        first = ran[0]
        if first["ridge"]:
            console.print(
                f"The {gpu.name} needs {first['ridge']:.0f} FLOP per byte of memory to be bound by "
                f"its {first['dtype_in']} tensor cores and not by its memory."
            )
    refused: dict[str, list[str]] = {}
    for row in rows:
        if row["refused"]:
            refused.setdefault(row["refused"], []).append(row["kernel"])
    for reason, names in refused.items():
        console.print(escape(f"not taken by {', '.join(names)}: {reason}"))
    for row in rows:
        for message in row["findings"]:
            console.print(f"[red]{escape(message)}[/]", soft_wrap=True)
        if row.get("wrong"):
            name = Path(row["kernel"]).name
            console.print(
                f"[red]{escape(name)} is wrong: {escape(row['wrong'])}[/]", soft_wrap=True
            )
    if check and not any(row["findings"] or row.get("wrong") for row in rows):
        console.print("[green]Checked: nothing found.[/]")


def print_orders(rows: list[dict[str, Any]], shape: tuple[int, int, int], gpu: Gpu) -> None:
    """A table a kernel, so that a narrow terminal has room for every name and number."""
    from itertools import groupby

    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"Order of tiles at {'x'.join(map(str, shape))} against the L2 of the {gpu.name} "
        f"({(gpu.l2_bytes or 0) / gpus.MIB:.0f} MiB, {gpu.sms} SMs, one block each)"
    )
    for (kernel, *tile), of_kernel in groupby(
        rows, key=lambda row: (row["kernel"], row["BLOCK_M"], row["BLOCK_N"])
    ):
        console.print(f"\n{kernel}, tiles of {tile[0]} x {tile[1]}")
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("order", no_wrap=True)
        for title in ("L2 hit rate", "from memory, GB", "times A and B", "FLOP per byte of memory"):
            table.add_column(title, justify="right")
        for row in of_kernel:
            table.add_row(
                "row after row" if row["GROUP_M"] is None else f"GROUP_M {row['GROUP_M']}",
                _percent(row["l2_hit_rate"]), f"{row['dram_bytes'] / 1e9:.2f}",
                f"{row['dram_over_least']:.1f}", _number(row["flop_per_dram_byte"]),
            )  # fmt: skip
        console.print(table)
    if rows and rows[0]["ridge"]:
        console.print(f"Ridge point of the {gpu.name}: {rows[0]['ridge']:.0f} FLOP per byte.")
