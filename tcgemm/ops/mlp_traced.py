"""Two layers in a graph of torch.compile: their backward pass knows what precedes the second.

``tcgemm::mlp`` is what Dynamo's graph has of ``tcgemm.mlp``. It is made of other operators wherever
it is seen: of two products, or, where a gradient is asked for and kernels have ``Fusion.aux``, of
one Function, as in mlp.py. Its forward pass is ``tcgemm::gemm_with_z``, which stores the
pre-activation Z besides, and its backward pass has ``tcgemm::gemm_through_z``, which multiplies by
the derivative at Z. So the programs that are made of the graph have no kernel for either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from .. import dispatch
from ..dispatch import default_backend
from ..epilogue import FUNCTIONS
from ..errors import UnsupportedError
from ..forks import first_call
from ..launch import Launch
from ..launch_cache import launch_of
from ..tensors import PLAIN, grad_mode, transform
from . import autocast, operator
from .how import How
from .layer import BACKWARD, threshold_backward
from .mlp import differentiable
from .row_sums import TRACED, both, taken
from .running import arguments, asked_of, multiply, run_with_aux

_ASKED = "*, str epilogue, str compute='', str backend=''"
_SCHEMAS = (
    f"mlp(Tensor a, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, {_ASKED})"
    " -> Tensor",
    f"gemm_with_z(Tensor a, Tensor b, Tensor? bias, {_ASKED}) -> (Tensor, Tensor)",
    f"gemm_through_z(Tensor a, Tensor b, Tensor z, {_ASKED}) -> Tensor",
)
for schema in _SCHEMAS:
    operator.library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))

mlp: Any = torch.ops.tcgemm.mlp.default
gemm_with_z: Any = torch.ops.tcgemm.gemm_with_z.default
gemm_through_z: Any = torch.ops.tcgemm.gemm_through_z.default


def _mlp(
    a: Any, up: Any, up_bias: Any, down: Any, down_bias: Any, *, epilogue: str, compute: str = "",
    backend: str = "",
) -> torch.Tensor:  # fmt: skip
    if _is_fused((a, up, up_bias, down, down_bias), epilogue, backend):
        fused: torch.Tensor = Mlp.apply(a, up, up_bias, down, down_bias, epilogue, compute, backend)
        return fused
    none = (None, None)
    how = How(compute=compute, backend=backend)
    first = how._replace(epilogue=epilogue)
    hidden = operator.gemm(a, up.mT, None, up_bias, *none, **first._asdict())
    result: torch.Tensor = operator.gemm(hidden, down.mT, None, down_bias, *none, **how._asdict())
    return result


operator.library.impl("mlp", _mlp, "CompositeImplicitAutograd")


def _is_fused(operands: tuple[Any, ...], epilogue: str, backend: str) -> bool:
    """Whether a derivative is asked for that kernels with ``Fusion.aux`` take a part of."""
    x, up, up_bias, down, down_bias = operands
    given = [t for t in operands if t is not None]
    return (
        (epilogue == "relu" or epilogue in BACKWARD)
        and all(type(t) in PLAIN or type(t).__name__ in TRACED for t in given)
        and grad_mode()
        and any(t.requires_grad for t in given)
        and transform() is None
        and forward_ad._current_level < 0
        and not autocast.enabled(x.device.type)
        and x.dim() > 1
        and x.dtype in (torch.float16, torch.bfloat16)
        and all(t.dtype is x.dtype and t.device == x.device for t in given)
        and up.dim() == down.dim() == 2
        and x.shape[-1] == up.shape[1]
        and up.shape[0] == down.shape[1]
        and all(b is None or b.shape == w.shape[:1] for w, b in ((up, up_bias), (down, down_bias)))
        and _has_aux(backend or default_backend())
    )


def _has_aux(backend: str) -> bool:
    return backend in ("triton", "cuda") and dispatch.derivative(backend) is not None


class Mlp(torch.autograd.Function):
    """f(x W1^T + b1) W2^T + b2, by operators."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, up: Any, up_bias: Any, down: Any, down_bias: Any, epilogue: str,
        compute: str, backend: str,
    ) -> torch.Tensor:  # fmt: skip
        none = (None, None)
        how = How(compute=compute, backend=backend)
        rows = x.reshape(-1, x.shape[-1])
        if epilogue == "relu":
            first = how._replace(epilogue=epilogue)
            z = hidden = operator.gemm(rows, up.mT, None, up_bias, *none, **first._asdict())
            ctx.save_for_backward(x, up, up_bias, down, hidden)
        else:
            hidden, z = gemm_with_z(
                rows, up.mT, up_bias, epilogue=epilogue, compute=compute, backend=backend
            )
            ctx.save_for_backward(x, up, up_bias, down, hidden, z)
        ctx.asked = how, epilogue
        ctx.set_materialize_grads(False)
        y = operator.gemm(hidden, down.mT, None, down_bias, *none, **how._asdict())
        return y.reshape(*x.shape[:-1], down.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return (None,) * 8
        x, up, up_bias, down, hidden, *of_z = ctx.saved_tensors
        z = of_z[0] if of_z else hidden
        how, epilogue = ctx.asked
        if grad_mode():
            given = x, up, up_bias, down, z, hidden
            return *differentiable(ctx, how, epilogue, grad, *given), None, None, None

        def product(a: Any, b: Any) -> Any:
            return operator.gemm(a, b, None, None, None, None, **how._asdict())

        by_x, by_up, by_up_bias, by_down, by_down_bias = ctx.needs_input_grad[:5]
        rows, x_rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])

        def of_layer(above: Any, below: Any, by_weight: bool, by_bias: bool) -> tuple[Any, Any]:
            if by_weight and by_bias and taken(above.mT, below, how):
                return both(above.mT, below, how)
            of_weight = product(above.mT, below) if by_weight else None
            return of_weight, above.sum(0) if by_bias else None

        of_x = of_up = of_up_bias = None
        of_down, of_down_bias = of_layer(rows, hidden, by_down, by_down_bias)
        if by_x or by_up or by_up_bias:
            below = gemm_through_z(
                rows, down, z, epilogue=epilogue, compute=how.compute, backend=how.backend
            )
            of_up, of_up_bias = of_layer(below, x_rows, by_up, by_up_bias)
            of_x = product(below, up).reshape(x.shape) if by_x else None
        return of_x, of_up, of_up_bias, of_down, of_down_bias, None, None, None


