"""The operators ``tcgemm::all_gather_matmul`` and ``tcgemm::matmul_reduce_scatter``.

The backward pass of each is the other. Where both gradients of a product after which sums were
scattered are asked for, the gradient of the result is gathered once, unless the overlapped engine
takes the product that gathers it; ``tcgemm::gather_rows`` and its derivative,
``tcgemm::scatter_sums``, move what no product hides.

The operators name their group by torch's name of it, so that a graph can hold them. Their results
differ from rank to rank in shape where the rows do not divide.
"""

from __future__ import annotations

from typing import Any

import torch

from ..epilogue import FUNCTIONS
from ..errors import UnsupportedError
from ..ops import register_late
from ..ops.autograd import differentiable, matrices
from ..ops.how import How
from ..ops.registered_late import also_counted
from ..tensors import has_no_memory, transform
from . import calls, sequence
from .calls import Asked, Call
from .groups import ranks_of
from .options import ALL_GATHER, REDUCE_SCATTER
from .planning import OVERLAPPED, backend_of
from .rows import rows_of

_OPERANDS = (
    "(Tensor a, Tensor b, Tensor? bias, Tensor? scale_a, Tensor? scale_b, *, SymInt rows, "
    "str group, str epilogue='', ScalarType? out_dtype=None, str compute='', str backend='', "
    "str rung='', str way='', bool debug=False) -> Tensor"
)

library = torch.library.Library("tcgemm", "FRAGMENT")
for _name, _schema in (
    ("all_gather_matmul", _OPERANDS),
    ("matmul_reduce_scatter", _OPERANDS),
    ("gather_rows", "(Tensor x, *, SymInt rows, str group) -> Tensor"),
    ("scatter_sums", "(Tensor x, *, str group) -> Tensor"),
):
    library.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))

all_gather_matmul: Any = torch.ops.tcgemm.all_gather_matmul.default
matmul_reduce_scatter: Any = torch.ops.tcgemm.matmul_reduce_scatter.default
gather_rows: Any = torch.ops.tcgemm.gather_rows.default
scatter_sums: Any = torch.ops.tcgemm.scatter_sums.default

OPERATORS = {ALL_GATHER: all_gather_matmul, REDUCE_SCATTER: matmul_reduce_scatter}


def product(op: str, a: Any, b: Any, bias: Any, scale_a: Any, scale_b: Any, asked: Asked) -> Any:
    """The product by its operator, with the derivatives that its operands ask for."""
    register_late()
    asked, after = _apart(asked, a, b, bias)
    result = OPERATORS[op](a, b, bias, scale_a, scale_b, **asked._asdict())
    return FUNCTIONS[after](result) if after else result


def of_plain(call: Call, a: Any, b: Any, bias: Any, scale_a: Any, scale_b: Any) -> Any:
    """The same of plain tensors, whose call is checked: without the dispatcher, which takes several
    times as long."""
    tensors = a, b, bias, scale_a, scale_b
    if not differentiable(*tensors):
        return calls.run(call, *tensors)[0]
    asked, after = _apart(call.asked, a, b, bias)
    result = _Recorded.apply(*tensors, call._replace(asked=asked))
    return FUNCTIONS[after](result) if after else result


def _apart(asked: Asked, *tensors: Any) -> tuple[Asked, str]:
    """What the product does, and the activation that follows it by itself, or ""."""
    if keeps_pre_activation(asked.epilogue, *tensors):
        return asked._replace(epilogue=""), asked.epilogue
    return asked, ""


