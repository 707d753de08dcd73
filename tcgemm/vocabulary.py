"""What is checked about values that a call gives by name: dtypes, layouts, epilogues, sizes.

Imports no torch, so that a command can name a mistake before it loads anything.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module

from .errors import OperandError, UnknownNameError
from .problem import COMPUTES, EPILOGUES, INTEGERS, LAYOUTS, OUTPUTS

WITHOUT_TORCH = {"triton": "tcgemm.triton_kernels", "cuda": "tcgemm.cuda_ref"}
"""Backends whose rows need no torch, so that names are known at once."""

AUTO = "auto"
"""In place of a backend: the faster of the two languages, of what is built (choosing/auto.py)."""

BACKEND_VARIABLE = "TCGEMM_BACKEND"
"""Environment variable that sets the default backend of every call."""

OWN = "own"
"""The backend of kernels in files of one's own."""

OF_CUBLAS = ("torch_cpu", "cublas", "cublas_best")
"""The kernels of cublas.py, which imports torch."""


def either(names: Iterable[str]) -> str:
    """The names as a choice in words: "nn, nt, tn or tt"."""
    *rest, last = map(str, names)
    return f"{', '.join(rest)} or {last}" if rest else last


def sizes_of(text: str) -> tuple[int, int, int]:
    """ "MxNxK" -> (M, N, K). Raises OperandError where it is not three positive integers."""
    match = re.fullmatch(r"([0-9]+)[xX×]([0-9]+)[xX×]([0-9]+)", text.strip())
    M, N, K = (int(side) for side in match.groups()) if match else (0, 0, 0)
    if not (M and N and K) or max(M, N, K) >= 2**31:
        raise OperandError(
            f"malformed shape {text!r}: give M, N and K as MxNxK, each from 1 to 2^31 - 1, "
            "e.g. 4096x4096x4096"
        )
    return M, N, K


def check_epilogue(dtype: str, epilogue: str | None) -> None:
    """The epilogue's name; of integers relu only."""
    if epilogue and epilogue not in EPILOGUES:
        raise OperandError(f"unknown epilogue {epilogue!r}: choose from {', '.join(EPILOGUES)}")
    if epilogue and epilogue != "relu" and dtype in INTEGERS:
        raise OperandError(f"{epilogue} of int32 results is not defined: relu is")


def check_stored(dtype: str, out_dtype: str | None, layout: str) -> str:
    """The dtype of C, where dtypes and layout are given by name; by default the dtype's first."""
    if dtype not in OUTPUTS:
        raise OperandError(f"unknown dtype {dtype!r}: choose from {', '.join(OUTPUTS)}")
    if out_dtype is not None and out_dtype not in OUTPUTS[dtype]:
        raise OperandError(
            f"out-dtype is {out_dtype!r}: C of {dtype} operands is {either(OUTPUTS[dtype])}"
        )
    if layout not in LAYOUTS:
        raise OperandError(f"layout is {layout!r}: choose {either(LAYOUTS)}")
    return out_dtype or OUTPUTS[dtype][0]


def unknown_kernel(name: str, known: Sequence[str]) -> UnknownNameError:
    """The error of a name that is none of these, with the one that was probably meant."""
    names = [each.partition("/")[2] for each in known]
    near = get_close_matches(name.rpartition("/")[2], names, n=1, cutoff=0.7)
    meant = f"did you mean {near[0]}? There are" if near else "choose from"
    return UnknownNameError(f"unknown kernel {name!r}: {meant} {', '.join(known)}")


def _more_may_be_known() -> bool:
    """Whether a program may have added backends of its own, which ``dispatch`` knows."""
    return f"{__package__}.dispatch" in sys.modules


def check_backends(backends: Iterable[str]) -> None:
    """Raise UnknownNameError where a command is given a backend that does not exist."""
    loaded = sys.modules.get(f"{__package__}.dispatch")
    known = [*WITHOUT_TORCH, "cublas"] if loaded is None else list(loaded.BACKENDS)
    for name in backends:
        if name not in (*known, OWN):
            raise UnknownNameError(f"unknown backend {name!r}: choose from {', '.join(known)}")


def check_kernels(kernels: Iterable[str], backends: Sequence[str] = ()) -> None:
    """Raise UnknownNameError where a command is given a kernel that these backends do not have.

    Args:
        kernels: by name, or by "backend/name". What is one's own is left to ``own.register``.
        backends: by default all.
    """
    names = {
        backend: [row["name"] for row in import_module(module).KERNELS]
        for backend, module in WITHOUT_TORCH.items()
    }
    names["cublas"] = list(OF_CUBLAS)
    known = [f"{of}/{name}" for of in backends or names for name in names.get(of, ())]
    for kernel in () if _more_may_be_known() else kernels:
        if OWN in backends or kernel.startswith(f"{OWN}/") or kernel.endswith((".py", ".cu")):
            continue
        if not any(kernel in (full, full.partition("/")[2]) for full in known):
            raise unknown_kernel(kernel, known)


def check_compute(dtype: str, compute: str | None) -> str:
    """How the products are summed, by default as the dtype's first."""
    allowed = COMPUTES[dtype]
    if compute is None:
        return allowed[0]
    if compute not in allowed:
        raise OperandError(
            f"compute is {compute!r} and A and B are {dtype}: choose {either(allowed)}"
        )
    return compute
