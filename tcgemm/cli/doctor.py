"""``tcgemm doctor``: what was found on this machine, as lines."""

from __future__ import annotations

import typer

from ..waiting import Waiting


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
