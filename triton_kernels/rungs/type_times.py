"""How long a plan takes for types other than 16-bit floats: one small model of three kernels.

    us = start + max(programs one after the other x steps x a step, bytes / memory) + what follows

A step along K takes what it waits for, however little it multiplies, or what the programs of an SM
multiply and load beside each other, whichever is more. What follows or comes before are launches of
their own: the copies that host/repack.py makes, and the addition of parts of K. Imports no triton.

The constants were fitted to fused and warp_specialized, with K in one part, at thirteen shapes of
each type on an H100, behind a foreign kernel in a graph: 1 to 4096 rows, 32 to 8192 columns and 64
to 16384 elements along K. No part of K was timed, and nothing of skinny, which is taken to go
through a step as fused does; what is guessed says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..host.storage import column_major, itemsize, letter
from ..planning.dtypes import kind
from ..planning.planner import UNALIGNED_STEP_US
from ..planning.shared_memory import stage_bytes
from ..planning.tables import aligned

HOPPER = (9, 0)
"""The compute capability that it speaks of."""


class Step(NamedTuple):
    """A step along K of one kernel and type, in microseconds."""

    least: float
    """Alone on an SM, however small."""
    of_waiting: float
    """More of it for each 64 x 64 x 128 bytes, where it waits for its own loads."""
    multiplied: float
    """64 x 64 x 128 bytes of it, of all programs of an SM one after the other,"""
    loaded: float
    """and 128 x 128 bytes of A and B into the SM."""
    across_k: float = 0.0
    """64 x 128 bytes of B that do not lie along K, and pass through registers, of all programs."""


STEPS = {
    "tf32x3": {
        "fused": Step(0.47, 0.35, 0.42, 0.47, 0.45),
        "warp_specialized": Step(0.1, 0.1, 0.22, 0.34),
        "skinny": Step(0.47, 0.35, 0.42, 0.47, 0.45),
    },
    "tf32": {
        "fused": Step(0.45, 0.04, 0.085, 0.27, 0.18),
        "warp_specialized": Step(0.1, 0.066, 0.03, 0.04),
        "skinny": Step(0.45, 0.04, 0.085, 0.27, 0.18),
    },
    "float64": {
        "fused": Step(0.19, 0.28, 0.35, 0.29),
        "skinny": Step(0.19, 0.28, 0.35, 0.29),
    },
    "ieee": {
        "fused": Step(0.14, 0.3, 0.9, 0.06),
        "skinny": Step(0.14, 0.3, 0.9, 0.06),
    },
    "int8": {
        "fused": Step(0.01, 0.145, 0.084, 0.1),
        "warp_specialized": Step(0.067, 0.072, 0.04, 0.055),
        "skinny": Step(0.2, 0.07, 0.08, 0.16),
    },
    "float8": {
        "fused": Step(0.04, 0.075, 0.01, 0.157),
        "warp_specialized": Step(0.1, 0.061, 0.08, 0.07),
        "skinny": Step(0.2, 0.07, 0.08, 0.16),
    },
    "float8_promoted": {
        "fused": Step(0.22, 0.056, 0.01, 0.164),
        "warp_specialized": Step(0.145, 0.057, 0.085, 0.044),
        "skinny": Step(0.2, 0.07, 0.08, 0.16),
    },
}
"""By kind of operands and kernel. Those of fused and warp_specialized are within 6 to 20 % of the
times they were fitted to, in the root of the mean square; those of ieee are guessed from the rate
of multiply-adds on CUDA cores, and those of skinny from fused: nothing of these was timed."""

OUTSIDE_US = 0.4
"""A step of warp_specialized, times the share of its rows or columns that no matrix has: with 16
rows of 64 a step of 8 bits took 0.62 us, and with 64 rows 0.42."""

LEAST_COLUMNS = 32
"""Of a tile of skinny, as far as its multiplication counts: rows pass through registers, and are
split there, for few columns as for more. Guessed."""

BY_REGISTERS_US = 1.2
"""A step of skinny in 8 bits whose operands do not lie along K: no copy is asynchronous then, so
that it is a trip to memory. Guessed from UNALIGNED_STEP_US."""

EARNED = 0.08
"""Of its time that a plan has to win, to be taken in the place of the usual one: of the kernel that
was taken before there were times, or of a tile whose K is not divided."""

FEW = 128
"""Rows or columns of C up to which skinny is weighed with its K in one part."""

KERNELS = ("fused", "warp_specialized", "skinny")
"""Those whose time it knows."""

START_US = 1.9
"""Before the first step and after the last."""

BYTES_PER_US, L2_BYTES, L2_BYTES_PER_US = 2.7e6, 36e6, 4.2e6
"""Of A and B, and of their copies, out of memory or into it; so many, or fewer, the L2 has from the
call before, and at what rate."""

STORED_PER_US = 2.6e6
"""Bytes of C."""

COPY_US = 1.2
"""A launch of host/repack.py, of each operand, besides the bytes that it reads and writes."""

SECOND_US, PART_BYTES_PER_US = 2.0, 3.0e6
"""The launch that adds parts of K, and bytes of them that are written and read: both guessed from
what the 16-bit kernels take (divided_tiles.SECOND_US; k_division.SECOND_US is 2.6)."""


def modelled(problem: Any) -> bool:
    """Whether it speaks of a problem: one plain product of a type other than 16-bit floats, on
    Hopper."""
    if problem.device != "cuda" or (problem.capability or HOPPER) != HOPPER:
        return False
    if problem.batch > 1 or problem.fused or problem.mma_shape or problem.aux:
        return False
    return kind(problem.dtype_in, problem.compute) in STEPS


def us(kernel: str, problem: Any, plan: Mapping[str, int], sms: int) -> float:
    """Microseconds of a kernel's plan for a problem of which ``modelled`` holds."""
    name, each = kind(problem.dtype_in, problem.compute), itemsize(problem.dtype_in)
    m, n, depth, parts = plan["BLOCK_M"], plan["BLOCK_N"], plan["BLOCK_K"], plan.get("SPLITS", 1)
    M, N, K = problem.M, problem.N, problem.K
    turns_itself = kernel == "warp_specialized" and column_major(problem)
    swapped = bool(plan.get("SWAP", turns_itself))
    down, across = (N, M) if swapped else (M, N)
    programs = -(-down // m) * -(-across // n) * parts
    all_steps = -(-K // depth)
    steps = -(-all_steps // parts)
    step = STEPS[name][kernel]
    wide = max(n, LEAST_COLUMNS) if kernel == "skinny" else n
    multiplied = step.multiplied * m * wide * depth * each / (64 * 64 * 128)
    loaded = step.loaded * (m + n) * depth * each / (128 * 128)
    waits = step.least + step.of_waiting * m * n * depth * each / (64 * 64 * 128)
    work = max(multiplied, loaded)
    copied = copied_bytes(kernel, problem, plan)
    if not any(copied) and not _along_k(problem, swapped):
        work += step.across_k * n * depth * each / (64 * 128)
        waits += step.across_k * n * depth * each / (64 * 128)
    if kernel != "warp_specialized" and not aligned(problem, with_c=False, elements=8):
        waits = max(waits, UNALIGNED_STEP_US)
    if kernel == "skinny" and each == 1 and not problem.a_strides[1] == problem.b_strides[0] == 1:
        waits = max(waits, BY_REGISTERS_US)
    if kernel == "warp_specialized":
        waits += OUTSIDE_US * (max(1 - down / m, 0.0) + max(1 - across / n, 0.0))
    busiest, beside = -(-programs // sms), resident(kernel, problem, plan)
    whole, rest = divmod(busiest, beside)
    inside = steps * (whole * max(waits, beside * work) + (max(waits, rest * work) if rest else 0))
    terms = 2 if kernel == "warp_specialized" and name == "tf32x3" else 1
    operands = terms * (M + N) * K * each
    of_c = M * N * itemsize(problem.dtype_out)
    found = START_US + max(inside, _moved_us(operands)) + of_c / STORED_PER_US
    launches = sum(size > 0 for size in copied)
    found += COPY_US * launches + _moved_us(sum(copied))
    return found + second_us(problem, parts)


def _moved_us(size: float) -> float:
    return size / (L2_BYTES_PER_US if size <= L2_BYTES else BYTES_PER_US)


def second_us(problem: Any, parts: int) -> float:
    """Microseconds of the launch that adds parts, and of the parts' own way there and back."""
    if parts == 1:
        return 0.0
    wide = 8 if problem.dtype_in == "float64" else 4
    return SECOND_US + 2.0 * wide * parts * problem.M * problem.N / PART_BYTES_PER_US


def copied_bytes(kernel: str, problem: Any, plan: Mapping[str, int]) -> tuple[int, int]:
    """Bytes that the passes before a kernel read and write, of A and of B."""
    each = itemsize(problem.dtype_in)
    of_a, of_b = problem.M * problem.K * each, problem.N * problem.K * each
    if kernel == "skinny":
        return 0, 0
    name = kind(problem.dtype_in, problem.compute)
    if name == "tf32x3" and kernel == "warp_specialized":
        return 3 * of_a, 3 * of_b
    if not plan.get("REPACK"):
        return 0, 0
    if name == "tf32" and kernel == "fused":
        return 2 * of_a, 2 * of_b  # which rounds them besides
    a = letter((problem.M, problem.K), problem.a_strides) != "n"
    b = letter((problem.N, problem.K), problem.b_strides[::-1]) != "n"
    return 2 * of_a * a, 2 * of_b * b


def _along_k(problem: Any, swapped: bool) -> bool:
    """Whether the operand that is the kernel's B lies along K."""
    if swapped:
        return bool(problem.a_strides[1] == 1)
    return bool(problem.b_strides[0] == 1)


def resident(kernel: str, problem: Any, plan: Mapping[str, int]) -> int:
    """Programs that an SM has room for."""
    if kernel == "warp_specialized":
        return 1
    by_memory = 232_448 // max(stage_bytes(plan, problem.dtype_in, problem.compute), 1024)
    threads = 1024 if itemsize(problem.dtype_in) == 1 else 512
    return int(max(1, min(by_memory, threads // (32 * plan["NUM_WARPS"]))))


def faster(problem: Any, usual: str, plans: Mapping[str, Mapping[str, int]], sms: int) -> str:
    """The kernel, of those that have these plans, that takes less than the usual one by EARNED, and
    least of all; else the usual one."""
    times = {
        name: us(name, problem, plan, sms) * (1 if name == usual else 1 + EARNED)
        for name, plan in plans.items()
        if name in STEPS[kind(problem.dtype_in, problem.compute)]
        and _speaks_of(name, problem, plan)
    }
    return min(times, key=lambda name: times[name]) if usual in times else usual


def _speaks_of(kernel: str, problem: Any, plan: Mapping[str, int]) -> bool:
    """Whether skinny is meant for such a product: of few rows or columns, or in parts of K."""
    few = min(problem.M, problem.N) <= FEW
    return kernel != "skinny" or few or plan["SPLITS"] > 1
