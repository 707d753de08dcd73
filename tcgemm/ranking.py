"""Which kernels would be fastest for a problem: a model of one line, scaled by what was measured.

The model: whole rounds of tiles over the SMs at the peak of the GPU's arithmetic, or the least
traffic at its bandwidth, whichever is longer. What a rung makes of that is known from the shape
nearest to the problem among its measured ones: their ratio scales the model. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .bench.cases import FUSIONS, Case, case_of_row

if TYPE_CHECKING:
    from .dispatch import Kernel
    from .gpus import Gpu
    from .problem import Problem

LAUNCH_US = 2.0
"""Of every kernel, whatever it computes: from the launch to the first tile, and the way out."""

FARTHEST = 4.0
"""Doublings of M, N and K, in all, beyond which a measured shape says nothing of the problem.
Another layout, fusion or WMMA shape counts as one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a kernel that takes the problem would need."""

    kernel: str
    """backend/kernel."""
    us: float | None = None
    """None where nothing near it was measured."""
    measured: str = ""
    """The measured case from which the time is scaled."""
    measured_us: float | None = None


def block_of(plan: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns of C that a block computes at a time; None if the plan is silent."""
    if {"BLOCK_M", "BLOCK_N"} <= plan.keys():
        block = plan["BLOCK_M"], plan["BLOCK_N"]
        return block[::-1] if plan.get("SWAP") else block
    if {"MMA_M", "WARPS_M", "MMA_N", "WARPS_N"} <= plan.keys():
        return plan["MMA_M"] * plan["WARPS_M"], plan["MMA_N"] * plan["WARPS_N"]
    return None


def ideal_us(problem: Problem, plan: Mapping[str, Any], board: Gpu) -> float | None:
    """The time of the plan if every busy SM worked at its peak; None where a peak is unknown."""
    peak = board.peak(problem.dtype_in, problem.compute)
    if not (peak and board.bandwidth_gb_s and board.sms):
        return None
    flop: float = problem.flop
    if block := block_of(plan):
        parts = plan.get("SPLITS") or 1
        tiles = math.ceil(problem.M / block[0]) * math.ceil(problem.N / block[1]) * problem.batch
        rounds = math.ceil(tiles * parts / board.sms)
        flop = rounds * board.sms * 2 * block[0] * block[1] * problem.K / parts
    return LAUNCH_US + max(flop / peak / 1e6, problem.bytes / board.bandwidth_gb_s / 1e3)


def rank(
    problem: Problem, rows: Iterable[Kernel], board: Gpu, results: Sequence[Mapping[str, str]]
) -> list[Estimate]:
    """The rows that take the problem, the fastest first, those without a time last.

    Args:
        results: stored rows of that GPU (``bench.store.read``); later ones replace earlier ones.
    """
    measured: dict[tuple[str, str], dict[Case, float]] = {}
    for result in results:
        if result["status"] == "ok" and result["ms_p50"]:
            of_kernel = measured.setdefault((result["backend"], result["kernel"]), {})
            of_kernel[case_of_row(result)] = 1e3 * float(result["ms_p50"])
    found = [
        _estimate(problem, row, board, measured.get((row.backend, row.name), {}))
        for row in rows
        if row.why_not(problem) is None
    ]
    return sorted(found, key=lambda estimate: math.inf if estimate.us is None else estimate.us)


def _estimate(
    problem: Problem, row: Kernel, board: Gpu, measured: Mapping[Case, float]
) -> Estimate:
    types = problem.dtype_in, problem.dtype_out, problem.compute
    fused = {"residual" if word == "beta" else word for word in problem.fused} & set(FUSIONS)

    def distance(case: Case) -> float:
        sizes = ((case.M, problem.M), (case.N, problem.N), (case.K, problem.K))
        return (
            sum(abs(math.log2(there / here)) for there, here in sizes)
            + (case.layout != problem.layout)
            + (set(case.fused.split()) != fused)
            + (case.mma_shape != problem.mma_shape)
        )

    cases = [
        case
        for case in measured
        if (case.dtype_in, case.dtype_out, case.compute) == types and distance(case) <= FARTHEST
    ]
    for case in sorted(cases, key=distance):
        there = case.product(capability=problem.capability)
        if row.why_not(there) is None:
            here_us = ideal_us(problem, row.plan(problem), board)
            there_us = ideal_us(there, row.plan(there), board)
            if here_us and there_us:
                us = measured[case] * here_us / there_us
                return Estimate(row.full_name, us, str(case), measured[case])
    return Estimate(row.full_name)
