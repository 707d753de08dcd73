"""What is done with a problem before a kernel is chosen for it: functions that others install.

The library calls them and knows none of them, so that it needs no tool to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .problem import Problem

BEFORE_CHOICE: list[Callable[[Problem, str, str | None], bool]] = []
"""Called in order with (problem, backend, kernel that the caller named or None), once for each
product of the first call of a kind; each says whether another kernel or plan may be chosen now.
What one raises ends the call."""
