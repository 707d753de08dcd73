"""The CUDA C++ ladder. All that tcgemm knows of it: KERNELS and load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

if __name__ != "tcgemm.cuda_ref":
    raise ImportError("import tcgemm.cuda_ref: cuda_ref is not a package of its own")

PAIRS = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)

KERNELS: tuple[dict[str, Any], ...] = ()


def load(name: str) -> Callable[..., None]:
    """The rung's callable ``run(a, b, c, **plan)``, compiled on first use."""
    raise NotImplementedError(name)
