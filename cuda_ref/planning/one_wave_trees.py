"""What regression trees say of one_wave: by what factor a plan takes longer than its terms say.

One sum of terms cannot say that a cluster is worth it of few blocks and not of many, or parts of K
only where a step is short. Trees ask such questions one after the other. scripts/fit_one_wave.py
grows them on races of plans among other kernels and, with less weight, on plans behind themselves
(races.csv and waves.csv of reports/nvidia-h200/trials); here they are read.
"""

from __future__ import annotations

import json
import math
import struct
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

FILE = Path(__file__).with_name("one_wave_trees.json")


class Trees(NamedTuple):
    """The nodes of all trees, one tree behind the other, as tensors on the CPU."""

    questions: int
    """That a tree asks at most."""
    root: torch.Tensor
    """The number of each tree's first node."""
    node: torch.Tensor
    """Of each node all that it asks, in one number, so that a walk looks at one place for each: see
    ``ARRAYS``."""
    answer: torch.Tensor
    """Of leaves."""
    limit: torch.Tensor
    """All that facts are compared with, in ascending order."""
    numbers: tuple[torch.Tensor, ...]
    """FACT_BITS, of a fact the mask, and RANK_BITS: a number that is none costs more to make than
    what is done with it."""


def read(packed: Mapping[str, Any]) -> Trees:
    """The trees of a file, as tcgemm/choosing/trees.py packs them."""
    import torch

    dtypes = {"i": torch.int32, "d": torch.float64}
    of = {}
    # They are kept: none may be what a mode of the caller's makes of it, such as a fake tensor.
    with torch._C._DisableTorchDispatch():
        for name, code in ARRAYS.items():
            numbers = bytearray(decompress(b64decode(packed[name])))
            empty = torch.empty(0, dtype=dtypes[code], device="cpu")
            of[name] = torch.frombuffer(numbers, dtype=dtypes[code]) if numbers else empty
        kept = (FACT_BITS, (1 << FACT_BITS) - 1, FACT_BITS + RANK_BITS)
        small = tuple(torch.tensor(each, dtype=torch.int32, device="cpu") for each in kept)
    return Trees(questions=packed["questions"], numbers=small, **of)


ARRAYS = {"root": "i", "node": "i", "answer": "d", "limit": "d"}
"""What a file has, and the type of its numbers. The least significant byte comes first, as in every
host of such a GPU. A node is way << 21 | rank << 6 | fact. A plan whose fact is at most the limit
of that rank goes on ``way`` nodes further on, one with more of it at the node before that. A leaf's
way is 0, and its rank that of no limit."""

FACT_BITS, RANK_BITS = 6, 15


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
    fact_bits, mask, bits = trees.numbers
    # No dispatch mode of the caller's, such as fake tensors, hears of these tensors.
    with torch._C._DisableTorchDispatch(), torch.inference_mode():
        numbers = [*chain.from_iterable(known)]
        packed = bytearray(struct.pack(f"{len(numbers)}d", *numbers))
        facts = torch.frombuffer(packed, dtype=torch.float64)
        # Limits that are less than each fact: it is at most a limit whose rank is no less.
        less = torch.searchsorted(trees.limit, facts, out_int32=True)
        less = less.bitwise_left_shift_(fact_bits)
        # Of each plan at each tree its node, and the number of its first fact; expanded, since
        # repeat() takes longer.
        each = len(known), len(trees.root)
        at = trees.root.expand(each).reshape(-1)
        own = torch.arange(0, len(numbers), len(known[0]), dtype=torch.int32, device="cpu")
        own = own[:, None].expand(each).reshape(-1)
        for _ in range(trees.questions):
            node = trees.node.index_select(0, at)
            asked = less.index_select(0, node.bitwise_and(mask).add_(own))
            # What is less than 0 takes one off the way.
            at = at.add(node.sub_(asked).bitwise_right_shift_(bits))
        # One answer is added after the other: to the last bit the same sum on every processor.
        totals = trees.answer.index_select(0, at).view(each).cumsum(1)[:, -1]
        return [math.exp(total) for total in totals.tolist()]
