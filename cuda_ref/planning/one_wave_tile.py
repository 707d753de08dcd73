"""The builds of one_wave: tiles, clusters, which of them fit a product, and the plan of each.

A plan names a build by its tile and its cluster (see fusion.TILE), and tells the launcher SPLITS
and PDL. A BLOCK_M that is no multiple of 64 is of a tile that is computed transposed: see
one_wave_fitted.py. Every function is given the problem with M <= N.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from . import pairs
from .cost import TILE_K, ceil_div, most_splits
from .gpu import shared_kb
from .one_wave_fitted import (
    FITTED,
    by_columns,
    fitted,
    sms_for_clusters,
    stores,
    swaps,
    takes_fitted,
)
from .refusals import column_major

Clusters = tuple[tuple[int, int], ...]

WHOLE = (
    (64, 48), (64, 64), (64, 96), (64, 112), (64, 128), (64, 192),
    (96, 192), (128, 48), (128, 64), (128, 96), (128, 112), (128, 128), (128, 192),
    (192, 64), (192, 96), (192, 128),
)  # fmt: skip
"""Tiles of C, BLOCK_M x BLOCK_N.

Where rows are whole lines of the L2 each block is by itself, but for PAIRED: among other kernels a
cluster's start costs more than it saves. It was the fastest of 38 out of 40 raced products, and
within 2 % and 8 % of the two others (reports/nvidia-h200/trials/races.csv and
reports/nvidia-h100-sxm/trials/tile_races.csv).
"""

DIVIDED = ((64, 64), (64, 128), (128, 64), (128, 128), (96, 192), (192, 96))
"""The same where K is divided."""

LARGEST = ((128, 256), (256, 128))
"""Tiles besides, where rows begin within lines of the L2 and K has LEAST_STEPS of BLOCK_K.

