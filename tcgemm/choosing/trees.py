"""What boosted regression trees say of a plan: by what factor it takes longer than its terms say.

A sum of terms cannot say that a deep step is worth it only where rows are split, or only of small
tiles. Trees ask such questions one after the other. scripts/fit_plans.py grows them with
scikit-learn, each on what those before it left over, and writes them to a GPU's file; here they are
only read. Imports no torch.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
    """The nodes of all trees, one tree behind the other. Arrays are small and read at once: the
    first call of a shape finds little of them in the processor's caches."""

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
    of_each = (problem.a_strides, problem.b_strides, problem.c_strides)
    tiles = -(-M // rows) * -(-N // columns) * problem.batch
    programs, of_part = tiles * parts, -(-K // parts)
    return (
        kernel, M, N, K, problem.a_strides[1] != 1, problem.b_strides[1] != 1,
        rows, columns, depth, parts, plan.get("NUM_STAGES", 3), warps, *map(_aligned, of_each),
        programs / sms, -(-K // (depth * parts)), M * N * problem.batch / (tiles * rows * columns),
        programs / (sms * -(-programs // sms)), plan.get("SWAP", 0), plan.get("PDL", 1),
        plan.get("GROUP_M", 0), min(M, N), rows * columns, M * N, (M + N) * K / 1e6,
        M * N * K / 1e6, (rows + columns) * of_part, rows * columns * of_part / 1e6,
        plan.get("CLUSTER", along_m * along_n), along_m, along_n, plan.get("PINGPONG", 0),
        plan.get("SHARES_A", 0),
    )  # fmt: skip


def _aligned(strides: tuple[int, int]) -> int:
    """The largest power of two, WHOLE at most, that elements from a row to the next divide by."""
    apart = max(strides)
    return min(WHOLE, apart & -apart) if apart else WHOLE


def factors(trees: Trees, known: Sequence[Sequence[float]]) -> list[float]:
    """Of the time by terms, what each plan with these facts takes; 1 where there are no trees. One
    tree after the other is asked about all plans: it is then near in the processor's caches."""
    if not known:
        return []
    known = [tuple(map(float, facts)) for facts in known]
    least, largest = (tuple(map(side, zip(*known, strict=True))) for side in (min, max))
    totals = [0.0] * len(known)
    roots, fact, most, way = trees
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
