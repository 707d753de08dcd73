"""A call, step by step, on one rank. docs/lab/several_gpus_protocol.md says why it is right.

All-gather and product           Product and reduce-scatter
enter    the slot is free        enter    the slot is free
send     own rows to peers       product  tiles to their owners, and own tiles, which add
product  tiles, as rows arrive   carry    where tiles stay here: parts of them to their owners
leave    the slot may be written again, at the end of both
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import torch

from ...errors import PeerError
from ..planning import MOST_TILES
from ..rows import rows_of
from .memory import Memory, Slot, Transport, zeros
from .plan import MOST_PARTS, SPARE_SMS, OverlapPlan


@dataclass(frozen=True)
class SlotCall:
    """What kernels of every way are told of a call on a slot, besides its operands."""

    rank: int
    world: int
    chunk: int
    """Rows of a rank, of all but the last ones."""
    flags: torch.Tensor
    """int32, here: those that this call waits for, ``most`` for each rank."""
    flags_at: int
    """Where they begin in a rank's words."""
    most: int
    words: torch.Tensor
    """int64[world]: addresses of every rank's words."""
    data: torch.Tensor
    """int64[world]: addresses of every rank's slot."""
    done: torch.Tensor
    epoch: torch.Tensor
    trouble: torch.Tensor
    limit: int
    """Looks at a flag after which the wait is given up; about a microsecond each on a GPU."""
    debug: bool
    """Whether a wait that is given up is told of in ``trouble``; else the launch fails."""


@dataclass(frozen=True)
class KernelCall(SlotCall):
    """What kernels of the overlapped way are told besides."""

    spare: int
    """SMs that grids leave free."""
    scale_a: torch.Tensor | None
    """float32: one for all of A, or one for each row, of all ranks' chunks; or None."""
    scale_b: torch.Tensor | None
    """The same of B's columns."""
    stamps: torch.Tensor | None
    """int64: where kernels write clock stamps, or None; see timeline.py."""
    staging: torch.Tensor | None = None
    """[world, chunk, N], here: where partial sums of owners lie that copy engines carry; or None.
    Then ``flags`` are of parts."""
    stored: torch.Tensor | None = None
    """int32, here: tiles that are stored there, ``most`` counts for each owner."""
    early: bool = False
    """Whether kernels start while the ones before them run: see OverlapPlan."""


ALL, OTHERS, OWN = "all", "others", "own"
"""Which tiles a scattering kernel computes. Where copies happen at once, on a CPU, they come
between the tiles of others and own ones."""


