"""A plan as it crosses the border to C++: named numbers in one order."""

from __future__ import annotations

from collections.abc import Mapping

FIELDS = (
    "CLUSTER", "BLOCK_M", "BLOCK_N", "SPLITS", "GROUPS", "WARPS", "BLOCKS", "SHARED_KB", "REPACK",
    "NO_PDL", "ACROSS",
)  # fmt: skip
"""The fields of tcgemm::Plan in csrc/host/gemm.cuh, in its order."""


def launch_plan(plan: Mapping[str, int]) -> list[int]:
    """The numbers of a plan for the operator; one that a rung does not plan is 0."""
    pdl = plan.get("PDL", 1)
    return [int(not pdl) if name == "NO_PDL" else plan.get(name, 0) for name in FIELDS]
