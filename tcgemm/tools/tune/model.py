"""``tcgemm tune --model``: the model that chooses, fitted to this GPU.

Every kernel that may be the fastest is timed on drawn shapes, by the benchmark: verified, then
among other kernels in a graph and in a stream. The constants of choosing/model.py are fitted to
these rows by choosing/fitting.py. Each seed is then held out in turn, which says what the choice
would lose on shapes that it has not seen; where that is more than tables and costs lose, nothing is
written.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import dispatch
from ...bench.case import Case
from ...bench.drawn import drawn_cases
from ...choosing import fitting, model_files
from ...choosing.model import LEAST_ROWS
from ...errors import ResultsError, UnsupportedError
from ...files import locked, write_whole
from ...waiting import Waiting
from .backends import TUNABLE
from .user_table import unwritable

if TYPE_CHECKING:
    from ...bench.worker import Unit

LEAST_HELD = 30
"""Rows of a language, at least, of which the choice is compared with the fastest timed kernel."""

MAY_BE_FASTEST = tuple(
    f"{backend}/{name}"
    for backend, names in (
        ("cuda", "small one_wave skinny stream_k split_k gemv wgmma_persistent wmma_any"),
        ("triton", "skinny split_k pipelined persistent descriptor warp_specialized"),
    )
    for name in names.split()
)
"""Kernels that are timed on every drawn shape, besides those that tables and costs choose there;
scripts/drawn_rows times the same."""


class Gpu(NamedTuple):
    """What the fit needs to know of the GPU."""

    name: str
    slug: str
    sms: int
    capability: tuple[int, int]


def this_gpu() -> Gpu:
    """The current one."""
    import torch

    from ... import gpus

    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    board = gpus.lookup(found.name)
    return Gpu(board.name, board.slug, found.multi_processor_count, (found.major, found.minor))


def tune_model(
    seeds: Sequence[int], count: int, budget_s: float, out: Path | None, quiet: bool
) -> dict[str, Any]:
    """Time, fit, judge, and write the file of constants of this GPU.

    Args:
        seeds: of the drawn shapes, two different ones at least.
        count: shapes of each.
        budget_s: seconds of timing for each kernel and shape.
        out: the file; by default the user's own of this GPU, which choices read.
        quiet: show no progress.

    Returns:
        What was done, ready for JSON: ``path``, ``rows`` (the folder of what was timed), ``seeds``,
        ``kernels`` (rows of each that has constants), ``held_out``, and ``choices_read``, the file
        that choices go by.

    Raises:
        ResultsError: too few rows for a fit, a fit that loses more than tables and costs do or than
            the present model does, or a file that cannot be written. Nothing but the rows has been
            written then.
    """
    gpu = this_gpu()
    path = out or model_files.user_path(gpu.slug)
    folder = _folder_of_rows(path)
    cases = [case for seed in seeds for case in drawn_cases(seed, count)]
    rows = time_kernels(cases, contenders(cases, gpu), folder, budget_s, quiet)
    with nullcontext() if quiet else Waiting("fitting, and holding each seed out"):
        table = fit(rows, gpu, seeds)
    write(path, table, gpu.slug)
    return {
        "path": str(path),
        "rows": str(folder),
        "seeds": seeds,
        "kernels": {name: found["rows"] for name, found in table["kernels"].items()},
        "held_out": table["held_out"],
        "choices_read": str(model_files.user_path(gpu.slug)),
    }


def _folder_of_rows(path: Path) -> Path:
    """Where the rows of a model's file go. Raises ResultsError where they or it could not."""
    folder = path.with_suffix(".rows")
    if path.is_dir():
        raise ResultsError(f"{path} is a folder: --out names the file to write")
    if path.suffix in (".rows", ".lock"):
        raise ResultsError(f"--out {path} has the ending of a file beside it: let it end in .json")
    if folder.exists() and not folder.is_dir():
        raise ResultsError(
            f"{folder} is a file where a folder for the rows is to be: name another --out"
        )
    return folder


def contenders(cases: Sequence[Case], gpu: Gpu) -> list[dispatch.Kernel]:
    """MAY_BE_FASTEST, and what tables and costs choose for one of the cases, of what runs here."""
    rows = {name: dispatch.named(name) for name in MAY_BE_FASTEST}
    for case in cases:
        problem = replace(case.product(capability=gpu.capability), device="cuda")
        for backend in TUNABLE:
            try:
                row, _ = dispatch.by_tables(problem, backend)
            except UnsupportedError:
                continue
            rows[row.full_name] = row
    return [row for row in rows.values() if row.capability <= gpu.capability]


def time_kernels(
    cases: Sequence[Case],
    kernels: Sequence[dispatch.Kernel],
    folder: Path,
    budget_s: float,
    quiet: bool,
) -> list[dict[str, Any]]:
    """The benchmark's rows of every kernel on every case; they are kept in the folder as well.

    Raises ResultsError where the folder cannot be written.
    """
    from ...bench import environment, run, store

    units = run.units_of(cases, kernels)
    environment.set_precision()
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    results = store.Store(folder, environment.run_id(), environment.collect(sys.argv))
    done = 0
    try:
        with Waiting(_progress(0, len(units))) if not quiet else nullcontext() as waiting:

            def watch(event: str, unit: Unit, row: dict[str, Any] | None) -> None:
                nonlocal done
                done += row is not None
                if waiting is not None:
                    waiting.update(_progress(done, len(units), f": {unit.case} {unit.full_name}"))

            return run.run(units, results, budget_s=budget_s, watch=watch)
    finally:
        results.close()


