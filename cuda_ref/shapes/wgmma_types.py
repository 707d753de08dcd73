"""wgmma_types: the other types of Hopper's tensor cores, and its tilings of C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from ..build.toolchain import constants
from ..planning.cost import ceil_div
from ..planning.gpu import SIMULATED_SMS
from ..planning.gpu import of as gpu_of
from ..planning.pairs import cluster_of, least_tiles
from ..planning.parts import STEP_BYTES, Sizes, Way, best, divisions, fits, room, us
from ..planning.refusals import (
    MOST_TILES,
    beyond_tma,
    column_major,
    refuse_integer_epilogues,
)
from ..planning.rows import FP8_PAIRS, FUSES, row

ORDER = 200


def refuse_wgmma_types(problem: Any) -> str | None:
    """Why 8-bit operands or float32 cannot be multiplied; None when they can.

    They may lie anywhere: what TMA cannot read is packed.
    """
    return beyond_tma(problem) or refuse_integer_epilogues(problem)


class Tiling(NamedTuple):
    """One way to divide C and a block; the launcher has an instance for each of a list."""

    rate: int
    """Speed of a busy SM, in percent of the first of its list."""
    consumers: int
    halves: int
    """Of 64 rows for each consumer."""
    block_n: int
    pingpong: bool = False
    """A tile is one consumer's, else all work on it."""
    repack: bool = False
    """A pass beforehand splits B of tf32x3, else idle warps of each block do, step by step."""

    @property
    def block_m(self) -> int:
        return 64 * self.halves * (1 if self.pingpong else self.consumers)


SMALL = Tiling(65, 1, 1, 128)

TILINGS = {
    "split": (Tiling(100, 2, 1, 128), SMALL),
    "split beforehand": (Tiling(100, 2, 1, 128, repack=True),),
    "promoted": (Tiling(100, 2, 1, 128), Tiling(94, 3, 1, 128), SMALL),
    "promoted fused": (Tiling(100, 2, 1, 128), SMALL),
    "plain tf32": (
        Tiling(100, 2, 2, 128, True),
        Tiling(102, 2, 2, 192, True),
        Tiling(101, 2, 1, 256),
        SMALL,
    ),
    "plain": (Tiling(100, 2, 2, 128, True), Tiling(102, 2, 2, 192, True), SMALL),
    "fused": (Tiling(100, 2, 2, 128, True), SMALL),
}
"""What is summed, or fused -> the tilings that it has. No two of a list have the same tile of C, by
which the launcher is told one; REPACK tells it of which list: "split" or "split beforehand"."""

STEP_US_OF = {"int32": 0.34, "fast": 0.32, "float32": 0.35, "tf32": 0.32, "tf32x3": 1.08}
"""How products are summed -> what an SM takes for a step along K of a tile of 128 x 128 at the rate
of the first tiling of its list."""

STEP_US = 0.2
"""What a wave of tiles of 128 x 128 takes less for a step along K where B has been split
beforehand: 0.21 to 0.36 at the twelve timed products that have such tiles in either case
(reports/nvidia-h200/trials/tf32x3.csv)."""

MOST_STAGES, RING_BYTES = 8, 210 * 1024
"""Of a block: see NUM_STAGES in wgmma_types/tiling.cuh. Where it splits B, which takes longer than
loads do, there are fewer."""

COPY_US, COPY_BYTES_PER_US = 1.5, 2.4e6
"""Of a copy of an operand that TMA cannot read along K: its launch, and bytes read and written."""

STORED_BYTES_PER_US = 0.72e6, 2.4e6
"""Of a C of float32 whose rows begin anywhere, and at multiples of 16 bytes."""

PASS_US = 3.0
"""Of the pass that splits B: its launch, its first loads and its last stores."""

PASS_BYTES_PER_US = 3.5e6
"""Read and written by the pass: 4 bytes of an element, and 8. A copy of a B that TMA cannot read
along K, in whose place it is made, has 4 and 4."""


def is_fused(problem: Any) -> bool:
    """Whether more is asked than products, so that an instance of its own runs."""
    return not {*problem.fused} <= {"batch"}


def _sides(problem: Any) -> tuple[int, int]:
    """M and N; of the transposed product, where that is computed."""
    M, N = problem.M, problem.N
    return (N, M) if column_major((M, N), problem.c_strides) else (M, N)


def _sms(problem: Any) -> int:
    return SIMULATED_SMS if problem.device == "cpu" else gpu_of(problem).sms


