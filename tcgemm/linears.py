"""``linear``: y = epilogue(x W^T + bias), as torch.nn.functional.linear stores the weight; and
``mlp``, two of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import handle_torch_function

from .arrays import as_given, as_tensors, in_words_of_arrays, is_array
from .call import gemm
from .dispatch import check_backend
from .errors import OperandError, OperandTypeError, renamed
from .operands import dtype_name, shape_of
from .ops import eager_mlp, eager_product, traced_mlp
from .problem import OUTPUTS
from .tensors import check_kind, recorders, traces
from .vocabulary import check_epilogue


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    epilogue: str | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    compute: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """epilogue(x @ weight.T + bias), in one kernel.

    Args:
        x: [..., K]; a tensor or, as for ``gemm``, an array, and then all are such.
        weight: [N, K], the dtype and device of x.
        bias: [N], added to each row; the dtype of the result.
        epilogue: one of problem.EPILOGUES, e.g. "relu" or "gelu" (with erf), applied last.
        out_dtype, compute, backend, kernel: as for ``gemm``.

    Returns:
        [..., N]. It has a gradient by x, weight and bias; the gradient of the weight lies as the
        weight does.

    Raises:
        As ``gemm``.
    """
    if not traces():
        result = eager_product(x, weight, bias, True, epilogue, out_dtype, compute, backend, kernel)
        if result is not None:
            return result
        asked: dict[str, Any] = {
            "bias": bias, "epilogue": epilogue, "out_dtype": out_dtype, "compute": compute,
            "backend": backend, "kernel": kernel,
        }  # fmt: skip
        if found := recorders((x, weight, bias)):
            return handle_torch_function(linear, found, x, weight, **asked)
        try:
            return _seen_whole(x, weight, asked)
        except (OperandError, OperandTypeError) as error:
            raise renamed(error, OF_A_LAYER) from None
    return gemm(
        x,
        weight.mT if weight.dim() > 1 else weight,
        bias=bias,
        epilogue=epilogue,
        out_dtype=out_dtype,
        compute=compute,
        backend=backend,
        kernel=kernel,
    )


def mlp(
    x: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor | None,
    down: torch.Tensor,
    down_bias: torch.Tensor | None,
    epilogue: str = "gelu",
    *,
    compute: str | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    """epilogue(x @ up.T + up_bias) @ down.T + down_bias: two layers, as in a transformer's block.

    Gradients are what two calls of ``linear`` have. Between the two products of the backward pass
    they take a kernel and two passes over memory more, since the derivative of the epilogue is
    part of the product here (docs/pytorch.md).

    Args:
        x: [..., K].
        up, up_bias: [H, K] and [H], the dtype and device of x.
        down, down_bias: [N, H] and [N].
        epilogue: one of problem.EPILOGUES.
        compute, backend: as for ``gemm``.

    Returns:
        [..., N].

    Raises:
        As ``gemm``.
    """
    if not traces():
        result = eager_mlp(x, up, up_bias, down, down_bias, epilogue, compute, backend)
        if result is not None:
            return result
        _check_chain(x, up, down)
        try:
            hidden = linear(x, up, up_bias, epilogue, compute=compute, backend=backend)
        except (OperandError, OperandTypeError) as error:
            raise renamed(error, {"weight": "up", "bias": "up_bias"}) from None
        try:
            return linear(hidden, down, down_bias, compute=compute, backend=backend)
        except (OperandError, OperandTypeError) as error:
            raise renamed(error, OF_DOWN) from None
    if x.dim() > 1 and up.dim() == down.dim() == 2:
        fused: torch.Tensor = traced_mlp(
            x, up, up_bias, down, down_bias, epilogue=epilogue or "", compute=compute or "",
            backend=backend or "",
        )  # fmt: skip
        return fused
    hidden = linear(x, up, up_bias, epilogue, compute=compute, backend=backend)
    return linear(hidden, down, down_bias, compute=compute, backend=backend)


OF_A_LAYER = {"A": "x", "B": "weight", "C": "the result"}
"""What messages call a layer's operands, by their names in the product."""

OF_DOWN = {"x": "the hidden layer", "weight": "down", "bias": "down_bias"}


def _seen_whole(x: Any, weight: Any, asked: dict[str, Any]) -> Any:
    """A layer that is more than a product of plain tensors, or wrong."""
    if is_array(x):
        try:
            return _of_arrays(x, weight, **asked)
        except OperandTypeError as error:
            raise in_words_of_arrays(error) from None
    check_kind("weight", weight)
    check_features(x, weight)
    return gemm(x, weight.mT if weight.dim() > 1 else weight, **asked)


def _of_arrays(x: Any, weight: Any, bias: Any, **asked: Any) -> Any:
    others = (None,) * 9
    x_tensor, weight, _, _, _, bias, *_ = as_tensors((x, weight, None, 1.0, 0.0, bias, *others))
    return as_given(linear(x_tensor, weight, bias, **asked), x)


def check_features(x: Any, weight: torch.Tensor) -> None:
    """Raise OperandError where x [..., K] and weight [N, K] differ in K."""
    if not (_is_dense(x) and _is_dense(weight)):
        return
    of_x, of_weight = x.shape[-1], weight.shape[-1]
    if of_x != of_weight:
        raise OperandError(
            f"x is {shape_of(x)} and weight {shape_of(weight)}: both end in the features that are "
            f"summed over, and x has {of_x} and weight {of_weight}{_transposed(weight, of_x)}"
        )


def _check_chain(x: Any, up: Any, down: Any) -> None:
    """Raise where ``down`` [N, H] does not take what ``up`` [H, K] gives."""
    if not all(map(_is_dense, (x, up, down))):
        return
    given, taken = up.shape[0], down.shape[-1]
    if up.dim() == 2 and x.shape[-1] == up.shape[-1] and given != taken:
        raise OperandError(
            f"up {shape_of(up)} gives {given} features and down {shape_of(down)} takes {taken}"
            f"{_transposed(down, given, 'down')}"
        )
    if x.dtype == up.dtype == down.dtype and x.dtype.itemsize == 1:
        hidden, of = OUTPUTS.get(dtype_name(x.dtype), ("",))[0], dtype_name(x.dtype)
        if hidden:
            cure = (
                f"convert down with .to(torch.{hidden})" if x.dtype.is_floating_point
                else "call tcgemm.linear twice, and convert what is between"
            )  # fmt: skip
            raise OperandTypeError(
                f"x, up and down are {of} and the hidden layer is {hidden}, which down does not "
                f"take: 8-bit layers do not chain, {cure}"
            )


def _is_dense(given: Any) -> bool:
    return isinstance(given, torch.Tensor) and not given.is_nested and given.dim() > 0


def _transposed(weight: torch.Tensor, features: int, name: str = "weight") -> str:
    fits = weight.dim() > 1 and features == weight.shape[-2]
    return f"; {name}.mT would fit" if fits else ""


def check_names(epilogue: str | None, backend: str | None) -> None:
    """What a layer is told by name; raises OperandError, UnknownNameError."""
    check_epilogue("", epilogue)
    if backend is not None:
        check_backend(backend)
