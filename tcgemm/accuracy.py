"""How right is right: two checks of a kernel on a case, against results that no tensor core made.

- **Element-wise bound.** With D the float64 product of the operands as they are stored,
  ``|C - D| <= (c sqrt(K) + r) (|A| @ |B|) + u |D| + tiny``. c is the rounding of one step of the
  running sum (a random walk of K roundings, in any order), r what the operands lose before they
  are multiplied (0 but for tf32), u the unit roundoff of C's dtype and tiny half its least
  subnormal. alpha, beta, bias and epilogue add a few float32 roundings of their terms. Operands are
  standard normal. The report is the worst ratio of error to bound: above 1 is wrong.
- **Exact integers.** Operands are integers so small that every partial sum is exact, in any order
  of summation; C must equal the exact product, rounded once to C's dtype, to the bit. Integer
  types use their whole range, and sums wrap at 2^31.

On a GPU the references come from CUDA cores: float64 matrix-vector products, over the whole matrix
where that is cheap and otherwise over a seeded sample of rows and columns that passes through every
tile; and, for the integers, products that are exact in float32 with TF32 off (in float64 where
they need more), always over the whole matrix. docs/contract.md says how the constants were found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from .epilogue import FUNCTIONS
from .errors import OperandError
from .operands import dtype_name
from .problem import COMPUTES, OUTPUTS, Fusion

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""``run(a, b, c)`` writes C[M, N] = A[M, K] @ B[K, N]."""

ACCUMULATION = {
    "float32": 2 * 2.0**-23,
    "ieee": 2 * 2.0**-23,
    "tf32": 2 * 2.0**-23,
    "tf32x3": 2 * 2.0**-23,
    "float64": 2 * 2.0**-52,
    "float16": 2 * 2.0**-10,
    "fast": 2 * 2.0**-13,
}
"""By compute, times sqrt(K) (|A| @ |B|): what a running sum may lose."""

OPERAND_LOSS = {"tf32": 2.0**-10, "tf32x3": 3 * 2.0**-22}
"""By compute, times |A| @ |B|: what the operands lose before they are multiplied."""

PARTIAL_SUMS = 2.0**-11
"""Times |A| @ |B|: what 8-bit floats lose in the tensor core's 14-bit sums before they are promoted
to float32: each of an instruction's 32 products is cut to 13 bits below the largest."""

TERMS = 4 * 2.0**-24
"""Times |alpha D| + |beta C| + |bias|: the float32 roundings of scaling and adding."""

