"""Triton or CUDA for a product: what can run here, and which is faster.

On the shapes of suites the two differ by a few per cent, and no model of either is that good, so
times measured beside each other decide: ``measured-<gpu>.csv``, made by scripts/backend_times.py
from a report's results. Far from all of these the model of model.py does. A CUDA kernel counts only
where its library is built: nothing is built for a choice.
"""

from __future__ import annotations

import importlib.util
from importlib import import_module
from typing import Any, NamedTuple

from .. import repacking
from ..dispatch import BACKENDS, Kernel, by_models, choose, select
from ..errors import UnsupportedError
from ..problem import Problem
from ..vocabulary import unknown_kernel
from . import model, model_files
from .measured import nearest, slug_of, timed_on

LANGUAGES = ("triton", "cuda")
"""The first is the default, which is taken where nothing tells them apart."""

NEAR = 1.0
"""Doublings of M, N and K, in all, up to which a measured shape says more than the model. Another
layout counts as half of one."""

FARTHEST = 3.0
"""The same beyond which it says nothing, also where the model does not know both kernels."""


class Choice(NamedTuple):
    """A backend, and a sentence that says why."""

    backend: str
    why: str


def backend_for(problem: Problem, kernel: str | None = None, gpu: str | None = None) -> Choice:
    """The backend that a call with ``backend="auto"`` gets.

    Args:
        problem: of the call.
        kernel: asked for by name, or None.
        gpu: slug of the GPU, as in gpus.py; by default of the one that the problem is for.

    Raises UnsupportedError, of the first that has such a kernel, where neither takes the problem;
    UnknownNameError, where neither has one.
    """
    able, ready, refusal = [], [], None
    rows: dict[str, Kernel] = {}
    for backend in LANGUAGES:
        try:
            row = choose(problem, backend, kernel)
        except UnsupportedError as error:
            refusal = refusal or error
            continue
        except LookupError:  # no kernel of that name
            continue
        able.append(backend)
        rows[backend] = row
        if problem.device != "cuda" or _ready(backend, row.name, row.plan(problem), problem):
            ready.append(backend)
    if not able:
        if refusal is not None:
            raise refusal
        raise unknown_kernel(kernel or "", [row.full_name for row in select(LANGUAGES)])
    if len(able) == 1:
        return Choice(able[0], f"no kernel of {_other(able[0])} takes it")
    if len(ready) < 2:
        only = (ready or able)[0]
        return Choice(only, f"what {_other(only)} would run is not built here")
    if problem.device != "cuda":
        return Choice(ready[0], "on a CPU no time is compared")
    slug = gpu or slug_of(problem)
    near = nearest(problem, slug, NEAR)
    if near is None and (modelled := _modelled(problem, rows, slug, kernel)):
        return modelled
    near = near or nearest(problem, slug, FARTHEST)
    if near is None:
        return Choice(ready[0], f"nothing near it was measured on {slug}")
    faster = "cuda" if near.speedup > 1 else "triton"
    times = max(near.speedup, 1 / near.speedup)
    where = f"{near.M}x{near.N}x{near.K} {near.layout}"
    return Choice(faster, f"measured {times:.2f} times as fast at {where} on {timed_on(slug)}")


def _modelled(
    problem: Problem, rows: dict[str, Kernel], slug: str, named: str | None
) -> Choice | None:
    """The faster by the model, where it knows the kernels of both; of plain 16-bit products."""
    if slug == "cpu" or not model.knows(problem):
        return None
    sms = model.sms_of(slug)
    times = {}
    for backend, row in rows.items():
        copies = None if named else repacking.worth(problem, backend)
        asked = copies.problem if copies else problem
        # As the model of kernels has them: it was not fitted to plans of plans.py.
        row = row if named else by_models(asked, backend)[0]
        us = model.estimated_us(row.full_name, asked, row.plan(asked), slug, sms)
        if us is None:
            return None
        times[backend] = us + (repacking.copying_us(problem, copies, backend) if copies else 0.0)
    fast, slow = sorted(times, key=times.__getitem__)
    by = f"{model_files.of(slug).whose} model of {slug}"
    return Choice(fast, f"{times[fast]:.3g} us by {by}, {slow} {times[slow]:.3g}")


def _other(backend: str) -> str:
    return LANGUAGES[1 - LANGUAGES.index(backend)]


def _ready(backend: str, kernel: str, plan: Any, problem: Problem) -> bool:
    """Whether the kernel runs without a build by a toolkit."""
    if backend == "triton":
        return importlib.util.find_spec("triton") is not None
    return bool(import_module(BACKENDS[backend]).ready(kernel, plan, problem))
