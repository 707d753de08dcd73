"""Launch a kernel, and on a repeated call replay what Triton passed to the driver the first time.

``kernel[grid](...)`` binds and specializes every argument anew: 13 us of host time with pointers,
15 us with three tensor descriptors, against 7.4 us for all of torch.mm (H200). Here the first call
of a kind goes that way. Then Triton's own launcher runs once more with a recorder in place of its
C function, and later calls hand the recorded arguments to the C function directly, with the stream
and the addresses replaced.

The guard is the key of that memory: everything that compiled code and recorded arguments rest on.
Shapes, strides and dtypes, the device, the plan, what is fused, and every address modulo 16 bytes,
which is what Triton specializes on. A kernel with tensor descriptors is recorded again for each
set of addresses, since a descriptor holds one.

What Triton's launcher looks like inside differs between versions (3.6 and 3.7 are known). Where it
does not look as expected nothing is replayed, and each call takes ``kernel[grid]``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any

import torch

from .runtime import INTERPRETED, check, one_at_a_time, triton

KINDS = 4096
"""Kinds of calls remembered."""

ADDRESSES = 512
"""Sets of addresses remembered of one kind of call with tensor descriptors."""

STREAM = 3
"""Where the stream stands among the arguments of Triton's C function."""

FUSED = ("c", "bias", "scale_a", "scale_b")
"""The attributes of a fusion that are tensors or None."""

Step = tuple[Any, tuple[int], tuple[Any, ...], Mapping[str, Any]]
"""(kernel, grid, positional arguments, constants and options)."""

Second = Callable[..., Step | None]
"""``second(a, b, c, args, plan)``: the launch that follows the one with those arguments."""


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
        values = self.values
        if self.slots:
            values = values.copy()
            for position, number in self.slots:
                values[position] = addresses[number]
        if self.nested:
            self.function(*head, values)
        else:
            self.function(*head, *values)


@dataclass(slots=True)
class Kind:
    """What is remembered of a kind of call."""

    compiled: list[Any]
    """Kept alive with their binaries."""
    described: bool
    """Addresses are inside of tensor descriptors: recordings are kept by them."""
    workspace: int
    """Elements of float32 that each call needs anew; 0 for none."""
    counts: bool
    """Whether parts of a tile meet by ``counts``."""
    recorded: list[Recorded] | None
    """None where Triton's launcher is not as expected, or where described."""
    by_address: dict[tuple[int, ...], list[Recorded]] = field(default_factory=dict)


_kinds: dict[tuple[Any, ...], Kind] = {}

COUNTS = 512
"""Counters of a set: two a tile whose parts meet, of which a GPU's SMs have at most one each."""

SPARE = 512
"""Sets for captured launches on a GPU, 1 MB."""

_counts: dict[tuple[int, int], torch.Tensor] = {}
_spare: dict[int, list[torch.Tensor]] = {}


def launch(
    kernel: Any,
    arguments: Callable[..., Any],
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Any,
    plan: Mapping[str, int],
    second: Second | None = None,
) -> None:
    """Run a rung's kernel, and its second pass where it has one.

    Args:
        kernel: the function that Triton compiles.
        arguments: ``arguments(a, b, c, **plan)``, or ``(a, b, c, fusion, **plan)`` where something
            is fused -> (grid, positional arguments, constants and options). A tensor among them
            that is no operand is a workspace of float32, or ``counts``: later calls get their own.
        a, b, c, fusion, plan: of the rung's ``run``.
        second: the launch that follows.

    Raises:
        RuntimeError: the operands are where kernels cannot read them.
    """
    tensors = (a, b, c) if fusion is None else (a, b, c, *_tensors(fusion))
    addresses = tuple([x.data_ptr() for x in tensors])
    key = (arguments, *plan, *plan.values(), *_guard(tensors, addresses, fusion))
    kind = _kinds.get(key)
    if kind is not None and _replay(kind, a, addresses):
        return
    check(a)
    steps = _steps(kernel, arguments, a, b, c, fusion, plan, second)
    with one_at_a_time:
        compiled = [step[0][step[1]](*step[2], **step[3]) for step in steps]
    if INTERPRETED:
        return
    if kind is None:
        if len(_kinds) >= KINDS:
            _kinds.pop(next(iter(_kinds)), None)
        _kinds[key] = _remember(compiled, steps, addresses)
    elif kind.described:
        recorded = _record(compiled, steps, addresses)
        if recorded is not None:
            if len(kind.by_address) >= ADDRESSES:
                kind.by_address.clear()
            kind.by_address[addresses] = recorded


