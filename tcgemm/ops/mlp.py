"""Two layers as one autograd Function, whose backward pass knows what precedes its second product.

    H = f(X W1^T + b1),  Y = H W2^T + b2

The gradient by H is a product, dY W2, and that by the pre-activation Z is it times f'(Z): where the
product's kernel can (Fusion.aux), it stores the second. Of two layers it could not: H may have been
read by others as well, for all that autograd tells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from ..dispatch import default_backend
from ..epilogue import FUNCTIONS
from ..launch import Launch
from ..launch_cache import current_device, launch_of
from ..tensors import PLAIN, grad_mode, jit_trace, modes, transform
from . import autocast, autograd
from .accumulating import will_run
from .derivatives import column_sums, has_derivative, through
from .how import How
from .layer import BACKWARD, arguments, is_plain, run_with_aux, start

_threshold = torch.ops.aten.threshold_backward.default


class Asked(NamedTuple):
    """What is asked besides the tensors, and the first product's launch."""

    epilogue: str
    compute: str | None
    backend: str
    launch: Launch


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
    given = [t for t in (x, w1, b1, w2, b2) if t is not None]
    if (
        any(type(t) not in PLAIN for t in given)
        or modes()
        or transform() is not None
        or forward_ad._current_level >= 0
        or jit_trace() is not None
        or autocast.enabled()
        or not (grad_mode() and any(t.requires_grad for t in given))
        or not (epilogue == "relu" or epilogue in BACKWARD)
        or not _fit(x, w1, b1, w2, b2)
    ):
        return None
    try:
        addresses = {t.data_ptr() for t in given}
        if 0 in addresses or len(addresses) < len(given) or any(t.is_neg() for t in given):
            return None
        rows = x.detach().view(-1, x.shape[-1])
    except RuntimeError:  # no memory, or rows that only a copy puts behind each other
        return None
    if x.is_cuda and x.get_device() != current_device():
        with torch.cuda.device(x.device):
            return product(x, w1, b1, w2, b2, epilogue, compute, backend)
    of_all = None, compute, backend or default_backend(), None
    with torch.no_grad():
        fused = epilogue if epilogue == "relu" else None
        launch = launch_of(arguments(rows, w1.mT, b1, fused, of_all))
    if launch.start is None or not has_derivative(launch, x.dtype):
        return None
    result: torch.Tensor = Mlp.apply(x, w1, b1, w2, b2, Asked(epilogue, *of_all[1:3], launch))
    return result


