"""The derivatives of a product: reverse, forward and second order, each again a product.

dA = alpha dY B^T and dB = alpha A^T dY, dC = beta dY, and the bias gets the column sums of dY. relu
is fused into the forward product, and its derivative is read from the result. The other epilogues
need the pre-activation, so with gradients the product gives that, rounded to the result's dtype,
and torch's activation follows, which keeps it for its own derivative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

from ..epilogue import FUNCTIONS
from ..errors import OperandError, UnsupportedError
from ..launch_cache import run_kept
from ..tensors import traces, transform
from . import operator, registered_late, row_sums
from .how import How

_FUSED = ("", "relu")
"""Epilogues whose derivative the result tells."""

_below_autograd = torch._C._AutoDispatchBelowAutograd


def differentiable(*tensors: Any) -> bool:
    """Whether a derivative by one of these operands is asked for, of either mode."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return True
    return forward_ad._current_level >= 0 and any(t is not None and _dual(t) for t in tensors)


def _dual(t: torch.Tensor) -> bool:
    """Whether a tensor carries a tangent; a transform of torch.func does not tell, but it may."""
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        return True
    try:
        return forward_ad.unpack_dual(t).tangent is not None
    except RuntimeError:  # of torch.autograd.functional's vectorize=True: itself a tangent
        return False


def product(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, how: How
) -> torch.Tensor:
    """The product of matrices, with the derivatives that its operands ask for."""
    if traces() or transform() is not None:
        result: torch.Tensor = operator.gemm(a, b, c, bias, scale_a, scale_b, **how._asdict())
        return result
    if not differentiable(a, b, c, bias, scale_a, scale_b):
        return _without_derivative(a, b, c, bias, scale_a, scale_b, how)
    return _with_derivative(Product, a, b, c, bias, scale_a, scale_b, how)


def _with_derivative(
    function: Any, a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, how: How
) -> torch.Tensor:
    check_derivative(a, b, c, bias, scale_a, scale_b)
    if not a.dtype.is_floating_point or a.dtype.itemsize == 1:
        return _without_derivative(a, b, c, bias, scale_a, scale_b, how)
    if how.epilogue in _FUSED:
        return function.apply(a, b, c, bias, how)
    linear = function.apply(a, b, c, bias, how._replace(epilogue=""))
    return FUNCTIONS[how.epilogue](linear)


def check_derivative(a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any) -> None:
    """Raise UnsupportedError where a derivative is asked for that there is not: of 8 bits."""
    operands = {"A": a, "B": b, "C": c, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    if a.dtype.itemsize > 1 and scale_a is None and scale_b is None:
        return
    for name, operand in operands.items():
        if differentiable(operand):
            raise UnsupportedError(
                f"{name} requires grad and A and B are {str(a.dtype).removeprefix('torch.')}: a "
                "product of 8-bit operands has no gradient: call it under torch.no_grad(), pass "
                ".detach(), or convert A and B with .to(torch.bfloat16)"
            )


def _without_derivative(*operands: Any) -> torch.Tensor:
    """By the launch that is kept for such operands; through torch where they are not plain."""
    tensors, how = operands[:-1], operands[-1]
    arguments = operator.arguments_of(*operands)
    if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in tensors):
        kept = run_kept(arguments)
        if kept is not None:
            return kept
    registered_late.look()
    with _below_autograd():
        return operator.gemm(*tensors, **how._asdict())


class Product(torch.autograd.Function):
    """alpha A B + beta C + bias, or its relu; matrices, batches of which broadcast."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, c: Any, bias: Any, how: How) -> torch.Tensor:
        # One with setup_context costs an inspect.signature at each call.
        result = _without_derivative(a, b, c, bias, None, None, how)
        Product.remember(ctx, (a, b, c, bias, how), result)
        return result

    @staticmethod
    def remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what the derivatives read."""
        a, b, c, bias, how = inputs
        ctx.how = how
        ctx.shapes = tuple(None if t is None else t.shape for t in (a, b, c, bias))
        ctx.by_columns = by_columns(a), by_columns(b)
        ctx.set_materialize_grads(False)
        result = output if how.epilogue else None
        needs_a, needs_b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, result)
        ctx.save_for_forward(a, b, result)
        ctx.dtypes = a.dtype, output.dtype

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return (None,) * 5
        a, b, result = ctx.saved_tensors
        needs = ctx.needs_input_grad
        how = ctx.how
        if how.epilogue:
            grad = torch.ops.aten.threshold_backward(grad, result, 0)
        factor = grad.to(ctx.dtypes[0])
        down = how.of_gradient(how.alpha)
        by_a, by_b, by_c, by_bias = (None,) * 4
        if needs[0]:
            by_a = _gradient(factor, b.mT, down, ctx.shapes[0], ctx.by_columns[0])
        if needs[1]:
            shared = len(ctx.shapes[1]) == 2 and factor.dim() > 2 and a.dim() == factor.dim()
            if shared:  # one product over all rows of the batch
                rows = math.prod(a.shape[:-1])
                a, factor = a.reshape(rows, a.shape[-1]), factor.reshape(rows, factor.shape[-1])
            if (
                needs[3] and ctx.by_columns[1] and factor.dtype is grad.dtype
                and row_sums.taken(factor.mT, a, down)
            ):  # fmt: skip
                by_b, by_bias = row_sums.both(factor.mT, a, down)
                by_b = by_b.mT
            else:
                by_b = _gradient(a.mT, factor, down, ctx.shapes[1], ctx.by_columns[1])
        if needs[2]:
            by_c = (
                grad if how.beta == 1 else grad * how.beta if how.beta else torch.zeros_like(grad)
            )
            by_c = by_c.sum_to_size(ctx.shapes[2])
        if needs[3] and by_bias is None:
            by_bias = grad.sum_to_size(ctx.shapes[3])
        return by_a, by_b, by_c, by_bias, None

    @staticmethod
    def jvp(ctx: Any, by_a: Any, by_b: Any, by_c: Any, by_bias: Any, _: Any) -> Any:
        a, b, result = ctx.saved_for_forward
        up = ctx.how.of_gradient(ctx.how.alpha)._replace(out_dtype=ctx.dtypes[1])
        tangent = None
        if by_a is not None:
            tangent = product(by_a, b, None, None, None, None, up)
        if by_b is not None:
            beta = 0.0 if tangent is None else 1.0
            tangent = product(a, by_b, tangent, None, None, None, up._replace(beta=beta))
        if by_c is not None and ctx.how.beta:
            tangent = _sum(tangent, by_c * ctx.how.beta)
        if by_bias is not None:
            tangent = _sum(tangent, by_bias)
        if tangent is None:
            return None
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        tangent = tangent.expand(*batch, a.shape[-2], b.shape[-1])
        if result is not None:
            tangent = torch.ops.aten.threshold_backward(tangent, result, 0)
        return tangent


