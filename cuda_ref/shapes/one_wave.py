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
    (96, 192): 0.44,
    (192, 96): 0.44,
}

WHOLE = {
    (64, 48): ((1, 0),),
    (64, 64): ((1, 0), (2, 0), (2, 1)),
    (64, 96): ((1, 0), (2, 0)),
    (64, 112): ((1, 0), (2, 0)),
    (64, 128): ((1, 0), (2, 0)),
    (128, 48): ((1, 0),),
    (128, 64): ((1, 0), (2, 0), (4, 1)),
    (128, 96): ((1, 0), (2, 0)),
    (128, 112): ((1, 0), (2, 0)),
    (128, 128): ((1, 0), (2, 0), (4, 1)),
    (96, 192): ((1, 0), (2, 0)),
    (192, 96): ((1, 0), (2, 1)),
}
"""(BLOCK_M, BLOCK_N) -> pairs of (CLUSTER, SHARES_A) that were the fastest somewhere."""

DIVIDED = dict.fromkeys(
    ((64, 64), (64, 128), (128, 64), (128, 128), (96, 192), (192, 96)), ((1, 0),)
)
"""The same where K is divided: among other kernels a cluster's start costs more than it saves."""

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

SHORT_ROWS_PER_US = 12.6e3  # of A, shorter than half a line, that all blocks ask for, and
SHORT_STEP_ROWS_PER_US = 450  # rows of A and B then, that one does

SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)

FEWEST_STAGES, MOST_STAGES = 4, 12


def candidates(problem: Any, sms: int) -> list[dict[str, int]]:
    """Settings of one_wave for a problem with M <= N, all of whose blocks run at once.

    One where there is none such.
    """
    return _fitting(problem, sms) or [_config(128, 128, 1, 0, 1)]


def fits(problem: Any, sms: int) -> bool:
    """Whether all blocks of some setting run at once."""
    return bool(_fitting(problem, sms))


def _fitting(problem: Any, sms: int) -> list[dict[str, int]]:
    found = []
    every = (
        (*tile, *cluster, splits)
        for splits in SPLITS
        for tile, clusters in (WHOLE if splits == 1 else DIVIDED).items()
        for cluster in clusters
    )
    for block_m, block_n, cluster, shares_a, splits in every:
        if not takes(block_m, block_n, problem) or block_m >= problem.M + 64:
            continue
        if splits > 1 and 4 * TILE_K * splits > problem.K:
            continue
        config = _config(block_m, block_n, cluster, shares_a, splits)
        if not runs_at_once(config, problem, sms):
            continue
        planned = divide(config, problem, sms, _by_columns(problem))
        if planned["NUM_STAGES"] < FEWEST_STAGES:
            continue
        found.append(config)
        if splits == 1 and among_idle(_blocks(config, problem), sms):
            found.append({**config, "PDL": 0})
    return found


def runs_at_once(config: Mapping[str, int], problem: Any, sms: int) -> bool:
    """Whether all blocks do, and whole clusters of them, for a problem with M <= N."""
    rows, cols = _tiles(config, problem)
    whole = (cols if config["SHARES_A"] else rows) % config["CLUSTER"] == 0
    return whole and _blocks(config, problem) <= at_once(config["CLUSTER"], sms)


def _tiles(config: Mapping[str, int], problem: Any) -> tuple[int, int]:
    return ceil_div(problem.M, config["BLOCK_M"]), ceil_div(problem.N, config["BLOCK_N"])


def _blocks(config: Mapping[str, int], problem: Any) -> int:
    rows, cols = _tiles(config, problem)
    return rows * cols * config["SPLITS"]


def _config(block_m: int, block_n: int, cluster: int, shares_a: int, splits: int) -> dict[str, int]:
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "CLUSTER": cluster,
        "SHARES_A": shares_a,
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
    return along % 64 == 0 or bool(problem.plain and (along > 48 or problem.layout[1] == "t"))


def rows_of_b(block_n: int) -> int:
    """Rows of B in a stage: as B_ROWS in one_wave_build.cuh."""
    return 48 if block_n == 48 else whole_panels(block_n)


