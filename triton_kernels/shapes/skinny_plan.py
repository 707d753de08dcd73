"""skinny: its row, its plans, and the configurations worth trying.

Of few rows or columns in 16 bits a model of one line takes the tile and the parts of K: the rows of
a table know a product by its size alone, and how it lies in memory counts as much. No table speaks
of other types (skinny_types.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..host.storage import itemsize
from ..planning import gpus
from ..planning.by_model import fastest_of
from ..planning.choice import planned_by_user
from ..planning.dtypes import SIGNED, kind
from ..planning.k_division import MOST_PARTS, PARTS, KDivisionPlanner, by_elements, thin_side
from ..planning.planner import MOST_STAGES, Config, tile
from ..planning.refusals import refuse_8_bit_floats
from ..planning.rows import row
from . import skinny_types

BY_ELEMENTS_ANY = 32
"""Columns of a tile from which on it is offered to products that are not thin, where elements are
loaded one by one: 231 x 535 x 233 (tn) takes 4.8 us in tiles of 64 x 32 and four parts of K, and
12.4 by pipelined's 64 x 64 (reports/nvidia-h200/trials/races.csv)."""

LEAST_DEPTH = 64
"""Elements of K in a step, at least."""

THIN = 128
"""Rows or columns of C up to which a tile has all of them,"""

MODELLED = 64
"""and up to which the model speaks of them."""

LINE = 64
"""Elements of 16 bits in a line of the L2."""

SMALL_C, SMALL_K = 384, 128
"""Rows and columns of C, and elements along K, up to which tables have tiles of mma.sync."""

FEW_STEPS = ((1, 2), (3, 4))
"""Steps along K of a program, and as many stages as are enough for them."""


class Constants(NamedTuple):
    """What a product takes, in microseconds on an H200, behind a foreign kernel in a graph."""

    start: float
    """Before the first load and after the last store."""
    step: float
    """A step along K, whatever its size."""
    block: float
    """16 KB of A and B into the busiest SM."""
    memory: float
    """A, B and C once, at 4.3 MB/us."""
    run: float
    """The wide operand once, at that rate in runs of 128 bytes; longer runs take less."""
    divided: float
    """The second pass, where K is divided,"""
    part: float
    """a part of it,"""
    sums: float
    """and float32 sums on their way, at 2 MB/us."""
    store: float
    """128 x 256 elements of C by the busiest SM."""
    program: float
    """A program on each SM."""


IN_VECTORS = Constants(1.868, 0.010, 0.214, 0.323, 0.329, 1.215, 0.036, 1.488, 0.511, 0.605)
ONE_BY_ONE = Constants(1.591, 0.668, 0.453, 0.441, 0.0, 0.94, 0.0, 4.054, 3.958, 0.114)
"""Fitted to 252 plans of 25 drawn shapes (reports/nvidia-h200/trials/races.csv). Each shape left
out in turn, its plan takes 4 and 2 % longer than the fastest; that of the tables 16 and 19 %. Of a
divided K the races missed 0.75 us, and since then it takes 0.3 less, by which ``divided`` is more
than the fit to them: see SECOND_PASS_US of scripts/fit_plans.py."""

TILES = ((64, 64), (64, 128), (128, 64))
"""Of vectors: the wide side of a tile, and its step along K."""

TILES_ONE_BY_ONE = ((32, 256), (64, 64), (64, 128), (128, 64))
"""The same where no vector can be loaded: a thread has each element of a step in a register."""

MOST_LOADED = 128 * 128
"""Elements of A and B in such a step, at most: 128 to a thread. A step of 32 x 64 x 256 has half as
many again, and spilled 5 to 18 KB a thread."""

NARROW = 16
"""Rows of the thin operand up to which such tiles of 128 do not spill, where the wide operand is
K-major. With 64 they spilled 1.4 to 2.4 KB a thread, and those of 64 x 128 load as much."""


