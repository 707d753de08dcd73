"""small: a small C whose rows may lie anywhere, in as few trips to memory as there can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ..planning.cost import ceil_div, memory_us, more_waves
from ..planning.gpu import of as gpu_of
from ..planning.refusals import MOST_TILES, beyond_tma, refuse_tma
from ..planning.rows import FUSES, row
from . import gemv

ORDER = 190

BLOCK = 32
"""Rows and columns of C that a block computes."""

WIDE = 64
"""The same where operands are staged by elements, for many blocks of a short K."""

LAUNCH_US = 0.6
"""By words: before the first load, which waits for no ring, and after the last store."""

WAVE_US = 1.3
"""A tile on each SM, beside its steps along K, by words."""

STEP_US = 0.05
"""16 along K of such a tile."""

FEW_K = 16
"""Elements along K, those of one mma, up to which C is nearly all there is to move."""

SHORT_K, MODEST_C = 32, 3_000_000
"""Elements along K, and of C, up to which this rung was the fastest of eight at each of 17 drawn
shapes with rows of 16 bytes (reports/nvidia-h200/trials/drawn_kernels.csv): a tensor map and a ring
take longer to begin than a K of two mmas takes."""

LARGE_C, LARGEST_C = 6_860_532, 24_000_000
"""Elements of a C in odd rows. From the first number on no model of drawn shapes speaks of it. Of
copies of A and B 7093 x 1431 x 5 (nn) takes 18.1 us by this rung and 18.5 by wgmma_persistent, and
3633 x 7701 x 15 (tt) 38.5 and 34.8 (reports/nvidia-h200/trials/races.csv)."""

SHARED_KB = 227
"""Of an SM, for blocks."""

MOST_PARTS = 8
"""Of K, one to a block of a cluster."""

PART_US = 0.08
"""Of one: a whole tile's sums on their way to the blocks that add them. 64 x 64 x 320 (tt) takes
2.6 us in one part, and 2.9 in two to five (reports/nvidia-h200/trials/races.csv)."""


class Staged(NamedTuple):
    """How long a way of staging operands takes, in microseconds."""

    tile: int
    """Rows and columns of C of a block."""
    elements: int
    """Of a word."""
    depth: int
    """Elements along K of a stage."""
    threads: int
    """Of a block."""
    blocks: int
    """Of which an SM has room, by registers."""
    stages: int
    """At most, in shared memory."""
    start: float
    """Before the first load, the first stage's way from memory, and after the last store."""
    stage: float
    """Each further stage's way."""
    issue: float
    """An SM's instructions for a stage of one block."""
    store: float
    """An SM's instructions for the rest of one block."""
    exchange: float | None
    """A cluster's barriers, beside PART_US for each of its blocks; None where K is whole always."""


BY_UNITS = Staged(BLOCK, 8, 64, 128, 8, 8, 1.78, 0.25, 0.22, 0.1, 0.67)
BY_WIDE_UNITS = Staged(WIDE, 8, 64, 128, 6, 8, 1.97, 0.41, 0.35, 0.0, None)
"""Of 16 bytes, by cp.async."""

BY_ELEMENTS = Staged(BLOCK, 1, 64, 256, 3, 2, 2.04, 0.63, 0.43, 0.25, 1.08)
BY_WIDE_TILES = Staged(WIDE, 1, 32, 256, 4, 2, 2.04, 0.79, 0.45, 0.21, 1.08)
"""By way of registers. Fitted to products timed behind a foreign kernel, as those above
(docs/lab/cuda_small.md)."""

OF_ROWS = {8: 1.1, 16: 1.0, 32: 0.85, 64: 0.85}
"""Of what a tile of BY_UNITS takes beside its start and the exchange of parts, by the elements that
all rows are multiples of: its rows of 64 bytes begin within sectors, or lines, of the L2. With it
the tile that is taken is 1.4 % slower than the faster of both by units, and 1.9 % without, in 230
raced products (reports/nvidia-h200/trials/races.csv)."""

LEAST_OF_ROWS = min(OF_ROWS.values()) - 1e-9
"""No more than this share of it is left, however times are rounded."""

BESIDE = 4
"""The power of the mean of what goes on at once: of two that take the same time, both take 1.19
times as long."""


