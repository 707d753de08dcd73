"""``tcgemm kernels``: the ladders and the specialists, as tables."""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING, Any

import typer

from .. import options
from ..waiting import Waiting

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 110
"""Columns of a terminal from which on every fact of a kernel has a column of its own."""
KINDS = {
    "ladder": "the ladder: each rung adds one idea to the one before",
    "shape": "the specialists, for shapes or types of their own",
}
"""dispatch.Kernel.kind -> the title of its list."""


def _print_kernels(console: Console, rows: list[dict[str, Any]], title: str) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("kernel", no_wrap=True)
    if console.width < WIDE:
        table.add_column("what it adds; what it takes, from which sm on; whether it runs here")
    else:
        for name in ("adds", "takes", "sm", "here"):
            table.add_column(name)
    reasons = list(dict.fromkeys(row["why_not"] for row in rows if not row["runs_here"]))
    for row in rows:
        sm = f"{row['capability']}+" if row["capability"] != "0.0" else ""
        here = "yes" if row["runs_here"] else "no" + _mark(reasons.index(row["why_not"]))
        cells: tuple[str, ...] = row["adds"], row["shapes"], sm, here
        if console.width < WIDE:
            where = "runs here" if row["runs_here"] else f"runs here: {here}"
            cells = ("; ".join(filter(None, (*cells[:2], sm and f"sm {sm}", where))),)
        table.add_row(f"{row['backend']}/{row['kernel']}", *cells)
    console.print(table)
    for number, reason in enumerate(reasons):
        console.print(f"no{_mark(number)}: {reason}", highlight=False)


def _mark(number: int) -> str:
    """Of a reason that is told once below a table: (a), (b), ..."""
    return f" ({chr(ord('a') + number)})"


def kernels(
    json: options.Json = False,
) -> None:
    """List all kernels: what each adds, what it supports, whether it runs here."""
    with Waiting("listing the kernels"):
        from .. import dispatch

        rows = dispatch.facts_of_kernels()
    if json:
        typer.echo(dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for kind, title in KINDS.items():
        _print_kernels(console, [row for row in rows if row["kind"] == kind], title)
    from ..problem import COMPUTES, OUTPUTS

    # A name is never cut: the widest cells of the first two columns leave room for any of them.
    types = Table(title="type of A and B, how it is summed, and by which kernels")
    types.title_justify = "left"
    types.add_column("type", no_wrap=True)
    types.add_column("backend", no_wrap=True)
    types.add_column("kernels", overflow="fold")
    for dtype, outs in OUTPUTS.items():
        for compute in COMPUTES[dtype]:
            types.add_section()
            title = f"{dtype}\nby {compute}"
            for backend in dispatch.BACKENDS:
                able = [
                    row.name
                    for row in dispatch.ladder(backend)
                    if any(row.takes_types(dtype, out, compute) for out in outs)
                ]
                if able:
                    types.add_row(title, backend, ", ".join(able))
                    title = ""
    console.print(types)
