"""Which kernel is taken for types other than 16-bit floats, by the models of their times.

Those of fused, warp_specialized and skinny stand in type_times.py. A kernel without a tensor core
has a model of its own (``Planner.own_us``), which is weighed against these. Imports no triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..planning.dtypes import kind
from ..planning.planner import Planner
from . import type_times

FEW = 128
"""Rows or columns of C up to which skinny is weighed with its K in one part."""


def choose(
    problem: Any, usual: str, able: Sequence[str], planners: Mapping[str, Planner], sms: int
) -> str:
    """The kernel, of those that are able, that takes less than the usual one by ``EARNED`` of
    type_times.py, and least of all; else the usual one.

    Of a batch, and where something is fused, the usual one is weighed against kernels with a model
    of their own alone.
    """
    if not type_times.modelled(alone(problem)):
        return usual
    known = type_times.KERNELS if type_times.modelled(problem) else (usual,)
    times = {}
    for name in able:
        us = planners[name].own_us(problem)
        if us is None and name in known:
            us = _us(name, problem, planners[name](problem), sms)
        if us is not None:
            times[name] = us * (1 if name == usual else 1 + type_times.EARNED)
    return min(times, key=lambda name: times[name]) if usual in times else usual


def alone(problem: Any) -> Any:
    """A problem without its batch and what is fused: of that all kernels take about the same."""
    return replace(
        problem, batch=1, alpha=1.0, beta=0.0, c_in_strides=None, bias=False, epilogue="", scales=""
    )


def _us(name: str, problem: Any, plan: Mapping[str, int], sms: int) -> float | None:
    """Microseconds of a plan; None of a kernel that has no times of the type, or of skinny where it
    is not meant for such a product: of many rows and columns, with its K in one part."""
    if name not in type_times.STEPS[kind(problem.dtype_in, problem.compute)]:
        return None
    if name == "skinny" and min(problem.M, problem.N) > FEW and plan["SPLITS"] == 1:
        return None
    return type_times.us(name, problem, plan, sms)
