"""Which kernel is taken for types other than 16-bit floats, by the models of their times.

Those of fused, warp_specialized and skinny stand in type_times.py. A kernel without a tensor core
has a model of its own (``Planner.own_us``), which is weighed against these. Imports no triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..host.storage import itemsize
from ..planning.dtypes import kind
from ..planning.planner import Planner
from ..shapes.skinny_types import in_odd_rows
from . import type_times

FEW = 128
"""Rows or columns of C up to which skinny is weighed with its K in one part, but for a short K."""

THIN = 16
"""Rows or columns of C up to which the times of skinny were compared with those of thin."""

START_US, THIN_START_US = 0.94, 0.43
"""What takes the place of the start of type_times.json against kernels with a model of their own,
whose times were taken in a graph of four products: of all kernels, and of skinny for a C so thin.
These and ``BY_ELEMENTS`` are fitted to reports/nvidia-h200/trials/few_triton.csv."""

BY_ELEMENTS = {
    "fused": {4: 1.54, 8: 0.94},
    "skinny": {4: 1.32, 8: 0.95},
    "skinny, thin": {4: 1.93, 8: 1.49},
    "skinny, in odd rows": {4: 1.4, 8: 1.1},
}
"""What the rest of the time is multiplied by where elements are loaded one by one, by their bytes:
type_times.json was fitted to long sides, of which the last tile is a small part. That of tens of
columns over a long K is set by hand to columns_triton.csv beside few_triton.csv."""


def choose(
    problem: Any, usual: str, able: Sequence[str], planners: Mapping[str, Planner], sms: int
) -> str:
    """The kernel, of those that are able, that takes less than the usual one by ``EARNED`` of
    type_times.py, and least of all; else the usual one.

    Of a batch, and where something is fused, the usual one is weighed against kernels with a model
    of their own alone. Where there are such, the times of the others are put beside theirs.
    """
    if not type_times.modelled(alone(problem)):
        return usual
    known = type_times.KERNELS if type_times.modelled(problem) else (usual,)
    own = {name: planners[name].own_us(problem) for name in able}
    beside = any(us is not None for us in own.values())
    times = {}
    for name in able:
        us = own[name]
        if us is None and name in known:
            us = us_of(name, problem, planners[name](problem), sms, beside)
        if us is not None:
            times[name] = us * (1 if name == usual else 1 + type_times.EARNED)
    return min(times, key=lambda name: times[name]) if usual in times else usual


def alone(problem: Any) -> Any:
    """A problem without its batch and what is fused: of that all kernels take about the same."""
    return replace(
        problem, batch=1, alpha=1.0, beta=0.0, c_in_strides=None, bias=False, epilogue="", scales=""
    )


def us_of(name: str, problem: Any, plan: Mapping[str, int], sms: int, beside: bool) -> float | None:
    """Microseconds of a plan, ``beside`` kernels with a model of their own or not; None of a kernel
    that has no times of the type, or of skinny where it was not timed: of many rows and columns and
    a longer K, in one part."""
    if name not in type_times.STEPS[kind(problem.dtype_in, problem.compute)]:
        return None
    fewer = min(problem.M, problem.N)
    if name == "skinny" and fewer > FEW and plan["SPLITS"] == 1 and not beside:
        return None
    us = type_times.us(name, problem, plan, sms)
    if not beside:
        return us
    thin = name == "skinny" and fewer <= THIN
    one_by_one = type_times.one_by_one(name, problem, plan)
    of_tens = name == "skinny" and in_odd_rows(problem)
    shape = "skinny, in odd rows" if of_tens else "skinny, thin" if thin else name
    by = BY_ELEMENTS[shape] if one_by_one else {}
    rest = by.get(itemsize(problem.dtype_in), 1.0) * (us - type_times.CONSTANTS.start)
    return (THIN_START_US if thin else START_US) + rest