With whole lines, or fewer steps, wgmma_persistent was mostly as fast or faster: it stores a tile
while it multiplies the next (reports/nvidia-h100-sxm/trials/tile_races.csv).
"""
LEAST_STEPS = 5

LARGE = 128 * 192
"""Elements of a tile: one that fits and has more is offered where LARGEST are."""

CLUSTERS = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4))
"""CLUSTER_M x CLUSTER_N of every tile, and of its transpose, where rows begin within lines of the
L2: a row of a box is then two lines, and what blocks ask for is what takes longest."""

PAIRED, PAIRED_STEPS = (64, 128), 100
"""A tile that may be in pairs that share B where rows are whole lines, over so many steps along K:
128 x 8192 x 8192 (nt) takes 36.6 us so and 38.9 in tiles of 128 x 64, and with a K of 28672 118 and
132 (nn); of 64 steps and fewer the pairs' start costs more (reports/nvidia-h200/trials/waves.csv).
"""

MOST_BLOCKS = 1.15
"""Blocks to a tile, at most: larger clusters may have a few blocks without a tile."""

IDLE = (0.5, 0.77)
"""Shares of the SMs that have a block, between which some of the next kernel's blocks find an idle
SM and some do not."""

FEWEST_STAGES, MOST_STAGES = 4, 12

ENOUGH_STAGES = {
    (64, 128, False): 8,
    (64, 144, False): 7,
    (128, 128, False): 6,
    (128, 128, True): 6,
}
"""Rows and columns of a tile as it is multiplied, and whether K is divided -> stages that are
enough. With one more 128 x 128 took 1 % longer at three of four raced products, and with its K in
parts it was not raced; 64 x 128 took up to 1 % longer at three of five, and 18 % at
1024 x 1024 x 8192 (nt). Of other tiles, and where K is divided, one more gains 3 % in the mean
(reports/nvidia-h200/trials/one_wave_stages.csv). 64 x 144 took 8 % longer with eight than with
seven at the product where both were raced (reports/nvidia-h200/trials/tight_stages.csv)."""


def splits_lines(problem: Any) -> bool:
    """Whether rows of A or B begin within lines of the L2."""
    return pairs.rows_lie(2, problem.a_strides, problem.b_strides) != pairs.WHOLE


def shapes(problem: Any, splits: int, sms: int) -> dict[tuple[int, int], Clusters]:
    """Tiles, and the clusters that each may be in."""
    found = WHOLE if splits == 1 else DIVIDED
    to_fit = fitted(problem, sms) if splits == 1 else ()
    not_large = [(m, n) for m, n in to_fit if m * n <= LARGE]
    if not splits_lines(problem):
        whole = dict.fromkeys((*found, *not_large), ((1, 1),))
        if splits == 1 and problem.K > TILE_K * (PAIRED_STEPS - 1):
            whole[PAIRED] = ((1, 1), (2, 1))
        return whole
    tiles = [*found, *((n, m) for m, n in found if (n, m) not in found)]
    if splits == 1 and problem.K > TILE_K * (LEAST_STEPS - 1):
        tiles += (*LARGEST, *to_fit)
    else:
        tiles += not_large
    few = [pair for pair in CLUSTERS if max(pair) <= 2]
    return {tile: tuple(few if 48 in tile else CLUSTERS) for tile in tiles}


def takes(block_m: int, block_n: int, problem: Any, splits: int = 1) -> bool:
    """Whether a problem may have such tiles.

    A side that is no multiple of 64 has to run along the rows of C, or the tile is one of FITTED,
    which is computed transposed. Nothing may be fused then, nor where the tile is large. A side of
    48 also needs a B that lies by columns.
    """
    along, across = (block_m, block_n) if by_columns(problem) else (block_n, block_m)
    if across % 64:
        known = (block_m, block_n) in FITTED or (block_n, block_m) in FITTED
        return splits == 1 and known and takes_fitted(problem) and stores(block_m, block_n, problem)
    # The launcher transposes nothing where C lies in steps both ways, so that side is not known.
    if along % 64 and 1 not in problem.c_strides:
        return False
    # The launcher goes by strides: of K = 1 a column of A is no row of it.
    if by_columns(problem):
        k_major = not column_major((problem.M, problem.K), problem.a_strides)
    else:
        k_major = column_major((problem.K, problem.N), problem.b_strides)
    if problem.plain:
        return along % 64 == 0 or along > 48 or k_major
    return along % 64 == 0 and not chunks_in_ring(block_m, block_n)


def chunks_in_ring(block_m: int, block_n: int) -> bool:
    """Whether C passes through the stages of the ring, when all is multiplied, whatever follows the
    product: so of large tiles, whose chunks would leave few stages, and of those that are stored
    transposed. A plain product's does so of other tiles too, where it brings a stage more."""
    return swaps(block_m) or block_m * block_n > 128 * 128


def rows_of_b(block_n: int, peers: int = 1) -> int:
    """Rows in a stage of a B along K, which ``peers`` blocks load; of another it has whole panels.
    As B_ROWS in one_wave/build.cuh."""
    return ceil_div(block_n, 8 * peers) * 8 * peers


