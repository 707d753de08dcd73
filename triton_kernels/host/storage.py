"""How a matrix lies in memory, as the TMA unit needs it. Imports no triton.

A tensor descriptor wants one dimension contiguous, and the address and the other stride in whole
16-byte units. A dimension of size 1 is never stepped along, so its stride does not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

UNIT = 16
"""Bytes: TMA addresses and row pitches are multiples of it."""

OVERLAP = UNIT // 2
"""Columns that neighbouring tiles share of a C of 16 bits that threads store in such units: so each
unit lies in one tile as a whole (device/unaligned_rows.py)."""


@cache
def itemsize(dtype: str) -> int:
    """Bytes per element of a dtype by name: its name says how many bits they are."""
    bits = re.search(r"\d+", dtype)
    if bits is None:
        raise ValueError(f"{dtype!r} does not say its bits, as float16 and float8_e5m2 do")
    return int(bits[0]) // 8


def letter(shape: Sequence[int], strides: Sequence[int]) -> str:
    """n when rows are contiguous, t when columns are, s when neither."""
    if strides[1] == 1 or shape[1] == 1:
        # [M, 1] is a column as well as M rows: only a column has a pitch that TMA can step.
        return "t" if shape[1] == 1 and strides[0] == 1 and shape[0] > 1 else "n"
    return "t" if strides[0] == 1 or shape[0] == 1 else "s"


def column_major(problem: Any) -> bool:
    """Whether C's columns are contiguous: such a C is computed as its transpose."""
    return letter((problem.M, problem.N), problem.c_strides) == "t"


TMA_MOST = 2**31 - 256
"""Rows or columns that TMA can be asked for: its coordinates have 31 bits and a sign, and a tile
ends within them."""


def why_not_tma(
    name: str, shape: Sequence[int], strides: Sequence[int], alignment: int, itemsize: int
) -> str | None:
    """Why TMA cannot reach a matrix, as a sentence with the numbers; None when it can.

    Args:
        name: A, B or C, for the sentence.
        shape, strides: of the matrix, in elements.
        alignment: bytes, the largest power of two that divides its address.
        itemsize: bytes per element.
    """
    order = letter(shape, strides)
    if order == "s":
        return (
            f"{name} has strides ({strides[0]}, {strides[1]}) and TMA needs one of them to be 1: "
            f"pass {name}.contiguous()"
        )
    if max(shape) > TMA_MOST:
        return (
            f"{name} is {shape[0]} x {shape[1]} and TMA counts to {TMA_MOST} along a side: divide "
            "it, or let the backend choose another kernel"
        )
    outer, inner = (0, 1) if order == "n" else (1, 0)
    pitch, rows, width = strides[outer], shape[outer], shape[inner]
    if rows > 1 and pitch < width:
        return (
            f"{name} has rows of {width} elements every {pitch}, which overlap, and TMA needs them "
            f"apart: pass {name}.contiguous()"
        )
    if rows > 1 and pitch * itemsize % UNIT:
        step = UNIT // itemsize
        fits = -(-pitch // step) * step
        return (
            f"{name} has a row pitch of {pitch} elements, {pitch * itemsize} bytes, and TMA needs "
            f"a multiple of {UNIT}: a pitch of {fits} elements fits"
        )
    if alignment < UNIT:
        return (
            f"{name} starts at an address that is a multiple of {alignment} bytes only and TMA "
            f"needs {UNIT}: pass {name}.clone()"
        )
    return None