class Kernels(Protocol):
    """The kernels of a language; each is started on the current stream."""

    looks_per_s: int
    """How often a kernel looks at a flag, roughly."""

    def enter(self, call: KernelCall) -> None: ...

    def leave(self, call: KernelCall) -> None: ...

    def gather(
        self, own: torch.Tensor, gathered: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        bias: torch.Tensor | None, epilogue: str, call: KernelCall, plan: OverlapPlan,
    ) -> None: ...  # fmt: skip

    def sent_shape(self, plan: OverlapPlan, N: int) -> tuple[int, ...]:
        """Shape of a peer's part of a slot, which its kernels and the owner's know."""

    def scatter(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, slots: torch.Tensor,
        bias: torch.Tensor | None, epilogue: str, call: KernelCall, plan: OverlapPlan,
        tiles: str = ALL,
    ) -> None: ...  # fmt: skip

    def await_stored(self, call: KernelCall, owner: int, part: int, count: int) -> None:
        """Wait until so many tiles of an owner's part are stored here, and set the count back."""


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
        self.kinds: dict[Any, Any] = {}
        """What one_shot.py keeps of each kind of call."""
        self._broken = ""
        self._has_carried = False

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
        slot = self.begin(size + (0 if scales is None else world * plan.chunk * 4))
        call = self._call(kernels, slot, plan, slot.parts_at, MOST_PARTS, options)
        kernels.enter(call)
        yield "enter"
        # Before the product is started: where streams share a queue, it must not be behind it.
        transport.fork()
        mine = size + rank * plan.chunk * 4
        for step in range(1, world):
            peer = (rank + step) % world
            if scales is not None and len(scales):  # before the rows, whose flags are theirs too
                there = slot.data[peer][mine : mine + 4 * len(scales)]
                transport.copy(there, scales.view(torch.uint8))
            self._send(a, plan, slot, peer)
        yield "send"
        here = slot.data[rank]
        gathered = here[:size].view(a.dtype).view(world * plan.chunk, K)
        if scales is not None:
            here[mine : mine + 4 * len(scales)].copy_(scales.view(torch.uint8))
            of_all = here[size : size + 4 * world * plan.chunk].view(torch.float32)
            call = replace(call, scale_a=of_all)
        kernels.gather(a, gathered, b, out, _packed(options.bias), options.epilogue, call, plan)
        yield "product"
        transport.join()  # a may change when the call has ended
        kernels.leave(call)
        self.end(options.debug, "rows")
        yield "leave"

    def _send(self, a: torch.Tensor, plan: OverlapPlan, slot: Slot, peer: int) -> None:
        """Part by part; behind each its flag, which is this rank's own count of the epoch."""
        rank = self.transport.rank
        there = slot.data[peer][rank * plan.chunk * a.shape[1] * a.itemsize :]
        source = a.view(-1).view(torch.uint8)
        for part, first, behind in plan.part_rows(a.shape[0]):
            here = slice(first * a.shape[1] * a.itemsize, behind * a.shape[1] * a.itemsize)
            self.transport.copy(there[here], source[here])
            flag = slot.parts_at + rank * MOST_PARTS + part
            self.transport.copy(slot.words[peer][flag : flag + 1], slot.epoch)

    def scatter(
        self, kernels: Kernels, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        plan: OverlapPlan, options: Any,
    ) -> torch.Tensor:  # fmt: skip
        """out[rows of this rank, N] = f(sum over ranks of a @ b + bias); ``a`` is contiguous."""
        transport, N = self.transport, b.shape[1]
        rank, world = transport.rank, transport.world
        shape = world, *kernels.sent_shape(plan, N)
        size = prod(shape) * out.itemsize
        if plan.carried:
            return self._scatter_carried(kernels, a, b, out, plan, options, size)
        slot = self.begin(size)
        call = self._call(kernels, slot, plan, slot.tiles_at, MOST_TILES, options)
        call = replace(call, early=plan.early)
        kernels.enter(call)
        slots = slot.data[rank][:size].view(out.dtype).view(shape)
        kernels.scatter(a, b, out, slots, _packed(options.bias), options.epilogue, call, plan)
        kernels.leave(call)
        self.end(options.debug, "tile")
        return out

    def _scatter_carried(
        self, kernels: Kernels, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
        plan: OverlapPlan, options: Any, size: int,
    ) -> torch.Tensor:  # fmt: skip
        """The same, where blocks store the tiles of others here and copy engines carry them."""
        transport = self.transport
        slot = self.begin(2 * size)
        call = self._call(kernels, slot, plan, slot.parts_at, MOST_PARTS, options)
        here = slot.data[transport.rank][: 2 * size].view(out.dtype)
        slots, staging = here.view(2, transport.world, plan.chunk, b.shape[1])
        # Kernels that wait for a part need an SM while the product has all others.
        spare = max(call.spare, 1)
        call = replace(call, spare=spare, staging=staging, stored=slot.stored)
        kernels.enter(call)
        transport.fork()
        if not self._has_carried:
            self._load_what_carries(kernels, call, slot)

        def product(tiles: str) -> None:
            bias = _packed(options.bias)
            kernels.scatter(a, b, out, slots, bias, options.epilogue, call, plan, tiles)

        at_once = transport.device.type != "cuda"
        # Before the copies: where streams share a queue, it must not be behind what waits for it.
        product(OTHERS if at_once else ALL)
        self._carry(kernels, call, plan, slot, a.shape[0])
        if at_once:
            product(OWN)
        transport.join()
        kernels.leave(call)
        self.end(options.debug, "rows")
        return out

    def _load_what_carries(self, kernels: Kernels, call: KernelCall, slot: Slot) -> None:
        """Load a kernel and make a copy of which nobody waits: what is first used while a product
        runs, that waits for the peers', might wait for the end of the product."""
        transport = self.transport
        kernels.await_stored(call, transport.rank, 0, 0)
        for peer in range(transport.world):
            if peer != transport.rank:  # no epoch is 0, and this call's comes later
                flag = slot.parts_at + transport.rank * MOST_PARTS
                transport.copy(slot.words[peer][flag : flag + 1], slot.stored[:1])
        self._has_carried = True

    def _carry(
        self, kernels: Kernels, call: KernelCall, plan: OverlapPlan, slot: Slot, M: int
    ) -> None:
        """Owner by owner, part by part: when its tiles are stored, it is copied, then its flag."""
        transport, staging = self.transport, call.staging
        assert staging is not None
        rank, world = transport.rank, transport.world
        _, chunk, N = staging.shape
        of_row = -(-N // plan.tile.BLOCK_N)
        for step in range(1, world):
            owner = (rank + step) % world
            there = slot.data[owner][: staging.numel() * staging.itemsize].view(staging.dtype)
            to = there.view(world, chunk, N)[rank]
            begin, end = rows_of(M, world, owner)
            for part, first, behind in plan.part_rows(end - begin):
                count = -(-(behind - first) // plan.tile.BLOCK_M) * of_row
                with transport.beside():
                    kernels.await_stored(call, owner, part, count)
                transport.copy(to[first:behind], staging[owner, first:behind])
                flag = slot.parts_at + rank * MOST_PARTS + part
                transport.copy(slot.words[owner][flag : flag + 1], slot.epoch)

    def begin(self, size: int) -> Slot:
        """The slot of a call, which has so many bytes."""
        if self._broken:
            raise PeerError(f"an earlier call failed: {self._broken}")
        self.transport.follow()
        return self.memory.take(size)

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
        return {
            "rank": transport.rank,
            "world": transport.world,
            "chunk": chunk,
            "flags": slot.own[at : at + transport.world * most],
            "flags_at": at,
            "most": most,
            "words": slot.addresses,
            "data": slot.data_addresses,
            "done": slot.done,
            "epoch": slot.epoch,
            "trouble": self.trouble,
            "limit": min(int(seconds * looks_per_s), MOST_LOOKS),
            "debug": debug or transport.device.type != "cuda",
        }

    def _call(
        self, kernels: Kernels, slot: Slot, plan: OverlapPlan, at: int, most: int, options: Any
    ) -> KernelCall:
        return KernelCall(
            **self.told(slot, plan.chunk, at, most, kernels.looks_per_s, options.debug),
            spare=self.spare_sms,
            scale_a=options.scale_a,
            scale_b=options.scale_b,
            stamps=options.stamps,
        )

    def end(self, debug: bool, what: str) -> None:
        """Read what waits left behind: always on a CPU, with ``debug`` on a GPU."""
        transport = self.transport
        if (transport.device.type == "cuda" and not debug) or transport.capturing():
            return
        transport.synchronize()
        failed, source, part, epoch = self.trouble.tolist()
        if not failed:
            return
        missing = f"{what} {part}" if part >= 0 else "the end of its last call but one"
        self._broken = (
            f"rank {transport.rank} of {transport.world} waited in vain for rank {source}: "
            f"{missing} did not come (call {epoch} of this slot)"
        )
        raise PeerError(
            f"{self._broken}. That rank has died, is late by more than the time-out, or makes "
            "another call: all ranks have to make the same calls in the same order"
        )


def _by_rows(scale: torch.Tensor | None) -> bool:
    """Whether it is one for each row, be it only one row."""
    return scale is not None and scale.dim() > 0


def _packed(bias: torch.Tensor | None) -> torch.Tensor | None:
    """A bias as kernels read it: one element behind the other."""
    return None if bias is None else bias.contiguous()
