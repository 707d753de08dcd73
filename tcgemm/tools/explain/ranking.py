"""Which kernels would be fastest for a problem: a model of one line, scaled by what was measured.

Times of different runs were taken at different clocks. What compares them is the ratio to cuBLAS,
which each run took launch by launch beside the kernel: a case has one time of cuBLAS, the median of
all its runs, and a kernel's time there is that over the kernel's ratio.

The model: whole waves of tiles over the SMs at the peak of the GPU's arithmetic, or the least
traffic at its bandwidth, whichever is longer. What a rung makes of that is known from the shape
nearest to the problem among its measured ones: their ratio scales the model. Imports no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...bench.case import FUSIONS, NORMAL, Case, case_of_row

if TYPE_CHECKING:
    from ...dispatch import Kernel
    from ...gpus import Gpu
    from ...problem import Problem

LAUNCH_US = 2.0
"""Of every kernel, whatever it computes: from the launch to the first tile, and the way out."""

FARTHEST = 4.0
"""Doublings of M, N and K, in all, beyond which a measured shape says nothing of the problem.
Another layout, fusion or WMMA shape counts as one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A kernel's time on a case, on the scale that all runs of the case share."""

    us: float
    run: str = ""
    sm_clock_mhz: float | None = None
    """While the kernel ran there; ``us`` is free of it."""
    beside_cublas: bool = False
    """Whether its run took cuBLAS's time beside its own; if not, ``us`` is as that run has it."""


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
    exact: bool = False
    """Whether that case is the problem itself: ``us`` was measured, and is no estimate."""
    run: str = ""
    """The run that measured it."""
    sm_clock_mhz: float | None = None
    beside_cublas: bool = False
    """As in ``Measured``."""


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
        waves = math.ceil(tiles * parts / board.sms)
        flop = waves * board.sms * 2 * block[0] * block[1] * problem.K / parts
    return LAUNCH_US + max(flop / peak / 1e6, problem.bytes / board.bandwidth_gb_s / 1e3)


def rank(
    problem: Problem, rows: Iterable[Kernel], board: Gpu, results: Sequence[Mapping[str, str]]
) -> list[Estimate]:
    """The rows that take the problem, the fastest first, those without a time last.

    Args:
        results: stored rows of that GPU (``bench.store.read``); later ones replace earlier ones,
            and those of other data than normal are left out.
    """
    types = problem.dtype_in, problem.dtype_out
    measured = of_results(row for row in results if (row["dtype_in"], row["dtype_out"]) == types)
    found = [
        _estimate(problem, row, board, measured.get((row.backend, row.name), {}))
        for row in rows
        if row.why_not(problem) is None
    ]
    return sorted(found, key=lambda estimate: math.inf if estimate.us is None else estimate.us)


def of_results(
    results: Iterable[Mapping[str, str]],
) -> dict[tuple[str, str], dict[Case, Measured]]:
    """(backend, kernel) -> case -> its time; of several runs the last one's ratio counts."""
    usual = (row for row in results if row.get("data") in ("", None, NORMAL))
    timed = [row for row in usual if row["status"] == "ok" and row["ms_p50"]]
    cases = [case_of_row(row) for row in timed]
    cublas: dict[Case, list[float]] = {}
    for case, row in zip(cases, timed, strict=True):
        if row.get("ratio_p50"):
            cublas.setdefault(case, []).append(float(row["ms_p50"]) * float(row["ratio_p50"]))
    scale = {case: 1e3 * statistics.median(times) for case, times in cublas.items()}
    measured: dict[tuple[str, str], dict[Case, Measured]] = {}
    for case, row in zip(cases, timed, strict=True):
        ratio = float(row.get("ratio_p50") or 0)
        us = scale[case] / ratio if ratio else 1e3 * float(row["ms_p50"])
        clock = row.get("sm_clock_mhz")
        measured.setdefault((row["backend"], row["kernel"]), {})[case] = Measured(
            us, row.get("run", ""), float(clock) if clock else None, bool(ratio)
        )
    return measured


def spread(estimates: Iterable[Estimate]) -> str:
    """A sentence about the runs and clocks that the times come from; empty where they are one."""
    known = [each for each in estimates if each.us is not None]
    runs = {each.run for each in known}
    clocks = [each.sm_clock_mhz for each in known if each.sm_clock_mhz]
    apart = bool(clocks) and max(clocks) > 1.01 * min(clocks)
    if len(runs) < 2 and not apart:
        return ""
    text = f"These times come from {len(runs)} run{'s' if len(runs) > 1 else ''}"
    if clocks:
        low, high = f"{min(clocks):.0f}", f"{max(clocks):.0f}"
        text += (
            f" at SM clocks of {low} to {high} MHz" if apart else f" at an SM clock of {high} MHz"
        )
    text += (
        ". They are on one scale: cuBLAS's median time over the ratio that was taken launch by "
        "launch"
    )
    alone = [each.kernel for each in known if not each.beside_cublas]
    if alone:
        text += f"; {', '.join(alone)} had no cuBLAS beside it, and its own run's clock is in it"
    return text + "."


def _batches_apart(there: int, here: int) -> float:
    """A single product tells of a batch, but a batch of another size tells less the more it is."""
    if there == here:
        return 0.0
    return 0.5 if there == 1 else abs(math.log2(there / here))


def _estimate(
    problem: Problem, row: Kernel, board: Gpu, measured: Mapping[Case, Measured]
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
            + _batches_apart(case.batch, problem.batch)
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
                found = measured[case]
                return Estimate(
                    row.full_name,
                    found.us * here_us / there_us,
                    str(case),
                    found.us,
                    distance(case) == 0,
                    found.run,
                    found.sm_clock_mhz,
                    found.beside_cublas,
                )
    return Estimate(row.full_name)
