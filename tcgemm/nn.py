"""Modules for models: ``Linear``, and ``replace_linear``, which puts it into one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from .errors import OperandTypeError
from .linears import check_names, linear
from .ops import eager_product, register_late
from .tensors import traces

if TYPE_CHECKING:
    from .dist.layers import ColumnParallelLinear as ColumnParallelLinear
    from .dist.layers import RowParallelLinear as RowParallelLinear


Model = TypeVar("Model", bound=torch.nn.Module)


class Linear(torch.nn.Linear):
    """torch.nn.Linear whose product, forward and backward, is ``tcgemm.linear``.

    Its parameters and state dict are those of torch.nn.Linear.

    Args:
        in_features, out_features, bias, device, dtype: as for torch.nn.Linear.
        epilogue: one of problem.EPILOGUES, e.g. "relu" or "gelu", applied to the result.
        backend: "triton", "cuda", "cublas" or "auto"; by default that of each call.
        accumulate: add the weight's gradient to a ``.grad`` that is there in the product that makes
            it, rounded once, instead of in a pass of its own: for several backward passes before
            a step. Where somebody else has to see the gradient (hooks of the weight,
            torch.autograd.grad, a derivative of second order, torch.compile), it is added by torch.
            Forward and backward run on the stream that ``.grad`` is used on, and backward passes of
            a weight one after the other, not in several threads at once.

    Raises:
        OperandError: no epilogue of that name. UnknownNameError: no backend of that name.
    """

    epilogue: str | None = None
    backend: str | None = None
    accumulate: bool = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        epilogue: str | None = None,
        backend: str | None = None,
        accumulate: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        check_names(epilogue, backend)
        self.epilogue, self.backend, self.accumulate = epilogue, backend, accumulate

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        weight, bias, epilogue, backend = self.weight, self.bias, self.epilogue, self.backend
        if not traces():
            result = eager_product(
                input, weight, bias, True, epilogue, None, None, backend, None, self.accumulate
            )
            if result is not None:
                return result
        return linear(input, weight, bias, epilogue, backend=backend)

    def extra_repr(self) -> str:
        """The sizes, and what is asked besides."""
        asked = {
            "epilogue": self.epilogue, "backend": self.backend, "accumulate": self.accumulate,
        }  # fmt: skip
        return ", ".join([super().extra_repr(), *(f"{k}={v}" for k, v in asked.items() if v)])


_OVER_GPUS = ("ColumnParallelLinear", "RowParallelLinear")


def __getattr__(name: str) -> Any:
    """The pair of layers over several GPUs, which loads torch.distributed."""
    if name in _OVER_GPUS:
        return getattr(import_module(".dist.layers", __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OVER_GPUS})


def replace_linear(
    model: Model, backend: str | None = None, *, accumulate: bool | None = None
) -> Model:
    """Let every torch.nn.Linear of a model, and the model if it is one, multiply by tcgemm.

    In place: parameters, hooks and optimizers stay as they are. Subclasses of torch.nn.Linear are
    left alone, as their forward may be their own; parametrizations and fully_shard make such, so
    call it before them. A tcgemm.nn.Linear that is there keeps what is not given here.

    Args:
        model: any module.
        backend, accumulate: of ``Linear``.

    Returns:
        The model itself.

    Raises:
        OperandTypeError: the model is no module. UnknownNameError: no backend of that name.
    """
    check_names(None, backend)
    if not isinstance(model, torch.nn.Module):
        raise OperandTypeError(
            f"model is a {type(model).__name__}, not a torch.nn.Module: pass the module whose "
            "layers are to be replaced"
        )
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = Linear
        if type(module) is Linear:
            module.backend = backend or module.backend
            if accumulate is not None:
                module.accumulate = accumulate
    register_late()
    return model
