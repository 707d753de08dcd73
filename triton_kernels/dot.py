"""One multiply of two blocks into the accumulator, and the narrowing of the result.

BITS is true for bfloat16 in the interpreter alone. Triton 3.6 and 3.7 multiply there the integers
that store the numbers, and truncate when they narrow; so both conversions are done on the bits.
On a GPU the branch is not compiled.
"""

from __future__ import annotations

from .runtime import tl, triton


@triton.jit
def multiply_add(a, b, acc, BITS: tl.constexpr):
    """acc[BLOCK_M, BLOCK_N] + a[BLOCK_M, BLOCK_K] @ b[BLOCK_K, BLOCK_N], summed in float32."""
    if BITS:
        # bfloat16 is the upper half of a float32: the products are exact, as on the GPU.
        a = (a.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
        b = (b.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return tl.dot(a, b, acc, input_precision="ieee", out_dtype=tl.float32)


@triton.jit
def narrow(acc, dtype: tl.constexpr, BITS: tl.constexpr):
    """The float32 accumulator in the dtype of C, rounded to nearest even."""
    if BITS and dtype == tl.bfloat16:
        bits = acc.to(tl.uint32, bitcast=True)
        bits = bits + 0x7FFF + ((bits >> 16) & 1)
        # Rounding a NaN may carry into its sign: 0x7FC0 is the quiet NaN.
        half = tl.where(acc == acc, bits >> 16, 0x7FC0)
        return half.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return acc.to(dtype)
