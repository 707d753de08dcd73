"""Two layers as one autograd Function, whose backward pass knows what precedes its second product.

    H = f(X W1^T + b1),  Y = H W2^T + b2

The gradient by H is a product, dY W2, and that by the pre-activation Z is it times f'(Z): where the
product's kernel can (Fusion.aux), it stores the second. Of two layers it could not: H may have been
read by others as well, for all that autograd tells.

As in a layer (eager.py, layer.py) the launches of a kind of calls are kept, forward and backward.
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
from ..launch import Launch, Start
from ..launch_cache import BITS, current_device, forgotten_too, keep, launch_of
from ..tensors import PLAIN, deterministic, grad_mode, guard, jit_trace, laid, modes, transform
from . import autocast, autograd
from .accumulating import will_run
from .derivatives import column_sums, has_derivative, through
from .how import How
from .layer import BACKWARD, LAYOUTS, is_plain, threshold_backward
from .running import arguments, multiply_at, run_with_aux


@dataclass(slots=True)
class Gradients:
    """What the backward pass runs for gradients of Y that lie alike."""

    of_h: Launch | None = None
    of_w2: Launch | None = None
    of_w1: Launch | None = None
    of_x: Launch | None = None
    of_b1: Start | None = None
    of_b2: Start | None = None


@dataclass(slots=True)
class Kind:
    """What is the same in all calls of one kind, forward and backward."""

    alike: Callable[..., bool]
    """``tensors.guard`` of the operands."""
    bits: int
    """Which all addresses have clear."""
    epilogue: str
    asked: tuple[Any, ...]
    """out_dtype, compute, backend, kernel, as ``arguments`` takes them."""
    x: tuple[Any, Any]
    """Shape and strides of the gradient by x."""
    rows: tuple[Any, ...]
    up: tuple[Any, ...]
    down: tuple[Any, ...]
    """x as a matrix, W1^T and W2^T: the last three arguments of ``laid``."""
    tensors: list[int]
    """Which of x, W1, b1, W2 and b2 there are."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Both of the result."""
    first: Launch
    second: Launch | None
    gradients: dict[Any, Gradients]
    """By how the gradient of Y lies."""


_recent: dict[Any, Kind] = {}
forgotten_too.append(_recent)


def product(
    x: Any, w1: Any, b1: Any, w2: Any, b2: Any, epilogue: str, compute: Any, backend: Any
) -> torch.Tensor | None:
    """The result; None where nobody asks for gradients, or the operands are not plain matrices that
    a kernel takes as they are: two layers take those.

    Args:
        x: [..., K].
        w1, b1: [H, K] and [H], or None.
        w2, b2: [N, H] and [N], or None.
        epilogue, compute, backend: as for ``gemm``.
    """
    if type(x) not in PLAIN or type(w1) not in PLAIN or type(w2) not in PLAIN:
        return None
    given = [t for t in (x, w1, b1, w2, b2) if t is not None]
    try:
        call = (
            id(w1), id(w2), x.shape, b1 is None, b2 is None, epilogue, compute,
            backend or default_backend(), grad_mode(), deterministic(),
        )  # fmt: skip
        kind = _recent.get(call)
    except (RuntimeError, TypeError):  # a nested tensor, a list for a name: the layers say so
        return None
    if modes() or forward_ad._current_level >= 0:
        return None
    if (
        kind is None
        or not kind.alike(*given)
        or not _apart(given, kind.bits)
        or (x.is_cuda and x.get_device() != current_device())
    ):
        if not _takes(given, x, w1, b1, w2, b2, epilogue):
            return None
        if x.is_cuda and x.get_device() != current_device():
            with torch.cuda.device(x.device):
                return product(x, w1, b1, w2, b2, epilogue, compute, backend)
        with first_call(), torch.no_grad():
            kind = _first(given, x, w1, b1, w2, b2, epilogue, compute, call[7])
        if kind is None:
            return None
        # Of others, and of what is less aligned, a later call would not be known to be like it.
        if kind.bits and w1.is_leaf and w2.is_leaf:
            keep(_recent, call, kind)
    result: torch.Tensor = apply(x, w1, b1, w2, b2, kind)
    return result


def _takes(given: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, epilogue: str) -> bool:
    """Whether the operands are two layers' and plain, and a derivative is asked for; where they are
    wrong the layers say so."""
    if (
        any(type(t) not in PLAIN for t in given)
        or transform() is not None
        or jit_trace() is not None
        or autocast.enabled()
        or not (grad_mode() and any(t.requires_grad for t in given))
        or not (epilogue == "relu" or epilogue in BACKWARD)
        or x.dim() < 2
        or w1.dim() != 2
        or w2.dim() != 2
        or any(t.dtype is not x.dtype or t.device != x.device for t in given)
    ):
        return False
    vectors = all(b is None or b.shape == w.shape[:1] for w, b in ((w1, b1), (w2, b2)))
    fit = vectors and x.shape[-1] == w1.shape[1] and w2.shape[1] == w1.shape[0]
    try:
        return fit and _apart(given, 0) and not any(t.is_neg() for t in given)
    except RuntimeError:  # no memory
        return False


