"""The commands and their arguments. Heavy imports happen inside the commands."""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import __version__, options
from ..bench.command import bench
from ..commands import HELP, Command
from ..report.command import report
from ..report.compare.command import compare
from ..tools.exercise.command import exercise
from ..tools.explain.command import explain
from ..tools.new_kernel import new_kernel
from ..tools.show_kernel.command import show_kernel
from ..tools.simulate.command import simulate
from ..tools.tune.command import tune
from ..tools.verify import verify
from ..tools.warm.command import warm
from ..waiting import Waiting

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 110
"""Columns of a terminal from which on every fact of a kernel has a column of its own."""

app = typer.Typer(
    name="tcgemm",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)
app.command("bench", cls=Command)(bench)
app.command("compare", cls=Command)(compare)
app.command("explain", cls=Command)(explain)
app.command("new-kernel", cls=Command)(new_kernel)
app.command("report", cls=Command)(report)
app.command("show-kernel", cls=Command)(show_kernel)
app.command("simulate", cls=Command)(simulate)
app.command("tune", cls=Command)(tune)
app.command("verify", cls=Command)(verify)
app.command("warm", cls=Command)(warm)
app.add_typer(exercise, name="exercise")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tcgemm {__version__}")
        raise typer.Exit


@app.callback()
def application(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Matrix multiplication on tensor cores, in Triton and in CUDA C++, beside cuBLAS."""


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


@app.command("kernels", cls=Command)
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


@app.command("doctor", cls=Command)
def doctor() -> None:
    """Say what was found on this machine, what is missing, and the one line that mends it."""
    from rich.console import Console
    from rich.markup import escape

    from ..tools.doctor import checks

    with Waiting("looking"):
        results = checks()
    console = Console(soft_wrap=True, highlight=False)  # a path or command is copied whole
    colors = {"ok": "green", "limited": "yellow", "missing": "red"}
    for check in results:
        state = f"[{colors[check.state]}]{check.state:7}[/]"
        console.print(f"{state}  {check.what}: {escape(check.found)}")
        if check.cure:
            console.print(f"         -> {escape(check.cure)}")
    if any(check.state == "missing" for check in results):
        raise typer.Exit(1)