STEEPEST = {"": 1.0, "relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}
"""By epilogue: how much it can stretch an error of its argument."""

OF_THE_EPILOGUE = 2.0**-20
"""Times the magnitude of its argument: what the epilogue's own arithmetic may lose in float32."""

UNIT_ROUNDOFF = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
HALF_LEAST_SUBNORMAL = {
    torch.float16: 2.0**-25,
    torch.bfloat16: 2.0**-134,
    torch.float32: 2.0**-150,
    torch.float64: 0.0,
}
ROUNDS_TO_INF = {
    torch.float16: 65520.0,
    torch.bfloat16: 2.0**127 * (2 - 2.0**-8),
    torch.float32: 2.0**127 * (2 - 2.0**-24),
    torch.float64: math.inf,
}
"""The least magnitude that rounding to nearest turns into infinity."""

EXACT_LIMIT = {
    "float32": 2**24,
    "ieee": 2**24,
    "tf32": 2**24,
    "tf32x3": 2**24,
    "float64": 2**53,
    "float16": 2**11,
    "fast": 2**13,
}
"""By compute: integers up to here are exact in the running sum."""

LARGEST_INTEGER = {
    torch.float8_e4m3fn: 8,
    torch.float8_e5m2: 8,
    torch.float64: 2**20,
}
"""By dtype of A and B: the largest integer operands, where it is neither 64 (32-bit C) nor 8."""

WHOLE_PRODUCTS = 2**34
"""M N K up to which the float64 reference covers the whole matrix on a GPU."""

WHOLE_ELEMENTS = 2**25
"""M N up to which it does: two float64 matrices of 256 MiB."""

STRATA = 64
"""Sampled rows, and columns, of a larger matrix: one from each 64th of it, and the two edges."""

GUARD = 256
"""Elements before and after C that a kernel must not touch."""

POISON = 0x5A5A5A5A
"""Of int32 results, before a kernel runs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the two checks say of a kernel on a case."""

    error_ratio: float
    """Worst error over its bound; above 1 is wrong, infinite where C holds NaN."""
    exact_errors: int | None
    """Elements that differ from the exact integer product; None where more than a product was
    asked, whose float32 roundings no integers avoid."""
    elements: int
    """Elements of C."""
    outside: bool = False
    """Whether memory just before or after C was written."""
    ratio_if_rounded: float | None = None
    """``error_ratio`` had the product been allowed a rounding to C's dtype before C was added; of
    wrong results only, where a C was added."""

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
        if self.ratio_if_rounded is not None and self.ratio_if_rounded <= 1:
            parts[-1] += (
                f" (and {self.ratio_if_rounded:.3g} times one that lets the product be rounded to "
                "the dtype of C before C is added)"
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
        return _worst_ratio(self.part(c), self.exact, self.slack)

    def after(
        self, fusion: Fusion, shape: tuple[int, int], product_rounding: float = 0.0
    ) -> _Region:
        """The region once scaled, added to and through the epilogue.

        ``product_rounding``: unit roundoff of a rounding before C is added.
        """
        exact, slack = self.exact, self.slack
        wide = exact.dtype
        for scale, view in ((fusion.scale_a, (-1, 1)), (fusion.scale_b, (1, -1))):
            if scale is not None:
                factor = self.part(scale.to(wide).view(view).expand(shape))
                exact, slack = exact * factor, slack * factor.abs()
        exact, slack = exact * fusion.alpha, slack * abs(fusion.alpha)
        terms = exact.abs()
        if fusion.c is not None:
            slack = slack + product_rounding * exact.abs()
            term = fusion.beta * self.part(fusion.c.to(wide).expand(shape))
            exact, terms = exact + term, terms + term.abs()
        if fusion.bias is not None:
            term = self.part(fusion.bias.to(wide).expand(shape))
            exact, terms = exact + term, terms + term.abs()
        if terms is not exact:
            slack = slack + _rounding(TERMS, fusion) * terms
        if fusion.compute == "int32":
            exact = exact.to(torch.int64).to(torch.int32).to(wide)
        if fusion.epilogue:
            slack = slack * STEEPEST[fusion.epilogue]
            if fusion.epilogue != "relu":
                slack = slack + _rounding(OF_THE_EPILOGUE, fusion) * exact.abs()
            limits = exact == -torch.inf
            exact = FUNCTIONS[fusion.epilogue](exact)
            if fusion.epilogue != "relu":
                # Their limit is 0, which floating-point arithmetic may miss: see _worst_ratio.
                slack = torch.where(limits, OF_THE_EPILOGUE, slack)
        return _Region(self.dim, self.index, exact, slack)


def _rounding(in_float32: float, fusion: Fusion) -> float:
    return in_float32 * 2.0**-29 if fusion.compute == "float64" else in_float32


class Oracle:
    """The operands of one case and what every kernel must make of them; built once, then shared.

    Args:
        M, N, K: the problem, each at least 1.
        dtype_in: dtype of A and B, a torch dtype or its name.
        dtype_out: dtype of C (see problem.OUTPUTS).
        layout: nn, nt, tn or tt: A then B, t is stored transposed. C is row-major.
        device: where the kernel runs: "cuda" or "cpu".
        seed: another seed gives other data.
        compute: how the kernel sums (see problem.COMPUTES); by default the dtype's first.
        fusion: what the kernel does beyond the product.

    Raises:
        OperandError: K above 2^24, where no nonzero integers have exact sums in float32; a pair
            of dtypes that is none.
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
        compute: str = "",
        fusion: Fusion | None = None,
    ) -> None:
        self.dtype_in, self.dtype_out = as_dtype(dtype_in), as_dtype(dtype_out)
        _check_pair(self.dtype_in, self.dtype_out)
        self.compute = compute or COMPUTES[dtype_name(self.dtype_in)][0]
        self.shape = (M, N)
        self.device = torch.device(device)
        largest = largest_integer(K, self.dtype_out, self.dtype_in, self.compute)
        self.a, self.b = operands(M, N, K, self.dtype_in, layout, device, seed)
        self.integer_a, self.integer_b = operands(
            M, N, K, self.dtype_in, layout, device, seed, largest
        )
        self._regions = _references(self.a, self.b, seed, self.compute)
        self._fused = fusion is not None and replace(fusion, compute="", mma_shape="") != Fusion(
            compute=""
        )
        self._products: list[_Region] = []
        self._fusion = fusion
        if fusion is not None and self._fused:
            self._products = self._regions if fusion.c is not None else []
            self._regions = [region.after(fusion, self.shape) for region in self._regions]
        self._exact = exact_product(self.integer_a, self.integer_b, self.dtype_out)

    def check(self, run: Run) -> Verdict:
        """Run the kernel on both sets of operands, C poisoned before each, and judge."""
        c, untouched_normal = self._run(run, self.a, self.b)
        missing = self.dtype_out.is_floating_point and bool(c.isnan().any())
        ratio = math.inf if missing else max(r.ratio(c) for r in self._regions)
        rounded = self._ratio_if_rounded(c) if 1 < ratio < math.inf else None
        del c
        c, untouched_integer = self._run(run, self.integer_a, self.integer_b)
        return Verdict(
            error_ratio=ratio,
            exact_errors=None if self._fused else int((c != self._exact).sum()),
            elements=c.numel(),
            outside=not (untouched_normal and untouched_integer),
            ratio_if_rounded=rounded,
        )

    def _ratio_if_rounded(self, c: torch.Tensor) -> float | None:
        if self._fusion is None or not self._products:
            return None
        rounding = UNIT_ROUNDOFF[self.dtype_out]
        regions = (r.after(self._fusion, self.shape, rounding) for r in self._products)
        return max(region.ratio(c) for region in regions)

    def output(self) -> torch.Tensor:
        """A poisoned C, with guards around it that nothing looks at."""
        return self._output()[1]

    def _output(self) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.shape[0] * self.shape[1]
        flat = poisoned((size + 2 * GUARD,), self.dtype_out, self.device)
        return flat, flat[GUARD : GUARD + size].view(self.shape)

    def _run(self, run: Run, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, bool]:
        flat, c = self._output()
        run(a, b, c)
        if c.is_cuda:
            torch.cuda.synchronize(c.device)
        guards = torch.cat([flat[:GUARD], flat[-GUARD:]])
        poison = guards.isnan() if guards.is_floating_point() else guards == POISON
        return c, bool(poison.all())


def check(run: Run, *case: Any, **more: Any) -> Verdict:
    """Both checks of one kernel on the case of an ``Oracle``, which many kernels can share."""
    return Oracle(*case, **more).check(run)


def error_ratio(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Fusion | None = None,
    rounds_product: bool = False,
) -> float:
    """The worst ratio of error to bound of C as the product of A and B; above 1 is wrong.

    NaN and Inf in the operands must make C NaN or Inf exactly where they make the float64 product
    so, and leave the rest as it is.

    Args:
        a, b: A[M, K] and B[K, N], or a batch [batch, M, K] and [batch, K, N], of any origin and
            strides; the reference is made anew by each call.
        c: what the kernel wrote, [M, N] or [batch, M, N].
        fusion: what else was asked; its tensors as they were before the kernel ran.
        rounds_product: allow a rounding to the dtype of C before ``fusion.c`` is added.
    """
    fusion = fusion or Fusion(compute=COMPUTES[dtype_name(a.dtype)][0])
    if a.dim() == 3:
        each = [replace(fusion, c=None if fusion.c is None else fusion.c[i]) for i in range(len(a))]
        ratios = [error_ratio(*abc, rounds_product) for abc in zip(a, b, c, each, strict=True)]
        return max(ratios, default=0.0)
    if c.numel() == 0:
        return 0.0
    return Reference(a, b, c.dtype, fusion, rounds_product).error_ratio(c)


class Reference:
    """What a kernel must make of given matrices: made once, then held against many results.

    Args:
        a, b: A[M, K] and B[K, N], which are not looked at again.
        dtype_out: dtype of C.
        fusion, rounds_product: as for ``error_ratio``.
    """

    def __init__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        dtype_out: torch.dtype,
        fusion: Fusion | None = None,
        rounds_product: bool = False,
    ) -> None:
        fusion = fusion or Fusion(compute=COMPUTES[dtype_name(a.dtype)][0])
        shape = (a.shape[0], b.shape[1])
        self._finite = _all_finite(a, b, fusion)
        if a.shape[1] == 0:
            zeros = torch.zeros(shape, dtype=torch.float64, device=a.device)
            regions = [_Region(None, None, zeros, zeros)]
        else:
            regions = _references(a, b, 0, fusion.compute)
        rounding = UNIT_ROUNDOFF.get(dtype_out, 0.0) if rounds_product else 0.0
        self._regions = [region.after(fusion, shape, rounding) for region in regions]

    def error_ratio(self, c: torch.Tensor) -> float:
        """The worst ratio of error to bound of C[M, N]; above 1 is wrong."""
        if c.is_floating_point() and self._finite and bool(c.isnan().any()):
            return math.inf
        return max(region.ratio(c) for region in self._regions)


def _all_finite(a: torch.Tensor, b: torch.Tensor, fusion: Fusion) -> bool:
    terms = (a, b, fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
    return all(t is None or bool(t.double().isfinite().all()) for t in terms)


def poisoned(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    """Memory that a kernel has to overwrite: NaN, or POISON for integers."""
    value = math.nan if dtype.is_floating_point else POISON
    return torch.full(shape, value, dtype=dtype, device=device)


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

    Standard normal, or for integer dtypes uniform over all of the dtype's range; integers from
    -largest to largest, uniform, where ``largest`` is given and A and B are no integers. A largest
    of 0 means that only sums of few terms are exact: A is then -1, 0 or 1, mostly 0.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int, letter: str, sparse: bool) -> torch.Tensor:
        stored = (rows, columns) if letter == "n" else (columns, rows)
        if not dtype.is_floating_point:
            info = torch.iinfo(dtype)
            data = torch.randint(
                info.min, info.max + 1, stored, generator=generator, device=device, dtype=dtype
            )
        elif largest is None:
            wide = dtype if dtype.itemsize > 1 else torch.float32
            data = torch.randn(stored, generator=generator, device=device, dtype=wide).to(dtype)
        else:
            bound = max(largest, 1)
            data = torch.randint(
                -bound, bound + 1, stored, generator=generator, device=device, dtype=torch.int32
            )
            if sparse:
                kept = torch.rand(stored, generator=generator, device=device)
                data = data * (kept < _FEW_TERMS / (2 * K))
            data = data.to(torch.float32 if dtype.itemsize == 1 else dtype).to(dtype)
        return data if letter == "n" else data.T

    few = largest == 0
    return matrix(M, K, layout[0], few), matrix(K, N, layout[1], False)


_FEW_TERMS = 2**11
"""Of sparse operands: the sums of float16 accumulation are exact up to here."""


def largest_integer(
    K: int,
    dtype_out: torch.dtype,
    dtype_in: torch.dtype | None = None,
    compute: str = "float32",
) -> int:
    """How large integer operands may be, so that |A| @ |B| stays exact in the running sum.

    At most 64, or 8 for 16-bit C and 8-bit floats, 2^20 for float64; 0 where K is beyond the sums
    that are exact, so that only sparse operands do.

    Raises OperandError where K itself is above 2^24.
    """
    if compute in ("int32", ""):
        return 0
    limit = EXACT_LIMIT[compute]
    if K > 2**24:
        raise OperandError(f"K is {K}: sums of more than {2**24} integers are not exact")
    if dtype_in is not None and dtype_in.itemsize == 1:
        limit = min(limit, EXACT_LIMIT["fast"] * (1 if compute == "fast" else max(1, K // 128)))
    largest = 64 if dtype_out == torch.float32 else 8
    if dtype_in is not None:
        largest = LARGEST_INTEGER.get(dtype_in, largest)
    return min(largest, math.isqrt(limit // K))


def exact_product(a: torch.Tensor, b: torch.Tensor, dtype_out: torch.dtype) -> torch.Tensor:
    """A @ B, exact and rounded once to the dtype of C; int32 wraps as two's complement."""
    if not a.is_floating_point():
        product = _product(a.double(), b.double()).to(torch.int64)
        return product.to(torch.int32)
    if a.dtype == torch.float64:
        return _product(a, b).to(dtype_out)
    with _float32_without_tensor_cores():
        return torch.mm(a.float(), b.float()).to(dtype_out)


def _check_pair(dtype_in: torch.dtype, dtype_out: torch.dtype) -> None:
    outputs = OUTPUTS.get(dtype_name(dtype_in), ())
    if dtype_name(dtype_out) not in outputs:
        raise OperandError(
            f"{dtype_name(dtype_in)} -> {dtype_name(dtype_out)} is no type pair: C of "
            f"{dtype_name(dtype_in)} operands is {' or '.join(outputs) or 'not defined'}"
        )


def _references(a: torch.Tensor, b: torch.Tensor, seed: int, compute: str) -> list[_Region]:
    (M, K), N = a.shape, b.shape[1]
    eight_bit_float = a.is_floating_point() and a.dtype.itemsize == 1
    a, b = (t.to(torch.float64, copy=True) for t in (a, b))
    factor = ACCUMULATION.get(compute, 0.0) * math.sqrt(K) + OPERAND_LOSS.get(compute, 0.0)
    if eight_bit_float and compute == "float32":
        factor += PARTIAL_SUMS
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
    return float(_ratios(c, exact, slack).max())


def _ratios(c: torch.Tensor, exact: torch.Tensor, slack: torch.Tensor) -> torch.Tensor:
    """Of each element its error over its bound, infinite where no error is allowed."""
    dtype = c.dtype
    if not dtype.is_floating_point:
        wrong = c != exact.to(torch.int64).to(dtype)
        return torch.zeros_like(exact).masked_fill(wrong, math.inf)
    c = c.double()
    bound = slack + UNIT_ROUNDOFF[dtype] * exact.abs() + HALF_LEAST_SUBNORMAL[dtype]
    ratio = ((c - exact).abs() / bound).masked_fill(c == exact, 0.0)
    # NaN with a finite slack stands for the limit of an epilogue at minus infinity.
    near_limit = exact.isnan() & (c.abs() <= slack)
    limit = ROUNDS_TO_INF[dtype]
    may_overflow = c.isinf() & (c.sign() == exact.sign()) & (exact.abs() + slack >= limit)
    must_overflow = ~c.isinf() & (exact.abs() - slack >= limit)
    ratio = ratio.masked_fill(may_overflow | near_limit | (c.isnan() & exact.isnan()), 0.0)
    return ratio.masked_fill(must_overflow | ratio.isnan(), math.inf)


def what_is_wrong(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion | None = None
) -> str:
    """How wrong C[M, N] is as the product of A and B on a CPU, in words; empty where it is right.

    The words say how many elements are beyond their bound, and of the worst its place, its value,
    the right one, and its error over its bound.
    """
    fusion = fusion or Fusion(compute=COMPUTES[dtype_name(a.dtype)][0])
    (region,) = _references(a, b, 0, fusion.compute)
    region = region.after(fusion, (c.shape[0], c.shape[1]))
    ratios = _ratios(c, region.exact, region.slack)
    wrong = int((ratios > 1).sum())
    if not wrong:
        return ""
    row, col = divmod(int(ratios.argmax()), c.shape[1])
    got, right = float(c[row, col]), float(region.exact[row, col])
    if not c.is_floating_point():
        right = float(int(right) + 2**31 & 2**32 - 1) - 2**31
    ratio = float(ratios[row, col])
    if math.isnan(got):
        how = "not a number: never written, or computed from what was never written"
    elif math.isfinite(ratio):
        how = f"{ratio:.3g} times its bound away"
    else:
        how = "where no error is allowed" if not c.is_floating_point() else "far beyond any bound"
    return (
        f"{wrong} of {c.numel()} elements of C are wrong; the worst is C[{row}, {col}] = {got:.9g} "
        f"where {right:.9g} is right, {how}"
    )


@contextmanager
def _float32_without_tensor_cores() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
