"""What the rows of several rungs share: type pairs, what is fused, the words for shapes.

A row is what tcgemm's dispatch reads of a rung (``Kernel`` in tcgemm/dispatch.py says of what). It
stands as ``ROW`` in the Python file beside the rung's .cu file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from ..build.toolchain import constants
from ..fusion import ACTIVATIONS
from .refusals import MOST_TILES, SM90_ONLY, refuse_other_than_sm90, refuse_tiles

PAIRS = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)

WMMA_PAIRS = (
    *PAIRS,
    ("float16", "float16", "float16"),
    ("int8", "int32"),
    ("uint8", "int32"),
    ("float32", "float32", "tf32"),
    ("float32", "float32", "tf32x3"),
    ("float64", "float64"),
)

FP8_PAIRS = tuple(
    (dtype_in, dtype_out, compute)
    for dtype_in in ("float8_e4m3fn", "float8_e5m2")
    for dtype_out in ("float16", "bfloat16", "float32")
    for compute in ("float32", "fast")
)

FUSES = ("alpha", "beta", "bias", *filter(None, ACTIVATIONS), "batch")

FUSES_NO_BATCH = FUSES[:-1]

VECTOR_ROWS = "A and B 16-byte aligned, one stride 1, rows a multiple of 16 bytes apart; C anywhere"

TMA_ROWS = "A and B 16-byte aligned, one stride 1, rows a multiple of 8 elements apart; C anywhere"


def row(name: str, adds: str, capability: tuple[int, int], **limits: Any) -> dict[str, Any]:
    """A rung's row: for 16-bit types on GPUs and in the simulator unless ``limits`` says otherwise.

    The plan is by default the constants of the rung's source. A rung whose row has ``wgmma=True``
    refuses all GPUs but those of compute capability 9.0, as the instruction exists there alone.
    ``most_tiles``: of C, all of a batch, that its launcher takes; ``tile_of_asked``: the plan's
    tile is of C as it is asked for, and not as its elements lie.
    """
    made = {
        "name": name,
        "adds": adds,
        "pairs": PAIRS,
        "capability": capability,
        "devices": ("cuda", "cpu"),
        "plan": partial(source_plan, name),
        **limits,
    }
    refuse, most = made.get("refuse", lambda problem: None), made.pop("most_tiles", MOST_TILES)
    wgmma, as_stored = made.pop("wgmma", False), not made.pop("tile_of_asked", False)

    def refuse_all(problem: Any) -> str | None:
        reason = refuse_other_than_sm90(problem) if wgmma else None
        return reason or refuse(problem) or refuse_tiles(problem, made["plan"], most, as_stored)

    made["refuse"] = refuse_all
    if wgmma:
        made["shapes"] = f"{made['shapes']}; {SM90_ONLY}"
    return made


def source_plan(name: str, problem: Any) -> Mapping[str, int]:
    """The constants of the rung's source, which alone decides them."""
    return source_constants(name)


@cache
def source_constants(name: str) -> dict[str, int]:
    """The rung's ``constexpr int NAME = number;``."""
    return constants(name)
