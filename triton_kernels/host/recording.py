"""One launch as Triton's launcher passed it to the driver, to be made again without Triton.

What the launcher looks like inside differs between versions: 3.6 and 3.7 are known. Where it does
not look as expected there is no recording.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

import torch

STREAM, PDL = 3, 6
"""Where the stream, and whether to launch with programmatic dependent launch, stand among the
arguments of Triton's C function."""

Step = tuple[Any, tuple[int], tuple[Any, ...], Mapping[str, Any]]
"""(kernel, grid, positional arguments, constants and options)."""


@dataclass(slots=True)
class Recorded:
    """One launch as Triton's C function was called: its arguments, and which are addresses."""

    function: Callable[..., None]
    head: list[Any]
    """What comes before the kernel's arguments; the stream stands at STREAM."""
    values: list[Any]
    """The kernel's arguments, in a sequence of their own or behind the head."""
    nested: bool
    slots: list[tuple[int, int]]
    """(position in ``values``, number of the address)."""

    def __call__(self, stream: int, addresses: tuple[int, ...]) -> None:
        head = self.head.copy()
        head[STREAM] = stream
        if head[PDL] is True and torch._C._cuda_isCurrentStreamCapturing():
            # In a graph a programmatic edge behind a kernel that never triggers costs 0.3 to 0.6 us
            # more than a plain one (H200), and who is ahead is not known here.
            head[PDL] = False
        values = self.values
        if self.slots:
            values = values.copy()
            for position, number in self.slots:
                values[position] = addresses[number]
        if self.nested:
            self.function(*head, values)
        else:
            self.function(*head, *values)


def record(compiled: Any, step: Step, addresses: tuple[int, ...]) -> Recorded | None:
    """What Triton's launcher passes to its C function for this launch; nothing is launched.

    Returns None where the launcher is not as expected, or needs scratch memory of its own.
    """
    kernel, (programs,), args, constants = step
    calls: list[tuple[Any, ...]] = []

    def recorder(*passed: Any) -> None:
        calls.append(passed)

    try:
        launcher = copy.copy(compiled.run)
        if launcher.global_scratch_size or launcher.profile_scratch_size:
            return None
        inner = launcher.launch
        if isinstance(inner, FunctionType):
            # Triton wraps its C function to encode descriptors: the same code over our recorder.
            names = inner.__code__.co_freevars
            cells = dict(zip(names, inner.__closure__ or (), strict=True))
            function = cells.pop("launcher").cell_contents
            closure = tuple(cells.get(name) or CellType(recorder) for name in names)
            launcher.launch = FunctionType(
                inner.__code__, inner.__globals__, argdefs=inner.__defaults__, closure=closure
            )
        else:
            function, launcher.launch = inner, recorder
        values = [*args, *(constants[name] for name in kernel.arg_names[len(args) :])]
        head = (programs, 1, 1, 0, compiled.function, compiled.packed_metadata, None, None, None)
        launcher(*head, *values)
        (passed,) = calls
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    nested = isinstance(passed[-1], (tuple, list))
    if nested:
        before, after = list(passed[:-1]), list(passed[-1])
    else:
        # The first argument of every kernel is an operand or the workspace.
        first = (i for i, x in enumerate(passed) if isinstance(x, torch.Tensor) or is_descriptor(x))
        start = next(first, len(passed))
        before, after = list(passed[:start]), list(passed[start:])
    if before[: STREAM + 2] != [programs, 1, 1, 0, compiled.function]:
        return None
    slots = []
    for position, value in enumerate(after):
        if isinstance(value, torch.Tensor):
            address = value.data_ptr()
            number = addresses.index(address) if address in addresses else len(addresses)
            slots.append((position, number))
            after[position] = 0
    return Recorded(function, before, after, nested, slots)


def is_descriptor(x: Any) -> bool:
    """Whether that is an encoded tensor descriptor, as the C function takes it."""
    return type(x).__name__ == "PyCUtensorMap"
