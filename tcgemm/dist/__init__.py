"""Products over several GPUs of a host: ``all_gather_matmul`` and ``matmul_reduce_scatter``.

The transport is torch.distributed's: process groups, NCCL, symmetric memory. Importing this package
imports neither torch nor torch.distributed: the names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .explaining import explain
    from .products import all_gather_matmul, matmul_reduce_scatter
    from .styles import ColwiseParallel, RowwiseParallel

__all__ = [
    "ColwiseParallel",
    "RowwiseParallel",
    "all_gather_matmul",
    "explain",
    "matmul_reduce_scatter",
]

_LAZY = {
    "ColwiseParallel": "styles",
    "RowwiseParallel": "styles",
    "all_gather_matmul": "products",
    "explain": "explaining",
    "matmul_reduce_scatter": "products",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        globals()[name] = value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
