"""A backend's kernel of an epilogue's derivative and of column sums, as backward passes run it."""

from __future__ import annotations

from typing import Any

import torch

from .. import dispatch
from ..forks import first_call
from ..launch import Launch, Start
from ..launch_cache import BITS, forgotten_too, keep
from ..problem import Fusion

_kept: dict[Any, Start] = {}
forgotten_too.append(_kept)


def has_derivative(launch: Launch, dtype: torch.dtype) -> bool:
    """Whether the launch's backend has such kernels for gradients of a result, of operands of a
    dtype."""
    if dtype.itemsize > 4 or launch.dtype.itemsize > 4:
        return False
    return dispatch.derivative(launch.plans[0].backend) is not None


def through(
    launch: Launch, epilogue: str, rows: Any, seen: Any, dtype: torch.dtype, sums: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``rows`` times the derivative of the epilogue, and its column sums where ``sums``.

    Args:
        launch: the product that the epilogue follows, of a backend that has the kernel.
        rows: the gradient by the result, [M, N]; [..., N] where the backend's kernels read
            addresses alone (launch.Launch).
        seen: the pre-activation, in the same way; for relu the result.
        dtype: of what is returned first.
    """
    below = launch.empty(launch.shape, launch.strides, dtype)
    total = launch.empty(launch.shape[1:], (1,), launch.dtype) if sums else None
    start = _start_of(launch, epilogue, rows, seen, below, total)
    try:
        start(rows, seen, below, None, total)
    except RuntimeError as error:
        raise launch.explained(error) from error
    return below, total


def column_sums(
    launch: Launch, rows: Any, start: Start | None = None, total: Any = None
) -> tuple[torch.Tensor, Start]:
    """The sum of the rows [M, N], [N]: summed in float32, in an order that does not change.

    Args:
        rows: as for ``through``.
        start: what was returned for such rows before, if they are known to be alike.
        total: where the sum goes; memory of its own by default.

    Returns:
        The sum, and the kernel, bound to such rows.
    """
    if total is None:
        total = launch.empty((rows.shape[-1],), (1,), rows.dtype)
    if start is None:
        start = _start_of(launch, "", rows, None, None, total)
    try:
        start(rows, None, None, None, total)
    except RuntimeError as error:
        raise launch.explained(error) from error
    return total, start


def _start_of(launch: Launch, epilogue: str, rows: Any, seen: Any, below: Any, total: Any) -> Start:
    backend, bits = launch.plans[0].backend, BITS[launch.device >= 0]
    start = rows.data_ptr()
    key: tuple[Any, ...] = (
        backend, epilogue, rows.shape, rows.stride(), rows.dtype, launch.device, start & bits,
        None if total is None else total.dtype,
    )  # fmt: skip
    if seen is not None:
        at = seen.data_ptr()
        key = *key, seen.stride(), below.stride(), below.dtype, at & bits, start == at
    run = _kept.get(key)
    if run is None:
        with first_call():
            bind = dispatch.derivative(backend)
            assert bind is not None
            matrices = [t if t is None else t.flatten(0, -2) for t in (rows, seen)]
            run = bind(*matrices, below, Fusion(epilogue=epilogue, bias=total))
            keep(_kept, key, run)
    return run
