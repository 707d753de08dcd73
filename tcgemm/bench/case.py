"""One case to measure, as plain data, and how the results store writes it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..problem import COMPUTES, EPILOGUES, Problem, type_pair

FUSIONS = ("residual", "bias", *EPILOGUES)
"""What may be fused, one word each; a case's ``fused`` joins some with a space, in this order."""

NORMAL = "normal"
DATA = (NORMAL, "uniform", "ints", "zeros")
"""What the operands may hold: see ``accuracy.inputs.operands``."""

CASE_COLUMNS = (
    *("dtype_in", "dtype_out", "compute", "fused", "mma_shape", "layout"),
    *("M", "N", "K", "data", "batch"),
)
"""The fields of a case that name it, as the results store has them."""


@dataclass(frozen=True, slots=True)
class Case:
    """C[M, N] = A[M, K] @ B[K, N] on operands stored in ``layout``, ``batch`` times."""

    suite: str
    """The suite that names it, or 'shape' for one given by hand."""
    M: int
    N: int
    K: int
    dtype_in: str
    dtype_out: str
    layout: str
    """nn, nt, tn or tt: A then B, t is stored transposed; C is row-major."""
    origin: str
    """Where the shape comes from, in words."""
    compute: str = ""
    """How the products are summed (problem.COMPUTES); by default the dtype's first."""
    fused: str = ""
    """Words of FUSIONS: residual is beta = 1, bias a row vector, the rest the epilogue."""
    mma_shape: str = ""
    """The WMMA shape, of kernels that have several."""
    data: str = NORMAL
    """What A and B hold: of DATA."""
    batch: int = 1
    """Products in one call: A[batch, M, K], B[batch, K, N] and C[batch, M, N], one after another in
    memory."""

    def __post_init__(self) -> None:
        if not self.compute:
            object.__setattr__(self, "compute", COMPUTES[self.dtype_in][0])

    @property
    def shape(self) -> str:
        return f"{self.M}x{self.N}x{self.K}"

    @property
    def flop(self) -> int:
        """Operations of the whole batch; a multiply-add is two."""
        return 2 * self.M * self.N * self.K * self.batch

    def product(self, **asked: Any) -> Problem:
        """The product alone, of nothing fused, or the batch of them, as a problem."""
        return Problem.stored(
            self.M, self.N, self.K, self.dtype_in, self.dtype_out, self.layout,
            compute=self.compute, batch=self.batch, **asked,
        )  # fmt: skip

    def problem(self, **asked: Any) -> Problem:
        """The product with what is fused, as a problem."""
        words = self.fused.split()
        return self.product(
            beta=float("residual" in words),
            bias="bias" in words,
            epilogue=next((word for word in words if word in EPILOGUES), ""),
            **asked,
        )

    def __str__(self) -> str:
        pair = type_pair(self.dtype_in, self.dtype_out, self.compute)
        data = "" if self.data in (NORMAL, "") else f"data={self.data}"
        words = [word for word in (self.fused.replace(" ", "+"), self.mma_shape, data) if word]
        batch = [f"{self.batch} x"] if self.batch > 1 else []
        return " ".join([*batch, self.shape, pair, self.layout, *words])


def case_of_row(row: Mapping[str, Any]) -> Case:
    """The case of a row of results, whose cells may be text."""
    cells: dict[str, Any] = {
        name: int(row[name]) if name in "MNK" else row[name]
        for name in CASE_COLUMNS
        if name != "batch"
    }
    cells["batch"] = int(row.get("batch") or 1)
    return Case(suite="", origin="", **cells)
