"""Both checks of a kernel, on operands of our own: an ``Oracle`` judges by a ``Verdict``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import OperandError
from ..operands import dtype_name
from ..problem import COMPUTES, OUTPUTS, Fusion
from .bounds import UNIT_ROUNDOFF
from .exact import exact_product, largest_integer
from .inputs import BETWEEN_PRODUCTS, POISON, as_dtype, one_behind_another, operands, poisoned
from .regions import Region, references

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]

GUARD = 256
"""Elements before and after C that a kernel must not touch."""


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
        data: of A and B in the check against float64 (see inputs.DATA); the exact check always
            takes integers.

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
        data: str = "normal",
    ) -> None:
        self.dtype_in, self.dtype_out = as_dtype(dtype_in), as_dtype(dtype_out)
        _check_pair(self.dtype_in, self.dtype_out)
        self.compute = compute or COMPUTES[dtype_name(self.dtype_in)][0]
        self.shape: tuple[int, ...] = (M, N)
        self.device = torch.device(device)
        largest = largest_integer(K, self.dtype_out, self.dtype_in, self.compute)
        self.a, self.b = operands(M, N, K, self.dtype_in, layout, device, seed, data=data)
        self.integer_a, self.integer_b = operands(
            M, N, K, self.dtype_in, layout, device, seed, largest
        )
        self._regions = references(self.a, self.b, seed, self.compute)
        self._fused = fusion is not None and replace(fusion, compute="", mma_shape="") != Fusion(
            compute=""
        )
        self._products: list[Region] = []
        self._fusion = fusion
        if fusion is not None and self._fused:
            self._products = self._regions if fusion.c is not None else []
            self._regions = [region.after(fusion, (M, N)) for region in self._regions]
        self._exact = exact_product(self.integer_a, self.integer_b, self.dtype_out)

    def check(self, run: Run) -> Verdict:
        """Run the kernel on both sets of operands, C poisoned before each, and judge."""
        c, untouched_normal = self._run(run, self.a, self.b)
        ratio = self.error_ratio(c)
        rounded = self._ratio_if_rounded(c) if 1 < ratio < math.inf else None
        del c
        c, untouched_integer = self._run(run, self.integer_a, self.integer_b)
        return Verdict(
            error_ratio=ratio,
            exact_errors=self.exact_errors(c),
            elements=c.numel(),
            outside=not (untouched_normal and untouched_integer),
            ratio_if_rounded=rounded,
        )

    def error_ratio(self, c: torch.Tensor) -> float:
        """The worst error over its bound of C, made from ``a`` and ``b``; infinite where C holds
        NaN."""
        missing = self.dtype_out.is_floating_point and bool(c.isnan().any())
        return math.inf if missing else max(r.ratio(c) for r in self._regions)

    def exact_errors(self, c: torch.Tensor) -> int | None:
        """Elements of C, made from the integer operands, that are not exact; None where more than a
        product is asked."""
        return None if self._fused else int((c != self._exact).sum())

    def _ratio_if_rounded(self, c: torch.Tensor) -> float | None:
        if self._fusion is None or not self._products:
            return None
        rounding = UNIT_ROUNDOFF[self.dtype_out]
        M, N = self.shape
        regions = (r.after(self._fusion, (M, N), rounding) for r in self._products)
        return max(region.ratio(c) for region in regions)

    def output(self) -> torch.Tensor:
        """A poisoned C, with guards around it that nothing looks at."""
        return self._output()[1]

    def _output(self) -> tuple[torch.Tensor, torch.Tensor]:
        size = math.prod(self.shape)
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


class BatchOracle(Oracle):
    """The same of a batch of products, A[batch, M, K] and B[batch, K, N], that a kernel computes in
    one launch: each product is held to both checks.

    Args:
        batch: how many; each has data of its own, that of ``inputs.batch_of_operands``.
        case: as of Oracle, with nothing fused that has an operand [M, N].
    """

    def __init__(
        self,
        batch: int,
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
        data: str = "normal",
    ) -> None:
        self.dtype_in, self.dtype_out = as_dtype(dtype_in), as_dtype(dtype_out)
        self.device = torch.device(device)
        self.shape = (batch, M, N)
        self._each = [
            Oracle(
                M, N, K, dtype_in, dtype_out, layout, device, seed + i * BETWEEN_PRODUCTS,
                compute, fusion, data,
            )
            for i in range(batch)
        ]  # fmt: skip
        self.compute = self._each[0].compute

        def batch_of(name: str, letter: str) -> torch.Tensor:
            stacked = one_behind_another([getattr(each, name) for each in self._each], letter)
            for i, oracle in enumerate(self._each):  # which need not keep theirs besides
                setattr(oracle, name, stacked[i])
            return stacked

        self.a, self.b = (batch_of(*each) for each in zip("ab", layout, strict=True))
        self.integer_a, self.integer_b = (
            batch_of(f"integer_{name}", letter) for name, letter in zip("ab", layout, strict=True)
        )

    def error_ratio(self, c: torch.Tensor) -> float:
        return max(each.error_ratio(of) for each, of in zip(self._each, c, strict=True))

    def exact_errors(self, c: torch.Tensor) -> int | None:
        errors = [each.exact_errors(of) for each, of in zip(self._each, c, strict=True)]
        counted = [count for count in errors if count is not None]
        return sum(counted) if len(counted) == len(errors) else None

    def _ratio_if_rounded(self, c: torch.Tensor) -> float | None:
        return None  # no C is added


def check(run: Run, *case: Any, **more: Any) -> Verdict:
    """Both checks of one kernel on the case of an ``Oracle``, which many kernels can share."""
    return Oracle(*case, **more).check(run)


def _check_pair(dtype_in: torch.dtype, dtype_out: torch.dtype) -> None:
    outputs = OUTPUTS.get(dtype_name(dtype_in), ())
    if dtype_name(dtype_out) not in outputs:
        raise OperandError(
            f"{dtype_name(dtype_in)} -> {dtype_name(dtype_out)} is no type pair: C of "
            f"{dtype_name(dtype_in)} operands is {' or '.join(outputs) or 'not defined'}"
        )
