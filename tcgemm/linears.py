"""``linear``: y = epilogue(x W^T + bias), as torch.nn.functional.linear stores the weight; and
``mlp``, two of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from .arrays import as_given, as_tensors, is_array
from .call import gemm
from .dispatch import check_backend
from .errors import OperandError
from .operands import shape_of
from .ops import eager_mlp, eager_product
from .tensors import check_kind, traces
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
        if has_torch_function_unary(x) and not isinstance(x, torch.Tensor):  # torch.fx's
            return handle_torch_function(
                linear, (x,), x, weight, bias, epilogue, out_dtype=out_dtype, compute=compute,
                backend=backend, kernel=kernel,
            )  # fmt: skip
        if is_array(x):
            return _of_arrays(
                x, weight, bias, epilogue=epilogue, out_dtype=out_dtype, compute=compute,
                backend=backend, kernel=kernel,
            )  # fmt: skip
        if not isinstance(weight, torch.Tensor):
            check_kind("weight", weight)
        _check_features(x, weight)
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
    hidden = linear(x, up, up_bias, epilogue, compute=compute, backend=backend)
    return linear(hidden, down, down_bias, compute=compute, backend=backend)


def _of_arrays(x: Any, weight: Any, bias: Any, **asked: Any) -> Any:
    others = (None,) * 9
    x_tensor, weight, _, _, _, bias, *_ = as_tensors((x, weight, None, 1.0, 0.0, bias, *others))
    return as_given(linear(x_tensor, weight, bias, **asked), x)


def _check_features(x: Any, weight: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor) or x.is_nested or weight.is_nested:
        return
    if not (x.dim() and weight.dim()):
        return
    of_x, of_weight = x.shape[-1], weight.shape[-1]
    if of_x != of_weight:
        cure = "; weight.mT would fit" if weight.dim() > 1 and of_x == weight.shape[-2] else ""
        raise OperandError(
            f"x is {shape_of(x)} and weight {shape_of(weight)}: both end in the features that are "
            f"summed over, and x has {of_x} and weight {of_weight}{cure}"
        )


def check_names(epilogue: str | None, backend: str | None) -> None:
    """What a layer is told by name; raises OperandError, UnknownNameError."""
    check_epilogue("", epilogue)
    if backend is not None:
        check_backend(backend)
