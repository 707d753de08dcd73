"""The table that ``tcgemm bench`` ends with. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .case import case_of_row

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 100
"""Columns of a terminal from which on each backend has a column of its own in the closing table."""


def print_table(console: Console, rows: list[dict[str, Any]], device: str) -> None:
    """One line a case: the best kernel of each backend; or what was checked, on the CPU."""
    from rich.table import Table

    by_case: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_case.setdefault(str(case_of_row(row)), []).append(row)
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    show = _best if device == "cuda" else _checked
    if device == "cuda":
        title = "best kernel of each backend: ms (ratio to cuBLAS, above 1 is faster)"
    else:
        title = "kernels that are right, of those that run here; nothing is timed on a CPU"
    table = Table("case", *backends, title=title, title_justify="left")
    lines = [title]
    for name, of_case in by_case.items():
        cells = [[row for row in of_case if row["backend"] == backend] for backend in backends]
        shown = [show(cell) for cell in cells]
        table.add_row(name, *shown)
        lines += [name, *(f"  {b:7} {cell}" for b, cell in zip(backends, shown, strict=True))]
    if not rows:
        return
    if console.width < WIDE:
        console.print("\n".join(lines), highlight=False)
    else:
        console.print(table)


def _best(rows: list[dict[str, Any]]) -> str:
    timed = [row for row in rows if row["status"] == "ok" and row.get("ms_p50")]
    if not timed:
        return ", ".join(dict.fromkeys(row["status"] for row in rows))
    best = min(timed, key=lambda row: row["ms_p50"])
    ratio = best.get("ratio_p50")
    return f"{best['kernel']} {best['ms_p50']:.4g}" + (f" ({ratio:.2f})" if ratio else "")


def _checked(rows: list[dict[str, Any]]) -> str:
    run = [row for row in rows if row["status"] != "unsupported"]
    right = [row for row in run if row["status"] == "ok"]
    if not run:
        return "none run here"
    if len(run) == 1:
        return f"{run[0]['kernel']}: {run[0]['status']}"
    if not right and len({row["status"] for row in run}) == 1:
        return f"all {len(run)}: {run[0]['status']}"
    bad = [f"{row['kernel']} {row['status']}" for row in run if row["status"] != "ok"]
    return f"{len(right)} of {len(run)}" + (f": {', '.join(bad)}" if bad else "")
