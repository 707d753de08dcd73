"""``tcgemm verify``: both checks of ``tcgemm.accuracy`` over edges, then over drawn calls."""

from __future__ import annotations

import math
import os
import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import options
from ..errors import OperandError
from ..problem import OUTPUTS
from ..waiting import Waiting

if TYPE_CHECKING:
    from rich.console import Console

    from ..dispatch import Kernel
    from ..verify.calls import DrawnCall
    from ..verify.judge import Outcome

MOST_WORK = {"cpu": 2**16, "cuda": 2**22}
"""Multiply-adds of a drawn call, by device."""

CHUNK = 12
"""Calls that a worker takes at a time."""

MOST_SAVED = 20
"""Failing calls that are written to files."""


def verify(
    backend: options.Backends = None,
    kernel: options.Kernels = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="Only A and B of this dtype. Repeatable.")
    ] = None,
    fuzz: Annotated[
        int, typer.Option(help="Drawn calls for each backend, shared by its kernels.", min=0)
    ] = 100,
    seed: Annotated[int, typer.Option(help="Of the drawn calls.", min=0)] = 0,
    edges: Annotated[
        bool, typer.Option("--edges/--no-edges", help="The calls around edges, before the drawn.")
    ] = True,
    out: Annotated[
        Path, typer.Option(help="Folder for the operands of failing calls.", metavar="FOLDER")
    ] = Path("verify-failures"),
    workers: Annotated[
        int, typer.Option(help="Processes; by default 1 on the CPU, up to 8 on a GPU.", min=0)
    ] = 0,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after this time, whatever is left.", min=1)
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Run one saved call again, and nothing else.")
    ] = None,
) -> None:
    """Check the kernels that run here: edge sizes, layouts, types, fusions, then drawn calls.

    Exits with 1 where a kernel is wrong; its operands are then saved.
    """
    for name in dtype or ():
        if name not in OUTPUTS:
            raise OperandError(f"unknown dtype {name!r}: choose from {', '.join(OUTPUTS)}")

    from rich.console import Console
    from rich.markup import escape

    from .. import dispatch
    from ..errors import ResultsError
    from ..own import register
    from ..verify import judge

    device = _device()
    console = Console()
    if replay is not None:
        _replay(console, replay, device)
        return
    _quiet_about_inf()
    tasks = list(
        _tasks(backend or [], register.names(kernel or []), dtype or [], fuzz, seed, device, edges)
    )
    if not tasks:
        raise OperandError("nothing to verify: --no-edges leaves --fuzz, and that is 0")
    started = time.perf_counter()
    tallies: dict[str, Tally] = {}
    for name, call, outcome in _run(tasks, workers or _workers(device), device, seconds):
        tallies.setdefault(name, Tally()).add(call, outcome)
    _print(console, tallies, device, time.perf_counter() - started)
    ran = sum(tally.cases for tally in tallies.values())
    if ran < len(tasks):
        console.print(f"{len(tasks) - ran} of {len(tasks)} calls were left when the time was over")
    bad = [(name, *one) for name, tally in tallies.items() for one in tally.bad]
    if not bad:
        return
    for number, (name, call, outcome) in enumerate(bad[:MOST_SAVED]):
        console.print(escape(f"{name}: {call}: {outcome.reason}"), soft_wrap=True)
        path = out / f"{name.replace('/', '-')}-{number}.pt"
        try:
            judge.save(path, dispatch.named(name), call)
        except ResultsError as error:
            console.print(escape(f"  not saved: {error}"), soft_wrap=True)
            continue
        console.print(f"  tcgemm verify --replay {escape(str(path))}", soft_wrap=True)
    if len(bad) > MOST_SAVED:
        console.print(f"{len(bad) - MOST_SAVED} more failing calls are not saved")
    raise typer.Exit(1)