def _fit(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> bool:
    """Whether shapes, dtypes and devices are those of two layers; the layers say what is wrong."""
    if x.dim() < 2 or w1.dim() != 2 or w2.dim() != 2:
        return False
    shapes = x.shape[-1] == w1.shape[1] and w2.shape[1] == w1.shape[0]
    vectors = all(b is None or b.shape == w.shape[:1] for w, b in ((w1, b1), (w2, b2)))
    alike = all(
        t is None or (t.dtype is x.dtype and t.device == x.device) for t in (w1, b1, w2, b2)
    )
    return shapes and vectors and alike


class Mlp(torch.autograd.Function):
    """f(x W1^T + b1) W2^T + b2."""

    @staticmethod
    def forward(ctx: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, asked: Asked) -> torch.Tensor:
        launch, epilogue = asked.launch, asked.epilogue
        rows, w = x.view(-1, x.shape[-1]), w1.mT
        h, z = (launch.empty(launch.shape, launch.strides, launch.dtype) for _ in range(2))
        if epilogue == "relu" or not run_with_aux(launch, "write", epilogue, rows, w, b1, z, h):
            z = _multiply(rows, w, b1, asked, epilogue if epilogue == "relu" else None)
            h = z if epilogue == "relu" else FUNCTIONS[epilogue](z)
        y = x.new_empty(*x.shape[:-1], w2.shape[0])
        _multiply(h, w2.mT, b2, asked, out=y.view(-1, w2.shape[0]))
        ctx.asked = asked
        ctx.tensors = [i for i, t in enumerate((x, w1, b1, w2, b2)) if t is not None]
        ctx.save_for_backward(x, w1, b1, w2, z, h)
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return (None,) * 6
        asked: Asked = ctx.asked
        x, w1, b1, w2, z, h = ctx.saved_tensors
        if not is_plain(grad, asked.launch.device):
            return *_differentiable(ctx, grad, x, w1, b1, w2, z, h), None
        by_x, by_w1, by_b1, by_w2, by_b2 = _wanted(ctx)
        of_x = of_w1 = of_b1 = of_w2 = of_b2 = None
        x_rows, rows = x.reshape(-1, x.shape[-1]), grad.reshape(-1, w2.shape[0])
        if by_w2:
            of_w2 = _multiply(rows.mT, h, None, asked)
        if by_b2:
            of_b2 = column_sums(asked.launch, rows)
        if by_x or by_w1 or by_b1:
            factor, of_b1 = _through(asked, rows, w2, z, by_b1)
            if by_w1:
                of_w1 = _multiply(factor.mT, x_rows, None, asked)
            if by_x:
                of_x = _multiply(factor, w1, None, asked).view(x.shape)
        return of_x, of_w1, of_b1, of_w2, of_b2, None


def _multiply(
    a: Any, b: Any, bias: Any, asked: Asked, epilogue: str | None = None, out: Any = None
) -> torch.Tensor:
    """epilogue(A B + bias), into ``out`` or a new matrix."""
    of_all = None, asked.compute, asked.backend, None
    if out is None:
        out = a.new_empty(a.shape[0], b.shape[1])
    launch = launch_of(arguments(a, b, bias, epilogue, of_all, out))
    start(launch, a, b, bias, out)
    return out


def _through(
    asked: Asked, rows: Any, w2: Any, z: Any, by_bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """dY W2 times the derivative at Z, and its column sums if ``by_bias``."""
    first = asked.launch
    launch = launch_of(arguments(rows, w2, None, None, (None, asked.compute, asked.backend, None)))
    below = launch.empty(launch.shape, launch.strides, launch.dtype)
    if z.stride() == launch.strides and run_with_aux(
        launch, "read", asked.epilogue, rows, w2, None, z, below
    ):
        return below, column_sums(first, below) if by_bias else None
    start(launch, rows, w2, None, below)
    return through(first, asked.epilogue, below, z, below.dtype, by_bias)


def _wanted(ctx: Any) -> list[bool]:
    """Whether there is a gradient by each tensor and this pass goes on to it."""
    nodes = iter(ctx.next_functions)  # of those that are tensors
    wanted = [False] * 5
    for index in ctx.tensors:
        node, _ = next(nodes)
        wanted[index] = ctx.needs_input_grad[index] and _goes_on(node)
    return wanted


def _goes_on(node: Any) -> bool:
    if will_run is None or node is None:
        return True
    try:
        return bool(will_run(node))
    except RuntimeError:  # a leaf that was asked for
        return True


def _differentiable(
    ctx: Any, grad: Any, x: Any, w1: Any, b1: Any, w2: Any, z: Any, h: Any
) -> tuple[Any, ...]:
    """The gradients by operators that have derivatives themselves."""
    by_x, by_w1, by_b1, by_w2, by_b2 = ctx.needs_input_grad[:5]
    epilogue, compute, backend, _ = ctx.asked
    how = How(compute=compute or "", backend=backend)
    x_rows, rows = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    if grad_mode():
        # For torch, what was saved is no function of the operands: it is made again.
        z = autograd.matrices(x_rows, w1.mT, how)
        z = z if b1 is None else z + b1
        h = FUNCTIONS[epilogue](z)
    factor = autograd.matrices(rows, w2, how)
    factor = _threshold(factor, z, 0) if epilogue == "relu" else BACKWARD[epilogue](factor, z)
    return (
        autograd.matrices(factor, w1, how).reshape(x.shape) if by_x else None,
        autograd.matrices(factor.mT, x_rows, how) if by_w1 else None,
        factor.sum(0) if by_b1 else None,
        autograd.matrices(rows.mT, h, how) if by_w2 else None,
        rows.sum(0) if by_b2 else None,
    )