def whole_panels(block_n: int) -> int:
    """Columns of the panels of 64 that a tile's width takes."""
    return -(-block_n // 64) * 64


def at_once(cluster: int, sms: int) -> int:
    """Blocks in clusters that run at once: SMs come in groups that clusters do not cross, so an
    H200's 132 SMs take 30 clusters of 4."""
    return sms if cluster < 4 else sms * 10 // 11


def modelled_us(config: Mapping[str, int], problem: Any, sms: int) -> float:
    """Microseconds of a problem with M <= N by the model: the longest of a block's own steps, what
    all ask of the L2, and what comes from memory, and what comes before and after."""
    M, N, K = problem.M, problem.N, problem.K
    block_m, block_n, cluster = config["BLOCK_M"], config["BLOCK_N"], config["CLUSTER"]
    splits = config["SPLITS"]
    blocks = _blocks(config, problem)
    waves = -(-blocks // sms)
    steps = waves * math.ceil(math.ceil(K / TILE_K) / splits)
    a_peers, b_peers = _multicast_peers(config)
    between = problem.layout[1] == "n" and block_n % 64 > 0
    columns = rows_of_b(block_n) * BETWEEN_LINES if between else block_n
    asked = 2 * TILE_K * (block_m / a_peers + columns / b_peers)
    if any(max(strides) % LINE for strides in (problem.a_strides, problem.b_strides)):
        asked *= SPLIT_LINES
    own = steps * STEP[block_m, block_n]
    if block_m < M and M % (block_m // a_peers):
        own *= OUTSIDE
    memory = 2 * (M * K + K * N + M * N) / MEMORY_BYTES_PER_US
    if (between or -(-M // block_m) > b_peers) and 2 * K * N > STREAMED:
        memory *= REREAD
    if short_rows(problem):
        rows = TILE_K / a_peers
        own = max(own, steps * (rows + whole_panels(block_n) / b_peers) / SHORT_STEP_ROWS_PER_US)
        memory = max(memory, steps * blocks * rows / waves / SHORT_ROWS_PER_US)
    limits = (own, steps * blocks * asked / waves / L2_BYTES_PER_US, memory)
    body = sum(limit**6 for limit in limits) ** (1 / 6)
    start = PREFETCHED_LAUNCH_US if block_m * block_n <= 64 * 64 else LAUNCH_US
    added = (SECOND_KERNEL_US + 4 * M * N * splits / PARTIALS_BYTES_PER_US) if splits > 1 else 0.0
    if not config["PDL"]:
        start += NO_PDL_US
    elif splits == 1 and cluster < 4 and among_idle(blocks, sms):
        body *= AMONG_IDLE
    return waves * start + body + added + CLUSTER_US * (cluster > 1)


def short_rows(problem: Any) -> bool:
    """Whether A lies in rows of M elements that are shorter than half a line of the L2.

    A step then takes 64 of them, whatever their length, and all blocks ask for the same few lines:
    at 4072 x 8 x 3628 (tn) 15.5 us in clusters of 2, which ask half as often, and 20.7 without
    (reports/nvidia-h200/trials/races.csv).
    """
    return bool(problem.layout[0] == "t" and problem.a_strides[1] < LINE // 2)


def _multicast_peers(config: Mapping[str, int]) -> tuple[int, int]:
    """Blocks of a cluster that share their loads of A, and of B."""
    cluster = config["CLUSTER"]
    return (cluster, 1) if config["SHARES_A"] else (1, cluster)


def divide(config: Mapping[str, int], problem: Any, sms: int, transposed: bool) -> dict[str, int]:
    """The plan of a table's config.

    Args:
        problem: with M <= N.
        transposed: the kernel's problem is the transpose of this one: its tile is transposed too.
    """
    block_m, block_n, cluster = config["BLOCK_M"], config["BLOCK_N"], config["CLUSTER"]
    shares_a = config["SHARES_A"]
    if not takes(block_m, block_n, problem):
        block_m, block_n = whole_panels(block_m), whole_panels(block_n)
    if transposed:
        block_m, block_n = block_n, block_m
        shares_a = int(cluster > 1 and not shares_a)
    # No split of K is empty, and no block of a cluster without work.
    splits = max(1, min(config["SPLITS"], most_splits(problem.K)))
    sides = (problem.N, problem.M) if transposed else (problem.M, problem.N)
    tiles = -(-sides[shares_a] // (block_n if shares_a else block_m))
    if tiles % cluster:
        cluster, shares_a = 1, 0
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": TILE_K,
        "NUM_STAGES": _stages(block_m, block_n, splits > 1, problem.dtype_out == "float32"),
        "CLUSTER": cluster,
        "SHARES_A": shares_a,
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
    "CLUSTER": 1,
    "SHARES_A": 0,
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
    block_m, block_n, cluster = config["BLOCK_M"], config["BLOCK_N"], config["CLUSTER"]
    if (
        (block_m, block_n) in WHOLE
        and cluster in ((1, 2) if block_m % 64 or block_n % 64 else (1, 2, 4))
        and config["SHARES_A"] in (0, 1)
        and config["PDL"] in (0, 1)
        and config["SPLITS"] >= 1
        and (config["SPLITS"] == 1 or (block_m, block_n) in DIVIDED)
    ):
        return None
    tiles, divided = (", ".join(f"{m} x {n}" for m, n in which) for which in (WHOLE, DIVIDED))
    return (
        f"the tile is one of {tiles}, CLUSTER 1, 2 or 4, but not 4 where a side is no multiple of "
        f"64, SHARES_A 0 or 1, PDL 0 or 1, SPLITS 1, or more of {divided}"
    )


TUNING = Tuning(
    kernel="one_wave",
    settings=("BLOCK_M", "BLOCK_N", "CLUSTER", "SHARES_A", "SPLITS", "PDL"),
    simulated=SIMULATED,
    whole_plan=True,
    candidates=candidates,
    tried=tried,
    modelled_us=modelled_us,
    divide=divide,
    fits=runs_at_once,
    check=refuse_config,
    may_be_zero=("SHARES_A", "PDL"),
    renamed={"EARLY": "PDL"},
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


def settled(problem: Any, sms: int) -> bool:
    """Whether all blocks of some setting run at once, of a problem with more than a few rows."""
    seen = wide(problem)
    return seen.M > FEW_ROWS and fits(seen, sms)


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
