"""How long a kernel takes, by one model of both languages: terms of its plan, each with a constant.

    us = start + sum of (constant x term)

A term is a quantity that the problem and the plan settle (``terms``): steps one after the other,
operations of the busiest SM, bytes into it, bytes of memory, what unaligned rows add, what is
stored, what follows where K is divided, what of a tile lies outside of C. The constants are a
kernel's own on a GPU, none below 0, and stand in ``model-<gpu>.json`` (model_files.py); fitting.py
fits them to rows of drawn shapes. Beside a constant stands the most of its term that a row had, and
how many rows had some: a product that has more of it, or any of what few rows had, has no time, so
nothing is said of what was not seen. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from .. import gpus
from . import model_files
from .model_files import TERMS, Constants

__all__ = ["TERMS", "Constants", "constants", "estimated_us", "knows", "sms_of", "terms"]

LINE, SECTOR, VECTOR = 64, 16, 8
"""Elements of 16 bits in a line of the L2, in a sector of one, and in a vector of 16 bytes."""

MODELLED = {(name, name, "float32") for name in ("float16", "bfloat16")}
"""dtype of A and B, of C, and how it is summed, of which it knows."""

LEAST_ROWS = 15
"""Rows that a kernel's constants are fitted to, at least, and each of them, to be a time."""

LARGEST = 16384
"""Of M, N and K of the shapes that it is fitted to: as LARGEST of bench/drawn.py."""


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
    loads = max(1.0, tiles * parts / sms) * min(depth, K) * 2 / 85e3  # of a row or column of a tile
    # Blocks of a cluster load what they share once.
    of_a, of_b = block_m / plan.get("CLUSTER_N", 1), block_n / plan.get("CLUSTER_M", 1)
    load = loads * (of_a + of_b)
    (split_a, along_a), (split_b, along_b), odd, odd_c, moved_us = _lying(problem)
    split = 0.0
    if split_a:  # by elements of a tile side by side
        split += loads * of_a * LINE / (block_k if along_a else block_m)
    if split_b:
        split += loads * of_b * LINE / (block_k if along_b else block_n)
    divided = float(parts > 1)
    return (
        1.0,
        waves * depth * block_m * block_n / (128 * 256 * LINE),
        load,
        split,
        load * odd,
        moved_us,
        waves * depth / LINE,
        float(waves),
        divided,
        divided * parts * 4 * M * N / 2e6,
        tiles * parts / sms * block_m * block_n / (128 * 256),
        M * N / 1e6 if odd_c else 0.0,
        max(0.0, 1 - M / block_m) + max(0.0, 1 - N / block_n),
    )


@lru_cache(maxsize=1024)
def _lying(
    problem: Any,
) -> tuple[tuple[bool, bool], tuple[bool, bool], bool, bool, float]:
    """Of A, and of B, whether rows split sectors of the L2 and whether K lies along them; whether
    rows of one of them, and of C, are no whole vectors; and what memory takes."""
    M, N, K = problem.M, problem.N, problem.K
    apart_a, apart_b = _apart((M, K), problem.a_strides), _apart((K, N), problem.b_strides)
    return (
        (apart_a % SECTOR > 0, problem.a_strides[1] == 1),
        (apart_b % SECTOR > 0, problem.b_strides[0] == 1),
        apart_a % VECTOR > 0 or apart_b % VECTOR > 0,
        max(problem.c_strides) % VECTOR > 0,
        2 * (M * K + K * N + M * N) * problem.batch / 4.3e6,
    )


def _apart(shape: tuple[int, int], strides: tuple[int, int]) -> int:
    """Elements from a row in memory to the next, 0 where there is one alone."""
    return min(
        (strides[1 - i] if shape[1 - i] > 1 else 0 for i in (0, 1) if strides[i] == 1),
        default=1,
    )


def constants(slug: str) -> Mapping[str, Constants]:
    """ "backend/kernel" -> its constants on a GPU; empty of one that has no table."""
    return model_files.of(slug).constants


def sms_of(slug: str) -> int:
    """SMs of a GPU, by its model's file where it has one; 0 where nothing is known."""
    return model_files.of(slug).sms or gpus.lookup(slug).sms or 0


def estimated_us(
    kernel: str, problem: Any, plan: Mapping[str, Any], slug: str, sms: int, at_least: bool = False
) -> float | None:
    """Microseconds of a kernel, named "backend/kernel"; None where the model does not know it.

    Args:
        at_least: of a term that is more than was seen the most that was, however few rows had some:
            no constant is below 0, so the kernel takes at least as long.
    """
    known = constants(slug).get(kernel)
    if known is None or "BLOCK_M" not in plan or not sms:
        return None
    found = terms(problem, plan, sms)
    return least_of(known, found) if at_least else sum_of(known, found)


def knows(problem: Any) -> bool:
    """Whether it speaks of products like this one: plain ones of 16 bits, no larger than those that
    it is fitted to."""
    kind = problem.dtype_in, problem.dtype_out, problem.compute
    drawn = max(problem.M, problem.N, problem.K) <= LARGEST
    return bool(drawn and problem.plain and kind in MODELLED)


def sum_of(known: Constants, found: Sequence[float]) -> float | None:
    """Microseconds: the sum of constants times terms; None where a term is more than was seen, or
    is one that too few rows had."""
    parts = []
    for (constant, most, rows), term in zip(known, found, strict=True):
        if term:  # as about half of them
            if term > most or rows < LEAST_ROWS:
                return None
            parts.append(constant * term)
    return sum(parts)


def least_of(known: Constants, found: Sequence[float]) -> float:
    """The same, of each term no more than was seen."""
    least = [min(term, most) for (_, most, _), term in zip(known, found, strict=True)]
    return sum([constant * term for (constant, _, _), term in zip(known, least, strict=True)])
