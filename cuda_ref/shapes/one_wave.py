"""one_wave: one tile to a block; its tile, its cluster and the splits of K.

The tile and the cluster are compiled into a build of their own (see fusion.case); PDL says whether
the next kernel may start while this one runs (programmatic dependent launch). The model is fitted
to some 5,200 timed cases of an H200 (reports/nvidia-h200/trials/waves.csv, run 3): its choice is
2 % slower than the fastest on average, and less with the table that comes before it. Those were
timed one after itself; where K is divided, rows among other kernels decide (tile_choice.csv there).
All is said of the problem with M <= N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..planning.cost import TILE_K, ceil_div, most_splits
from ..planning.gpu import shared_kb
from ..planning.refusals import column_major, refuse_tma
from ..planning.rows import FUSES_NO_BATCH, TMA_ROWS, row
from ..planning.tuning import Tuning, wide
from ..planning.tuning import plan as tuned_plan

ORDER = 140

LINE = 64
"""Elements of 16 bits in a line of the L2."""

# BLOCK_M, BLOCK_N: microseconds of a step along K.
STEP = {
    (64, 48): 0.131,
    (64, 64): 0.133,
    (64, 96): 0.158,
    (64, 112): 0.185,
    (64, 128): 0.187,
    (128, 48): 0.155,
    (128, 64): 0.172,
    (128, 96): 0.275,
    (128, 112): 0.298,
    (128, 128): 0.333,
    (192, 96): 0.44,
}
STEP |= {(n, m): us for (m, n), us in STEP.items() if (n, m) not in STEP}

WHOLE: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {
    (64, 48): ((1, 1),),
    (64, 64): ((1, 1), (2, 1), (1, 2)),
    (64, 96): ((1, 1), (2, 1)),
    (64, 112): ((1, 1), (2, 1)),
    (64, 128): ((1, 1), (2, 1)),
    (128, 48): ((1, 1),),
    (128, 64): ((1, 1), (2, 1), (1, 4)),
    (128, 96): ((1, 1), (2, 1)),
    (128, 112): ((1, 1), (2, 1)),
    (128, 128): ((1, 1), (2, 1), (1, 4)),
    (96, 192): ((1, 1), (2, 1)),
    (192, 96): ((1, 1), (1, 2)),
}
"""(BLOCK_M, BLOCK_N) -> pairs of (CLUSTER_M, CLUSTER_N) that were the fastest somewhere."""

DIVIDED = dict.fromkeys(
    ((64, 64), (64, 128), (128, 64), (128, 128), (96, 192), (192, 96)), ((1, 1),)
)
"""The same where K is divided: among other kernels a cluster's start costs more than it saves."""

CLUSTERS = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4))
"""The same of every tile, and of its transpose, where rows begin within lines of the L2: a row of a
box is then two lines, and what blocks ask for is what takes longest."""

MOST_BLOCKS = 1.15  # to a tile, where some of a cluster have none

LAUNCH_US = 1.6  # microseconds before the first step and after the last
PREFETCHED_LAUNCH_US = 1.25  # the same where the first steps are prefetched into the L2
MEMORY_BYTES_PER_US = 3.9e6
STREAMED = 16e6  # bytes of B from which on it comes from memory as it is multiplied,
REREAD = 1.25  # which takes longer where blocks that do not share it ask for the same lines
L2_BYTES_PER_US = 12.6e6  # that all blocks together read of the L2
CLUSTER_US = 0.66  # by which a cluster starts later
SECOND_KERNEL_US = 1.16  # the kernel that adds partial sums
PARTIALS_BYTES_PER_US = 2.0e6  # float32 partial sums, there and back
SPLIT_LINES = 1.7  # by which more is read where rows begin and end within lines of the L2
NO_PDL_US = 0.86  # by which the next kernel starts later without PDL
AMONG_IDLE = 1.12  # by which a kernel takes longer with it,
IDLE = (0.5, 0.77)  # where so many of the SMs have a block
OUTSIDE = 1.26  # steps of tiles with boxes that are partly outside, beside others that are not
BETWEEN_LINES = 1.31  # what a row-major B is asked for by tiles that begin within lines of the L2

