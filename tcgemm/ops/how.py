"""How a product is asked for: all of a call but its tensors, as the operators take it."""

from __future__ import annotations

from typing import NamedTuple

import torch


class How(NamedTuple):
    """The keyword arguments of ``tcgemm::gemm``; an empty name leaves the choice to run time."""

    alpha: float = 1.0
    beta: float = 0.0
    epilogue: str = ""
    out_dtype: torch.dtype | None = None
    compute: str = ""
    mma_shape: str = ""
    backend: str = ""
    rung: str = ""

    def of_gradient(self, alpha: float) -> How:
        """A product of the backward pass: the backend and the way to sum are the forward's.

        The rung that the caller named, and its WMMA shape, are not: the backward pass multiplies
        transposed operands of other sizes, which that rung may refuse.
        """
        return How(alpha=alpha, compute=self.compute, backend=self.backend)