class Side(NamedTuple):
    """What the kernel calls A or B: of a column-major C, each is the other one transposed."""

    strides: tuple[int, int]
    """Along K, and across it."""
    batch_stride: int
    alignment: int

    @property
    def along_k(self) -> bool:
        """Whether TMA reads it as it lies, so that it is not copied in any case."""
        apart = self.strides[1], self.batch_stride
        return self.strides[0] == 1 and self.alignment % 16 == 0 and not any(x % 4 for x in apart)


def _sides_along_k(problem: Any) -> tuple[Side, Side]:
    """What the kernel calls A, and B."""
    of_a, of_b, _ = problem.batch_strides
    a = Side(problem.a_strides[::-1], of_a, problem.a_alignment)
    b = Side(problem.b_strides, of_b, problem.b_alignment)
    return (b, a) if column_major((problem.M, problem.N), problem.c_strides) else (a, b)


def _side_of_b(problem: Any) -> Side:
    return _sides_along_k(problem)[1]


def _elements_of_b(problem: Any) -> int:
    """Of all matrices that are apart."""
    apart = problem.batch if _side_of_b(problem).batch_stride else 1
    return _sides(problem)[1] * int(problem.K) * apart


def _terms_bytes(problem: Any, beforehand: bool) -> int:
    """Of B in two terms, where the pass beforehand writes it."""
    return 8 * _elements_of_b(problem) * beforehand


def _beforehand_us(problem: Any) -> float:
    """What the pass takes that splits B; where B is copied in any case, what it takes longer."""
    more = 4 * _elements_of_b(problem) / PASS_BYTES_PER_US
    return PASS_US + 3 * more if _side_of_b(problem).along_k else more


