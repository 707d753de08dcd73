"""Grades .cu files in the simulator: C, its findings, and for some its counts or waits."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from .elements import wrong_elements

SHAPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "missing_barrier": ((40, 24, 40),),
    "tail": ((33, 17, 9), (16, 16, 16)),
    "bank_conflicts": ((64, 8, 64),),
    "async_wait": ((32, 32, 128),),
    "coalescing": ((64, 64, 32),),
    "uncomputed_tiles": ((96, 40, 16), (64, 32, 16)),
    "race": ((4, 4, 200),),
    "ring_parity": ((16, 16, 16), (32, 16, 96)),
}
"""M, N, K that each exercise is tried with, in float16, row-major."""


LATENCY = 30
"""Ticks from asking to having in a followed run: less than a step of async_wait multiplies."""


def _few_conflicts(report: Any) -> str | None:
    counts = report.counts
    needed = counts.shared_wavefronts - counts.bank_conflicts
    M, N, K = SHAPES["bank_conflicts"][0]
    if needed < M * N * K // 32:
        return (
            f"{needed:,} wavefronts of shared memory without conflicts, where a warp that reads "
            f"each element of A there makes {M * N * K // 32:,}: keep the tile, change its layout"
        )
    if 2 * counts.bank_conflicts > 31 * needed // 2:
        return (
            f"{counts.bank_conflicts:,} of {counts.shared_wavefronts:,} wavefronts of shared "
            "memory are bank conflicts"
        )
    return None


def _few_sectors(report: Any) -> str | None:
    counts = report.counts
    if counts.sectors_per_load_request > 2:
        return f"a load request asks for {counts.sectors_per_load_request:.1f} sectors on average"
    return None


def _copies_in_flight(report: Any) -> str | None:
    waited = [span for span in report.timeline if span.phase == "wait for copies"]
    # The first copy is waited for with nothing to multiply; later ones have had a step to arrive.
    if sum(span.end - span.start for span in waited if span.warp == 0) > 2 * LATENCY:
        return (
            "C is right, but every step waits for the copy that it has just started: wait for the "
            "copy of this step before the next one is started, or for all copies but the newest"
        )
    return None


def out_of_order(writers: Any) -> str | None:
    """What is wrong with who wrote which tile of uncomputed_tiles; ``writers`` of `simulate`."""
    side, group = 16, 4
    tiles = (writers[::side, ::side] - 1).tolist()
    rows, cols = len(tiles), len(tiles[0])
    bands = [range(first, min(first + group, rows)) for first in range(0, rows, group)]
    order = [(row, col) for band in bands for col in range(cols) for row in band]
    for block, (row, col) in enumerate(order):
        if tiles[row][col] != block:
            return (
                f"C is right, but tile ({row}, {col}) of {rows} x {cols} is computed by block "
                f"{tiles[row][col]}, and in groups of {group} tile rows it is block {block}'s"
            )
    return None


COUNTED: dict[str, Callable[[Any], str | None]] = {
    "async_wait": _copies_in_flight,
    "bank_conflicts": _few_conflicts,
    "coalescing": _few_sectors,
}
"""What is graded besides C: the simulator's report -> what is wrong with it, or None."""


def failures(name: str, path: Path) -> list[str]:
    """What is wrong with a solution of the exercise ``name``, in sentences; [] where it passes.

    Raises RuntimeError where the file does not compile.
    """
    import torch

    simulator = import_module("tcgemm.cuda_ref.simulator")
    timeline = import_module("tcgemm.cuda_ref.simulator.timeline").Timeline
    followed = timeline(LATENCY, blocks=1) if name == "async_wait" else None
    found: list[str] = []
    for M, N, K in SHAPES[name]:
        generator = torch.Generator().manual_seed(M + N + K)
        # In rows with gaps of NaN, so that what is read beyond an operand shows.
        a = torch.full((M, K + 8), float("nan")).half()[:, :K]
        b = torch.full((K, N + 8), float("nan")).half()[:, :N]
        a.copy_(torch.randn(M, K, generator=generator))
        b.copy_(torch.randn(K, N, generator=generator))
        c = torch.full((M, N), float("nan"), dtype=torch.float16)
        writers = torch.zeros(M, N, dtype=torch.int32)
        try:
            report = simulator.simulate(
                path, a, b, c, check=True, count=True, timeline=followed, writers=writers,
                timeout_s=30,
            )  # fmt: skip
        except simulator.SimulationError as error:
            return [str(error)]
        found += [finding.message for finding in report.findings][:3]
        if not any(finding.fatal for finding in report.findings):
            if said := wrong_elements(a, b, c):
                found.append(said)
            if not found and name in COUNTED and (said := COUNTED[name](report)):
                found.append(said)
            if not found and name == "uncomputed_tiles" and (said := out_of_order(writers)):
                found.append(said)
        if found:
            return found
    return found
