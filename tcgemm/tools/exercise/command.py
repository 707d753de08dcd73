"""``tcgemm exercise``: arguments only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...commands import HELP, Command
from ...errors import OperandError, ResultsError, ToolchainError
from ...waiting import Waiting
from .catalogue import EXERCISES, Exercise, find

exercise = typer.Typer(no_args_is_help=True, context_settings=HELP, add_completion=False)
"""The commands below ``tcgemm exercise``."""

Which = Annotated[str, typer.Argument(metavar="N", help="A number, or a name of the list.")]


@exercise.callback()
def about() -> None:
    """Exercises along the ladder, which grade themselves on this CPU."""


@exercise.command("list", cls=Command)
def list_all() -> None:
    """List the exercises: number, language, title, and the page that explains."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "language", "exercise", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("explained in docs/", no_wrap=True)
    for each in EXERCISES:
        table.add_row(str(each.number), each.language, each.title, each.page)
    Console().print(table)


@exercise.command("start", cls=Command)
def start(
    number: Which,
    folder: Annotated[Path, typer.Option("--dir", help="Where to write it.")] = Path("."),
) -> None:
    """Write the starter of an exercise into the current folder. Never overwrites a file."""
    found = find(number)
    path = folder / found.file_name
    if path.exists():
        raise ResultsError(f"{path} exists: remove it to begin again, or name another --dir")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(found.text("starter"))
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}") from None
    typer.echo(f"{path}: edit it, then run 'tcgemm exercise check {found.number}'")


@exercise.command("check", cls=Command)
def check(
    number: Which,
    file: Annotated[
        Path | None, typer.Argument(help="Your file; by default the one that start wrote here.")
    ] = None,
) -> None:
    """Grade an exercise, which is compiled and run here with your rights. Exit 1: it fails."""
    found = find(number)
    path = file or Path(found.file_name)
    if not path.is_file():
        raise OperandError(f"no file {path}: 'tcgemm exercise start {found.number}' writes it")
    with Waiting(f"checking {path}"):
        said = failures(found, path)
    if not said:
        typer.echo(f"Exercise {found.number} passes. {found.idea}")
        return
    for line in said:
        typer.echo(f"- {line}")
    typer.echo(f"The idea: {found.idea} Read docs/{found.page}.")
    raise typer.Exit(1)


@exercise.command("solution", cls=Command)
def solution(number: Which) -> None:
    """Print a solution."""
    typer.echo(find(number).text("solution"), nl=False)


def failures(found: Exercise, path: Path) -> list[str]:
    """What is wrong with the file as a solution of the exercise; [] where it passes.

    Raises ToolchainError where it cannot be compiled.
    """
    if found.language == "CUDA":
        from . import cuda

        try:
            return cuda.failures(found.name, path)
        except RuntimeError as error:
            raise ToolchainError(str(error)) from error
    from . import python

    return python.failures(found.name, path)