def vector(problem: Any) -> int:
    """How many elements of A and B are words: 8, which an end may divide, or 4 or 2, which none
    divides, or 1."""
    sides = (
        ((problem.M, problem.K), problem.a_strides, problem.a_alignment),
        ((problem.K, problem.N), problem.b_strides, problem.b_alignment),
    )

    def fits(elements: int) -> bool:
        apart = problem.batch_strides[:2] if problem.batch > 1 else ()
        return not any(stride % elements for stride in apart) and all(
            alignment % (2 * elements) == 0
            and any(
                strides[inner] == 1
                and (elements == 8 or shape[inner] % elements == 0)
                and (shape[1 - inner] == 1 or strides[1 - inner] % elements == 0)
                for inner in (0, 1)
            )
            for shape, strides, alignment in sides
        )

    return next(elements for elements in (8, 4, 2, 1) if elements == 1 or fits(elements))


def tiles(problem: Any, block: int = BLOCK) -> int:
    """Of all matrices of the batch."""
    return int(ceil_div(problem.M, block) * ceil_div(problem.N, block) * problem.batch)


def plan(problem: Any) -> Mapping[str, int]:
    """The tile, its warps, the elements of a load (VECTOR), and the parts of K (SPLITS)."""
    sms = gpu_of(problem).sms
    way, splits, _ = fastest(problem, sms)
    if way is not None:
        return _staged(way, splits)
    tile = {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "BLOCK_K": 16}
    return {**tile, "WARPS": _warps(problem, sms), "VECTOR": vector(problem), "SPLITS": 1}


def offered(problem: Any, sms: int) -> Iterator[Mapping[str, int]]:
    """Both tiles by units of 16 bytes, with K whole."""
    if vector(problem) == BY_UNITS.elements:
        for way in (BY_UNITS, BY_WIDE_UNITS):
            yield _staged(way, 1)


