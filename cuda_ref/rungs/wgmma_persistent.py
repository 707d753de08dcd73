"""wgmma_persistent, the production kernel: a block computes the tile whose last wave ends first.

A tile is compiled into a build of its own (see fusion.case), so a plan names all that the source
needs. The choice is a model. In the main a product takes the waves of its tiles on the SMs, times
the area of a tile over its rate. ``_by_time`` adds what a step takes at least, the stores of a
short K, and that ping-pong has two waves at least; where rows split lines of the L2 it lowers the
rate by what a tile reads, or a pair of tiles that share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from ..planning.cost import LAUNCH_US, MEMORY_BYTES_PER_US, TILE_K, ceil_div
from ..planning.gpu import of as gpu_of
from ..planning.pairs import (
    SPLIT_SECTORS,
    WHOLE,
    cluster_of,
    least_steps,
    least_tiles,
    rows_lie,
    strides_of,
    waves_of_pairs,
)
from ..planning.refusals import MOST_TILES, column_major, odd_rows_of_c, refuse_tma
from ..planning.rows import FUSES, TMA_ROWS, row

ORDER = 130


CHUNK_N = 64
"""Columns of C, of 16 bits, that a consumer has a buffer for."""


class Tile(NamedTuple):
    """BLOCK_M x BLOCK_N of C, and how the shared memory and the consumers of a block are used."""

    BLOCK_M: int
    BLOCK_N: int
    NUM_STAGES: int
    CHUNK_BUFFERS: int
    """Of 8 KB for each consumer; a divisor of a tile's chunks, or only one is used."""
    PINGPONG: int
    """Two consumers work in ping-pong, a tile each; else they share each tile."""
    rate: float
    """Speed of a busy SM relative to 128 x 256, as measured: see docs/hopper_rungs.md."""
    fused_rate: float = 0.0
    """The same where something is fused; 0: has no room for it."""
    n_major_rate: float = 0.0
    """The same where B is row-major and its last panel is loaded whole and used in part."""
    split_n_major_rate: float = 0.0
    """The same where rows begin within lines of the L2 besides."""

    @property
    def plan(self) -> dict[str, int]:
        """As the constants of wgmma_persistent_build.cuh."""
        return {
            "BLOCK_M": self.BLOCK_M,
            "BLOCK_N": self.BLOCK_N,
            "BLOCK_K": 64,
            "NUM_STAGES": self.NUM_STAGES,
            "CHUNK_BUFFERS": self.CHUNK_BUFFERS,
            "PINGPONG": self.PINGPONG,
            "SHARES_A": int(self.BLOCK_M > self.BLOCK_N),
            "GROUP_M": 2048 // self.BLOCK_M,
        }

    @property
    def stores_runs(self) -> bool:
        """Whether a row of a C that TMA cannot store leaves in runs of two chunks and more."""
        chunks = ceil_div(self.BLOCK_N, CHUNK_N)
        of_two = self.CHUNK_BUFFERS > 1 and chunks % self.CHUNK_BUFFERS == 0
        return of_two and self.BLOCK_N % CHUNK_N == 0

    @property
    def traffic(self) -> float:
        """Rows of A and columns of B that are read for each element of C."""
        return 1 / self.BLOCK_M + 1 / self.BLOCK_N


TILES = (
    Tile(128, 256, 4, 2, 0, 1.00, 0.95),
    Tile(256, 192, 3, 3, 0, 1.02),
    Tile(128, 224, 4, 2, 0, 0.99, n_major_rate=0.842),
    Tile(128, 208, 4, 2, 0, 0.98, n_major_rate=0.90),
    Tile(192, 192, 4, 1, 0, 0.978, n_major_rate=0.919),
    Tile(192, 176, 4, 1, 0, 0.975, split_n_major_rate=0.82),
    Tile(192, 128, 5, 1, 0, 0.98, 0.94),
    Tile(128, 192, 4, 3, 0, 0.985, 0.95),
    Tile(128, 160, 4, 3, 0, 0.87, n_major_rate=0.78),
    Tile(128, 144, 4, 3, 0, 0.87, n_major_rate=0.68),
    Tile(128, 128, 6, 2, 1, 0.965, 0.94),
    Tile(128, 128, 6, 2, 0, 0.85, 0.80),
    Tile(64, 128, 8, 2, 0, 0.83, 0.80),
    Tile(64, 64, 8, 1, 0, 0.72, 0.70),
)