@dataclass(slots=True)
class Tally:
    """What became of one kernel's calls."""

    cases: int = 0
    refused: int = 0
    worst: float = 0.0
    worst_call: DrawnCall | None = None
    exact_errors: int = 0
    bad: list[tuple[DrawnCall, Outcome]] = field(default_factory=list)

    def add(self, call: DrawnCall, outcome: Outcome) -> None:
        self.cases += 1
        self.refused += outcome.status == "refused"
        self.exact_errors += outcome.exact_errors
        if outcome.error_ratio > self.worst:
            self.worst, self.worst_call = outcome.error_ratio, call
        if outcome.status in ("wrong", "failed"):
            self.bad.append((call, outcome))


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _workers(device: str) -> int:
    return 1 if device == "cpu" else min(8, max(1, (os.cpu_count() or 2) // 2))


def _rows(backends: list[str], kernels: list[str], dtypes: list[str], device: str) -> list[Kernel]:
    """The rows asked for that run here, each with its pairs of the dtypes asked for."""
    from dataclasses import replace

    from .. import dispatch
    from ..errors import UnsupportedError

    rows = dispatch.select(backends, kernels)
    here = [row for row in rows if device in row.devices and dispatch.why_not_here(row) is None]
    if not here:
        reasons = "; ".join(
            f"{row.full_name} {dispatch.why_not_here(row) or f'takes no {device} tensors'}"
            for row in rows
        )
        raise UnsupportedError(f"no kernel to check runs here: {reasons}")
    if dtypes:
        here = [
            replace(row, pairs=tuple(pair for pair in row.pairs if pair[0] in dtypes))
            for row in here
        ]
        here = [row for row in here if row.pairs]
        if not here:
            raise UnsupportedError(f"none of the kernels asked for takes {' or '.join(dtypes)}")
    return here


def _tasks(
    backends: list[str],
    kernels: list[str],
    dtypes: list[str],
    fuzz: int,
    seed: int,
    device: str,
    edges: bool = True,
) -> Iterator[tuple[str, DrawnCall]]:
    """(kernel, call), the kernels of a backend in turn."""
    from ..verify import calls

    rows = _rows(backends, kernels, dtypes, device)
    for row in rows if edges else []:
        for call in calls.edge_calls(row, device):
            yield row.full_name, call
    for backend in dict.fromkeys(row.backend for row in rows):
        of_backend = [row for row in rows if row.backend == backend]
        choose = random.Random(f"{seed} {backend}").choice
        for number in range(fuzz):
            row = of_backend[number % len(of_backend)]
            yield row.full_name, calls.draw(row, choose, device, MOST_WORK[device])


def _run(
    tasks: list[tuple[str, DrawnCall]], workers: int, device: str, seconds: float | None
) -> Iterator[tuple[str, DrawnCall, Outcome]]:
    """Outcomes as they come; how far it is shows on stderr."""
    by_kernel: dict[str, list[tuple[str, DrawnCall]]] = {}
    for task in tasks:
        by_kernel.setdefault(task[0], []).append(task)
    for of in by_kernel.values():  # a process that takes a chunk loads few builds for it
        of.sort(key=lambda task: (task[1].dtype_in, task[1].dtype_out, task[1].compute))
    chunks = [
        of[start : start + CHUNK]
        for start in range(0, max(map(len, by_kernel.values()), default=0), CHUNK)
        for of in by_kernel.values()
        if start < len(of)
    ]
    random.Random(0).shuffle(chunks)  # so that --seconds leaves out no type pair of all kernels
    end = math.inf if seconds is None else time.perf_counter() + seconds
    with Waiting(f"verifying {chunks[0][0][0]}" if chunks else "verifying") as waiting:
        done = 0
        for outcomes in _chunks_done(chunks, workers, device):
            done += len(outcomes)
            waiting.update(f"verifying: {done} of {len(tasks)} calls, {outcomes[-1][0]}")
            yield from outcomes
            if time.perf_counter() > end:
                return


def _chunks_done(
    chunks: list[list[tuple[str, DrawnCall]]], workers: int, device: str
) -> Iterator[list[tuple[str, DrawnCall, Outcome]]]:
    if workers == 1:
        for chunk in chunks:
            yield _outcomes(chunk, device)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    spawn = multiprocessing.get_context("spawn")
    lost = []  # one process that dies takes all chunks that are not done with it
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin_worker) as pool:
        running = {pool.submit(_outcomes, chunk, device): chunk for chunk in chunks}
        try:
            for done in as_completed(running):
                try:
                    outcomes = done.result()
                except BrokenProcessPool:
                    lost.append(running[done])
                    continue
                yield outcomes
        except BaseException:  # interrupted, or the caller has seen enough
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise
    for chunk in lost:
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            try:
                outcomes = pool.submit(_outcomes, chunk, device).result()
            except BrokenProcessPool:
                outcomes = [(name, call, _died(len(chunk))) for name, call in chunk]
        yield outcomes


def _begin_worker() -> None:
    """A worker leaves Ctrl-C to the process that started it, and the other cores to the others."""
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _quiet_about_inf()


def _quiet_about_inf() -> None:
    """NumPy, in Triton's interpreter, tells of every Inf that a drawn call is meant to give."""
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.")


def _died(calls: int) -> Outcome:
    """What is known of each of so many calls whose process died."""
    from ..verify.judge import Outcome

    return Outcome("failed", reason=f"its process died, at this or another of {calls} calls")


def _outcomes(
    chunk: list[tuple[str, DrawnCall]], device: str
) -> list[tuple[str, DrawnCall, Outcome]]:
    """Check each call, repeated; after a fault that loses the GPU's context, fail the rest."""
    from .. import dispatch
    from ..errors import first_line
    from ..verify.judge import Outcome, check_repeated

    results = []
    lost = ""
    for name, call in chunk:
        if lost:
            results.append((name, call, Outcome("failed", reason=lost)))
            continue
        try:
            outcome = check_repeated(dispatch.named(name), call, device)
        except RuntimeError as error:
            outcome = Outcome("failed", reason=first_line(error))
            if device == "cuda":
                lost = f"not run: the GPU's context was lost before it ({call})"
        results.append((name, call, outcome))
    return results


def _print(console: Console, tallies: dict[str, Tally], device: str, seconds: float) -> None:
    from rich.markup import escape
    from rich.table import Table

    # Sixty columns have room for the longest name and the five numbers.
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, collapse_padding=True)
    table.title, table.title_justify = f"on {_name_of(device)}", "left"
    table.add_column("kernel", no_wrap=True)
    for name in ("calls", "refused", "failed", "exact\nerrors", "error/\nbound"):
        table.add_column(name, justify="right")
    for name, tally in tallies.items():
        table.add_row(
            name,
            str(tally.cases),
            str(tally.refused),
            f"[red]{len(tally.bad)}[/]" if tally.bad else "0",
            str(tally.exact_errors),
            f"{tally.worst:.3f}",
        )
    console.print(table)
    console.print("The call with the largest error over its bound, of each:")
    for name, tally in tallies.items():
        if tally.worst_call is not None:
            console.print(escape(f"  {name}: {tally.worst_call}"), soft_wrap=True)
    cases = sum(tally.cases for tally in tallies.values())
    console.print(f"{cases} cases in {seconds:.0f} s")


def _name_of(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else "the CPU"


def _replay(console: Console, path: Path, device: str) -> None:
    from rich.markup import escape

    from ..errors import OperandError
    from ..verify.judge import replay

    if not path.is_file():
        raise OperandError(f"{path} is no file: 'tcgemm verify' prints those that it saved")
    row, call, outcome = replay(path, device)
    what = outcome.reason or f"error over bound {outcome.error_ratio:.3g}"
    console.print(escape(f"{row.full_name}: {call}: {outcome.status}: {what}"), soft_wrap=True)
    if outcome.status in ("wrong", "failed"):
        raise typer.Exit(1)
