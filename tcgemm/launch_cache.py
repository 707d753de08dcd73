"""The launches that were made, and the key that says which calls are of one kind.

All that the checks, the choice of kernel and its plan depend on is in the key, but for addresses:
of these it has the alignment, and which of them are equal. Two calls of one key run one launch.
Variables of the environment are read when a launch is made, and sizes of storages are trusted: one
that is shrunk behind a view is not noticed unless it is freed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from .forks import first_call, uncollected
from .launch import Launch, make
from .tensors import PLAIN, deterministic, grad_mode, jit_trace, modes

MOST = 4096
"""Of launches, and of each thing that is kept of them."""

BITS = {False: 63, True: 255}
"""Bits of an address that a kernel may depend on, by whether it runs on a GPU: see
operands.alignment. No function, whose call would cost more than what it does."""

_NUMBERS = frozenset((int, float))

inference_mode = torch.is_inference_mode_enabled

launches: dict[Any, Launch] = {}
forgotten_too: list[dict[Any, Any]] = []
"""What else is kept of launches, by keys of its own."""


def key_of(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    bias: torch.Tensor | None,
    epilogue: str | None,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    compute: str | None,
    scale_a: Any,
    scale_b: Any,
    mma_shape: str | None,
    backend: str,
    kernel: str | None,
) -> Any:
    """The key of a call with these arguments of ``gemm``; None where it has to be looked at whole.

    That is a call with anything but plain tensors in memory and Python numbers, one whose
    derivative somebody asks for, and one under a dispatch mode. Raises RuntimeError for tensors of
    a transform of torch.func, AttributeError or TypeError where there is no tensor.
    """
    if type(a) not in PLAIN or type(b) not in PLAIN or modes() or forward_ad._current_level >= 0:
        return None
    if jit_trace() is not None:
        return None
    a_start, b_start, device = a.data_ptr(), b.data_ptr(), a.get_device()
    bits = BITS[device >= 0]
    if not a_start or not b_start or a.is_neg() or b.is_neg():
        return None
    if (a.requires_grad or b.requires_grad) and grad_mode():
        return None
    key = (
        a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, device, b.get_device(),
        a_start & bits, b_start & bits, a_start == b_start, out_dtype, backend, kernel,
        deterministic(),
    )  # fmt: skip
    if (
        None is c is bias is epilogue is scale_a is scale_b is compute is mma_shape
        and type(alpha) is type(beta) is float
        and alpha == 1.0
        and beta == 0.0
    ):
        if out is None:
            return key
        if type(out) not in PLAIN:  # the address of a fake one is a warning
            return None
        c_start = out.data_ptr()
        if not c_start or out.is_neg() or _frozen(out):
            return None
        return (
            *key, out.shape, out.stride(), out.dtype, out.get_device(), c_start & bits,
        )  # fmt: skip
    if (
        None is c is scale_a is scale_b is out
        and bias is not None
        and type(bias) in PLAIN
        and type(alpha) is type(beta) is float
        and alpha == alpha
        and beta == beta
    ):  # of a linear layer, by less than what follows; keys that follow are longer
        start = bias.data_ptr()
        if not start or bias.is_neg() or (bias.requires_grad and grad_mode()):
            return None
        return (
            key, bias.shape, bias.stride(), bias.dtype, bias.get_device(), start & bits,
            start == a_start, start == b_start, alpha, beta, epilogue, (compute, mma_shape),
        )  # fmt: skip
    if type(alpha) not in _NUMBERS or type(beta) not in _NUMBERS:
        return None
    if alpha != alpha or beta != beta:  # NaN is no key: it differs from itself
        return None
    addresses = [a_start, b_start]
    kinds: list[tuple[Any, ...] | None] = []
    for given in (c, bias, scale_a, scale_b, out):
        # A number or None as itself, a tensor by all but its address.
        if given is None:
            kinds.append(None)
        elif type(given) in PLAIN:
            start = given.data_ptr()
            if not start or given.is_neg() or (given.requires_grad and grad_mode()):
                return None
            kinds.append((
                given.shape, given.stride(), given.dtype, given.get_device(), start & bits,
            ))  # fmt: skip
            addresses.append(start)
        elif type(given) in _NUMBERS:
            kinds.append((type(given), given))
        else:
            return None
    if out is not None and _frozen(out):
        return None
    return (
        key, *kinds, alpha, beta, epilogue, compute, mma_shape, *map(addresses.index, addresses),
    )  # fmt: skip


def _frozen(out: torch.Tensor) -> bool:
    """Whether ``out`` may not be written now."""
    if out.requires_grad and grad_mode():
        return True
    return out.is_inference() and not inference_mode()


# --- A guess in place of a key

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
    """Of the addresses of A, B and a bias or ``out`` those bits that a kernel may depend on."""
    deterministic: bool
    learns: bool
    """Whether one of these tensors requires a gradient: it is right while nobody records one."""
    inference: bool
    """Whether it was made under torch.inference_mode(). To the check a tensor of that mode outside
    of it, where ``out`` may be none, is like any other within."""
    missed: int = 0
    """Calls of the same shapes that ran another launch."""


guesses: dict[Any, Guess] = {}
"""By the shapes of A and B and what has no address: the launch that was made, or found by its key,
last. A key asks three tensors some seven questions each. Torch has a check that asks the same of
all of them at once, in C++: Dynamo's guards, of a tensor's type, dtype, device, sizes, strides,
requires_grad and of whatever wraps or transforms it. Where it says no, or torch has none, the key
is asked as ever."""


def guessed(arguments: tuple[Any, ...]) -> Launch | None:
    """The launch that a call with these arguments of ``gemm`` runs, if the guess is right."""
    (
        a, b, c, alpha, beta, bias, epilogue, out, out_dtype, compute, scale_a, scale_b, mma_shape,
        backend, kernel,
    ) = arguments  # fmt: skip
    if not (None is c is scale_a is scale_b is compute is mma_shape):
        return None
    if type(alpha) is not float or type(beta) is not float or alpha != 1.0 or beta != 0.0:
        return None
    third = bias if out is None else out
    try:
        kept = guesses.get(
            (a.shape, b.shape, epilogue, out_dtype, backend, kernel, bias is None, out is None)
        )
        if kept is None or kept.deterministic != deterministic():
            return None
        if kept.learns and grad_mode():
            return None
        if out is not None and kept.inference != inference_mode():
            return None
        if modes() or forward_ad._current_level >= 0 or jit_trace() is not None:
            return None
        bits = kept.bits
        if third is None:
            if not kept.check(a, b):
                return None
            at_a, at_b = a.data_ptr(), b.data_ptr()
            right = (at_a & bits, at_b & bits) == kept.low
        else:
            if not kept.check(a, b, third):
                return None
            at_a, at_b, at_third = a.data_ptr(), b.data_ptr(), third.data_ptr()
            right = (at_a & bits, at_b & bits, at_third & bits) == kept.low
            right = right and at_third != 0 and at_third != at_a and at_third != at_b
    except (AttributeError, RuntimeError, TypeError):  # no tensors, or such as have no memory
        return None
    return kept.launch if right and at_a and at_b and at_a != at_b else None


def remember_guess(arguments: tuple[Any, ...], launch: Launch) -> None:
    """Guess this launch from now on for calls of the same shapes.

    The arguments have a key. Where another launch is guessed already this happens at the first call
    that runs another one, the second, the fourth and so on: calls that alternate pay for it rarely.
    """
    (
        a, b, c, alpha, beta, bias, epilogue, out, out_dtype, compute, scale_a, scale_b, mma_shape,
        backend, kernel,
    ) = arguments  # fmt: skip
    if _make is None or not (None is c is scale_a is scale_b is compute is mma_shape):
        return
    if alpha != 1.0 or beta != 0.0 or (bias is not None and out is not None):
        return
    shapes = (a.shape, b.shape, epilogue, out_dtype, backend, kernel, bias is None, out is None)
    before = guesses.get(shapes)
    missed = 0
    if before is not None:
        missed = before.missed = before.missed + 1
        if missed & (missed - 1):
            return
    tensors = [x for x in (a, b, bias, out) if x is not None]
    starts = [x.data_ptr() for x in tensors]
    if len({*starts}) < len(starts):
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
    learns = any(x.requires_grad for x in tensors)
    guesses[shapes] = Guess(
        launch, check, bits, low, deterministic(), learns, inference_mode(), missed
    )


# --- Finding a launch, making it and running it


def launch_of(arguments: tuple[Any, ...]) -> Launch:
    """The launch that a call with these arguments runs: kept, or made now and kept.

    Args:
        arguments: of ``gemm``, in the order of ``key_of``.
    """
    try:
        key = key_of(*arguments)
        launch = launches.get(key)
    except (AttributeError, RuntimeError, TypeError):  # the checks say what is wrong
        key = launch = None
    if launch is None:
        with uncollected():
            launch = make(*arguments)
        if key is not None:
            keep(launches, key, launch)
            remember_guess(arguments, launch)
    return launch


def run(arguments: tuple[Any, ...]) -> torch.Tensor:
    """The result of a call with these arguments, whose tensors are plain ones in memory."""
    with first_call():
        return run_launch(launch_of(arguments), arguments)


def run_kept(arguments: tuple[Any, ...]) -> torch.Tensor | None:
    """The result, where the operands are plain ones that a launch can be kept for; else None."""
    try:
        key = key_of(*arguments)
    except (AttributeError, RuntimeError, TypeError):
        return None
    if key is None:
        return None
    try:
        launch = launches.get(key)
    except TypeError:  # a list for a name: the checks say what is wrong
        launch = None
    return run(arguments) if launch is None else run_launch(launch, arguments)


def run_launch(launch: Launch, arguments: tuple[Any, ...]) -> torch.Tensor:
    """The result by this launch, which is of the arguments' kind."""
    a, b, c, _, _, bias, _, out, _, _, scale_a, scale_b, _, _, _ = arguments
    result, start = out, launch.start
    here = launch.device < 0 or launch.device == current_device()
    if result is None:
        result = (
            launch.empty(launch.shape, launch.strides, launch.dtype)
            if here
            else a.new_empty_strided(launch.shape, launch.strides, dtype=launch.dtype)
        )
        if result.data_ptr() & launch.misaligned:  # the plan was made for a better aligned C
            return run((*arguments[:7], result, *arguments[8:]))
    else:
        launch.check_memory(a, b, c, bias, scale_a, scale_b, result)
    if start is None or not here:
        launch.write(a, b, c, bias, scale_a, scale_b, result)
    else:
        try:
            start(a, b, result, c if launch.asked.beta else None, bias, scale_a, scale_b)
        except RuntimeError as error:
            raise launch.explained(error) from error
    if out is not None:
        _raise_version((out,))
    return result


current_device = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device
_raise_version = torch._C._increment_version
"""A tensor that autograd has saved and ``out=`` overwrites makes backward raise, as in torch."""


def keep(kept: dict[Any, Any], key: Any, value: Any, most: int | None = None) -> None:
    """Keep a value; of ``most``, by default MOST, the one that was kept first is forgotten."""
    most = most or MOST
    while len(kept) >= most:
        with suppress(RuntimeError):  # another thread keeps or forgets one just now
            kept.pop(next(iter(kept), None), None)
    kept[key] = value


def forget() -> None:
    """Choose and plan anew from now on."""
    launches.clear()
    guesses.clear()
    for kept in forgotten_too:
        kept.clear()
