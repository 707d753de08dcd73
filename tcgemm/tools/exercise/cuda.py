"""Grades .cu files in the simulator: C, its findings, and for some what it counts."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

SHAPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "missing_barrier": ((40, 24, 40),),
    "tail": ((33, 17, 9), (16, 16, 16)),
    "bank_conflicts": ((64, 8, 64),),
    "async_wait": ((32, 32, 64),),
    "coalescing": ((64, 64, 32),),
    "uncomputed_tiles": ((96, 40, 16), (64, 32, 16)),
    "race": ((4, 4, 200),),
    "ring_parity": ((16, 16, 16), (32, 16, 96)),
}
"""M, N, K that each exercise is tried with, in float16, row-major."""


def _few_conflicts(counts: Any) -> str | None:
    reads = counts.shared_wavefronts - counts.bank_conflicts
    if 2 * counts.bank_conflicts > 31 * reads // 2:
        return (
            f"{counts.bank_conflicts:,} of {counts.shared_wavefronts:,} wavefronts of shared "
            "memory are bank conflicts"
        )
    return None


def _few_sectors(counts: Any) -> str | None:
    if counts.sectors_per_load_request > 2:
        return f"a load request asks for {counts.sectors_per_load_request:.1f} sectors on average"
    return None


COUNTED: dict[str, Callable[[Any], str | None]] = {
    "bank_conflicts": _few_conflicts,
    "coalescing": _few_sectors,
}
"""What is graded besides C: the simulator's counts -> what is wrong with them, or None."""


def failures(name: str, path: Path) -> list[str]:
    """What is wrong with a solution of the exercise ``name``, in sentences; [] where it passes.

    Raises RuntimeError where the file does not compile.
    """
    import torch

    simulator = import_module("tcgemm.cuda_ref.simulator")
    found: list[str] = []
    for M, N, K in SHAPES[name]:
        generator = torch.Generator().manual_seed(M + N + K)
        # In rows with gaps of NaN, so that what is read beyond an operand shows.
        a = torch.full((M, K + 8), float("nan")).half()[:, :K]
        b = torch.full((K, N + 8), float("nan")).half()[:, :N]
        a.copy_(torch.randn(M, K, generator=generator))
        b.copy_(torch.randn(K, N, generator=generator))
        c = torch.full((M, N), float("nan"), dtype=torch.float16)
        try:
            report = simulator.simulate(path, a, b, c, check=True, count=True, timeout_s=30)
        except simulator.SimulationError as error:
            return [str(error)]
        found += [finding.message for finding in report.findings][:3]
        if not any(finding.fatal for finding in report.findings):
            right = a.double() @ b.double()
            wrong = int((~((c.double() - right).abs() <= 0.05)).sum())
            if wrong:
                found.append(f"{wrong} of {M * N} elements of C are wrong at {M}x{N}x{K}")
            if not found and name in COUNTED and (said := COUNTED[name](report.counts)):
                found.append(said)
        if found:
            return found
    return found
