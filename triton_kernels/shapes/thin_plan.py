"""thin: its row, and its plans by a model of the time. All is said of the problem with M <= N."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..host.storage import itemsize
from ..planning import gpus
from ..planning.by_model import PlannerByModel, fastest_of
from ..planning.dtypes import ON_CUDA_CORES, PLAIN
from ..planning.planner import Config
from ..planning.rows import row
from . import skinny_plan

MOST_ROWS = 16
"""Rows of C up to which it is taken unnamed: each of them reads B again."""

TUNED = 0.8
"""Of the time of `skinny` by its model that it may take, at most, where tables were tuned for that:
at 1 x 4096 x 4096 (nt) the plan that is taken here takes 11.8 us, and the table's 11.3."""

ROWS_IN_A_TRIP, WIDE, SHALLOW = 0.65, 1000, 32
"""The same where B is read by rows, in vectors and in one trip, of so many columns at least and
elements along K at most: there the model says 0.7 to 1.3 us too little, and at five raced products
`skinny` takes 0.6 to 0.75 of its time (reports/nvidia-h200/trials/races.csv)."""

MOST_IN_GRID = 65535
"""Rows of C, which are the second dimension of the grid."""

SECTOR, VECTOR = 32, 16
"""Bytes of a sector of the L2, and of a vector."""

COLUMNS = {2: (1, 2, 4, 8, 16, 32, 64, 128), 4: (1, 4, 8, 16, 32), 8: (1, 4, 8, 16, 32)}
"""Of a program, by bytes of an element: of float32 and float64 the others hardly ever gained
anything, and each is a kernel to compile."""

MOST_WARPS = 4
"""Of a program in float64 whose A lies across K: with more a thread has too few registers for the
addresses of its elements, on sm_90."""


class Constants(NamedTuple):
    """What a product takes, in microseconds on an H200 behind a foreign kernel in a graph; but for
    instructions."""

    ways: tuple[tuple[int, int], ...]
    """Warps of a program, and elements of a step that a thread has of B."""
    start: float
    """Before the first load and after the last store."""
    trip: float
    """A step along K."""
    element: float
    """An element of B that a thread has, one after the other: loaded one by one,"""
    of_vector: float
    """and in a vector."""
    program: float
    """The instructions of a program alone on its SM, besides what else goes on."""
    issued: float
    """Instructions of a warp: those that are no matter of the step,"""
    issued_by_element: float
    """those for an element of B, loaded one by one,"""
    issued_of_vector: float
    """those in a vector,"""
    issued_by_column: float
    """and those for the sum of a column."""
    into_sm: float
    """Bytes of B into one SM in a microsecond, in thousands,"""
    memory: float
    """and out of memory, in millions."""


_WAYS_K, _WAYS_N = ((4, 8), (4, 16), (16, 8), (16, 16)), ((4, 8), (4, 32), (16, 8), (16, 16))
ALONG_K = {
    2: Constants(_WAYS_K, 1.117, 0.254, 0.019, 0.024, 0.679, 114.4, 8.275, 2.351, 2.5, 35.8, 4.37),
    4: Constants(_WAYS_K, 0.027, 0.122, 0.016, 0.009, 0.166, 221, 6.67, 5.03, 2.72, 50.4, 7.18),
    8: Constants(_WAYS_K, 0.027, 0.122, 0.028, 0.016, 0.166, 221, 20.6, 15.5, 2.72, 50.4, 7.18),
}
ALONG_N = {
    2: Constants(_WAYS_N, 0.653, 0.376, 0.018, 0.009, 0.431, 162.1, 9.026, 17.96, 0.6, 49.4, 1.431),
    4: Constants(_WAYS_N, 0.035, 0.272, 0.015, 0.007, 0.090, 333, 9.63, 5.39, 0.59, 83.3, 3.74),
    8: Constants(_WAYS_N, 0.035, 0.272, 0.020, 0.009, 0.090, 333, 17.9, 10.0, 0.59, 83.3, 3.74),
}
"""By how B lies and bytes of an element. Of 16 bits fitted to 2066 plans of 36 products
(reports/nvidia-h200/trials/thin_triton.csv): of the plans timed, the one that they take is about
7 % slower than the fastest. Of float32 and float64 to 394 plans of 82 products
(few_triton.csv there), whose operands the L2 has from the call before."""

ISSUE_PER_US = 3900
"""Instructions of warps that an SM issues in a microsecond."""

SUMMED = 32
"""Columns of a program whose sums cost instructions of their own: more are beside each other."""

BESIDE = 3
"""The power of the mean of what goes on at once."""


def configs(problem: Any) -> Iterator[Config]:
    """What the model chooses from, for a problem with M <= N: of a C and a K too small for any of
    the ways programs of one warp."""
    each = itemsize(problem.dtype_in)
    few, sector = True, SECTOR // each
    some = [columns for columns in COLUMNS[each] if columns < 2 * problem.N]
    for (warps, elements), columns in itertools.product(_constants(problem).ways, some):
        depth = 32 * warps * elements // columns
        if depth < sector or spills(problem, warps):
            continue
        if depth < 2 * problem.K or depth == sector:
            few = False
            yield {"BLOCK_M": 1, "BLOCK_N": columns, "BLOCK_K": depth, "NUM_WARPS": warps}
    if few:
        yield {"BLOCK_M": 1, "BLOCK_N": 16, "BLOCK_K": sector, "NUM_WARPS": 1}
        for columns in some if each > 2 else ():  # of 16 bits the tile above was timed alone
            if 256 // columns > sector:
                depth = 256 // columns
                yield {"BLOCK_M": 1, "BLOCK_N": columns, "BLOCK_K": depth, "NUM_WARPS": 1}