@contextmanager
def _levels_below() -> Iterator[None]:
    """Within it, operators pass this level of torch.func's transforms and are seen by those below.

    torch turns derivatives off within a Function, of all levels.
    """
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), _below_autograd():
        yield


class _InTransform(torch.autograd.function._SingleLevelFunction):
    """``Product`` at one level of torch.func's transforms, which the dispatcher takes in turn."""

    @staticmethod
    def forward(a: Any, b: Any, c: Any, bias: Any, how: How) -> torch.Tensor:
        with _levels_below():
            result: torch.Tensor = operator.gemm(a, b, c, bias, None, None, **how._asdict())
        return result

    setup_context = Product.remember
    backward = Product.backward

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        with _levels_below():
            return Product.jvp(ctx, *tangents)


def matrices(a: Any, b: Any, how: How) -> torch.Tensor:
    """A B, with the derivatives that it asks for."""
    return product(a, b, None, None, None, None, how)


def by_columns(t: torch.Tensor) -> bool:
    """Whether a matrix lies by columns: a weight [N, K] that is read as its transpose, say."""
    return t.dim() == 2 and t.stride(0) == 1 != t.stride(1)


def _gradient(a: Any, b: Any, how: How, shape: Any, columns: bool) -> torch.Tensor:
    """A B, in the shape and the order of the operand that it is the gradient of."""
    if columns and a.dim() == b.dim() == 2:
        return matrices(b.mT, a.mT, how).mT
    return matrices(a, b, how).sum_to_size(shape)


def _sum(x: Any, y: Any) -> Any:
    return y if x is None else x + y


def _gemm_with_derivative(
    keyset: Any, a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, **how: Any
) -> torch.Tensor:
    tensors = a, b, c, bias, scale_a, scale_b
    if not differentiable(*tensors):
        if a.dim() > 1 and b.dim() > 1:
            kept = run_kept(operator.arguments_of(*tensors, How(**how)))
            if kept is not None:
                return kept
        result: torch.Tensor = operator.below_autograd(operator.gemm, keyset, *tensors, **how)
        return result
    asked = How(**how)
    if transform() is None:
        return _with_derivative(Product, a, b, c, bias, scale_a, scale_b, asked)
    from torch._functorch.utils import enable_single_level_autograd_function

    with enable_single_level_autograd_function():
        return _with_derivative(_InTransform, a, b, c, bias, scale_a, scale_b, asked)


def _gemm_out_without_derivative(keyset: Any, *tensors: Any, out: Any, **how: Any) -> None:
    check_out(out, *tensors)
    operator.below_autograd(operator.gemm_out, keyset, *tensors, out=out, **how)


def check_out(out: Any, *tensors: Any) -> None:
    """Raise OperandError where a derivative is asked for of what ``out`` is to hold."""
    names = ("out", "A", "B", "C", "bias", "scale_a", "scale_b")
    for name, operand in zip(names, (out, *tensors), strict=True):
        if differentiable(operand):
            raise OperandError(
                "gemm(): functions with out=... arguments don't support automatic "
                f"differentiation, but {name} requires grad: leave out= away, or call it under "
                "torch.no_grad()"
            )


def _gemm_with_sums(
    keyset: Any, a: Any, b: Any, *, compute: str = "", backend: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a derivative is asked for, of what a trace made of a backward pass: two operators."""
    if differentiable(a, b):
        return matrices(a, b, How(compute=compute, backend=backend)), a.sum(1)
    pair: tuple[torch.Tensor, torch.Tensor] = operator.below_autograd(
        row_sums.gemm_with_sums, keyset, a, b, compute=compute, backend=backend
    )
    return pair


operator.library.impl("gemm_with_sums", _gemm_with_sums, "Autograd", with_keyset=True)
operator.library.impl("gemm", _gemm_with_derivative, "Autograd", with_keyset=True)
operator.library.impl("gemm_out", _gemm_out_without_derivative, "Autograd", with_keyset=True)
