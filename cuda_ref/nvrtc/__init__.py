"""CUDA rungs without nvcc and without a C++ compiler: NVRTC, and launchers in Python.

NVRTC comes with torch's CUDA build, the CUDA headers that it needs with Triton's wheel, and the
driver starts what it compiled. The device code is that of the same .cu files. Their launchers are
C++ of the host, so they are written a second time in ``launchers.py``: for plain products of 16-bit
types by the rungs of LAUNCHERS, and for other types, batches and what follows the product by some
of them. Everything else needs nvcc and g++, and says so.

``compiler`` compiles, ``arguments`` has the structures that kernels take, ``driver`` calls libcuda,
``operators`` is a rung's callable. The official way is ``build.extensions``.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from typing import Any

from ..build.toolchain import find_cxx, find_nvcc

logger = logging.getLogger(__name__)

VARIABLE = "TCGEMM_CUDA_COMPILER"
"""Environment variable that names the way: nvcc or nvrtc; by default nvcc where it and g++ are."""

WAYS = ("nvcc", "nvrtc")


def missing_of_nvcc() -> list[str]:
    """What the official way lacks on this machine: nvcc, a C++ compiler; empty where it works."""
    found = {"nvcc": find_nvcc(), "g++": find_cxx()}
    return [name for name, path in found.items() if path is None]


def asked() -> str | None:
    """What VARIABLE says. Raises RuntimeError where it names no way."""
    way = os.environ.get(VARIABLE) or None
    if way not in (None, *WAYS):
        raise RuntimeError(f"{VARIABLE} is {way!r}: set it to nvcc or nvrtc, or unset it")
    return way


def in_use() -> bool:
    """Whether rungs are compiled by NVRTC in this process: where that is asked for, or where the
    official way lacks a compiler and NVRTC lacks nothing. Says so once, in the log."""
    way = asked()
    return way == "nvrtc" or (way is None and _instead())


@cache
def _instead() -> bool:
    missing = missing_of_nvcc()
    if not missing:  # as mostly: what is this way's alone need not be imported
        return False
    from .compiler import find_headers, find_library
    from .launchers import EVERYTHING, LAUNCHERS

    if find_library() is None or find_headers() is None:
        return False
    logger.warning(
        "CUDA rungs are compiled by NVRTC and started from Python, since %s was not found: plain "
        "16-bit products by %s, all others by %s. For faster ones install it: pip install "
        "'tcgemm[nvcc]' brings nvcc, the system's packages g++",
        " and ".join(missing), ", ".join(LAUNCHERS), ", ".join(EVERYTHING),
    )  # fmt: skip
    return True


def why_not(name: str, problem: Any) -> str | None:
    """Why NVRTC's way does not run the problem on that rung, with the remedy; else None."""
    from .launchers import EVERY_TYPE, EVERYTHING, LAUNCHERS

    if name not in LAUNCHERS:
        return needs(f"{name} has no launcher in Python")
    small = problem.dtype_in in ("float16", "bfloat16") and problem.compute == "float32"
    if not small and name not in EVERY_TYPE:
        types = f"{problem.dtype_in} -> {problem.dtype_out} by {problem.compute}"
        return needs(f"{types} has no launcher of {name} in Python")
    if (not problem.plain or problem.batch > 1) and name not in EVERYTHING:
        return needs(f"what {name} fuses, and its batches, have no launcher in Python")
    return None


def needs(what: str) -> str:
    """The sentence of a refusal: what is not there, what would do, and what there is."""
    from .launchers import EVERY_TYPE, EVERYTHING, LAUNCHERS

    missing = " and ".join(missing_of_nvcc()) or f"{VARIABLE}=nvcc"
    return (
        f"{what}, and without it NVRTC cannot run it: it needs {missing} (pip install "
        f"'tcgemm[nvcc]' brings nvcc, the system's packages g++). In Python there are launchers of "
        f"plain products of float16 and bfloat16 by {', '.join(LAUNCHERS)}, of batches and what "
        f"follows the product by {', '.join(EVERYTHING)}, and of other types by "
        f"{' and '.join(EVERY_TYPE)}"
    )


def preferred(problem: Any, able: Any) -> Any:
    """Of the rungs that accept the problem those that can be built here; all where none can, or
    where no GPU of this machine is asked about."""
    if not compiles(problem):
        return able
    return [name for name in able if why_not(name, problem) is None] or able


def compiles(problem: Any) -> bool:
    """Whether what runs the problem is compiled by NVRTC: for a GPU of this machine alone."""
    torch = sys.modules.get("torch")
    if torch is None or problem.device != "cuda" or not torch.cuda.is_available():
        return False
    return in_use()
