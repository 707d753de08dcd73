"""How wgmma_types divides C: as launch_mode in csrc/wgmma_types.cu, whose lists are read here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from .build.toolchain import CSRC, constants
from .gpu import SIMULATED_SMS
from .gpu import of as gpu_of
from .limits import column_major


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
    source = (CSRC / "wgmma_types.cu").read_text()
    small = re.search(r"using Small = (.*?);", source)
    lists = re.findall(r"return with_fastest<(.*?)>\(gemm", source, re.DOTALL)
    if small is None:
        raise RuntimeError("wgmma_types.cu names no tiling Small")
    tiling = re.compile(r"Tiling<Mode, (\d+), (\d+), (\d+), (\d+)(?:, (true|false)(?:, \d+)?)?>")
    found = [
        tuple(
            Tiling(*map(int, each[:4]), each[4] == "true")
            for each in tiling.findall(text.replace("Small", small[1]))
        )
        for text in lists
    ]
    kinds = ("split", "promoted", "promoted fused", "plain tf32", "plain", "fused")
    return dict(zip(kinds, found, strict=True))


def is_fused(problem: Any) -> bool:
    """Whether more is asked than products, so that an instance of its own runs."""
    return not {*problem.fused} <= {"batch"}


def tiling_of(problem: Any) -> Tiling:
    """The tiling that ends first, by rounds x area / rate."""
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
def _fastest(kind: str, M: int, N: int, batch: int, processors: int) -> Tiling:
    def time(tiling: Tiling) -> float:
        tiles = -(-M // tiling.block_m) * -(-N // tiling.block_n) * batch
        return -(-tiles // processors) * tiling.block_m * tiling.block_n / tiling.rate

    return min(tilings()[kind], key=time)
