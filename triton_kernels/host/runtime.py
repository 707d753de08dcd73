"""The one place that imports triton first, and so decides between GPU and interpreter.

Triton reads TRITON_INTERPRET when its own library is imported: setting it later leaves half of the
functions compiled. On a machine without a GPU this module sets it before that import.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any

import torch

if "triton" not in sys.modules and not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor as TensorDescriptor

from . import interpreter, warm_up

FROM_SHARED = (9, 10)
"""The architectures, sm_90 and sm_100 with their kin, whose tensor cores read shared memory: by
wgmma and by tcgen05. sm_120 has neither, and multiplies by mma.sync."""

INTERPRETED: bool = not isinstance(tl.cdiv, JITFunction)
"""Whether kernels run in Triton's interpreter; fixed when triton is first imported."""

if not INTERPRETED:
    warm_up.usable_cache()
    if torch.cuda.is_available():
        warm_up.begin()


class _OneAtATime(AbstractContextManager[None]):
    """A lock that is free in a forked child, where the thread that held it does not exist.

    A launch of the interpreter sets all of the interpreter's state anew, so what an unfinished one
    left in the child does no harm.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._interpreter = import_module("triton.runtime.interpreter")
        self._patch = getattr(self._interpreter, "_patch_lang", None)
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._patch is not None:  # as in the versions of Triton that are known
            once = interpreter.once_a_launch(self._patch, (tl, tl.core))
            self._interpreter._patch_lang = once

    def __exit__(self, *error: object) -> None:
        if self._patch is not None:
            self._interpreter._patch_lang = self._patch
        self._lock.release()


one_at_a_time: AbstractContextManager[object] = _OneAtATime() if INTERPRETED else nullcontext()
"""Held during a launch: the interpreter keeps the program at work in one place for all threads."""


def check(a: torch.Tensor) -> None:
    """Raise RuntimeError, naming the remedy, where kernels cannot read A's device."""
    warm_up.wait()
    if a.is_cuda and bool(triton.knobs.runtime.interpret) == INTERPRETED:
        return
    if not a.is_cuda and INTERPRETED:
        return
    if a.is_cuda:
        raise RuntimeError(
            "TRITON_INTERPRET was changed after triton was imported: set it before Python starts"
        )
    if torch.cuda.is_available():
        raise RuntimeError(
            "the operands are on the CPU and Triton compiles for the GPU in this process: move "
            "them with .cuda(), or set TRITON_INTERPRET=1 before Python starts"
        )
    raise RuntimeError(
        "the operands are on the CPU and triton was imported with its interpreter off: set "
        "TRITON_INTERPRET=1 before Python starts, or unset TRITON_INTERPRET=0 and call "
        "tcgemm.matmul before anything else imports triton"
    )


def programs(a: torch.Tensor) -> int:
    """Programs of a persistent kernel: one per SM of A's GPU."""
    return _sm_count(a.device.index) if a.is_cuda else interpreter.PROGRAMS


@cache
def _sm_count(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def by_wgmma() -> bool:
    """Whether tl.dot takes B from shared memory alone: on the GPUs of FROM_SHARED, and in the
    interpreter, which runs what these run."""
    if INTERPRETED:
        return True
    return triton.runtime.driver.active.get_current_target().arch // 10 in FROM_SHARED


def starts_early(early: Any) -> dict[str, bool]:
    """The constant PDL of a kernel and the option of its launch (programmatic dependent launch):
    with both it may start while the kernel before it runs, with neither behind it."""
    return {"PDL": True, "launch_pdl": True} if early else {"PDL": False}


def cdiv(x: int, y: int) -> int:
    """Ceiling of x / y."""
    return -(-x // y)
