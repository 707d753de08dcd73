"""The GPU that a problem is for, which may be one that is not here."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

SIMULATED_SMS = 8
"""SMs of the simulator's GPU."""


class Gpu(NamedTuple):
    name: str
    """As in the names of tables, e.g. nvidia-h200; empty where it is unknown."""
    sms: int
    shared_bytes: int
    """Of shared memory that a block may have; 0 where it is unknown."""
    stand_in: str = ""
    """Whose shipped table is read where this GPU has none; see ``stand_in``."""


LIMITS = {
    (8, 0): (108, 163),
    (8, 6): (84, 99),
    (8, 7): (16, 163),
    (8, 9): (142, 99),
    (9, 0): (132, 227),
    (10, 0): (148, 227),
    (12, 0): (170, 99),
}
"""Compute capability -> SMs of its largest GPU, and KB of shared memory that a block can have."""

NAMES = {(9, 0): "nvidia-h200"}
"""Compute capability -> the GPU whose tables stand for it where none is at hand, or where the one
that is has none of its own."""

stands_for: dict[tuple[int, int], Gpu] = {}
"""Compute capability -> the GPU that plans are for on a machine without one; else as NAMES says."""


def shared_kb(capability: tuple[int, int]) -> int:
    """KB of shared memory that a block can have; of what is not known, as Hopper."""
    return LIMITS.get(capability, LIMITS[9, 0])[1]


def blocks_of_sm(capability: tuple[int, int], shared_bytes: int) -> int:
    """Blocks with so much shared memory that an SM has room for, which keeps 1 KB beside each."""
    return (shared_kb(capability) + 1) * 1024 // (shared_bytes + 1024)


def stand_in(capability: tuple[int, int], sms: int) -> str:
    """The GPU whose shipped table is read by one that has none, of so many SMs; "" where none is.

    Tables were measured on all SMs. Of a slice with less than half of them (MIG), the models know
    more: 16 SMs take 198 us by them for 4 x 8192 x 8192 (nn) in skinny, as an H200's table has it,
    and 34 in gemv.
    """
    most, _ = LIMITS.get(capability, LIMITS[9, 0])
    return NAMES.get(capability, "") if 2 * sms >= most else ""


def here() -> Gpu | None:
    """The current GPU; None where there is none."""
    import torch

    return _of_device(torch.cuda.current_device())[1] if torch.cuda.is_available() else None


@cache
def _of_device(index: int) -> tuple[tuple[int, int], Gpu]:
    """Capability and facts of a GPU: a choice asks for them some fifty times."""
    import torch

    found = torch.cuda.get_device_properties(index)
    slug = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")
    shared = getattr(found, "shared_memory_per_block_optin", 0)
    sms = found.multi_processor_count
    capability = torch.cuda.get_device_capability(index)
    return capability, Gpu(slug, sms, shared, stand_in(capability, sms))


def of(problem: Any) -> Gpu:
    """The current GPU where it is of the problem's capability, else what stands for that."""
    import torch

    # Where CUDA has begun there is one, which is sooner asked.
    if torch.cuda.is_initialized() or torch.cuda.is_available():
        its_own, found = _of_device(torch.cuda.current_device())
        if problem.capability in (None, its_own):
            return found
    capability = problem.capability or (9, 0)
    if capability in stands_for:
        return stands_for[capability]
    sms, kb = LIMITS.get(capability, LIMITS[9, 0])
    return Gpu(NAMES.get(capability, ""), sms, kb * 1024)
