"""The operators ``tcgemm::gemm`` and ``tcgemm::gemm_out``: schemas, kernels, shapes without memory.

The operators take matrices, [..., rows, columns]; ``tcgemm.gemm`` gives a vector its second
dimension. Which kernel multiplies is decided when the operator runs, so that one traced graph
serves all sizes and the tables of the GPU that it runs on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..description import Description, describe
from ..dispatch import default_backend
from ..errors import OperandError
from ..launch_cache import run, run_kept
from ..operands import check_output
from .how import How

_OPERANDS = (
    "Tensor a, Tensor b, Tensor? c, Tensor? bias, Tensor? scale_a, Tensor? scale_b, *, "
    "float alpha=1, float beta=0, str epilogue='', ScalarType? out_dtype=None, str compute='', "
    "str mma_shape='', str backend='', str rung=''"
)

library = torch.library.Library("tcgemm", "DEF")
library.define(f"gemm({_OPERANDS}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
library.define(
    f"gemm_out({_OPERANDS}, Tensor(out!) out) -> ()", tags=(torch.Tag.pt2_compliant_tag,)
)

gemm: Any = torch.ops.tcgemm.gemm.default
gemm_out: Any = torch.ops.tcgemm.gemm_out.default


at_traces: list[Callable[[], None]] = []
"""Called before a product is traced."""


def arguments_of(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, how: How, out: Any = None
) -> tuple[Any, ...]:
    """The arguments of ``tcgemm.gemm``, in the order of launch_cache.key_of."""
    return (
        a, b, c, how.alpha, how.beta, bias, how.epilogue or None, out, how.out_dtype,
        how.compute or None, scale_a, scale_b, how.mma_shape or None,
        how.backend or default_backend(), how.rung or None,
    )  # fmt: skip


def _check_matrices(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() > 1 < b.dim():
        return
    for name, t in (("A", a), ("B", b)):
        if t.dim() < 2:
            raise OperandError(
                f"{name} has {t.dim()} dimensions and the operator tcgemm::gemm takes matrices: "
                "call tcgemm.gemm, which takes vectors too"
            )


def _gemm(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, *, alpha: float = 1.0,
    beta: float = 0.0, epilogue: str = "", out_dtype: Any = None, compute: str = "",
    mma_shape: str = "", backend: str = "", rung: str = "",
) -> torch.Tensor:  # fmt: skip
    _check_matrices(a, b)
    return _run((
        a, b, c, alpha, beta, bias, epilogue or None, None, out_dtype, compute or None, scale_a,
        scale_b, mma_shape or None, backend or default_backend(), rung or None,
    ))  # fmt: skip


def _gemm_out(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, *, out: Any, **how: Any
) -> None:
    _check_matrices(a, b)
    _run(arguments_of(a, b, c, bias, scale_a, scale_b, How(**how), out))


def _run(arguments: tuple[Any, ...]) -> torch.Tensor:
    """The operands may require grad: what is above has taken care of it."""
    if torch.is_grad_enabled():
        with torch.no_grad():
            return _run(arguments)
    kept = run_kept(arguments)
    return run(arguments) if kept is None else kept


for key in ("CPU", "CUDA"):
    library.impl("gemm", _gemm, key)
    library.impl("gemm_out", _gemm_out, key)


def _described(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, how: How, out: Any = None
) -> Description:
    _check_matrices(a, b)
    asked = arguments_of(a, b, c, bias, scale_a, scale_b, how, out)
    return describe(*asked[:-2])


@torch.library.register_fake("tcgemm::gemm", lib=library)
def _fake_gemm(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, **how: Any
) -> torch.Tensor:
    for look in at_traces:
        look()
    told = _described(a, b, c, bias, scale_a, scale_b, How(**how))
    result: torch.Tensor = a.new_empty(told.shape, dtype=told.dtype)
    return result


@torch.library.register_fake("tcgemm::gemm_out", lib=library)
def _fake_gemm_out(
    a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, *, out: Any, **how: Any
) -> None:
    told = _described(a, b, c, bias, scale_a, scale_b, How(**how), out)
    check_output(out, told.shape, a)


def below_autograd(op: Any, keyset: Any, *tensors: Any, **asked: Any) -> Any:
    """What an operator gives below autograd's level: of operands without a derivative."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *tensors, **asked)
