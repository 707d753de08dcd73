"""A guess which launch a call runs, by the shapes of A and B, and one look that says if it is so.

The key of a call (launch_cache.key_of) asks three tensors some seven questions each, and is hashed.
torch has a check that asks the same of all of them at once, in C++: Dynamo's guards, of a tensor's
type, dtype, device, sizes, strides, requires_grad and of whatever wraps or transforms it. A guess
holds for the launch that was made, or found by its key, last. Where the check says no, or torch has
none, the key is asked as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from .launch import Launch
from .tensors import deterministic, jit_trace, modes

MOST = 4096
"""Of guesses."""

BITS = {False: 63, True: 255}
"""Bits of an address that a kernel may depend on, by whether it runs on a GPU: see
operands.alignment. No function, whose call would cost more than what it does."""

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_make: Any = getattr(_guards, "TensorGuards", None)


@dataclass(slots=True)
class Guess:
    """A launch, and what a call has to have that runs it."""

    launch: Launch
    check: Callable[..., bool]
    """Whether tensors are like those of the call that it was made for."""
    bits: int
    low: tuple[int, ...]
    """Of the addresses of A, B and a bias those bits that a kernel may depend on."""
    deterministic: bool
    missed: int = 0
    """Calls of the same shapes that ran another launch."""


guesses: dict[Any, Guess] = {}


def guessed(arguments: tuple[Any, ...]) -> Launch | None:
    """The launch that a call with these arguments of ``gemm`` runs, if the guess is right."""
    (
        a, b, c, alpha, beta, bias, epilogue, out, out_dtype, compute, scale_a, scale_b, mma_shape,
        backend, kernel,
    ) = arguments  # fmt: skip
    if not (None is c is out is scale_a is scale_b is compute is mma_shape):
        return None
    if type(alpha) is not float or type(beta) is not float or alpha != 1.0 or beta != 0.0:
        return None
    try:
        guess = guesses.get((a.shape, b.shape, epilogue, out_dtype, backend, kernel, bias is None))
        if guess is None or guess.deterministic != deterministic():
            return None
        if modes() or forward_ad._current_level >= 0 or jit_trace() is not None:
            return None
        bits = guess.bits
        if bias is None:
            if not guess.check(a, b):
                return None
            at_a, at_b = a.data_ptr(), b.data_ptr()
            right = (at_a & bits, at_b & bits) == guess.low
        else:
            if not guess.check(a, b, bias):
                return None
            at_a, at_b, at_bias = a.data_ptr(), b.data_ptr(), bias.data_ptr()
            right = (at_a & bits, at_b & bits, at_bias & bits) == guess.low
            right = right and at_bias != 0 and at_bias != at_a and at_bias != at_b
    except (AttributeError, RuntimeError, TypeError):  # no tensors, or such as have no memory
        return None
    return guess.launch if right and at_a and at_b and at_a != at_b else None


def guess(arguments: tuple[Any, ...], launch: Launch) -> None:
    """Guess this launch from now on for calls of the same shapes.

    The arguments have a key. Where another launch is guessed already this happens at the first call
    that runs another one, the second, the fourth and so on: calls that alternate pay for it rarely.
    """
    (
        a, b, c, alpha, beta, bias, epilogue, out, out_dtype, compute, scale_a, scale_b, mma_shape,
        backend, kernel,
    ) = arguments  # fmt: skip
    shapes = (a.shape, b.shape, epilogue, out_dtype, backend, kernel, bias is None)
    before = guesses.get(shapes)
    missed = 0
    if before is not None:
        missed = before.missed = before.missed + 1
        if missed & (missed - 1):
            return
    if _make is None or not (None is c is out is scale_a is scale_b is compute is mma_shape):
        return
    tensors = [x for x in (a, b, bias) if x is not None]
    starts = [x.data_ptr() for x in tensors]
    if (alpha, beta) != (1.0, 0.0) or len({*starts}) < len(starts):
        return
    if any(x.requires_grad for x in tensors):  # whose calls depend on the mode, too
        return
    sizes, strides = [[*x.shape] for x in tensors], [[*x.stride()] for x in tensors]
    try:
        check = _make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        if not check(*tensors):
            return
    except (TypeError, ValueError, RuntimeError, SystemError):  # of another version of torch
        return
    if len(guesses) >= MOST:
        guesses.clear()
    bits = BITS[launch.device >= 0]
    low = tuple(start & bits for start in starts)
    guesses[shapes] = Guess(launch, check, bits, low, deterministic(), missed)
