"""``tcgemm show-kernel --all``: what the compilers made of every rung, as rows of a CSV file.

One row a rung of a backend that compiles source, in ladder order: which problem it was compiled
for, where its code came from, and the facts and counts of ``describe``. No GPU needed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .describe import FACTS, GROUPS, describe, inspector

if TYPE_CHECKING:
    from ...dispatch import Kernel
    from ...problem import Problem

OF_PROBLEM = ("dtype_in", "dtype_out", "compute", "layout", "M", "N", "K")

COLUMNS = (
    *("backend", "kernel", "adds", "gpu", *OF_PROBLEM),
    *("status", "reason", "plan"),
    *FACTS,
    *GROUPS,
    *("instructions", "kind"),
)
"""Of the file. ``status`` is ok, refused or failed, and ``reason`` says why; ``plan`` is how the
rung runs the problem; ``kind`` is ladder or shape, as in ``dispatch.Kernel``."""


def compile_all(problem: Problem, gpu: str) -> Iterator[dict[str, Any]]:
    """Compile every rung for the problem, one after another, so that the seconds are its own.

    Rungs of backends without source are left out.
    """
    from ... import dispatch

    for backend, path in dispatch.BACKENDS.items():
        if hasattr(import_module(path), "inspect"):
            for row in dispatch.ladder(backend):
                yield compile_one(row, fitting(row, problem), gpu)


def fitting(row: Kernel, problem: Problem) -> Problem:
    """The problem, or where it is none of the rung's types, the first pair that it has, with B
    stored transposed, as 8-bit instructions read it."""
    from ...problem import COMPUTES

    if not row.takes_types(problem.dtype_in, problem.dtype_out, problem.compute):
        dtype_in, dtype_out, *compute = row.pairs[0]
        way = compute[0] if compute else COMPUTES[dtype_in][0]
        problem = replace(problem, dtype_in=dtype_in, dtype_out=dtype_out, compute=way)
        return replace(problem, b_strides=(1, problem.K))
    return problem


def compile_one(row: Kernel, problem: Problem, gpu: str) -> dict[str, Any]:
    """The row of a rung."""
    from ...errors import TcgemmError, UnsupportedError
    from ...problem import settings

    asked = {
        "backend": row.backend,
        "kernel": row.name,
        "kind": row.kind,
        "adds": row.adds,
        "gpu": gpu,
        **{name: getattr(problem, name) for name in OF_PROBLEM},
    }
    try:
        shown = describe(row, problem, inspector(row, problem, None)(False))
    except UnsupportedError as error:
        return {**asked, "status": "refused", "reason": _line(error)}
    except TcgemmError as error:
        return {**asked, "status": "failed", "reason": _line(error)}
    counts = {**shown["facts"], **shown["counts"], "instructions": shown["instructions"]}
    return {**asked, "status": "ok", "reason": "", "plan": settings(shown["plan"]), **counts}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows. Raises ResultsError where that cannot be."""
    from ...errors import ResultsError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise ResultsError(
            f"cannot write {path}: {error.strerror}; --csv names another place"
        ) from None
