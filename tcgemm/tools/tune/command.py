"""The command: what it is asked, and how it prints what was found."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from ... import commands, options
from ...bench.case import Case
from ...bench.cases import NAMES, build
from ...errors import OperandError, UnknownNameError, UnsupportedError
from ...vocabulary import check_backends, check_kernels, either
from ...waiting import Waiting
from .backends import TUNABLE, part_of
from .search import Found, Machine, tune_case
from .this_gpu import ThisGpu
from .user_table import keep, read_table, rows_of

SEEDS = (9001, 9002, 9003)
"""Of the shapes of --model, unless told: nothing of the project is fitted to these."""

SEEDS_TOLD = ", ".join(map(str, SEEDS))

COUNT = 40
"""Shapes of each, unless told."""

OF_MODEL = ("model", "seed", "count", "budget", "out", "json_")
"""The options that --model takes: another that is given is refused, not ignored."""


def tune(
    ctx: typer.Context,
    shape: Annotated[
        list[str] | None, typer.Option(help="A problem to tune. Repeatable.", metavar="MxNxK")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help=f"All problems of a suite: {either(NAMES)}.", metavar="NAME"),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="Only candidates of this rung. Repeatable.", metavar="NAME"),
    ] = None,
    backend: Annotated[str, typer.Option(help="Whose rungs: triton, cuda.")] = "triton",
    dtype: Annotated[str, typer.Option(help="Of A and B: float16, bfloat16.")] = "bfloat16",
    out_dtype: Annotated[
        str | None, typer.Option(help="Of C: as A and B unless told, or float32.")
    ] = None,
    layout: options.Layouts = None,
    budget: Annotated[
        float,
        typer.Option(
            help="Seconds of timing for each candidate, or kernel and shape.", min=0.001, max=60
        ),
    ] = 0.03,
    jobs: Annotated[
        int, typer.Option(help="Compilations at once; 0: one for each CPU.", min=0, max=256)
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="The table to write; by default the user's own of this GPU."),
    ] = None,
    model: Annotated[
        bool,
        typer.Option(
            "--model", help="Instead: time drawn shapes and fit the model that chooses a kernel."
        ),
    ] = False,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            help=f"Of the shapes of --model, two at least; by default {SEEDS_TOLD}. Repeatable.",
            min=0,
            max=2**62,
            metavar="NUMBER",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option(help="Shapes of each --seed of --model.", min=1, max=10_000)
    ] = COUNT,
    json_: Annotated[
        bool, typer.Option("--json", help="Print JSON: every candidate and what became of it.")
    ] = False,
) -> None:
    """Find faster configurations of a backend's kernels on this GPU and keep them.

    Wrong candidates are dropped. What beats the present choice goes to configs-GPU.json (of CUDA
    cuda-configs-GPU.json) in TCGEMM_CACHE_DIR (~/.cache/tcgemm unless set), which every later call
    prefers.

    With --model, every kernel that may be the fastest is timed on drawn shapes, and the model that
    chooses among kernels is fitted to that: model-GPU.json in the same folder.
    """
    if model:
        commands.refuse_others(ctx, OF_MODEL, "--model does not take it")
        _tune_model(seed or SEEDS, count, budget, out, json_)
        return
    commands.refuse(ctx, ("seed", "count"), "only --model takes it")
    if shape:
        commands.refuse(ctx, ("suite",), "--shape is given in its place")
    check_backends([backend])
    if backend not in TUNABLE:
        raise UnknownNameError(
            f"backend {backend!r} is not tuned: choose from {', '.join(TUNABLE)}"
        )
    check_kernels(kernel or (), [backend])
    cases = _cases(shape, suite, dtype, out_dtype, layout)
    tunable = part_of(backend, "candidates").RUNGS
    for name in kernel or ():
        if name not in tunable:
            raise UnknownNameError(
                f"kernel {name!r} is not tuned: choose from {', '.join(tunable)}"
            )
    from ...call import forget

    _need_gpu()
    machine = ThisGpu(budget, jobs or os.cpu_count() or 1, backend)
    path = out or part_of(backend, "tables").user_path(machine.gpu)
    read_table(path, backend)
    results = []
    for found in _each(cases, kernel or tunable, machine, quiet=json_):
        results.append(found)
        if found.best is not None:
            keep(path, rows_of(found, backend), backend)
    part_of(backend, "plans").forget()
    forget()
    if json_:
        typer.echo(json.dumps([_as_json(found) for found in results], indent=1))
    else:
        _print_found(results, path)


def _need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UnsupportedError(
            "tune measures on a GPU and there is none here: 'tcgemm doctor' says what was found"
        )


def _tune_model(
    seeds: Sequence[int], count: int, budget_s: float, out: Path | None, as_json: bool
) -> None:
    seeds = list(dict.fromkeys(seeds))
    if len(seeds) < 2:
        raise OperandError(
            "--model holds each seed out in turn, to say what its choice loses on shapes that it "
            "has not seen, and was given one: give --seed a second time"
        )
    _need_gpu()
    from .model import told, tune_model

    try:
        found = tune_model(seeds, count, budget_s, out, quiet=as_json)
    except KeyboardInterrupt:
        typer.echo("Stopped: no model was fitted.", err=True)
        raise typer.Exit(130) from None
    typer.echo(json.dumps(found, indent=1) if as_json else told(found))


def _cases(
    shapes: list[str] | None,
    suite: str | None,
    dtype: str,
    out_dtype: str | None,
    layouts: list[str] | None,
) -> list[Case]:
    if not shapes and suite is None:
        raise OperandError("nothing to tune: give --shape MxNxK or --suite NAME")
    cases = build(
        suite or "quick",
        shapes=shapes or (),
        dtypes=[dtype],
        dtypes_out=[out_dtype] if out_dtype else (),
        layouts=layouts or (),
    )
    plain = [
        c for c in cases if c.dtype_in in ("float16", "bfloat16") and not c.fused and c.batch == 1
    ]
    if not plain:
        raise OperandError(
            f"only plain products of float16 and bfloat16 are tuned, and no batches: not {dtype}"
        )
    return plain


def _each(
    cases: Sequence[Case], kernels: Sequence[str], machine: Machine, quiet: bool
) -> Iterable[Found]:
    for index, case in enumerate(cases, 1):
        with nullcontext() if quiet else Waiting(f"tuning {case} ({index} of {len(cases)})"):
            found = tune_case(case, kernels, machine)
        yield found


def _as_json(found: Found) -> dict[str, Any]:
    return {
        "case": str(found.case),
        "present": found.present,
        "best": None if found.best is None else str(found.best.candidate),
        "candidates": [
            {
                "kernel": o.candidate.kernel,
                "config": o.candidate.config,
                "status": o.status,
                "reason": o.reason,
                "ms": o.ms or None,
                "speedup": o.speedup or None,
            }
            for o in found.outcomes
        ],
    }


def _print_found(results: Sequence[Found], path: Path) -> None:
    """A few lines a problem, which fit any terminal: settings are long."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True, highlight=False)
    for found in results:
        right = sum(outcome.status == "ok" for outcome in found.outcomes)
        dropped = Counter(outcome.status for outcome in found.outcomes if outcome.status != "ok")
        counts = ", ".join([f"{right} right", *(f"{n} {status}" for status, n in dropped.items())])
        console.print(
            f"[bold]{escape(str(found.case))}[/]: of {len(found.outcomes)} tried {counts}"
        )
        console.print(escape(f"  present choice: {found.present}"))
        if best := found.best:
            console.print(escape(f"  best found:     {best.candidate}"))
            console.print(f"  {best.speedup:.3f} times as fast, {best.ms:.4g} ms")
        else:
            console.print("  best found:     the present choice")
    reasons = Counter(
        (outcome.status, outcome.reason)
        for found in results
        for outcome in found.outcomes
        if outcome.status != "ok" and outcome.reason
    )
    for (status, reason), times in reasons.items():
        console.print(escape(f"{status}, {times} of them: {reason}"))
    kept = sum(found.best is not None for found in results)
    where = f": {escape(str(path))}" if kept else ""
    console.print(f"{kept} of {len(results)} problems have a faster choice now{where}")
