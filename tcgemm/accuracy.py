"""How right is right: two checks of a kernel on a case, against results that no tensor core made.

- **Element-wise bound.** With D the float64 product of the operands as they are stored,
  ``|C - D| <= 2 sqrt(K) 2^-23 (|A| @ |B|) + u |D| + tiny``, where u is the unit roundoff of C's
  dtype and tiny half its least subnormal. The first term is float32 accumulation in any order
  (a random walk of K roundings), the second is the one rounding of the result. Operands are
  standard normal. The report is the worst ratio of error to bound: above 1 is wrong.
- **Exact integers.** Operands are integers so small that every partial sum is exact in float32,
  in any order of summation; C must equal the exact product, rounded once to C's dtype, to the bit.

On a GPU the references come from CUDA cores: float64 matrix-vector products, over the whole matrix
where that is cheap and otherwise over a seeded sample of rows and columns that passes through every
tile; and float32 matmul with TF32 off for the integers, always over the whole matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .errors import OperandError

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""``run(a, b, c)`` writes C[M, N] = A[M, K] @ B[K, N]."""

ACCUMULATION = 2 * 2.0**-23
"""Times sqrt(K) (|A| @ |B|): what float32 accumulation may lose."""

UNIT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
HALF_LEAST_SUBNORMAL = {
    torch.float16: 2.0**-25,
    torch.bfloat16: 2.0**-134,
    torch.float32: 2.0**-150,
}
ROUNDS_TO_INF = {
    torch.float16: 65520.0,
    torch.bfloat16: 2.0**127 * (2 - 2.0**-8),
    torch.float32: 2.0**127 * (2 - 2.0**-24),
}
"""The least magnitude that rounding to nearest turns into infinity."""

EXACT_LIMIT = 2**24
"""Integers up to here are exact in float32."""

WHOLE_PRODUCTS = 2**34
"""M N K up to which the float64 reference covers the whole matrix on a GPU."""

WHOLE_ELEMENTS = 2**25
"""M N up to which it does: two float64 matrices of 256 MiB."""

STRATA = 64
"""Sampled rows, and columns, of a larger matrix: one from each 64th of it, and the two edges."""

GUARD = 256
"""Elements before and after C that a kernel must not touch."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the two checks say of a kernel on a case."""

    error_ratio: float
    """Worst error over its bound; above 1 is wrong, infinite where C holds NaN."""
    exact_errors: int
    """Elements that differ from the exact integer product."""
    elements: int
    """Elements of C."""
    outside: bool = False
    """Whether memory just before or after C was written."""

    @property
    def ok(self) -> bool:
        return self.error_ratio <= 1 and not self.exact_errors and not self.outside

    @property
    def reason(self) -> str:
        """What is wrong, with the numbers; empty where nothing is."""
        parts = []
        if not self.error_ratio <= 1:
            parts.append(
                "elements are not finite or never written"
                if math.isinf(self.error_ratio)
                else f"the worst error is {self.error_ratio:.3g} times its bound"
            )
        if self.exact_errors:
            parts.append(
                f"{self.exact_errors} of {self.elements} elements differ on exact integers"
            )
        if self.outside:
            parts.append("memory next to C was written")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class _Region:
    """A part of C, with its exact values and what accumulation may lose there, in float64."""

    dim: int | None
    """0: the rows ``index``; 1: the columns; None: all of C."""
    index: torch.Tensor | None
    exact: torch.Tensor
    slack: torch.Tensor

    def ratio(self, c: torch.Tensor) -> float:
        part = c if self.dim is None or self.index is None else c.index_select(self.dim, self.index)
        return _worst_ratio(part, self.exact, self.slack)


