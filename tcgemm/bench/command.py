"""``tcgemm bench``: arguments, progress and the closing table. Imports torch only when it runs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import commands, extras, options
from ..errors import ResultsError
from ..vocabulary import check_backends, check_kernels, either
from ..waiting import Waiting
from .cases import NAMES, OF_DRAWN
from .closing import print_table
from .drawn import flatters
from .trouble import TROUBLE, key_of, reasons

if TYPE_CHECKING:
    from rich.console import Console

    from .case import Case
    from .worker import Unit


OF_SEVERAL = ("several", "rows", "timeline", "shape", "dtype", "backend", "out", "seed", "budget",
              "resume")  # fmt: skip
OF_STEADY = ("steady", "seconds", "suite", "count", "backend", "kernel", "dtype", "out_dtype",
             "shape", "layout", "compute", "fused", "data", "out", "seed")  # fmt: skip
"""The options that these two take: another that is given is refused, not ignored."""


def bench(
    ctx: typer.Context,
    suite: Annotated[
        str,
        typer.Option(
            help=f"{either(NAMES)}.",
            metavar="NAME",
            autocompletion=options.completed(NAMES),
        ),
    ] = "quick",
    backend: options.Backends = None,
    kernel: options.Kernels = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="Of A and B, e.g. bfloat16, int8. Repeatable.", metavar="NAME"),
    ] = None,
    out_dtype: Annotated[
        list[str] | None,
        typer.Option(help="Of C, e.g. float32. Repeatable.", metavar="NAME"),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Instead of a suite. Repeatable.", metavar="MxNxK"),
    ] = None,
    layout: options.Layouts = None,
    compute: Annotated[
        list[str] | None,
        typer.Option(help="How to sum, e.g. tf32, tf32x3, fast. Repeatable.", metavar="NAME"),
    ] = None,
    fused: Annotated[
        list[str] | None,
        typer.Option(
            help="What is fused, e.g. residual or 'bias gelu'. Repeatable.", metavar="WORDS"
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="What A and B hold: normal (default), uniform, ints, zeros. Repeatable.",
            metavar="NAME",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder; by default reports/<gpu>.")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help=f"Seed of the operands, and of the shapes of suite {either(OF_DRAWN)}.",
            min=0,
            max=2**62,
            metavar="NUMBER",
        ),
    ] = 0,
    count: Annotated[
        int, typer.Option(help=f"Cases of suite {either(OF_DRAWN)}.", min=1, max=100_000)
    ] = 100,
    budget: Annotated[
        float, typer.Option(help="Seconds of timing for each kernel and case.", min=0.001, max=3600)
    ] = 0.25,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a kernel is given up.", min=0.1, max=86400)
    ] = 120.0,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Measure what calls get unasked first, and report on that while the rest is "
            "measured; at the end report on all.",
        ),
    ] = False,
    unasked: Annotated[
        bool,
        typer.Option(
            "--unasked",
            help="Only what matmul takes where no kernel is named, beside cuBLAS and its best.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Skip what the results folder holds of this seed. What was given up is tried "
            "again with another --timeout.",
        ),
    ] = False,
    steady: Annotated[
        bool,
        typer.Option("--steady", help="Each backend's choice alone for seconds: power and energy."),
    ] = False,
    several: Annotated[
        bool,
        typer.Option(
            "--several", help="Products over several GPUs: torchrun -m tcgemm bench --several."
        ),
    ] = False,
    rows: Annotated[
        list[int] | None,
        typer.Option(
            help="Of --several: values of M in place of its five. Repeatable.", min=1, metavar="M"
        ),
    ] = None,
    timeline: Annotated[
        bool,
        typer.Option(
            "--timeline", help="Of --several: keep clock stamps of a call, for the time line."
        ),
    ] = False,
    seconds: Annotated[float, typer.Option(help="Of a turn of --steady.", min=0.1, max=600)] = 2.0,
) -> None:
    """Verify every kernel on every case, then time it beside cuBLAS; append to the results.

    Without a GPU kernels are verified and nothing is timed.
    """
    if several or steady:
        mode, takes = ("--several", OF_SEVERAL) if several else ("--steady", OF_STEADY)
        commands.refuse_others(ctx, takes, f"{mode} does not take it")
    else:
        commands.refuse(ctx, ("rows", "timeline"), "only --several takes it")
        commands.refuse(ctx, ("seconds",), "only --steady takes it")
    if shape:
        commands.refuse(ctx, ("rows",), "--shape is given in its place")
    if several:
        from .several.command import several as over_ranks

        over_ranks(
            shape or (), dtype or (), backend or (), out, seed=seed, budget_s=budget,
            resume=resume, rows=rows or (), timeline=timeline,
        )  # fmt: skip
        return

    from rich.console import Console
    from rich.markup import escape

    from ..own import register
    from . import cases as cases_
    from . import store

    kernel = register.names(kernel or ())
    build = partial(
        cases_.build,
        suite,
        shapes=shape or (),
        dtypes=dtype or (),
        dtypes_out=out_dtype or (),
        layouts=layout or (),
        computes=compute or (),
        fused=fused or (),
        data=data or (),
        seed=seed,
        count=count,
    )
    if report:
        extras.need("report", "tcgemm bench --report")
    if unasked and kernel:
        raise typer.BadParameter("--unasked leaves the choice of kernel, and --kernel names one")
    planned = build(device="cuda")  # names a mistake in the arguments before torch is imported
    check_backends(backend or ())
    check_kernels(kernel, backend or ())
    if out is not None:
        store.check_folder(out)

    if shape:
        commands.refuse(ctx, ("suite",), "--shape is given in its place")
    if shape or suite not in OF_DRAWN:
        commands.refuse(ctx, ("count",), f"only --suite {either(OF_DRAWN)} takes it")
    if steady and any(case.fused or case.batch > 1 for case in planned):
        raise typer.BadParameter(
            "--steady times plain single products: leave --fused away, and suites of fused ones "
            "and of batches"
        )

    from . import environment, first, run

    if suite in OF_DRAWN and not shape and (said := flatters(seed, environment.slug())):
        typer.echo(said, err=True)
    device = "cpu" if environment.slug() == environment.CPU_SLUG else "cuda"
    cases = build(device=device)
    if steady:
        _steady(cases, backend or (), kernel or (), out, seconds, seed)
        return
    kernels = (
        run.unasked(backend or ()) if unasked else run.contenders(backend or (), kernel, device)
    )
    folder = out or Path("reports") / environment.slug()
    store.check_folder(folder, environment.slug())
    done = set()
    if resume and (folder / store.RESULTS).exists():
        settled = (row for row in store.read(folder) if run.settled(row, seed, timeout))
        done = {key for row in settled for key in run.keys_of_row(row)}
    units = run.units_of(cases, kernels, done)
    console = Console(stderr=True)
    if done:
        every = len(run.units_of(cases, kernels))
        console.print(f"{every - len(units)} of {every} results are there already")
    if not units:
        console.print(f"Nothing is left to measure: {escape(str(folder / store.RESULTS))}")
        return
    needed = 0
    if report:
        units, needed = first.unasked_first(units, device)
    environment.set_precision()
    facts = environment.collect(sys.argv)
    facts["specialists"] = [row.full_name for row in kernels if row.kind == "shape"]
    results = store.Store(folder, environment.run_id(), facts)
    made: list[dict[str, Any]] = []
    reports: list[subprocess.Popen[bytes]] = []
    try:
        with _Progress(console, len(units)) as progress:

            def watch(event: str, unit: Unit, row: dict[str, Any] | None) -> None:
                progress(event, unit, row)
                if row is not None:
                    made.append(row)
                    if needed and len(made) == needed < len(units):
                        reports.append(first.start_report(folder))
                        console.print(
                            f"a first report: {escape(str((folder / 'index.html').resolve()))}",
                            soft_wrap=True,
                        )

            run.run(
                units,
                results,
                device=device,
                seed=seed,
                budget_s=budget,
                timeout_s=timeout,
                watch=watch,
            )
    except KeyboardInterrupt:
        console.print(
            f"Stopped. {len(made)} of {len(units)} results are kept in "
            f"{escape(str(folder))}; the same command with --resume goes on."
        )
        raise typer.Exit(130) from None
    finally:
        results.close()
        for started in reports:
            started.wait()
    out_console = Console()
    print_table(out_console, made, device)
    out_console.print(f"Results: {escape(str(folder / store.RESULTS))}", soft_wrap=True)
    if report:
        with Waiting("drawing the report"):
            said = first.last_report(folder)
        out_console.print(escape(said), soft_wrap=True)
    if paragraphs := reasons(made):
        for paragraph in paragraphs:
            out_console.print(escape(paragraph), soft_wrap=True)
        raise typer.Exit(1)


def _steady(
    cases: Sequence[Case],
    backends: Sequence[str],
    kernels: Sequence[str],
    out: Path | None,
    seconds: float,
    seed: int,
) -> None:
    """Each contender alone for seconds on every case; rows are kept, and the means shown."""
    import torch
    from rich.console import Console

    from . import environment, steady
    from .case_bench import gpu_uuid

    if len(kernels) > 1:
        raise typer.BadParameter("--steady takes one --kernel, or the choice of each backend")
    if not torch.cuda.is_available():
        raise ResultsError("--steady needs an NVIDIA GPU, and there is none here")
    environment.set_precision()
    folder, run = out or Path("reports") / environment.slug(), environment.run_id()
    meter, console = steady.Meter(gpu_uuid()), Console()
    for case in cases:
        problem = case.product()
        found = steady.contenders(
            case, backends or ("triton", "cuda"), next(iter(kernels), None),
            seed=seed, synchronize=torch.cuda.synchronize,
        )  # fmt: skip
        measured = steady.measure(
            found, problem.flop, seconds=seconds, meter=meter, synchronize=torch.cuda.synchronize
        )
        for alone in found.values():
            alone.check(torch.cuda.synchronize)
        rows = steady.rows_of(case, run, measured, seed)
        path = steady.append(folder, rows)
        for line in steady.lines(rows):
            console.print(line, highlight=False, soft_wrap=True)
    console.print(f"Results: {path}", soft_wrap=True)


LINE_EVERY_S = 5.0
"""Seconds between two lines of progress where they do not go to a terminal."""


class _Progress:
    """A bar with what is running and the time left; in a pipe or file, a line every few seconds.

    Each reason of trouble is told once, when it is met.
    """

    def __init__(self, console: Console, total: int, every_s: float = LINE_EVERY_S) -> None:
        from rich import progress

        self._console, self._total, self._every_s = console, total, every_s
        self._done, self._what, self._began = 0, "starting", time.monotonic()
        self._over = threading.Event()
        self._lines = threading.Thread(target=self._print_lines, daemon=True)
        self._bar: progress.Progress | None = None
        if console.is_terminal:
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TextColumn("left"),
                progress.TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task(self._what, total=total)
        self._told: set[tuple[str, str]] = set()

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
        else:
            self._lines.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._bar is not None:
            self._bar.stop()
        else:
            self._lines.join()

    def __call__(self, event: str, unit: Unit, row: dict[str, Any] | None) -> None:
        from rich.markup import escape

        if row is None:
            self._what = f"{unit.case}  {unit.full_name}"
            if self._bar is not None:
                self._bar.update(self._task, description=escape(self._what))
            return
        self._done += 1
        if row["status"] in TROUBLE and key_of(row) not in self._told:
            self._told.add(key_of(row))
            trouble = f"{unit.case} {unit.full_name}: {row['status']}: {row['reason']}"
            self._console.print(escape(trouble), soft_wrap=True)
        if self._bar is not None:
            self._bar.advance(self._task)

    def _print_lines(self) -> None:
        from rich.markup import escape

        while not self._over.wait(self._every_s):
            seconds = time.monotonic() - self._began
            line = f"{seconds:.0f} s: {self._done} of {self._total} results; {self._what}"
            self._console.print(escape(line), soft_wrap=True, highlight=False)
