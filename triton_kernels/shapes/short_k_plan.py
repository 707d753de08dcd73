"""short_k: its row, what it refuses, and its plans by a model of the time.

All is said of the product whose C lies by rows: of a C by columns that is the transpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..host.storage import column_major, itemsize
from ..planning.by_model import PlannerByModel, fastest_of
from ..planning.dtypes import FUSES, ON_CUDA_CORES
from ..planning.planner import Config
from ..planning.rows import row

MOST_K = 64
"""Elements along K that it takes by name."""

MOST_TAKEN_K = 16
"""The same unnamed: with more it was the fastest kernel of no product that was timed. Where C is
large its time leaves it a K of up to about 10 in float32 and 5 in float64."""

WARPS, LANES = 8, 32

LEAST_COLUMNS, MOST_COLUMNS = 16, 128
"""Of a tile, which has all of a C that is narrower: a row of A or B with fewer elements than the
program has threads is loaded as often as it is needed, and no thread asks another for it."""

LEAST_ROWS, FEW_ROWS = 8, 16
"""Of a tile: one or two for each warp, where C is small."""

MOST_ROWS = {4: {16: 64, 32: 64, 64: 32, 128: 64}, 8: {16: 64, 32: 64, 64: 32, 128: 32}}
"""The same, at most, by bytes of an element and columns of C: with more a thread has no registers
left for the addresses of A, on sm_90."""

WIDE = 64
"""Columns of a tile of most rows where K is more than 1: twice as many take longer for an element,
with no more instructions (docs/lab/other_types.md)."""

AT_ONCE = 4
"""Elements along K that are on their way beside each other."""

FEW_K, FEW_AT_ONCE = 4, 2
"""The same of a tile of most rows up to a K of so many. Such a K also has tiles of FEW_ROWS."""

VECTOR, LINE = 16, 128
"""Bytes of a thread's vector, and of a line of the L1, which is asked for one line at a time."""

START_US = 0.11
"""Before the first load and after the last store, behind a kernel in a graph. This and what follows
is fitted to 280 plans of 113 products, but for the rates of C
(reports/nvidia-h200/trials/few_triton.csv)."""

PROGRAM_US, TRIP_US = 0.31, 0.04
"""A program by itself, and what it waits for BLOCK_K elements along K."""

ISSUED_US = 0.104
"""Of an SM for a program, whatever its K,"""

STORED_US = 0.044
"""for each time that all threads store, of one program,"""

FMA_US = {4: (0.0093, 0.006), 8: (0.017, 0.0093)}
"""for each time that they multiply, by bytes of an element: where these are loaded one by one, and
in vectors. A load takes LOAD of it: it brings its address and its mask along,"""

LOAD = 0.5

LINE_US = 0.00084
"""and a line of B from the L1 to all warps."""

BESIDE = 2
"""Programs of an SM, by registers."""

L2_BYTES, L2_BYTES_PER_US, MEMORY_BYTES_PER_US = 30e6, 2.7e6, 4.6e6
"""Of C that the L2 takes in before memory has to; and of the rest, which it takes in beside; as of
cuda_ref's short_k (reports/nvidia-h200/trials/short_k_types.csv)."""

NORM = 3
"""Of what goes on at once: close to the longest of it, not its maximum."""


def configs(problem: Any) -> Iterator[Config]:
    """What the model chooses from: tiles that were the fastest of those timed for some product."""
    columns = min(max(LEAST_COLUMNS, 1 << (problem.N - 1).bit_length()), MOST_COLUMNS)
    most, once = MOST_ROWS[itemsize(problem.dtype_in)][columns], at_once(problem)
    tiles = [(LEAST_ROWS, columns, once)]
    if problem.K <= FEW_K:
        tiles.append((FEW_ROWS, columns, once))
    few = 1 < problem.K <= FEW_K
    tiles.append((most, min(columns, WIDE), FEW_AT_ONCE if few else once))
    if problem.K == 1 and columns > WIDE and in_vectors(problem):
        tiles.append((most, columns, once))
    for rows, wide, deep in tiles:
        yield {"BLOCK_M": rows, "BLOCK_N": wide, "BLOCK_K": deep, "NUM_WARPS": WARPS}