class Oracle:
    """The operands of one case and what every kernel must make of them; built once, then shared.

    Args:
        M, N, K: the problem, each at least 1.
        dtype_in: dtype of A and B, a torch dtype or its name.
        dtype_out: dtype of C: float16, bfloat16 or float32.
        layout: nn, nt, tn or tt: A then B, t is stored transposed. C is row-major.
        device: where the kernel runs: "cuda" or "cpu".
        seed: another seed gives other data.

    Raises:
        OperandError: K above 2^24, where no nonzero integers have exact sums.
    """

    def __init__(
        self,
        M: int,
        N: int,
        K: int,
        dtype_in: torch.dtype | str,
        dtype_out: torch.dtype | str,
        layout: str = "nn",
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        self.dtype_in, self.dtype_out = as_dtype(dtype_in), as_dtype(dtype_out)
        self.shape = (M, N)
        self.device = torch.device(device)
        largest = largest_integer(K, self.dtype_out)
        self.a, self.b = operands(M, N, K, self.dtype_in, layout, device, seed)
        self.integer_a, self.integer_b = operands(
            M, N, K, self.dtype_in, layout, device, seed, largest
        )
        self._regions = _references(self.a, self.b, seed)
        with _float32_without_tensor_cores():
            product = torch.mm(self.integer_a.float(), self.integer_b.float())
        self._exact = product.to(self.dtype_out)

    def check(self, run: Run) -> Verdict:
        """Run the kernel on both sets of operands, C poisoned with NaN before each, and judge."""
        c, untouched_normal = self._run(run, self.a, self.b)
        ratio = math.inf if bool(c.isnan().any()) else max(r.ratio(c) for r in self._regions)
        del c
        c, untouched_integer = self._run(run, self.integer_a, self.integer_b)
        return Verdict(
            error_ratio=ratio,
            exact_errors=int((c != self._exact).sum()),
            elements=c.numel(),
            outside=not (untouched_normal and untouched_integer),
        )

    def output(self) -> torch.Tensor:
        """A poisoned C, with guards around it that nothing looks at."""
        return self._output()[1]

    def _output(self) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.shape[0] * self.shape[1]
        flat = torch.full((size + 2 * GUARD,), math.nan, dtype=self.dtype_out, device=self.device)
        return flat, flat[GUARD : GUARD + size].view(self.shape)

    def _run(self, run: Run, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, bool]:
        flat, c = self._output()
        run(a, b, c)
        if c.is_cuda:
            torch.cuda.synchronize(c.device)
        untouched = bool(flat[:GUARD].isnan().all() and flat[-GUARD:].isnan().all())
        return c, untouched


def check(
    run: Run,
    M: int,
    N: int,
    K: int,
    dtype_in: torch.dtype | str,
    dtype_out: torch.dtype | str,
    layout: str = "nn",
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Verdict:
    """Both checks of one kernel on one case; see ``Oracle``, which many kernels can share."""
    return Oracle(M, N, K, dtype_in, dtype_out, layout, device, seed).check(run)


def error_ratio(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> float:
    """The worst ratio of error to bound of C[M, N] as A[M, K] @ B[K, N]; above 1 is wrong.

    For operands of any origin and strides; the reference is made anew by each call.
    """
    if a.shape[1] == 0 or c.numel() == 0:
        return 0.0 if not c.numel() or bool((c == 0).all()) else math.inf
    if bool(c.isnan().any()):
        return math.inf
    return max(region.ratio(c) for region in _references(a, b, seed=0))


def as_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """The torch dtype of that name."""
    return dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)


def operands(
    M: int,
    N: int,
    K: int,
    dtype: torch.dtype,
    layout: str,
    device: torch.device | str,
    seed: int,
    largest: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A[M, K] and B[K, N], stored as the layout says.

    Standard normal; integers from -largest to largest, uniform, where ``largest`` is given.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int, letter: str) -> torch.Tensor:
        stored = (rows, columns) if letter == "n" else (columns, rows)
        if largest is None:
            data = torch.randn(stored, generator=generator, device=device, dtype=dtype)
        else:
            data = torch.randint(
                -largest, largest + 1, stored, generator=generator, device=device, dtype=torch.int8
            ).to(dtype)
        return data if letter == "n" else data.T

    return matrix(M, K, layout[0]), matrix(K, N, layout[1])


def largest_integer(K: int, dtype_out: torch.dtype) -> int:
    """How large integer operands may be: |A| @ |B| stays at most 2^24; 64, or 8 for 16-bit C.

    Raises OperandError where K itself is above 2^24.
    """
    if K > EXACT_LIMIT:
        raise OperandError(f"K is {K}: sums of more than {EXACT_LIMIT} integers are not exact")
    return min(64 if dtype_out == torch.float32 else 8, math.isqrt(EXACT_LIMIT // K))


def _references(a: torch.Tensor, b: torch.Tensor, seed: int) -> list[_Region]:
    (M, K), N = a.shape, b.shape[1]
    a, b = a.to(torch.float64, copy=True), b.to(torch.float64, copy=True)
    factor = ACCUMULATION * math.sqrt(K)
    small = M * N * K <= WHOLE_PRODUCTS and M * N <= WHOLE_ELEMENTS
    if not a.is_cuda or small:
        return [_Region(None, None, _product(a, b), _product(a.abs(), b.abs()) * factor)]
    rows, columns = (_sample(size, seed).to(a.device) for size in (M, N))
    part_a, part_b = a.index_select(0, rows), b.index_select(1, columns)
    exact = _product(part_a, b), _product(a, part_b)
    a.abs_(), b.abs_()
    slack = _product(part_a.abs(), b) * factor, _product(a, part_b.abs()) * factor
    return [_Region(dim, (rows, columns)[dim], exact[dim], slack[dim]) for dim in (0, 1)]


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ B in float64; on a GPU by matrix-vector products, which no tensor core computes."""
    if not a.is_cuda:
        return torch.mm(a, b)
    if a.shape[0] > b.shape[1]:
        return _product(b.mT, a.mT).mT
    result = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    for row, out in zip(a, result, strict=True):
        torch.mv(b.mT, row, out=out)
    return result


def _sample(size: int, seed: int) -> torch.Tensor:
    """Sorted indices: all of a small range; else the two ends and one from each stratum."""
    if size <= STRATA + 2:
        return torch.arange(size)
    generator = torch.Generator().manual_seed(seed)
    edges = torch.arange(STRATA + 1) * size // STRATA
    widths = edges[1:] - edges[:-1]
    inside = edges[:-1] + (torch.rand(STRATA, generator=generator) * widths).long()
    return torch.cat([torch.tensor([0, size - 1]), inside]).unique()


def _worst_ratio(c: torch.Tensor, exact: torch.Tensor, slack: torch.Tensor) -> float:
    dtype = c.dtype
    c = c.double()
    bound = slack + UNIT_ROUNDOFF[dtype] * exact.abs() + HALF_LEAST_SUBNORMAL[dtype]
    ratio = (c - exact).abs() / bound
    limit = ROUNDS_TO_INF[dtype]
    may_overflow = c.isinf() & (c.sign() == exact.sign()) & (exact.abs() + slack >= limit)
    must_overflow = ~c.isinf() & (exact.abs() - slack >= limit)
    ratio = ratio.masked_fill(may_overflow, 0.0)
    return float(ratio.masked_fill(must_overflow | ratio.isnan(), math.inf).max())


@contextmanager
def _float32_without_tensor_cores() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
