"""The Triton ladder. All that tcgemm knows of it: KERNELS and load.

Importing it imports neither triton nor torch: the rows are plain data, a rung loads on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

if __name__ != "tcgemm.triton_kernels":
    raise ImportError("import tcgemm.triton_kernels: the bare name belongs to another distribution")

from . import plans

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
"""What descriptor multiplies."""

EVERY = (
    *ON_TENSOR_CORES,
    ("uint8", "int32"),
    ("float32", "float32", "ieee"),
    ("float64", "float64"),
)
FUSES = ("alpha", "beta", "bias", "relu", "gelu", "gelu_tanh", "silu", "scales", "batch")


def _row(name: str, adds: str, **limits: Any) -> dict[str, Any]:
    return {
        "name": name,
        "adds": adds,
        "pairs": PLAIN,
        "devices": ("cuda", "cpu"),
        "capability": (8, 0),
        "plan": partial(plans.plan, name),
        **limits,
    }


KERNELS: tuple[dict[str, Any], ...] = (
    _row("naive", "one program a tile, tiles in row-major order, tl.dot on tensor cores"),
    _row(
        "grouped", "tiles visited in bands of GROUP_M tile rows, so that L2 serves what is shared"
    ),
    _row(
        "pipelined",
        "loads of NUM_STAGES - 1 later K steps in flight; the tile from a table; every type, "
        "batches, and what follows the product",
        pairs=EVERY,
        fuses=FUSES,
        refuse=plans.refuse_float8,
    ),
    _row("persistent", "one program per SM loops over tiles", yields=plans.few_rows),
    _row(
        "descriptor",
        "blocks copied by the TMA unit through tensor descriptors; C stored in halves",
        pairs=ON_TENSOR_CORES,
        fuses=FUSES,
        capability=(9, 0),
        shapes="A, B and C with one stride of 1, rows and addresses in multiples of 16 bytes",
        refuse=plans.refuse_descriptor,
        yields=plans.few_rows,
    ),
    _row(
        "warp_specialized",
        "in Gluon: a producer warp loads, warpgroups multiply, C leaves under the next tile",
        devices=("cuda",),
        capability=(9, 0),
        shapes="as descriptor, on compute capability 9.0 only",
        refuse=plans.refuse_warp_specialized,
        yields=plans.few_rows,
    ),
)


def load(name: str) -> Callable[..., None]:
    """The callable ``run(a, b, c, fusion=None, **plan)``; each is the module of its name."""
    run: Callable[..., None] = import_module(f".{name}", __name__).run
    return run


def bind(
    name: str, a: Any, b: Any, c: Any, plan: Mapping[str, int]
) -> Callable[[Any, Any, Any], None]:
    """``load(name)`` bound to a plan and a kind of plain product, for repeated calls.

    The result launches C = A @ B for any a, b and c with the shapes, strides, dtypes and device of
    these: the caller's promise. It spares ``run``'s own look-up, 2 us of host time.
    """
    rung = import_module(f".{name}", __name__)
    launching = import_module(".launching", __name__)
    second = getattr(rung, "second", None)
    bound: Callable[[Any, Any, Any], None] = launching.bind(
        rung.kernel, rung.arguments, second, a, b, c, plan
    )
    return bound
