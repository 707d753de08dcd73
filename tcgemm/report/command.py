"""``tcgemm report``: arguments only. Importing this module imports neither pandas nor torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from .. import extras
from ..bench.several.cases import SEVERAL
from ..bench.store import RESULTS, read
from ..waiting import Waiting


def report(
    folders: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Argument(
            metavar="[DIR]...",
            help="Folders with results.csv and environment.json; by default every one below "
            "reports/.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            help="Folder, or .html file, of the page over all folders; by default, for several, "
            "the folder that holds them.",
            show_default=False,
        ),
    ] = None,
    readme: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            help="Markdown file whose table between the tcgemm:report markers is rewritten; by "
            "default ./README.md if it has them, for folders below it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make pages, figures and tables from stored results. Running it twice changes no file."""
    extras.need("report", "tcgemm report")
    for folder in folders or ():
        if not (folder / SEVERAL).is_file() and not (folder / RESULTS).is_file():
            read(folder)  # says what is missing, before anything is imported to draw with
    with Waiting("drawing the report"):
        from .write import write

        made = write(folders or [], out, readme)
    changed = len(made["changed"])
    typer.echo(f"{changed} file{'' if changed == 1 else 's'} changed")
    typer.echo(f"report: {made['pages'][-1].resolve()}")
