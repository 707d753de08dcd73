"""A pair of layers for tensor parallelism with divided rows: tcgemm.nn has their names."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.distributed as dist

from ..errors import OperandError, OperandTypeError, renamed
from ..linears import OF_A_LAYER, check_features, check_names
from ..tensors import check_kind, traces
from .calls import told_to_others
from .groups import Ranks, moving, ranks_of
from .planning import SEQUENCE
from .products import all_gather_matmul, matmul_reduce_scatter
from .rows import rows_of


class _Layer(torch.nn.Module):
    """What both have: a part of a Linear's weight, and the group."""

    divided: int
    """Which dimension of the weight [out_features, in_features] the ranks divide."""

    def __init__(
        self, in_features: int, out_features: int, group: Any = None, bias: bool = True,
        device: Any = None, dtype: Any = None, *, epilogue: str | None = None,
        backend: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_names(epilogue, backend)
        self.in_features, self.out_features = in_features, out_features
        self.group, self.epilogue, self.backend = group, epilogue, backend
        sizes = [out_features, in_features]
        _, sizes[self.divided] = self._part(sizes[self.divided], group)
        like = {"device": device, "dtype": dtype}
        # As torch.nn.Linear draws them, by the whole layer's in_features.
        bound = 1 / math.sqrt(in_features) if in_features else 0.0
        self.weight = torch.nn.Parameter(torch.empty(*sizes, **like).uniform_(-bound, bound))
        self.bias = torch.nn.Parameter(torch.zeros(sizes[0], **like)) if bias else None
        if self.bias is not None and self.divided == 0:  # else it is the same on all ranks
            torch.nn.init.uniform_(self.bias, -bound, bound)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy in the same group, which is no thing to copy."""
        memo[id(self.group)] = self.group
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    @staticmethod
    def _part(size: int, group: Any) -> tuple[int, int]:
        """(first, how many) of a dimension's ``size`` that this rank has."""
        ranks = ranks_of(group)
        first, last = rows_of(size, ranks.world, ranks.rank)
        return first, last - first

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, group: Any = None, **asked: Any) -> Any:
        """This rank's part of a layer that all ranks hold; copies of its parameters."""
        weight = linear.weight.detach()
        made = cls(linear.in_features, linear.out_features, group, False,
                   weight.device, weight.dtype, **asked)  # fmt: skip
        mine = cls._part(weight.shape[cls.divided], group)
        made.weight = torch.nn.Parameter(weight.narrow(cls.divided, *mine).clone())
        if linear.bias is not None:
            bias = linear.bias.detach()
            bias = bias if cls.divided else bias.narrow(0, *mine)
            made.bias = torch.nn.Parameter(bias.clone())
        return made

    def extra_repr(self) -> str:
        """The whole layer's sizes, and this rank's part of the weight."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, weight of this rank={list(self.weight.shape)}"
        )


class ColumnParallelLinear(_Layer):
    """epilogue(x W^T + bias): x divided by rows over the ranks, the result by columns.

    The first half of a pair under sequence parallelism: ``all_gather_matmul``.

    Args:
        in_features, out_features, bias, device, dtype: of the whole layer, as torch.nn.Linear.
        group: a process group, a DeviceMesh of one dimension, or None for all ranks.
        epilogue, backend: as for tcgemm.nn.Linear.

    ``weight`` is [this rank's rows of out_features, in_features] and ``bias`` the same rows; they
    lie as DTensor's Shard(0) lays them. Every rank draws its own: seed the ranks apart, or use
    ``from_linear``.
    """

    divided = 0

    def forward(self, input: torch.Tensor, rows: int | None = None) -> torch.Tensor:
        """[rows of this rank, ..., in_features] -> [rows of all, ..., this rank's out_features].

        Args:
            input: its first dimension is divided over the ranks.
            rows: of all ranks; by default this rank's times the ranks.
        """
        ranks = ranks_of(self.group)
        _check_input(input, ranks)
        rows = input.shape[0] * ranks.world if rows is None else rows
        return gathered_product(input, rows, self, self.weight, self.bias, ranks)


class RowParallelLinear(_Layer):
    """epilogue(x W^T + bias): x divided by columns over the ranks, the result by rows.

    The second half of a pair: ``matmul_reduce_scatter``. Arguments as for ``ColumnParallelLinear``.
    ``weight`` is [out_features, this rank's part of in_features]. ``bias`` is the whole one on
    every rank, the same on all: it is added once, and its gradient is summed over the ranks.
    """

    divided = 1

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[rows, ..., this rank's in_features] -> [this rank's rows, ..., out_features].

        The first dimension is divided over the ranks: where there are dimensions between the first
        and the last, it is a multiple of the ranks.
        """
        ranks = ranks_of(self.group)
        _check_input(input, ranks)
        if input.shape[1:-1].numel() != 1 and input.shape[0] % ranks.world:
            raise OperandError(
                f"rank {ranks.rank} of {ranks.world}: input has shape {list(input.shape)}, and its "
                f"first dimension does not divide by {ranks.world} ranks: flatten it to a matrix"
            )
        bias: torch.Tensor | None = self.bias
        if bias is not None and ranks.world > 1:
            bias = summed_gradient(bias, ranks)
        return scattered_product(input, self, self.weight, bias, ranks)


def gathered_product(
    x: torch.Tensor, rows: Any, layer: Any, weight: Any, bias: Any, ranks: Ranks
) -> torch.Tensor:
    """[rows of this rank, ..., in_features] -> [rows, ..., this rank's out_features].

    Args:
        rows: of all ranks.
        layer: has the whole layer's sizes, the epilogue and the backend.
        weight, bias: this rank's.
    """
    between = x.shape[1:-1]
    y = _product(
        all_gather_matmul, x, weight, ranks, rows=rows * between.numel(), bias=bias,
        epilogue=layer.epilogue, backend=layer.backend, way=_way(layer.out_features, ranks),
    )  # fmt: skip
    return y.view(rows, *between, y.shape[1])


def scattered_product(
    x: torch.Tensor, layer: Any, weight: Any, bias: Any, ranks: Ranks
) -> torch.Tensor:
    """[rows, ..., this rank's in_features] -> [rows of this rank, ..., out_features].

    Args: as for ``gathered_product``; a bias is the whole one.
    """
    y = _product(
        matmul_reduce_scatter, x, weight, ranks, bias=bias, epilogue=layer.epilogue,
        backend=layer.backend, way=_way(layer.in_features, ranks),
    )  # fmt: skip
    first, last = rows_of(x.shape[0], ranks.world, ranks.rank)
    return y.view(last - first, *x.shape[1:-1], y.shape[1])


def _product(function: Any, x: Any, weight: Any, ranks: Ranks, **asked: Any) -> torch.Tensor:
    """The product of x as a matrix by the weight's transpose; errors speak of x and weight."""
    rows = x.flatten(0, -2)
    if traces():
        traced: torch.Tensor = function(rows, weight.mT, ranks.group, **asked)
        return traced
    if x.shape[-1] != weight.shape[-1]:
        with told_to_others(ranks, None):
            check_features(x, weight)
    try:
        result: torch.Tensor = function(rows, weight.mT, ranks.group, **asked)
    except (OperandError, OperandTypeError) as error:
        raise renamed(error, {"a_shard": "x", **OF_A_LAYER}) from None
    return result


def _check_input(x: Any, ranks: Ranks) -> None:
    if isinstance(x, torch.Tensor) and x.dim() >= 2:
        return
    with told_to_others(ranks, None):
        check_kind("input", x)
        raise OperandError(
            f"input has shape {list(x.shape)}, and the ranks divide rows: pass a matrix, e.g. by "
            ".unsqueeze(0), or use tcgemm.nn.Linear"
        )


def _way(features: int, ranks: Ranks) -> str | None:
    """The plan's, which rests on parts of equal size; of others the one that takes any."""
    return None if features % ranks.world == 0 else SEQUENCE


class _SummedGradient(torch.autograd.Function):
    """The tensor itself, whose gradient is the sum of all ranks'. Of any order: the derivative of
    that sum is a sum over ranks again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, None]:
        return _Summed.apply(grad, ctx.ranks), None


class _Summed(torch.autograd.Function):
    """The sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        ctx.ranks = ranks
        total = x.clone(memory_format=torch.contiguous_format)
        with moving(ranks, "the sum of a bias' gradient"):
            dist.all_reduce(total, group=ranks.group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, None]:
        return _Summed.apply(grad, ctx.ranks), None


def summed_gradient(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """``x``, the same on all ranks, whose gradient is the sum of theirs."""
    result: torch.Tensor = _SummedGradient.apply(x, ranks)
    return result
