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

PAIRS = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)


def _row(name: str, adds: str, **limits: Any) -> dict[str, Any]:
    return {
        "name": name,
        "adds": adds,
        "pairs": PAIRS,
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
    _row("pipelined", "loads of NUM_STAGES - 1 later K steps in flight; the tile from a table"),
    _row("persistent", "one program per SM loops over tiles", yields=plans.few_rows),
    _row(
        "descriptor",
        "blocks copied by the TMA unit through tensor descriptors; C stored in halves",
        capability=(9, 0),
        shapes="A, B and C with one stride of 1, rows and addresses in multiples of 16 bytes",
        refuse=plans.refuse_descriptor,
        yields=plans.few_rows,
    ),
)


def load(name: str) -> Callable[..., None]:
    """The rung's callable ``run(a, b, c, **plan)``; each rung is the module of its name."""
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
