"""What failed and why, in words: each reason once, however many results have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .case import case_of_row

TROUBLE = ("wrong", "failed", "timeout")
"""Statuses that say that something here does not work."""


def key_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """(status, reason) without the kernel's own name: what results of one cause share."""
    reason = str(row["reason"] or "no reason is known")
    return row["status"], reason.replace(f"{row['backend']}/{row['kernel']} ", "")


def reasons(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A paragraph for each reason: how many results it spoiled, the reason, kernels and cases."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["status"] in TROUBLE:
            groups.setdefault(key_of(row), []).append(row)
    paragraphs = []
    for (status, reason), of_group in groups.items():
        kernels = dict.fromkeys(f"{row['backend']}/{row['kernel']}" for row in of_group)
        cases = dict.fromkeys(str(case_of_row(row)) for row in of_group)
        where = next(iter(cases)) + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")
        verb = f"result is {status}" if len(of_group) == 1 else f"results are {status}"
        paragraphs.append(f"{len(of_group)} {verb}: {reason}\n  {', '.join(kernels)} at {where}")
    return paragraphs