def spills(problem: Any, warps: int) -> bool:
    """Whether a program of so many warps has a step that the registers do not hold."""
    across = problem.a_strides[1] != 1
    return across and itemsize(problem.dtype_in) == 8 and warps > MOST_WARPS


def _along_k(problem: Any) -> bool:
    return bool(problem.b_strides[0] == 1 or problem.N == 1)


def _constants(problem: Any) -> Constants:
    return (ALONG_K if _along_k(problem) else ALONG_N)[itemsize(problem.dtype_in)]


def _in_vectors(problem: Any) -> bool:
    """Whether B is loaded in vectors."""
    along_k = _along_k(problem)
    size, apart = (problem.K, problem.N)[not along_k], problem.b_strides[int(along_k)]
    vector = VECTOR // itemsize(problem.dtype_in)
    return bool(size % vector == apart % vector == 0)


def modelled_us(config: Config, problem: Any, processors: int) -> float:
    """Microseconds of a problem with M <= N: trips to memory one after the other, an SM's
    instructions, what comes into it, or memory."""
    us, in_vectors, each = _constants(problem), _in_vectors(problem), itemsize(problem.dtype_in)
    warps, columns, depth = config["NUM_WARPS"], config["BLOCK_N"], config["BLOCK_K"]
    of_sm = problem.M * -(-problem.N // columns) / processors
    trips, elements = -(-problem.K // depth), columns * depth // (32 * warps)
    of_element = us.issued_of_vector if in_vectors else us.issued_by_element
    issued = us.issued + trips * elements * of_element + us.issued_by_column * min(columns, SUMMED)
    issued_us = warps * issued / ISSUE_PER_US
    sector = SECTOR // each
    run = columns if _along_k(problem) else max(columns, min(sector, problem.b_strides[0]))
    limits = (
        of_sm * issued_us,
        trips * (us.trip + elements * (us.of_vector if in_vectors else us.element)),
        max(1.0, of_sm) * each * run * problem.K / us.into_sm / 1e3,
        each * (problem.M + problem.N) * problem.K / us.memory / 1e6,
    )
    body = sum(limit**BESIDE for limit in limits) ** (1 / BESIDE)
    return float(us.start + us.program * min(issued_us, 2.0) + body)


def fastest(problem: Any, processors: int) -> tuple[float, Config]:
    """(microseconds, configuration) by the model, for a problem with M <= N."""
    return fastest_of(configs(problem), modelled_us, problem, processors)


class ThinPlanner(PlannerByModel):
    """One row of C a program, in each of the ways that its constants name."""

    fastest = staticmethod(fastest)
    offers_its_own = True

    def suits(self, config: Config, problem: Any) -> bool:
        return min(problem.M, problem.N) <= MOST_ROWS

    def settled(self, problem: Any) -> bool:
        """Of a few rows of 16 bits on Hopper, where its model says less than that of `skinny`."""
        seen = problem.transposed() if self.transposes(problem) else problem
        of_16_bits = itemsize(problem.dtype_in) == itemsize(problem.dtype_out) == 2
        hopper = (problem.capability or (9, 0)) == (9, 0)
        few = seen.M <= MOST_ROWS and problem.plain and problem.batch == 1
        if problem.device == "cpu" or not (of_16_bits and hopper and few):
            return False
        sms = gpus.sms_of(problem)
        small = seen.N <= skinny_plan.SMALL_C and seen.K <= skinny_plan.SMALL_K
        us, config = fastest(seen, sms)
        share = 1.0 if small or skinny_plan.modelled(seen) else TUNED
        by_rows = _in_vectors(seen) and not _along_k(seen) and config["BLOCK_K"] >= seen.K
        if by_rows and seen.N >= WIDE and seen.K <= SHALLOW:
            share = min(share, ROWS_IN_A_TRIP)
        return us < share * skinny_plan.fastest(seen, sms)[0]

    def own_us(self, problem: Any) -> float | None:
        """Of float32 and float64; of 16 bits it is settled."""
        if itemsize(problem.dtype_in) == 2 or min(problem.M, problem.N) > MOST_ROWS:
            return None
        return self.unaligned_us(problem)

    def transposes(self, problem: Any) -> bool:
        return bool(problem.M > problem.N)

    def interpreted(self, problem: Any) -> Config:
        return {**super().interpreted(problem), "BLOCK_M": 1}


def refuse_thin(problem: Any) -> str | None:
    """Why C has too many rows; None when it has not."""
    rows = min(problem.M, problem.N)
    if rows <= MOST_IN_GRID:
        return None
    return (
        f"M={problem.M} and N={problem.N}, and thin counts to {MOST_IN_GRID} rows or columns of C: "
        "another kernel takes them"
    )


PLANNER = ThinPlanner("thin", ("BLOCK_M", "BLOCK_N", "BLOCK_K", "PDL", "NUM_WARPS"))

ROW = row(
    PLANNER,
    "a row of C by elements on CUDA cores, wherever they lie, in a trip to memory or two",
    pairs=(*PLAIN, *ON_CUDA_CORES),
    kind="shape",
    refuse=refuse_thin,
)
