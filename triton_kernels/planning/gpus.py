"""Facts of GPUs that a plan rests on: shared memory, SMs, and the name of the GPU at hand."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple


class Limits(NamedTuple):
    """What a plan takes of a GPU that is not at hand."""

    sms: int
    """Of the largest GPU of the capability."""
    shared_bytes: int
    """Most shared memory of one program (CUDA programming guide)."""


LIMITS = {
    (8, 0): Limits(108, 166_912),
    (8, 6): Limits(84, 101_376),
    (8, 7): Limits(16, 166_912),
    (8, 9): Limits(142, 101_376),
    (9, 0): Limits(132, 232_448),
    (10, 0): Limits(148, 232_448),
    (12, 0): Limits(170, 101_376),
}
"""By compute capability."""

UNKNOWN = Limits(132, 101_376)
"""Of a capability that is not there: SMs as an H100 or H200 has."""

OF_MMA_SYNC = ((8, 0), (8, 6), (8, 7), (8, 9), (12, 0))
"""Capabilities whose tensor cores take operands from registers, where rounding costs no detour."""


STANDS_IN = {(9, 0): "nvidia-h200"}
"""Compute capability -> the GPU whose table is read by one that has none of its own."""


def architecture(capability: tuple[int, int]) -> str:
    """The table of a GPU that has none of its own: sm80 or sm90."""
    return "sm90" if capability >= (9, 0) else "sm80"


stands_for: dict[tuple[int, int], tuple[str, int, int]] = {}
"""Compute capability -> name, bytes, SMs of the GPU that plans are for on a machine without one."""


def gpu_here(capability: tuple[int, int] | None = None) -> tuple[str, int, int]:
    """Name as in the table's file name, e.g. nvidia-h200, bytes of shared memory a program, SMs.

    Of the current GPU, or of the first here that has the capability; nothing where none has: a
    plan may be asked for a GPU that is not here.
    """
    import torch

    # Where CUDA has begun there is one, which is sooner asked.
    if not (torch.cuda.is_initialized() or torch.cuda.is_available()):
        return stands_for.get(capability or (0, 0), ("", 0, 0))
    its_own, found = _of_device(torch.cuda.current_device())
    if capability in (None, its_own):
        return found
    for index in range(torch.cuda.device_count()):
        its_own, found = _of_device(index)
        if capability == its_own:
            return found
    return "", 0, 0


@cache
def _of_device(index: int) -> tuple[tuple[int, int], tuple[str, int, int]]:
    """Capability, and name, bytes and SMs of a GPU: a choice asks for them some fifty times."""
    import torch

    found = torch.cuda.get_device_properties(index)
    slug = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")
    shared = getattr(found, "shared_memory_per_block_optin", 0)
    return torch.cuda.get_device_capability(index), (slug, shared, found.multi_processor_count)


def gpu_of(problem: Any) -> tuple[str, int, int]:
    """``gpu_here`` for a problem on a GPU; nothing for any other."""
    return gpu_here(problem.capability) if problem.device == "cuda" else ("", 0, 0)


def sms_of(problem: Any) -> int:
    """SMs of the GPU of a problem, and as an H100 or H200 has of one that is not known."""
    return gpu_of(problem)[2] or UNKNOWN.sms
