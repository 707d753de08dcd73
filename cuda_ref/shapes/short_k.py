"""short_k: float32 and float64 over a K of a few elements, on CUDA cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..planning.cost import COLD_BYTES, ceil_div
from ..planning.refusals import sides
from ..planning.rows import FUSES, row, source_constants

ORDER = 207

MOST_TIMED_K = 32
"""Beyond which it is taken by name alone: the tensor cores had won by then."""

START_US = 1.7
"""Before the first load and after the last store, as mma_types_model.py counts it: behind a kernel
in a graph more than a microsecond of it is hidden, for either."""

COLD_US = 0.75
"""What it takes longer where operands of COLD_BYTES or more lie in memory, as mma_types_model.py
counts it, too: fitted to reports/nvidia-h200/trials/few_types.csv, the rest to rows whose operands
the L2 had kept."""

K_US = 0.028
"""Of each element along K: its loads, and additions that wait for each other."""

MULTIPLY_US = {"float32": 0.063, "float64": 0.081}
"""A tile's sums, for each element along K, of the tiles of an SM one after the other."""

L2_BYTES, L2_BYTES_PER_US, MEMORY_BYTES_PER_US = 30e6, 2.7e6, 4.6e6
"""Of C that the L2 takes in before memory has to; and of the rest, which it takes in beside."""

NORM = 3
"""Of sums and stores: close to the longer, not its maximum. All of these are fitted to
reports/nvidia-h200/trials/short_k_types.csv; beside the other rungs' costs the choice loses 3 % to
the fastest rung of its 75 products of three types."""


def refuse_long_k(problem: Any) -> str | None:
    """Why K is not held in shared memory at once; None when it is."""
    asked, most = problem.K, source_constants("short_k")["MOST_K"]
    if asked <= most:
        return None
    return f"K={asked} and short_k holds {most} of it at once: mma_types takes any"


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds by the model; None of a K of which nothing was timed."""
    if problem.K > MOST_TIMED_K:
        return None
    (M, N), tile = sides(problem), plan(problem)
    tiles = ceil_div(M, tile["BLOCK_M"]) * ceil_div(N, tile["BLOCK_N"]) * problem.batch
    itemsize = 8 if problem.dtype_in == "float64" else 4
    size = M * N * problem.batch * itemsize
    read = (M + N) * problem.batch * problem.K * itemsize
    stored = min(size, L2_BYTES) / L2_BYTES_PER_US + max(size - L2_BYTES, 0) / MEMORY_BYTES_PER_US
    multiplied = max(tiles / sms, 1) * problem.K * MULTIPLY_US[problem.dtype_in]
    both = (stored**NORM + multiplied**NORM) ** (1 / NORM)
    cold = COLD_US * min(1.0, read / COLD_BYTES)
    return float(START_US + cold + K_US * problem.K + both)


def plan(problem: Any) -> Mapping[str, int]:
    """The tile, of C transposed where C lies by columns."""
    numbers = source_constants("short_k")
    return {name: numbers[name] for name in ("BLOCK_M", "BLOCK_N")}


ROW = row(
    "short_k",
    "float32 and float64 over a short K, on CUDA cores: all of K in shared memory at once",
    (8, 0),
    pairs=(
        ("float32", "float32", "tf32"),
        ("float32", "float32", "tf32x3"),
        ("float64", "float64"),
    ),
    shapes="K up to 64; A, B and C anywhere",
    refuse=refuse_long_k,
    fuses=FUSES,
    plan=plan,
)
