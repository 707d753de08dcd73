"""Forward and backward of a layer, past the operator: one autograd Function over kept launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from ..epilogue import FUNCTIONS
from ..forks import first_call
from ..launch import Launch, Start
from ..launch_cache import BITS, current_device, keep, launch_of
from ..tensors import deterministic, grad_mode, laid, modes, traces, transform
from . import autograd
from .accumulating import added, will_run
from .derivatives import column_sums, through
from .how import How
from .running import arguments, multiply, run_with_aux, start

LAYOUTS = 64
"""Ways of a gradient to lie for which a kind of calls keeps launches."""

threshold_backward = torch.ops.aten.threshold_backward.default
_aten = torch.ops.aten


def _silu_backward(grad: Any, z: Any) -> Any:
    # aten's has no derivative.
    s = z.sigmoid()
    return grad * (s * (1 + z * (1 - s)))


BACKWARD: dict[str, Callable[[Any, Any], Any]] = {
    "gelu": lambda grad, z: _aten.gelu_backward(grad, z),
    "gelu_tanh": lambda grad, z: _aten.gelu_backward(grad, z, approximate="tanh"),
    "silu": _silu_backward,
}
"""Activation -> its derivative in torch, which has derivatives itself. Of these a layer may keep
the pre-activation."""


@dataclass(slots=True)
class Gradients:
    """What the backward pass runs for gradients that lie alike."""

    of_x: Launch | None = None
    of_weight: Launch | None = None
    sums: Start | None = None
    """Of columns, where the gradient went through no activation."""


@dataclass(slots=True)
class Kind:
    """What is the same in all calls of one kind, forward and backward."""

    launch: Launch
    a: tuple[Any, ...]
    b: tuple[Any, ...]
    """Shape, strides and offset of the matrices that x and the weight are in the product: the last
    three arguments of ``laid``."""
    transposed: bool
    x_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Both of the result."""
    dtype: torch.dtype
    """Of x and the weight."""
    flat: bool
    """Whether x is a matrix."""
    lay: tuple[Any, Any]
    """Strides of x and of the stored weight."""
    x_strides: tuple[int, ...]
    weight_strides: tuple[int, ...]
    """Of the gradients by x and by the stored weight."""
    by_columns: tuple[bool, bool]
    """Whether x, the stored weight lies by columns, and so its gradient."""
    accumulate: bool
    epilogue: str | None
    """Of the launch."""
    activation: str
    """What follows the launch and is differentiated here: "" where nothing is."""
    after: Callable[[torch.Tensor], torch.Tensor] | None
    """What follows in torch and torch differentiates."""
    derivative: bool
    """Whether the backend has a kernel for an epilogue's derivative and column sums of such."""
    asked: tuple[Any, ...]
    """out_dtype, compute, backend, kernel."""
    asked_of_gradients: tuple[Any, ...]
    """The same, of the products of the backward pass."""
    gradients: dict[Any, Gradients]
    """By how the gradient lies."""


def result_of(x: Any, weight: Any, bias: Any, kind: Kind) -> torch.Tensor:
    """Run the launch into a new result, on the current device. No derivative is recorded here."""
    launch = kind.launch
    result = out = launch.empty(kind.shape, kind.strides, launch.dtype)
    if launch.by_address and not result.data_ptr() & launch.misaligned:
        start(launch, x, weight, bias, result)
        return result
    if not kind.flat:
        x, out = laid(x, *kind.a), laid(result, launch.shape, launch.strides, 0)
    if kind.transposed:
        weight = laid(weight, *kind.b)
    if result.data_ptr() & launch.misaligned:  # the plan was made for a better aligned result
        with first_call():
            launch = launch_of(arguments(x, weight, bias, kind.epilogue, kind.asked, out))
        kind.launch = launch
    start(launch, x, weight, bias, out)
    return result


