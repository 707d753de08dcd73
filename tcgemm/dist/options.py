"""What a product over several GPUs is asked for besides its operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .overlap.plan import OverlapPlan

ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
OPS = (ALL_GATHER, REDUCE_SCATTER)
"""The two products: A is gathered before it, or its partial sums are scattered after it."""


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """What the overlapped engine is told of a call. All ranks of a group are told the same but for
    the numbers in ``bias``."""

    backend: str
    """The language: "triton", "cuda", "auto" for the engine's own choice, or "cublas"."""
    kernel: str | None = None
    """A kernel by name, or None."""
    bias: torch.Tensor | None = None
    """[N], dtype of the result; added once, after the sum over K and over ranks."""
    epilogue: str = ""
    """One of problem.EPILOGUES, or "": applied last, in float32."""
    debug: bool = False
    """Whether waits have a time-out that names the rank and the chunk that is missing."""
    rows: int = 0
    """M: the rows of the whole A, of all ranks."""
    scale_a: torch.Tensor | float | None = None
    """Of 8-bit floats: a number, or float32 without dimension, or one for each row of A here."""
    scale_b: torch.Tensor | float | None = None
    """The same, or one for each column of B."""
    stamps: torch.Tensor | None = None
    """int64: where overlapped kernels write clock stamps (dist/overlap/timeline.py), or None."""
    plan: OverlapPlan | None = None
    """In place of the overlapped plan that would be chosen, the same on all ranks; to compare."""
