"""How long a kernel takes, by one model of both languages: terms of its plan, each with a constant.

    us = start + sum of (constant x term)

A term is a quantity that the problem and the plan settle (``terms``): steps one after the other,
operations of the busiest SM, bytes into it, bytes of memory, what unaligned rows add, what follows
where K is divided. The constants are a kernel's own on a GPU, none below 0, and stand in
``model-<gpu>.json``. scripts/fit_model.py fits them to rows of drawn shapes. Beside a
constant stands the most of its term that a row had: a product that has more of it has no time, so
nothing is said of what was not seen. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

TERMS = (
    "start",
    "multiply",
    "load",
    "load_split_lines",
    "load_by_elements",
    "memory",
    "step",
    "wave",
    "divided",
    "partials",
    "odd_c",
)
"""Names of the terms, in the order of ``terms``."""

LINE, VECTOR = 64, 8
"""Elements of 16 bits in a line of the L2, and in a vector of 16 bytes."""

MODELLED = {(name, name, "float32") for name in ("float16", "bfloat16")}
"""dtype of A and B, of C, and how it is summed, of which it knows."""

LEAST_ROWS = 15
"""Rows that a kernel's constants are fitted to, at least, and each of them."""

LARGEST = 16384
"""Of M, N and K of the shapes that it is fitted to: as LARGEST of bench/drawn.py."""

Constants = Sequence[Sequence[float]]
"""(constant, most that was seen of the term), in the order of TERMS."""


def terms(problem: Any, plan: Mapping[str, Any], sms: int) -> tuple[float, ...]:
    """The quantities that take a kernel its time, in the order of TERMS.

    Args:
        problem: as the kernel gets it: of copies, where operands are copied into aligned rows.
        plan: with BLOCK_M and BLOCK_N.
    """
    M, N, K = problem.M, problem.N, problem.K
    block_m, block_n = plan["BLOCK_M"], plan["BLOCK_N"]
    if plan.get("SWAP"):
        block_m, block_n = block_n, block_m
    block_k, parts = plan.get("BLOCK_K", LINE), plan.get("SPLITS", 1) * plan.get("GROUPS", 1)
    tiles = -(-M // block_m) * -(-N // block_n) * problem.batch
    waves = -(-tiles * parts // sms)
    steps = -(-K // block_k)
    depth = -(-steps // parts) * block_k  # elements of K that a block goes through
    busy = max(1.0, tiles * parts / sms) * depth * (block_m + block_n) * 2 / 85e3
    rows = [max(strides) for strides in (problem.a_strides, problem.b_strides)]
    split = any(pitch % LINE for pitch in rows)
    odd = any(pitch % VECTOR for pitch in rows)
    divided = float(parts > 1)
    return (
        1.0,
        waves * depth * block_m * block_n / (128 * 256 * LINE),
        busy,
        busy * split,
        busy * odd,
        2 * (M * K + K * N + M * N) * problem.batch / 4.3e6,
        depth / LINE,
        float(waves),
        divided,
        divided * parts * 4 * M * N / 2e6,
        M * N / 1e6 if max(problem.c_strides) % VECTOR else 0.0,
    )


@cache
def constants(slug: str) -> dict[str, Constants]:
    """ "backend/kernel" -> its constants on a GPU; empty of one that has no table."""
    path = Path(__file__).with_name(f"model-{slug}.json")
    if not path.is_file():
        return {}
    kernels: dict[str, dict[str, Sequence[float]]] = json.loads(path.read_text())["kernels"]
    return {name: tuple(found[term] for term in TERMS) for name, found in kernels.items()}


def estimated_us(
    kernel: str, problem: Any, plan: Mapping[str, Any], slug: str, sms: int, at_least: bool = False
) -> float | None:
    """Microseconds of a kernel, named "backend/kernel"; None where the model does not know it.

    Args:
        at_least: of a term that is more than was seen the most that was: no constant is below 0, so
            the kernel takes at least as long.
    """
    known = constants(slug).get(kernel)
    if known is None or "BLOCK_M" not in plan or not sms:
        return None
    found = terms(problem, plan, sms)
    if at_least:
        found = tuple(min(term, most) for (_, most), term in zip(known, found, strict=True))
    return sum_of(known, found)


def knows(problem: Any) -> bool:
    """Whether it speaks of products like this one: plain ones of 16 bits, no larger than those that
    it is fitted to."""
    kind = problem.dtype_in, problem.dtype_out, problem.compute
    drawn = max(problem.M, problem.N, problem.K) <= LARGEST
    return bool(drawn and problem.plain and kind in MODELLED)


def sum_of(known: Constants, found: Sequence[float]) -> float | None:
    """Microseconds: the sum of constants times terms; None where a term is more than was seen."""
    pairs = list(zip(known, found, strict=True))
    if any(term > most for (_, most), term in pairs):
        return None
    return sum(constant * term for (constant, _), term in pairs)


def fit(samples: Sequence[tuple[Sequence[float], float]]) -> list[float]:
    """The constants, none below 0, with the least sum of squared relative errors.

    Args:
        samples: (terms, microseconds) of each row.
    """
    rows = [[term / us for term in each] for each, us in samples]
    size = range(len(rows[0]))
    products = [[sum(row[i] * row[j] for row in rows) for j in size] for i in size]
    sums = [sum(row[i] for row in rows) for i in size]
    found = [0.0 for _ in size]
    for _ in range(
        2000
    ):  # one constant at a time; a little weight keeps those apart that few rows tell
        for i in size:
            off = sums[i] - sum(products[i][j] * found[j] for j in size)
            if products[i][i]:
                found[i] = max(0.0, found[i] + off / (products[i][i] + 1e-6 * len(rows)))
    return found
