"""wgmma_types: the other types of Hopper's tensor cores, and its tilings of C."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from ..build.toolchain import constants, source
from ..planning.gpu import SIMULATED_SMS
from ..planning.gpu import of as gpu_of
from ..planning.refusals import beyond_tma, column_major, refuse_integer_epilogues
from ..planning.rows import FP8_PAIRS, FUSES, row

ORDER = 200


def refuse_wgmma_types(problem: Any) -> str | None:
    """Why 8-bit operands or float32 cannot be multiplied; None when they can.

    They may lie anywhere: what TMA cannot read is packed.
    """
    return beyond_tma(problem) or refuse_integer_epilogues(problem)


class Tiling(NamedTuple):
    """As the template arguments of Tiling in the source, after Mode."""

    rate: int
    """Speed of a busy SM, in percent of the first of its list."""
    consumers: int
    halves: int
    block_n: int
    pingpong: bool

    @property
    def block_m(self) -> int:
        return 64 * self.halves * (1 if self.pingpong else self.consumers)


@cache
def tilings() -> dict[str, tuple[Tiling, ...]]:
    """What is summed, or fused, -> the tilings that the source has for it."""
    text = source("wgmma_types").read_text()
    small = re.search(r"using Small = (.*?);", text)
    lists = re.findall(r"return with_fastest<(.*?)>\(gemm", text, re.DOTALL)
    if small is None:
        raise RuntimeError("wgmma_types.cu names no tiling Small")
    tiling = re.compile(r"Tiling<Mode, (\d+), (\d+), (\d+), (\d+)(?:, (true|false)(?:, \d+)?)?>")
    read = [
        tuple(
            Tiling(*map(int, each[:4]), each[4] == "true")
            for each in tiling.findall(found.replace("Small", small[1]))
        )
        for found in lists
    ]
    kinds = ("split", "promoted", "promoted fused", "plain tf32", "plain", "fused")
    return dict(zip(kinds, read, strict=True))


def is_fused(problem: Any) -> bool:
    """Whether more is asked than products, so that an instance of its own runs."""
    return not {*problem.fused} <= {"batch"}


def tiling_of(problem: Any) -> Tiling:
    """The tiling that ends first, by waves x area / rate."""
    M, N = problem.M, problem.N
    if column_major((M, N), problem.c_strides):
        M, N = N, M  # the transposed product is computed
    fused = is_fused(problem)
    kind = "fused" if fused else "plain"
    if problem.compute == "float32":
        kind = "promoted fused" if fused else "promoted"
    elif problem.compute == "tf32x3":
        kind = "split"
    elif problem.compute == "tf32" and not fused:
        kind = "plain tf32"
    sms = SIMULATED_SMS if problem.device == "cpu" else gpu_of(problem).sms
    return _fastest(kind, M, N, problem.batch, sms)


def plan(problem: Any) -> Mapping[str, int]:
    """How wgmma_types runs a problem."""
    chosen, numbers = tiling_of(problem), constants("wgmma_types")
    return {
        "BLOCK_M": chosen.block_m,
        "BLOCK_N": chosen.block_n,
        "BLOCK_K": numbers["BLOCK_K"] // (4 if problem.dtype_in == "float32" else 1),
        "GROUP_M": numbers["GROUP_M"],
        "CONSUMERS": chosen.consumers,
        "PINGPONG": int(chosen.pingpong),
    }


@cache
def _fastest(kind: str, M: int, N: int, batch: int, sms: int) -> Tiling:
    def time(tiling: Tiling) -> float:
        tiles = -(-M // tiling.block_m) * -(-N // tiling.block_n) * batch
        return -(-tiles // sms) * tiling.block_m * tiling.block_n / tiling.rate

    return min(tilings()[kind], key=time)


def instance(problem: Any) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: see inspection.py."""
    chosen, fused = tiling_of(problem), is_fused(problem)
    sizes = (chosen.rate, chosen.consumers, chosen.halves, chosen.block_n)
    written = ", ".join([*map(str, sizes), str(chosen.pingpong).lower()])
    return {
        "T": lambda value: f", {written}, " in value,
        "Extra": lambda value: value.endswith("Plain") != fused,
    }


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
    shapes="any; an operand that is not K-major in 16-byte aligned rows is copied so first "
    "(counted in its time)",
    refuse=refuse_wgmma_types,
    wgmma=True,
    plan=plan,
)