# Of rows that begin within lines of the L2 (reports/nvidia-h200/trials/races.csv): steps of a
# block, what each block that asks for the same line adds to a step, clusters by their blocks, and
# the kernel that adds partial sums, which takes longer with each part.
SPLIT_STEP = 1.15
ASKER_US = 0.0023
SPLIT_CLUSTER_US = {1: 0.0, 2: 0.5, 4: 0.8, 8: 0.88}
SPLIT_SECOND_US = 2.0
PART_US = 0.07

SHORT_ROWS_PER_US = 12.6e3  # of A, shorter than half a line, that all blocks ask for, and
SHORT_STEP_ROWS_PER_US = 450  # rows of A and B then, that one does

SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)

FEWEST_STAGES, MOST_STAGES = 4, 12


def candidates(problem: Any, sms: int) -> list[dict[str, int]]:
    """Settings of one_wave for a problem with M <= N, all of whose blocks run at once.

    One where there is none such.
    """
    return _fitting(problem, sms) or [_config(128, 128, 1, 1, 1)]


def fits(problem: Any, sms: int) -> bool:
    """Whether all blocks of some setting run at once."""
    return bool(_fitting(problem, sms))


def _fitting(problem: Any, sms: int) -> list[dict[str, int]]:
    found = []
    for splits in SPLITS:
        if splits > 1 and 4 * TILE_K * splits > problem.K:
            continue
        for (block_m, block_n), clusters in _shapes(problem, splits).items():
            if not takes(block_m, block_n, problem) or block_m >= problem.M + 64:
                continue
            for cluster_m, cluster_n in clusters:
                config = _config(block_m, block_n, cluster_m, cluster_n, splits)
                if not runs_at_once(config, problem, sms):
                    continue
                planned = divide(config, problem, sms, _by_columns(problem))
                if planned["NUM_STAGES"] < FEWEST_STAGES:
                    continue
                found.append(config)
                if splits == 1 and among_idle(_blocks(config, problem), sms):
                    found.append({**config, "PDL": 0})
    return found


def _shapes(problem: Any, splits: int) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """Tiles, and the clusters that each may be in."""
    shapes = WHOLE if splits == 1 else DIVIDED
    if not splits_lines(problem):
        return shapes
    tiles = [*shapes, *((n, m) for m, n in shapes if (n, m) not in shapes)]
    few = [pair for pair in CLUSTERS if max(pair) <= 2]
    return {tile: tuple(few if 48 in tile else CLUSTERS) for tile in tiles}


def splits_lines(problem: Any) -> bool:
    """Whether rows of A or B begin within lines of the L2."""
    return any(max(strides) % LINE for strides in (problem.a_strides, problem.b_strides))


def runs_at_once(config: Mapping[str, int], problem: Any, sms: int) -> bool:
    """Whether all blocks do, and have a tile, for a problem with M <= N; where rows begin within
    lines, of larger clusters a few may be without."""
    tiles = math.prod(tiles for tiles, _ in _sides(config, problem)) * config["SPLITS"]
    blocks = _blocks(config, problem)
    most = tiles * MOST_BLOCKS if splits_lines(problem) else tiles
    return blocks <= min(most, at_once(config["CLUSTER_M"] * config["CLUSTER_N"], sms))


