"""What a stored row may hold: an odd one is refused by file and line, before anything is derived.

Text is made printable: a GPU's name, a compiler's message or a file from elsewhere may hold control
characters, which neither SVG nor HTML may.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..bench import store
from ..bench.case import DATA
from ..bench.cases import DTYPES_IN, DTYPES_OUT, LAYOUTS, MODES
from ..errors import ResultsError
from .derive import AMONG_OTHERS

NAMED: dict[str, tuple[str, ...]] = {
    "status": store.STATUSES,
    "dtype_in": DTYPES_IN,
    "dtype_out": DTYPES_OUT,
    "compute": (*MODES, ""),
    "layout": LAYOUTS,
    "chosen": ("yes", "no", ""),
    "among": ("alone", *AMONG_OTHERS, ""),
    "data": (*DATA, ""),
}
"""Column -> what it may hold."""

SIDES = ("M", "N", "K")
COUNTS = ("exact_errors", "rounds", "seed")
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("ms_p20", "ms_p50", "ms_p80"), (1e-6, 1e9)),
    **dict.fromkeys(("ratio_p20", "ratio_p50", "ratio_p80"), (1e-9, 1e9)),
    "error_ratio": (0.0, math.inf),
    "compile_s": (0.0, 1e9),
    "sm_clock_mhz": (0.0, 1e6),
    "power_w": (0.0, 1e6),
}
"""Column of numbers -> the least and the largest that can be true. An empty cell is no number."""


def check_row(path: Path, number: int, row: Mapping[str, str]) -> None:
    """Raise ResultsError, with file, line and value, where a cell cannot be what was measured.

    Args:
        path: of results.csv.
        number: the row's line in it.
        row: every column of ``store.COLUMNS``.
    """

    def refuse(name: str, why: str, is_: str = "=") -> None:
        held = f"{name}{is_}{printable(row[name])[:80]!r}"
        raise ResultsError(f"{path}: line {number} has {held}, which is {why}: remove that line")

    for name in SIDES:
        if not (_digits(row[name]) and int(row[name])):
            refuse(name, "no positive integer")
        if int(row[name]) >= 2**31:
            refuse(name, "above 2^31 - 1")
    if row["batch"] and not (_digits(row["batch"]) and 0 < int(row["batch"]) < 2**31):
        refuse("batch", "no positive integer below 2^31")
    for name, known in NAMED.items():
        if row[name] not in known:
            refuse(name, f"none of {', '.join(filter(None, known))}", " ")
    for name in COUNTS:
        if row[name] and not (_digits(row[name]) and int(row[name]) < 2**63):
            refuse(name, "no whole number")
    for name, (least, most) in RANGES.items():
        if row[name] and not least <= _float(row[name]) <= most:
            refuse(name, f"no number from {least:g} to {most:g}")


def check_depth(path: Path, facts: Any, most: int = 8) -> None:
    """Raise ResultsError where facts are nested deeper than any run writes them."""
    level = [facts]
    for _ in range(most):
        level = [
            inner
            for value in level
            for inner in (
                value.values() if isinstance(value, dict) else value
                if isinstance(value, list) else ()
            )
        ]  # fmt: skip
        if not level:
            return
    raise ResultsError(
        f"{path} is nested more than {most} levels deep, which no run writes: write it again with "
        "'tcgemm bench --out DIR', or remove it"
    )


def printable(text: object) -> str:
    """The text with a space for each line break and U+FFFD for what cannot be shown."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "�" for letter in text
    )


def printable_facts(facts: Any) -> Any:
    """Facts from JSON with all text in them printable."""
    if isinstance(facts, dict):
        return {printable(name): printable_facts(value) for name, value in facts.items()}
    if isinstance(facts, list):
        return [printable_facts(value) for value in facts]
    return printable(facts) if isinstance(facts, str) else facts


def _digits(text: str) -> bool:
    """Whether it is a whole number in the digits 0 to 9, of a length that int takes."""
    return text.isascii() and text.isdecimal() and len(text) < 20


def _float(text: str) -> float:
    """The number, NaN where it is none. float() also takes other digits and underscores."""
    if not text.isascii() or "_" in text or text != text.strip():
        return math.nan
    try:
        return float(text)
    except ValueError:
        return math.nan
