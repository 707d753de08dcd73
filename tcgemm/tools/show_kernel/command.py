"""``tcgemm show-kernel``: what a compiler made of a rung, or of two side by side, without a GPU."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import options
from ...errors import OperandError, UnknownNameError
from ...request import board_of, check_problem, problem_of
from ...vocabulary import check_kernels
from ...waiting import Waiting
from .compiled import compile_all, write_csv
from .describe import FACTS, GROUPS, describe, inspector, made_by, no_stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...dispatch import Kernel
    from ...problem import Problem

STAGES = ("ttgir", "ptx", "sass")

USUAL = "bfloat16"
"""The dtype of A and B where none is named and all rows take it."""

ALL_SHOWN = ("registers", "spilled bytes", "wgmma", "mma", "instructions", "seconds to compile")
"""What ``--all`` prints of a rung; its file has everything."""


def show_kernel(
    kernel: Annotated[
        str | None,
        typer.Argument(
            help="The rung.", metavar="BACKEND/KERNEL", autocompletion=options.complete_kernel
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="A second rung beside it.",
            metavar="BACKEND/KERNEL",
            autocompletion=options.complete_kernel,
        ),
    ] = None,
    shape: Annotated[
        str, typer.Option(help="Sizes of the product.", metavar="MxNxK")
    ] = "4096x4096x4096",
    dtype: options.DtypeOfKernel = None,
    layout: options.Layout = "nn",
    compute: options.Compute = None,
    gpu: options.Board = None,
    stage: Annotated[
        str | None,
        typer.Option(help="Print this text instead: ttgir (Triton), ptx or sass.", metavar="NAME"),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every rung instead, one after another: minutes.")
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(help="Of --all: write this file; compiled.csv of a report's folder is shown."),
    ] = None,
    side_by_side: Annotated[
        Path | None,
        typer.Option(
            "--side-by-side",
            help="Write a page with the source beside its PTX and SASS, line to instruction.",
            metavar="FILE",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Say what the compiler made of a rung: instructions, registers, spills, seconds, lines."""
    if stage is not None and stage not in STAGES:
        raise UnknownNameError(f"unknown stage {stage!r}: choose from {', '.join(STAGES)}")
    if every == (kernel is not None) or (every and (compare or stage)) or (csv and not every):
        raise OperandError(
            "name a BACKEND/KERNEL, or give --all, with which go --csv and --json only"
        )
    if side_by_side is not None and (every or stage or json):
        raise OperandError("--side-by-side writes a page, without --all, --stage and --json")
    check_problem(shape, dtype or USUAL, None, layout, compute, gpu=gpu)
    check_kernels([name for name in (kernel, compare) if name is not None])
    from ... import dispatch
    from ...own import register

    names = register.names([name for name in (kernel, compare) if name is not None])
    rows = [dispatch.named(name) for name in names]
    board = board_of(gpu)
    dtype = dtype or dtype_of(rows)
    problem = problem_of(shape, dtype, None, layout, compute, 1.0, 0.0, False, "", 1, board)
    if every:
        _show_all(problem, board.name, csv, json)
        return
    rows = [
        row if row.why_not(problem) else dispatch.choose(problem, row.backend, row.name)
        for row in rows
    ]
    inspectors = [inspector(row, problem, stage) for row in rows]
    shown = []
    with Waiting("compiling") as waiting:
        for row, inspect in zip(rows, inspectors, strict=True):
            waiting.update(f"compiling {row.full_name}")
            shown.append(describe(row, problem, inspect(bool(stage or side_by_side))))
    texts = [each.pop("texts") for each in shown]
    sources = [each.pop("source") for each in shown]
    if side_by_side is not None:
        from .lines import listing
        from .side_by_side import write_page

        write_page(
            side_by_side,
            [
                listing(each["kernel"], made_by(each, problem), Path(source), text)
                for each, source, text in zip(shown, sources, texts, strict=True)
            ],
        )
        typer.echo(f"wrote {side_by_side}: open it in a browser", err=True)
        return
    if stage is not None:
        for each, text in zip(shown, texts, strict=True):
            if stage not in text:
                raise no_stage(each["kernel"], stage, text)
            each["text"] = text[stage]
    if json:
        typer.echo(
            json_.dumps({"problem": str(problem), "gpu": board.name, "kernels": shown}, indent=2)
        )
    elif stage is not None:
        for each in shown:
            typer.echo(f"// {each['kernel']}: {stage} for {each['facts']['target']}, {problem}")
            typer.echo(each["text"])
    else:
        _print(shown, problem, board.name)


def dtype_of(rows: Sequence[Kernel]) -> str:
    """The dtype of A and B to show rows with: the usual one, or the first of a row without it."""
    taken = [[pair[0] for pair in row.pairs] for row in rows]
    return next((dtypes[0] for dtypes in taken if USUAL not in dtypes), USUAL)


def _show_all(problem: Problem, gpu: str, csv: Path | None, json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    rows: list[dict[str, Any]] = []
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("rung", no_wrap=True)
    for name in ALL_SHOWN:
        table.add_column(name, overflow="fold")
    with Waiting("compiling") as waiting:
        for row in compile_all(problem, gpu):
            name = f"{row['backend']}/{row['kernel']}"
            waiting.update(f"compiling, {len(rows) + 1} done, the last {name}")
            rows.append(row)
            why = [f"{row['status']}: {row['reason']}"] if row["status"] != "ok" else []
            table.add_row(name, *(why or (_cell(row[column]) for column in ALL_SHOWN)))
    if csv is not None:
        write_csv(csv, rows)
    if json:
        typer.echo(json_.dumps(rows, indent=2))
    else:
        console.print(table)


def _print(shown: list[dict[str, Any]], problem: Problem, gpu: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ...problem import settings

    console = Console()
    console.print(f"[bold]{escape(str(problem))}[/], compiled for {escape(gpu)}", soft_wrap=True)
    table = Table("")
    for each in shown:
        table.add_column(each["kernel"].replace("/", "/\n"), justify="right", no_wrap=True)
    for name in FACTS:
        values = [each["facts"][name] for each in shown]
        if any(value is not None for value in values):
            table.add_row(name, *map(_cell, values))
    table.add_section()
    for name in GROUPS:
        values = [each["counts"][name] for each in shown]
        if any(values):
            table.add_row(name, *map(_cell, values))
    table.add_row("instructions in all", *(_cell(each["instructions"]) for each in shown))
    console.print(table)
    for each in shown:
        console.print(f"{each['kernel']}: {settings(each['plan'])}", soft_wrap=True)
        number, built = each["facts"]["instances"], each["instances built"]
        if number and number > 1:
            console.print(
                f"  the sum of {number} instances of {built}, and the most registers, spills and "
                "shared memory of any: the symbols do not say which one this problem launches",
                soft_wrap=True,
            )
        elif built and built > 1:
            console.print(f"  the one instance of {built} that this problem launches")
    console.print("Counts are places in the machine code, not how often they run.", soft_wrap=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)
