"""Who is measured: a kernel by its name, or what ``gemm`` takes where none is named."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from .. import dispatch
from ..call import gemm
from ..launch import make
from ..problem import Fusion, Plan, Problem

UNASKED = "unasked"
"""The kernel of a unit that leaves the choice to the backend, as a user does."""

Set = tuple[torch.Tensor, torch.Tensor, torch.Tensor, Fusion]
"""A, B, C and what is fused."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One kernel as it is called."""

    backend: str
    kernel: str | None
    """The name that the call gives; None where the backend chooses."""
    plan: Plan
    """The kernel that runs, and how."""
    run: Callable[..., None]
    """``run(a, b, c, fusion)``, which writes C."""
    loading_s: float
    """How long the kernel took to load."""

    def calls(self, sets: list[Set]) -> list[Callable[[], None]]:
        """What a user's repeated call runs, for each set of operands."""
        from .launches import repeated_calls

        return repeated_calls(self.backend, self.kernel, sets)


def contender(
    backend: str, kernel: str, problem: Problem, a: torch.Tensor, b: torch.Tensor, fusion: Fusion
) -> Contender | str:
    """The contender of a unit; a sentence where its kernel refuses the problem.

    Args:
        backend, kernel: of the unit; the kernel may be UNASKED.
        problem: what is asked, with the strides and alignment of ``a``, ``b`` and a fresh C.
        a, b, fusion: operands of that problem.

    Raises UnsupportedError where no kernel of the backend takes an unasked problem, and what
    ``dispatch.load`` raises.
    """
    began = time.perf_counter()
    if kernel == UNASKED:
        return _unasked(backend, a, b, fusion, problem, began)
    row = dispatch.find(backend, kernel)
    if reason := row.why_not(problem):
        return reason
    plan = dispatch.plan(problem, backend, kernel)
    loaded = dispatch.load(backend, kernel)

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion) -> None:
        # The strides and the alignment of both pairs of operands are those of the problem.
        more = {} if problem.plain else {"fusion": fusion}
        loaded(a, b, c, **more, **plan.config)

    return Contender(backend, kernel, plan, run, time.perf_counter() - began)


def _unasked(
    backend: str, a: torch.Tensor, b: torch.Tensor, asked: Fusion, problem: Problem, began: float
) -> Contender:
    dtype_out = getattr(torch, problem.dtype_out)
    launch = make(
        a, b, asked.c, asked.alpha, asked.beta, asked.bias, asked.epilogue or None, None, dtype_out,
        asked.compute or None, asked.scale_a, asked.scale_b, asked.mma_shape or None, backend, None,
    )  # fmt: skip

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, of: Fusion) -> None:
        gemm(
            a, b, of.c, alpha=of.alpha, beta=of.beta, bias=of.bias, epilogue=of.epilogue or None,
            out=c, compute=of.compute or None, scale_a=of.scale_a, scale_b=of.scale_b,
            mma_shape=of.mma_shape or None, backend=backend,
        )  # fmt: skip

    return Contender(backend, None, launch.plans[0], run, time.perf_counter() - began)


def asked_of(backend: str, fusion: Fusion) -> Fusion:
    """What is asked of the backend's kernels; cuBLAS chooses its instructions itself."""
    return replace(fusion, mma_shape="") if backend == "cublas" else fusion
