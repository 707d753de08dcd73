"""A call, step by step, on one rank. docs/lab/several_gpus_protocol.md says why it is right.

All-gather and product           Product and reduce-scatter
enter    the slot is free        enter    the slot is free
send     own rows to peers       product  tiles to their owners, and own tiles, which add
product  tiles, as rows arrive   carry    where tiles stay here: parts of them to their owners

Nothing marks the end of a call. The next one begins behind it, and tells the peers by its first
kernel. That is a small one, ``enter``; or where the call before has shown that the slot is free,
the product itself, and copies wait for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import torch

from ...errors import PeerError
from .kinds import ALL, OTHERS, OWN, KernelCall, Kernels, carrying, flag_of, gathering, scattering
from .memory import Memory, Slot, Transport, zeros
from .plan import SPARE_SMS, OverlapPlan

DEBUG_TIMEOUT_S = 60.0
"""More than the ranks' first calls differ by, which compile."""

TIMEOUT_S = 600.0
"""As process groups have it: after it a kernel ends with an error of CUDA's."""

MOST_LOOKS = 2**31 - 2

KINDS = 512
"""Kinds of calls that a rank remembers."""


class Rank:
    """The overlapped products of a rank of a group. All ranks make the same calls in one order."""

    def __init__(self, transport: Transport, timeout_s: float | None = None) -> None:
        """
        Args:
            transport: of this rank.
            timeout_s: how long a wait may take, in place of DEBUG_TIMEOUT_S and TIMEOUT_S.
        """
        self.transport = transport
        self.memory = Memory(transport)
        self._timeout_s = timeout_s
        self.spare_sms = SPARE_SMS
        self.trouble = zeros(4, transport.device)
        self._zero = zeros(1, transport.device)
        self.kinds: dict[Any, Any] = {}
        """What is kept of each kind of call, of every way."""
        self._broken = ""
        self._has_carried = False
        self._number: int | None = 0
        """Of this rank's last call, as its GPU counts; None once a graph was captured, whose
        replays nobody here sees, or a call has failed half way."""
        self._heard = True
        """Whether the last call ends only when every peer has begun it: then they have all ended
        the one before, whose slot is the next one's."""
        self._has_ended = True

    def gather(
        self, kernels: Kernels, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        plan: OverlapPlan, options: Any,
    ) -> torch.Tensor:  # fmt: skip
        """out[M, N] = f(all rows of A @ b + bias); ``a`` [rows of this rank, K] is contiguous."""
        steps = self.gather_in_steps(kernels, a, b, out, plan, options)
        for _ in steps:
            pass
        return out

    def gather_in_steps(
        self, kernels: Kernels, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        plan: OverlapPlan, options: Any,
    ) -> Any:  # fmt: skip
        """``gather`` as a generator that stops behind each step, for ranks that share a thread."""
        transport, K = self.transport, b.shape[0]
        rank, world = transport.rank, transport.world
        scales = options.scale_a if _by_rows(options.scale_a) else None
        size = world * plan.chunk * K * a.itemsize
        of_scales = 0 if scales is None else world * plan.chunk * 4
        bias = _packed(options.bias)
        slot, number = self.begin(size + of_scales, all_have_rows(out.shape[0], world, plan))
        begins = number is not None  # else copies wait for ``enter``, and flags are of its count
        call = self._call(kernels, slot, a, b, out, plan, options, gathering, begins)
        yield "enter"
        # Before the product is started: where streams share a queue, it must not be behind it.
        transport.fork()
        mine = size + rank * plan.chunk * 4
        if scales is not None and len(scales):  # before the rows, whose flags are theirs too
            for step in range(1, world):
                there = slot.data[(rank + step) % world][mine : mine + 4 * len(scales)]
                transport.copy(there, scales)
        for at, (to, begin) in enumerate(call.copies, 1):
            if begin is not None:
                transport.copy(to, a, begin)
            else:
                self._flag(to, slot, number, at == len(call.copies))
        yield "send"
        try:
            with _counted(kernels, call):
                here = slot.data[rank]
                gathered = here[:size].view(a.dtype).view(world * plan.chunk, K)
                if scales is not None:
                    here[mine : mine + 4 * len(scales)].copy_(scales.view(torch.uint8))
                    of_all = here[size : size + 4 * world * plan.chunk].view(torch.float32)
                    call = replace(call, scale_a=of_all)
                kernels.gather(a, gathered, b, out, bias, options.epilogue, call, plan)
            yield "product"
        finally:  # a, and the epoch that flags are copied from, may change when the call has ended
            transport.join()
        self.end(options.debug, "rows")

    def scatter(
        self, kernels: Kernels, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        plan: OverlapPlan, options: Any,
    ) -> torch.Tensor:  # fmt: skip
        """out[rows of this rank, N] = f(sum over ranks of a @ b + bias); ``a`` is contiguous."""
        transport, N = self.transport, b.shape[1]
        shape = transport.world, *kernels.sent_shape(plan, N)
        size = prod(shape) * out.itemsize
        if plan.carried:
            return self._scatter_carried(kernels, a, b, out, plan, options, size)
        bias = _packed(options.bias)
        slot, number = self.begin(size, all_have_rows(a.shape[0], transport.world, plan))
        begins = kernels.AWAITS or number is not None
        call = self._call(kernels, slot, a, b, out, plan, options, scattering, begins)
        slots = slot.data[transport.rank][:size].view(out.dtype).view(shape)
        with _counted(kernels, call):
            kernels.scatter(a, b, out, slots, bias, options.epilogue, call, plan)
        self.end(options.debug, "tile")
        return out

    def _scatter_carried(
        self, kernels: Kernels, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        plan: OverlapPlan, options: Any, size: int,
    ) -> torch.Tensor:  # fmt: skip
        """The same, where blocks store the tiles of others here and copy engines carry them."""
        transport, bias = self.transport, _packed(options.bias)
        slot, number = self.begin(2 * size, all_have_rows(a.shape[0], transport.world, plan))
        call = self._call(kernels, slot, a, b, out, plan, options, carrying, number is not None)
        here = slot.data[transport.rank][:size].view(out.dtype)
        slots = here.view(transport.world, plan.chunk, b.shape[1])
        transport.fork()
        if not self._has_carried:
            self._load_what_carries(kernels, call, slot)

        def product(tiles: str) -> None:
            kernels.scatter(a, b, out, slots, bias, options.epilogue, call, plan, tiles)

        at_once = transport.device.type != "cuda"
        try:
            # Before the copies: where streams share a queue, it must not be behind what waits for
            # it.
            with _counted(kernels, call):
                product(OTHERS if at_once else ALL)
            # Owner by owner, part by part: when its tiles are stored, it is copied, then its flag.
            with transport.beside():
                for at, (owner, part, tiles, to, staged, flag) in enumerate(call.carried, 1):
                    kernels.await_stored(call, owner, part, tiles)
                    transport.copy(to, staged)
                    self._flag(flag, slot, number, at == len(call.carried))
            if at_once:
                product(OWN)
        finally:  # as in gather_in_steps
            transport.join()
        self.end(options.debug, "rows")
        return out

    def _load_what_carries(self, kernels: Kernels, call: KernelCall, slot: Slot) -> None:
        """Load a kernel and make a copy of which nobody waits: what is first used while a product
        runs, that waits for the peers', might wait for the end of the product."""
        transport = self.transport
        kernels.await_stored(call, transport.rank, 0, 0)
        for peer in range(transport.world):
            if peer != transport.rank:  # no epoch is 0, and this call's comes later
                transport.copy(flag_of(slot, peer, transport.rank, 0), self._zero)
        self._has_carried = True

    def _flag(self, to: torch.Tensor, slot: Slot, number: int | None, last: bool) -> None:
        """Set a flag behind a copy, as its sender counts: the host's count, or else the GPU's."""
        if number is None:
            self.transport.copy(to, slot.epoch)
        else:
            self.transport.flag(to, number, last)

    def begin(self, size: int, hears: bool) -> tuple[Slot, int | None]:
        """The slot of a call, which has so many bytes; and the call's number, where it is known and
        the slot is known to be free, so that nothing has to wait for ``enter``.

        Args:
            hears: whether the call waits for something of every peer.
        """
        if self._broken:
            raise PeerError(f"an earlier call failed: {self._broken}")
        self.transport.follow()
        slot = self.memory.take(size)
        if self._number is not None:
            counts = self._has_ended and not self.transport.capturing()
            # As int32 counts.
            self._number = (self._number + 1 + 2**31) % 2**32 - 2**31 if counts else None
        is_free = self._heard
        self._heard, self._has_ended = hears, False
        return slot, self._number if is_free else None

    def keep(self, key: Any, call: Any) -> None:
        """Keep what is known of a kind of call, of which there are only so many."""
        if len(self.kinds) >= KINDS:
            self.kinds.clear()
        self.kinds[key] = call

    def told(
        self, slot: Slot, chunk: int, at: int, most: int, looks_per_s: int, debug: bool
    ) -> dict[str, Any]:
        """The fields of a SlotCall.

        Args:
            at, most: where its flags begin in a rank's words, and how many each rank has.
        """
        transport = self.transport
        seconds = self._timeout_s or (DEBUG_TIMEOUT_S if debug else TIMEOUT_S)
        flags = slot.own[at : at + transport.world * most]
        tensors = (
            flags, slot.addresses, slot.data_addresses, slot.done, slot.epoch, slot.last,
            slot.count, self.trouble, slot.data[transport.rank],
        )  # fmt: skip
        return {
            "rank": transport.rank,
            "world": transport.world,
            "chunk": chunk,
            "flags": flags,
            "flags_at": at,
            "most": most,
            "words": slot.addresses,
            "data": slot.data_addresses,
            "done": slot.done,
            "done_at": slot.done_at,
            "epoch": slot.epoch,
            "last": slot.last,
            "count": slot.count,
            "trouble": self.trouble,
            "limit": min(int(seconds * looks_per_s), MOST_LOOKS),
            "debug": debug or transport.device.type != "cuda",
            "addresses": tuple(each.data_ptr() for each in tensors),
            "kept": {},
        }

    def _call(
        self, kernels: Kernels, slot: Slot, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        plan: OverlapPlan, options: Any, made: Any, begins: bool,
    ) -> KernelCall:  # fmt: skip
        """What ``made`` tells of such a call, or told of one before. ``begins``: the product begins
        it; else ``enter`` does, here."""
        if not (options.scale_a is None and options.scale_b is None and options.stamps is None):
            call = replace(made(self, kernels, slot, a, out, plan, options, begins), kept=None)
        else:
            call = self._kept_call(kernels, slot, a, b, out, plan, options, made, begins)
        if not begins:
            kernels.enter(call)
        return call

    def _kept_call(
        self, kernels: Kernels, slot: Slot, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        plan: OverlapPlan, options: Any, made: Any, begins: bool,
    ) -> KernelCall:  # fmt: skip
        """Of a call that has no tensor of its own in it: made once."""
        key = (
            made, begins, kernels, plan, a.shape, b.shape, b.stride(), out.shape, a.dtype,
            options.epilogue, options.bias is None, options.debug, self.spare_sms,
            slot.data_addresses.data_ptr(),  # of each slot
        )  # fmt: skip
        call: KernelCall | None = self.kinds.get(key)
        if call is None:
            call = made(self, kernels, slot, a, out, plan, options, begins)
            self.keep(key, call)
        return call

    def end(self, debug: bool, what: str) -> None:
        """Read what waits left behind: always on a CPU, with ``debug`` on a GPU."""
        transport, self._has_ended = self.transport, True
        if (transport.device.type == "cuda" and not debug) or transport.capturing():
            return
        transport.synchronize()
        failed, source, part, epoch = self.trouble.tolist()
        if not failed:
            return
        missing = f"{what} {part}" if part >= 0 else "its word that it has ended this call"
        self._broken = (
            f"rank {transport.rank} of {transport.world} waited in vain for rank {source}: "
            f"{missing} did not come (call {epoch})"
        )
        raise PeerError(
            f"{self._broken}. That rank has died, is late by more than the time-out, or makes "
            "another call: all ranks have to make the same calls in the same order"
        )


@contextmanager
def _counted(kernels: Kernels, call: KernelCall) -> Iterator[None]:
    """Starts a product. One that begins its call and cannot be started is counted all the same, as
    its peers count theirs: else this rank would be a call behind for ever."""
    try:
        yield
    except Exception:
        if call.begins:
            kernels.enter(call)
        raise


def all_have_rows(M: int, world: int, plan: OverlapPlan) -> bool:
    """Whether every rank has some of M rows, so that each waits for all others'."""
    return (world - 1) * plan.chunk < M


def _by_rows(scale: torch.Tensor | None) -> bool:
    """Whether it is one for each row, be it only one row."""
    return scale is not None and scale.dim() > 0


def _packed(bias: torch.Tensor | None) -> torch.Tensor | None:
    """A bias as kernels read it: one element behind the other."""
    return None if bias is None else bias.contiguous()