def _pays_beforehand(problem: Any, tiling: Tiling) -> bool:
    """Whether the steps of all waves save more than the pass takes; and whether there is room for
    what it writes.

    Every row of tiles reads what the pass has split once, so a C of few rows is left to the kernel.
    """
    if tiling.consumers < 2:
        return False
    M, N = _sides(problem)
    tiles = -(-M // tiling.block_m) * -(-N // tiling.block_n) * problem.batch
    steps = -(-tiles // _sms(problem)) * -(-problem.K // 32)
    fits = _terms_bytes(problem, True) <= room()
    return fits and steps * STEP_US > _beforehand_us(problem)


def _kind(problem: Any, fused: bool) -> str:
    """The list of tilings that a problem may take."""
    if problem.compute == "float32":
        return "promoted fused" if fused else "promoted"
    if problem.compute == "tf32x3":
        return "split"
    if problem.compute == "tf32" and not fused:
        return "plain tf32"
    return "fused" if fused else "plain"


def tiling_of(problem: Any) -> Tiling:
    """The tiling that ends first, by waves x area / rate, of a K that is not divided."""
    kind = _kind(problem, is_fused(problem))
    chosen = _fastest(kind, *_sides(problem), problem.batch, _sms(problem))
    if kind == "split" and _pays_beforehand(problem, chosen):
        return TILINGS["split beforehand"][0]
    return chosen


def _way(problem: Any, tiling: Tiling) -> Way:
    """A tiling as the model of parts sees it."""
    area = tiling.block_m * tiling.block_n / 128 / 128
    step = STEP_US_OF.get(problem.compute, STEP_US_OF["float32"]) * area * 100 / tiling.rate
    stages = min(MOST_STAGES, RING_BYTES // ((tiling.block_m + tiling.block_n) * STEP_BYTES))
    if not tiling.repack:
        return Way(tiling.block_m, tiling.block_n, step, stages)
    before = _beforehand_us(problem)
    return Way(tiling.block_m, tiling.block_n, step - STEP_US, stages, before)


def divided(problem: Any) -> tuple[Tiling, int] | None:
    """The tiling and the parts of K of a product that ends first with K in parts, else None.

    What is fused the second launch does, so that all tilings of plain products are there. What is
    copied whichever the tiling is in no time here.
    """
    if problem.batch > 1:
        return None
    (M, N), sms = _sides(problem), _sms(problem)
    width = STEP_BYTES // (4 if problem.dtype_in == "float32" else 1)
    of, room_bytes = Sizes(M, N, -(-problem.K // width), 4), room()
    tilings = TILINGS[_kind(problem, False)]
    if problem.compute == "tf32x3":
        tilings += TILINGS["split beforehand"]
    tiling_by_way = {_way(problem, tiling): tiling for tiling in tilings}
    ways = [
        (way, parts)
        for way in tiling_by_way
        for parts in divisions(of, way.block_m, way.block_n, sms)
        if fits(of, parts, width, room_bytes, _terms_bytes(problem, way.before_us > 0))
    ]
    found = best(of, _way(problem, tiling_of(problem)), ways, sms)
    return (tiling_by_way[found[0]], found[1]) if found else None


def chosen_for(problem: Any) -> tuple[Tiling, int]:
    """The tiling, and the parts of K."""
    return divided(problem) or (tiling_of(problem), 1)


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds of float32, which mma_types takes too; of other types None."""
    if problem.dtype_in != "float32":
        return None
    tiling, parts = chosen_for(problem)
    M, N = _sides(problem)
    of = Sizes(M, N, ceil_div(problem.K, STEP_BYTES // 4), 4, problem.batch)
    a, b = _sides_along_k(problem)
    copied = [] if a.along_k else [M * problem.K * (problem.batch if a.batch_stride else 1)]
    if not tiling.repack and not b.along_k:
        copied.append(_elements_of_b(problem))
    copies = len(copied) * COPY_US + 8 * sum(copied) / COPY_BYTES_PER_US
    rate = STORED_BYTES_PER_US[max(problem.c_strides) % 4 == 0]
    stored = 4 * M * N * problem.batch / rate
    return us(of, _way(problem, tiling), parts, sms) + copies + stored


def plan(problem: Any) -> Mapping[str, int]:
    """How wgmma_types runs a problem."""
    chosen, parts = chosen_for(problem)
    block_m, block_n = chosen.block_m, chosen.block_n
    M, N = _sides(problem)
    least = least_tiles(block_m, block_n, problem.K, _sms(problem))
    cluster = cluster_of(-(-M // block_m), -(-N // block_n), problem.batch, False, least)
    # Blocks of a part have few steps to save loads in; and of a B that fills half of a tile at most
    # one block of a pair would load all.
    if parts > 1 or block_n >= 2 * N:
        cluster = 1
    numbers = constants("wgmma_types")
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": numbers["BLOCK_K"] // (4 if problem.dtype_in == "float32" else 1),
        "GROUP_M": numbers["GROUP_M"],
        "CONSUMERS": chosen.consumers,
        "PINGPONG": int(chosen.pingpong),
        "CLUSTER": 1 if problem.device == "cpu" else cluster,
        **({"REPACK": 1} if chosen.repack else {}),
        **({"SPLITS": parts} if parts > 1 else {}),
    }


@cache
def _fastest(kind: str, M: int, N: int, batch: int, sms: int) -> Tiling:
    def time(tiling: Tiling) -> float:
        tiles = -(-M // tiling.block_m) * -(-N // tiling.block_n) * batch
        return -(-tiles // sms) * tiling.block_m * tiling.block_n / tiling.rate

    return min(TILINGS[kind], key=time)


def instance(problem: Any, plan: Mapping[str, Any]) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: see inspection.py."""
    shared = 1 if plan["PINGPONG"] else plan["CONSUMERS"]
    sizes = plan["CONSUMERS"], plan["BLOCK_M"] // (64 * shared), plan["BLOCK_N"]
    written = ", ".join([*map(str, sizes), str(bool(plan["PINGPONG"])).lower()])
    terms, fused = f", {str(bool(plan.get('REPACK'))).lower()}>", is_fused(problem)
    tests: dict[str, Callable[[str], bool]] = {
        "T": lambda value: f", {written}, " in value and value.endswith(terms),
        "Extra": lambda value: value.endswith("Plain") != fused,
    }
    if plan.get("SPLITS", 1) > 1:
        sum_of = "int" if problem.dtype_out == "int32" else "float"
        tests |= {"Extra": lambda value: value.endswith("Part"), "Out": lambda v: v == sum_of}
    return tests


ROW = row(
    "wgmma_types",
    "8-bit types, tf32 and float32 as three tf32 products, split between TMA and wgmma",
    (9, 0),
    pairs=(
        ("int8", "int32"),
        ("uint8", "int32"),
        *FP8_PAIRS,
        ("float32", "float32", "tf32"),
        ("float32", "float32", "tf32x3"),
    ),
    fuses=(*FUSES, "scales"),
    shapes="any; an operand that is not K-major in 16-byte aligned rows is copied so first, and "
    "of a large tf32x3 product B as two terms (counted in its time)",
    refuse=refuse_wgmma_types,
    most_tiles=MOST_TILES // 2,
    wgmma=True,
    plan=plan,
)