def _sides(config: Mapping[str, int], problem: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Tiles and blocks of a cluster along M, and along N."""
    rows, cols = ceil_div(problem.M, config["BLOCK_M"]), ceil_div(problem.N, config["BLOCK_N"])
    return (rows, config["CLUSTER_M"]), (cols, config["CLUSTER_N"])


def _blocks(config: Mapping[str, int], problem: Any) -> int:
    rows, cols = (ceil_div(tiles, size) * size for tiles, size in _sides(config, problem))
    return rows * cols * config["SPLITS"]


def _config(
    block_m: int, block_n: int, cluster_m: int, cluster_n: int, splits: int
) -> dict[str, int]:
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "CLUSTER_M": cluster_m,
        "CLUSTER_N": cluster_n,
        "SPLITS": splits,
        "PDL": 1,
    }


def among_idle(blocks: int, sms: int) -> bool:
    """Whether some of the next kernel's blocks, but not all, find an SM that this one leaves idle.

    With PDL, 582 timed cases of 67 to 101 blocks on 132 SMs took 10 % longer in the mean, up to
    half; those of fewer or more took 3 and 1 % less.
    """
    least, most = (share * sms for share in IDLE)
    return least < blocks <= most


def takes(block_m: int, block_n: int, problem: Any) -> bool:
    """Whether a problem with M <= N may have such tiles.

    What is no multiple of 64 runs along the rows of C, and nothing is fused; 48 wants B by columns
    as well.
    """
    along, across = (block_m, block_n) if _by_columns(problem) else (block_n, block_m)
    # Of a C in steps both ways the launcher turns nothing, and which side is along is not known.
    if across % 64 or (along % 64 and 1 not in problem.c_strides):
        return False
    k_major = problem.layout[0] == "n" if _by_columns(problem) else problem.layout[1] == "t"
    return along % 64 == 0 or bool(problem.plain and (along > 48 or k_major))


def rows_of_b(block_n: int) -> int:
    """Rows of B in a stage: as B_ROWS in one_wave_build.cuh."""
    return 48 if block_n == 48 else whole_panels(block_n)


def whole_panels(block_n: int) -> int:
    """Columns of the panels of 64 that a tile's width takes."""
    return -(-block_n // 64) * 64


def at_once(cluster: int, sms: int) -> int:
    """Blocks in clusters that run at once: SMs come in groups that clusters do not cross, so an
    H200's 132 SMs take 30 clusters of 4."""
    return sms if cluster < 4 else sms * 10 // 11 // cluster * cluster


def modelled_us(config: Mapping[str, int], problem: Any, sms: int) -> float:
    """Microseconds of a problem with M <= N by the model: the longest of a block's own steps, what
    all ask of the L2, and what comes from memory, and what comes before and after."""
    M, N, K = problem.M, problem.N, problem.K
    block_m, block_n, splits = config["BLOCK_M"], config["BLOCK_N"], config["SPLITS"]
    a_peers, b_peers = config["CLUSTER_N"], config["CLUSTER_M"]
    cluster = a_peers * b_peers
    blocks = _blocks(config, problem)
    waves = -(-blocks // sms)
    steps = waves * math.ceil(math.ceil(K / TILE_K) / splits)
    between = problem.layout[1] == "n" and block_n % 64 > 0
    columns = rows_of_b(block_n) * BETWEEN_LINES if between else block_n
    asked = 2 * TILE_K * (block_m / a_peers + columns / b_peers)
    own, same = steps * STEP[block_m, block_n], 0.0
    if splits_lines(problem):
        asked *= SPLIT_LINES
        own *= SPLIT_STEP
        askers = max(tiles / size for tiles, size in _sides(config, problem))
        same = steps * askers * SPLIT_LINES * ASKER_US
    elif block_m < M and M % (block_m // a_peers):
        own *= OUTSIDE
    memory = 2 * (M * K + K * N + M * N) / MEMORY_BYTES_PER_US
    if (between or -(-M // block_m) > b_peers) and 2 * K * N > STREAMED:
        memory *= REREAD
    if short_rows(problem):
        rows = TILE_K / a_peers
        own = max(own, steps * (rows + whole_panels(block_n) / b_peers) / SHORT_STEP_ROWS_PER_US)
        memory = max(memory, steps * blocks * rows / waves / SHORT_ROWS_PER_US)
    limits = (own, same, steps * blocks * asked / waves / L2_BYTES_PER_US, memory)
    body = sum(limit**6 for limit in limits) ** (1 / 6)
    start = PREFETCHED_LAUNCH_US if block_m * block_n <= 64 * 64 else LAUNCH_US
    added = _around(splits, cluster, splits_lines(problem))
    if splits > 1:
        added += 4 * M * N * splits / PARTIALS_BYTES_PER_US
    if not config["PDL"]:
        start += NO_PDL_US
    elif splits == 1 and cluster < 4 and among_idle(blocks, sms):
        body *= AMONG_IDLE
    return waves * start + body + added


def _around(splits: int, cluster: int, within: bool) -> float:
    """Microseconds of a cluster's later start, and of the kernel that adds partial sums; `within`:
    rows begin within lines of the L2."""
    if within:
        second = SPLIT_SECOND_US + PART_US * splits
        return SPLIT_CLUSTER_US[cluster] + (second if splits > 1 else 0.0)
    return CLUSTER_US * (cluster > 1) + (SECOND_KERNEL_US if splits > 1 else 0.0)


def short_rows(problem: Any) -> bool:
    """Whether A lies in rows of M elements that are shorter than half a line of the L2.

    A step then takes 64 of them, whatever their length, and all blocks ask for the same few lines:
    at 4072 x 8 x 3628 (tn) 15.5 us in clusters of 2, which ask half as often, and 20.7 without
    (reports/nvidia-h200/trials/races.csv).
    """
    return bool(problem.layout[0] == "t" and problem.a_strides[1] < LINE // 2)


def divide(config: Mapping[str, int], problem: Any, sms: int, transposed: bool) -> dict[str, int]:
    """The plan of a table's config.

    Args:
        problem: with M <= N.
        transposed: the kernel's problem is the transpose of this one: its tile is transposed too.
    """
    whole = all(tiles % size == 0 for tiles, size in _sides(config, problem))
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    cluster_m, cluster_n = config["CLUSTER_M"], config["CLUSTER_N"]
    if not takes(block_m, block_n, problem):
        block_m, block_n = whole_panels(block_m), whole_panels(block_n)
        tile = {**config, "BLOCK_M": block_m, "BLOCK_N": block_n}
        whole = all(tiles % size == 0 for tiles, size in _sides(tile, problem))
    if not (whole or splits_lines(problem)):
        cluster_m = cluster_n = 1
    if transposed:
        block_m, block_n = block_n, block_m
        cluster_m, cluster_n = cluster_n, cluster_m
    # No split of K is empty.
    splits = max(1, min(config["SPLITS"], most_splits(problem.K)))
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": TILE_K,
        "NUM_STAGES": _stages(block_m, block_n, splits > 1, problem.dtype_out == "float32"),
        "CLUSTER_M": cluster_m,
        "CLUSTER_N": cluster_n,
        "SPLITS": splits,
        "PDL": config["PDL"],
    }


def _stages(block_m: int, block_n: int, divided: bool, float32: bool) -> int:
    """As many as fit behind barriers and chunks, as shared_bytes in one_wave_build.cuh counts. Of a
    large tile's sums the chunks lie in the ring."""
    stage = (block_m + rows_of_b(block_n)) * TILE_K * 2
    chunks = block_m // 64 * -(-block_n * (4 if divided or float32 else 2) // 128)
    if divided and block_m * block_n > 128 * 128:
        chunks = 0
    room = 1024 * shared_kb((9, 0)) - 1024 - 8192 * chunks
    return min(MOST_STAGES, room // stage)


SIMULATED = {
    "BLOCK_M": 64,
    "BLOCK_N": 64,
    "BLOCK_K": TILE_K,
    "NUM_STAGES": 8,
    "CLUSTER_M": 1,
    "CLUSTER_N": 1,
    "SPLITS": 1,
    "PDL": 1,
}
"""The tile of a build that names none; problems on the CPU all take it."""


MOST_BUILDS = 12
"""Settings that tuning tries, each of them a build."""


def tried(problem: Any, sms: int) -> list[dict[str, int]]:
    """The candidates that the model finds fastest."""
    found = candidates(problem, sms)
    return sorted(found, key=lambda config: modelled_us(config, problem, sms))[:MOST_BUILDS]


def refuse_config(config: Mapping[str, int]) -> str | None:
    """Why no build has these settings: the assertions of one_wave_build.cuh."""
    tile = config["BLOCK_M"], config["BLOCK_N"]
    cluster = config["CLUSTER_M"], config["CLUSTER_N"]
    either_way = (tile, tile[::-1])
    if (
        any(each in WHOLE for each in either_way)
        and cluster in CLUSTERS
        and (max(cluster) <= 2 or 48 not in tile)
        and config["PDL"] in (0, 1)
        and config["SPLITS"] >= 1
        and (config["SPLITS"] == 1 or any(each in DIVIDED for each in either_way))
    ):
        return None
    tiles, divided = (", ".join(f"{m} x {n}" for m, n in which) for which in (WHOLE, DIVIDED))
    clusters = ", ".join(f"{m} x {n}" for m, n in CLUSTERS)
    return (
        f"the tile is one of {tiles} or its transpose, CLUSTER_M x CLUSTER_N one of {clusters}, of "
        f"a side of 48 none of more than 2, PDL 0 or 1, SPLITS 1, or more of {divided}"
    )


def _newer(config: Mapping[str, int]) -> dict[str, int]:
    """A configuration as it is written now: of older ones a cluster lay along M or, with SHARES_A,
    along N, and PDL was EARLY."""
    new = {"PDL" if name == "EARLY" else name: value for name, value in config.items()}
    if {"CLUSTER", "SHARES_A"} <= set(new):
        cluster, along_n = new.pop("CLUSTER"), new.pop("SHARES_A")
        new |= {"CLUSTER_M": 1 if along_n else cluster, "CLUSTER_N": cluster if along_n else 1}
    return new


TUNING = Tuning(
    kernel="one_wave",
    settings=("BLOCK_M", "BLOCK_N", "CLUSTER_M", "CLUSTER_N", "SPLITS", "PDL"),
    simulated=SIMULATED,
    whole_plan=True,
    candidates=candidates,
    tried=tried,
    modelled_us=modelled_us,
    divide=divide,
    fits=runs_at_once,
    check=refuse_config,
    may_be_zero=("PDL",),
    newer=_newer,
    oriented=lambda problem: problem.transposed() if _by_columns(problem) else problem,
)


def _by_columns(problem: Any) -> bool:
    """Whether C is column-major: then the launcher computes the transposed product."""
    return column_major((problem.M, problem.N), problem.c_strides)


FEW_ROWS = 16
"""Rows up to which a rung with a narrow tile multiplies less in vain.

With more of them this one was the fastest in 310 of 335 timed cases that fit in one wave, by up to
half, and within 9 % in the others (reports/nvidia-h200/trials/waves.csv).
"""


FEW_COLUMNS = 2048
"""Columns up to which models decide about few rows."""


def settled(problem: Any, sms: int) -> bool:
    """Whether all blocks of some setting run at once, of a problem with more than a few rows; or of
    one with many columns and few rows, that A has side by side: in 4 such drawn shapes and in a race
    of all plans skinny, which else takes them, was slower (drawn_kernels.csv, races.csv)."""
    seen = wide(problem)
    beside = seen.N > FEW_COLUMNS and seen.M > 1 and short_rows(seen)
    return (seen.M > FEW_ROWS or beside) and fits(seen, sms)


def cost(problem: Any, sms: int) -> float | None:
    """By the model, where all blocks of some setting run at once; else None."""
    return TUNING.cost(problem, sms) if fits(wide(problem), sms) else None


def instance(problem: Any) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: of splits of K, a second kernel makes C."""
    if tuned_plan("one_wave", problem)["SPLITS"] == 1:
        return {}
    return {
        "Out": lambda value: value == "float",
        "Extra": lambda value: value.endswith("Plain"),
    }


ROW = row(
    "one_wave",
    "one tile to a block and all at once: what is known to the build, the loop need not ask",
    (9, 0),
    fuses=FUSES_NO_BATCH,
    shapes=TMA_ROWS,
    refuse=refuse_tma,
    wgmma=True,
    plan=TUNING.plan,
)
