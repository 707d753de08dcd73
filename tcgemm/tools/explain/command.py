"""``tcgemm explain``: what a call would be, before it runs: kernels, tiles, waves, bytes, bound.

Works for any GPU of gpus.py by name; only ``--compile`` needs more than the tables.
"""

from __future__ import annotations

import json as json_
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ... import options
from ...problem import EPILOGUES
from ...request import board_of, check_problem, problem_of
from .bound import Bound, bound
from .choice import Choice, choice

if TYPE_CHECKING:
    from rich.console import Console

    from ...gpus import Gpu
    from ...problem import Problem
    from .ranking import Estimate


def explain(
    shape: Annotated[str, typer.Argument(help="Sizes of the product.", metavar="MxNxK")],
    dtype: options.Dtype = "float16",
    out_dtype: options.OutDtype = None,
    layout: options.Layout = "nn",
    compute: options.Compute = None,
    alpha: Annotated[float, typer.Option(help="Factor of A @ B.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Factor of C.")] = 0.0,
    bias: Annotated[bool, typer.Option("--bias", help="A row vector is added.")] = False,
    epilogue: Annotated[
        str, typer.Option(help=f"One of {', '.join(EPILOGUES)}.", metavar="NAME")
    ] = "",
    batch: Annotated[int, typer.Option(help="Products of one launch.", min=1)] = 1,
    backend: options.Backends = None,
    kernel: Annotated[
        str | None, typer.Option(help="This kernel, instead of the choice.", metavar="NAME")
    ] = None,
    gpu: options.Board = None,
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Registers, spills, shared memory (nvcc: 15 s or more)."),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(help="Of that GPU, for the ranking; by default reports/<gpu>.", metavar="DIR"),
    ] = None,
    json: options.Json = False,
) -> None:
    """Say which kernel a call gets and why, how it fills the GPU, and what bounds it."""
    check_problem(shape, dtype, out_dtype, layout, compute, epilogue, gpu)
    from ... import dispatch
    from ...bench import store
    from .ranking import rank, spread

    board = board_of(gpu)
    problem = problem_of(
        shape, dtype, out_dtype, layout, compute, alpha, beta, bias, epilogue, batch, board
    )
    rows = dispatch.select(backend or (), [kernel] if kernel else ())
    names = dict.fromkeys(row.backend for row in rows)
    kernel = rows[0].name if kernel else None
    folder = results or Path("reports") / board.slug
    measured = store.read(folder) if results or (folder / store.RESULTS).is_file() else []
    ranking = rank(problem, rows, board, measured)
    choices = [choice(problem, name, kernel, board, compile, ranking) for name in names]
    against = bound(problem, board)
    if json:
        typer.echo(
            json_.dumps(
                {
                    "problem": str(problem),
                    "gpu": board.name,
                    "choices": [asdict(each) for each in choices],
                    "ranking": [asdict(each) for each in ranking],
                    "runs": spread(ranking),
                    "bound": {**asdict(against), "floor_us": against.floor_us, "by": against.by},
                },
                indent=2,
            )
        )
        return
    from rich.console import Console

    console = Console()
    _print(console, problem, board, choices, against)
    _print_ranking(console, ranking, choices, folder if measured else None)


def _print(
    console: Console, problem: Problem, board: Gpu, choices: list[Choice], against: Bound
) -> None:
    from rich.markup import escape
    from rich.table import Table

    console.print(f"[bold]{escape(str(problem))}[/]")
    console.print(_sms(board), soft_wrap=True)
    for each in choices:
        console.print()
        if each.kernel is None:
            console.print(f"[bold]{each.backend}[/]: {escape(each.why)}", soft_wrap=True)
        else:
            console.print(f"[bold]{each.backend}/{each.kernel}[/]: {each.why}")
            for line in _lines(each, board):
                console.print("  " + escape(line), soft_wrap=True)
        if each.others:
            table = Table(box=None, padding=(0, 2), header_style="dim")
            table.add_column("not", no_wrap=True)
            table.add_column("because")
            for name, reason in each.others.items():
                table.add_row(name, escape(reason))
            console.print(table)
    console.print()
    for line in _bound_lines(against, board, problem):
        console.print(escape(line), soft_wrap=True)


