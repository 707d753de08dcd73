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
from ..tensors import deterministic, laid, modes
from . import mlp_traced, operator, registered_late, row_sums
from .running import asked_of, start

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
        registered_late.look()
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


def with_z(
    a: Any, b: Any, bias: Any, epilogue: str, compute: str, backend: str, *, out: Any
) -> None:
    """out[0] = epilogue(A B + bias) and out[1] = A B + bias, of matrices of one dtype."""
    _, M, N = out.shape
    hidden, z = (laid(out, (M, N), (N, 1), further) for further in (0, out.stride(0)))
    if modes():
        registered_late.look()
        both = mlp_traced.gemm_with_z(
            a, b, bias, epilogue=epilogue, compute=compute, backend=backend
        )
        hidden.copy_(both[0])
        z.copy_(both[1])
        return
    key = ("with_z", *_alike(a, b, bias, out), epilogue, compute, backend or default_backend())
    asked = asked_of(compute, backend)
    _keep(key, mlp_traced.with_z(_kept.get(key), asked, epilogue, a, b, bias, z, hidden))


def with_z_alone(a: Any, b: Any, epilogue: str, compute: str, backend: str, *, out: Any) -> None:
    """``with_z`` without a bias."""
    with_z(a, b, None, epilogue, compute, backend, out=out)


def through_z(
    a: Any, b: Any, z: Any, epilogue: str, compute: str, backend: str, *, out: Any
) -> None:
    """out = A B times the derivative of the epilogue at Z, of matrices of one dtype."""
    if modes():
        registered_late.look()
        out.copy_(
            mlp_traced.gemm_through_z(a, b, z, epilogue=epilogue, compute=compute, backend=backend)
        )
        return
    key = ("through_z", *_alike(a, b, z, out), epilogue, compute, backend or default_backend())
    asked = asked_of(compute, backend)
    _keep(key, mlp_traced.through_z(_kept.get(key), asked, epilogue, a, b, z, out))


def with_sums(a: Any, b: Any, compute: str, backend: str, *, out: Any) -> None:
    """A B, [M, N], at the beginning of ``out``, and the sums of A's rows, [M], at its end; of
    matrices of one dtype."""
    (M, _), N = a.shape, b.shape[1]
    product, sums = laid(out, (M, N), (N, 1), 0), laid(out, (M,), (1,), out.shape[0] - M)
    if modes():
        registered_late.look()
        given = row_sums.gemm_with_sums(a, b, compute=compute, backend=backend)
        for mine, theirs in zip((product, sums), given, strict=True):
            mine.copy_(theirs)
        return
    key = ("with_sums", *_alike(a, b, None, out), compute, backend or default_backend())
    asked = asked_of(compute, backend)
    _keep(key, row_sums.with_sums(_kept.get(key), asked, a, b, sums, product))


def _alike(a: Any, b: Any, third: Any, out: Any) -> tuple[Any, ...]:
    """All that a launch of these depends on."""
    device = a.get_device()
    bits = BITS[device >= 0]
    of_third = None if third is None else (third.stride(), third.data_ptr() & bits)
    return (
        a.shape, b.shape, a.stride(), b.stride(), a.dtype, device, a.data_ptr() & bits,
        b.data_ptr() & bits, out.data_ptr() & bits, of_third, deterministic(),
    )  # fmt: skip


def _keep(key: Any, launch: Launch) -> None:
    if _kept.get(key) is not launch:
        keep(_kept, key, launch)
