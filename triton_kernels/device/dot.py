"""One multiply of two blocks into the accumulator, by type; and the conversions around it.

EMULATED is true in the interpreter, for the types that Triton 3.6 and 3.7 get wrong there: bfloat16
(the integers that store the numbers are multiplied, and narrowing truncates), 8-bit floats (NaN
and Inf become numbers) and tf32 (operands are not rounded). Those conversions are then done on the
bits. On a GPU the branch is not compiled.

COMPUTE says how the product is formed:

    float32   float16, bfloat16 and 8-bit floats, summed in float32; the sum of 8-bit products
              leaves the tensor core every 128 steps of K, where it holds 14 bits of fraction
    fast      8-bit floats, all of K summed inside the tensor core
    float16   float16, summed in float16
    tf32      float32 rounded to 10 bits of fraction, to nearest
    rounded   the same, of operands that are rounded already
    tf32x3    float32 as the sum of two tf32 numbers: three products
    ieee      float32 on CUDA cores
    float64   float64
    int32     int8, and uint8 as int8 with the sums of rows and columns; wraps at 2^31
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RET505

from __future__ import annotations

from typing import Any

import torch

from ..host.runtime import INTERPRETED, tl, triton

EIGHT_BIT_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)


FLOAT32 = tl.constexpr("float32")
"""A default of a compiled function: Triton 3.6 does not make a constant of a bare string."""


@triton.jit
def zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMPUTE: tl.constexpr):
    """An empty accumulator."""
    if COMPUTE == "int32":
        return tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    elif COMPUTE == "float64":
        return tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float64)
    elif COMPUTE == "float16":
        return tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float16)
    else:
        return tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)


@triton.jit
def multiply_add(a, b, acc, EMULATED: tl.constexpr, COMPUTE: tl.constexpr = FLOAT32):
    """acc[BLOCK_M, BLOCK_N] + a[BLOCK_M, BLOCK_K] @ b[BLOCK_K, BLOCK_N]."""
    if COMPUTE == "int32":
        return tl.dot(a, b, acc, out_dtype=tl.int32)
    elif COMPUTE == "float64":
        return tl.dot(a, b, acc, out_dtype=tl.float64)
    elif COMPUTE == "float16":
        return tl.dot(a, b, acc, out_dtype=tl.float16)
    elif COMPUTE == "tf32":
        a, b = round_tf32(a, EMULATED), round_tf32(b, EMULATED)
        return tl.dot(a, b, acc, input_precision="tf32", out_dtype=tl.float32)
    elif COMPUTE == "rounded":
        return tl.dot(a, b, acc, input_precision="tf32", out_dtype=tl.float32)
    elif COMPUTE == "tf32x3":
        return tl.dot(a, b, acc, input_precision="tf32x3", out_dtype=tl.float32)
    elif EMULATED:
        a, b = widen(a, EMULATED), widen(b, EMULATED)
        return tl.dot(a, b, acc, input_precision="ieee", out_dtype=tl.float32)
    elif a.dtype.is_fp8() and COMPUTE == "float32":
        PROMOTE: tl.constexpr = 128 if a.shape[1] >= 128 else a.shape[1]
        return tl.dot(a, b, acc, max_num_imprecise_acc=PROMOTE, out_dtype=tl.float32)
    else:
        return tl.dot(a, b, acc, input_precision="ieee", out_dtype=tl.float32)


@triton.jit
def round_tf32(x, EMULATED: tl.constexpr):
    """float32 to the nearest number of 10 bits of fraction, ties away from zero (cvt.rna).

    The tensor core ignores the lower 13 bits: without this, it truncates.
    """
    if EMULATED:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = ((bits + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)
        # The carry would turn the NaN 0x7FFFFFFF into a zero.
        return tl.where(x == x, rounded, x)
    else:
        return tl.inline_asm_elementwise(
            "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def widen(x, EMULATED: tl.constexpr):
    """A 16-bit or 8-bit float in float32, exactly; other types as they are."""
    if EMULATED and x.dtype == tl.bfloat16:
        # bfloat16 is the upper half of a float32.
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif EMULATED and x.dtype == tl.float8e5:
        # e5m2 is the upper half of a float16.
        half = x.to(tl.uint8, bitcast=True).to(tl.uint16) << 8
        return half.to(tl.float16, bitcast=True).to(tl.float32)
    elif EMULATED and x.dtype == tl.float8e4nv:
        # As bits of a float16 an e4m3 number, subnormals included, is 2^8 too small.
        bits = x.to(tl.uint8, bitcast=True).to(tl.uint16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        number = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), number)
    elif x.dtype.primitive_bitwidth == 16:
        return x.to(tl.float32)
    else:
        return x


@triton.jit
def narrow(acc, dtype: tl.constexpr, EMULATED: tl.constexpr):
    """The accumulator in the dtype of C, rounded to nearest even."""
    if EMULATED and dtype == tl.bfloat16:
        bits = acc.to(tl.float32).to(tl.uint32, bitcast=True)
        bits = bits + 0x7FFF + ((bits >> 16) & 1)
        # Rounding a NaN may carry into its sign: 0x7FC0 is the quiet NaN.
        half = tl.where(acc == acc, bits >> 16, 0x7FC0)
        return half.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return acc.to(dtype)


@triton.jit
def less_128(x):
    """uint8 minus 128, as int8: the upper bit flipped."""
    return (x ^ 0x80).to(tl.int8, bitcast=True)


def compute_mode(fusion: Any, repack: int) -> str:
    """COMPUTE of a call: what its fusion asks for, float32 where it is None."""
    compute: str = "float32" if fusion is None else fusion.compute
    return "rounded" if repack and compute == "tf32" else compute


def summed_in(compute: str) -> torch.dtype:
    """The dtype of accumulators, as of parts of K, by COMPUTE."""
    return {
        "int32": torch.int32, "float64": torch.float64, "float16": torch.float16,
    }.get(compute, torch.float32)  # fmt: skip


def emulated(a: torch.Tensor) -> bool:
    """Whether operands like ``a`` need EMULATED."""
    return INTERPRETED and a.dtype in (torch.bfloat16, torch.float32, *EIGHT_BIT_FLOATS)
