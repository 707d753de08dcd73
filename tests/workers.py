"""The processes of pytest-xdist on a machine with several GPUs, and those that tests start."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

import torch

PRELOADED = [
    *("torch.distributed.tensor.parallel", "torch.utils.flop_counter", "pytest"),
    *("tcgemm.dist.products", "tcgemm.dist.styles", "tcgemm.dist.layers", "tcgemm.cublas"),
    *("tcgemm.bench.several.run", "tcgemm.bench.ahead", "tcgemm.tools.verify"),
    *("tcgemm.verify.calls", "tcgemm.verify.judge"),
]
"""What the server of ``forked`` imports once for all that it forks."""

ENVIRONMENT: dict[str, str] = {}
"""Of that server: as it was before the first test, and a core for each of several processes."""


def keep_environment() -> None:
    """To be called when all that is set for all tests is set."""
    ENVIRONMENT.update(os.environ, OMP_NUM_THREADS="1")


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


def forked() -> ForkServerContext:
    """Starts processes that have imported torch already: a server does so once and forks each from
    itself, in milliseconds. All see ENVIRONMENT, whatever a test that came first had set."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    if not ENVIRONMENT:  # outside of pytest
        keep_environment()
    now = dict(os.environ)
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(now)
    return context