def bind(
    kernel: Any,
    arguments: Callable[..., Any],
    second: Second | None,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Any = None,
    **plan: int,
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """``launch`` for callers that have a guard of their own.

    Returns a function of A, B and C for tensors with the shapes, strides, dtypes and device of
    these, which the caller promises; addresses it looks at itself. ``fusion`` holds no tensors.
    """
    addresses = a.data_ptr(), b.data_ptr(), c.data_ptr()
    key = (arguments, *plan, *plan.values(), *_guard((a, b, c), addresses, fusion))
    pa, pb, pc = (address & 15 for address in addresses)
    same = addresses[0] == addresses[1]

    def bound(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        x, y, z = a.data_ptr(), b.data_ptr(), c.data_ptr()
        kind = _kinds.get(key)
        if (
            kind is None
            or x & 15 != pa
            or y & 15 != pb
            or z & 15 != pc
            or (x == y) is not same
            or not _replay(kind, a, (x, y, z))
        ):
            launch(kernel, arguments, a, b, c, fusion, plan, second)

    return bound


def counts(like: torch.Tensor) -> torch.Tensor:
    """COUNTS counters of int32, zero, for a launch that leaves them zero; no other that may run at
    the same time has them.

    One set a stream, whose launches follow one another. A launch that is captured may be replayed
    on any stream, so it gets a set for good, zeroed beforehand where this GPU has been used before;
    else, or when those are spent, zeroed in the graph, for a microsecond or two a replay.
    """
    if not like.is_cuda:
        return torch.empty(COUNTS, dtype=torch.int32, device=like.device)
    device = like.get_device()
    with torch.cuda.device(device):
        captured = torch.cuda.is_current_stream_capturing()
    if captured:
        spare = _spare.get(device)
        return spare.pop() if spare else torch.zeros(COUNTS, dtype=torch.int32, device=like.device)
    key = device, torch._C._cuda_getCurrentRawStream(device)
    kept = _counts.get(key)
    if kept is None:
        kept = _counts[key] = torch.zeros(COUNTS, dtype=torch.int32, device=like.device)
        if device not in _spare:
            zeros = torch.zeros(SPARE, COUNTS, dtype=torch.int32, device=like.device)
            torch.cuda.synchronize(device)
            _spare[device] = list(zeros)
    return kept


def _replay(kind: Kind, a: torch.Tensor, addresses: tuple[int, ...]) -> bool:
    """Launch from memory; False where that cannot be, and nothing has been launched."""
    recorded = kind.by_address.get(addresses) if kind.described else kind.recorded
    if recorded is None or _hooked():
        return False
    if kind.workspace:
        room = torch.empty(kind.workspace, dtype=torch.float32, device=a.device)
        addresses = (*addresses, room.data_ptr())
        if kind.counts:
            addresses = (*addresses, counts(a).data_ptr())
    stream = torch._C._cuda_getCurrentRawStream(a.get_device())
    for one in recorded:
        one(stream, addresses)
    return True


def _guard(
    tensors: tuple[torch.Tensor, ...], addresses: tuple[int, ...], fusion: Any
) -> tuple[Any, ...]:
    """All that compiled code and recorded arguments rest on, of the operands."""
    a, b, c = tensors[:3]
    pa, pb, pc = addresses[:3]
    plain = (
        a.get_device(),
        a.dtype,
        b.dtype,
        c.dtype,
        a.shape,
        b.shape,
        a.stride(),
        b.stride(),
        c.stride(),
        pa & 15,
        pb & 15,
        pc & 15,
        # A recorded argument is known by its address: equal ones must stay equal.
        pa == pb,
    )
    if fusion is None:
        return plain
    return (
        *plain,
        fusion.alpha,
        fusion.beta,
        fusion.epilogue,
        fusion.compute,
        fusion.mma_shape,
        *(getattr(fusion, name) is None for name in FUSED),
        *((x.dtype, x.shape, x.stride()) for x in tensors[3:]),
        *(address & 15 for address in addresses[3:]),
        *map(addresses.index, addresses),
    )


def _tensors(fusion: Any) -> tuple[torch.Tensor, ...]:
    found = (getattr(fusion, name) for name in FUSED)
    return tuple(x for x in found if x is not None)


def _steps(
    kernel: Any,
    arguments: Callable[..., Any],
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Any,
    plan: Mapping[str, int],
    second: Second | None,
) -> list[Step]:
    fused = () if fusion is None else (fusion,)
    grid, args, constants = arguments(a, b, c, *fused, **plan)
    steps: list[Step] = [(kernel, grid, args, constants)]
    after = second(a, b, c, args, plan) if second is not None else None
    return [*steps, after] if after is not None else steps


def _remember(compiled: list[Any], steps: list[Step], addresses: tuple[int, ...]) -> Kind:
    recorded = _record(compiled, steps, addresses)
    if recorded is None:
        return Kind(compiled, False, 0, False, None)
    given = [x for step in steps for x in step[2] if isinstance(x, torch.Tensor)]
    own = [x for x in given if x.data_ptr() not in addresses]
    workspace = max((x.numel() for x in own if x.dtype == torch.float32), default=0)
    described = any(_is_descriptor(x) for one in recorded for x in one.values)
    counted = any(x.dtype == torch.int32 for x in own)
    kind = Kind(compiled, described, workspace, counted, None if described else recorded)
    if described:
        kind.by_address[addresses] = recorded
    return kind


def _record(
    compiled: list[Any], steps: list[Step], addresses: tuple[int, ...]
) -> list[Recorded] | None:
    found = [record(*pair, addresses) for pair in zip(compiled, steps, strict=True)]
    recorded = [one for one in found if one is not None]
    return recorded if len(recorded) == len(found) else None


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
        first = (
            i for i, x in enumerate(passed) if isinstance(x, torch.Tensor) or _is_descriptor(x)
        )
        start = next(first, len(passed))
        before, after = list(passed[:start]), list(passed[start:])
    if before[: STREAM + 2] != [programs, 1, 1, 0, compiled.function]:
        return None
    slots = []
    for position, value in enumerate(after):
        if isinstance(value, torch.Tensor):
            address = value.data_ptr()
            own = len(addresses) + (value.dtype == torch.int32)
            slots.append((position, addresses.index(address) if address in addresses else own))
            after[position] = 0
    return Recorded(function, before, after, nested, slots)


def _is_descriptor(x: Any) -> bool:
    """Whether that is an encoded tensor descriptor, as the C function takes it."""
    return type(x).__name__ == "PyCUtensorMap"


_runtime = triton.knobs.runtime


def _hooked() -> bool:
    """Whether somebody (a profiler) wants to hear of launches: then all of them go by Triton."""
    enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
    return bool(
        (enter is not None and getattr(enter, "calls", True))
        or (leave is not None and getattr(leave, "calls", True))
    )
