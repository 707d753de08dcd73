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
from base64 import b64decode
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import decompress

from .cost import TILE_K, ceil_div
from .one_wave_tile import among_idle, blocks_of
from .tables import LINE

if TYPE_CHECKING:
    import torch

FACTS = (
    "M", "N", "K", "a_by_columns", "b_by_rows", "a_aligned", "b_aligned", "c_aligned",
    "rows", "columns", "cluster_m", "cluster_n", "cluster", "parts", "pdl", "blocks", "steps",
    "filled", "among_idle", "us",
)  # fmt: skip
"""Names of the facts that a tree asks about, in the order in which ``facts`` gives them."""

LEAF = -1
"""The fact of a node that asks nothing."""

FILE = Path(__file__).with_name("one_wave_trees.json")


class Trees(NamedTuple):
    """The nodes of all trees, one tree behind the other, as tensors on the CPU."""

    questions: int
    """That a tree asks at most."""
    roots: torch.Tensor
    """The number of each tree's first node."""
    fact: torch.Tensor
    most: torch.Tensor
    """Of a leaf the answer."""
    ways: torch.Tensor
    """Of each node two numbers of nodes: where a plan with more of the fact goes on, and where one
    with at most so much does. Both ways of a leaf lead back to it."""


def read(packed: Mapping[str, Any]) -> Trees:
    """The trees of a file, as tcgemm/choosing/trees.py packs them."""
    import torch

    dtypes = {"i": torch.int32, "b": torch.int8, "d": torch.float64, "h": torch.int16}
    of = {}
    # They are kept: none may be what a mode of the caller's makes of it, such as a fake tensor.
    with torch._C._DisableTorchDispatch():
        for name, code in ARRAYS.items():
            numbers = bytearray(decompress(b64decode(packed[name])))
            empty = torch.empty(0, dtype=dtypes[code], device="cpu")
            of[name] = torch.frombuffer(numbers, dtype=dtypes[code]) if numbers else empty
        own = torch.arange(len(of["fact"]), dtype=torch.int32, device="cpu")
        ways = torch.stack((own + of["way"], own + (of["fact"] != LEAF)), 1).flatten()
        # A leaf looks at a fact, too, so that has to exist.
        fact = of["fact"].clamp(min=0).int()
    return Trees(packed["questions"], of["root"], fact, of["most"], ways)


ARRAYS = {"root": "i", "fact": "b", "most": "d", "way": "h"}
"""What a file has, and the type of its numbers: the number of each tree's first node, and of all
nodes the fact, the most, and the way. A plan with at most so much of the fact goes on at the next
node, one with more so many nodes further on; of LEAF the most is the tree's answer. The least
significant byte comes first, as in every host of such a GPU."""


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
    """Of the time by terms, what each plan with these facts takes, one at least. All plans go
    through all trees at once, one question after the other."""
    import torch

    trees = grown()
    # No dispatch mode of the caller's, such as fake tensors, hears of these tensors.
    with torch._C._DisableTorchDispatch(), torch.inference_mode():
        facts = torch.frombuffer(array("d", chain.from_iterable(known)), dtype=torch.float64)
        # Of each plan at each tree its node, and the number of its first fact; expanded, since
        # repeat() takes longer.
        each = len(known), len(trees.roots)
        at = trees.roots.expand(each).reshape(-1)
        own = torch.arange(0, len(facts), len(known[0]), dtype=torch.int32, device="cpu")
        own = own[:, None].expand(each).reshape(-1)
        for _ in range(trees.questions):
            asked = facts.index_select(0, trees.fact.index_select(0, at).add_(own))
            few = asked <= trees.most.index_select(0, at)
            at = trees.ways.index_select(0, torch.add(few, at, alpha=2))
        # One answer is added after the other: to the last bit the same sum on every processor.
        totals = trees.most.index_select(0, at).view(len(known), -1).cumsum(1)[:, -1]
        return [math.exp(total) for total in totals.tolist()]
