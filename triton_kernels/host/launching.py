"""Launch a rung's kernel, and on a repeated call replay what Triton passed to the driver before.

``kernel[grid](...)`` binds and specializes every argument anew: 13 us of host time with pointers,
15 us with three tensor descriptors, against 7.4 us for all of torch.mm (H200). A rung is bound once
to a kind of call. The first call goes Triton's way; then Triton's own launcher runs once more with
a recorder in place of its C function, and later calls hand the recorded arguments to the C function
directly, with the stream and the addresses replaced.

What compiled code and recorded arguments rest on is the kind of call, which the caller promises:
shapes, strides and dtypes, the device, the plan, what is fused, and every address modulo 16 bytes,
which is what Triton specializes on. A kernel with tensor descriptors is recorded again for each
set of addresses, since a descriptor holds one.

Where Triton's launcher does not look as recording.py expects nothing is replayed, and each call
takes ``kernel[grid]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from . import lent, recording
from .recording import Recorded, Room, Step, record
from .runtime import INTERPRETED, check, one_at_a_time, triton

ADDRESSES = 512
"""Sets of addresses remembered of one kind of call with tensor descriptors."""


@dataclass(slots=True)
class Asked:
    """What a fusion asks for, with the tensors of one call."""

    alpha: float
    beta: float
    epilogue: str
    compute: str
    mma_shape: str
    aux: str = ""
    c: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None


Second = Callable[..., Step | None]
"""``second(a, b, c, args, plan)``: the launch that follows the one with those arguments."""


class Repack(Protocol):
    """What is done to A and B before the kernel reads them."""

    def room(self, a: torch.Tensor, b: torch.Tensor) -> int:
        """Bytes of the copies; 0 where the kernel can read both as they lie."""

    def steps(
        self, a: torch.Tensor, b: torch.Tensor, room: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[Step]]:
        """A and B as the kernel can read them, and the launches that copy them into ``room``."""


class Rung:
    """What a rung's module calls ``run``: ``run(a, b, c, fusion=None, **plan)`` writes C.

    C[M, N] = A[M, K] @ B[K, N], or the same for each of a batch [batch, M, K] where the rung takes
    batches; ``fusion`` says what is asked besides, with the attributes alpha, beta, c, bias,
    epilogue, scale_a, scale_b, compute and mma_shape. It is None for a plain product of float16 or
    bfloat16, summed in float32.

    Raises RuntimeError where kernels cannot read the operands' device.
    """

    def __init__(
        self,
        kernel: Any,
        arguments: Callable[..., Any],
        *,
        second: Second | None = None,
        repack: Callable[[str, Mapping[str, int]], Repack | None] | None = None,
        rounding: Any = None,
    ) -> None:
        """
        Args:
            kernel: the function that Triton compiles.
            arguments: ``arguments(a, b, c, **plan)``, or ``(a, b, c, fusion, **plan)`` where
                something is fused -> (grid, positional arguments, constants and options). A tensor
                among them that is no operand is a workspace: later calls get one of their own.
            second: the launch that follows.
            repack: ``repack(compute, plan)``: what is done to A and B first, if anything.
            rounding: the kernel in place of ``kernel`` where float32 operands are rounded to tf32.
        """
        self.kernel, self.arguments, self.second = kernel, arguments, second
        self.repack, self.rounding = repack, rounding

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> None:
        fused = () if fusion is None else (fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
        self.bind(a, b, c, fusion, **plan)(a, b, c, *fused)

    def bind(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> Bound:
        """The rung for products like this one; see ``Bound``."""
        return Bound(self, plan, fusion, (a, b, c, None if fusion is None else fusion.c))


class Kept(NamedTuple):
    """What was recorded of one call."""

    recorded: list[Recorded]
    pattern: list[int] | None
    """Which addresses were equal, where any were: recorded ones are known by value, so that these
    must stay equal."""
    room: int
    """Bytes that each call needs anew. They stand here, and not in Bound, because a thread may
    record while another calls."""
    begins: tuple[int, ...]
    """Where in that memory the copies of A and B begin, and the parts of C; nothing of memory whose
    address is recorded."""


class Bound:
    """A rung bound to a kind of call: ``bound(a, b, c, c_in, bias, scale_a, scale_b)``.

    The caller promises that all calls have tensors of the same shapes, strides, dtypes, device and
    alignment, and the same of them None: B and C both or neither. No tensor is kept. In the place
    of A, B, C and C_in a call may hand over other tensors that begin at the same address and hold
    the same elements, such as a batch of rows for the matrix of all rows.
    """

    by_address = True

    __slots__ = (
        "_asked", "_by_address", "_compiled", "_kept", "_kernel", "_lays", "_plan", "_replays",
        "_room", "_rung", "repack",
    )  # fmt: skip

    def __init__(
        self, rung: Rung, plan: Mapping[str, int], fusion: Any, operands: tuple[Any, ...]
    ) -> None:
        """
        Args:
            operands: A, B, C and C_in of a call of the kind.
        """
        self._rung, self._plan = rung, plan
        self._lays = [None if t is None else (t.shape, t.stride()) for t in operands]
        self._asked = None if fusion is None else (
            fusion.alpha, fusion.beta, fusion.epilogue, fusion.compute, fusion.mma_shape,
            fusion.aux,
        )  # fmt: skip
        compute = getattr(fusion, "compute", "")
        rounds = rung.rounding is not None and compute == "tf32"
        self._kernel = rung.rounding if rounds else rung.kernel
        self.repack = None if rung.repack is None else rung.repack(compute, plan)
        self._compiled: list[Any] = []  # kept alive with their binaries
        # Bytes of the memory with the copies of A and B, whose address descriptors hold.
        self._room = 0
        # Written and read at once, since threads share it.
        self._kept: Kept | None = None
        # Of a kernel with descriptors, which hold addresses: by the set of them.
        self._by_address: dict[tuple[int, ...], Kept] = {}
        self._replays = True  # until Triton's launcher is found to look otherwise

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor | None,
        c: torch.Tensor | None,
        c_in: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        scale_a: torch.Tensor | None = None,
        scale_b: torch.Tensor | None = None,
    ) -> None:
        addresses: tuple[int, ...]
        if b is None or c is None:
            addresses = (a.data_ptr(),)
        elif bias is not None and None is c_in is scale_a is scale_b:  # as of a linear layer
            addresses = (a.data_ptr(), b.data_ptr(), c.data_ptr(), bias.data_ptr())
        else:
            addresses = (a.data_ptr(), b.data_ptr(), c.data_ptr())
            if self._asked is not None:
                for x in (c_in, bias, scale_a, scale_b):
                    if x is not None:
                        addresses += (x.data_ptr(),)
        kept = self._kept
        room = 0  # an address, and what holds the memory there, if it is a tensor
        of_room = stream = None
        try:
            if kept is None:
                # Descriptors hold the address of the copies as well.
                where = addresses
                if self._room:
                    stream = torch._C._cuda_getCurrentRawStream(a.get_device())
                    room, of_room = lent.lend(a, self._room, stream)
                    where = (*addresses, room)
                kept = self._by_address.get(where)
            elif kept.pattern is not None and [*map(addresses.index, addresses)] != kept.pattern:
                kept = None
            if kept is None or hooked():
                if room and of_room is None:  # Triton takes tensors: one of the same memory
                    room = lent.give_back(room)
                fused = (c_in, bias, scale_a, scale_b)
                self._by_triton(a, b, c, fused, addresses, of_room)
                return
            if stream is None:
                stream = torch._C._cuda_getCurrentRawStream(a.get_device())
            if kept.room and not room:
                room, of_room = lent.lend(a, kept.room, stream)
            for begin in kept.begins:
                addresses += (room + begin,)
            for one in kept.recorded:
                passed = one.filled(stream, addresses) if stream or one.slots else one.passed
                one.function(*passed)
        finally:  # later work of the stream may have it
            if room and of_room is None:
                lent.give_back(room)

    def _by_triton(
        self,
        a: Any,
        b: Any,
        c: Any,
        fused: tuple[Any, ...],
        addresses: tuple[int, ...],
        room: torch.Tensor | None,
    ) -> None:
        """Launch as Triton does, and record it.

        Args:
            room: memory that begins where copies are to lie.
        """
        check(a)
        a, b, c, c_in = map(_laid, (a, b, c, fused[0]), self._lays)
        fused = c_in, *fused[1:]
        steps: list[Step] = []
        copies = None
        if self.repack is not None and (size := self.repack.room(a, b)):
            # Of as many bytes as calls ask for, so that theirs is mostly the same memory.
            copies = (lent.memory(a, max(size, self._room)) if room is None else room)[:size]
            a, b, steps = self.repack.steps(a, b, copies)
        fusion = None if self._asked is None else Asked(*self._asked, *fused)
        steps += self.steps(a, b, c, fusion)
        # Not where other addresses are equal than were, or nothing is replayed.
        records = self._kept is None and self._replays and not hooked()
        stream = 0 if INTERPRETED else torch._C._cuda_getCurrentRawStream(a.get_device())
        captured = records and stream != 0 and recording.capturing()
        with one_at_a_time:
            compiled = [(_compile if captured else _launch)(step) for step in steps]
        if INTERPRETED:
            return
        self._compiled = compiled
        if not records:
            return
        parts = _workspace(steps, addresses, copies)
        made = [x for x in (copies, parts) if x is not None]
        recorded = _record(compiled, steps, addresses, [_room(x) for x in made])
        if captured:  # which Triton's own launch does not ask for
            _launch_recorded(recorded, steps, stream, (*addresses, *(x.data_ptr() for x in made)))
        if recorded is None:
            self._replays, self._room = False, 0
            return
        begins: tuple[int, ...] = ()
        size = 0
        for x in made:
            begins, size = (*begins, lent.whole(size)), lent.whole(size) + x.nbytes
        pattern = [*map(addresses.index, addresses)]
        unequal = pattern == [*range(len(pattern))]
        if not any(one.described for one in recorded):
            self._kept = Kept(recorded, None if unequal else pattern, size, begins)
            return
        where = settled = addresses
        if copies is not None:  # calls are known by where their copies lie, and so all that follows
            self._room, first = size, copies.data_ptr()
            where, settled = (*where, first), (*where, *(first + begin for begin in begins))
            begins = ()
        for one in recorded:
            one.settle(settled)
        if len(self._by_address) >= ADDRESSES:
            self._by_address.clear()
        self._by_address[where] = Kept(recorded, None, size, begins)

    def steps(self, a: Any, b: Any, c: Any, fusion: Any) -> list[Step]:
        """The launches of the product, as Triton takes them; the copies come before."""
        rung, plan = self._rung, self._plan
        asked = () if fusion is None else (fusion,)
        grid, args, constants = rung.arguments(a, b, c, *asked, **plan)
        steps: list[Step] = [(self._kernel, grid, args, constants)]
        after = rung.second(a, b, c, args, plan) if rung.second is not None else None
        return [*steps, after] if after is not None else steps


def _laid(x: Any, lay: tuple[Any, Any] | None) -> Any:
    """The tensor with a shape and strides, in its memory."""
    if x is None or lay is None or (x.shape, x.stride()) == lay:
        return x
    return x.as_strided(*lay)


def _workspace(
    steps: list[Step], addresses: tuple[int, ...], copies: torch.Tensor | None
) -> torch.Tensor | None:
    """The tensor among the arguments that is no operand, nor a copy of one."""
    mine = Room(0, 0) if copies is None else _room(copies)
    for step in steps:
        for x in step[2]:
            if not isinstance(x, torch.Tensor) or x.data_ptr() in addresses:
                continue
            if not mine.holds(x.data_ptr()):
                return x
    return None


def _room(x: torch.Tensor) -> Room:
    return Room(x.data_ptr(), x.nbytes)


def _launch(step: Step) -> Any:
    """By Triton; what it has launched."""
    kernel, grid, args, constants = step
    return kernel[grid](*args, **constants)


def _compile(step: Step) -> Any:
    """What Triton would launch."""
    kernel, grid, args, constants = step
    return kernel.warmup(*args, grid=grid, **constants)


def _launch_recorded(
    recorded: list[Recorded] | None, steps: list[Step], stream: int, addresses: tuple[int, ...]
) -> None:
    """The launches of a call that a graph captures, as later calls would launch them."""
    if recorded is None:
        for step in steps:
            _launch(step)
        return
    for one in recorded:
        one(stream, addresses)


def _record(
    compiled: list[Any],
    steps: list[Step],
    addresses: tuple[int, ...],
    rooms: Sequence[Room],
) -> list[Recorded] | None:
    recorded = []
    for each, step, ahead in zip(compiled, steps, [None, *steps[:-1]], strict=True):
        one = record(each, step, addresses, rooms, ahead)
        if one is None:
            return None
        recorded.append(one)
    return recorded


_runtime = triton.knobs.runtime


def hooked() -> bool:
    """Whether somebody (a profiler) wants to hear of launches: then all of them go by Triton."""
    enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
    return bool(
        (enter is not None and getattr(enter, "calls", True))
        or (leave is not None and getattr(leave, "calls", True))
    )