def whole_panels(block_n: int) -> int:
    """Columns of the panels of 64 that a tile's width takes."""
    return -(-block_n // 64) * 64


@cache
def at_once(cluster: int, sms: int) -> int:
    """Blocks in clusters that run at once."""
    return sms if cluster < 4 else sms_for_clusters(sms) // cluster * cluster


def runs_at_once(config: Mapping[str, int], problem: Any, sms: int) -> bool:
    """Whether all blocks run at once, and nearly all of them have a tile."""
    cluster = config["CLUSTER_M"] * config["CLUSTER_N"]
    return has_tiles(config, problem) and blocks_of(config, problem) <= at_once(cluster, sms)


SHARING = (
    (64, 64), (64, 96), (64, 128), (64, 192), (96, 128), (96, 192), (128, 128), (128, 192),
)  # fmt: skip
"""Tiles, either way, of which several blocks may share an SM: one block's loads come, and its C
is stored, while another multiplies. 6144 x 320 x 64 (tt) takes 2.8 us in tiles of 64 x 64 and 3.1
by the fastest of one to an SM (reports/nvidia-h200/trials/cuda_plans.csv)."""

SHARING_K = 2 * TILE_K
"""Elements along K up to which they do: of 144 and more another plan was faster at each of 13 raced
products."""

THREAD_REGISTERS, SM_REGISTERS = 26, 65_536
"""Of a thread besides its accumulators, and of an SM."""


def sharing(problem: Any) -> Iterator[tuple[int, int]]:
    """Tiles, either way, of which an SM may have several blocks."""
    if problem.K > SHARING_K:
        return
    for block_m, block_n in dict.fromkeys((*SHARING, *((n, m) for m, n in SHARING))):
        if takes(block_m, block_n, problem) and block_m < problem.M + 64:
            yield block_m, block_n


def resident(config: Mapping[str, int], problem: Any) -> int:
    """Blocks that an SM has room for, by its registers and its shared memory."""
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    rows, cols = _as_multiplied(block_m, block_n)
    warps = rows // 64 * 4 + 1
    registers = -(-(THREAD_REGISTERS + cols // 2) // 8) * 8  # of a thread: a warp has them by 256
    chunks = _chunk_bytes(rows, cols, 4 if problem.dtype_out == "float32" else 2)
    ring = ceil_div(problem.K, TILE_K) * _stage_bytes(rows, whole_panels(cols))
    # Of other tiles too chunks may lie in the ring, so that there is room for more blocks than are
    # counted: plans of so many were not raced.
    in_ring = chunks_in_ring(block_m, block_n)
    # The driver keeps 1 KB of a block's, and barriers take another.
    shared = 2048 + (max(chunks, ring) if in_ring else chunks + ring)
    return min(SM_REGISTERS // (warps * 32 * registers), 1024 * (shared_kb((9, 0)) + 1) // shared)


def has_tiles(config: Mapping[str, int], problem: Any) -> bool:
    """Whether each block of the clusters has a tile; nearly each, where rows begin within lines."""
    (rows, _), (cols, _) = sides(config, problem)
    tiles = rows * cols * config["SPLITS"]
    return nearly_all_have_tiles(blocks_of(config, problem), tiles, splits_lines(problem))


def nearly_all_have_tiles(blocks: int, tiles: int, within: bool) -> bool:
    """The same of so many; ``within``: rows begin within lines of the L2."""
    return blocks <= (tiles * MOST_BLOCKS if within else tiles)


def sides(config: Mapping[str, int], problem: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Tiles and blocks of a cluster along M, and along N."""
    rows, cols = -(-problem.M // config["BLOCK_M"]), -(-problem.N // config["BLOCK_N"])
    return (rows, config["CLUSTER_M"]), (cols, config["CLUSTER_N"])


def blocks_of(config: Mapping[str, int], problem: Any) -> int:
    """Blocks of the launch, in whole clusters."""
    (rows, along_m), (cols, along_n) = sides(config, problem)
    return -(-rows // along_m) * along_m * -(-cols // along_n) * along_n * config["SPLITS"]


def among_idle(blocks: int, sms: int) -> bool:
    """Whether some of the next kernel's blocks, but not all, find an SM that this one leaves idle.

    With PDL, 582 timed cases of 67 to 101 blocks on 132 SMs took 10 % longer in the mean, up to
    half; those of fewer or more took 3 and 1 % less.
    """
    return IDLE[0] * sms < blocks <= IDLE[1] * sms


def divide(config: Mapping[str, int], problem: Any, sms: int, transposed: bool) -> dict[str, int]:
    """The plan of a table's config.

    Args:
        transposed: the kernel's problem is the transpose of this one: its tile is transposed too.
    """
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    splits = max(1, min(config["SPLITS"], most_splits(problem.K)))  # none is empty
    if not takes(block_m, block_n, problem, splits):
        block_m, block_n = whole_panels(block_m), whole_panels(block_n)
        built = {(block_m, block_n), (block_n, block_m)} & {*WHOLE, *LARGEST}  # not 256 x 64
        if not built or (not problem.plain and chunks_in_ring(block_m, block_n)):
            block_m, block_n = min(block_m, 128), min(block_n, 128)
    config = {**config, "BLOCK_M": block_m, "BLOCK_N": block_n, "SPLITS": splits}
    if not has_tiles(config, problem):
        config |= {"CLUSTER_M": 1, "CLUSTER_N": 1}
    return plan_of(config, problem, sms, transposed)


def plan_of(config: Mapping[str, int], problem: Any, sms: int, transposed: bool) -> dict[str, int]:
    """The same of a config that fits the problem as it is."""
    block_m, block_n, splits = config["BLOCK_M"], config["BLOCK_N"], config["SPLITS"]
    cluster_m, cluster_n = config["CLUSTER_M"], config["CLUSTER_N"]
    if transposed:
        block_m, block_n = block_n, block_m
        cluster_m, cluster_n = cluster_n, cluster_m
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": TILE_K,
        "NUM_STAGES": stages(
            block_m,
            block_n,
            splits > 1,
            problem.dtype_out == "float32",
            problem.plain,
            cluster_n if swaps(block_m) else cluster_m,
        ),
        "CLUSTER_M": cluster_m,
        "CLUSTER_N": cluster_n,
        "SPLITS": splits,
        "PDL": config["PDL"],
    }


@cache
def stages(
    block_m: int, block_n: int, divided: bool, float32: bool, plain: bool, peers: int = 1
) -> int:
    """As many as fit behind barriers and chunks where the kernel's B lies along K. Of one in whole
    panels the kernel takes as many of these as fit (STAGES in one_wave/build.cuh).

    Args:
        divided: K is, so that the kernel stores float32 sums and nothing follows.
        float32: C is, else of 16 bits.
        plain: nothing follows the product.
        peers: blocks of a cluster that share the kernel's B.
    """
    rows, cols = _as_multiplied(block_m, block_n)
    chunks = _chunk_bytes(rows, cols, 4 if divided or float32 else 2)
    if plain or divided or chunks_in_ring(block_m, block_n):
        chunks = 0  # beside the ring
    most = ENOUGH_STAGES.get((rows, cols, divided), MOST_STAGES)
    return min(most, (ROOM - chunks) // _stage_bytes(rows, rows_of_b(cols, peers)))


def in_whole_panels(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with the stages that there are of a B in whole panels, as all had when they were
    raced: what the models of plans know."""
    rows, cols = _as_multiplied(plan["BLOCK_M"], plan["BLOCK_N"])
    panels = cols if cols == 48 else whole_panels(cols)
    most = ROOM // _stage_bytes(rows, panels)
    return {**plan, "NUM_STAGES": min(plan["NUM_STAGES"], most)}


ROOM = 1024 * shared_kb((9, 0)) - 1024
"""Bytes of a block's shared memory behind the barriers."""


def _as_multiplied(block_m: int, block_n: int) -> tuple[int, int]:
    """Rows and columns of a tile as its warpgroups multiply it: transposed where they swap."""
    return (block_n, block_m) if swaps(block_m) else (block_m, block_n)


def _stage_bytes(rows: int, cols: int) -> int:
    """Of so many rows of A and of B in one stage of the ring."""
    return (rows + cols) * TILE_K * 2


def _chunk_bytes(rows: int, cols: int, element_bytes: int) -> int:
    """Of the chunks of C, each 64 rows of 128 bytes."""
    return 8192 * (rows // 64) * ceil_div(cols * element_bytes, 128)


def refuse_config(config: Mapping[str, int]) -> str | None:
    """Why no build has these settings: the assertions of one_wave/build.cuh."""
    tile = config["BLOCK_M"], config["BLOCK_N"]
    cluster = config["CLUSTER_M"], config["CLUSTER_N"]
    either_way = (tile, tile[::-1])
    whole = (*WHOLE, *LARGEST, *FITTED)
    if (
        any(each in whole for each in either_way)
        and cluster in CLUSTERS
        and (max(cluster) <= 2 or 48 not in tile)
        and config["PDL"] in (0, 1)
        and config["SPLITS"] >= 1
        and (config["SPLITS"] == 1 or any(each in DIVIDED for each in either_way))
    ):
        return None
    tiles, divided = (", ".join(f"{m} x {n}" for m, n in which) for which in (whole, DIVIDED))
    clusters = ", ".join(f"{m} x {n}" for m, n in CLUSTERS)
    return (
        f"the tile is one of {tiles} or its transpose, CLUSTER_M x CLUSTER_N one of {clusters}, of "
        f"a side of 48 none of more than 2, PDL 0 or 1, SPLITS 1, or more of {divided}"
    )
