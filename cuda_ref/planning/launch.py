"""A plan as it crosses the border to C++: named numbers in one order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FIELDS = (
    "CLUSTER", "BLOCK_M", "BLOCK_N", "SPLITS", "GROUPS", "WARPS", "BLOCKS", "SHARED_KB", "NO_PDL",
)  # fmt: skip
"""The fields of tcgemm::Plan in csrc/host/gemm.cuh, in its order."""


def launch_plan(plan: Mapping[str, int], fields: Sequence[str] = FIELDS) -> list[int]:
    """The numbers of a plan for the operator, without the zeros at its end.

    What a rung does not plan is 0, and so is what is not of ``fields``, those that its launcher
    reads: each number costs a call some tens of nanoseconds.
    """
    named = {**plan, "NO_PDL": int(not plan.get("PDL", 1))}
    numbers = [named.get(name, 0) if name in fields else 0 for name in FIELDS]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
