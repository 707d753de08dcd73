"""The types that rungs take, and the tables' names for them."""

from __future__ import annotations

PLAIN = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)
"""16-bit operands summed in float32."""

FLOAT8 = tuple(
    pair
    for dtype in ("float8_e4m3fn", "float8_e5m2")
    for out in ("float16", "bfloat16", "float32")
    for pair in ((dtype, out), (dtype, out, "fast"))
)

ON_TENSOR_CORES = (
    *PLAIN,
    ("float16", "float16", "float16"),
    ("float16", "float32", "float16"),
    ("int8", "int32"),
    *FLOAT8,
    ("float32", "float32", "tf32"),
    ("float32", "float32", "tf32x3"),
)
"""What wgmma multiplies from blocks that TMA has brought, integers without a sign excepted."""

EVERY = (
    *ON_TENSOR_CORES,
    ("uint8", "int32"),
    ("float32", "float32", "ieee"),
    ("float64", "float64"),
)

SIGNED = tuple(pair for pair in EVERY if pair[0] != "uint8" and pair[2:] != ("float16",))
"""What kernels multiply that divide K and load by pointers: integers without a sign want sums of
rows and columns besides, and float16 summed in float16 is left to others."""

ON_CUDA_CORES = (
    ("float32", "float32", "tf32"),
    ("float32", "float32", "tf32x3"),
    ("float32", "float32", "ieee"),
    ("float64", "float64"),
)
"""What kernels without ``tl.dot`` multiply besides 16 bits: float32's own products and sums, which
are more than tf32 and tf32x3 promise, serve all three."""

FUSES = ("alpha", "beta", "bias", "relu", "gelu", "gelu_tanh", "silu", "scales", "batch")
"""All that can be done in the launch of one product."""


def kind(dtype_in: str, compute: str) -> str:
    """Which tables of "types" a problem takes; "" for 16-bit operands summed in float32."""
    if dtype_in in ("float16", "bfloat16"):
        return "" if compute == "float32" else compute
    if dtype_in.startswith("float8"):
        return "float8" if compute == "fast" else "float8_promoted"
    return dtype_in if compute == "int32" else compute
