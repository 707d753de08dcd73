"""The element-wise bound held against any result: of a kernel, on operands of the caller."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ..operands import dtype_name
from ..problem import COMPUTES, Fusion
from .bounds import UNIT_ROUNDOFF, error_ratios
from .regions import Region, references


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
        rounds_product: allow a rounding to the dtype of C before ``fusion.c`` or a bias is added.
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
            regions = [Region(None, None, zeros, zeros)]
        else:
            regions = references(a, b, 0, fusion.compute)
        rounding = UNIT_ROUNDOFF.get(dtype_out, 0.0) if rounds_product else 0.0
        self._regions = [region.after(fusion, shape, rounding) for region in regions]

    def error_ratio(self, c: torch.Tensor) -> float:
        """The worst ratio of error to bound of C[M, N]; above 1 is wrong."""
        if c.is_floating_point() and self._finite and bool(c.isnan().any()):
            return math.inf
        return max(region.ratio(c) for region in self._regions)


class BatchReference:
    """The same of a batch: A[batch, M, K], B[batch, K, N], and nothing fused that has an operand of
    C's shape."""

    def __init__(
        self, a: torch.Tensor, b: torch.Tensor, dtype_out: torch.dtype, fusion: Fusion | None = None
    ) -> None:
        self._each = [Reference(*ab, dtype_out, fusion) for ab in zip(a, b, strict=True)]

    def error_ratio(self, c: torch.Tensor) -> float:
        """The worst ratio of error to bound of C[batch, M, N]; above 1 is wrong."""
        return max(each.error_ratio(of) for each, of in zip(self._each, c, strict=True))


def reference_of(
    a: torch.Tensor, b: torch.Tensor, dtype_out: torch.dtype, fusion: Fusion | None = None
) -> Reference | BatchReference:
    """The reference of matrices, or of batches of them."""
    return (BatchReference if a.dim() == 3 else Reference)(a, b, dtype_out, fusion)


def _all_finite(a: torch.Tensor, b: torch.Tensor, fusion: Fusion) -> bool:
    terms = (a, b, fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
    return all(t is None or bool(t.double().isfinite().all()) for t in terms)


def what_is_wrong(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion | None = None
) -> str:
    """How wrong C[M, N] is as the product of A and B on a CPU, in words; empty where it is right.

    The words say how many elements are beyond their bound, and of the worst its place, its value,
    the right one, and its error over its bound.
    """
    fusion = fusion or Fusion(compute=COMPUTES[dtype_name(a.dtype)][0])
    (region,) = references(a, b, 0, fusion.compute)
    region = region.after(fusion, (c.shape[0], c.shape[1]))
    ratios = error_ratios(c, region.exact, region.slack)
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
