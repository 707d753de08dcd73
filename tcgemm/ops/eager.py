"""The short way of a layer: forward and backward of plain tensors, straight to the kept launches.

What a layer multiplies is [..., K] by one matrix, with a bias and an activation. Where nobody but
autograd looks on, one Function holds both ways: its forward runs the launch that is kept for such
operands, its backward those of the two gradients. All else, and a backward pass that is to be
differentiated again, takes the way of ``autograd``, which every derivative and transform follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from ..dispatch import default_backend
from ..epilogue import FUNCTIONS
from ..forks import first_call
from ..launch import Launch
from ..launch_cache import ALIGNED, OF_CPU, current_device, forgotten_too, launch_of
from . import autocast, autograd
from .accumulating import added
from .how import How

MOST = 4096
"""Kinds of products remembered."""

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))

_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
_jit_trace = torch._C._get_tracing_state
_autocast = getattr(torch._C, "_is_any_autocast_enabled", autocast.enabled)
_compiles = torch.compiler.is_dynamo_compiling

_grad = torch.is_grad_enabled
_deterministic = torch._C._get_deterministic_algorithms
_threshold = torch.ops.aten.threshold_backward.default


@dataclass(slots=True)
class Kind:
    """What is the same in all calls of one kind, forward and backward."""

    launch: Launch
    transposed: bool
    x_shape: torch.Size
    weight_shape: torch.Size
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Both of the result."""
    dtype: torch.dtype
    """Of x and the weight."""
    flat: bool
    """Whether x is a matrix."""
    rows: bool
    """Whether x has its elements one after the other, without gaps."""
    by_columns: tuple[bool, bool]
    """Whether x, the stored weight lies by columns, and so its gradient."""
    epilogue: str | None
    asked: tuple[Any, ...]
    """out_dtype, compute, backend, kernel."""
    gradients: dict[Any, Launch]
    """The products of the backward pass, by how their operands lie."""


