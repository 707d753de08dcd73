"""The parts of C that are compared, each with its exact values and what a kernel may lose there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..epilogue import FUNCTIONS
from ..problem import Fusion
from .bounds import (
    ACCUMULATION,
    OF_THE_EPILOGUE,
    OPERAND_LOSS,
    PARTIAL_SUMS,
    STEEPEST,
    TERMS,
    error_ratios,
    float32_rounding,
)
from .exact import float64_product

WHOLE_PRODUCTS = 2**34
"""M N K up to which the float64 reference covers the whole matrix on a GPU."""

WHOLE_ELEMENTS = 2**25
"""M N up to which it does: two float64 matrices of 256 MiB."""

STRATA = 64
"""Sampled rows, and columns, of a larger matrix: one from each 64th of it, and the two edges."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of C, with its exact values and what the kernel may lose there, in float64."""

    dim: int | None
    """0: the rows ``index``; 1: the columns; None: all of C."""
    index: torch.Tensor | None
    exact: torch.Tensor
    slack: torch.Tensor

    def part(self, matrix: torch.Tensor) -> torch.Tensor:
        """The region of a matrix [M, N]."""
        if self.dim is None or self.index is None:
            return matrix
        return matrix.index_select(self.dim, self.index)

    def ratio(self, c: torch.Tensor) -> float:
        """The worst error of C[M, N] in this region, over its bound."""
        return float(error_ratios(self.part(c), self.exact, self.slack).max())

    def after(
        self, fusion: Fusion, shape: tuple[int, int], product_rounding: float = 0.0
    ) -> Region:
        """The region once scaled, added to and through the epilogue.

        ``product_rounding``: unit roundoff of a rounding before C or a bias is added.
        """
        exact, slack = self.exact, self.slack
        wide = exact.dtype
        for scale, view in ((fusion.scale_a, (-1, 1)), (fusion.scale_b, (1, -1))):
            if scale is not None:
                factor = self.part(scale.to(wide).view(view).expand(shape))
                exact, slack = exact * factor, slack * factor.abs()
        exact, slack = exact * fusion.alpha, slack * abs(fusion.alpha)
        terms = exact.abs()
        if fusion.c is not None or fusion.bias is not None:
            slack = slack + product_rounding * exact.abs()
        if fusion.c is not None:
            term = fusion.beta * self.part(fusion.c.to(wide).expand(shape))
            exact, terms = exact + term, terms + term.abs()
        if fusion.bias is not None:
            term = self.part(fusion.bias.to(wide).expand(shape))
            exact, terms = exact + term, terms + term.abs()
        if terms is not exact:
            slack = slack + float32_rounding(TERMS, fusion) * terms
        if fusion.compute == "int32":
            exact = exact.to(torch.int64).to(torch.int32).to(wide)
        if fusion.epilogue:
            slack = slack * STEEPEST[fusion.epilogue]
            if fusion.epilogue != "relu":
                slack = slack + float32_rounding(OF_THE_EPILOGUE, fusion) * exact.abs()
            limits = exact == -torch.inf
            exact = FUNCTIONS[fusion.epilogue](exact)
            if fusion.epilogue != "relu":
                # Their limit is 0, which floating-point arithmetic may miss: see error_ratios.
                slack = torch.where(limits, OF_THE_EPILOGUE, slack)
        return Region(self.dim, self.index, exact, slack)


def references(a: torch.Tensor, b: torch.Tensor, seed: int, compute: str) -> list[Region]:
    """What A[M, K] @ B[K, N] must be: one region, or on a GPU two samples of a large C.

    ``compute`` says how the products are summed (see problem.COMPUTES), and ``seed`` which rows and
    columns are sampled.
    """
    (M, K), N = a.shape, b.shape[1]
    eight_bit_float = a.is_floating_point() and a.dtype.itemsize == 1
    a, b = (t.to(torch.float64, copy=True) for t in (a, b))
    factor = ACCUMULATION.get(compute, 0.0) * math.sqrt(K) + OPERAND_LOSS.get(compute, 0.0)
    if eight_bit_float and compute == "float32":
        factor += PARTIAL_SUMS
    small = M * N * K <= WHOLE_PRODUCTS and M * N <= WHOLE_ELEMENTS
    if not a.is_cuda or small:
        return [
            Region(None, None, float64_product(a, b), float64_product(a.abs(), b.abs()) * factor)
        ]
    rows, columns = (sampled(size, seed).to(a.device) for size in (M, N))
    part_a, part_b = a.index_select(0, rows), b.index_select(1, columns)
    exact = float64_product(part_a, b), float64_product(a, part_b)
    a.abs_(), b.abs_()
    slack = float64_product(part_a.abs(), b) * factor, float64_product(a, part_b.abs()) * factor
    return [Region(dim, (rows, columns)[dim], exact[dim], slack[dim]) for dim in (0, 1)]


def sampled(size: int, seed: int) -> torch.Tensor:
    """Sorted indices: all of a small range; else the two ends and one from each stratum."""
    if size <= STRATA + 2:
        return torch.arange(size)
    generator = torch.Generator().manual_seed(seed)
    edges = torch.arange(STRATA + 1) * size // STRATA
    widths = edges[1:] - edges[:-1]
    inside = edges[:-1] + (torch.rand(STRATA, generator=generator) * widths).long()
    return torch.cat([torch.tensor([0, size - 1]), inside]).unique()
