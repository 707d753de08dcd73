"""Launching a compiled kernel again, without the JIT's work per call.

``kernel[grid](...)`` binds and specializes its arguments on every call and encodes every host
tensor descriptor anew: 20 to 60 us. Here the first launch goes through Triton's own launcher with
a recorder in the place of its last step, and what arrives there, tensor maps encoded, is kept: a
repeated call hands it to the C function with nothing but the stream changed.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch

KEPT = 512
"""Launches kept, oldest out first: about 2 KB each. They hold addresses, never tensors."""

STREAM = 3
"""Position of the stream among the arguments of Triton's launch function, after the grid."""

Launch = Callable[[int], None]
"""Launches on a stream of the current device, given as an integer."""

_kept: OrderedDict[Hashable, Launch] = OrderedDict()


def kept(key: Hashable) -> Launch | None:
    """The launch remembered under ``key``, which names all that it depends on: kernel, plan,
    device, addresses, shapes, strides and dtypes."""
    return _kept.get(key)


def keep(key: Hashable, launch: Launch) -> None:
    """Remember a launch."""
    _kept[key] = launch
    if len(_kept) > KEPT:
        _kept.popitem(last=False)


def prepare(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]
) -> Launch:
    """Compile ``kernel`` for these arguments where needed, and make its launch.

    Args:
        grid: programs along one to three dimensions.
        args: positional arguments: numbers, tensors and tensor descriptors.
        constants: constexpr parameters and compiler options by name.

    Launch hooks of profilers are not called. A Triton whose launcher looks otherwise than that of
    3.6 and 3.7 is launched the long way.
    """
    compiled = kernel.warmup(*args, grid=grid, **constants)
    values = (*args, *(constants[name] for name in kernel.arg_names[len(args) :]))
    sizes = (*grid, 1, 1)[:3]
    launcher = compiled.run
    module = inspect.getmodule(type(launcher))
    expand = getattr(module, "wrap_handle_tensordesc", None)
    if expand is None or not hasattr(launcher, "launch"):
        return lambda stream: kernel[grid](*args, **constants)
    last_step = inspect.getclosurevars(launcher.launch).nonlocals.get("launcher", launcher.launch)
    recorded: list[tuple[Any, ...]] = []
    recorder = copy.copy(launcher)
    described = getattr(compiled.metadata, "tensordesc_meta", None)
    recorder.launch = expand(lambda *a: recorded.append(a), compiled.src.signature, described)
    hooks = (None, None, None)
    recorder(*sizes, 0, compiled.function, compiled.packed_metadata, *hooks, *values)
    before, after = recorded[0][:STREAM], recorded[0][STREAM + 1 :]
    return lambda stream: last_step(*before, stream, *after)


def stream_of(device: int) -> int:
    """The current stream of a GPU, as the integer that a launch takes."""
    return int(torch._C._cuda_getCurrentRawStream(device))
