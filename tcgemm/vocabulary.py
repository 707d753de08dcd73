"""What is checked about values that a call gives by name: dtypes, layouts, epilogues, sizes.

Imports no torch, so that a command can name a mistake before it loads anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .errors import OperandError
from .problem import COMPUTES, EPILOGUES, INTEGERS, LAYOUTS, OUTPUTS


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
