"""One launch as Triton's launcher passed it to the driver, to be made again without Triton.

What the launcher looks like inside differs between versions: 3.6 and 3.7 are known. Where it does
not look as expected there is no recording.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch

STREAM, PDL = 3, 6
"""Where the stream, and whether to launch with programmatic dependent launch, stand among the
arguments of Triton's C function."""

Step = tuple[Any, tuple[int, ...], tuple[Any, ...], Mapping[str, Any]]
"""(kernel, grid, positional arguments, constants and options)."""


capturing = torch._C._cuda_isCurrentStreamCapturing if torch.cuda.is_available() else bool


class Room(NamedTuple):
    """Memory that each call needs anew; its address stands behind those of the operands, and of
    several in their order."""

    address: int
    bytes: int

    def holds(self, address: int) -> bool:
        """Whether the address lies in it."""
        return 0 <= address - self.address < self.bytes


@dataclass(slots=True)
class Recorded:
    """One launch as Triton's C function was called: its arguments, and which are addresses."""

    function: Callable[..., None]
    passed: Sequence[Any]
    """All arguments; the kernel's own are the last of them where ``nested``."""
    nested: bool
    slots: list[tuple[int, int, int]]
    """(position among the kernel's arguments, or in ``passed`` where they are not nested, number
    of the address, bytes behind it)."""
    early: bool
    """Whether it starts before the kernel ahead has ended, whichever that is: of the same call
    there is none, or none that lets it."""
    described: bool
    """Whether an argument is an encoded descriptor, which holds an address."""

    def __call__(self, stream: int, addresses: tuple[int, ...]) -> None:
        self.function(*self.filled(stream, addresses))

    def filled(self, stream: int, addresses: tuple[int, ...]) -> list[Any]:
        """All arguments, for a stream and addresses. On the default stream, which is never
        captured, with no slots, they are ``passed`` as it stands."""
        passed = [*self.passed]
        passed[STREAM] = stream
        if self.early and stream and capturing():
            # In a graph a programmatic edge behind a kernel that never triggers costs 0.3 to 0.6 us
            # more than a plain one (H200), and who is ahead is not known here.
            passed[PDL] = False
        if self.slots:
            values = passed
            if self.nested:
                values = passed[-1] = [*passed[-1]]
            for position, number, behind in self.slots:
                values[position] = addresses[number] + behind
        return passed

    def settle(self, addresses: tuple[int, ...]) -> None:
        """Put the operands' addresses into their places: all calls from now on have these. The
        arguments become a tuple, which Python hands over without a copy."""
        every = [*self.passed]
        own = every[-1] if self.nested else every
        for position, number, behind in self.slots:
            if number < len(addresses):
                own[position] = addresses[number] + behind
        self.slots = [slot for slot in self.slots if slot[1] >= len(addresses)]
        self.passed = (*every,)


def record(
    compiled: Any,
    step: Step,
    addresses: tuple[int, ...],
    rooms: Sequence[Room] = (),
    ahead: Step | None = None,
) -> Recorded | None:
    """What Triton's launcher passes to its C function for this launch; nothing is launched.

    Args:
        compiled: what Triton launched.
        step: how.
        addresses: of the operands.
        rooms: where other tensors lie.
        ahead: the launch before it, of the same call.

    Returns None where the launcher is not as expected, or needs scratch memory of its own.
    """
    kernel, grid, args, constants = step
    calls: list[tuple[Any, ...]] = []

    def recorder(*passed: Any) -> None:
        calls.append(passed)

    try:
        programs = (*grid, 1, 1)[:3]
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
        head = (*programs, 0, compiled.function, compiled.packed_metadata, None, None, None)
        launcher(*head, *values)
        (passed,) = calls
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    if list(passed[: STREAM + 2]) != [*programs, 0, compiled.function]:
        return None
    every = list(passed)
    nested = isinstance(every[-1], (tuple, list))
    own = every
    if nested:
        own = every[-1] = list(every[-1])
    slots = []
    for position, value in enumerate(own):
        if isinstance(value, torch.Tensor):
            place = _place(value.data_ptr(), addresses, rooms)
            if place is None:
                return None
            slots.append((position, *place))
            own[position] = 0
    described = any(is_descriptor(value) for value in own)
    lets = ahead is not None and (ahead[3].get("PDL") or ahead[3].get("launch_pdl"))
    early = every[PDL] is True and not lets
    return Recorded(function, every, nested, slots, early, described)


def _place(
    address: int, addresses: tuple[int, ...], rooms: Sequence[Room]
) -> tuple[int, int] | None:
    """(number, bytes behind it) of the address that a tensor's is known by."""
    if address in addresses:
        return addresses.index(address), 0
    for number, room in enumerate(rooms, len(addresses)):
        if room.holds(address):
            return number, address - room.address
    return None


def is_descriptor(x: Any) -> bool:
    """Whether that is an encoded tensor descriptor, as the C function takes it."""
    return type(x).__name__ == "PyCUtensorMap"
