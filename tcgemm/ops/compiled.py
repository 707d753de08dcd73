"""What a program of Inductor's calls for a product: a function of Python, and no dispatcher.

Inductor has checked the operands when it made the program, and allocates the result. All that is
left of a call is to find the launch that is kept for such operands. ``lowering`` writes the calls,
in programs that are kept on disk: a function whose arguments change needs another name.
"""

from __future__ import annotations

from typing import Any

import torch

from ..dispatch import default_backend
from ..forks import first_call
from ..launch import Launch
from ..launch_cache import BITS, forgotten_too, keep, launch_of, run
from ..tensors import deterministic, modes
from . import operator
from .layer import start

_kept: dict[Any, Launch] = {}
forgotten_too.append(_kept)


def product(
    a: Any, b: Any, alpha: float, epilogue: str, compute: str, mma_shape: str, backend: str,
    rung: str, *, out: Any,
) -> None:  # fmt: skip
    """out = epilogue(alpha A B), of matrices."""
    with_bias(a, b, None, alpha, epilogue, compute, mma_shape, backend, rung, out=out)


def with_bias(
    a: Any, b: Any, bias: Any, alpha: float, epilogue: str, compute: str, mma_shape: str,
    backend: str, rung: str, *, out: Any,
) -> None:  # fmt: skip
    """out = epilogue(alpha A B + bias), of matrices.

    Args:
        alpha, epilogue, compute, mma_shape, backend, rung: as ``tcgemm::gemm`` has them.
    """
    a_start, b_start, device = a.data_ptr(), b.data_ptr(), a.get_device()
    bits = BITS[device >= 0]
    bias_start = -1
    of_bias = None
    if bias is not None:
        bias_start = bias.data_ptr()
        of_bias = bias.stride(), bias_start & bits
    key = (
        a.shape, b.shape, a.stride(), b.stride(), out.stride(), a.dtype, out.dtype, device,
        a_start & bits, b_start & bits, out.data_ptr() & bits, of_bias, alpha, epilogue,
        compute, mma_shape, backend or default_backend(), rung, deterministic(),
    )  # fmt: skip
    launch = _kept.get(key)
    # A launch may tell operands apart by address, and knows no conjugates.
    usual = a_start and b_start and a_start != b_start and bias_start not in (0, a_start, b_start)
    if modes():  # somebody looks on, as torch does at first calls
        operator.gemm_out(
            a, b, None, bias, None, None, alpha=alpha, epilogue=epilogue, compute=compute,
            mma_shape=mma_shape, backend=backend, rung=rung, out=out,
        )  # fmt: skip
        return
    if launch is None or not usual or a.is_neg() or b.is_neg():
        arguments = (
            a, b, None, alpha, 0.0, bias, epilogue or None, out, None, compute or None, None, None,
            mma_shape or None, backend or default_backend(), rung or None,
        )  # fmt: skip
        with first_call(), torch.no_grad():
            if not usual or a.is_neg() or b.is_neg():
                run(arguments)
                return
            launch = launch_of(arguments)
        keep(_kept, key, launch)
    start(launch, a, b, bias, out)