SIMULATED = Tile(128, 128, 6, 2, 1, 1.0, 1.0)
"""The tile of a build that names none; problems on the CPU all take it."""

LEAST = 0.36
"""Of the time that a step of 128 x 256 takes: what a producer needs for a step of any tile."""

PERSISTENT_LAUNCH_US = 2.4
"""Before the first step along K and after the last store."""

STEP_US = 0.7
"""A step along K of 128 x 256."""

TILE_US = 0.5
"""What comes before and after a tile."""

LAST_US = 2.1
"""Storing the last tiles of 128 x 256, one to an SM: nothing is multiplied under it."""

EXPOSED_US = 0.9
"""Storing each one before, under which two consumers that share a tile multiply nothing."""

NARROW_RUNS_US = 3.5
"""What it takes longer to store 128 x 256 of a C in odd rows where a run is one chunk: each run has
two ends, which leave by words. Behind copies 1401 x 2417 x 495 (nt) takes 17.6 us by 128 x 224 and
13.5 by 128 x 128, 5518 x 12491 x 3 (nt) 152 by 192 x 128 and 76 by 128 x 128
(reports/nvidia-h200/trials/races.csv)."""

MANY_WAVES = 16
"""Up to which two consumers in ping-pong hide their stores where rows split sectors: with 39 waves
6600 x 12824 x 106 (tn) takes 77 us by 128 x 128 in ping-pong and 65 by 128 x 192, with 12
12543 x 1864 x 8 (nt) takes 16.9 in ping-pong and 17.8 by 128 x 144, which else would be taken
(reports/nvidia-h200/trials/races.csv)."""

RATED_STEPS = 64
"""Along K, from which on the rates were measured: there stores are part of them."""


FEW_STEPS = 8
"""Along K, up to which a tile's stores are more of what it takes than what it reads: at 25 drawn
shapes the tile that is taken is 2.7 % slower than the fastest, and 5.3 % without it
(reports/nvidia-h200/trials/races.csv)."""


RATED_IN_PAIRS = 30
"""Steps along K from which on a tile is rated as pairs of blocks read it, where rows split sectors:
LEAST_STEPS of one wave. At 4206 x 1848 x 4712 (nn) 192 x 192 in pairs that share B takes 121 us,
128 x 256, which can share A alone without a wave more, 150
(reports/nvidia-h100-sxm/trials/races.csv)."""

LEAST_IN_PAIRS = (128 + 256 / 2) / (128 * 256)
"""Rows of A and columns of B that a pair of blocks reads for each element of C, at least."""


def tile_of(problem: Any) -> Tile:
    """The tile for a problem, which the rung transposes where C is column-major."""
    return SIMULATED if problem.device == "cpu" else _tiles_of(problem)[0]


def _tiles_of(problem: Any) -> tuple[Tile, ...]:
    """Tiles for a problem on a GPU, the fastest first."""
    M, N, _, b = _transposed(problem)
    return _by_time(
        M,
        N,
        ceil_div(problem.K, TILE_K),
        problem.batch,
        not problem.plain or problem.batch > 1,
        b[0] != 1,
        rows_lie(2, *strides_of(problem)),
        gpu_of(problem).sms,
        odd_c(problem, N),
    )


def odd_c(problem: Any, columns: int) -> bool:
    """Whether TMA cannot store a plain C of 16 bits with so many columns, and threads do."""
    if not problem.plain or problem.batch > 1 or problem.dtype_out != problem.dtype_in:
        return False
    return odd_rows_of_c(problem, columns)


def _transposed(problem: Any) -> tuple[int, int, tuple[int, int], tuple[int, int]]:
    """M, N and the strides of A and B of the problem whose C has its rows in a row."""
    M, N, a, b = problem.M, problem.N, problem.a_strides, problem.b_strides
    return (N, M, b[::-1], a[::-1]) if column_major((M, N), problem.c_strides) else (M, N, a, b)


