"""wgmma_types: the other types of Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..build.toolchain import constants
from ..planning.pairs import cluster_of, least_tiles
from ..planning.refusals import MOST_TILES, beyond_tma, refuse_integer_epilogues
from ..planning.rows import FP8_PAIRS, FUSES, row
from ..planning.wgmma_types_model import (
    ALONG,
    chosen_for,
    is_fused,
    microseconds,
    product_of,
    sms_of,
)

ORDER = 200


def refuse_wgmma_types(problem: Any) -> str | None:
    """Why 8-bit operands or float32 cannot be multiplied; None when they can.

    They may lie anywhere: what TMA cannot read is packed.
    """
    return beyond_tma(problem) or refuse_integer_epilogues(problem)


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds of float32, which mma_types takes too; of other types None."""
    if problem.dtype_in != "float32":
        return None
    return microseconds(problem, chosen_for(problem), sms)


def plan(problem: Any) -> Mapping[str, int]:
    """How wgmma_types runs a problem."""
    chosen, parts, lies = chosen_for(problem)
    product, sms = product_of(problem, lies), sms_of(problem)
    block_m, block_n = chosen.block_m, chosen.block_n
    M, N = product.a.rows, product.b.rows
    least = least_tiles(block_m, block_n, problem.K, sms)
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
        **({"ACROSS": lies} if lies != ALONG else {}),
    }


def instance(problem: Any, plan: Mapping[str, Any]) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: see inspection.py."""
    shared = 1 if plan["PINGPONG"] else plan["CONSUMERS"]
    sizes = plan["CONSUMERS"], plan["BLOCK_M"] // (64 * shared), plan["BLOCK_N"]
    written = ", ".join([*map(str, sizes), str(bool(plan["PINGPONG"])).lower()])
    last = (str(bool(plan.get(name))).lower() for name in ("REPACK", "ACROSS"))
    terms, fused = f", {', '.join(last)}>", is_fused(problem)
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
    shapes="any; of float32 one operand may lie across K in 16-byte aligned rows; whatever else is "
    "not K-major in such rows is copied so first, and of a large tf32x3 product B as two terms "
    "(counted in its time)",
    refuse=refuse_wgmma_types,
    most_tiles=MOST_TILES // 2,
    wgmma=True,
    plan=plan,
)