def _progress(done: int, every: int, what: str = "") -> str:
    return f"timing kernels on drawn shapes, {done} of {every} results{what}"


def fit(rows: Sequence[dict[str, Any]], gpu: Gpu, seeds: Sequence[int]) -> dict[str, Any]:
    """The table of the GPU, as its file holds it, with what it loses where each seed is held out.

    Raises ResultsError where the rows are too few, or it loses more than tables and costs do, or
    than the model that choices go by now, where none of the seeds was it fitted to.
    """
    timed = list(fitting.timed(rows, gpu.sms, gpu.capability))
    kernels = fitting.fitted(timed)
    languages = Counter(name.partition("/")[0] for name in kernels)
    compared = [backend for backend, fitted in languages.items() if fitted > 1]
    if not compared:
        raise ResultsError(_too_few(rows, timed))
    present = model_files.of(gpu.slug)
    fresh = present.constants and not present.seen(seeds)
    every = fitting.held_out(timed, gpu.slug, gpu.sms, present if fresh else None)
    losses = [loss for loss in every if loss.backend in compared]
    counted = {loss.backend: loss.rows for loss in losses}
    if few := [backend for backend in compared if counted.get(backend, 0) < LEAST_HELD]:
        raise ResultsError(
            "too few rows to judge a model by, so none is written: its choice can be compared with "
            f"the fastest timed kernel at {counted.get(few[0], 0)} rows of {few[0]}, and "
            f"{LEAST_HELD} are needed; a larger --count or one more --seed gives more"
        )
    _refuse_worse("tables and costs alone", "tables and costs", losses, "of_tables")
    present_one = f"{present.whose} model, which choices go by now"
    _refuse_worse(present_one, "the present one", losses, "of_present")
    return {
        "about": f"{gpu.name}: tcgemm tune --model",
        "gpu": gpu.slug,
        "sms": gpu.sms,
        "seeds": list(seeds),
        "held_out": [_rounded(loss) for loss in losses],
        "kernels": kernels,
    }


def _refuse_worse(other: str, name: str, losses: Sequence[fitting.Loss], of_other: str) -> None:
    """Raise ResultsError where the fit loses more than another way to choose, which ``of_other``
    of a loss is of, where it is known."""
    beside = [(loss, getattr(loss, of_other)) for loss in losses]
    what = " and ".join(
        f"{100 * loss.of_model:.1f} % in {loss.backend}, where that of {name} is "
        f"{100 * theirs:.1f} % slower"
        for loss, theirs in beside
        if theirs is not None and loss.of_model > theirs
    )
    if what:
        raise ResultsError(
            f"the model chooses worse than {other}, so none is written: on seeds held out its "
            f"choice is slower than the fastest timed kernel by {what}; a larger --count or one "
            "more --seed may fit a better one"
        )


def _rounded(loss: fitting.Loss) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in loss._asdict().items()}


def _too_few(rows: Sequence[dict[str, Any]], timed: Sequence[fitting.Timed]) -> str:
    """Why no language has two kernels to choose among, with what became of the rows."""
    each = Counter(row.kernel for row in timed).most_common(3)
    most = ", ".join(f"{name} {count}" for name, count in each) or "none"
    became = Counter(row["status"] for row in rows)
    said = ", ".join(f"{count} {status}" for status, count in became.most_common())
    return (
        f"too few rows for a model, so none is written: a kernel needs {LEAST_ROWS}, and a "
        f"language two such kernels to choose among; the most have {most}. Of all rows: "
        f"{said or 'none'}. A larger --count or one more --seed gives more; where kernels fail "
        "'tcgemm doctor' says why"
    )


def write(path: Path, table: dict[str, Any], slug: str) -> None:
    """Write the file whole or not at all, under its lock, and have this process read it anew.

    Raises ResultsError where it cannot be written.
    """
    from ...call import forget

    model_files.check(table, slug)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            write_whole(path, json.dumps(table, indent=1) + "\n")
    except OSError as error:
        raise unwritable(path, error) from None
    model_files.forget()
    forget()


def told(found: dict[str, Any]) -> str:
    """What was done, in a few lines."""
    lines = [
        f"  {loss['backend']:8}{100 * loss['of_model']:.1f} % by the model, "
        f"{100 * loss['of_tables']:.1f} % by tables and costs alone"
        + (
            ""
            if loss["of_present"] is None
            else f", {100 * loss['of_present']:.1f} % by the model before"
        )
        + f" ({loss['rows']} rows)"
        for loss in found["held_out"]
    ]
    elsewhere = []
    if found["path"] != found["choices_read"]:
        elsewhere = [f"No choice reads it there: put it at {found['choices_read']} to use it"]
    return "\n".join(
        [
            "Slower than the fastest timed kernel, each seed held out in turn:",
            *lines,
            f"Constants of {len(found['kernels'])} kernels: {found['path']}",
            f"What was timed: {found['rows']}",
            *elsewhere,
        ]
    )