@cache
def _by_time(
    M: int,
    N: int,
    steps: int,
    batch: int,
    fused: bool,
    n_major: bool,
    lie: int,
    sms: int,
    odd_c: bool,
) -> tuple[Tile, ...]:
    def rate(tile: Tile) -> float:
        own = tile.fused_rate if fused else n_major * tile.n_major_rate or tile.rate
        if lie == WHOLE:
            return own
        if n_major and not fused:
            own = tile.split_n_major_rate or own
        if lie == SPLIT_SECTORS and steps >= RATED_IN_PAIRS:
            rows, cols = ceil_div(M, tile.BLOCK_M), ceil_div(N, tile.BLOCK_N)
            pairs = _pairs(tile, rows, cols, batch, steps, lie, n_major, sms)
            return own * min(1.0, LEAST_IN_PAIRS / _in_pairs(tile, n_major, *pairs))
        # Each row of a box is in two lines: 128 x 128 has 0.7 of 128 x 256 at 10000 cubed.
        more = max(0.0, tile.traffic / TILES[0].traffic - 1) * min(1, steps / FEW_STEPS)
        return own * max(0.5, 1 - 0.9 * more)

    def time(tile: Tile) -> float:
        waves = -(-(-(-M // tile.BLOCK_M) * -(-N // tile.BLOCK_N) * batch) // sms)
        if tile.PINGPONG:
            waves = max(waves, 2)  # of a single tile one consumer is idle
        area = tile.BLOCK_M * tile.BLOCK_N / (128 * 256)
        exposed = not tile.PINGPONG or (lie == SPLIT_SECTORS and waves > MANY_WAVES)
        stores = area * (LAST_US + (waves - 1) * EXPOSED_US * exposed)
        multiplied = waves * steps * STEP_US * max(area / rate(tile), LEAST)
        took = multiplied + stores * max(0.0, 1 - steps / RATED_STEPS)
        if odd_c and not tile.stores_runs:
            took += waves * area * NARROW_RUNS_US
        return round(took, 6)  # equal times are: the first tile is taken

    return tuple(sorted((tile for tile in TILES if tile.fused_rate or not fused), key=time))


def plan(problem: Any) -> Mapping[str, int]:
    """How wgmma_persistent runs a problem."""
    if problem.device == "cpu":
        return SIMULATED.plan
    return _plan_of(tile_of(problem), problem, gpu_of(problem).sms)


def _plan_of(tile: Tile, problem: Any, sms: int) -> Mapping[str, int]:
    M, N, a, b = _transposed(problem)
    rows, cols = -(-M // tile.BLOCK_M), -(-N // tile.BLOCK_N)
    cluster, shares_a = _pairs(
        tile, rows, cols, problem.batch, ceil_div(problem.K, TILE_K),
        rows_lie(2, *strides_of(problem)), b[0] != 1, sms, problem.K <= SHORT_K,
        a[1] == 1,
    )  # fmt: skip
    return {**tile.plan, "SHARES_A": int(shares_a), "CLUSTER": cluster}


MOST_OFFERED = 5
"""Tiles that are worth a look where plans of all rungs are compared."""


def offered(problem: Any, sms: int) -> Iterator[Mapping[str, int]]:
    """Plans with the tiles that are fastest by the model, and the first of them with and without
    pairs of blocks."""
    first, *others = _tiles_of(problem)[:MOST_OFFERED]
    for cluster in (1, 2):
        yield {**_plan_of(first, problem, sms), "CLUSTER": cluster}
    for tile in others:
        yield _plan_of(tile, problem, sms)


def _loaded(tile: Tile, n_major: bool) -> int:
    """Columns of B that a tile loads: of a row-major B whole panels of 64."""
    return 64 * ceil_div(tile.BLOCK_N, 64) if n_major else tile.BLOCK_N


def _in_pairs(tile: Tile, n_major: bool, cluster: int, shares_a: bool) -> float:
    """Rows of A and columns of B that a block of a cluster reads for each element of its tile."""
    of_a = tile.BLOCK_M / (cluster if shares_a else 1)
    of_b = _loaded(tile, n_major) / (1 if shares_a else cluster)
    return (of_a + of_b) / (tile.BLOCK_M * tile.BLOCK_N)


SHORT_K = 24
"""Elements of K up to which pairs pay from two waves on, where rows split sectors and B lies along
K: nearly all that is loaded are such rows, of 16 bytes or 48, and a pair asks for fewer of them.
5604 x 1112 x 8 (nt) takes 6.4 us in pairs and 8.7 without, 16136 x 248 x 24 (tt) 5.0 and 7.0; with
a K of 40 as long (1900 x 4536 x 40, nt; reports/nvidia-h200/trials/races.csv)."""


@cache
def _pairs(
    tile: Tile,
    rows: int,
    cols: int,
    batch: int,
    steps: int,
    lie: int,
    n_major: bool,
    sms: int,
    short: bool = False,
    along_k: bool = True,
) -> tuple[int, bool]:
    """Blocks of a cluster, 1 or 2, and whether a pair works side by side and shares A.

    Args:
        rows, cols: of tiles.
        steps: along K.
        lie: how rows of A and B lie, as ``rows_lie`` says it.
        n_major: B lies by rows, so that panels of 64 columns are loaded whole.
        short: K is at most SHORT_K.
        along_k: A lies along K too; else B alone has short rows, and is what is shared.
    """
    own = tile.BLOCK_M > tile.BLOCK_N  # of blocks in no pair: so they share a tile's build
    waves = -(-rows * cols * batch // sms)
    short = short and waves > 1 and lie == SPLIT_SECTORS and not n_major
    if not short and waves * steps < least_steps(tile.BLOCK_M, tile.BLOCK_N, lie):
        return 1, own
    if lie == WHOLE:
        shares_a = _shares_a(tile, rows, cols, batch, sms, 4 * sms)
        least = least_tiles(tile.BLOCK_M, tile.BLOCK_N, steps * TILE_K, sms)
        return cluster_of(rows, cols, batch, shares_a, least), shares_a
    loaded = _loaded(tile, n_major)
    # What is longer is shared, but for a wave more; a tile more may find an idle SM.
    ways = [shares_a for shares_a in (False, True) if (cols if shares_a else rows) > 1]
    count = {way: waves_of_pairs(rows, cols, batch, way, sms) for way in ways}
    # Blocks of a pair without a tile.
    idle = {way: cols % 2 * rows if way else rows % 2 * cols for way in ways}
    least = {way: short and (idle[way] if along_k else way) for way in ways}
    ways.sort(key=lambda way: (count[way], least[way], way != (loaded < tile.BLOCK_M)))
    if not ways or count[ways[0]] > waves:
        return 1, own
    return 2, ways[0]


def _shares_a(tile: Tile, rows: int, cols: int, batch: int, sms: int, least: int) -> bool:
    """Whether pairs of blocks work beside each other and share A; ``least`` tiles make no pairs.

    They share the longer side of the tile, but for an odd number of tiles that makes a wave more
    of pairs that way and not of the others.
    """
    own = tile.BLOCK_M > tile.BLOCK_N
    if (cols if own else rows) < 16 or rows * cols * batch <= least:
        return own
    waves = {beside: waves_of_pairs(rows, cols, batch, beside, sms) for beside in (own, not own)}
    return not own if waves[not own] < waves[own] else own


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds of a product whose operands TMA can read; None where it cannot."""
    if refuse_tma(problem) is not None:
        return None
    tile = tile_of(problem)
    rate = tile.rate if problem.plain and problem.batch == 1 else tile.fused_rate
    waves = ceil_div(ceil_div(problem.M, tile.BLOCK_M) * ceil_div(problem.N, tile.BLOCK_N), sms)
    step = STEP_US * max(tile.BLOCK_M * tile.BLOCK_N / (128 * 256) / rate, LEAST)
    memory = 2 * (problem.M + problem.N) * problem.K / MEMORY_BYTES_PER_US
    steps = ceil_div(problem.K, TILE_K)
    return max(LAUNCH_US + memory, PERSISTENT_LAUNCH_US + waves * (steps * step + TILE_US))


def refuse(problem: Any) -> str | None:
    """What TMA cannot read, and a pre-activation of another type than A and B."""
    if problem.aux and problem.dtype_out != problem.dtype_in:
        return f"its pre-activations are of A's type, {problem.dtype_in}, as C has to be then"
    return refuse_tma(problem)


ROW = row(
    "wgmma_persistent",
    "the production kernel: the tile that ends first, ping-pong, what is fused, batches, PDL",
    (9, 0),
    fuses=(*FUSES, "preactivation", "derivative"),
    shapes=TMA_ROWS + "; matrices of a batch a multiple of 8 elements apart",
    refuse=refuse,
    most_tiles=MOST_TILES // 2,
    wgmma=True,
    plan=plan,
)
