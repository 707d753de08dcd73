"""What may be asked besides the plain product, in the numbers that csrc/host/gemm.cuh gives it.

``fusion`` is any object with the attributes alpha and beta (numbers), c (C_in, [M, N] or
[batch, M, N] of the output's dtype, or None), bias ([N] of the output's dtype, or None), epilogue
(a key of ACTIVATIONS), scale_a and scale_b (float32 of one element, or of [M] and [N], or None),
compute (a key of COMPUTES), mma_shape ("" or a WMMA shape, e.g. "32x8x16") and aux (a key of AUX:
what c is, if not C_in).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from .build.toolchain import activations

DTYPES = {
    "float16": 0,
    "bfloat16": 1,
    "float32": 2,
    "float64": 3,
    "int8": 4,
    "uint8": 5,
    "int32": 6,
    "float8_e4m3fn": 7,
    "float8_e5m2": 8,
}
"""The values of tcgemm::DType in csrc/host/gemm.cuh."""

ACTIVATIONS = activations()
"""Name -> value of tcgemm::Activation in csrc/tile/activations.cuh; rows fuse all of these."""

COMPUTES = {
    "float32": 0,
    "fast": 1,
    "float16": 2,
    "int32": 3,
    "float64": 4,
    "ieee": 5,
    "tf32": 6,
    "tf32x3": 7,
}
"""The values of tcgemm::Compute in csrc/host/gemm.cuh."""

AUX = {"": 0, "write": 1, "read": 2}
"""The values of tcgemm::Aux in csrc/host/gemm.cuh."""

ANY_ACTIVATION = 7
"""In FUSES: the build finds out at run time which activation it is."""

TILE = (
    "BLOCK_M",
    "BLOCK_N",
    "NUM_STAGES",
    "CHUNK_BUFFERS",
    "PINGPONG",
    "SHARES_A",
    "CLUSTER_M",
    "CLUSTER_N",
)
"""What of a plan a build is for, where the source has macros of these names."""

KNOWN_FROM = 128 * 128
"""The least elements of a tile whose builds know what they fuse (FUSES, in epilogue_fused.cuh).

A build for each combination gains 3 to 5 % of a large product; small tiles do with one for all.
"""


@cache
def mma_tile(shape: str) -> tuple[int, int]:
    """(m, n) of a WMMA shape such as "32x8x16"; (0, 0) where none is named."""
    if not shape:
        return 0, 0
    m, n, _ = shape.split("x")
    return int(m), int(n)


def case(
    dtype: Any,
    fusion: Any,
    out_dtype: Any = None,
    batched: bool = False,
    macros: frozenset[str] | None = None,
    plan: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """The compiler's flags for a build that takes one case only, of a rung that is built so.

    A case is the dtype of A and B, how products are summed, whether m and n of the WMMA tile are
    equal, whether it is one plain product, the dtype of C, the tile of ``plan``, whether K is
    divided, whether A is read across K, and for a large tile, or where there is a pre-activation,
    what is fused; of these, what ``macros`` name (see build.toolchain.built_by_case), by default
    the first four. ``dtype`` and ``out_dtype`` are torch.dtypes; ``batched``: of three dimensions.
    """
    compute = "float32" if fusion is None else fusion.compute
    m, n = mma_tile("" if fusion is None else fusion.mma_shape)
    tile = tuple(map(plan.get, TILE)) if plan else ()
    divides = plan.get("SPLITS", 1) > 1 if plan and macros and "TCGEMM_DIVIDES" in macros else None
    across = plan.get("ACROSS", 0) > 0 if plan and macros and "TCGEMM_ACROSS" in macros else None
    # What divides K leaves all that follows the product to a second kernel.
    plain = bool(divides) or (fusion is None and not batched)
    aux = fusion is not None and fusion.aux
    known = plan and not plain and plan["BLOCK_M"] * plan["BLOCK_N"] >= KNOWN_FROM
    fuses = fused_number(fusion, batched) if known or aux else None
    if fuses is not None and not plan:  # the simulator, where a build is for all activations
        fuses |= ANY_ACTIVATION
    return _flags(dtype, compute, m == n, plain, out_dtype, macros, tile, fuses, divides, across)


def fused_number(fusion: Any, batched: bool) -> int:
    """As fuses() in csrc/sm90/epilogue_fused.cuh; of a Problem, whose bias is a bool, as well."""
    if fusion is None:
        return 32 * batched
    return (
        ACTIVATIONS[fusion.epilogue]
        | 8 * (fusion.beta != 0)
        | 16 * (fusion.bias is not None and fusion.bias is not False)
        | 32 * batched
        | 64 * AUX[fusion.aux]
    )


@cache
def _flags(
    dtype: Any,
    compute: str,
    square: bool,
    plain: bool,
    out_dtype: Any,
    macros: frozenset[str] | None,
    tile: tuple[Any, ...],
    fuses: int | None,
    divides: bool | None,
    across: bool | None,
) -> tuple[str, ...]:
    values = {
        "TCGEMM_IN": dtype_number(dtype),
        "TCGEMM_COMPUTE": COMPUTES[compute],
        "TCGEMM_SQUARE": int(square),
        "TCGEMM_PLAIN": int(plain),
    }
    if out_dtype is not None:
        values["TCGEMM_OUT"] = dtype_number(out_dtype)
    if fuses is not None:
        values["TCGEMM_FUSES"] = fuses
    if divides is not None:
        values["TCGEMM_DIVIDES"] = int(divides)
    if across is not None:
        values["TCGEMM_ACROSS"] = int(across)
    if macros is not None:
        values |= {
            f"TCGEMM_{name}": value
            for name, value in zip(TILE, tile, strict=False)
            if value is not None
        }
    return tuple(f"-D{k}={v}" for k, v in values.items() if macros is None or k in macros)


def dtype_number(dtype: Any) -> int:
    """The number by which C++ knows a dtype of torch's, or the dtype of that name."""
    return DTYPES[str(dtype).removeprefix("torch.")]


@dataclass(slots=True)
class Asked:
    """A fusion: what is asked for, and the tensors of one call."""

    alpha: float
    beta: float
    epilogue: str
    compute: str
    mma_shape: str
    c: Any = None
    bias: Any = None
    scale_a: Any = None
    scale_b: Any = None
    aux: str = ""
