"""Cases that both languages were timed on, and the one that a product is near to.

``measured-<gpu>.csv`` has them, made by scripts/backend_times.py from a report's results.
"""

from __future__ import annotations

import csv
import math
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from .. import gpus
from ..problem import Problem


class Measured(NamedTuple):
    """A case that both were timed on."""

    M: int
    N: int
    K: int
    layout: str
    speedup: float
    """Triton's time over CUDA's."""


stands_for: dict[tuple[int, int], str] = {}
"""Compute capability -> slug of the GPU that choices are for on a machine without one."""


def slug_of(problem: Problem) -> str:
    """Of the GPU that a problem is for, as in gpus.py: the current one, or the first here that has
    the capability, or what stands for it; else "cpu"."""
    import torch

    capability = problem.capability
    # Where CUDA has begun there is one, which is sooner asked.
    if not (torch.cuda.is_initialized() or torch.cuda.is_available()):
        return stands_for.get(capability or (0, 0), "cpu")
    its_own, slug = _of_device(torch.cuda.current_device())
    if capability in (None, its_own):
        return slug
    for index in range(torch.cuda.device_count()):
        its_own, slug = _of_device(index)
        if capability == its_own:
            return slug
    return "cpu"


@cache
def _of_device(index: int) -> tuple[tuple[int, int], str]:
    """Capability and slug of a GPU: a choice asks for them some five times."""
    import torch

    slug = gpus.lookup(torch.cuda.get_device_name(index)).slug
    return torch.cuda.get_device_capability(index), slug


@lru_cache(maxsize=4096)
def nearest(problem: Problem, slug: str, farthest: float) -> Measured | None:
    """The measured case that is least far from the problem, of its types and what is fused."""
    if problem.batch > 1:
        return None
    kind = problem.dtype_in, problem.dtype_out, problem.compute, " ".join(problem.fused)
    least, most = 2.0 ** -(farthest + 0.01), 2.0 ** (farthest + 0.01)
    M, N, K = problem.M, problem.N, problem.K
    cases = [  # those whose each size is near enough, so that few distances are worked out
        case
        for case in measured(timed_on(slug)).get(kind, ())
        if least * M <= case.M <= most * M
        and least * N <= case.N <= most * N
        and least * K <= case.K <= most * K
    ]

    def distance(case: Measured) -> float:
        sizes = ((case.M, problem.M), (case.N, problem.N), (case.K, problem.K))
        doublings = sum(abs(math.log2(there / here)) for there, here in sizes)
        return doublings + (0 if case.layout == problem.layout else 0.5)

    near = min(cases, key=distance, default=None)
    return near if near is not None and distance(near) <= farthest else None


@cache
def timed_on(slug: str) -> str:
    """Slug of the GPU whose cases are taken for those of this one: its own, or those of another
    with the same compute capability; "" where nobody has any."""
    return gpus.kin(slug, lambda each: _path(each).is_file())


def _path(slug: str) -> Path:
    return Path(__file__).with_name(f"measured-{slug}.csv")


@cache
def measured(slug: str) -> dict[tuple[str, str, str, str], list[Measured]]:
    """(dtype of A and B, of C, how it is summed, what is fused) -> cases; empty of other GPUs."""
    path = _path(slug)
    found: dict[tuple[str, str, str, str], list[Measured]] = {}
    if path.is_file():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                kind = row["dtype_in"], row["dtype_out"], row["compute"], row["fused"]
                M, N, K = (int(row[name]) for name in "MNK")
                case = Measured(M, N, K, row["layout"], float(row["speedup"]))
                found.setdefault(kind, []).append(case)
    return found
