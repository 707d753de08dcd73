"""torch's parallel styles, on tcgemm's layers: the collective and the product as one call.

With torch's own styles, ``parallelize_module`` gathers a layer's input before the layer sees it and
scatters its output after it. These take their place in the plan, and leave the model as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel as TorchColwise
from torch.distributed.tensor.parallel import RowwiseParallel as TorchRowwise

from ..linears import linear
from ..nn import Linear
from .groups import ranks_of
from .layers import gathered_product, scattered_product


class _Parallel(Linear):
    """A layer whose weight is a DTensor, and what its style said of its input and output."""

    parallel: tuple[Any, Any, Any, bool]

    def _placed(self, x: torch.Tensor) -> DTensor:
        mesh, input_layouts, _, _ = self.parallel
        if isinstance(x, DTensor):
            return x
        return DTensor.from_local(x, mesh, input_layouts, run_check=False)

    def _given(self, y: DTensor) -> torch.Tensor:
        _, _, output_layouts, local = self.parallel
        if y.placements != output_layouts:
            y = y.redistribute(placements=output_layouts)
        return y.to_local() if local else y

    def _plainly(self, x: DTensor, layout: Any) -> torch.Tensor:
        """As torch's style does it."""
        x = x.redistribute(placements=[layout])
        y: Any = linear(x, self.weight, self.bias, self.epilogue, backend=self.backend)
        return self._given(y)


class GatheringLinear(_Parallel):
    """``ColwiseParallel``'s layer: rows of x are gathered, and columns of the weight stay."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., in_features], divided by rows -> [..., out_features], by columns."""
        x = self._placed(input)
        mesh, *_ = self.parallel
        dim = _rows(x, x.placements[0])
        if dim is None or not _divides(x.shape, dim, mesh.size()):
            return self._plainly(x, Replicate())
        weight, bias = _local(self.weight), _local(self.bias)
        rows_first = x.to_local().movedim(dim, 0)
        y = gathered_product(rows_first, x.shape[dim], self, weight, bias, ranks_of(mesh))
        whole = (*x.shape[:-1], self.out_features)
        y = y.movedim(0, dim)
        return self._given(_of_local(y, mesh, Shard(y.dim() - 1), whole))


class ScatteringLinear(_Parallel):
    """``RowwiseParallel``'s layer: columns of x meet rows of the weight, and sums are scattered."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., in_features], divided by columns -> [..., out_features], by rows."""
        x = self._placed(input)
        mesh, _, (output,), _ = self.parallel
        last = Shard(x.dim() - 1)
        dim = _rows(x, output)
        if (
            dim is None
            or x.placements[0] not in (last, Shard(-1))
            or not _divides(x.shape, dim, mesh.size())
        ):
            return self._plainly(x, last)
        bias: Any = self.bias
        if bias is not None:  # each rank adds it to its rows, and its gradient is the sum of theirs
            bias = bias.to_local(grad_placements=[Partial()])
        rows_first = x.to_local().movedim(dim, 0)
        y = scattered_product(rows_first, self, _local(self.weight), bias, ranks_of(mesh))
        whole = (*x.shape[:-1], self.out_features)
        return self._given(_of_local(y.movedim(0, dim), mesh, Shard(dim), whole))


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


def _rows(x: DTensor, placement: Any) -> int | None:
    """The dimension of rows that a placement divides, on a mesh of one dimension; else None."""
    if not isinstance(placement, Shard) or x.device_mesh.ndim != 1 or x.dim() < 2:
        return None
    dim = placement.dim % x.dim()
    return dim if dim < x.dim() - 1 else None


def _divides(shape: torch.Size, dim: int, world: int) -> bool:
    """Whether chunks of the dimension are chunks of all rows."""
    others = shape[:dim].numel() * shape[dim + 1 : -1].numel()
    return shape[dim] % world == 0 or others == 1


def _local(t: Any) -> Any:
    return None if t is None else t.to_local()


def _of_local(y: torch.Tensor, mesh: Any, placement: Any, shape: tuple[int, ...]) -> DTensor:
    size = torch.Size(shape)
    stride = torch.empty(size, device="meta").stride()
    return DTensor.from_local(y, mesh, [placement], run_check=False, shape=size, stride=stride)
