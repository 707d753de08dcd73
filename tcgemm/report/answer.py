"""The answer: Triton, CUDA or cuBLAS, and by how much, for each kind of product.

Counted is what a call gets that names no kernel (the column ``chosen``); where no row says which
that is, the fastest kernel of each backend, found afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..bench.trouble import TROUBLE
from ..problem import ITEMSIZE
from .derive import AMONG_OTHERS, BASELINE, DISPLAY, best

FEW_ROWS = 128
"""A product of at most so many rows of C reads B for little work: decoding, as models call it."""

VECTOR_BYTES = 16
"""What rows must be a multiple of to be read by 16-byte copies and by TMA."""

FEW_SHAPES = 2
"""A kind of product with no more shapes than these is told with their names."""

EQUAL = 0.02
"""Backends within this of the fastest are named together."""


def misaligned(table: pd.DataFrame) -> pd.Series:
    """Whether the rows of A, B or C, as they are stored, are no multiple of VECTOR_BYTES."""
    of_a = table["K"].where(table["layout"].str[0].eq("n"), table["M"])
    of_b = table["N"].where(table["layout"].str[1].eq("n"), table["K"])
    size_in, size_out = (table[name].map(ITEMSIZE) for name in ("dtype_in", "dtype_out"))
    odd = (of_a * size_in % VECTOR_BYTES).ne(0) | (of_b * size_in % VECTOR_BYTES).ne(0)
    return odd | (table["N"] * size_out % VECTOR_BYTES).ne(0)


AMONG = "among other kernels"

KINDS: dict[str, tuple[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "aligned rows": (
        f"every row of A, B and C a multiple of {VECTOR_BYTES} bytes, M above {FEW_ROWS}",
        lambda t: ~misaligned(t) & t["M"].gt(FEW_ROWS),
    ),
    "misaligned rows": (
        f"rows of A, B or C that are no multiple of {VECTOR_BYTES} bytes",
        misaligned,
    ),
    "few rows": (
        f"M up to {FEW_ROWS}, as in decoding",
        lambda t: ~misaligned(t) & t["M"].le(FEW_ROWS),
    ),
    AMONG: (
        "any product under 100 us, timed with another kernel after each launch",
        lambda t: t["among"].isin(AMONG_OTHERS),
    ),
}
"""Kind of product -> what it is, and which rows are of it."""


@dataclass(frozen=True)
class Share:
    """One backend on one kind of product: ratios to cuBLAS, above 1 is faster."""

    backend: str
    rows: pd.DataFrame
    """A row of the folder's table for each case."""

    @property
    def mean(self) -> float:
        """The geometric mean of the ratios."""
        return float(np.exp(np.log(self.rows["ratio_p50"].astype(float)).mean()))

    @property
    def text(self) -> str:
        return f"{DISPLAY.get(self.backend, self.backend)} {self.mean:.2f}×"


@dataclass(frozen=True)
class Answer:
    """What a folder says; ``shares`` holds the kinds that it has rows for, each backend's."""

    name: str
    shares: dict[str, list[Share]]
    unasked: bool
    """Whether what a call gets unasked is counted, not the fastest."""
    spoiled: tuple[tuple[str, int], ...] = ()
    """(backend, products whose kernel was chosen unasked and was wrong, failed or never ended):
    they have no ratio that a mean could count."""

    @property
    def missing(self) -> list[str]:
        """The kinds without rows."""
        return [kind for kind in KINDS if kind not in self.shares]

    @property
    def alone(self) -> int:
        """How many of the counted rows are of short products timed alone."""
        every = [share.rows["among"].eq("alone") for of in self.shares.values() for share in of]
        return int(sum(rows.sum() for rows in every))

    @property
    def counted(self) -> str:
        """What the ratios are of, in words."""
        if self.unasked:
            return "what matmul chooses when no kernel is named"
        return "the fastest kernel of each backend, found afterwards"

    @property
    def sentence(self) -> str:
        """The one sentence."""
        if not self.shares:
            return f"{self.name}: no 16-bit product was timed beside cuBLAS."
        parts = [_verdict(kind, shares) for kind, shares in self.shares.items()]
        board = self.name.removeprefix("NVIDIA ")
        said = f"On the {board}, of 16-bit products against cuBLAS, take {'; '.join(parts)}"
        missing = f"; {' and '.join(self.missing)}: not measured yet" if self.missing else ""
        return f"{said}{missing}.{self._spoiled}"

    @property
    def _spoiled(self) -> str:
        """What no mean counts, as a sentence behind the others; empty where there is none."""
        if not self.spoiled:
            return ""
        who = " and ".join(f"{n} of {DISPLAY.get(b, b)}" for b, n in self.spoiled)
        return f" Not counted are products that were wrong, failed or never ended: {who}."


def answer(name: str, plain: pd.DataFrame) -> Answer:
    """The ratios of each backend on each kind of product that a folder has rows for.

    Args:
        name: of the GPU, or of the run.
        plain: the folder's rows, as ``derive.plain`` gives them.
    """
    unasked = plain[plain["chosen"].eq("yes") & plain["backend"].ne(BASELINE)]
    trouble = unasked[unasked["status"].isin(TROUBLE)].groupby("backend", observed=True).size()
    chosen = unasked[unasked["ratio_p50"].notna()]
    picked = best(plain) if chosen.empty else chosen
    picked = picked[picked["backend"].ne(BASELINE) & picked["ratio_p50"].notna()]
    shares: dict[str, list[Share]] = {}
    for kind, (_, holds) in KINDS.items():
        of = picked[holds(picked)] if len(picked) else picked
        found = [
            Share(str(backend), rows) for backend, rows in of.groupby("backend", observed=True)
        ]
        if found:
            shares[kind] = found
    spoiled = tuple((str(backend), int(count)) for backend, count in trouble.items())
    return Answer(name, shares, not chosen.empty, spoiled)


def _verdict(kind: str, shares: list[Share]) -> str:
    """``CUDA for few rows (CUDA 1.15×, Triton 1.10×)``: whom to take, and by how much.

    Where the backends were timed on different numbers of cases, each is followed by its own; and
    where all of them are of one or two shapes, these are named, since they may not speak for all.
    """
    means = {share.backend: share.mean for share in shares} | {BASELINE: 1.0}
    top = max(means.values())
    first = [backend for backend, mean in means.items() if mean >= top * (1 - EQUAL)]
    names = " or ".join(DISPLAY.get(backend, backend) for backend in first)
    counts = [len(share.rows) for share in shares]
    of = [f" over {n} case{'s' * (n > 1)}" * (len(set(counts)) > 1) for n in counts]
    rates = [share.text + on for share, on in zip(shares, of, strict=True)]
    order = sorted(range(len(rates)), key=lambda i: -shares[i].mean)
    said = ", ".join(rates[i] for i in order)
    shapes = list(dict.fromkeys(shape for share in shares for shape in share.rows["shape"]))
    if len(shapes) <= FEW_SHAPES:
        said += f"; of {' and '.join(shapes)} alone"
    return f"{names} {kind if kind == AMONG else f'for {kind}'} ({said})"
