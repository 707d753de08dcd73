"""``tcgemm explain``: what a call would be, before it runs: kernels, tiles, waves, bytes, bound.

Works for any GPU of gpus.py by name; only ``--compile`` needs more than the tables.
"""

from __future__ import annotations

import json as json_
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ... import commands, options
from ...bench import store
from ...dist.explaining import explain as explain_several
from ...dist.options import OPS
from ...errors import UnknownNameError
from ...problem import EPILOGUES
from ...request import board_of, check_problem, planning_for, problem_of
from ...vocabulary import AUTO, check_backends, check_kernels, sizes_of
from ...waiting import Waiting
from .bound import bound
from .choice import auto_backends, auto_choice, choice


def explain(
    ctx: typer.Context,
    shape: Annotated[str, typer.Argument(help="Sizes of the product.", metavar="MxNxK")],
    dtype: options.Dtype = "float16",
    out_dtype: options.OutDtype = None,
    layout: options.Layout = "nn",
    compute: options.Compute = None,
    alpha: Annotated[float, typer.Option(help="Factor of A @ B.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Factor of C.")] = 0.0,
    bias: Annotated[bool, typer.Option("--bias", help="A row vector is added.")] = False,
    epilogue: Annotated[
        str,
        typer.Option(
            help="relu, gelu, gelu_tanh or silu.",
            metavar="NAME",
            autocompletion=options.completed(EPILOGUES),
        ),
    ] = "",
    batch: Annotated[int, typer.Option(help="Products of one launch.", min=1)] = 1,
    backend: options.Backends = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            help="This kernel, instead of the choice.",
            metavar="NAME",
            autocompletion=options.complete_kernel,
        ),
    ] = None,
    gpu: options.Board = None,
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Registers, spills, shared memory (nvcc: 15 s or more)."),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Of that GPU, for the ranking; by default reports/<gpu>, else tcgemm's own.",
            metavar="DIR",
        ),
    ] = None,
    op: Annotated[
        str | None,
        typer.Option(
            help="Of a layer over --world GPUs: all_gather before it, or reduce_scatter after it.",
            metavar="NAME",
            autocompletion=options.completed(OPS),
        ),
    ] = None,
    world: Annotated[int, typer.Option(help="GPUs of --op; the sizes are the layer's.", min=1)] = 2,
    json: options.Json = False,
) -> None:
    """Say which kernel a call gets and why, how it fills the GPU, and what bounds it."""
    check_problem(shape, dtype, out_dtype, layout, compute, epilogue, gpu)
    if op is None:
        commands.refuse(ctx, ("world",), "only --op takes it")
    else:
        commands.refuse(
            ctx, ("batch", "alpha", "beta"), "a call over GPUs has no batch, alpha or beta"
        )
    backend = list(dict.fromkeys(backend or ()))
    named = [each for each in backend if each != AUTO]
    check_backends(named)
    check_kernels([kernel] if kernel else (), [] if AUTO in backend else named)
    measured = None if results is None else store.read(results)
    with Waiting(f"explaining {shape}") as waiting:
        from ... import dispatch
        from .ranking import rank, spread

        board = board_of(gpu)
        several = None
        if op is not None:
            one = AUTO if len(backend) > 1 else None if not backend else backend[0]
            several = explain_several(
                op, *sizes_of(shape), dtype, world=world, gpu=board.slug, backend=one,
                kernel=kernel, out_dtype=out_dtype, compute=compute,
            )  # fmt: skip
            shape = "x".join(map(str, several.local))
        problem = problem_of(
            shape, dtype, out_dtype, layout, compute, alpha, beta, bias, epilogue, batch, board
        )
        default = _default(bool(backend))
        if AUTO in backend:
            with planning_for(board):
                named += auto_backends(problem, kernel and kernel.rpartition("/")[2], board)
            named = list(dict.fromkeys(named))
        rows = dispatch.select(named, [kernel] if kernel else ())
        names = dict.fromkeys(row.backend for row in rows)
        kernel = rows[0].name if kernel else None
        folder = results or store.folder_of(board.slug)
        if measured is None:
            measured = store.read(folder) if folder else []
        with planning_for(board):
            ranking = rank(problem, rows, board, measured)
            choices = []
            for name in names:
                waiting.update(f"compiling for {name}" if compile else f"explaining {shape}")
                choices.append(choice(problem, name, kernel, board, compile, ranking))
            auto = auto_choice(problem, kernel, board)
        against = bound(problem, board)
    if json:
        typer.echo(
            json_.dumps(
                {
                    **({} if several is None else {"several": several.facts()}),
                    "problem": str(problem),
                    "gpu": board.name,
                    "auto": auto,
                    "choices": [asdict(each) for each in choices],
                    "ranking": [asdict(each) for each in ranking],
                    "runs": spread(ranking),
                    "bound": {**asdict(against), "floor_us": against.floor_us, "by": against.by},
                },
                indent=2,
            )
        )
        return
    from .printed import print_all

    if several is not None:
        typer.echo(f"{several}\n\nThe product of one rank:")
    print_all(
        problem, board, choices, against, ranking, auto, folder if measured else None, default
    )


def _default(named: bool) -> str:
    """The backend of a call that names none; "" where the environment's is wrong, and the command
    is of backends that are ``named``."""
    from ...dispatch import default_backend

    try:
        return default_backend()
    except UnknownNameError:
        if not named:
            raise
        return ""