class _Recorded(torch.autograd.Function):
    """A product whose derivative is recorded, as the operators' is."""

    @staticmethod
    def forward(
        ctx: Any, a: Any, b: Any, bias: Any, scale_a: Any, scale_b: Any, call: Call
    ) -> torch.Tensor:
        result = calls.run(call, a, b, bias, scale_a, scale_b)[0]
        ctx.op = call.op
        _keep(ctx, a, b, call.asked, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        return *_DERIVATIVES[ctx.op](ctx, grad), None


def keeps_pre_activation(epilogue: str, *tensors: Any) -> bool:
    """Whether a derivative of the epilogue is asked for that the result does not tell.

    The product then gives the pre-activation, and torch's activation follows.
    """
    return epilogue not in ("", "relu") and differentiable(*tensors)


def _implementation(op: str) -> Any:
    def run(a: Any, b: Any, bias: Any, scale_a: Any, scale_b: Any, **how: Any) -> torch.Tensor:
        call = calls.check(op, a, b, bias, scale_a, scale_b, Asked(**how))
        return calls.run(call, a, b, bias, scale_a, scale_b)[0]

    return run


def _fake(op: str) -> Any:
    def run(a: Any, b: Any, bias: Any, scale_a: Any, scale_b: Any, **how: Any) -> torch.Tensor:
        call = calls.check(op, a, b, bias, scale_a, scale_b, Asked(**how))
        result: torch.Tensor = a.new_empty(call.shape, dtype=call.dtype)
        return result

    return run


def _remember(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: Any, output: Any) -> None:
    asked = Asked(**{**Asked(0, "")._asdict(), **keyword_only_inputs})
    _keep(ctx, inputs[0], inputs[1], asked, output)


def _keep(ctx: Any, a: Any, b: Any, asked: Asked, output: Any) -> None:
    """What the derivative is made of."""
    ctx.asked = asked
    if ctx.asked.epilogue not in ("", "relu"):
        raise UnsupportedError(
            f"the operator has no derivative of the epilogue {ctx.asked.epilogue}: call "
            "tcgemm.dist.all_gather_matmul or matmul_reduce_scatter, which has"
        )
    by_a, by_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(
        a if by_b else None, b if by_a else None, output if ctx.asked.epilogue else None
    )
    ctx.dtype, ctx.by_columns = a.dtype, b.stride(0) == 1 != b.stride(1)


def _begun(ctx: Any, grad: Any) -> Any:
    """The gradient of the product itself, and in the dtype of its operands."""
    if ctx.asked.epilogue:
        grad = torch.ops.aten.threshold_backward(grad, ctx.saved_tensors[2], 0)
    return grad, grad.to(ctx.dtype)


def _local(ctx: Any) -> How:
    return How(compute=ctx.asked.compute, backend=backend_of(ctx.asked.backend))


def _of_b(ctx: Any, a: Any, factor: Any) -> Any:
    """A^T dC, lying as B does."""
    if ctx.by_columns:
        return matrices(factor.mT, a, _local(ctx)).mT
    return matrices(a.mT, factor, _local(ctx))


def _of_a(op: str, factor: Any, b: Any, asked: Asked) -> Any:
    """dC B^T, by the other one of the two products."""
    tensors = factor, b.mT, None, None, None
    if is_plain(factor, b):
        return of_plain(calls.check(op, *tensors, asked), *tensors)
    return OPERATORS[op](*tensors, **asked._asdict())


def is_plain(*tensors: Any) -> bool:
    """Whether nobody looks on but autograd: no compiler, dispatch mode or transform, which may be
    of other tensors, and no batch of gradients."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or transform() is not None
        or any(
            t is not None and (has_no_memory(t) or torch._C._functorch.is_legacy_batchedtensor(t))
            for t in tensors
        )
    )


def _after_gather(ctx: Any, grad: Any) -> Any:
    """Of epilogue(gather(A) B + bias)."""
    a, b, _ = ctx.saved_tensors
    asked = ctx.asked
    grad, factor = _begun(ctx, grad)
    by_a, by_b, by_bias = ctx.needs_input_grad[:3]
    of_a = of_b = None
    if by_a:
        of_a = _of_a(REDUCE_SCATTER, factor, b, asked.of_gradient())
    if by_b:
        of_b = _of_b(ctx, _gathered(a, asked), factor)
    return of_a, of_b, grad.sum(0) if by_bias else None, None, None


def _after_scatter(ctx: Any, grad: Any) -> Any:
    """Of epilogue(scattered sums of A B + bias)."""
    a, b, _ = ctx.saved_tensors
    asked = ctx.asked
    grad, factor = _begun(ctx, grad)
    by_a, by_b, by_bias = ctx.needs_input_grad[:3]
    of_a = of_b = None
    ask = asked.of_gradient()
    if by_a and (not by_b or _overlaps(factor, b.mT, ask)):
        of_a = _of_a(ALL_GATHER, factor, b, ask)
    if by_b:
        whole = _gathered(factor, asked)
        of_b = _of_b(ctx, a, whole)
        if by_a and of_a is None:
            of_a = matrices(whole, b.mT, _local(ctx))
    return of_a, of_b, grad.sum(0) if by_bias else None, None, None


def _gathered(x: Any, asked: Asked) -> Any:
    """Rows of all ranks, without the dispatcher where nobody looks on."""
    gather = _gather_rows if is_plain(x) and not differentiable(x) else gather_rows
    return gather(x, rows=asked.rows, group=asked.group)


def _overlaps(a: Any, b: Any, asked: Asked) -> bool:
    """Whether A is gathered under the product: then the product gathers it, and not we before."""
    if torch.compiler.is_compiling() or isinstance(a, torch._subclasses.FakeTensor):
        return False
    call = calls.check(ALL_GATHER, a, b, None, None, None, asked)
    return calls.plan(call, a, b, None, (None, None)).way == OVERLAPPED


def _gather_rows(x: torch.Tensor, *, rows: int, group: str) -> torch.Tensor:
    ranks = ranks_of(group)
    return x.clone() if ranks.world == 1 else sequence.gathered(x, rows, ranks)


def _scatter_sums(x: torch.Tensor, *, group: str) -> torch.Tensor:
    ranks = ranks_of(group)
    first, last = rows_of(len(x), ranks.world, ranks.rank)
    if ranks.world == 1:
        return x.clone()
    whole = sequence.padded(x, ranks)
    out = x.new_empty((last - first, *x.shape[1:]))
    return sequence.summed(whole, len(x), ranks, out)


def _fake_scatter_sums(x: torch.Tensor, *, group: str) -> torch.Tensor:
    ranks = ranks_of(group)
    first, last = rows_of(x.shape[0], ranks.world, ranks.rank)
    return x.new_empty((last - first, *x.shape[1:]))


def _keep_rows(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: Any, output: Any) -> None:
    ctx.rows, ctx.group = inputs[0].shape[0], keyword_only_inputs["group"]


_DERIVATIVES: dict[str, Any] = {ALL_GATHER: _after_gather, REDUCE_SCATTER: _after_scatter}
for _op, _operator in OPERATORS.items():
    for _key in ("CPU", "CUDA"):
        library.impl(_operator, _implementation(_op), _key)
    torch.library.register_fake(_operator, _fake(_op), lib=library)
    torch.library.register_autograd(
        _operator, _DERIVATIVES[_op], setup_context=_remember, lib=library
    )
for _key in ("CPU", "CUDA"):
    library.impl(gather_rows, _gather_rows, _key)
    library.impl(scatter_sums, _scatter_sums, _key)
torch.library.register_fake(
    gather_rows, lambda x, *, rows, group: x.new_empty((rows, *x.shape[1:])), lib=library
)
torch.library.register_fake(scatter_sums, _fake_scatter_sums, lib=library)
torch.library.register_autograd(
    gather_rows,
    lambda ctx, grad: scatter_sums(grad, group=ctx.group),
    setup_context=_keep_rows,
    lib=library,
)
torch.library.register_autograd(
    scatter_sums,
    lambda ctx, grad: gather_rows(grad, rows=ctx.rows, group=ctx.group),
    setup_context=_keep_rows,
    lib=library,
)


def _flops(a: Any, b: Any, *others: Any, rows: int, out_shape: Any = None, **how: Any) -> int:
    """2 M N K of this rank's product."""
    operations: int = 2 * rows * a[1] * b[1]
    return operations


also_counted(
    {torch.ops.tcgemm.all_gather_matmul: _flops, torch.ops.tcgemm.matmul_reduce_scatter: _flops}
)
