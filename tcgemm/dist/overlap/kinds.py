"""What kernels are told of a call, besides its operands, and what copy engines carry in it.

Where it holds no tensor of the call itself it is made once for a kind of call, and kept: most of
what the host would do in each call is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from ..planning import MOST_TILES
from ..rows import rows_of
from .memory import Slot
from .plan import MOST_PARTS, OverlapPlan


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
    done_at: int
    """Where they begin, counted from the words of this slot: before them."""
    epoch: torch.Tensor
    last: torch.Tensor
    count: torch.Tensor
    """int32, of this rank alone: blocks that have begun the call, of a kernel that begins it; 0
    between calls."""
    trouble: torch.Tensor
    limit: int
    """Looks at a flag after which the wait is given up; about a microsecond each on a GPU."""
    debug: bool
    """Whether a wait that is given up is told of in ``trouble``; else the launch fails."""
    addresses: tuple[int, ...]
    """Of the tensors that kernels take, whatever the operands are."""
    kept: dict[Any, Any] | None
    """What kernels keep of their launches, where the same is told of later calls; else None."""


class Copy(NamedTuple):
    """What a copy engine does in each call of a kind."""

    to: torch.Tensor
    begin: int | None
    """The first byte of this rank's rows; None: a flag, which holds the call's number."""


class Carried(NamedTuple):
    """A part of an owner's partial sums, which a copy engine carries in each call of a kind."""

    owner: int
    part: int
    tiles: int
    to: torch.Tensor
    staged: torch.Tensor
    flag: torch.Tensor


@dataclass(frozen=True)
class KernelCall(SlotCall):
    """What kernels of the overlapped way are told besides, and what is copied."""

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
    begins: bool = False
    """Whether the product begins the call, with no ``enter`` before it."""
    early: bool = False
    """Whether kernels start while the ones before them run: see OverlapPlan."""
    copies: tuple[Copy, ...] = ()
    """Of an all-gather, in their order."""
    carried: tuple[Carried, ...] = ()
    """Of a reduce-scatter, in their order."""


ALL, OTHERS, OWN = "all", "others", "own"
"""Which tiles a scattering kernel computes. Where copies happen at once, on a CPU, they come
between the tiles of others and own ones."""


class Kernels(Protocol):
    """The kernels of a language; each is started on the current stream."""

    looks_per_s: int
    """How often a kernel looks at a flag, roughly."""
    AWAITS: bool
    """Whether a product that begins its call waits until the slot is free. Else it begins a call
    only where that is known."""

    def enter(self, call: KernelCall) -> None: ...

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


def gathering(
    rank: Any, kernels: Kernels, slot: Slot, a: torch.Tensor, out: torch.Tensor, plan: OverlapPlan,
    options: Any, begins: bool,
) -> KernelCall:  # fmt: skip
    """What is told of an all-gather by a ``Rank``. Rows travel a peer at a time, part by part;
    behind each part comes its flag, which holds the number of the call."""
    mine, world = rank.transport.rank, rank.transport.world
    of_row = a.shape[1] * a.itemsize
    copies = []
    for step in range(1, world):
        peer = (mine + step) % world
        there = slot.data[peer][mine * plan.chunk * of_row :]
        for part, first, behind in plan.part_rows(a.shape[0]):
            copies.append(Copy(there[first * of_row : behind * of_row], first * of_row))
            copies.append(Copy(flag_of(slot, peer, mine, part), None))
    told = _told(rank, kernels, slot, plan, slot.parts_at, MOST_PARTS, options)
    return KernelCall(**told, begins=begins, copies=tuple(copies))


def scattering(
    rank: Any, kernels: Kernels, slot: Slot, a: torch.Tensor, out: torch.Tensor, plan: OverlapPlan,
    options: Any, begins: bool,
) -> KernelCall:  # fmt: skip
    """What is told of a reduce-scatter whose blocks store at the owners."""
    told = _told(rank, kernels, slot, plan, slot.tiles_at, MOST_TILES, options)
    return KernelCall(**told, begins=begins, early=plan.early and not begins)


def carrying(
    rank: Any, kernels: Kernels, slot: Slot, a: torch.Tensor, out: torch.Tensor, plan: OverlapPlan,
    options: Any, begins: bool,
) -> KernelCall:  # fmt: skip
    """What is told of one that is carried. Partial sums lie behind those that peers send here."""
    mine, world = rank.transport.rank, rank.transport.world
    N = out.shape[1]
    shape, size = (world, plan.chunk, N), world * plan.chunk * N * out.itemsize
    staging = slot.data[mine][size : 2 * size].view(out.dtype).view(shape)
    of_row = -(-N // plan.tile.BLOCK_N)
    carried = []
    for step in range(1, world):
        owner = (mine + step) % world
        there = slot.data[owner][:size].view(out.dtype).view(shape)[mine]
        begin, end = rows_of(a.shape[0], world, owner)
        for part, first, behind in plan.part_rows(end - begin):
            tiles = -(-(behind - first) // plan.tile.BLOCK_M) * of_row
            moved = there[first:behind], staging[owner, first:behind]
            flag = flag_of(slot, owner, mine, part)
            carried.append(Carried(owner, part, tiles, *moved, flag))
    told = _told(rank, kernels, slot, plan, slot.parts_at, MOST_PARTS, options)
    # Kernels that wait for a part need an SM while the product has all others.
    told["spare"] = max(told["spare"], 1)
    told["addresses"] += (staging.data_ptr(), slot.stored.data_ptr())
    made = {"staging": staging, "stored": slot.stored, "carried": tuple(carried)}
    return KernelCall(**told, begins=begins, **made)


def flag_of(slot: Slot, at: int, source: int, part: int) -> torch.Tensor:
    """The word of a rank that says that a part of ``source`` has arrived there."""
    word = slot.parts_at + source * MOST_PARTS + part
    return slot.words[at][word : word + 1]


def _told(
    rank: Any, kernels: Kernels, slot: Slot, plan: OverlapPlan, at: int, most: int, options: Any
) -> dict[str, Any]:
    """The fields of a KernelCall that have no default."""
    return rank.told(slot, plan.chunk, at, most, kernels.looks_per_s, options.debug) | {
        "spare": rank.spare_sms,
        "scale_a": options.scale_a,
        "scale_b": options.scale_b,
        "stamps": options.stamps,
    }
