"""tcgemm: matrix multiplication on tensor cores, in Triton and in CUDA C++, beside cuBLAS.

Importing this package compiles nothing, touches no GPU and imports neither torch, triton nor
pandas: the public names load on first use.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import TcgemmError, UnsupportedError
from .forks import uncollected
from .hooks import BEFORE_CHOICE

if TYPE_CHECKING:
    from . import dist, nn
    from .call import gemm, matmul
    from .dispatch import kernels
    from .linears import linear, mlp
    from .nn import replace_linear
    from .override import override_aten, stats
    from .problem import Problem

__version__ = "0.1.0"
__all__ = [
    "TcgemmError",
    "UnsupportedError",
    "__version__",
    "dist",
    "gemm",
    "kernels",
    "linear",
    "matmul",
    "mlp",
    "nn",
    "override_aten",
    "replace_linear",
    "stats",
]

_LAZY = {
    "gemm": "call",
    "kernels": "dispatch",
    "linear": "linears",
    "matmul": "call",
    "mlp": "linears",
    "override_aten": "override",
    "replace_linear": "nn",
    "stats": "override",
}


def __getattr__(name: str) -> Any:
    if name in ("dist", "nn"):
        return import_module(f".{name}", __name__)
    if name in _LAZY:
        with uncollected():
            module = import_module(f".{_LAZY[name]}", __name__)
        # Kept: from now on the name is found without coming here, which costs a microsecond.
        globals()[name] = value = getattr(module, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _tune_where_asked(problem: "Problem", backend: str, kernel: str | None) -> bool:
    """Tune a problem at its first call where TCGEMM_TUNE is 1; loads that tool by then only."""
    if os.environ.get("TCGEMM_TUNE") != "1":
        return False
    tool = import_module(".tools.tune.first_call", __name__)
    return bool(tool.before_choice(problem, backend, kernel))


BEFORE_CHOICE.append(_tune_where_asked)