def activated(kind: Kind, x: Any, weight: Any, bias: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The activation of the launch's result, and that result: by one kernel that stores both, where
    the launch's does."""
    launch, activation = kind.launch, kind.activation
    aux = "write", activation
    if launch.with_aux.get(aux) is not None or aux not in launch.with_aux:
        result, z = (launch.empty(kind.shape, kind.strides, launch.dtype) for _ in range(2))

        def matrices() -> tuple[Any, ...]:
            both = (laid(t, launch.shape, launch.strides, 0) for t in (z, result))
            return laid(x, *kind.a), laid(weight, *kind.b), *both

        if run_with_aux(launch, *aux, x, weight, bias, z, result, matrices):
            return result, z
    seen = result_of(x, weight, bias, kind)
    return FUNCTIONS[activation](seen), seen


class Layer(torch.autograd.Function):
    """x B + bias, or an activation of it; its backward is the derivative of that, two products and
    the sum of the rows."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, kind: Kind) -> torch.Tensor:
        by_x, by_weight, _, _ = ctx.needs_input_grad
        if kind.activation:
            result, seen = activated(kind, x, weight, bias)
            ctx.save_for_backward(x, weight, seen, bias)
        else:
            result = result_of(x, weight, bias, kind)
            more = (result, None) if kind.epilogue else ()
            ctx.save_for_backward(x if by_weight else None, weight if by_x else None, *more)
        ctx.kept = kind, x.data_ptr(), weight.data_ptr()
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        of_x = of_weight = of_bias = None
        if grad is None:
            return None, None, None, None
        kind, x_start, w_start = ctx.kept
        saved = ctx.saved_tensors
        x, weight, seen, bias = saved if len(saved) == 4 else (*saved, None, None)
        first = kind.launch
        if not is_plain(grad, first.device):
            return *_differentiable(ctx, kind, grad, x, weight, seen, bias), None
        by_x, by_weight, by_bias = _wanted(ctx)
        # Whether a gradient is taken as it lies, matrix or not: kernels read addresses alone.
        whole = first.by_address and kind.derivative
        rows = grad
        if not (kind.flat or (whole and grad.stride() == kind.strides)):
            rows = grad.reshape(first.shape)
        if not (seen is None or kind.flat or (whole and seen.stride() == kind.strides)):
            seen = seen.reshape(first.shape)
        if seen is not None and kind.derivative:
            epilogue = kind.activation or kind.epilogue or ""
            factor, of_bias = through(first, epilogue, rows, seen, kind.dtype, by_bias)
            by_bias = False
        else:
            if seen is not None:
                rows = threshold_backward(rows, seen, 0)
            factor = rows if rows.dtype is kind.dtype else rows.to(kind.dtype)
        key = kept = None
        x_lay, w_lay = kind.lay
        if (x is None or (x.data_ptr() == x_start and x.stride() == x_lay)) and (
            weight is None or (weight.data_ptr() == w_start and weight.stride() == w_lay)
        ):  # else hooks of saved tensors gave others than were saved, or .data is another view
            above = factor.data_ptr()
            key = (
                factor.shape, factor.stride(), above & BITS[first.device >= 0], above == x_start,
                above == w_start, deterministic(),
            )  # fmt: skip
            kept = kind.gradients.get(key)
        if kept is None:
            kept = Gradients()
            if key is not None:
                keep(kind.gradients, key, kept, LAYOUTS)
        if by_x:
            of_x = out = first.empty(kind.x_shape, kind.x_strides, kind.dtype)
            launch = kept.of_x
            if launch is not None and launch.by_address and not out.data_ptr() & launch.misaligned:
                a, b = (weight, factor) if kind.by_columns[0] else (factor, weight)
                start(launch, a, b, None, of_x)
            else:
                a, b = factor, weight if kind.transposed else weight.mT
                if not kind.flat:
                    a, out = a.reshape(first.shape), of_x.view(-1, kind.x_shape[-1])
                if kind.by_columns[0]:
                    a, b, out = b.mT, a.mT, of_x.mT
                kept.of_x = multiply(launch, kind.asked_of_gradients, a, b, None, out)
        if by_weight and (not kind.accumulate or not _accumulated(ctx, kind, factor, x)):
            of_weight = out = first.empty(kind.weight_shape, kind.weight_strides, kind.dtype)
            launch = kept.of_weight
            if launch is not None and launch.by_address and not out.data_ptr() & launch.misaligned:
                a, b = (factor, x) if kind.transposed != kind.by_columns[1] else (x, factor)
                start(launch, a, b, None, of_weight)
            else:
                a, b = factor, x
                if not kind.flat:
                    a, b = a.reshape(first.shape), x.reshape(-1, kind.x_shape[-1])
                a, b = (a.mT, b) if kind.transposed else (b.mT, a)
                if kind.by_columns[1]:
                    a, b, out = b.mT, a.mT, of_weight.mT
                kept.of_weight = multiply(launch, kind.asked_of_gradients, a, b, None, out)
        if by_bias:
            if not kind.derivative:
                of_bias = rows.sum(0)
            elif factor is rows:
                of_bias, kept.sums = column_sums(first, rows, kept.sums)
            else:
                of_bias, _ = column_sums(first, rows)
        return of_x, of_weight, of_bias, None


def _accumulated(ctx: Any, kind: Kind, factor: Any, x: Any) -> bool:
    """Whether the gradient by the weight was added to its ``.grad``."""
    factor, x = factor.reshape(kind.launch.shape), x.reshape(-1, kind.x_shape[-1])
    a, b = (factor.mT, x) if kind.transposed else (x.mT, factor)
    return added(ctx.next_functions[1][0], a, b, *kind.asked[1:3])


apply: Any = super(torch.autograd.Function, Layer).apply
"""torch's C function. What Function.apply does before it concerns transforms of torch.func."""

Layer._backward_cls.apply = Layer.backward
"""The engine calls ``apply`` of the node; torch's own looks up ``backward`` and calls it."""


def _wanted(ctx: Any) -> tuple[bool, bool, bool]:
    """Whether there is a gradient by x, weight and bias, and of two products, whether this pass
    goes on to it: torch.autograd.grad may have asked for the other alone."""
    global _for_weights
    by_x, by_weight, by_bias, _ = ctx.needs_input_grad
    if by_x and by_weight and will_run is not None:
        nodes = ctx.next_functions
        try:
            by_x = will_run(nodes[0][0])
        except RuntimeError:  # a leaf that was asked for
            by_x = True
        if _for_weights < 0 or _for_weights != _pass_number():
            try:
                by_weight = will_run(nodes[1][0])
            except RuntimeError:
                _for_weights = _pass_number()
    return by_x, by_weight, by_bias


_pass_number: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: 0)
_for_weights = -1
"""The last pass that was asked for a weight, which an error tells. That takes as long as a small
product: no weight is asked about further on in such a pass, and all their gradients are made."""


