"""What ``tcgemm bench --steady`` has stored, as a table of the report."""

from __future__ import annotations

from pathlib import Path

from ..bench import steady
from .rows import printable

TITLE = "Alone for seconds: rate, power, energy"
GUIDE = (
    "One kernel alone, in turns with the others (`tcgemm bench --steady`): the board works at its "
    "power limit, and a kernel that spends less energy an operation runs faster."
)


def alone_rows(folder: Path) -> tuple[list[str], list[list[str]]]:
    """The header, and a line for each product and kernel."""
    rows = steady.table(steady.read(folder))
    return steady.HEADER, [[printable(cell) for cell in row] for row in rows]
