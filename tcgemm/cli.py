"""``tcgemm ...``: arguments only. Heavy imports happen inside the commands."""

from __future__ import annotations

import sys

import typer

from . import options
from .bench.command import bench
from .errors import TcgemmError
from .explain import explain
from .report.command import report
from .show_kernel import show_kernel
from .simulate import simulate
from .tune import tune
from .verify.command import verify

app = typer.Typer(
    name="tcgemm",
    help="Matrix multiplication on tensor cores, in Triton and in CUDA C++, beside cuBLAS.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("bench")(bench)
app.command("explain")(explain)
app.command("report")(report)
app.command("show-kernel")(show_kernel)
app.command("simulate")(simulate)
app.command("tune")(tune)
app.command("verify")(verify)


@app.command("kernels")
def kernels(
    json: options.Json = False,
) -> None:
    """List all kernels: what each adds, what it supports, whether it runs here."""
    from . import dispatch

    frame = dispatch.kernels()
    if json:
        typer.echo(frame.to_json(orient="records", indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("kernel", no_wrap=True)
    for name in ("adds", "takes", "sm", "here"):
        table.add_column(name)
    for row in frame.itertuples():
        table.add_row(
            f"{row.backend}/{row.kernel}",
            str(row.adds),
            str(row.shapes),
            f"{row.capability}+" if row.capability != "0.0" else "",
            "yes" if row.runs_here else f"no: {row.why_not}",
        )
    console = Console()
    console.print(table)
    from .problem import COMPUTES, OUTPUTS

    types = Table(title="type of A and B, how it is summed, and by which kernels")
    types.title_justify = "left"
    types.add_column("type", no_wrap=True)
    for backend in dispatch.BACKENDS:
        longest = max(len(row.name) for row in dispatch.ladder(backend))
        types.add_column(backend, width=longest + len(","))
    for dtype, outs in OUTPUTS.items():
        for compute in COMPUTES[dtype]:
            able = (
                ", ".join(
                    row.name
                    for row in dispatch.ladder(backend)
                    if any(row.takes_types(dtype, out, compute) for out in outs)
                )
                for backend in dispatch.BACKENDS
            )
            types.add_row(f"{dtype}\nby {compute}", *able, end_section=True)
    console.print(types)


@app.command("doctor")
def doctor() -> None:
    """Say what was found on this machine, what is missing, and the one line that mends it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from .doctor import checks

    table = Table("", "what", "found", "to mend it", show_lines=False)
    for column in table.columns:
        column.overflow = "fold"  # a path is of use only when it is whole
    results = checks()
    for check in results:
        mark = {"ok": "[green]ok[/]", "limited": "[yellow]limited[/]", "missing": "[red]missing[/]"}
        table.add_row(mark[check.state], check.what, escape(check.found), escape(check.cure))
    Console().print(table)
    if any(check.state == "missing" for check in results):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit status 2."""
    try:
        app()
    except TcgemmError as error:
        typer.echo(f"tcgemm: {error}", err=True)
        sys.exit(2)
