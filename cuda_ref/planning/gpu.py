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


H200 = Gpu("nvidia-h200", 132, 232_448)
"""What stands for compute capability 9.0 where no GPU is at hand."""


def here() -> Gpu | None:
    """The current GPU; None where there is none."""
    import torch

    return _of_device(torch.cuda.current_device()) if torch.cuda.is_available() else None


@cache
def _of_device(index: int) -> Gpu:
    import torch

    found = torch.cuda.get_device_properties(index)
    slug = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")
    shared = getattr(found, "shared_memory_per_block_optin", 0)
    return Gpu(slug, found.multi_processor_count, shared)


def of(problem: Any) -> Gpu:
    """The current GPU where it is of the problem's capability, else what stands for that."""
    import torch

    found = here()
    if found and problem.capability in (None, torch.cuda.get_device_capability()):
        return found
    return H200 if problem.capability in (None, (9, 0)) else H200._replace(name="")
