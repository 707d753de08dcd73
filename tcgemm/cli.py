"""``tcgemm ...``: arguments only. Heavy imports happen inside the commands."""

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
