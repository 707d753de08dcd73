"""``tcgemm compare``: arguments and what is printed. Importing this module imports no pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from ... import extras

SHOWN_CASES = 30
"""Cases that are printed; the page has all."""


def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="The earlier side: a results folder, the id of a run, or a commit.",
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The later side, named in the same way.")],
    folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--in",
            help="Folder in which runs, and results of commits, are looked for; by default "
            "reports/.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Write a page with the figure and all cases.", metavar="FILE.html"),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Percent that a case may change and be SAME.", min=0, max=100)
    ] = 3.0,
    fail: Annotated[
        bool,
        typer.Option(
            "--fail", help="End with status 1 where a case or kernel is SLOW, or no longer ok."
        ),
    ] = False,
) -> None:
    """Say of two runs on one GPU what is FAST, SLOW, SAME or AMBG, by the spread of their pairs."""
    extras.need("report", "tcgemm compare")
    from ...errors import ResultsError
    from . import sides

    before, after = (sides.side(text, folder) for text in (a, b))
    sides.check_comparable(before, after)
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from . import verdicts, write

    table = verdicts.cases(before.rows, after.rows, tolerance / 100)
    broken = verdicts.lost(before.rows, after.rows)
    if table.empty:
        for each in broken:
            typer.echo(f"No longer ok: {each}")
        if fail and broken:
            raise typer.Exit(1)
        raise ResultsError(
            f"{before.name} and {after.name} share no case that each timed beside cuBLAS in a run "
            "of its own: measure the same suite, kernels, dtypes and layouts on both sides"
        )
    of_kernels = verdicts.kernels(table, tolerance / 100)
    notes = [*sides.differences(before, after), *verdicts.unmatched(before.rows, after.rows)]
    notes += [f"No longer ok: {each}" for each in broken]
    console = Console()

    def show(title: str, header: tuple[str, ...], rows: list[list[str]]) -> None:
        shown = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
        shown.title = title
        for index, name in enumerate(header):
            shown.add_column(name, justify="right" if index > 1 else "left")
        for row in rows:
            shown.add_row(*map(escape, row))
        console.print(shown)

    names = (before.name, after.name)
    show("kernels, over all cases", write.KERNELS[:5], [
        row[:5] for row in write.kernel_rows(of_kernels)
    ])  # fmt: skip
    changed = write.case_rows(table[table["verdict"].ne(verdicts.SAME)])
    if changed:
        more = len(changed) - SHOWN_CASES
        rest = f"; {more} more with --out" if more > 0 else ""
        console.print()
        show(
            f"cases that are not SAME{rest}",
            ("kernel and case", *write.CASES[2:5], "A", "B"),
            [[f"{kernel}\n  {case}", *rest] for kernel, case, *rest in changed[:SHOWN_CASES]],
        )
        console.print("A and B: the rate over that of cuBLAS, in each run")
    for note in notes:
        console.print(escape(note), soft_wrap=True)
    console.print(escape(write.sentence(*names, table, of_kernels)), soft_wrap=True)
    if out is not None:
        write.write(out, names, table, of_kernels, notes, tolerance / 100)
        console.print(f"comparison: {escape(str(out.resolve()))}", soft_wrap=True)
    slow = verdicts.SLOW in {*table["verdict"], *of_kernels["verdict"]}
    if fail and (slow or broken):
        raise typer.Exit(1)