def is_plain(grad: Any, device: int) -> bool:
    """Whether a gradient is a tensor in memory, of the current device, and nobody looks on or
    differentiates again."""
    if (
        traces()  # first: a trace takes none of the others
        or grad_mode()
        or type(grad) is not torch.Tensor
        or modes()
        or transform() is not None
        or forward_ad._current_level >= 0
        or (device >= 0 and device != current_device())
    ):
        return False
    try:
        return grad.data_ptr() != 0 and not grad.is_neg()
    except RuntimeError:
        return False


def _differentiable(
    ctx: Any, kind: Kind, grad: Any, x: Any, weight: Any, seen: Any, bias: Any
) -> Any:
    """The gradients by x, weight and bias, by operators that have derivatives themselves."""
    by_x, by_weight, by_bias = ctx.needs_input_grad[:3] if traces() else _wanted(ctx)
    of_x = of_weight = of_bias = None
    _, compute, backend, _ = kind.asked
    how = How(compute=compute or "", backend=backend)
    if kind.activation:
        if grad_mode():
            # For torch, what was saved is no function of the operands: it is made again.
            rows = x.reshape(-1, x.shape[-1])
            again = how._replace(out_dtype=kind.launch.dtype)
            z = autograd.matrices(rows, weight.mT if kind.transposed else weight, again)
            seen = (z if bias is None else z + bias).reshape(kind.shape)
        grad = BACKWARD[kind.activation](grad, seen)
    elif seen is not None:
        grad = threshold_backward(grad, seen, 0)
    rows = grad.reshape(-1, grad.shape[-1])
    factor = rows.to(kind.dtype)
    if by_x:
        b = weight if kind.transposed else weight.mT
        of_x = autograd.matrices(factor, b, how).reshape(kind.x_shape)
    if by_weight:
        x = x.reshape(-1, x.shape[-1])
        a, b = (factor.mT, x) if kind.transposed else (x.mT, factor)
        if kind.by_columns[1]:
            of_weight = autograd.matrices(b.mT, a.mT, how).mT
        else:
            of_weight = autograd.matrices(a, b, how)
    if by_bias:
        of_bias = rows.sum(0)
    return of_x, of_weight, of_bias
