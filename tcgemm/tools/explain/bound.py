"""What bounds a problem on a GPU: operations, bytes, and the floor of the time that they set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...gpus import Gpu
    from ...problem import Problem


@dataclass(frozen=True, slots=True)
class Bound:
    """The problem against the GPU."""

    flop: int
    """2 M N K for each product."""
    eops: int
    """M K + (2 K - 1) M N + 2 M N: scale A, multiply, update C; the count of the first document."""
    bytes: int
    intensity: float
    """FLOP per byte."""
    peak_tflops: float | None
    bandwidth_gb_s: float | None
    ridge: float | None
    """FLOP per byte above which the arithmetic is the bound."""
    compute_us: float | None
    memory_us: float | None

    @property
    def floor_us(self) -> float | None:
        known = [t for t in (self.compute_us, self.memory_us) if t is not None]
        return max(known) if known else None

    @property
    def by(self) -> str:
        if self.compute_us is None or self.memory_us is None:
            return "unknown"
        return "arithmetic" if self.compute_us >= self.memory_us else "memory"


def bound(problem: Problem, board: Gpu) -> Bound:
    """Operations, bytes, and the floor of the time that they set on that GPU."""
    M, N, K = problem.M, problem.N, problem.K
    peak = board.peak(problem.dtype_in, problem.compute)
    bandwidth = board.bandwidth_gb_s
    return Bound(
        flop=problem.flop,
        eops=problem.batch * (M * K + (2 * K - 1) * M * N + 2 * M * N),
        bytes=problem.bytes,
        intensity=problem.flop / problem.bytes,
        peak_tflops=peak,
        bandwidth_gb_s=bandwidth,
        ridge=board.ridge(problem.dtype_in, problem.compute),
        compute_us=problem.flop / peak / 1e6 if peak else None,
        memory_us=problem.bytes / bandwidth / 1e3 if bandwidth else None,
    )
