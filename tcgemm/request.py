"""What the options of a command ask for: a Problem on a GPU. Imports no torch until it must.

A command checks its arguments here before anything heavy is imported, so that a mistake is named
at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from . import gpus
from .problem import Problem
from .vocabulary import check_compute, check_epilogue, check_stored, sizes_of

if TYPE_CHECKING:
    from .gpus import Gpu

DEFAULT_GPU = "h200"
"""Whose figures are taken on a machine without a GPU."""


def board_of(name: str | None) -> Gpu:
    """The GPU of that name; without a name the GPU of this machine, else DEFAULT_GPU.

    Raises UnknownNameError, listing the GPUs that are known. Only without a name is torch imported.
    """
    if name is not None:
        return gpus.find(name)
    import torch

    if torch.cuda.is_available():
        return gpus.lookup(torch.cuda.get_device_name())
    return gpus.find(DEFAULT_GPU)


def plan_for(capability: tuple[int, int], gpu: str, sms: int) -> None:
    """Have choices and plans, of all backends, be for a GPU on a machine that has none.

    Args:
        gpu: its slug; "" to have them be again for what stands for the capability by itself.
        sms: of it; 0 for those of the largest GPU of the capability.
    """
    from .choosing.measured import stands_for
    from .dispatch import BACKENDS

    stands_for.pop(capability, None)
    if gpu:
        stands_for[capability] = gpu
    for module in map(import_module, BACKENDS.values()):
        if hasattr(module, "plan_for"):
            module.plan_for(capability, gpu, sms)


@contextmanager
def planning_for(board: Gpu) -> Iterator[None]:
    """``plan_for`` a GPU of the table within a with statement."""
    capability = gpus.capability(board)
    if capability is None:
        yield
        return
    plan_for(capability, board.slug, board.sms or 0)
    try:
        yield
    finally:
        plan_for(capability, "", 0)


def check_problem(
    shape: str,
    dtype: str,
    out_dtype: str | None,
    layout: str,
    compute: str | None,
    epilogue: str = "",
    gpu: str | None = None,
) -> None:
    """Raise what ``board_of`` and ``problem_of`` would raise of these arguments, without torch.

    alpha and beta are left to ``problem_of``.
    """
    sizes_of(shape)
    check_stored(dtype, out_dtype, layout)
    check_epilogue(dtype, epilogue)
    check_compute(dtype, compute)
    if gpu is not None:
        gpus.find(gpu)


def problem_of(
    shape: str,
    dtype: str,
    out_dtype: str | None,
    layout: str,
    compute: str | None,
    alpha: float,
    beta: float,
    bias: bool,
    epilogue: str,
    batch: int,
    board: Gpu,
) -> Problem:
    """The problem that the arguments name: contiguous operands, aligned, on that GPU.

    Raises OperandError for names, layouts or sizes that do not exist.
    """
    check_problem(shape, dtype, out_dtype, layout, compute, epilogue)
    from .operands import check_factors

    alpha, beta = check_factors(dtype, alpha, beta, epilogue)
    M, N, K = sizes_of(shape)
    return Problem.stored(
        M, N, K, dtype, check_stored(dtype, out_dtype, layout), layout,
        capability=gpus.capability(board), compute=check_compute(dtype, compute), batch=batch,
        alpha=alpha, beta=beta, bias=bias, epilogue=epilogue,
    )  # fmt: skip
