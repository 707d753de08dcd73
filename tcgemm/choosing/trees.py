"""What boosted regression trees say of a plan: by what factor it takes longer than its terms say.

A sum of terms cannot say that a deep step is worth it only where rows are split, or only of small
tiles. Trees ask such questions one after the other. scripts/fit_plans.py grows them with
scikit-learn, each on what those before it left over, and writes them to a GPU's file; here they are
read and asked, and torch is imported for it.
"""

from __future__ import annotations

import math
import struct
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


def read(file: Mapping[str, Any] | Iterable[Tree]) -> Trees:
    """The trees of a file, or such as were just grown."""
    import torch

    packed = file if isinstance(file, Mapping) else pack(file)
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
NO_LIMIT = (1 << RANK_BITS) - 1
"""The rank of a leaf."""


def pack(trees: Iterable[Tree]) -> dict[str, Any]:
    """Trees as a file has them, for which a process's first product waits. The two nodes behind a
    question lie side by side. Raises ValueError where there are too many limits for a rank."""
    trees = list(trees)
    told = [node for tree in trees for node in zip(*tree, strict=True)]
    limits = sorted({most for fact, most, _ in told if fact != LEAF})
    if len(limits) >= NO_LIMIT:
        raise ValueError(f"{len(limits)} limits, and a rank has {RANK_BITS} bits: round them")
    rank = {most: number for number, most in enumerate(limits)}
    found: dict[str, array[Any]] = {name: array(of) for name, of in ARRAYS.items()}
    found["limit"].extend(limits)
    questions = 0
    for tree in trees:
        size, start, further = len(tree[0]), len(found["node"]), 1
        found["root"].append(start)
        found["node"].extend([NO_LIMIT << FACT_BITS] * size)
        found["answer"].extend([0.0] * size)
        place, before = [0] * size, [0] * size  # where a node lies, and questions before it
        for at, (fact, most, way) in enumerate(zip(*tree, strict=True)):
            here = start + place[at]
            if fact == LEAF:
                found["answer"][here] = most
                continue
            asks = rank[most] << FACT_BITS | int(fact)
            found["node"][here] = (further + 1 - place[at]) << FACT_BITS + RANK_BITS | asks
            for then, lies in ((at + int(way), further), (at + 1, further + 1)):
                place[then], before[then] = lies, before[at] + 1
            further += 2
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
    lying, aligned, of_c, all_of_c, moved = _of_product(problem)
    tiles = -(-M // rows) * -(-N // columns) * problem.batch
    programs, of_part, of_tile = tiles * parts, -(-K // parts), rows * columns
    return (
        kernel, *lying, rows, columns, depth, parts, plan.get("NUM_STAGES", 3), warps, *aligned,
        programs / sms, -(-K // (depth * parts)), all_of_c / (tiles * of_tile),
        programs / (sms * -(-programs // sms)), plan.get("SWAP", 0), plan.get("PDL", 1),
        plan.get("GROUP_M", 0), of_c[0], of_tile, of_c[1], *moved, (rows + columns) * of_part,
        of_tile * of_part / 1e6, plan.get("CLUSTER", along_m * along_n), along_m, along_n,
        plan.get("PINGPONG", 0), plan.get("SHARES_A", 0),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _of_product(problem: Any) -> tuple[Any, ...]:
    """What is the same of all plans: M, N, K and whether A, and B, lies by columns; how the rows of
    A, B and C are aligned; the shorter side of C, and its elements, of one product and of all; the
    elements of operands, and the multiplications."""
    M, N, K = problem.M, problem.N, problem.K
    of_each = (problem.a_strides, problem.b_strides, problem.c_strides)
    lying = M, N, K, problem.a_strides[1] != 1, problem.b_strides[1] != 1
    moved = (M + N) * K / 1e6, M * N * K / 1e6
    return lying, (*map(_aligned, of_each),), (min(M, N), M * N), M * N * problem.batch, moved


def _aligned(strides: tuple[int, int]) -> int:
    """The largest power of two, WHOLE at most, that elements from a row to the next divide by."""
    apart = max(strides)
    return min(WHOLE, apart & -apart) if apart else WHOLE


def factors(trees: Trees, known: Sequence[Sequence[float]]) -> list[float]:
    """Of the time by terms, what each plan with these facts takes; 1 where there are no trees. All
    plans go through all trees at once, one question after the other."""
    import torch

    if not known or not len(trees.root):
        return [1.0] * len(known)
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
