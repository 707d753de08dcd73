"""``all_gather_matmul`` and ``matmul_reduce_scatter``: products over the ranks of a group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..epilogue import FUNCTIONS
from ..errors import UnsupportedError
from ..operands import dtype_name
from ..ops import autocast_enabled
from ..ops.autograd import check_derivative, check_out
from ..problem import COMPUTES
from ..tensors import as_float, as_number, has_no_memory
from . import calls, operators
from .groups import Ranks, check_alive, ranks_of
from .options import ALL_GATHER, REDUCE_SCATTER

_traces = torch.compiler.is_dynamo_compiling
_CAST = (torch.float16, torch.bfloat16, torch.float32)


def all_gather_matmul(
    a_shard: torch.Tensor,
    b: torch.Tensor,
    group: Any = None,
    *,
    rows: int | None = None,
    bias: torch.Tensor | None = None,
    epilogue: str | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    compute: str | None = None,
    scale_a: float | torch.Tensor | None = None,
    scale_b: float | torch.Tensor | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    way: str | None = None,
    debug: bool | None = None,
) -> torch.Tensor:
    """epilogue(A @ B + bias), of an A whose rows lie divided over the ranks; all ranks call it.

    A column-parallel layer under sequence parallelism: each rank holds rows of A and columns of B,
    and gets all rows of its columns of C. Rows lie as DTensor's Shard(0) lays them, which is
    torch.chunk: ceil(M / ranks) to each rank until they run out, so that the last ranks may hold
    fewer, or none (5 rows over 4 ranks: 2, 2, 1, 0).

    Args:
        a_shard: [rows of this rank, K], any strides: float16, bfloat16, float32, float64, an
            8-bit float or 8-bit integer.
        b: [K, N], the dtype and device of A; other columns on each rank, and as many on all, for
            the plan rests on N: where they are not, pass way="sequence" or "one_shot".
        group: a ProcessGroup, a DeviceMesh of one dimension, or None for all ranks.
        rows: M, of all ranks; by default the rows of ``out``, else those of this shard times the
            ranks. It is needed where the rows do not divide by the ranks and ``out`` is not given.
        bias: [N], dtype of the result: for this rank's columns.
        epilogue: as for ``tcgemm.gemm``. Bias and epilogue are fused into the product.
        out: [M, N], written in place; no derivative is recorded then.
        out_dtype, compute, kernel: as for ``tcgemm.gemm``.
        scale_a: of 8-bit floats: a number or a float32 tensor of no dimension for all of A, the
            same on all ranks; or one [rows of this rank], a number a row.
        scale_b: as for ``tcgemm.gemm``, for this rank's B.
        backend: as for ``tcgemm.gemm``; by default TCGEMM_BACKEND, else "auto".
        way: "overlapped", which hides the all-gather under the product; "one_shot", an all-gather
            of one kernel that stores rows at all peers, and then the product; or "sequence", the
            group's own all-gather and then the product. By default what tcgemm.dist.explain says.
            A backward pass of "one_shot" goes by the sequence.
        debug: compare the calls of all ranks before this one, and give waits inside of kernels a
            time-out; by default whether TCGEMM_DIST_DEBUG is 1. Over gloo calls are always
            compared.

    Returns:
        [M, N]. It has a gradient by a_shard, b and bias, of any order in reverse mode. By a_shard
        it is this rank's rows of the sum over ranks, as ``matmul_reduce_scatter`` makes it.

    Raises:
        As ``tcgemm.gemm``, with the rank in front of the message. What one rank finds wrong with
        its own operands it says before it waits for another. PeerError: another rank failed, or
        calls are compared and another rank made another one, or none.

    The rows of A are moved in their own dtype. float32 and other types are moved and summed as
    ``tcgemm.gemm`` sums them; a result does not depend on the number of ranks but by the kernel
    that is chosen.
    """
    if _traces():
        return _traced(
            ALL_GATHER, a_shard, b, group, bias, scale_a, scale_b, out, rows, epilogue, out_dtype,
            compute, backend, kernel, way, debug,
        )  # fmt: skip
    ranks = ranks_of(group)
    if rows is None:
        if isinstance(out, torch.Tensor) and out.dim():
            rows = out.shape[0]
        else:
            given = a_shard.shape[0] if isinstance(a_shard, torch.Tensor) and a_shard.dim() else 0
            rows = given * ranks.world
    with calls.told_to_others(ranks, debug):
        asked = calls.asked_of(
            ranks, rows, epilogue, out_dtype, compute, backend, kernel, way, debug
        )
    return _call(ALL_GATHER, ranks, a_shard, b, bias, scale_a, scale_b, out, asked)


def matmul_reduce_scatter(
    a: torch.Tensor,
    b: torch.Tensor,
    group: Any = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: str | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    compute: str | None = None,
    scale_a: float | torch.Tensor | None = None,
    scale_b: float | torch.Tensor | None = None,
    backend: str | None = None,
    kernel: str | None = None,
    way: str | None = None,
    debug: bool | None = None,
) -> torch.Tensor:
    """epilogue(the sum over ranks of A @ B, + bias), of which each rank gets rows; all call it.

    A row-parallel layer under sequence parallelism: each rank holds columns of A and rows of B,
    and gets its rows of the sum: ceil(M / ranks) to each rank until they run out, as DTensor's
    Shard(0), which is torch.chunk, lays them.

    Args:
        a: [M, K of this rank], any strides; dtypes as for ``all_gather_matmul``. The plan rests on
            K: where it is not the same on all ranks, pass way="sequence" or "one_shot".
        b: [K of this rank, N], the dtype and device of A.
        group: as for ``all_gather_matmul``.
        bias: [N], dtype of the result, the same on all ranks: added once, after the sum.
        epilogue: applied after the sum and the bias. A sum of activations is not meant, and is not
            what this gives.
        out: [rows of this rank, N], written in place; no derivative is recorded then.
        out_dtype, compute, kernel: as for ``tcgemm.gemm``.
        scale_a, scale_b: as for ``tcgemm.gemm``: of this rank's A and B, before the sum.
        backend, way, debug: as for ``all_gather_matmul``.

    Returns:
        [rows of this rank, N]. It has a gradient by a, b and bias, of any order in reverse mode:
        by a what ``all_gather_matmul`` makes. By the bias it is the sum over this rank's rows: add
        those of all ranks where they hold copies of one bias, as tcgemm.nn.RowParallelLinear does.

    Raises:
        As ``all_gather_matmul``.

    Each rank's product is rounded to the result's dtype and moved. The overlapped and the one-shot
    way, groups without NCCL and torch.use_deterministic_algorithms(True) add them in float32 in the
    order of ranks, then bias and epilogue, and round once: calls repeat to the bit. NCCL adds in
    the result's dtype, rounding each time, in an order that its algorithm gives; bias and epilogue
    then follow in float32, with a rounding of their own.
    """
    if _traces():
        return _traced(
            REDUCE_SCATTER, a, b, group, bias, scale_a, scale_b, out, a.shape[0], epilogue,
            out_dtype, compute, backend, kernel, way, debug,
        )  # fmt: skip
    ranks = ranks_of(group)
    rows = a.shape[0] if isinstance(a, torch.Tensor) and a.dim() else 0
    with calls.told_to_others(ranks, debug):
        asked = calls.asked_of(
            ranks, rows, epilogue, out_dtype, compute, backend, kernel, way, debug
        )
    return _call(REDUCE_SCATTER, ranks, a, b, bias, scale_a, scale_b, out, asked)


def _call(
    op: str, ranks: Ranks, a: Any, b: Any, bias: Any, scale_a: Any, scale_b: Any, out: Any,
    asked: calls.Asked,
) -> torch.Tensor:  # fmt: skip
    if isinstance(a, torch.Tensor) and autocast_enabled(a.device.type):
        a, b, bias, asked = _cast(a, b, bias, asked)
        with torch.autocast(a.device.type, enabled=False):
            return _call(op, ranks, a, b, bias, scale_a, scale_b, out, asked)
    check_alive(ranks)
    with calls.told_to_others(ranks, asked.debug):
        scale_a, scale_b = _scale("scale_a", scale_a, a), _scale("scale_b", scale_b, a)
        call = calls.check(op, a, b, bias, scale_a, scale_b, asked, out)
        check_derivative(a, b, None, bias, scale_a, scale_b)
        if out is not None:
            check_out(out, a, b, None, bias, scale_a, scale_b)
            if any(t is not None and has_no_memory(t) for t in (a, b, bias, out)):
                raise UnsupportedError("out= takes tensors with memory only: leave it away here")
    if out is not None:
        return calls.run(call, a, b, bias, scale_a, scale_b, out)[0]
    tensors = a, b, bias, scale_a, scale_b
    plain = operators.is_plain(*tensors)
    result: torch.Tensor = (
        operators.of_plain(call, *tensors) if plain else operators.product(op, *tensors, asked)
    )
    return result


def _scale(name: str, scale: Any, a: Any) -> Any:
    """A number as a tensor, as the operators take it."""
    if scale is None or isinstance(scale, torch.Tensor) or not isinstance(a, torch.Tensor):
        return scale
    number = as_float(name, as_number(name, scale))
    return torch.tensor(number, dtype=torch.float32, device=a.device)


def _traced(
    op: str, a: Any, b: Any, group: Any, bias: Any, scale_a: Any, scale_b: Any, out: Any,
    rows: int | None, epilogue: str | None, out_dtype: Any, compute: str | None,
    backend: str | None, kernel: str | None, way: str | None, debug: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The call in a graph of torch.compile: one node, which is checked and planned as it runs."""
    if out is not None:
        raise UnsupportedError("out= is for calls outside of torch.compile: leave it away here")
    group = dist.group.WORLD if group is None else group
    after = ""
    if epilogue and operators.keeps_pre_activation(epilogue, a, b, bias):
        epilogue, after = "", epilogue
    if isinstance(group, dist.DeviceMesh):
        group = group.get_group()
    result: torch.Tensor = operators.OPERATORS[op](
        a, b, bias, scale_a, scale_b,
        rows=a.shape[0] * group.size() if rows is None else rows,
        group=group.group_name, epilogue=epilogue or "", out_dtype=out_dtype,
        compute=compute or "", backend=backend or "", rung=kernel or "", way=way or "",
        debug=bool(debug),
    )  # fmt: skip
    return FUNCTIONS[after](result) if after else result


def _cast(a: Any, b: Any, bias: Any, asked: calls.Asked) -> tuple[Any, Any, Any, calls.Asked]:
    """The operands as autocast asks for them, as ``tcgemm.gemm`` under it takes them."""
    if a.dtype not in _CAST or not isinstance(b, torch.Tensor) or b.dtype not in _CAST:
        return a, b, bias, asked
    dtype = torch.get_autocast_dtype(a.device.type)
    if asked.compute not in COMPUTES[dtype_name(dtype)]:
        asked = asked._replace(compute="")
    bias = None if bias is None else bias.to(asked.out_dtype or dtype)
    return a.to(dtype), b.to(dtype), bias, asked
