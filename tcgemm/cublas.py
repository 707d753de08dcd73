"""The baseline, behind the same contract as the other two backends.

On a GPU it is cuBLAS as users get it, through torch.mm. On the CPU the same row would be a lie, so
torch's own matmul stands there under its own name.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_PAIRS = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)

KERNELS = (
    {
        "name": "torch_cpu",
        "adds": "torch's own matmul on the CPU: values to compare with, no measure of speed",
        "pairs": _PAIRS,
        "devices": ("cpu",),
    },
    {
        "name": "cublas",
        "adds": "cuBLAS through torch.mm, as users get it: the baseline of every ratio",
        "pairs": _PAIRS,
        "capability": (7, 0),
    },
)


def load(name: str) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """The callable ``run(a, b, c)``, which writes C[M, N] = A[M, K] @ B[K, N]."""
    return {"torch_cpu": _torch_cpu, "cublas": _cublas}[name]


def _torch_cpu(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    c.copy_(torch.mm(a.float(), b.float()))


def _cublas(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    if c.dtype == a.dtype:
        torch.mm(a, b, out=c)
    else:
        torch.mm(a, b, out_dtype=c.dtype, out=c)
