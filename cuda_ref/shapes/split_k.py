"""split_k: K divided among the blocks of a cluster, and among clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..planning.cost import (
    LAUNCH_US,
    MOST_SPLITS,
    TILE_K,
    ceil_div,
    clusters_at_once,
    into_sm_us,
    memory_us,
    most_splits,
    store_us,
)
from ..planning.refusals import refuse_tma
from ..planning.rows import FUSES_NO_BATCH, TMA_ROWS, row
from ..planning.tuning import Tuning

ORDER = 150

BLOCK_M = BLOCK_N = 128

EXCHANGE_US = 1.0
"""Exchanging partial sums between the blocks of a cluster."""

SECOND_KERNEL_US = 2.0
"""Adding the partial sums of several clusters, from a workspace."""

LEAST_K = 2048
"""K from which on dividing it can pay for adding the partial sums."""

TRIED = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2), (2, 4), (4, 4), (2, 8))
"""(SPLITS, GROUPS): blocks of a cluster, and clusters, among which K is divided."""


def candidates(problem: Any, sms: int) -> list[dict[str, int]]:
    """Those whose clusters all run at once, and each of whose splits has two steps of K."""
    tiles = ceil_div(problem.M, BLOCK_M) * ceil_div(problem.N, BLOCK_N)
    most = most_splits(problem.K)
    return [
        {"SPLITS": splits, "GROUPS": groups}
        for splits, groups in TRIED
        if splits == groups == 1
        or (splits * groups <= most and tiles * groups <= clusters_at_once(splits, sms))
    ]


def modelled_us(config: Mapping[str, int], problem: Any, sms: int) -> float:
    """Memory or the busiest SM, the exchange of partial sums and a second kernel."""
    splits, groups = config["SPLITS"], config["GROUPS"]
    blocks = ceil_div(problem.M, BLOCK_M) * ceil_div(problem.N, BLOCK_N) * splits * groups
    steps = math.ceil(math.ceil(problem.K / TILE_K) / (splits * groups))
    into_sm = into_sm_us(ceil_div(blocks, sms), steps, BLOCK_M, BLOCK_N)
    stored = store_us(BLOCK_M, BLOCK_N) + EXCHANGE_US * (splits > 1)
    second = SECOND_KERNEL_US * (groups > 1)
    return LAUNCH_US + max(memory_us(problem), into_sm) + stored + second


def divide(config: Mapping[str, int], problem: Any, sms: int, transposed: bool) -> dict[str, int]:
    """The plan of a table's config, in which no split of K is empty.

    The tile is square, so that it is the same for the transposed problem.
    """
    splits = min(config["SPLITS"], most_splits(problem.K), MOST_SPLITS)
    groups = min(config["GROUPS"], max(1, ceil_div(problem.K, TILE_K) // splits))
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": TILE_K}
    return {**tile, "SPLITS": splits, "GROUPS": groups}


TUNING = Tuning(
    kernel="split_k",
    settings=("SPLITS", "GROUPS"),
    simulated={"SPLITS": 1, "GROUPS": 1},
    candidates=candidates,
    modelled_us=modelled_us,
    divide=divide,
)


def cost(problem: Any, sms: int) -> float | None:
    """By the model, where K is long and tiles of 64 x 128 leave half of the SMs idle; else None.

    Of cuBLAS on an H200, bfloat16: 512 cubed 0.62 by this and 1.40 by a tile to a block.
    """
    tiles = ceil_div(problem.M, 64) * ceil_div(problem.N, 128)
    return TUNING.cost(problem, sms) if problem.K >= LEAST_K and sms // 2 >= tiles else None


ROW = row(
    "split_k",
    "blocks divide K; their sums meet in a cluster, or in a workspace, in the order of K",
    (9, 0),
    shapes=TMA_ROWS,
    refuse=refuse_tma,
    wgmma=True,
    plan=TUNING.plan,
    fuses=FUSES_NO_BATCH,
)
