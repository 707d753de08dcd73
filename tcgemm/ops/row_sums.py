"""A weight's gradient and the bias', in a graph of torch.compile: by one operator.

The gradient of a weight is a product whose A is dY^T, and that of the bias the sums of A's rows:
the kernel has A in shared memory anyway (``Fusion.aux`` "sums"). ``tcgemm::gemm_with_sums`` gives
both. A trace of a backward pass has it where the backend has such a kernel for the GPU; a product
that is another kernel's at run time is followed by a kernel of column sums.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import dispatch
from ..dispatch import default_backend
from ..forks import first_call
from ..launch import Launch
from ..launch_cache import launch_of
from ..tensors import grad_mode
from . import operator
from .derivatives import column_sums, has_derivative
from .how import How
from .running import arguments, asked_of, multiply, run_with_aux

operator.library.define(
    "gemm_with_sums(Tensor a, Tensor b, *, str compute='', str backend='') -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
gemm_with_sums: Any = torch.ops.tcgemm.gemm_with_sums.default

TRACED = frozenset(("FakeTensor", "FunctionalTensor"))
"""Types of tensors that stand for a plain one in a trace."""


def taken(a: Any, b: Any, how: How) -> bool:
    """Whether A B and the sums of A's rows are to be one operator: of matrices, in a trace of which
    nobody asks for a further derivative."""
    return (
        type(a).__name__ in TRACED
        and not grad_mode()
        and forward_ad._current_level < 0
        and a.dim() == b.dim() == 2
        and a.dtype is b.dtype
        and a.dtype in (torch.float16, torch.bfloat16)
        and how._replace(compute="", backend="") == How()
        and _has_sums(how.backend or default_backend(), a.device)
    )


def _has_sums(backend: str, device: torch.device) -> bool:
    return device.type == "cuda" and _on(backend, torch.cuda.get_device_capability(device))


@cache
def _on(backend: str, capability: tuple[int, int]) -> bool:
    if backend == dispatch.AUTO:
        return False
    rows = [row for row in dispatch.ladder(backend) if "row_sums" in row.fuses]
    return any(row.capability == capability for row in rows)


def both(a: Any, b: Any, how: How) -> tuple[torch.Tensor, torch.Tensor]:
    """A B, and the sums of A's rows."""
    pair: tuple[torch.Tensor, torch.Tensor] = gemm_with_sums(
        a, b, compute=how.compute, backend=how.backend
    )
    return pair


def with_sums(launch: Launch | None, asked: Any, a: Any, b: Any, sums: Any, out: Any) -> Launch:
    """out = A B and sums = those of A's rows, of matrices of one dtype; by the launch, which it
    returns, or another where there was none."""
    if launch is None:
        with first_call(), torch.no_grad():
            launch = launch_of(arguments(a, b, None, None, asked, out))
    if not run_with_aux(launch, "sums", "", a, b, None, sums, out):
        with torch.no_grad():
            launch = multiply(launch, asked, a, b, None, out)
            if launch.plans and has_derivative(launch, a.dtype):  # none where a size is 0
                column_sums(launch, a.mT, total=sums)
            else:
                torch.sum(a, 1, out=sums)
    return launch


def _gemm_with_sums(
    a: Any, b: Any, *, compute: str = "", backend: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    out, sums = a.new_empty(a.shape[0], b.shape[1]), a.new_empty(a.shape[0])
    with_sums(None, asked_of(compute, backend), a, b, sums, out)
    return out, sums


for key in ("CPU", "CUDA"):
    operator.library.impl("gemm_with_sums", _gemm_with_sums, key)


@torch.library.register_fake("tcgemm::gemm_with_sums", lib=operator.library)
def _fake(a: Any, b: Any, **asked: Any) -> tuple[Any, Any]:
    return a.new_empty(a.shape[0], b.shape[1]), a.new_empty(a.shape[0])
