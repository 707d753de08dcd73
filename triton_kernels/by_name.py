"""The rungs' plans, asked by the rung's name: what ``tcgemm tune`` needs. Imports no triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import forget as forget_choices
from . import planners
from .planning import planner, tables
from .planning.gpus import gpu_here as gpu_here

PLANNERS = planners()
"""Rung -> its planner, in ladder order."""

RUNGS = tuple(name for name, each in PLANNERS.items() if each.tunable)
"""Rungs that can be tuned."""

DIVIDING = tuple(name for name, each in PLANNERS.items() if each.divides_k)
"""Rungs that divide K; their tables speak of the problem with M <= N."""


def plan(kernel: str, problem: Any) -> Mapping[str, int]:
    """Keyword arguments of the rung's ``run`` for a problem (M, N, K, dtypes, strides, device)."""
    return PLANNERS[kernel](problem)


def divide(
    kernel: str, config: dict[str, int], problem: Any, processors: int, transposed: bool
) -> dict[str, int]:
    """The plan of a table's config; see ``Planner.divide``."""
    return PLANNERS[kernel].divide(config, problem, processors, transposed)


def shared_bytes(
    kernel: str,
    config: Mapping[str, int],
    dtype_out: str,
    dtype_in: str = "bfloat16",
    compute: str = "float32",
) -> int:
    """Upper bound of a program's shared memory in bytes."""
    return PLANNERS[kernel].shared_bytes(config, dtype_out, dtype_in, compute)


def fit(
    kernel: str,
    config: dict[str, int],
    dtype_out: str,
    limit: int,
    dtype_in: str = "bfloat16",
    compute: str = "float32",
) -> dict[str, int]:
    """The config as it fits ``limit`` bytes of shared memory; see ``Planner.fit``."""
    return PLANNERS[kernel].fit(config, dtype_out, limit, dtype_in, compute)


def candidates(kernel: str, problem: Any, shared: int, processors: int) -> list[dict[str, int]]:
    """Configurations worth trying; see ``Planner.candidates``.

    Raises:
        ValueError: the rung has no candidates.
    """
    if kernel not in RUNGS:
        raise ValueError(f"{kernel} is not tuned: choose from {', '.join(RUNGS)}")
    return PLANNERS[kernel].candidates(problem, shared, processors)


def forget() -> None:
    """Read all tables anew from now on."""
    tables.forget()
    planner.forget()
    forget_choices()
