"""Triton or CUDA for a product: what can run here, and which was measured faster nearest to it.

The two differ by a few per cent, and no model of either is that good, so times measured beside each
other decide: ``measured-<gpu>.csv``, made by scripts/backend_times.py from a report's results. A
CUDA kernel counts only where its library is built: nothing is built for a choice.
"""

from __future__ import annotations

import csv
import importlib.util
import math
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from .. import gpus
from ..dispatch import BACKENDS, choose
from ..errors import UnsupportedError
from ..problem import Problem

LANGUAGES = ("triton", "cuda")
"""The first is the default, which is taken where nothing tells them apart."""

FARTHEST = 3.0
"""Doublings of M, N and K, in all, beyond which a measured shape says nothing. Another layout
counts as half of one."""


class Choice(NamedTuple):
    """A backend, and a sentence that says why."""

    backend: str
    why: str


class Measured(NamedTuple):
    """A case that both were timed on."""

    M: int
    N: int
    K: int
    layout: str
    speedup: float
    """Triton's time over CUDA's."""


def backend_for(problem: Problem, kernel: str | None = None, gpu: str | None = None) -> Choice:
    """The backend that a call with ``backend="auto"`` gets.

    Args:
        problem: of the call.
        kernel: asked for by name, or None.
        gpu: slug of the GPU, as in gpus.py; by default that of the current one.

    Raises UnsupportedError, that of the default backend, where neither takes the problem.
    """
    able, ready, refusal = [], [], None
    for backend in LANGUAGES:
        try:
            row = choose(problem, backend, kernel)
        except UnsupportedError as error:
            refusal = refusal or error
            continue
        except LookupError:  # no kernel of that name
            continue
        able.append(backend)
        if problem.device != "cuda" or _ready(backend, row.name, row.plan(problem), problem):
            ready.append(backend)
    if not able:
        choose(problem, LANGUAGES[0], kernel)  # raises, unless the table has changed meanwhile
        raise refusal or UnsupportedError(f"no backend takes {problem}")
    if len(able) == 1:
        return Choice(able[0], f"no kernel of {_other(able[0])} takes it")
    if len(ready) < 2:
        only = (ready or able)[0]
        return Choice(only, f"what {_other(only)} would run is not built here")
    if problem.device != "cuda":
        return Choice(ready[0], "on a CPU no time is compared")
    slug = gpu or _slug_here()
    near = _nearest(problem, slug)
    if near is None:
        return Choice(ready[0], f"nothing near it was measured on {slug}")
    faster = "cuda" if near.speedup > 1 else "triton"
    times = max(near.speedup, 1 / near.speedup)
    where = f"{near.M}x{near.N}x{near.K} {near.layout}"
    return Choice(faster, f"measured {times:.2f} times as fast at {where} on {slug}")


def _other(backend: str) -> str:
    return LANGUAGES[1 - LANGUAGES.index(backend)]


def _ready(backend: str, kernel: str, plan: Any, problem: Problem) -> bool:
    """Whether the kernel runs without a build by a toolkit."""
    if backend == "triton":
        return importlib.util.find_spec("triton") is not None
    return bool(import_module(BACKENDS[backend]).ready(kernel, plan, problem))


@cache
def _slug_here() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return gpus.lookup(torch.cuda.get_device_name()).slug


@lru_cache(maxsize=4096)
def _nearest(problem: Problem, slug: str) -> Measured | None:
    """The measured case that is least far from the problem, of its types and what is fused."""
    if problem.batch > 1:
        return None
    kind = problem.dtype_in, problem.dtype_out, problem.compute, " ".join(problem.fused)
    cases = measured(slug).get(kind, ())

    def distance(case: Measured) -> float:
        sizes = ((case.M, problem.M), (case.N, problem.N), (case.K, problem.K))
        doublings = sum(abs(math.log2(there / here)) for there, here in sizes)
        return doublings + (0 if case.layout == problem.layout else 0.5)

    near = min(cases, key=distance, default=None)
    return near if near is not None and distance(near) <= FARTHEST else None


@cache
def measured(slug: str) -> dict[tuple[str, str, str, str], list[Measured]]:
    """(dtype of A and B, of C, how it is summed, what is fused) -> cases; empty of other GPUs."""
    path = Path(__file__).with_name(f"measured-{slug}.csv")
    found: dict[tuple[str, str, str, str], list[Measured]] = {}
    if path.is_file():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                kind = row["dtype_in"], row["dtype_out"], row["compute"], row["fused"]
                M, N, K = (int(row[name]) for name in "MNK")
                case = Measured(M, N, K, row["layout"], float(row["speedup"]))
                found.setdefault(kind, []).append(case)
    return found
