"""The Triton ladder. All that tcgemm knows of it: KERNELS and load.

Importing it imports neither triton nor torch: the rows are plain data, a rung loads on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

if __name__ != "tcgemm.triton_kernels":
    raise ImportError("import tcgemm.triton_kernels: the bare name belongs to another distribution")

from . import plans, refusals

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
        refuse=refusals.refuse_float8,
    ),
    _row(
        "persistent",
        "one program per SM loops over tiles",
        yields=partial(plans.yields, "persistent"),
    ),
    _row(
        "skinny",
        "the wide side first, so that few rows waste nothing; K divided among idle SMs; an early "
        "start",
        yields=partial(plans.yields, "skinny"),
    ),
    _row(
        "descriptor",
        "blocks copied by the TMA unit through tensor descriptors; C stored in halves",
        pairs=ON_TENSOR_CORES,
        fuses=FUSES,
        capability=(9, 0),
        shapes="A, B and C with one stride of 1, rows and addresses in multiples of 16 bytes",
        refuse=refusals.refuse_descriptor,
        yields=partial(plans.yields, "descriptor"),
    ),
    _row(
        "split_k",
        "tiles that do not fill the last wave of SMs divided along K and added in order",
        capability=(9, 0),
        shapes="as descriptor",
        refuse=refusals.refuse_descriptor,
        yields=partial(plans.yields, "split_k"),
    ),
    _row(
        "warp_specialized",
        "in Gluon: a producer warp loads, warpgroups multiply, C leaves under the next tile",
        pairs=(
            *PLAIN,
            ("int8", "int32"),
            *FLOAT8,
            ("float32", "float32", "tf32"),
            ("float32", "float32", "tf32x3"),
        ),
        fuses=FUSES,
        devices=("cuda",),
        capability=(9, 0),
        shapes="as descriptor, on compute capability 9.0 only; no batches in tf32x3",
        refuse=refusals.refuse_warp_specialized,
        yields=partial(plans.yields, "warp_specialized"),
    ),
)


def load(name: str) -> Callable[..., None]:
    """The callable ``run(a, b, c, fusion=None, **plan)``: the ``Rung`` of the module of its name.

    ``run.bind``, with the same arguments, gives a function of (a, b, c, c_in, bias, scale_a,
    scale_b) for many calls of one kind; see launching.Bound.
    """
    run: Callable[..., None] = import_module(f".{name}", __name__).run
    return run


STAGES = ("ttgir", "ptx", "sass")
"""The texts that ``inspect`` can give."""


def inspect(name: str, problem: Any, texts: bool = False) -> dict[str, Any]:
    """What Triton makes of the rung for the problem, for its GPU; no GPU needed.

    With ``texts``, also the stages ttgir, ptx and sass. Raises RuntimeError where the rung does not
    compile.
    """
    from importlib.metadata import version

    from .compile_only import Request, compile_rungs
    from .source import source_lines

    row = next(row for row in KERNELS if row["name"] == name)
    capability = problem.capability or (9, 0)
    request = Request(
        kernel=name,
        plan=row["plan"](problem),
        dtype_in=problem.dtype_in,
        dtype_out=problem.dtype_out,
        layout=problem.layout,
        capability=capability,
        M=problem.M,
        N=problem.N,
        K=problem.K,
        compute="" if problem.plain else problem.compute,
        epilogue=problem.epilogue,
        bias=problem.bias,
        c_in=problem.beta != 0,
        scales=problem.scales,
        batch=problem.batch if problem.batch > 1 else 0,
    )
    (compiled,) = compile_rungs([request], assembly=texts, fresh=True)
    own, whole = source_lines(name)
    return {
        "compiler": f"Triton {version('triton')}",
        "target": "sm_{}{}".format(*capability),
        "instances": 1,
        "instances built": 1,
        "registers": compiled.registers,
        "spilled bytes": compiled.spill_bytes,
        "shared bytes": compiled.shared_bytes,
        "serialized": compiled.serialized,
        "seconds": round(compiled.seconds, 2),
        "lines": own,
        "lines with what is shared": whole,
        "counts": {opcode: count for opcode, count in compiled.counts.items() if count},
        "texts": dict(compiled.assembly),
    }
