"""tcgemm: matrix multiplication on tensor cores, in Triton and in CUDA C++, beside cuBLAS.

Importing this package compiles nothing, touches no GPU and imports neither torch, triton nor
pandas: the public names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import TcgemmError, UnsupportedError

if TYPE_CHECKING:
    from .call import gemm, matmul
    from .dispatch import kernels

__version__ = "0.1.0"
__all__ = ["TcgemmError", "UnsupportedError", "__version__", "gemm", "kernels", "matmul"]

_LAZY = {"gemm": "call", "matmul": "call", "kernels": "dispatch"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        # Kept: from now on the name is found without coming here, which costs a microsecond.
        globals()[name] = value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
