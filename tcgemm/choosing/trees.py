"""What boosted regression trees say of a plan: by what factor it takes longer than its terms say.

A sum of terms cannot say that a deep step is worth it only where rows are split, or only of small
tiles. Trees ask such questions one after the other. scripts/fit_plans.py grows them with
scikit-learn, each on what those before it left over, and writes them to a GPU's file; here they are
read and asked, and torch is imported for it.
"""

from __future__ import annotations

import math
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import compress, decompress

if TYPE_CHECKING:
    import torch

FACTS = (
    "kernel", "M", "N", "K", "a_by_columns", "b_by_columns", "rows", "columns", "depth", "parts",
    "stages", "warps", "a_aligned", "b_aligned", "c_aligned", "programs", "steps", "filled", "busy",
    "transposed", "pdl", "group", "shorter", "of_tile", "of_c", "operands", "products", "read",
    "multiplied", "cluster", "cluster_m", "cluster_n", "pingpong", "shares_a",
)  # fmt: skip
"""Names of the facts that a tree asks about, in the order in which ``facts`` gives them."""

WHOLE = 64
"""Elements of 16 bits in a line of the L2: rows that begin in lines are aligned to no more."""

LEAF = -1
"""The fact of a node that asks nothing."""

Tree = Sequence[Sequence[float]]
"""Of its nodes the fact, the most, and the way. A plan with at most so much of the fact goes on at
the next node, one with more so many nodes further on; of LEAF the most is the tree's answer."""


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


def read(file: Mapping[str, Any] | Iterable[Tree]) -> Trees:
    """The trees of a file, or such as were just grown."""
    import torch

    packed = file if isinstance(file, Mapping) else pack(file)
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
nodes what Tree says. The least significant byte comes first, as in every host of such a GPU."""


def pack(trees: Iterable[Tree]) -> dict[str, Any]:
    """Trees as a file has them: half as long as lists of numbers would be, and read in a tenth of
    the time, for which a process's first product waits."""
    found: dict[str, array[Any]] = {name: array(of) for name, of in ARRAYS.items()}
    questions = 0
    for fact, most, way in trees:
        found["root"].append(len(found["fact"]))
        for name, numbers in (("fact", fact), ("most", most), ("way", way)):
            found[name].extend(numbers)
        before = [0] * len(fact)  # questions before a node
        for at, (asked, apart) in enumerate(zip(fact, way, strict=True)):
            if asked != LEAF:
                before[at + 1] = before[at + int(apart)] = before[at] + 1
        questions = max(questions, *before)
    packed = {name: b64encode(compress(of.tobytes(), 9)).decode() for name, of in found.items()}
    return {"questions": questions, **packed}


def facts(kernel: int, problem: Any, plan: Mapping[str, Any], sms: int) -> tuple[float, ...]:
    """What is known of a plan, in the order of FACTS; the last ones are the same in all of
    Triton's.

    Args:
        kernel: its number among those of the GPU's file.
        problem: with its C by rows, as all that was timed.
        plan: with BLOCK_M, BLOCK_N and BLOCK_K.
    """
    M, N, K = problem.M, problem.N, problem.K
    rows, columns, depth = plan["BLOCK_M"], plan["BLOCK_N"], plan["BLOCK_K"]
    if plan.get("SWAP"):
        rows, columns = columns, rows
    parts = plan.get("SPLITS", 1)
    warps = plan.get("NUM_WARPS") or 4 * plan.get("CONSUMERS", 1) + 4
    along_m, along_n = plan.get("CLUSTER_M", 1), plan.get("CLUSTER_N", 1)
    a_by_columns, b_by_columns, *aligned = _lying(problem)
    tiles = -(-M // rows) * -(-N // columns) * problem.batch
    programs, of_part = tiles * parts, -(-K // parts)
    return (
        kernel, M, N, K, a_by_columns, b_by_columns,
        rows, columns, depth, parts, plan.get("NUM_STAGES", 3), warps, *aligned,
        programs / sms, -(-K // (depth * parts)), M * N * problem.batch / (tiles * rows * columns),
        programs / (sms * -(-programs // sms)), plan.get("SWAP", 0), plan.get("PDL", 1),
        plan.get("GROUP_M", 0), min(M, N), rows * columns, M * N, (M + N) * K / 1e6,
        M * N * K / 1e6, (rows + columns) * of_part, rows * columns * of_part / 1e6,
        plan.get("CLUSTER", along_m * along_n), along_m, along_n, plan.get("PINGPONG", 0),
        plan.get("SHARES_A", 0),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _lying(problem: Any) -> tuple[bool, bool, int, int, int]:
    """Whether A, and B, lies by columns, and how the rows of A, B and C are aligned."""
    of_each = (problem.a_strides, problem.b_strides, problem.c_strides)
    a_aligned, b_aligned, c_aligned = map(_aligned, of_each)
    return (
        problem.a_strides[1] != 1, problem.b_strides[1] != 1, a_aligned, b_aligned, c_aligned,
    )  # fmt: skip


def _aligned(strides: tuple[int, int]) -> int:
    """The largest power of two, WHOLE at most, that elements from a row to the next divide by."""
    apart = max(strides)
    return min(WHOLE, apart & -apart) if apart else WHOLE


def factors(trees: Trees, known: Sequence[Sequence[float]]) -> list[float]:
    """Of the time by terms, what each plan with these facts takes; 1 where there are no trees. All
    plans go through all trees at once, one question after the other."""
    import torch

    if not known or not len(trees.roots):
        return [1.0] * len(known)
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
