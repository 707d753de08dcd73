"""Launch a kernel, and on a repeated call replay what Triton passed to the driver the first time.

``kernel[grid](...)`` binds and specializes every argument anew: 7 us for pointers, over 40 us with
three tensor descriptors, against 8 us for all of torch.mm (H200). Here the first call of a kind
goes that way. Then Triton's own launcher is run once more with a recorder in place of its C
function, and later calls hand the recorded arguments to the C function directly, with the stream
and the addresses replaced.

The guard is the key of that cache: everything that the compiled code may rest on. Shapes, strides
and dtypes, the device, the plan, and every address modulo 16 bytes, which is what Triton
specializes on. A kernel with tensor descriptors is recorded again for each set of addresses, since
a descriptor holds one.

What Triton's launcher looks like inside differs from version to version (3.6 and 3.7 are known).
Where it does not look as expected nothing is replayed and each call takes ``kernel[grid]``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any

import torch

from .runtime import INTERPRETED, check, triton

KINDS = 4096
"""Kinds of calls remembered."""

ADDRESSES = 512
"""Sets of addresses remembered of one kind of call with tensor descriptors."""

STREAM = 3
"""Where the stream stands among the arguments of Triton's C launcher."""

Step = tuple[Any, tuple[int], tuple[Any, ...], Mapping[str, Any]]
"""(kernel, grid, positional arguments, constants and options)."""

Arguments = Callable[..., tuple[tuple[int], tuple[Any, ...], Mapping[str, Any]]]


@dataclass(slots=True)
class Recorded:
    """One launch as Triton's C launcher was called: the arguments, and which are addresses."""

    function: Callable[..., None]
    head: list[Any]
    """What comes before the kernel's arguments; the stream stands at STREAM."""
    values: list[Any]
    """The kernel's arguments, inside a sequence of their own or after the head."""
    nested: bool
    slots: list[tuple[int, int]]
    """(position in ``values``, number of the address)."""

    def __call__(self, stream: int, addresses: tuple[int, ...]) -> None:
        head, values = self.head.copy(), self.values.copy()
        head[STREAM] = stream
        for position, number in self.slots:
            values[position] = addresses[number]
        if self.nested:
            self.function(*head, values)
        else:
            self.function(*head, *values)


@dataclass(slots=True)
class Kind:
    """What is kept of a kind of call."""

    compiled: list[Any]
    """Kept alive with their binaries."""
    described: bool
    """Addresses are inside of tensor descriptors."""
    workspace: int
    """Elements of float32 that every call needs anew; 0 for none."""
    replay: list[Recorded] | None
    """None where Triton's launcher is not as expected, or described."""
    by_address: dict[tuple[int, ...], list[Recorded]] = field(default_factory=dict)


_kinds: dict[tuple[Any, ...], Kind] = {}


def launch(
    kernel: Any,
    arguments: Arguments,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Any,
    plan: Mapping[str, int],
    second: Callable[..., Step | None] | None = None,
) -> None:
    """Run a rung's kernel, and its second pass where it has one.

    Args:
        kernel: the compiled-on-demand function.
        arguments: ``arguments(a, b, c, fusion, **plan)`` -> (grid, positional arguments,
            constants and options). A tensor among them that is no operand is a workspace of
            float32: later calls get one of their own.
        a, b, c, fusion, plan: of the rung's ``run``.
        second: ``second(a, b, c, args, plan)`` -> another launch that follows, or None; ``args``
            are the positional arguments of the first.

    Raises:
        RuntimeError: the operands are where kernels cannot read them.
    """
    tensors = (a, b, c) if fusion is None else (a, b, c, *_tensors(fusion))
    addresses = tuple([x.data_ptr() for x in tensors])
    key = (arguments, *plan, *plan.values(), *_guard(tensors, addresses, fusion))
    kind = _kinds.get(key)
    if kind is None:
        check(a)
        steps = _steps(kernel, arguments, a, b, c, fusion, plan, second)
        compiled = [step[0][step[1]](*step[2], **step[3]) for step in steps]
        if not INTERPRETED:
            if len(_kinds) >= KINDS:
                _kinds.pop(next(iter(_kinds)), None)
            _kinds[key] = _kind(compiled, steps, addresses)
        return
    replay = kind.replay
    if replay is None and kind.described:
        replay = kind.by_address.get(addresses)
        if replay is None:
            steps = _steps(kernel, arguments, a, b, c, fusion, plan, second)
            replay = _record(kind.compiled, steps, addresses)
            if replay is not None:
                if len(kind.by_address) >= ADDRESSES:
                    kind.by_address.clear()
                kind.by_address[addresses] = replay
    if replay is None or _hooked():
        for step in _steps(kernel, arguments, a, b, c, fusion, plan, second):
            step[0][step[1]](*step[2], **step[3])
        return
    if kind.workspace:
        room = torch.empty(kind.workspace, dtype=torch.float32, device=a.device)
        addresses = (*addresses, room.data_ptr())
    stream = torch._C._cuda_getCurrentRawStream(a.get_device())
    for one in replay:
        one(stream, addresses)


