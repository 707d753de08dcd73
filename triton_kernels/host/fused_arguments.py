"""What a kernel is given of all that is fused: arguments and constants of device/epilogue.py."""

from __future__ import annotations

from typing import Any

import torch

from .runtime import INTERPRETED


def finishes(fusion: Any) -> bool:
    """Whether anything happens to the accumulator beside narrowing."""
    if fusion is None:
        return False
    tensors = (fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
    return bool(
        fusion.alpha != 1 or fusion.epilogue or any(tensor is not None for tensor in tensors)
    )


def operands(fusion: Any, transposed: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``read`` and ``finish`` that a kernel is given, and its constants.

    Args:
        fusion: what to fuse, or None.
        transposed: the kernel computes the transpose of C, as B' A'.
    """
    if fusion is None:
        constants = {
            "ROW_SCALES_A": False,
            "ROW_SCALES_B": False,
            "BIAS_ROWS": False,
            "ACTIVATION": "",
            "INTERPRETED": INTERPRETED,
        }
        return (None, None, None, None, 1.0, 0.0, None, None, None), constants
    c_in, bias = fusion.c, fusion.bias
    scale_a, scale_b = fusion.scale_a, fusion.scale_b
    strides: tuple[int | None, int | None] = (None, None)
    if c_in is not None:
        strides = c_in.stride()[-2:]
    if transposed:
        strides = strides[::-1]
        scale_a, scale_b = scale_b, scale_a
    constants = {
        "ROW_SCALES_A": _row_scales(scale_a),
        "ROW_SCALES_B": _row_scales(scale_b),
        "BIAS_ROWS": transposed and bias is not None,
        "ACTIVATION": fusion.epilogue,
        "INTERPRETED": INTERPRETED,
    }
    stride_bias = None if bias is None else bias.stride(0)
    alpha, beta = float(fusion.alpha), float(fusion.beta)
    if fusion.compute == "int32":
        alpha, beta = wrap(alpha), wrap(beta)
    arguments = (
        c_in,
        bias,
        scale_a,
        scale_b,
        alpha,
        beta,
        *strides,
        stride_bias,
    )
    return arguments, constants


def wrap(factor: float) -> float:
    """A whole number, as the int32 that it is modulo 2^32."""
    return float((int(factor) + 2**31) % 2**32 - 2**31)


def _row_scales(scale: torch.Tensor | None) -> bool:
    return scale is not None and scale.numel() > 1


def batch_size(c: torch.Tensor) -> int:
    """How many products: C is [M, N] or [batch, M, N]."""
    return c.shape[0] if c.dim() == 3 else 1


def batch_strides(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any
) -> tuple[int | None, ...]:
    """Elements from one A, B, C and C_in of a batch to the next; None where there is none."""
    if c.dim() == 2:
        return (None,) * 4
    c_in = None if fusion is None else fusion.c
    return a.stride(0), b.stride(0), c.stride(0), None if c_in is None else c_in.stride(0)
