"""The short way of a layer: forward and backward of plain tensors, straight to the kept launches.

What a layer multiplies is [..., K] by one matrix, with a bias and an activation. Where nobody but
autograd looks on, one Function holds both ways: its forward runs the launch that is kept for such
operands, its backward those of the two gradients. All else, and a backward pass that is to be
differentiated again, takes the way of ``autograd``, which every derivative and transform follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from ..dispatch import default_backend
from ..epilogue import FUNCTIONS
from ..forks import first_call
from ..launch_cache import BITS, current_device, forgotten_too, keep, launch_of
from ..tensors import PLAIN, deterministic, grad_mode, guard, jit_trace, modes, transform
from . import autocast
from .autograd import by_columns
from .derivatives import has_derivative
from .layer import BACKWARD, Kind, apply, result_of
from .running import arguments

_FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))

_autocast = getattr(torch._C, "_is_any_autocast_enabled", autocast.enabled)


_kinds: dict[Any, Kind] = {}


@dataclass(slots=True)
class Recent:
    """The last call with a weight: one function of C's tells whether the next is of its kind."""

    alike: Callable[..., bool]
    """``tensors.guard`` of the operands."""
    bits: int
    """Which all addresses have clear."""
    kind: Kind
    run: Callable[..., torch.Tensor]
    """``run(x, weight, bias, kind)``: what makes the result."""


_recent: dict[Any, Recent] = {}
forgotten_too += _kinds, _recent


def product(
    x: Any,
    weight: Any,
    bias: Any,
    transposed: bool,
    epilogue: str | None,
    out_dtype: Any,
    compute: str | None,
    backend: str | None,
    kernel: str | None,
    accumulate: bool = False,
) -> torch.Tensor | None:
    """epilogue(x B + bias), or None where the call is more than a product of plain tensors.

    Args:
        x: [..., K].
        weight: B, [K, N]; or its transpose, [N, K], where ``transposed``.
        bias, epilogue, out_dtype, compute, backend, kernel: as for ``gemm``.
        transposed: whether ``weight`` is stored as layers store it.
        accumulate: add the gradient of ``weight`` to its ``.grad`` within the product.
    """
    if type(x) not in PLAIN or type(weight) not in PLAIN:
        return None
    try:
        call = (
            id(weight), x.shape, bias is None, transposed, accumulate, epilogue, out_dtype, compute,
            backend or default_backend(), kernel, grad_mode(), deterministic(),
        )  # fmt: skip
        recent = _recent.get(call)
    except (RuntimeError, TypeError):  # a nested tensor, a list for a name: the long way says so
        return None
    if (
        recent is None
        or modes()  # some of which the guard passes over
        or forward_ad._current_level >= 0
        or not (recent.alike(x, weight) if bias is None else recent.alike(x, weight, bias))
        or not _apart(x, weight, bias, recent.bits)
        or (recent.bits == BITS[True] and x.get_device() != current_device())
    ):
        return _looked_at(call, x, weight, bias, *call[3:10])
    return recent.run(x, weight, bias, recent.kind)


def _activated_by_torch(x: Any, weight: Any, bias: Any, kind: Kind) -> torch.Tensor:
    assert kind.after is not None
    return kind.after(apply(x, weight, bias, kind))


def _apart(x: Any, weight: Any, bias: Any, bits: int) -> bool:
    """Whether the operands are in memory, at addresses of their own that are multiples of
    ``bits`` + 1."""
    x_start, w_start = x.data_ptr(), weight.data_ptr()
    b_start = bits + 1 if bias is None else bias.data_ptr()
    return not (
        (x_start | w_start | b_start) & bits
        or x_start == w_start
        or b_start in (x_start, w_start, 0)
        or 0 in (x_start, w_start)
    )


