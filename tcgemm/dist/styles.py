"""torch's parallel styles, on tcgemm's layers: the collective and the product as one call.

With torch's own styles, ``parallelize_module`` gathers a layer's input before the layer sees it and
scatters its output after it. These take their place in the plan, and leave the model as it is.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel as TorchColwise
from torch.distributed.tensor.parallel import RowwiseParallel as TorchRowwise

from ..linears import linear
from ..nn import Linear
from .groups import ranks_of
from .layers import gathered_product, scattered_product, summed_gradient


class _Parallel(Linear):
    """A layer whose weight is a DTensor, and what its style said of its input and output.

    A tensor that is no DTensor comes and goes as it is: to wrap it, only to take what is inside out
    again, would take longer than all else that the host does here.
    """

    parallel: tuple[Any, Any, Any, bool]

    def _come(self, x: torch.Tensor) -> tuple[torch.Tensor, Any, tuple[int, ...]]:
        """This rank's part of the input, how it is placed, and the shape of all of it."""
        mesh, (placement, *_), _, _ = self.parallel
        if isinstance(x, DTensor):
            return x.to_local(), x.placements[0], x.shape
        whole = [*x.shape]
        if isinstance(placement, Shard):
            whole[placement.dim] *= mesh.size()
        return x, placement, tuple(whole)

    def _given(self, y: torch.Tensor, dim: int, whole: tuple[int, ...]) -> torch.Tensor:
        """The result as the style has it, of this rank's part of it by ``dim``."""
        mesh, _, layouts, local = self.parallel
        wanted = layouts[0]
        if local and isinstance(wanted, Shard) and wanted.dim % y.dim() == dim:
            return y
        return self._laid(_of_local(y, mesh, Shard(dim), whole))

    def _laid(self, y: DTensor) -> torch.Tensor:
        _, _, output_layouts, local = self.parallel
        if y.placements != output_layouts:
            y = y.redistribute(placements=output_layouts)
        return y.to_local() if local else y

    def _plainly(self, x: torch.Tensor, layout: Any) -> torch.Tensor:
        """As torch's style does it."""
        mesh, input_layouts, _, _ = self.parallel
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, mesh, input_layouts, run_check=False)
        x = x.redistribute(placements=[layout])
        y: Any = linear(x, self.weight, self.bias, self.epilogue, backend=self.backend)
        return self._laid(y)


class GatheringLinear(_Parallel):
    """``ColwiseParallel``'s layer: rows of x are gathered, and columns of the weight stay."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., in_features], divided by rows -> [..., out_features], by columns."""
        mesh, *_ = self.parallel
        x, placement, whole = self._come(input)
        dim = _rows(mesh, placement, x.dim())
        if dim is None or not _divides(whole, dim, mesh.size()):
            return self._plainly(input, Replicate())
        weight, bias = _local(self.weight), _local(self.bias)
        rows_first = x.movedim(dim, 0)
        y = gathered_product(rows_first, whole[dim], self, weight, bias, ranks_of(mesh))
        y = y.movedim(0, dim)
        return self._given(y, y.dim() - 1, (*whole[:-1], self.out_features))


class ScatteringLinear(_Parallel):
    """``RowwiseParallel``'s layer: columns of x meet rows of the weight, and sums are scattered."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., in_features], divided by columns -> [..., out_features], by rows."""
        mesh, _, (output, *_), _ = self.parallel
        x, placement, whole = self._come(input)
        last = Shard(x.dim() - 1)
        dim = _rows(mesh, output, x.dim())
        if (
            dim is None
            or placement not in (last, Shard(-1))
            or not _divides(whole, dim, mesh.size())
        ):
            return self._plainly(input, last)
        ranks, bias = ranks_of(mesh), _local(self.bias)
        if bias is not None:  # each rank adds it to its rows, and its gradient is the sum of theirs
            bias = summed_gradient(bias, ranks)
        rows_first = x.movedim(dim, 0)
        y = scattered_product(rows_first, self, _local(self.weight), bias, ranks)
        return self._given(y.movedim(0, dim), dim, (*whole[:-1], self.out_features))


class _Style:
    """A style of torch's that gives a tcgemm.nn.Linear another class."""

    divided: str
    """The style's attribute with the layouts that are to be divided."""
    layer: type[_Parallel]
    """What the layer becomes then."""

    def _apply(self, module: Any, device_mesh: Any) -> Any:
        style: Any = self
        if type(module) is not Linear or not isinstance(getattr(style, self.divided)[0], Shard):
            torchs: Any = super()
            return torchs._apply(module, device_mesh)
        distribute_module(module, device_mesh, style._partition_linear_fn)
        layer: Any = module
        layer.__class__ = self.layer
        layouts = style.input_layouts, style.output_layouts
        layer.parallel = device_mesh, *layouts, style.use_local_output
        return layer


class ColwiseParallel(_Style, TorchColwise):
    """torch's ColwiseParallel; a tcgemm.nn.Linear whose input is divided by rows gathers it under
    its product, with ``all_gather_matmul``.

    That is ``input_layouts=Shard(d)`` for any dimension d but the last, on a mesh of one dimension.
    All else is torch's: modules that are no tcgemm.nn.Linear, other layouts, and rows that do not
    divide by the ranks where there are other leading dimensions.
    """

    divided = "input_layouts"
    layer = GatheringLinear


class RowwiseParallel(_Style, TorchRowwise):
    """torch's RowwiseParallel; a tcgemm.nn.Linear whose output is divided by rows scatters its sums
    under its product, with ``matmul_reduce_scatter``.

    That is ``output_layouts=Shard(d)`` for any dimension d but the last; else as for
    ``ColwiseParallel``.
    """

    divided = "output_layouts"
    layer = ScatteringLinear


def _rows(mesh: Any, placement: Any, dims: int) -> int | None:
    """The dimension of rows that a placement divides, on a mesh of one dimension; else None."""
    if not isinstance(placement, Shard) or mesh.ndim != 1 or dims < 2:
        return None
    dim = placement.dim % dims
    return dim if dim < dims - 1 else None


def _divides(shape: Any, dim: int, world: int) -> bool:
    """Whether chunks of the dimension are chunks of all rows."""
    return shape[dim] % world == 0 or prod((*shape[:dim], *shape[dim + 1 : -1])) == 1


def _local(t: Any) -> Any:
    return None if t is None else t.to_local()


def _of_local(y: torch.Tensor, mesh: Any, placement: Any, shape: tuple[int, ...]) -> DTensor:
    size = torch.Size(shape)
    stride = torch.empty(size, device="meta").stride()
    return DTensor.from_local(y, mesh, [placement], run_check=False, shape=size, stride=stride)