_kinds: dict[Any, Kind] = {}
forgotten_too.append(_kinds)


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
    if (
        type(x) not in _PLAIN
        or type(weight) not in _PLAIN
        or _modes()
        or _transform() is not None
        or forward_ad._current_level >= 0
        or _jit_trace() is not None
    ):
        return None
    if _autocast():
        if bias is not None and type(bias) not in _PLAIN:
            return None
        return autocast.without(
            lambda x, weight, bias, compute: product(
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
    bits = ALIGNED if device >= 0 else OF_CPU
    differentiated = x.requires_grad or weight.requires_grad
    if bias_start is not None:
        if (
            type(bias) not in _PLAIN
            or bias_start in (0, w_start, x_start)  # a launch may tell operands apart by address
            or bias.is_neg()
        ):
            return None
        of_bias = bias.shape, bias.stride(), bias.dtype, bias.get_device(), bias_start & bits
        differentiated = differentiated or bias.requires_grad
    after = None
    if differentiated:
        differentiated = _grad()
        if differentiated and epilogue and epilogue != "relu":
            after, epilogue = FUNCTIONS.get(epilogue), None
            if after is None:
                return None
    key = (
        x.shape, weight.shape, x.stride(), weight.stride(), x.dtype, weight.dtype, device,
        weight.get_device(), x_start & bits, w_start & bits, of_bias, transposed, epilogue,
        out_dtype, compute, backend or default_backend(), kernel, _deterministic(),
    )  # fmt: skip
    kind = _kinds.get(key)
    if kind is None:
        kind = _first(x, weight, bias, *key[11:-1])
        if kind is None:
            return None
        if len(_kinds) >= MOST:
            _kinds.pop(next(iter(_kinds)), None)
        _kinds[key] = kind
    if not differentiated:
        return _forward(kind, x, weight, bias)
    result: torch.Tensor = _apply(x, weight, bias, kind, accumulate)
    return result if after is None else after(result)


def _first(
    x: Any, weight: Any, bias: Any, transposed: bool, epilogue: Any, *asked: Any
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
        launch = launch_of(
            _arguments(rows, weight.mT if transposed else weight, bias, epilogue, asked)
        )
    if launch.start is None:
        return None
    shape = (*x.shape[:-1], N)
    strides = torch.empty(shape, device="meta").stride()
    return Kind(
        launch, transposed, x.shape, weight.shape, shape, strides, x.dtype, x.dim() == 2,
        x.is_contiguous(), (_by_columns(x), _by_columns(weight)), epilogue, asked, {},
    )  # fmt: skip


def _by_columns(t: Any) -> bool:
    return bool(t.dim() == 2 and t.stride(0) == 1 != t.stride(1))


def _arguments(
    a: Any, b: Any, bias: Any, epilogue: Any, asked: tuple[Any, ...], out: Any = None
) -> tuple[Any, ...]:
    """Of ``gemm``, in the order of launch_cache.key_of."""
    out_dtype, compute, backend, kernel = asked
    return (
        a, b, None, 1.0, 0.0, bias, epilogue, out, out_dtype, compute, None, None, None, backend,
        kernel,
    )  # fmt: skip


def _forward(kind: Kind, x: Any, weight: Any, bias: Any) -> torch.Tensor:
    """Run the launch into a new result. No derivative is recorded here."""
    launch = kind.launch
    same = launch.dtype is kind.dtype
    result: torch.Tensor = (
        x.new_empty_strided(kind.shape, kind.strides)
        if same
        else x.new_empty_strided(kind.shape, kind.strides, dtype=launch.dtype)
    )
    out = result
    if not kind.flat:
        x, out = x.view(-1, x.shape[-1]), result.view(launch.shape)
    if kind.transposed:
        weight = weight.mT
    if result.data_ptr() & launch.misaligned:  # the plan was made for a better aligned result
        with first_call():
            launch = launch_of(_arguments(x, weight, bias, kind.epilogue, kind.asked, out))
        kind.launch = launch
    start(launch, x, weight, bias, out)
    return result


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
    """x B + bias, or its relu; its backward is two products and the sum of the rows."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, kind: Kind, accumulate: bool
    ) -> torch.Tensor:
        result = _forward(kind, x, weight, bias)
        by_x, by_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(
            x if by_weight else None, weight if by_x else None, result if kind.epilogue else None
        )
        ctx.kind, ctx.accumulate = kind, accumulate
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        by_x, by_weight, by_bias, *_ = ctx.needs_input_grad
        of_x = of_weight = of_bias = None
        if grad is None:
            return None, None, None, None, None
        kind = ctx.kind
        x, weight, result = ctx.saved_tensors
        if not _is_plain(grad):
            return *_differentiable(ctx, kind, grad, x, weight, result), None, None
        if result is not None:
            grad = _threshold(grad, result, 0)
        rows = grad if kind.flat else grad.reshape(kind.launch.shape)
        factor = rows if rows.dtype is kind.dtype else rows.to(kind.dtype)
        if by_x:
            b = weight if kind.transposed else weight.mT
            if kind.by_columns[0]:
                of_x = factor.new_empty(kind.x_shape[::-1])
                _multiply(kind, b.mT, factor.mT, of_x)
                of_x = of_x.mT
            else:
                like = by_weight and kind.rows
                of_x = torch.empty_like(x) if like else factor.new_empty(kind.x_shape)
                _multiply(kind, factor, b, of_x if kind.flat else of_x.view(-1, b.shape[1]))
        if by_weight:
            if not kind.flat:
                x = x.reshape(-1, kind.x_shape[-1])
            a, b = (factor.mT, x) if kind.transposed else (x.mT, factor)
            leaf = ctx.next_functions[1][0] if ctx.accumulate else None
            if leaf is not None and added(leaf, a, b, *kind.asked[1:3]):
                pass
            elif kind.by_columns[1]:
                of_weight = factor.new_empty(kind.weight_shape[::-1])
                _multiply(kind, b.mT, a.mT, of_weight)
                of_weight = of_weight.mT
            else:
                of_weight = factor.new_empty(kind.weight_shape)
                _multiply(kind, a, b, of_weight)
        if by_bias:
            of_bias = rows.sum(0)
        return of_x, of_weight, of_bias, None, None


_apply: Any = super(torch.autograd.Function, Layer).apply
"""torch's C function. What Function.apply does before it concerns transforms of torch.func."""


def _is_plain(grad: Any) -> bool:
    """Whether a gradient is a tensor in memory, and nobody looks on or differentiates again."""
    if (
        _grad()
        or type(grad) is not torch.Tensor
        or _modes()
        or _transform() is not None
        or forward_ad._current_level >= 0
        or _compiles()
    ):
        return False
    try:
        return bool(grad.data_ptr()) and not grad.is_neg()
    except RuntimeError:
        return False


def _differentiable(ctx: Any, kind: Kind, grad: Any, x: Any, weight: Any, result: Any) -> Any:
    """The gradients by x, weight and bias, by products that have derivatives themselves."""
    by_x, by_weight, by_bias, *_ = ctx.needs_input_grad
    of_x = of_weight = of_bias = None
    if result is not None:
        grad = torch.ops.aten.threshold_backward(grad, result, 0)
    _, compute, backend, _ = kind.asked
    how = How(compute=compute or "", backend=backend)
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


def _multiply(kind: Kind, a: Any, b: Any, out: Any) -> None:
    """out = A B, of matrices of which none requires a gradient now."""
    a_start, b_start = a.data_ptr(), b.data_ptr()
    device = b.get_device()
    bits = ALIGNED if device >= 0 else OF_CPU
    key = (  # hooks of saved tensors may give others than were saved
        a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, device,
        a_start & bits, b_start & bits, a_start == b_start, _deterministic(),
    )  # fmt: skip
    launch = kind.gradients.get(key)
    if launch is None or out.data_ptr() & launch.misaligned:
        asked = None, *kind.asked[1:3], None
        with first_call():
            launch = kind.gradients[key] = launch_of(_arguments(a, b, None, None, asked, out))
    start(launch, a, b, None, out)