def _apart(given: list[Any], bits: int) -> bool:
    """Whether the operands are in memory, at addresses of their own that have the bits clear."""
    addresses = [t.data_ptr() for t in given]
    return (
        not any(start & bits or not start for start in addresses)
        and len({*addresses}) == len(addresses)
    )  # fmt: skip


def _first(
    given: Any,
    x: Any,
    w1: Any,
    b1: Any,
    w2: Any,
    b2: Any,
    epilogue: str,
    compute: Any,
    backend: Any,
) -> Kind | None:
    """What is kept of such calls; None where they are not launches of matrices."""
    try:
        rows = x.detach().view(-1, x.shape[-1])
    except RuntimeError:  # rows that only a copy puts behind each other
        return None
    asked = None, compute, backend, None
    fused = epilogue if epilogue == "relu" else None
    launch = launch_of(arguments(rows, w1.mT, b1, fused, asked))
    if launch.start is None or not has_derivative(launch, x.dtype) or not w2.shape[0]:
        return None
    shape = (*x.shape[:-1], w2.shape[0])
    bits = BITS[x.is_cuda]
    return Kind(
        alike=guard(*given), bits=bits if _apart(given, bits) else 0, epilogue=epilogue,
        asked=asked, x=_dense(x.shape), rows=(tuple(rows.shape), rows.stride(), 0),
        up=(tuple(w1.mT.shape), w1.mT.stride(), 0), down=(tuple(w2.mT.shape), w2.mT.stride(), 0),
        tensors=[i for i, t in enumerate((x, w1, b1, w2, b2)) if t is not None],
        shape=shape, strides=_dense(shape)[1], first=launch, second=None, gradients={},
    )  # fmt: skip


