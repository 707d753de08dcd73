"""What regression trees say of one_wave: by what factor a plan takes longer than its terms say.

One sum of terms cannot say that a cluster is worth it of few blocks and not of many, or parts of K
only where a step is short. Trees ask such questions one after the other. scripts/fit_one_wave.py
grows them on races of plans among other kernels and, with less weight, on plans behind themselves
(races.csv and waves.csv of reports/nvidia-h200/trials); here they are read.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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

Tree = Sequence[Sequence[float]]
"""Of its nodes the fact, the most, and the way. A plan with at most so much of the fact goes on at
the next node, one with more so many nodes further on; of LEAF the most is the tree's answer."""


class Trees(NamedTuple):
    """The nodes of all trees, one tree behind the other. Arrays are small and read at once."""

    roots: list[int]
    """The number of each tree's first node."""
    fact: array[int]
    most: array[float]
    way: array[int]


def read(file: Iterable[Tree]) -> Trees:
    """The trees of a file."""
    found = Trees([], array("b"), array("d"), array("h"))
    for fact, most, way in file:
        found.roots.append(len(found.fact))
        found.fact.extend(fact)  # type: ignore[arg-type]
        found.most.extend(most)
        found.way.extend(way)  # type: ignore[arg-type]
    return found


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
def grown() -> Trees:
    """The shipped trees."""
    return read(json.loads(FILE.read_text())["trees"])


def factors(known: Sequence[Sequence[float]]) -> list[float]:
    """Of the time by terms, what each plan with these facts takes, one at least. One tree after the
    other is asked about all plans: it is then near in the processor's caches."""
    known = [tuple(map(float, facts)) for facts in known]
    least, largest = (tuple(map(side, zip(*known, strict=True))) for side in (min, max))
    totals = [0.0] * len(known)
    roots, fact, most, way = grown()
    for at in roots:
        # As long as all plans go the same way, one goes for all.
        while (asked := fact[at]) != LEAF:
            if largest[asked] <= most[at]:
                at += 1
            elif least[asked] > most[at]:
                at += way[at]
            else:
                break
        for number, facts in enumerate(known):
            end = at
            while (asked := fact[end]) != LEAF:
                end += 1 if facts[asked] <= most[end] else way[end]
            totals[number] += most[end]
    return [math.exp(total) for total in totals]
