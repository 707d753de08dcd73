"""The ranks of a call: its process group, what it moves between them, and errors that name a rank.

All transport is torch.distributed's. Buffers of 8-bit types are moved as bytes, which every
transport takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..errors import OperandError, OperandTypeError, PeerError, TcgemmError, first_line

# Newer versions of torch have these names, and warn of the older ones.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Ranks(NamedTuple):
    """A process group as a call sees it."""

    group: Any
    name: str
    """By which torch's registry knows the group, and a graph of torch.compile names it."""
    rank: int
    world: int


def ranks_of(group: Any = None) -> Ranks:
    """The ranks of a process group, its name, or a DeviceMesh of one dimension; None: all ranks.

    Raises:
        OperandError: there is no process group yet, this process is none of its ranks, or a mesh
            has several dimensions.
        OperandTypeError: something else.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise OperandError(
            "there is no process group: start the program with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    if group is None:
        group = dist.group.WORLD
    elif isinstance(group, str):
        name, group = group, _of_name(group)
        if group is None:
            raise OperandError(
                f"there is no process group named {name!r}: it was destroyed, or was never made; "
                "make one with torch.distributed.new_group()"
            )
    elif isinstance(group, dist.DeviceMesh):
        if group.ndim != 1:
            raise OperandError(
                f'group is a DeviceMesh of {group.ndim} dimensions: pass one of them, as mesh["tp"]'
            )
        group = group.get_group()
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise OperandError(
            f"rank {dist.get_rank()} is none of the group's ranks: call this on the ranks that "
            "torch.distributed.new_group() was given"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise OperandTypeError(
            f"group is a {type(group).__name__}, and it is a ProcessGroup, a DeviceMesh of one "
            "dimension, or None for all ranks"
        )
    return Ranks(group, group.group_name, group.rank(), group.size())


def check_alive(ranks: Ranks) -> None:
    """Raise OperandError where the process group was destroyed."""
    if not is_alive(ranks.group):
        raise OperandError(
            f"rank {ranks.rank} of {ranks.world}: the process group was destroyed: make another "
            "with torch.distributed.new_group()"
        )


def is_alive(group: Any) -> bool:
    """Whether a process group has not been destroyed."""
    return _of_name(group.group_name) is group


def _of_name(name: str) -> Any:
    """The process group of a name, or None."""
    try:
        return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type,unused-ignore]
    except RuntimeError:
        return None


def check_device(ranks: Ranks, device: torch.device) -> None:
    """Raise OperandError where the group moves nothing between devices of this kind."""
    kinds = [each.type for each in ranks.group._device_types]
    if device.type not in kinds:
        raise OperandError(
            f"A is on {device}, and the process group of {ranks.world} ranks moves tensors of "
            f"{' and '.join(kinds) or 'no device'} only: make it with "
            f"backend={'nccl' if device.type == 'cuda' else 'gloo'!r}"
        )


def is_nccl(ranks: Ranks, device: torch.device) -> bool:
    """Whether NCCL moves what is on this device."""
    return device.type == "cuda" and dist.get_backend(ranks.group) == "nccl"


class named:
    """Errors of the family say on which rank they were met.

    Each call is in several of these: a class takes a quarter of the time of contextlib's.
    """

    __slots__ = ("ranks",)

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, TcgemmError):
            named_so = self.of(error)
            if named_so is not error:
                raise named_so from None

    def of(self, error: TcgemmError) -> TcgemmError:
        """The error, with the rank in front of its message."""
        where = f"rank {self.ranks.rank} of {self.ranks.world}: "
        return error if str(error).startswith(where) else type(error)(where + str(error))


@contextmanager
def moving(ranks: Ranks, what: str) -> Iterator[None]:
    """A failure of the transport is a PeerError."""
    try:
        yield
    except TcgemmError:
        raise
    except RuntimeError as error:
        raise PeerError(
            f"{what} over {ranks.world} ranks failed: {first_line(error)}; another rank ended, "
            "raised an error before this call, or made another call: see the first error among "
            "the ranks, and TCGEMM_DIST_DEBUG=1"
        ) from error


def gather(ranks: Ranks, whole: torch.Tensor, part: torch.Tensor) -> None:
    """whole[r] = part of rank r; both contiguous, ``whole`` as many parts as there are ranks."""
    with moving(ranks, "an all-gather"):
        _all_gather(_moved(whole), _moved(part), group=ranks.group)


def sum_parts(ranks: Ranks, part: torch.Tensor, whole: torch.Tensor) -> None:
    """part = the sum over the ranks of whole[this rank], in the transport's own order."""
    with moving(ranks, "a reduce-scatter"):
        _reduce_scatter(part, whole, group=ranks.group)


def exchange(ranks: Ranks, received: torch.Tensor, whole: torch.Tensor) -> None:
    """received[r] = whole[this rank] of rank r."""
    with moving(ranks, "an exchange of partial sums"):
        dist.all_to_all_single(_moved(received), _moved(whole), group=ranks.group)


def _moved(t: torch.Tensor) -> torch.Tensor:
    return t.view(torch.uint8) if t.itemsize == 1 else t


_REFUSED = "an error"


def tell(ranks: Ranks, error: TcgemmError) -> None:
    """Say to the ranks that compare their calls that this one makes none."""
    _told(ranks, {_REFUSED: str(error)})


def check_same(ranks: Ranks, told: dict[str, str]) -> None:
    """Raise PeerError where the ranks make different calls; itself a call of every rank.

    Args:
        told: what has to be the same on all ranks, by name.
    """
    of_ranks = _told(ranks, told)
    for theirs in of_ranks:
        if _REFUSED in theirs:
            raise PeerError(f"another rank makes no call: {theirs[_REFUSED]}")
    for rank, theirs in enumerate(of_ranks):
        for name in {**of_ranks[0], **theirs}:
            first, other = of_ranks[0].get(name), theirs.get(name)
            if first != other:
                raise PeerError(
                    f"the ranks make different calls: {name} is {first} on rank 0 and {other} on "
                    f"rank {rank}, and it has to be the same on all {ranks.world} ranks"
                )


def _told(ranks: Ranks, told: dict[str, str]) -> list[Any]:
    of_ranks: list[Any] = [None] * ranks.world
    with moving(ranks, "the comparison of the calls"):
        dist.all_gather_object(of_ranks, told, group=ranks.group)
    return of_ranks
