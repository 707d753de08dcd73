"""Forward and backward of a layer, past the operator: one autograd Function over kept launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from ..epilogue import FUNCTIONS
from ..forks import first_call
from ..launch import Launch
from ..launch_cache import BITS, current_device, keep, launch_of
from ..tensors import deterministic, grad_mode, laid, modes, traces, transform
from . import autograd
from .accumulating import added, will_run
from .derivatives import column_sums, through
from .how import How

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
    gradients: dict[Any, list[Launch | None]]
    """The products of the backward pass, by x and by the weight, by how their operands lie."""


def arguments(
    a: Any, b: Any, bias: Any, epilogue: Any, asked: tuple[Any, ...], out: Any = None
) -> tuple[Any, ...]:
    """Of ``gemm``, in the order of launch_cache.key_of."""
    out_dtype, compute, backend, kernel = asked
    return (
        a, b, None, 1.0, 0.0, bias, epilogue, out, out_dtype, compute, None, None, None, backend,
        kernel,
    )  # fmt: skip


def result_of(kind: Kind, x: Any, weight: Any, bias: Any) -> torch.Tensor:
    """Run the launch into a new result, on the current device. No derivative is recorded here."""
    launch = kind.launch
    result = out = launch.empty(kind.shape, kind.strides, launch.dtype)
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
    if launch.with_aux.get(("write", activation), launch) is not None:
        a, b = laid(x, *kind.a), laid(weight, *kind.b)
        both = [launch.empty(kind.shape, kind.strides, launch.dtype) for _ in range(2)]
        result, z = (laid(t, launch.shape, launch.strides, 0) for t in both)
        if run_with_aux(launch, "write", activation, a, b, bias, z, result):
            return both[0], both[1]
    seen = result_of(kind, x, weight, bias)
    return FUNCTIONS[activation](seen), seen


def run_with_aux(
    launch: Launch, aux: str, epilogue: str, a: Any, b: Any, bias: Any, z: Any, out: Any
) -> bool:
    """Run a launch's kernel with ``Fusion.aux``; False where it has none, and nothing was run."""
    run, known = launch.with_aux.get((aux, epilogue)), (aux, epilogue) in launch.with_aux
    if not known or (z.data_ptr() | out.data_ptr()) & launch.misaligned:
        with first_call():
            run = launch.start_with_aux(aux, epilogue, a, b, bias, z, out)
    if run is None:
        return False
    try:
        run(a, b, out, z, bias, None, None)
    except RuntimeError as error:
        raise launch.explained(error) from error
    return True