def at_once(problem: Any) -> int:
    """BLOCK_K: of a K of 1 nothing else is asked for."""
    return 1 if problem.K == 1 else AT_ONCE


def in_vectors(problem: Any) -> bool:
    """Whether rows of B and C are whole vectors."""
    each = VECTOR // itemsize(problem.dtype_in)
    apart = [problem.b_strides[0] if problem.K > 1 else 0]
    apart += [problem.c_strides[0] if problem.M > 1 else 0]
    if problem.batch > 1:
        apart += problem.batch_strides[1:]
    whole = all(stride % each == 0 for stride in (problem.N, *apart))
    reached = min(problem.b_alignment, problem.c_alignment) >= VECTOR
    return bool(problem.b_strides[1] == problem.c_strides[1] == 1 and whole and reached)


def modelled_us(config: Config, problem: Any, processors: int) -> float:
    """Microseconds of a plan: programs that wait for their loads, what they load and multiply, or
    the way of C to memory."""
    rows, columns, each = config["BLOCK_M"], config["BLOCK_N"], itemsize(problem.dtype_in)
    M, N, K, batch = problem.M, problem.N, problem.K, problem.batch
    vectors = in_vectors(problem)
    unit = VECTOR // each if vectors else 1
    of_sm = -(-M // rows) * -(-N // columns) * batch / processors
    width = min(columns, LANES * unit)
    multiplied, loads = rows * columns / (WARPS * LANES), rows / WARPS + columns / width
    lines = columns / width * max(1, width * min(each * problem.b_strides[1], LINE) / LINE)
    step = FMA_US[each][int(vectors)] * (multiplied + LOAD * loads) + LINE_US * lines
    busy_us = max(of_sm, 1.0) * (ISSUED_US + STORED_US * multiplied / unit + K * step)
    waits = PROGRAM_US + TRIP_US * -(-K // config["BLOCK_K"])
    waits_us = max(of_sm / BESIDE, 1.0) * waits
    size = float(M * N * batch * each)
    stored_us = min(size, L2_BYTES) / L2_BYTES_PER_US
    stored_us += max(size - L2_BYTES, 0.0) / MEMORY_BYTES_PER_US
    stored_us += (M + N) * K * batch * each / MEMORY_BYTES_PER_US
    return float(START_US + sum(x**NORM for x in (busy_us, waits_us, stored_us)) ** (1 / NORM))


def fastest(problem: Any, processors: int) -> tuple[float, Config]:
    """(microseconds, configuration) by the model."""
    return fastest_of(configs(problem), modelled_us, problem, processors)


class ShortKPlanner(PlannerByModel):
    """Its tiles that were the fastest somewhere, and how often each of them loads."""

    fastest = staticmethod(fastest)

    def own_us(self, problem: Any) -> float | None:
        """No time is short enough beyond ``MOST_TAKEN_K``."""
        if problem.K > MOST_TAKEN_K:
            return math.inf
        return self.unaligned_us(problem)

    def transposes(self, problem: Any) -> bool:
        return column_major(problem)

    def interpreted(self, problem: Any) -> Config:
        return {**super().interpreted(problem), "BLOCK_K": at_once(problem)}


def refuse_long_k(problem: Any) -> str | None:
    """Why K is too long for CUDA cores; None when it is not."""
    if problem.K <= MOST_K:
        return None
    return f"K={problem.K} and short_k takes up to {MOST_K}: fused takes any"


PLANNER = ShortKPlanner("short_k", ("BLOCK_M", "BLOCK_N", "BLOCK_K", "PDL", "NUM_WARPS"))

ROW = row(
    PLANNER,
    "float32 and float64 over a short K, on CUDA cores: outer products, and C in runs of its rows",
    pairs=ON_CUDA_CORES,
    kind="shape",
    fuses=FUSES,
    shapes="K up to 64, and up to 16 unnamed; A, B and C anywhere",
    refuse=refuse_long_k,
)
