"""The commands by name. Each is imported when it is asked for: a mistake is named sooner so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from .. import __version__
from ..commands import HELP, Command

COMMANDS = {
    "bench": "tcgemm.bench.command",
    "compare": "tcgemm.report.compare.command",
    "explain": "tcgemm.tools.explain.command",
    "new-kernel": "tcgemm.tools.new_kernel",
    "report": "tcgemm.report.command",
    "show-kernel": "tcgemm.tools.show_kernel.command",
    "simulate": "tcgemm.tools.simulate.command",
    "tune": "tcgemm.tools.tune.command",
    "verify": "tcgemm.tools.verify",
    "warm": "tcgemm.tools.warm.command",
    "kernels": "tcgemm.cli.kernels",
    "doctor": "tcgemm.cli.doctor",
    "exercise": "tcgemm.tools.exercise.command",
}
"""A command -> its module, which has a function of the command's name, or a group of commands."""


class Loaded(Mapping[str, Any]):
    """Command -> what parses and runs it, made when it is first read."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            found = getattr(import_module(COMMANDS[name]), name.replace("-", "_"))
            if not isinstance(found, typer.Typer):
                alone = typer.Typer(context_settings=HELP, add_completion=False)
                alone.command(name, cls=Command)(found)
                found = alone
            self._made[name] = get_command(found)
            self._made[name].name = name
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Commands(TyperGroup):
    """The group of all commands, of which only the one that is asked for is imported."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.commands = Loaded()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)


app = typer.Typer(
    name="tcgemm",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)


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
