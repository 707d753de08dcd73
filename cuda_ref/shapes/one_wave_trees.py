"""What regression trees say of one_wave: by what factor a plan takes longer than its terms say.

One sum of terms cannot say that a cluster is worth it of few blocks and not of many, or parts of K
only where a step is short. Trees ask such questions one after the other. scripts/fit_one_wave.py
grows them on races of plans among other kernels and, with less weight, on plans behind themselves
(races.csv and waves.csv of reports/nvidia-h200/trials); here they are read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..planning.cost import TILE_K, ceil_div
from ..planning.tables import LINE
from .one_wave_tile import among_idle, blocks_of

FACTS = (
    "M", "N", "K", "a_by_columns", "b_by_rows", "a_aligned", "b_aligned", "c_aligned",
    "rows", "columns", "cluster_m", "cluster_n", "cluster", "parts", "pdl", "blocks", "steps",
    "filled", "among_idle", "us",
)  # fmt: skip
"""Names of the facts that a tree asks about, in the order in which ``facts`` gives them."""

LEAF = -1
"""The fact of a node that asks nothing."""

FILE = Path(__file__).with_name("one_wave_trees.json")

Tree = Sequence[tuple[int, float, int]]
"""Nodes: (fact, most, other). A plan with at most so much of the fact goes on at the next node, one
with more at the node of that number; of LEAF the second number is the tree's answer."""


def facts(config: Mapping[str, int], problem: Any, sms: int, us: float) -> tuple[float, ...]:
    """What is known of a plan, in the order of FACTS.

    Args:
        problem: with M <= N.
        us: microseconds by the terms.
    """
    M, N, K = problem.M, problem.N, problem.K
    rows, columns, parts = config["BLOCK_M"], config["BLOCK_N"], config["SPLITS"]
    cluster_m, cluster_n = config["CLUSTER_M"], config["CLUSTER_N"]
    blocks = blocks_of(config, problem)
    of_each = (problem.a_strides, problem.b_strides, problem.c_strides)
    return (
        M, N, K, problem.a_strides[1] != 1, problem.b_strides[1] == 1, *map(_aligned, of_each),
        rows, columns, cluster_m, cluster_n, cluster_m * cluster_n, parts, config["PDL"],
        blocks / sms, ceil_div(K, TILE_K * parts), M * N * parts / (blocks * rows * columns),
        among_idle(blocks, sms), us,
    )  # fmt: skip


def _aligned(strides: tuple[int, int]) -> int:
    """The largest power of two, LINE at most, that elements from a row to the next divide by."""
    apart = max(strides)
    return min(LINE, apart & -apart)


@cache
def grown() -> tuple[Tree, ...]:
    """The shipped trees."""
    return tuple(tuple(map(tuple, tree)) for tree in json.loads(FILE.read_text())["trees"])


def factor(config: Mapping[str, int], problem: Any, sms: int, us: float) -> float:
    """Of the time by terms, ``us``, what the plan takes."""
    known, total = facts(config, problem, sms, us), 0.0
    for tree in grown():
        at = 0
        while True:
            fact, most, other = tree[at]
            if fact == LEAF:
                total += most
                break
            at = at + 1 if known[fact] <= most else other
    return math.exp(total)
