"""How long a plan takes for types other than 16-bit floats: one small model of three kernels.

    us = start + max(programs one after the other x steps x a step, bytes / memory) + what follows

A step along K takes what it waits for, however little it multiplies, or what the programs of an SM
multiply and load beside each other, whichever is more. What follows or comes before are launches of
their own: the copies that host/repack.py makes, and the addition of parts of K. Imports no triton.

The constants stand in type_times.json, fitted by scripts/fit_type_times.py to plans of 22 shapes of
each type, each behind a foreign kernel in a graph on an H200: 1 to 8192 rows, 16 to 14336 columns
and 512 to 32768 elements along K (reports/nvidia-h200/trials/type_parts.csv); those of float64 to
60 further shapes besides (float64_triton.csv there).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..host.storage import column_major, itemsize, letter
from ..planning.dtypes import kind
from ..planning.k_division import by_elements
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
    """64 x 128 bytes of B that do not lie along K, and pass through registers, of all programs,"""
    along_k: float = 0.0
    """and the same of B that does."""


class Constants(NamedTuple):
    """What all of these kernels have in common, in microseconds and bytes for each of them."""

    start: float
    """Before the first step and after the last."""
    memory: float
    """Of A and B, and of their copies, out of memory or into it;"""
    l2: float
    """L2_BYTES or fewer the L2 has from the call before, and at what rate."""
    stored: float
    """Of C."""
    copies: float
    """The launch of host/repack.py besides the bytes that it reads and writes."""
    second: float
    """The launch that adds parts of K,"""
    sums: float
    """and bytes of them that are written and read."""
    outside: float
    """A step of warp_specialized, times the share of its rows or columns that no matrix has."""
    odd_8_bits: float
    """A step of fused and skinny whose elements are loaded one by one: no copy is asynchronous
    then, so that it is a trip to memory. In 8 bits those of skinny are also where A or B does not
    lie along K."""
    odd_float32: float
    odd_float64: float


FILE = Path(__file__).with_name("type_times.json")
_SHIPPED = json.loads(FILE.read_text())

CONSTANTS = Constants(**_SHIPPED["constants"])

STEPS = {
    kind: {kernel: Step(*values) for kernel, values in of.items()}
    for kind, of in _SHIPPED["steps"].items()
}
"""By kind of operands and kernel."""

L2_BYTES = 36e6
"""Of operands, that the L2 keeps from call to call."""

SPLIT_ACROSS_US, SPLIT_ALONG_US = 0.04, 0.08
"""More of a step of warp_specialized in tf32x3, for 128 bytes along K of a first operand that is
loaded to registers and split there: where it lies across K, and along it. Set by hand to the rows
of reports/nvidia-h200/trials/across_k_triton.csv, where the plan taken loses 1.4 % to the
fastest."""

LEAST_COLUMNS = 32
"""Of a tile of skinny, as far as its multiplication counts: rows pass through registers, and are
split there, for few columns as for more."""

EARNED = 0.04
"""Of its time that a plan has to win, to be taken in the place of the usual one: of the kernel that
was taken before there were times, or of a tile whose K is not divided."""

KERNELS = ("fused", "warp_specialized", "skinny")
"""Those whose time it knows."""


def modelled(problem: Any) -> bool:
    """Whether it speaks of a problem: one plain product of a type other than 16-bit floats, on
    Hopper."""
    if problem.device != "cuda" or (problem.capability or HOPPER) != HOPPER:
        return False
    if problem.batch > 1 or problem.fused or problem.mma_shape or problem.aux:
        return False
    return kind(problem.dtype_in, problem.compute) in STEPS


def us(kernel: str, problem: Any, plan: Mapping[str, int], sms: int) -> float:
    """Microseconds of a kernel's plan for a problem of which ``modelled`` holds, or for a batch of
    such products."""
    name, each = kind(problem.dtype_in, problem.compute), itemsize(problem.dtype_in)
    m, n, depth, parts = plan["BLOCK_M"], plan["BLOCK_N"], plan["BLOCK_K"], plan.get("SPLITS", 1)
    M, N, K = problem.M, problem.N, problem.K
    turns_itself = kernel == "warp_specialized" and column_major(problem)
    swapped = bool(plan.get("SWAP", turns_itself))
    down, across = (N, M) if swapped else (M, N)
    programs = -(-down // m) * -(-across // n) * parts * problem.batch
    all_steps = -(-K // depth)
    steps = -(-all_steps // parts)
    step = STEPS[name][kernel]
    wide = max(n, LEAST_COLUMNS) if kernel == "skinny" else n
    multiplied = step.multiplied * m * wide * depth * each / (64 * 64 * 128)
    loaded = step.loaded * (m + n) * depth * each / (128 * 128)
    waits = step.least + step.of_waiting * m * n * depth * each / (64 * 64 * 128)
    work = max(multiplied, loaded)
    copied = copied_bytes(kernel, problem, plan)
    if not any(copied):
        of_b = step.along_k if _along_k(problem, swapped) else step.across_k
        by_registers = of_b * n * depth * each / (64 * 128)
        work += by_registers
        waits += by_registers
    if plan.get("ACROSS") and name == "tf32x3":
        first_along = _along_k(problem, not swapped)
        split = (SPLIT_ALONG_US if first_along else SPLIT_ACROSS_US) * depth * each / 128
        work += split
        waits += split
    if kernel == "warp_specialized":
        waits += CONSTANTS.outside * (max(1 - down / m, 0.0) + max(1 - across / n, 0.0))
    if one_by_one(kernel, problem, plan):
        waits = max(waits, _odd_us(each))
    busiest, beside = -(-programs // sms), resident(kernel, problem, plan)
    whole, rest = divmod(busiest, beside)
    inside = steps * (whole * max(waits, beside * work) + (max(waits, rest * work) if rest else 0))
    terms = 2 if kernel == "warp_specialized" and name == "tf32x3" else 1
    lines = (1 if plan.get("ACROSS") else terms) * down + terms * across
    operands = lines * K * each * problem.batch
    of_c = M * N * itemsize(problem.dtype_out) * problem.batch
    found = CONSTANTS.start + max(inside, _moved_us(operands)) + of_c / CONSTANTS.stored
    found += CONSTANTS.copies * any(copied) + _moved_us(sum(copied) * problem.batch)
    return found + second_us(problem, parts)


def _moved_us(size: float) -> float:
    return size / (CONSTANTS.l2 if size <= L2_BYTES else CONSTANTS.memory)


def one_by_one(kernel: str, problem: Any, plan: Mapping[str, int]) -> bool:
    """Whether fused or skinny loads elements of A or B one by one. Copies that are rounded have a K
    of whole vectors (host/repack.py), others the K of the problem."""
    name = kind(problem.dtype_in, problem.compute)
    if kernel == "warp_specialized" or (name == "tf32" and plan.get("REPACK")):
        return False
    if kernel != "skinny":
        return not aligned(problem, with_c=False)
    along_k = problem.a_strides[1] == problem.b_strides[0] == 1
    return by_elements(problem) or (itemsize(problem.dtype_in) == 1 and not along_k)


def _odd_us(itemsize: int) -> float:
    """The least step where elements of so many bytes are loaded one by one."""
    of = {1: CONSTANTS.odd_8_bits, 4: CONSTANTS.odd_float32, 8: CONSTANTS.odd_float64}
    return of[itemsize]


def second_us(problem: Any, parts: int) -> float:
    """Microseconds of the launch that adds parts, and of the parts' own way there and back."""
    if parts == 1:
        return 0.0
    wide = 8 if problem.dtype_in == "float64" else 4
    moved = 2.0 * wide * parts * problem.M * problem.N * problem.batch
    return CONSTANTS.second + moved / CONSTANTS.sums


def copied_bytes(kernel: str, problem: Any, plan: Mapping[str, int]) -> tuple[int, int]:
    """Bytes that the passes before a kernel read and write, of A and of B."""
    each = itemsize(problem.dtype_in)
    of_a, of_b = problem.M * problem.K * each, problem.N * problem.K * each
    if kernel == "skinny":
        return 0, 0
    name = kind(problem.dtype_in, problem.compute)
    if plan.get("ACROSS"):
        times = 3 if name == "tf32x3" else 2 if plan.get("REPACK") else 0
        return (times * of_a, 0) if plan["SWAP"] else (0, times * of_b)
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