class SkinnyPlanner(KDivisionPlanner):
    """All parts of all tiles are launched at once."""

    offered = tuple(
        tile(m, n, k, PDL=1)
        for m, n, k in (
            (64, 16, 64), (64, 32, 64), (64, 64, 64), (64, 128, 64), (128, 16, 64), (128, 32, 64),
            (32, 16, 64),
            (64, 16, 128), (64, 32, 128), (64, 16, 256), (32, 16, 256),
        )
    )  # fmt: skip

    offered_by_elements = (
        tile(64, 32, 64, PDL=1, NUM_STAGES=3), tile(64, 64, 64, PDL=1, NUM_STAGES=4),
        tile(64, 16, 64, PDL=1, NUM_STAGES=4), tile(64, 16, 128, PDL=1, NUM_STAGES=4),
        tile(128, 16, 64, PDL=1, NUM_STAGES=4), tile(32, 16, 256, PDL=1, NUM_STAGES=2),
    )  # fmt: skip

    def in_tables(self, problem: Any) -> bool:
        return not kind(problem.dtype_in, problem.compute)

    def reads_in_vectors(self, problem: Any) -> bool:
        """Of the kernels without TMA this one alone is told of rows that are 16 bytes apart."""
        return not by_elements(problem)

    def suits(self, config: Config, problem: Any) -> bool:
        """The thin side in one tile, or nearly; of elements loaded one by one, which are no
        narrow problems only, in tiles of 32 and more in several."""
        thin = min(problem.M, problem.N)
        if by_elements(problem) and config["BLOCK_N"] >= BY_ELEMENTS_ANY:
            return True
        return bool(min(thin, 64) <= config["BLOCK_N"] < 2 * max(thin, 16))

    def rows(self, rows: list[dict[str, Any]], problem: Any, limit: int) -> list[dict[str, Any]]:
        """Of few rows the fastest configuration by the model, unless the user's table has one."""
        if not self.in_tables(problem):
            return [{"config": skinny_types.fastest(problem, gpus.sms_of(problem))}]
        if not modelled(problem) or planned_by_user(problem, self.name):
            return rows
        _, found = fastest(problem, gpus.sms_of(problem))
        stages = self._most_stages(found, problem.dtype_out, limit)
        return [{"config": {**found, "NUM_STAGES": stages}}]

    def adjust(self, config: Config, problem: Any, limit: int) -> tuple[Config, int]:
        """No step along K is deeper than K: past it are zeros, which are copied like others."""
        depth = max(LEAST_DEPTH, 1 << (problem.K - 1).bit_length())
        config = {**config, "BLOCK_K": min(config["BLOCK_K"], depth)}
        return super().adjust(config, problem, limit)

    def divide(self, config: Config, problem: Any, processors: int, transposed: bool) -> Config:
        """Of a single step nothing is ahead, and of a few not much: with fewer stages an SM has
        room for more programs, and nothing begins by asking for steps that do not exist."""
        found = super().divide(config, problem, processors, transposed)
        steps = -(-problem.K // (found["BLOCK_K"] * found["SPLITS"]))
        most = next((stages for few, stages in FEW_STEPS if steps <= few), MOST_STAGES)
        return {**found, "NUM_STAGES": min(found["NUM_STAGES"], most)}

    def tiles_to_divide(self, tiles: int, processors: int) -> int:
        return tiles

    def tiles(self, problem: Any) -> list[tuple[int, int, int]]:
        side = thin_side(problem)
        if min(problem.M, problem.N) > THIN:
            return []
        return [(m, side, k) for m, k in ((32, 256), (64, 64), (64, 128), (64, 256), (128, 64))]

    def variants(self, tile: tuple[int, int, int], problem: Any, processors: int) -> list[Config]:
        return self.parts(tile, problem, processors, swap=True)


def modelled(problem: Any) -> bool:
    """Whether the model speaks of a problem with M <= N: few rows of 16 bits, on Hopper.

    Tables were tuned to a K-major B whose rows are whole lines: at 1 x 8192 x 8192 (nt) theirs
    takes 32.6 us, and what the model takes for other rows 37.9.
    """
    of_16_bits = itemsize(problem.dtype_in) == itemsize(problem.dtype_out) == 2
    hopper = (problem.capability or (9, 0)) == (9, 0)
    small = problem.N <= SMALL_C and problem.K <= SMALL_K
    tuned = small or (problem.b_strides[0] == 1 and problem.b_strides[1] % LINE == 0)
    few = problem.M <= MODELLED and problem.batch == 1
    return bool(few and of_16_bits and hopper and not tuned)


def configs(problem: Any, processors: int) -> Iterator[Config]:
    """What the model chooses from, without stages, for a problem with M <= N."""
    side, one_by_one = thin_side(problem), by_elements(problem)
    for rows, depth in TILES_ONE_BY_ONE if one_by_one else TILES:
        if one_by_one and spills(problem, rows, side, depth):
            continue
        tile = {"BLOCK_M": rows, "BLOCK_N": side, "BLOCK_K": depth, "PDL": 1, "NUM_WARPS": 4}
        tiles, steps = -(-problem.N // rows), -(-problem.K // depth)
        for parts in PARTS:
            if parts == 1 or (parts <= min(steps, MOST_PARTS) and tiles * parts <= 3 * processors):
                yield {**tile, "SPLITS": parts}


def spills(problem: Any, rows: int, side: int, depth: int) -> bool:
    """Whether the elements of a step, loaded one by one, are too many for the registers, for a
    problem with M <= N."""
    k_major = problem.b_strides[0] == 1
    return (rows + side) * depth > MOST_LOADED or (rows == 128 and side > NARROW and k_major)


def modelled_us(config: Config, problem: Any, processors: int) -> float:
    """Microseconds of a problem with M <= N."""
    us = ONE_BY_ONE if by_elements(problem) else IN_VECTORS
    rows, side, depth = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    M, N, K, parts = problem.M, problem.N, problem.K, config["SPLITS"]
    programs, all_steps = -(-N // rows) * parts, -(-K // depth)
    steps, busiest = -(-all_steps // parts), -(-programs // processors)
    run = 2 * (rows if problem.layout[1] == "n" else depth)
    found = us.start + us.step * steps + us.program * programs / processors
    found += us.block * busiest * steps * (rows + side) * depth * 2 / 16384
    found += us.memory * 2 * (M * K + K * N + M * N) / 4.3e6
    found += us.run * 2 * K * N / 4.3e6 * 128 / run
    found += us.store * busiest * rows * side / (128 * 256)
    if parts > 1:
        found += us.divided + us.part * parts + us.sums * parts * 4 * M * N / 2e6
    return found


def fastest(problem: Any, processors: int) -> tuple[float, Config]:
    """(microseconds, configuration) by the model, for a problem with M <= N."""
    return fastest_of(configs(problem, processors), modelled_us, problem, processors)


PLANNER = SkinnyPlanner(
    "skinny", ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLITS", "PDL", "NUM_STAGES", "NUM_WARPS")
)

ROW = row(
    PLANNER,
    "the wide side first, so that few rows waste nothing; K divided among idle SMs; programmatic "
    "dependent launch",
    pairs=SIGNED,
    kind="shape",
    refuse=refuse_8_bit_floats,
)
