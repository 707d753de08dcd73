"""``tcgemm warm``: arguments, the progress bar, and what it says at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ... import options
from ...errors import OperandError, UnknownNameError
from ...problem import OUTPUTS
from ...vocabulary import check_backends
from ...waiting import Waiting

if TYPE_CHECKING:
    from rich.console import Console

    from .building import Outcome


def warm(
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="Of A and B; by default all. Repeatable.", metavar="NAME"),
    ] = None,
    backend: options.Backends = None,
    gpu: options.Board = None,
    jobs: Annotated[
        int, typer.Option(help="Processes; by default one a core.", min=0, max=1024)
    ] = 0,
    within: Annotated[
        float | None,
        typer.Option(help="Seconds after which nothing more is begun.", min=1, max=86400),
    ] = None,
) -> None:
    """Compile ahead what calls on this GPU are likely to need, so that no first call waits for it.

    What is needed most comes first. For a GPU that is not here (--gpu) kernels are compiled too.
    """
    from ... import gpus
    from ...request import board_of

    for name in dtype or ():
        if name not in OUTPUTS:
            raise OperandError(f"unknown dtype {name!r}: choose from {', '.join(OUTPUTS)}")
    check_backends(backend or ())
    board = board_of(gpu)
    capability = gpus.capability(board)
    if capability is None:
        raise OperandError(f"the compute capability of {board.name} is not known: no kernel is")

    from .building import backends
    from .building import warm as run
    from .covering import problems

    able = backends()
    for name in backend or ():
        if name not in able:
            raise UnknownNameError(
                f"backend {name!r} compiles nothing ahead: choose from {', '.join(able)}"
            )
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    said, stopped = Waiting("compiling"), False
    with bar if console.is_terminal else said:
        shown = bar.add_task("starting", total=None)

        def watch(done: int, known: int, what: str) -> None:
            bar.update(shown, completed=done, total=known, description=what)
            said.update(f"{done} of {known}; {what}")

        try:
            outcome = run(
                problems(dtype or (), capability),
                backend or able,
                jobs=jobs,
                within_s=within,
                gpu=(capability, board.slug, board.sms or 0),
                watch=watch,
            )
        except KeyboardInterrupt:
            stopped = True
    if stopped:
        console.print("Stopped. What was compiled is kept; the same command goes on.")
        raise typer.Exit(130)
    if _print_outcome(Console(), board.name, outcome):
        raise typer.Exit(1)


def _print_outcome(console: Console, gpu: str, outcome: Outcome) -> bool:
    """What was built, was there, is left and failed; whether anything failed."""
    from rich.markup import escape

    names = dict.fromkeys((*outcome.built, *outcome.there, *outcome.left))
    for name in names:
        built, there, left = (
            of.get(name, 0) for of in (outcome.built, outcome.there, outcome.left)
        )
        rest = f", {left} not begun in the time given" if left else ""
        console.print(f"{name}: {built} compiled, {there} were there{rest}", highlight=False)
    for (name, reason), what in outcome.failed.items():
        console.print(
            f"{name}: {len(what)} failed, {escape(what[0])} the first: {escape(reason)}",
            soft_wrap=True,
            highlight=False,
        )
    console.print(f"for {escape(gpu)}, in {outcome.seconds:.0f} s", highlight=False)
    return bool(outcome.failed)