def _guard(
    tensors: tuple[torch.Tensor, ...], addresses: tuple[int, ...], fusion: Any
) -> tuple[Any, ...]:
    """All that compiled code and recorded arguments rest on, of the operands."""
    a, b, c = tensors[:3]
    pa, pb, pc = addresses[:3]
    plain = (
        a.get_device(),
        a.dtype,
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


FUSED = ("c", "bias", "scale_a", "scale_b")
"""The attributes of a fusion that are tensors or None."""


def _tensors(fusion: Any) -> tuple[torch.Tensor, ...]:
    found = (getattr(fusion, name) for name in FUSED)
    return tuple(x for x in found if x is not None)


def _steps(
    kernel: Any,
    arguments: Arguments,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Any,
    plan: Mapping[str, int],
    second: Callable[..., Step | None] | None,
) -> list[Step]:
    if fusion is None:
        grid, args, constants = arguments(a, b, c, **plan)
    else:
        grid, args, constants = arguments(a, b, c, fusion, **plan)
    steps: list[Step] = [(kernel, grid, args, constants)]
    after = second(a, b, c, args, plan) if second is not None else None
    return [*steps, after] if after is not None else steps


def _kind(compiled: list[Any], steps: list[Step], addresses: tuple[int, ...]) -> Kind:
    extra = [
        x.numel()
        for step in steps
        for x in step[2]
        if isinstance(x, torch.Tensor) and x.data_ptr() not in addresses
    ]
    replay = _record(compiled, steps, addresses)
    if replay is None:
        return Kind(compiled, False, 0, None)
    described = any(type(x).__name__ == "PyCUtensorMap" for r in replay for x in r.values)
    kind = Kind(compiled, described, extra[0] if extra else 0, None if described else replay)
    if described:
        kind.by_address[addresses] = replay
    return kind


def _record(
    compiled: list[Any], steps: list[Step], addresses: tuple[int, ...]
) -> list[Recorded] | None:
    replay = []
    for one, step in zip(compiled, steps, strict=True):
        recorded = record(one, step, addresses)
        if recorded is None:
            return None
        replay.append(recorded)
    return replay


def record(compiled: Any, step: Step, addresses: tuple[int, ...]) -> Recorded | None:
    """What Triton's launcher passes to its C function for this launch, which does not happen.

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
            # Triton wraps the C function to encode descriptors: the same code over our recorder.
            names = inner.__code__.co_freevars
            cells = dict(zip(names, inner.__closure__ or (), strict=True))
            function = cells.pop("launcher").cell_contents
            closure = tuple(cells.get(name) or CellType(recorder) for name in names)
            launcher.launch = FunctionType(
                inner.__code__, inner.__globals__, closure=closure, argdefs=inner.__defaults__
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
        first = next((i for i, x in enumerate(passed) if _is_argument(x)), len(passed))
        before, after = list(passed[:first]), list(passed[first:])
    if before[: STREAM + 2] != [programs, 1, 1, 0, compiled.function]:
        return None
    slots = []
    for position, value in enumerate(after):
        if isinstance(value, torch.Tensor):
            address = value.data_ptr()
            known = address in addresses
            slots.append((position, addresses.index(address) if known else len(addresses)))
            after[position] = 0
    return Recorded(function, before, after, nested, slots)


def _is_argument(x: Any) -> bool:
    """Whether that is the first of a kernel's arguments: A, as a tensor or as its descriptor."""
    return isinstance(x, torch.Tensor) or type(x).__name__ == "PyCUtensorMap"


def _hooked() -> bool:
    """Whether somebody (a profiler) wants to hear of launches: then all of them go by Triton."""
    runtime = triton.knobs.runtime
    for hook in (runtime.launch_enter_hook, runtime.launch_exit_hook):
        if hook is not None and getattr(hook, "calls", True):
            return True
    return False