def _looked_at(
    call: Any,
    x: Any,
    weight: Any,
    bias: Any,
    transposed: bool,
    accumulate: bool,
    epilogue: str | None,
    out_dtype: Any,
    compute: str | None,
    backend: str,
    kernel: str | None,
) -> torch.Tensor | None:
    """``product`` of a call that was not made before just so."""
    if (
        not (bias is None or type(bias) in PLAIN)
        or modes()
        or transform() is not None
        or forward_ad._current_level >= 0
        or jit_trace() is not None
    ):
        return None
    if _autocast() and (on := autocast.kinds()):
        return autocast.without(
            on, lambda x, weight, bias, compute: product(
                x, weight, bias, transposed, epilogue, out_dtype, compute, backend, kernel,
                accumulate,
            ),
            x, weight, bias, out_dtype, compute,
        )  # fmt: skip
    try:
        x_start, w_start = x.data_ptr(), weight.data_ptr()
        bias_start = None if bias is None else bias.data_ptr()
    except (AttributeError, RuntimeError):  # a tensor without memory
        return None
    if not x_start or not w_start or x_start == w_start or x.is_neg() or weight.is_neg():
        return None
    of_bias = None
    device = x.get_device()
    bits = BITS[device >= 0]
    if device >= 0 and device != current_device():
        with torch.cuda.device(device):
            return product(
                x, weight, bias, transposed, epilogue, out_dtype, compute, backend, kernel,
                accumulate,
            )  # fmt: skip
    differentiated = x.requires_grad or weight.requires_grad
    if bias_start is not None:
        if (
            bias_start in (0, w_start, x_start)  # a launch may tell operands apart by address
            or bias.is_neg()
        ):
            return None
        of_bias = bias.shape, bias.stride(), bias.dtype, bias.get_device(), bias_start & bits
        differentiated = differentiated or bias.requires_grad
    activation = ""
    if differentiated:
        differentiated = grad_mode()
        if differentiated and epilogue and epilogue != "relu":
            if epilogue not in FUNCTIONS:
                return None
            activation, epilogue = epilogue, None
    key = (
        x.shape, weight.shape, x.stride(), weight.stride(), x.dtype, weight.dtype, device,
        weight.get_device(), x_start & bits, w_start & bits, of_bias, deterministic(),
        transposed, accumulate, epilogue, activation, weight.requires_grad, out_dtype, compute,
        backend, kernel,
    )  # fmt: skip
    kind = _kinds.get(key)
    if kind is None:
        kind = _first(x, weight, bias, *key[12:])
        if kind is None:
            return None
        keep(_kinds, key, kind)
    run: Callable[..., torch.Tensor] = result_of
    if differentiated:
        run = apply if kind.after is None else _activated_by_torch
    if weight.is_leaf and _apart(x, weight, bias, bits):  # others, as casts, are not met again
        operands = (x, weight) if bias is None else (x, weight, bias)
        keep(_recent, call, Recent(guard(*operands), bits, kind, run))
    return run(x, weight, bias, kind)


def _first(
    x: Any,
    weight: Any,
    bias: Any,
    transposed: bool,
    accumulate: bool,
    epilogue: Any,
    activation: str,
    by_weight: bool,
    *asked: Any,
) -> Kind | None:
    """What is kept of such a product; None where it is not one launch of two matrices, or where
    it is wrong, which the long way says in the caller's terms."""
    if weight.dim() != 2 or x.dim() < 2 or x.dtype not in _FLOATS or x.dtype != weight.dtype:
        return None
    N, K = weight.shape if transposed else weight.shape[::-1]
    if x.shape[-1] != K or (bias is not None and bias.shape != (N,)):
        return None
    with first_call(), torch.no_grad():
        try:
            rows = x.view(-1, K)
        except RuntimeError:  # rows that only a copy puts behind each other
            return None
        matrix = weight.mT if transposed else weight
        launch = launch_of(arguments(rows, matrix, bias, epilogue, asked))
    if launch.start is None:
        return None
    derivative = has_derivative(launch, x.dtype)
    # A derivative of second order computes the pre-activation again, and reads x, which is kept
    # for the gradient by the weight: alone it is not worth its memory.
    kept = derivative and by_weight and activation in BACKWARD
    shape = (*x.shape[:-1], N)
    columns = by_columns(x), by_columns(weight)
    a, b = ((tuple(t.shape), t.stride(), 0) for t in (rows, matrix))
    return Kind(
        launch=launch, a=a, b=b, transposed=transposed, x_shape=tuple(x.shape),
        weight_shape=tuple(weight.shape), shape=shape, strides=_strides(shape, False),
        dtype=x.dtype, flat=x.dim() == 2,
        lay=(x.stride(), weight.stride()), x_strides=_strides(x.shape, columns[0]),
        weight_strides=_strides(weight.shape, columns[1]), by_columns=columns,
        accumulate=accumulate, epilogue=epilogue, activation=activation if kept else "",
        after=FUNCTIONS[activation] if activation and not kept else None, derivative=derivative,
        asked=asked, asked_of_gradients=(None, *asked[1:3], None), gradients={},
    )  # fmt: skip


def _strides(shape: Any, columns: bool) -> tuple[int, ...]:
    if columns:
        return _strides(shape[::-1], False)[::-1]
    return torch.empty(shape, device="meta").stride()
