"""How one_wave runs a problem: the tile of a block, who shares its loads, and the parts of K.

The tile and the sharers are compiled into a build of its own (see fusion.case); EARLY says whether
the next kernel may start while this one runs. The model is fitted to some 5,200 timed cases of an
H200 (reports/nvidia-h200/trials/waves.csv, run 3): its choice is 2 % slower than the fastest on
average, and 1 % with the table that comes before it (of 406 problems whose choice was timed). All
is said of the problem with M <= N.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .limits import SHARED_BYTES, column_major
from .tiles import LINE

TILE_K = 64


def most_parts(K: int) -> int:
    """Parts of K that have two steps of TILE_K each."""
    return max(1, -(-K // TILE_K) // 2)


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
}
"""(BLOCK_M, BLOCK_N) -> pairs of (CLUSTER, SHARES_A) that were the fastest somewhere."""

DIVIDED = {
    (64, 64): ((1, 0), (2, 0)),
    (64, 128): ((2, 0), (4, 0)),
    (128, 64): ((1, 0), (2, 0)),
}
"""The same where K is divided."""

START = 1.6  # microseconds before the first step and after the last
AHEAD_START = 1.25  # the same where the first steps are asked for before the start
MEMORY = 3.9e6  # bytes a microsecond
STREAMED = 16e6  # bytes of B from which on it comes from memory as it is multiplied,
AGAIN = 1.25  # which takes longer where blocks that do not share it ask for the same lines
L2 = 12.6e6  # bytes a microsecond that all blocks ask of the L2
TOGETHER = 0.66  # microseconds by which a cluster starts later
ADDING = 1.16  # microseconds of the second kernel
PARTS = 2.0e6  # bytes of float32 sums a microsecond, there and back
APART = 1.7  # by which more is asked where rows begin and end within lines of the L2
LATE = 0.86  # microseconds by which the next kernel starts later without EARLY
AMONG_IDLE = 1.12  # by which a kernel takes longer with it,
IDLE = (0.5, 0.77)  # where so many of the SMs have a block
OUTSIDE = 1.26  # steps of tiles with boxes that are partly outside, beside others that are not
BETWEEN_LINES = 1.31  # what a row-major B is asked for by tiles that begin within lines of the L2

SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)

MOST_STAGES = 12


def candidates(problem: Any, processors: int) -> list[dict[str, int]]:
    """Settings of one_wave for a problem with M <= N, all of whose blocks run at once.

    One where there is none such.
    """
    return _fitting(problem, processors) or [_config(128, 128, 1, 0, 1)]


def fits(problem: Any, processors: int) -> bool:
    """Whether all blocks of some setting run at once."""
    return bool(_fitting(problem, processors))


def _fitting(problem: Any, processors: int) -> list[dict[str, int]]:
    found = []
    every = (
        (*tile, *sharers, parts)
        for parts in SPLITS
        for tile, clusters in (WHOLE if parts == 1 else DIVIDED).items()
        for sharers in clusters
    )
    for block_m, block_n, cluster, shares_a, splits in every:
        if not takes(block_n, problem) or (block_m == 128 and problem.M <= 64):
            continue
        if splits > 1 and 4 * TILE_K * splits > problem.K:
            continue
        config = _config(block_m, block_n, cluster, shares_a, splits)
        if not runs_at_once(config, problem, processors):
            continue
        found.append(config)
        if splits == 1 and among_idle(_blocks(config, problem), processors):
            found.append({**config, "EARLY": 0})
    return found


def runs_at_once(config: Mapping[str, int], problem: Any, processors: int) -> bool:
    """Whether all blocks do, and whole clusters of them, for a problem with M <= N."""
    rows, cols = _tiles(config, problem)
    whole = (cols if config["SHARES_A"] else rows) % config["CLUSTER"] == 0
    return whole and _blocks(config, problem) <= at_once(config["CLUSTER"], processors)


def _tiles(config: Mapping[str, int], problem: Any) -> tuple[int, int]:
    return -(-problem.M // config["BLOCK_M"]), -(-problem.N // config["BLOCK_N"])


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
        "EARLY": 1,
    }


def among_idle(blocks: int, processors: int) -> bool:
    """Whether some of the next kernel's blocks, but not all, find an SM that this one leaves idle.

    With EARLY, 582 timed cases of 67 to 101 blocks on 132 SMs took 10 % longer in the mean, up to
    half; those of fewer or more took 3 and 1 % less.
    """
    least, most = (share * processors for share in IDLE)
    return least < blocks <= most


def takes(block_n: int, problem: Any) -> bool:
    """Whether a tile of a problem with M <= N may be so wide.

    What is no multiple of 64 wants C by rows and nothing fused; 48 wants B by columns as well.
    """
    if block_n % 64 == 0:
        return True
    by_rows = not column_major((problem.M, problem.N), problem.c_strides)
    return bool(problem.plain and by_rows and (block_n > 48 or problem.layout[1] == "t"))


def rows_of_b(block_n: int) -> int:
    """Rows of B in a stage: as B_ROWS in shapes/one_wave_build.cuh."""
    return 48 if block_n == 48 else whole_panels(block_n)


def whole_panels(block_n: int) -> int:
    """Columns of the panels of 64 that a tile's width takes."""
    return -(-block_n // 64) * 64


def at_once(cluster: int, processors: int) -> int:
    """Blocks in clusters that run at once: SMs come in groups that clusters do not cross, so an
    H200's 132 SMs take 30 clusters of 4."""
    return processors if cluster < 4 else processors * 10 // 11


def modelled_us(config: Mapping[str, int], problem: Any, processors: int) -> float:
    """Microseconds of a problem with M <= N by the model: the longest of a block's own steps, what
    all ask of the L2, and what comes from memory, and what comes before and after."""
    M, N, K = problem.M, problem.N, problem.K
    block_m, block_n, cluster = config["BLOCK_M"], config["BLOCK_N"], config["CLUSTER"]
    splits = config["SPLITS"]
    blocks = _blocks(config, problem)
    rounds = -(-blocks // processors)
    steps = rounds * math.ceil(math.ceil(K / TILE_K) / splits)
    a_sharers, b_sharers = _sharers(config)
    between = problem.layout[1] == "n" and block_n % 64 > 0
    columns = rows_of_b(block_n) * BETWEEN_LINES if between else block_n
    asked = 2 * TILE_K * (block_m / a_sharers + columns / b_sharers)
    if any(max(strides) % LINE for strides in (problem.a_strides, problem.b_strides)):
        asked *= APART
    own = steps * STEP[block_m, block_n]
    if block_m < M and M % (block_m // a_sharers):
        own *= OUTSIDE
    memory = 2 * (M * K + K * N + M * N) / MEMORY
    if (between or -(-M // block_m) > b_sharers) and 2 * K * N > STREAMED:
        memory *= AGAIN
    limits = (own, steps * blocks * asked / rounds / L2, memory)
    body = sum(limit**6 for limit in limits) ** (1 / 6)
    start = AHEAD_START if block_m * block_n <= 64 * 64 else START
    added = (ADDING + 4 * M * N * splits / PARTS) if splits > 1 else 0.0
    if not config["EARLY"]:
        start += LATE
    elif splits == 1 and cluster < 4 and among_idle(blocks, processors):
        body *= AMONG_IDLE
    return rounds * start + body + added + TOGETHER * (cluster > 1)


def _sharers(config: Mapping[str, int]) -> tuple[int, int]:
    """Blocks of a cluster that share their loads of A, and of B."""
    cluster = config["CLUSTER"]
    return (cluster, 1) if config["SHARES_A"] else (1, cluster)


def divide(config: Mapping[str, int], problem: Any, turned: bool) -> dict[str, int]:
    """The plan of a table's config.

    Args:
        problem: with M <= N.
        turned: the kernel's problem is the transpose of this one, and tile and sharers with it.
    """
    block_m, block_n, cluster = config["BLOCK_M"], config["BLOCK_N"], config["CLUSTER"]
    shares_a = config["SHARES_A"]
    if turned or not takes(block_n, problem):
        block_n = whole_panels(block_n)
    if turned:
        block_m, block_n = block_n, block_m
        shares_a = int(cluster > 1 and not shares_a)
    # No part of K is empty, and no block of a cluster without work.
    splits = max(1, min(config["SPLITS"], most_parts(problem.K)))
    sides = (problem.N, problem.M) if turned else (problem.M, problem.N)
    tiles = -(-sides[shares_a] // (block_n if shares_a else block_m))
    if tiles % cluster:
        cluster, shares_a = 1, 0
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": TILE_K,
        "NUM_STAGES": _stages(block_m, block_n, splits > 1 or problem.dtype_out == "float32"),
        "CLUSTER": cluster,
        "SHARES_A": shares_a,
        "SPLITS": splits,
        "EARLY": config["EARLY"],
    }


def _stages(block_m: int, block_n: int, float32: bool) -> int:
    """As many as fit beside the chunks of C, as SHARED_BYTES in one_wave_build.cuh counts."""
    stage = (block_m + rows_of_b(block_n)) * TILE_K * 2
    chunks = block_m // 64 * -(-block_n * (4 if float32 else 2) // 128)
    room = 1024 * SHARED_BYTES[9, 0] - 8 * (2 * MOST_STAGES + chunks) - 8192 * chunks
    return min(MOST_STAGES, room // stage)


SIMULATED = {
    "BLOCK_M": 64,
    "BLOCK_N": 64,
    "BLOCK_K": TILE_K,
    "NUM_STAGES": 8,
    "CLUSTER": 1,
    "SHARES_A": 0,
    "SPLITS": 1,
    "EARLY": 1,
}
"""The tile of a build that names none; problems on the CPU all take it."""
