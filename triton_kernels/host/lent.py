"""Memory of one call: what its copies of operands and its parts of C lie in."""

from __future__ import annotations

import os
from typing import Any

import torch

_empty_strided: Any = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None
)
"""torch's allocation for the programs that it compiles: a third of the host time of torch.empty."""


def memory(like: torch.Tensor, size: int) -> torch.Tensor:
    """``size`` bytes for one call. A launch is on the current GPU, and so is ``like``."""
    if like.is_cuda and _empty_strided is not None:
        room: torch.Tensor = _empty_strided((size,), (1,), torch.uint8)
        return room
    return torch.empty(size, dtype=torch.uint8, device=like.device)


_raw_alloc: Any = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):  # as compute-sanitizer wants it: no neighbours
    _raw_alloc = None
give_back: Any = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None)


def lend(like: torch.Tensor, size: int, stream: int) -> tuple[int, torch.Tensor | None]:
    """The address of ``memory``, and the tensor that holds it; None on a GPU, where no tensor is
    made, which takes longer than the memory: ``give_back`` gives it back to torch's allocator.
    ``stream`` is the current one of the GPU."""
    if like.is_cuda and _raw_alloc is not None:
        return _raw_alloc(size, stream), None
    room = memory(like, size)
    return room.data_ptr(), room


def whole(size: int) -> int:
    """Bytes up to where torch's allocator would begin another tensor."""
    return -(-size // 512) * 512
