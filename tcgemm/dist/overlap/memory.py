"""The memory that ranks share: words for flags, and slots of data, of which each call uses one.

Words are int32 and laid out alike on every rank. They begin with

    done   [world]               the last call that each peer has ended

and hold for each slot

    parts  [world][MOST_PARTS]   the rows of a peer that have arrived (all-gather)
    tiles  [world][MOST_TILES]   tiles of a peer's partial sum that have arrived (reduce-scatter),
                                 or what a block of a peer has stored here (one-shot way)

all of them epochs: numbers of calls. A rank counts its calls by itself, in memory of its own on the
device, so that a captured graph counts on.

Data is one allocation of SLOTS equal slots. It grows when a call needs more, at least twofold,
which is a collective step and needs all ranks. It never shrinks, and what was there before is
kept, since a captured graph may use it: all of it together is at most twice the largest.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ..planning import MOST_BYTES, MOST_TILES
from .plan import MOST_PARTS

SLOTS = 2
"""Calls take them in turns: a rank may begin a call while its peers end the one before."""


class Transport(Protocol):
    """How ranks reach each other's memory."""

    rank: int
    world: int
    device: torch.device

    def share(self, size: int) -> list[torch.Tensor]:
        """Bytes (uint8, zero) on every rank that all of them can reach, by rank. Collective.

        A kernel started after it, on any rank, finds the memory of every rank zero.
        """

    def follow(self) -> None:
        """The current stream goes on after this rank's calls before, whatever streams they are on.

        Uses of a slot are counted in one order, on every rank the same. A graph that is captured
        follows nothing: whoever replays it says what it comes after.
        """

    def fork(self) -> None:
        """The copies that follow begin after what the current stream holds."""

    def copy(self, to: torch.Tensor, source: torch.Tensor, begin: int = 0) -> None:
        """Copy contiguous memory, of which ``to`` may be a peer's; one after the other. All of
        ``to``, from byte ``begin`` of ``source`` on.

        Whoever sees the bytes of a copy sees those of all copies before it.
        """

    def flag(self, to: torch.Tensor, value: int, last: bool) -> None:
        """Set an int32, of a peer or here, behind the copies before it: whoever sees the value sees
        those. ``last``: no copy follows in this call."""

    def beside(self) -> Any:
        """A context in which kernels are started among the copies: between those before and
        those after."""

    def join(self) -> None:
        """The current stream goes on after the copies."""

    def capturing(self) -> bool:
        """Whether a graph is being captured from the current stream."""

    def synchronize(self) -> None:
        """Wait for this rank's device."""


def copy_here(to: torch.Tensor, source: torch.Tensor, begin: int = 0) -> None:
    """``Transport.copy`` where it happens at once."""
    part = source.view(-1).view(torch.uint8)[begin : begin + to.nbytes]
    to.view(-1).view(torch.uint8).copy_(part)


def words_of_slot(world: int) -> int:
    """Words of one slot, in whole lines of 128 bytes."""
    return _whole_lines(world * (MOST_PARTS + MOST_TILES))


def _whole_lines(words: int) -> int:
    return -(-words // 32) * 32


class Slot:
    """One slot as a rank sees it: its own memory, and the addresses of everybody's."""

    def __init__(
        self, number: int, transport: Transport, words: list[torch.Tensor], epoch: torch.Tensor,
        last: torch.Tensor, stored: torch.Tensor,
    ) -> None:  # fmt: skip
        self.number = number
        self.epoch, self.last = epoch, last
        """int32[1] each, of this rank alone: its calls so far, of all slots; and the last of them
        that used this slot."""
        self.stored, self.count = stored[:-1], stored[-1:]
        """int32[world * MOST_PARTS], of this rank alone: tiles of each owner's parts that are
        stored here, to be carried; and int32[1]: blocks of a kernel that begins a call. Zeros
        between calls."""
        self._transport = transport
        size = words_of_slot(transport.world)
        first = _whole_lines(transport.world) + number * size
        self.done = words[transport.rank][: transport.world]
        self.done_at = -first
        """Where ``done`` begins in a rank's words, counted from those of this slot."""
        self.words = [each[first : first + size] for each in words]
        self.addresses = _table([each.data_ptr() for each in self.words], transport.device)
        self.data: list[torch.Tensor] = []
        self.data_addresses = self.addresses
        # A captured graph may use a table of before.
        self._tables: list[torch.Tensor] = []

    @property
    def own(self) -> torch.Tensor:
        """This rank's words."""
        return self.words[self._transport.rank]

    @property
    def parts(self) -> torch.Tensor:
        """This rank's flags of parts, MOST_PARTS for each peer."""
        return self.own[self.parts_at : self.tiles_at]

    @property
    def parts_at(self) -> int:
        return 0

    @property
    def tiles_at(self) -> int:
        return self._transport.world * MOST_PARTS

    def hold(self, data: list[torch.Tensor], size: int) -> None:
        """Take its place in new data, of every rank, of ``size`` bytes a slot."""
        first = self.number * size
        self.data = [each[first : first + size] for each in data]
        addresses = [each.data_ptr() for each in self.data]
        self.data_addresses = _table(addresses, self._transport.device)
        self._tables.append(self.data_addresses)


def zeros(count: int, device: torch.device, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Numbers of this rank alone; on a CPU the processes of a simulated kernel share them."""
    made = torch.zeros(count, dtype=dtype, device=device)
    return made if made.is_cuda else made.share_memory_()


def _table(addresses: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(addresses, dtype=torch.int64, device=device)


class Memory:
    """The words and slots of a group, for one rank. Made by all ranks together."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        size = _whole_lines(transport.world) + SLOTS * words_of_slot(transport.world)
        words = [each.view(torch.int32) for each in transport.share(4 * size)]
        # 16 bytes apart: of another alignment Triton would compile every kernel anew.
        epoch, *last = zeros(4 * (1 + SLOTS), transport.device).view(1 + SLOTS, 4)[:, :1]
        counts = [zeros(transport.world * MOST_PARTS + 1, transport.device) for _ in range(SLOTS)]
        self.slots = [Slot(i, transport, words, epoch, last[i], counts[i]) for i in range(SLOTS)]
        self.bytes = 0
        """Of a slot, so far."""
        self._calls = 0
        self._kept: list[list[torch.Tensor]] = []

    def take(self, size: int) -> Slot:
        """The slot of the next call, with room for ``size`` bytes. Grows on every rank at once.

        Raises RuntimeError where it has to grow while a graph is captured.
        """
        if size > self.bytes:
            if self._transport.capturing():
                raise RuntimeError(
                    f"this product over several GPUs needs {size} bytes that its GPUs share, and "
                    f"{self.bytes} are there: make the same call once before capturing the graph"
                )
            self._grow(size)
        slot = self.slots[self._calls % SLOTS]
        self._calls += 1
        return slot

    def _grow(self, size: int) -> None:
        """Twice what it was, if that does: few steps lead to any size."""
        size = -(-max(size, min(2 * self.bytes, MOST_BYTES)) // 1024) * 1024
        data = self._transport.share(SLOTS * size)
        self._kept.append(data)
        for slot in self.slots:
            slot.hold(data, size)
        self.bytes = size