def _print_ranking(
    console: Console, ranking: list[Estimate], choices: list[Choice], folder: Path | None
) -> None:
    from rich.table import Table

    from .ranking import spread

    if folder is None:
        console.print(
            "ranking: nothing was measured on this GPU; 'tcgemm bench' does, and --results DIR "
            "names another folder",
            soft_wrap=True,
        )
        return
    chosen = {f"{each.backend}/{each.kernel}" for each in choices}
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("kernel", "us", "measured, or scaled from"):
        table.add_column(name, no_wrap=name in ("kernel", "us"))
    for each in ranking:
        name = f"{each.kernel} (chosen)" if each.kernel in chosen else each.kernel
        if each.us is None:
            table.add_row(name, "-", "nothing near it was measured")
            continue
        clock = f" at {each.sm_clock_mhz:.0f} MHz" if each.sm_clock_mhz else ""
        known = f"{each.measured_us:.1f} at {each.measured}"
        table.add_row(name, f"{each.us:.1f}", f"measured{clock}" if each.exact else known)
    console.print(
        f"ranking: estimates from the nearest shapes of {folder}, measured where this one was",
        soft_wrap=True,
    )
    console.print(table)
    if about_runs := spread(ranking):
        console.print(about_runs)


def _sms(board: Gpu) -> str:
    parts = [board.name]
    if board.sms:
        parts.append(f"{board.sms} SMs")
    if board.bandwidth_gb_s:
        parts.append(f"{board.bandwidth_gb_s:g} GB/s")
    if board.l2_bytes:
        parts.append(f"{board.l2_bytes / 2**20:g} MiB of L2")
    if board.source is None:
        parts.append("not in the table of GPUs, so neither waves nor bounds are known")
    return ", ".join(parts)


def _lines(each: Choice, board: Gpu) -> list[str]:
    from ...problem import settings

    lines = []
    if each.plan:
        lines.append("plan: " + settings(each.plan))
    if each.tile and each.tiles and each.padding_waste is not None:
        lines.append(
            f"grid: {each.tiles[0]} x {each.tiles[1]} tiles of {each.tile[0]} x {each.tile[1]}, "
            f"{each.blocks:,} in all; {each.padding_waste:.1%} of their elements lie outside C"
        )
    if each.waves is not None and each.last_wave_fill is not None:
        lines.append(
            f"waves: {each.waves:.2f} over {board.sms} SMs, a tile each at a time; the last fills "
            f"{each.last_wave_fill:.0%} of them"
        )
    if each.stage_bytes:
        stages = each.plan.get("NUM_STAGES", 1)
        lines.append(
            f"shared memory: {each.stage_bytes / 1024:.1f} KiB for "
            f"{stages} {'stages' if stages != 1 else 'stage'} of A and B, without padding"
        )
    if "unknown" in each.compiled:
        lines.append(f"compiled: {each.compiled['unknown']}")
    elif each.compiled:
        lines.append(
            "compiled: "
            + ", ".join(
                f"{name} {value}"
                for name, value in each.compiled.items()
                if not isinstance(value, dict)
            )
        )
    return lines


def _bound_lines(against: Bound, board: Gpu, problem: Problem) -> list[str]:
    lines = [
        f"operations: {against.flop:,} as 2 M N K; {against.eops:,} effective, as "
        "M K + (2 K - 1) M N + 2 M N",
        f"bytes: {against.bytes:,} at least (each operand once); "
        f"{against.intensity:.1f} operations per byte",
    ]
    if against.ridge is None or against.compute_us is None or against.memory_us is None:
        kind = f"{problem.dtype_in} by {problem.compute}"
        return [*lines, f"bound: unknown, {board.name} has no known peak for {kind}"]
    times = f"{against.compute_us:.2f} us of arithmetic, {against.memory_us:.2f} us of memory"
    side = "above" if against.by == "arithmetic" else "below"
    lines.append(
        f"bound: {against.by}; {side} the ridge of {against.ridge:.0f} operations per byte "
        f"({against.peak_tflops:g} TOPS over {against.bandwidth_gb_s:g} GB/s)"
    )
    lines.append(f"floor: {against.floor_us:.2f} us on {board.name} ({times})")
    return lines