def _staged(way: Staged, splits: int) -> Mapping[str, int]:
    tile = {"BLOCK_M": way.tile, "BLOCK_N": way.tile, "BLOCK_K": way.depth}
    return {**tile, "WARPS": way.threads // 32, "VECTOR": way.elements, "SPLITS": splits}


def _warps(problem: Any, sms: int) -> int:
    """Of words: as many as need one trip, and where SMs have several blocks no more than fit. Of
    few tiles more than have work, which store C: one would store it in eight turns."""
    steps = max(1, ceil_div(problem.K, 16))
    return min(max(8, ceil_div(steps, 2)), 16) if tiles(problem) <= sms else min(steps, 8)


@lru_cache(maxsize=1024)
def fastest(problem: Any, sms: int) -> tuple[Staged | None, int, float]:
    """How operands are staged, or None by words; in how many parts K is divided; and microseconds:
    of all ways the fastest by the model. In the simulator K is whole."""
    elements = vector(problem)
    found: list[tuple[Staged | None, int, float]] = []
    if elements in (2, 4):
        waves, steps = ceil_div(tiles(problem), sms), ceil_div(problem.K, 16)
        found.append((None, 1, LAUNCH_US + waves * (WAVE_US + steps * STEP_US)))
    for way in (BY_UNITS, BY_WIDE_UNITS, BY_ELEMENTS, BY_WIDE_TILES):
        # A wide tile by elements is for words, too, of which there are no wide tiles.
        if way.elements == elements or (way is BY_WIDE_TILES and elements < 8):
            stages = max(1, ceil_div(problem.K, way.depth))
            whole = problem.device == "cpu" or way.exchange is None
            found.append((way, 1, staged_us(problem, way, 1, sms)))
            # Parts leave memory and the SMs as much to do, and add more the more they are.
            issued = tiles(problem, way.tile) / sms * stages * way.issue
            body = LEAST_OF_ROWS * max(issued, problem.batch * memory_us(problem))
            least, there = way.start + body + (way.exchange or 0.0), _there(problem, way)
            for splits in range(2, 1 if whole else min(MOST_PARTS, stages) + 1):
                if least + splits * PART_US * there > min(us for *_, us in found):
                    break
                found.append((way, splits, staged_us(problem, way, splits, sms)))
    return min(found, key=lambda one: one[2])


def _there(problem: Any, way: Staged) -> float:
    """The share of a tile that is there."""
    return float(min(1.0, problem.M / way.tile) * min(1.0, problem.N / way.tile))


def staged_us(problem: Any, way: Staged, splits: int, sms: int) -> float:
    """Microseconds where operands are staged: trips to memory after the first one, what an SM has
    to do for all of its blocks, and memory, each in part beside the others."""
    blocks = tiles(problem, way.tile) * splits
    stages = ceil_div(max(1, ceil_div(problem.K, way.depth)), splits)
    stage_kb = 2 * way.tile * way.depth * 2 / 1024  # of A and of B, 2 bytes an element
    resident = max(1, min(way.blocks, int(SHARED_KB // (stage_kb * min(stages, way.stages) + 1))))
    trips = ceil_div(blocks, resident * sms) * (stages - 1) * way.stage
    issued = blocks / sms * (stages * way.issue + way.store)
    limits = (trips, issued, problem.batch * memory_us(problem))
    body = sum(limit**BESIDE for limit in limits) ** (1 / BESIDE)
    if way is BY_UNITS:
        body *= OF_ROWS[_aligned(problem)]
    body *= more_waves(tiles(problem, way.tile), splits, sms, resident)
    exchange = (way.exchange or 0.0) + splits * PART_US * _there(problem, way)
    return way.start + body + exchange * (splits > 1)


def _aligned(problem: Any) -> int:
    """Elements, 8 to 64, of which all rows of A, B and C are multiples."""
    strides = (*problem.a_strides, *problem.b_strides, *problem.c_strides)
    return min(64, max(8, min((x & -x for x in strides if x > 1), default=64)))


FEW_SIDE, FEW_TILES, MODEST_K = 96, 40, 4672
"""Rows or columns of C, tiles of BLOCK x BLOCK, and elements of K."""


def settled(problem: Any, sms: int) -> bool:
    """Whether this rung is taken, whatever the models say. It is in three cases:

    - C has few tiles, and K is not very long. Of 35 drawn shapes with at most FEW_TILES tiles and
      K up to MODEST_K this rung was the fastest in 34, by 17 % in the median, and at
      17 x 1104 x 400 it took 2 % more (reports/nvidia-h200/trials/drawn_kernels.csv and races.csv).
      A single row is gemv's where gemv reads B along K. Else gemv is slower too: 3.9 us at
      1 x 32 x 288 (nn), and 2.3 here.
    - K is two mmas, too short for a ring.
    - C is large and lies in odd rows, and its stores are nearly all there is: this rung is as fast
      up to LARGEST_C. For a smaller C the model of drawn shapes decides.
    """
    if not problem.plain or problem.batch > 1 or vector(problem) < 8:
        return False
    size, odd = problem.M * problem.N, max(problem.c_strides) % 8 > 0
    blocks = ceil_div(problem.M, BLOCK) * ceil_div(problem.N, BLOCK)
    few = min(problem.M, problem.N) <= FEW_SIDE and blocks <= FEW_TILES and problem.K <= MODEST_K
    if min(problem.M, problem.N) == 1 and gemv.k_major(gemv.wide(problem)):
        few = False
    short = problem.K <= SHORT_K and size <= MODEST_C
    return bool(few or short or (problem.K <= FEW_K and odd and LARGE_C <= size < LARGEST_C))


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds of a product whose rows TMA cannot read; else None: of those, rungs with tensor
    maps were measured to be faster than this one was before it staged operands."""
    return None if refuse_tma(problem) is None else fastest(problem, sms)[2]


def instance(problem: Any, plan: Mapping[str, Any]) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: see inspection.py."""
    names = {"BYTES": 2 * plan["VECTOR"], "TILE": plan["BLOCK_M"]}
    names["DIVIDED"] = str(plan["SPLITS"] > 1).lower()
    return {name: str(value).__eq__ for name, value in names.items()}


ROW = row(
    "small",
    "a small C of any rows: one trip from memory to mma.sync, by nothing that takes time to begin",
    (9, 0),
    refuse=beyond_tma,
    most_tiles=MOST_TILES // MOST_PARTS,
    plan=plan,
    unaligned_us=lambda problem: cost(problem, gpu_of(problem).sms),
    fuses=FUSES,
)
