"""The Triton ladder. All that tcgemm knows of it: KERNELS and load."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

if __name__ != "tcgemm.triton_kernels":
    raise ImportError("import tcgemm.triton_kernels: the bare name belongs to another distribution")

PAIRS = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)

KERNELS: tuple[dict[str, Any], ...] = ()


def load(name: str) -> Callable[..., None]:
    """The rung's callable ``run(a, b, c, **plan)``; each rung is the module of its name."""
    run: Callable[..., None] = import_module(f".{name}", __name__).run
    return run