def _gemm_with_z(
    a: Any, b: Any, bias: Any, *, epilogue: str, compute: str = "", backend: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    """f(A B + bias), and A B + bias."""
    hidden, z = (a.new_empty(a.shape[0], b.shape[1]) for _ in range(2))
    with_z(None, asked_of(compute, backend), epilogue, a, b, bias, z, hidden)
    return hidden, z


def _gemm_through_z(
    a: Any, b: Any, z: Any, *, epilogue: str, compute: str = "", backend: str = ""
) -> torch.Tensor:
    """A B times f'(Z)."""
    out = a.new_empty(a.shape[0], b.shape[1])
    through_z(None, asked_of(compute, backend), epilogue, a, b, z, out)
    return out


def with_z(
    launch: Launch | None, asked: Any, epilogue: str, a: Any, b: Any, bias: Any, z: Any, out: Any
) -> Launch:
    """z = A B + bias, out = f(z), of matrices of one dtype; by the launch, which it returns, or
    another where there was none."""
    if launch is None:
        with first_call(), torch.no_grad():
            launch = launch_of(arguments(a, b, bias, None, asked, z))
    if not run_with_aux(launch, "write", epilogue, a, b, bias, z, out):
        with torch.no_grad():
            launch = multiply(launch, asked, a, b, bias, z)
            out.copy_(FUNCTIONS[epilogue](z))
    return launch


def through_z(
    launch: Launch | None, asked: Any, epilogue: str, a: Any, b: Any, z: Any, out: Any
) -> Launch:
    """out = A B times f'(z), in the same way."""
    if launch is None:
        with first_call(), torch.no_grad():
            launch = launch_of(arguments(a, b, None, None, asked, out))
    alike = z.stride() == out.stride()
    if not (alike and run_with_aux(launch, "read", epilogue, a, b, None, z, out)):
        with torch.no_grad():
            launch = multiply(launch, asked, a, b, None, out)
            relu = epilogue == "relu"
            out.copy_(threshold_backward(out, z, 0) if relu else BACKWARD[epilogue](out, z))
    return launch


for key in ("CPU", "CUDA"):
    operator.library.impl("gemm_with_z", _gemm_with_z, key)
    operator.library.impl("gemm_through_z", _gemm_through_z, key)


@torch.library.register_fake("tcgemm::gemm_with_z", lib=operator.library)
def _fake_gemm_with_z(a: Any, b: Any, bias: Any, **asked: Any) -> tuple[Any, Any]:
    shape = a.shape[0], b.shape[1]
    return a.new_empty(shape), a.new_empty(shape)


@torch.library.register_fake("tcgemm::gemm_through_z", lib=operator.library)
def _fake_gemm_through_z(a: Any, b: Any, z: Any, **asked: Any) -> Any:
    return a.new_empty(a.shape[0], b.shape[1])


def _no_derivative(name: str) -> Any:
    def refuse(keyset: Any, *tensors: Any, **asked: Any) -> Any:
        if grad_mode() and any(t is not None and t.requires_grad for t in tensors):
            raise UnsupportedError(
                f"tcgemm::{name} is a part of tcgemm::mlp and has no derivative: call tcgemm.mlp"
            )
        op = getattr(torch.ops.tcgemm, name).default
        return operator.below_autograd(op, keyset, *tensors, **asked)

    return refuse


for name in ("gemm_with_z", "gemm_through_z"):
    operator.library.impl(name, _no_derivative(name), "Autograd", with_keyset=True)
