"""The operands of a case on this rank, and what the result has to be: float64 and exact integers.

Float64: every rank's operands are gathered, and each element of the rank's own result is held
against their product, within the bound of tcgemm.accuracy for one product, and, where partial sums
were rounded and added by others, their roundings besides. Integers: so few are not zero that every
partial sum is a whole number below 256, which all types here hold exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from ...accuracy.bounds import ACCUMULATION, OPERAND_LOSS, PARTIAL_SUMS, UNIT_ROUNDOFF, error_ratios
from ...dist.groups import Ranks
from ...dist.options import ALL_GATHER
from ...dist.rows import chunk_of, rows_of
from ...problem import COMPUTES, OUTPUTS
from .cases import Case

EXACT_NONZERO = 8
"""About so many products of an element's K are not zero in the exact check."""
LARGEST_EXACT = 256
"""Whole numbers up to it are exact in bfloat16, the coarsest of results."""


@dataclass(frozen=True)
class Operands:
    """A and B of this rank, B stored as a layer stores its weight, and all ranks' of both."""

    case: Case
    ranks: Ranks
    a: torch.Tensor
    b: torch.Tensor
    out_dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Of this rank's result."""
        if self.case.op == ALL_GATHER:
            return self.case.M, self.b.shape[1]
        first, last = rows_of(self.case.M, self.ranks.world, self.ranks.rank)
        return last - first, self.b.shape[1]


def drawn(
    case: Case, ranks: Ranks, device: torch.device, seed: int, exact: bool = False
) -> Operands:
    """Standard normal operands, or the sparse whole numbers of the exact check."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    M, N, K = case.local
    first, last = rows_of(M, ranks.world, ranks.rank)
    rows = last - first if case.op == ALL_GATHER else M
    draw = torch.Generator(device).manual_seed(seed * 1000 + ranks.rank)
    share = min(1.0, (EXACT_NONZERO / case.K) ** 0.5)

    def matrix(*shape: int) -> torch.Tensor:
        if not exact:
            return torch.randn(shape, generator=draw, device=device).to(dtype)
        sign = torch.randint(0, 2, shape, generator=draw, device=device) * 2.0 - 1
        return (sign * (torch.rand(shape, generator=draw, device=device) < share)).to(dtype)

    return Operands(
        case, ranks, matrix(rows, K), matrix(N, K).mT, getattr(torch, OUTPUTS[case.dtype][0])
    )


class Judge:
    """What this rank's result has to be: made once a case, by a call of all ranks."""

    def __init__(self, normal: Operands, whole: Operands) -> None:
        """Args: the operands of the check against float64, and of the exact one."""
        self._exact, self._slack = _bounded(normal)
        parts = _products(whole)
        self._whole: torch.Tensor | None = None
        if not any(bool((size > LARGEST_EXACT).any()) for _, size in parts):
            self._whole = torch.stack([exact for exact, _ in parts]).sum(0)

    def error_ratio(self, c: torch.Tensor) -> float:
        """The worst error of this rank's result over its bound; above 1 is wrong."""
        return float(error_ratios(c, self._exact, self._slack).max()) if c.numel() else 0.0

    def exact_errors(self, c: torch.Tensor) -> int | None:
        """Elements that differ on whole numbers; None where their sums are too large."""
        return None if self._whole is None else int((c.double() != self._whole).sum())


def _bounded(of: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """The product in float64, and what a result may be away from it before it is rounded."""
    compute = COMPUTES[of.case.dtype][0]
    parts = _products(of)
    exact, sizes, rounded = parts[0][0].clone(), parts[0][1].clone(), parts[0][0].abs()
    for more, size in parts[1:]:
        exact += more
        sizes += size
        rounded += more.abs()
    loss = ACCUMULATION[compute] * of.case.K**0.5 + OPERAND_LOSS.get(compute, 0.0)
    if of.case.dtype.startswith("float8"):
        loss += PARTIAL_SUMS
    slack = loss * sizes
    if len(parts) > 1:  # each is rounded before it moves, and so may be each sum of them
        slack += 2 * len(parts) * UNIT_ROUNDOFF.get(of.out_dtype, 0.0) * rounded
    return exact, slack


def _products(of: Operands) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each rank whose A and B this rank's result is of: their product and that of their
    magnitudes, in float64."""
    case, ranks = of.case, of.ranks
    if case.op == ALL_GATHER:
        a = torch.cat(_of_all(of.a, ranks, case.M))[: case.M]
        pairs = [(a, of.b)]
    else:
        mine = slice(*rows_of(case.M, ranks.world, ranks.rank))
        a_of, b_of = (_of_all(t.contiguous(), ranks) for t in (of.a, of.b))
        pairs = [(a[mine], b) for a, b in zip(a_of, b_of, strict=True)]
    wide = [(a.double(), b.double()) for a, b in pairs]
    return [(a @ b, a.abs() @ b.abs()) for a, b in wide]


def _of_all(t: torch.Tensor, ranks: Ranks, rows: int | None = None) -> list[torch.Tensor]:
    """Every rank's tensor, as bytes where it is of 8 bits; ``rows`` of all: whole chunks move."""
    if rows is not None:
        chunk = chunk_of(rows, ranks.world)
        full = t.new_zeros((chunk, *t.shape[1:]))
        full[: len(t)] = t
        t = full
    moved = t.view(torch.uint8) if t.itemsize == 1 else t
    found = [torch.empty_like(moved) for _ in range(ranks.world)]
    dist.all_gather(found, moved, group=ranks.group)
    return [each.view(t.dtype) for each in found]
