"""``linear``: y = epilogue(x W^T + bias), as torch.nn.functional.linear stores the weight."""

from __future__ import annotations

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from .call import gemm
from .dispatch import check_backend
from .ops import eager_product
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
        x: [..., K].
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
        if not isinstance(weight, torch.Tensor):
            check_kind("B", weight)
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


def check_names(epilogue: str | None, backend: str | None) -> None:
    """What a layer is told by name; raises OperandError, UnknownNameError."""
    check_epilogue("", epilogue)
    if backend is not None:
        check_backend(backend)
