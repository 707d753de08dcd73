"""From a call of ``gemm`` to the operators: which calls torch has to see, and how they are put."""

from __future__ import annotations

from typing import Any

import torch

from ..batching import with_vectors
from ..errors import UnsupportedError
from ..operands import check_factors, check_scale, dtype_name, modulo_32_bits
from ..tensors import check_kind, has_no_memory, modes, transform
from . import autocast, autograd, eager, operator, registered_late
from .how import How

_TENSORS = (0, 1, 2, 5, 7, 10, 11)
"""Where key_of's order has A, B, C, bias, out and the scales."""


def seen_by_torch(arguments: tuple[Any, ...]) -> bool:
    """Whether torch has to see a call with these arguments, in the order of launch_cache.key_of.

    It has where somebody asks for a derivative, where a dispatch mode, a transform or autocast is
    active, and where a tensor has no memory of its own (fake, functional, a subclass that wraps
    another one).
    """
    if modes() or autocast.enabled():
        return all(isinstance(arguments[i], torch.Tensor) for i in (0, 1))
    return any(
        isinstance(t, torch.Tensor)
        and (has_no_memory(t) or (t.layout is torch.strided and autograd.differentiable(t)))
        for t in (arguments[i] for i in _TENSORS)
    )


def multiply(arguments: tuple[Any, ...]) -> torch.Tensor:
    """The call as an operator of torch: with its derivatives, seen by modes and transforms.

    Args:
        arguments: of ``gemm``, in the order of launch_cache.key_of.
    """
    (a, b, c, alpha, beta, bias, epilogue, out, out_dtype, compute, scale_a, scale_b, mma_shape,
     backend, kernel) = arguments  # fmt: skip
    factors = type(alpha) is type(beta) is float and alpha == 1.0 and beta == 0.0
    if factors and None is c is out is scale_a is scale_b is mma_shape and b.ndim == 2:
        result = eager.product(a, b, bias, False, epilogue, out_dtype, compute, backend, kernel)
        if result is not None:
            return result
    tensors = {"A": a, "B": b, "C": c, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    for name, operand in {**tensors, "out": out}.items():
        scale = name.startswith("scale") and not isinstance(operand, torch.Tensor)
        if operand is not None and not scale:
            check_kind(name, operand)
    registered_late.look()
    alpha, beta = check_factors(dtype_name(a.dtype), alpha, beta, epilogue)
    how = How(
        alpha, beta, epilogue or "", out_dtype, compute or "", mma_shape or "", backend,
        kernel or "",
    )  # fmt: skip
    if out is not None and transform() is not None:
        raise UnsupportedError(
            "out= is given within a transform of torch.func (vmap, grad, jvp, ...), in which "
            "nothing is written in place: leave out= away"
        )
    return _put(a, b, c, bias, scale_a, scale_b, how, out, _operator)


def traced(
    a: Any,
    b: Any,
    c: Any = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    bias: Any = None,
    epilogue: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    compute: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    mma_shape: Any = None,
    backend: Any = None,
    kernel: Any = None,
) -> torch.Tensor:
    """The call in a graph of torch.compile: one node, whose kernel is chosen when it runs."""
    check_kind("A", a)
    check_kind("B", b)
    integer = not a.dtype.is_floating_point
    alpha = _traced_factor("alpha", alpha, integer)
    beta = _traced_factor("beta", beta, integer)
    how = How(
        alpha, beta, epilogue or "", out_dtype, compute or "", mma_shape or "", backend or "",
        kernel or "",
    )  # fmt: skip
    return _put(a, b, c, bias, scale_a, scale_b, how, out, _node)


def _traced_factor(name: str, factor: Any, integer: bool) -> Any:
    """A factor as the operator takes it, which has floats; the same number as ``check_factors``."""
    if isinstance(factor, torch.Tensor) and factor.requires_grad:
        raise UnsupportedError(
            f"{name} requires grad, and a factor is taken as a number, without a gradient: "
            "multiply the result by it"
        )
    if not isinstance(factor, (float, int)) and hasattr(factor, "item"):  # of 0-d tensors, numpy
        factor = factor.item()
    return modulo_32_bits(factor) if integer and isinstance(factor, int) else factor


def _put(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, how: How, out: Any, product: Any
) -> torch.Tensor:
    """The call as one of matrices: vectors get a dimension, scales that are numbers go to alpha."""
    for scale, name in ((scale_a, "scale_a"), (scale_b, "scale_b")):
        if scale is not None and not isinstance(scale, torch.Tensor):
            how = how._replace(alpha=how.alpha * check_scale(name, scale, 1, "", a))
    scale_a = scale_a if isinstance(scale_a, torch.Tensor) else None
    scale_b = scale_b if isinstance(scale_b, torch.Tensor) else None
    vector_a, vector_b = a.dim() == 1, b.dim() == 1
    if not (vector_a or vector_b):
        result: torch.Tensor = product(a, b, c, bias, scale_a, scale_b, how, out)
        return result
    a = a.unsqueeze(0) if vector_a else a
    b = b.unsqueeze(1) if vector_b else b
    if c is not None:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        ends = (*(() if vector_a else a.shape[-2:-1]), *(() if vector_b else b.shape[-1:]))
        c = with_vectors(c.expand((*batch, *ends)), vector_a, vector_b)
    where = None if out is None else with_vectors(out, vector_a, vector_b)
    result = product(a, b, c, bias, scale_a, scale_b, how, where)
    if out is not None:
        return out
    result = result.squeeze(-1) if vector_b else result
    return result.squeeze(-1 if vector_b else -2) if vector_a else result


def _operator(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, how: How, out: Any
) -> Any:
    """Past the dispatcher where all that is asked for is a derivative of plain tensors."""
    tensors = (a, b, c, bias, scale_a, scale_b)
    if out is not None:
        autograd.check_out(out, *tensors)
        operator.gemm_out(*tensors, out=out, **how._asdict())
        return out
    if autocast.enabled(a.device.type):
        return autocast.product(*tensors, **how._asdict())
    if modes() or any(t is not None and has_no_memory(t) for t in tensors):
        return operator.gemm(*tensors, **how._asdict())
    return autograd.product(*tensors, how)


def _node(a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, how: How, out: Any) -> Any:
    tensors = (a, b, c, bias, scale_a, scale_b)
    asked = {
        "alpha": how.alpha, "beta": how.beta, "epilogue": how.epilogue, "out_dtype": how.out_dtype,
        "compute": how.compute, "mma_shape": how.mma_shape, "backend": how.backend,
        "rung": how.rung,
    }  # fmt: skip
    if out is None:
        return operator.gemm(*tensors, **asked)
    operator.gemm_out(*tensors, out=out, **asked)
    return out
