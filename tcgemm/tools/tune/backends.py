"""Which backends can be tuned, and where each keeps what tuning asks of it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

TUNABLE = ("triton", "cuda")
"""Backends with rungs that can be tuned, the default first."""


MODULES = {
    "triton": {
        "plans": "by_name",
        "candidates": "by_name",
        "tables": "planning.tables",
        "compile_only": "inspection.compile_only",
    },
    "cuda": {"plans": "planning", "candidates": "planning", "tables": "planning"},
}
"""Backend -> where it keeps what is asked for, where that is no module of that name."""


def part_of(backend: str, part: str) -> Any:
    """The module that keeps this part of a backend, which this package knows by name only."""
    from ...dispatch import BACKENDS

    return import_module(f"{BACKENDS[backend]}.{MODULES[backend].get(part, part)}")
