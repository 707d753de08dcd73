"""What is measured over several GPUs, and the file that its rows are kept in. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...dist.options import ALL_GATHER, OPS, REDUCE_SCATTER
from ...errors import OperandError
from ...problem import OUTPUTS
from ...vocabulary import either, sizes_of
from ..appended import Appended

SEVERAL = "several.csv"
STAMPS = "several_stamps.csv"

COLUMNS: dict[str, str] = {
    "run": "id of the run in environment.json",
    "model": "the model whose layer it is, or 'shape' for one given by hand",
    "layer": "qkv, up, o or down; or none",
    "world": "ranks, a GPU each",
    "op": "all_gather (before the product) or reduce_scatter (after it)",
    "M": "rows of A, of all ranks",
    "N": "columns of the whole layer: of all ranks' B",
    "K": "inner dimension of the whole layer",
    "dtype": "of A and B",
    "contender": "planned (what tcgemm.dist takes unasked), one_shot, or overlapped/LANGUAGE",
    "way": "what it took: overlapped, one_shot or sequence",
    "why": "the plan's sentence",
    "status": "ok, wrong, failed or unsupported",
    "reason": "a sentence where status is not ok",
    "error_ratio": "worst error over its bound, over all ranks, against float64 on gathered "
    "operands; above 1 is wrong",
    "exact_errors": "elements of all ranks that differ on exact integers; above 0 is wrong",
    "ms_p20": "milliseconds of a call on the slowest rank, 20th percentile; empty: not timed",
    "ms_p50": "the median",
    "ms_p80": "80th percentile",
    "gemm_ms": "cuBLAS alone on the gathered operand, median",
    "nccl_ms": "NCCL and cuBLAS one after the other, median",
    "torch_fused_ms": "torch's fused operator, median; empty where it failed or was wrong",
    "torch_status": "ok, or what became of torch's operator",
    "ratio_nccl": "nccl_ms over this time, the median of rounds; above 1 is faster",
    "ratio_torch": "torch_fused_ms over this time, likewise",
    "of_limit": "the longer of gemm_ms and the bare transfer, over ms_p50: 1 hides all",
    "rounds": "rounds, in each of which every contender ran once",
    "seed": "seed of the operands",
}
"""The schema of several.csv: column -> meaning, in file order."""

STAMP_COLUMNS = (
    *("run", "op", "M", "N", "K", "dtype", "contender", "rank"),
    *("what", "piece", "begin_us", "end_us"),
)
"""Of several_stamps.csv, one call's clock stamps: what a rank did from when to when."""


@dataclass(frozen=True, slots=True)
class Case:
    """A layer over ``world`` ranks; M, N, K of the whole."""

    model: str
    layer: str
    world: int
    op: str
    M: int
    N: int
    K: int
    dtype: str

    def __str__(self) -> str:
        name = f"{self.model} {self.layer}".strip()
        return f"{name}: {self.op} {self.M}x{self.N}x{self.K} {self.dtype} over {self.world}"

    @property
    def local(self) -> tuple[int, int, int]:
        """M, N, K of a rank's product."""
        N, K = self.N, self.K
        return (self.M, N // self.world, K) if self.op == ALL_GATHER else (
            self.M, N, K // self.world
        )  # fmt: skip


LLAMA = {"Llama 8B": (4096, 14336, 6144), "Llama 70B": (8192, 28672, 10240)}
"""Model -> its width, its MLP's width, and the columns of q, k and v (Llama 3's papers)."""

ROWS = (512, 2048, 4096, 8192, 16384)


def suite(
    world: int,
    dtypes: Sequence[str] = (),
    shapes: Sequence[str] = (),
    rows: Sequence[int] = ROWS,
) -> list[Case]:
    """40 cases a dtype: the four layers of LLAMA's models for each of ``rows``; or shapes by hand.

    Raises OperandError where a layer does not divide by the ranks, or for a dtype that is none.
    """
    for dtype in dtypes:
        if dtype not in OUTPUTS:
            raise OperandError(f"unknown dtype {dtype!r}: choose from {either(OUTPUTS)}")
        if dtype == "float8_e5m2":
            raise OperandError(
                "cuBLAS, the baseline, does not multiply two matrices of float8_e5m2: name "
                "float8_e4m3fn"
            )
    cases = []
    for dtype in dtypes or ("bfloat16",):
        if shapes:
            sizes = [sizes_of(text) for text in shapes]
            cases += [Case("shape", "", world, op, *mnk, dtype) for mnk in sizes for op in OPS]
            continue
        for model, (width, hidden, qkv) in LLAMA.items():
            layers = (
                ("qkv", ALL_GATHER, qkv, width), ("up", ALL_GATHER, 2 * hidden, width),
                ("o", REDUCE_SCATTER, width, width), ("down", REDUCE_SCATTER, width, hidden),
            )  # fmt: skip
            cases += [
                Case(model, layer, world, op, M, N, K, dtype)
                for M in rows
                for layer, op, N, K in layers
            ]
    for case in cases:
        name, size = ("N", case.N) if case.op == ALL_GATHER else ("K", case.K)
        if size % world:
            raise OperandError(
                f"{case}: {name} is {size}, which does not divide by {world} ranks: name sizes "
                "that do with --shape MxNxK"
            )
    return cases


CHECKED = ("8x24x48", "7x12x24")
"""Instead of the suite where there is no GPU: small, and with rows that do not divide."""


_ROWS = Appended(SEVERAL, tuple(COLUMNS), "tcgemm bench --several")
_STAMPS = Appended(STAMPS, STAMP_COLUMNS, "tcgemm bench --several --timeline")
read, append = _ROWS.read, _ROWS.append
read_stamps, append_stamps = _STAMPS.read, _STAMPS.append