def start(launch: Launch, a: Any, b: Any, bias: Any, out: Any) -> None:
    """Run a launch of a plain product and a bias, as launch_cache.run_launch does."""
    run = launch.start
    if run is None or (launch.device >= 0 and launch.device != current_device()):
        launch.write(a, b, None, bias, None, None, out)
        return
    try:
        run(a, b, out, None, bias, None, None)
    except RuntimeError as error:
        raise launch.explained(error) from error


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
            result = result_of(kind, x, weight, bias)
            more = (result, None) if kind.epilogue else ()
            ctx.save_for_backward(x if by_weight else None, weight if by_x else None, *more)
        ctx.kept = kind, x.data_ptr(), weight.data_ptr(), x.stride(), weight.stride()
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        of_x = of_weight = of_bias = None
        if grad is None:
            return None, None, None, None
        kind, x_start, w_start, x_lay, w_lay = ctx.kept
        saved = ctx.saved_tensors
        x, weight, seen, bias = saved if len(saved) == 4 else (*saved, None, None)
        if not is_plain(grad, kind.launch.device):
            return *_differentiable(ctx, kind, grad, x, weight, seen, bias), None
        by_x, by_weight, by_bias = _wanted(ctx)
        first, asked = kind.launch, (None, *kind.asked[1:3], None)
        rows = grad if kind.flat else grad.reshape(first.shape)
        if seen is not None and kind.derivative:
            seen = seen if kind.flat else seen.reshape(first.shape)
            epilogue = kind.activation or kind.epilogue or ""
            factor, of_bias = through(first, epilogue, rows, seen, kind.dtype, by_bias)
            by_bias = False
        else:
            if seen is not None:
                rows = threshold_backward(rows, seen if kind.flat else seen.reshape(first.shape), 0)
            factor = rows if rows.dtype is kind.dtype else rows.to(kind.dtype)
        above, bits = factor.data_ptr(), BITS[first.device >= 0]
        launches: list[Launch | None] = [None, None]
        if (x is None or (x.data_ptr() == x_start and x.stride() == x_lay)) and (
            weight is None or (weight.data_ptr() == w_start and weight.stride() == w_lay)
        ):  # else hooks of saved tensors gave others than were saved, or .data is another view
            key = (
                factor.shape, factor.stride(), above & bits, above == x_start, above == w_start,
                deterministic(),
            )  # fmt: skip
            kept = kind.gradients.get(key)
            if kept is None:
                keep(kind.gradients, key, launches, LAYOUTS)
            else:
                launches = kept
        if by_x:
            of_x = out = first.empty(kind.x_shape, kind.x_strides, kind.dtype)
            b = weight if kind.transposed else weight.mT
            if kind.by_columns[0]:
                launches[0] = multiply(launches[0], asked, b.mT, factor.mT, None, of_x.mT)
            else:
                out = of_x if kind.flat else of_x.view(-1, b.shape[1])
                launches[0] = multiply(launches[0], asked, factor, b, None, out)
        if by_weight:
            if not kind.flat:
                x = x.reshape(-1, kind.x_shape[-1])
            a, b = (factor.mT, x) if kind.transposed else (x.mT, factor)
            leaf = ctx.next_functions[1][0] if kind.accumulate else None
            if leaf is None or not added(leaf, a, b, *kind.asked[1:3]):
                of_weight = first.empty(kind.weight_shape, kind.weight_strides, kind.dtype)
                if kind.by_columns[1]:
                    launches[1] = multiply(launches[1], asked, b.mT, a.mT, None, of_weight.mT)
                else:
                    launches[1] = multiply(launches[1], asked, a, b, None, of_weight)
        if by_bias:
            of_bias = column_sums(first, rows) if kind.derivative else rows.sum(0)
        return of_x, of_weight, of_bias, None


apply: Any = super(torch.autograd.Function, Layer).apply
"""torch's C function. What Function.apply does before it concerns transforms of torch.func."""

Layer._backward_cls.apply = Layer.backward
"""The engine calls ``apply`` of the node; torch's own looks up ``backward`` and calls it."""


def _wanted(ctx: Any) -> list[bool]:
    """Whether there is a gradient by x, weight and bias, and of two products, whether this pass
    goes on to it: torch.autograd.grad may have asked for the other alone."""
    global _for_weights
    wanted: list[bool] = [*ctx.needs_input_grad[:3]]
    if wanted[0] and wanted[1] and will_run is not None:
        (of_x, _), (of_weight, _), *_ = ctx.next_functions
        try:
            wanted[0] = will_run(of_x)
        except RuntimeError:  # a leaf that was asked for
            wanted[0] = True
        if _for_weights < 0 or _for_weights != _pass_number():
            try:
                wanted[1] = will_run(of_weight)
            except RuntimeError:
                _for_weights = _pass_number()
    return wanted


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


def multiply(
    launch: Launch | None, asked: Any, a: Any, b: Any, bias: Any, out: Any, epilogue: Any = None
) -> Launch:
    """out = epilogue(A B + bias), of matrices of which none requires a gradient now, by the launch
    for such.

    Returns it, or another where there was none or its plan was made for a better aligned result.

    Args:
        asked: out_dtype, compute, backend, kernel.
    """
    if launch is None or out.data_ptr() & launch.misaligned:
        with first_call():
            launch = launch_of(arguments(a, b, bias, epilogue, asked, out))
    start(launch, a, b, bias, out)
    return launch