def _dense(shape: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a tensor with its last dimension contiguous, and no gaps."""
    return tuple(shape), torch.empty(shape, device="meta").stride()


class Mlp(torch.autograd.Function):
    """f(x W1^T + b1) W2^T + b2."""

    @staticmethod
    def forward(ctx: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, kind: Kind) -> torch.Tensor:
        first, epilogue, empty = kind.first, kind.epilogue, kind.first.empty

        def matrices(*results: Any) -> tuple[Any, ...]:
            return laid(x, *kind.rows), laid(w1, *kind.up), *results

        z = h = empty(first.shape, first.strides, first.dtype)
        if epilogue == "relu":
            kind.first = multiply_at(
                first, kind.asked, x, w1, b1, z, lambda: matrices(z), epilogue
            )  # fmt: skip
        else:
            h = empty(first.shape, first.strides, first.dtype)
            if not run_with_aux(
                first, "write", epilogue, x, w1, b1, z, h, lambda: matrices(z, h)
            ):  # fmt: skip
                kind.first = multiply_at(first, kind.asked, x, w1, b1, z, lambda: matrices(z))
                h = FUNCTIONS[epilogue](z)
        y = empty(kind.shape, kind.strides, first.dtype)
        kind.second = multiply_at(
            kind.second, kind.asked, h, w2, b2, y,
            lambda: (h, laid(w2, *kind.down), y.view(-1, y.shape[-1])),
        )  # fmt: skip
        ctx.save_for_backward(x, w1, b1, w2, z, h)
        ctx.kept = kind, [(t.data_ptr(), t.stride()) for t in (x, w1, w2, z, h)]
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return (None,) * 6
        kind, lay = ctx.kept
        x, w1, b1, w2, z, h = ctx.saved_tensors
        first, empty = kind.first, kind.first.empty
        if not is_plain(grad, first.device):
            _, compute, backend, _ = kind.asked
            how = How(compute=compute or "", backend=backend)
            return *differentiable(ctx, how, kind.epilogue, grad, x, w1, b1, w2, z, h), None
        by_x, by_w1, by_b1, by_w2, by_b2 = _wanted(ctx, kind)
        of_x = of_w1 = of_b1 = of_w2 = of_b2 = None
        rows = grad
        if not (first.by_address and grad.stride() == kind.strides):
            rows = grad.reshape(-1, kind.shape[-1])
        kept = _kept(kind, rows, lay, (x, w1, w2, z, h))
        if by_b2:
            of_b2, kept.of_b2 = column_sums(first, rows, kept.of_b2)
        if by_w2:
            of_w2 = empty(tuple(w2.shape), (w2.shape[1], 1), w2.dtype)
            kept.of_w2 = multiply_at(
                kept.of_w2, kind.asked, rows, h, None, of_w2,
                lambda: (rows.flatten(0, -2).mT, h, of_w2),
            )  # fmt: skip
        if by_x or by_w1 or by_b1:
            factor, of_b1 = _through(kept, kind, rows, w2, z, by_b1)
            if by_w1:
                of_w1 = empty(tuple(w1.shape), (w1.shape[1], 1), w1.dtype)
                kept.of_w1 = multiply_at(
                    kept.of_w1, kind.asked, factor, x, None, of_w1,
                    lambda: (factor.mT, x.reshape(-1, x.shape[-1]), of_w1),
                )  # fmt: skip
            if by_x:
                of_x = empty(*kind.x, x.dtype)
                kept.of_x = multiply_at(
                    kept.of_x, kind.asked, factor, w1, None, of_x,
                    lambda: (factor, w1, of_x.view(-1, of_x.shape[-1])),
                )  # fmt: skip
        return of_x, of_w1, of_b1, of_w2, of_b2, None


apply: Any = super(torch.autograd.Function, Mlp).apply
"""torch's C function, as in layer.py."""

Mlp._backward_cls.apply = Mlp.backward


def _kept(kind: Kind, rows: Any, lay: Any, saved: Any) -> Gradients:
    """What is kept for a gradient that lies so; nothing where hooks of saved tensors gave others
    than were saved, or it is one of them."""
    start = rows.data_ptr()
    if any(
        t.data_ptr() != was or t.stride() != strides or was == start
        for t, (was, strides) in zip(saved, lay, strict=True)
    ):
        return Gradients()
    key = rows.shape, rows.stride(), start & BITS[kind.first.device >= 0], deterministic()
    kept = kind.gradients.get(key)
    if kept is None:
        kept = Gradients()
        keep(kind.gradients, key, kept, LAYOUTS)
    return kept


def _through(
    kept: Gradients, kind: Kind, rows: Any, w2: Any, z: Any, by_bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """dY W2 times the derivative at Z, and its column sums if ``by_bias``."""
    first, launch, epilogue = kind.first, kept.of_h, kind.epilogue
    below = first.empty(first.shape, first.strides, first.dtype)
    if launch is None:
        with first_call():
            matrix = rows.flatten(0, -2)
            launch = kept.of_h = launch_of(arguments(matrix, w2, None, None, kind.asked, below))
    if z.stride() == first.strides and run_with_aux(
        launch, "read", epilogue, rows, w2, None, z, below,
        lambda: (rows.flatten(0, -2), w2, z, below),
    ):  # fmt: skip
        of_bias = None
        if by_bias:
            of_bias, kept.of_b1 = column_sums(first, below, kept.of_b1)
        return below, of_bias
    kept.of_h = multiply_at(
        launch, kind.asked, rows, w2, None, below, lambda: (rows.flatten(0, -2), w2, below)
    )
    return through(first, epilogue, below, z, below.dtype, by_bias)


def _wanted(ctx: Any, kind: Kind) -> list[bool]:
    """Whether there is a gradient by each tensor and this pass goes on to it."""
    wanted = [False] * 5
    for index, (node, _) in zip(kind.tensors, ctx.next_functions, strict=True):
        wanted[index] = ctx.needs_input_grad[index] and _goes_on(node)
    return wanted


def _goes_on(node: Any) -> bool:
    if will_run is None:
        return True
    try:
        return bool(will_run(node))
    except RuntimeError:  # a leaf that was asked for
        return True


def differentiable(
    ctx: Any, how: How, epilogue: str, grad: Any, x: Any, w1: Any, b1: Any, w2: Any, z: Any, h: Any
) -> tuple[Any, ...]:
    """The gradients by operators that have derivatives themselves."""
    by_x, by_w1, by_b1, by_w2, by_b2 = ctx.needs_input_grad[:5]
    x_rows, rows = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    if grad_mode():
        # For torch, what was saved is no function of the operands: it is made again.
        z = autograd.matrices(x_rows, w1.mT, how)
        z = z if b1 is None else z + b1
        h = FUNCTIONS[epilogue](z)
    factor = autograd.matrices(rows, w2, how)
    factor = (
        threshold_backward(factor, z, 0) if epilogue == "relu" else BACKWARD[epilogue](factor, z)
    )
    return (
        autograd.matrices(factor, w1, how).reshape(x.shape) if by_x else None,
        autograd.matrices(factor.mT, x_rows, how) if by_w1 else None,
        factor.sum(0) if by_b1 else None,
        autograd.matrices(rows.mT, h, how) if by_w2 else None,
        rows.sum(0) if by_b2 else None,
    )
