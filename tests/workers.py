"""The processes of pytest-xdist on a machine with several GPUs."""

from __future__ import annotations

import os

import torch


def gpus_of(worker: str, count: int) -> str:
    """The GPUs in the order that a process sees them, so that each process begins with another.

    All stay visible, since a test may ask for two.
    """
    first = int(worker.removeprefix("gw")) % count
    return ",".join(str((first + i) % count) for i in range(count))


def begin_with_different_gpus() -> None:
    """To be called before anything asks CUDA for a GPU, which then keeps the order."""
    count = torch.cuda.device_count()
    if count > 1:
        order = gpus_of(os.environ["PYTEST_XDIST_WORKER"], count)
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", order)
