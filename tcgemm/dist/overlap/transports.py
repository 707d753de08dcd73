"""How ranks reach each other: GPUs of a host by torch's symmetric memory, processes by a file.

Multicast of NVLink is never asked for: no kernel here needs it.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from .memory import copy_here

PRIORITIES = (-3, -2, -1)
"""Of the streams of copies and of flags: the highest that torch has, which hardly any stream of a
user's has, and the next."""


class GpuTransport:
    """Ranks with a GPU each, of one host, whose memory all of them have mapped.

    Copies run on a stream of their own by copy engines: they take no SM. Its priority is another
    than that of the caller's stream. Streams of one priority may share a queue of the hardware, and
    what says that a kernel of such a queue has ended comes when all kernels before it have: also a
    product that waits for the very copy that would follow.

    Flags are set on a third stream, each behind an event behind its copy, so the next copy begins
    at once. A flag in the copies' own stream costs about 4 us between two of them, so only the last
    one is there, where it comes 3 us sooner.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self.rank, self.world, self.device = (
            dist.get_rank(group),
            dist.get_world_size(group),
            device,
        )
        self._group = group
        self._streams = [torch.cuda.Stream(device, priority=each) for each in PRIORITIES]
        self._stream, self._flags = self._streams[:2]
        self._copied = torch.cuda.Event()
        self._sets_flags = False
        self.marks: list[torch.cuda.Event] | None = None
        """Where it is a list: an event is put in before the copies of a call, and after each."""
        self._held: list[Any] = []
        self._calls_on: torch.cuda.Stream | None = None

    def share(self, size: int) -> list[torch.Tensor]:
        from torch.distributed import _symmetric_memory as symmetric

        # Torch would set multicast up beside the mapping.
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        mine = symmetric.empty(size, dtype=torch.uint8, device=self.device)
        handle = symmetric.rendezvous(mine, self._group.group_name)
        self._held.append((mine, handle))  # tensors of a handle keep nothing alive
        mine.zero_()
        torch.cuda.synchronize(self.device)
        dist.barrier(self._group)
        torch.cuda.synchronize(self.device)
        return [handle.get_buffer(rank, (size,), torch.uint8) for rank in range(self.world)]

    def follow(self) -> None:
        if self.capturing():
            return
        here = torch.cuda.current_stream(self.device)
        if self._calls_on is not None and self._calls_on != here:
            here.wait_stream(self._calls_on)
        self._calls_on = here

    def fork(self) -> None:
        here = torch.cuda.current_stream(self.device)
        others = (each for each in self._streams if each.priority != here.priority)
        self._stream, self._flags = next(others), next(others)
        self._stream.wait_stream(here)
        self._sets_flags = False
        self._mark()

    def _mark(self) -> None:
        if self.marks is not None:
            event = torch.cuda.Event(True)
            event.record(self._stream)
            self.marks.append(event)

    def copy(self, to: torch.Tensor, source: torch.Tensor, begin: int = 0) -> None:
        size = to.nbytes
        code = _driver().cuMemcpyAsync(
            to.data_ptr(), source.data_ptr() + begin, size, self._stream.cuda_stream
        )
        if code:
            raise RuntimeError(f"a copy of {size} bytes to a peer failed: CUDA driver error {code}")
        self._mark()

    def flag(self, to: torch.Tensor, value: int, last: bool) -> None:
        stream = self._stream
        if not last:
            stream, self._sets_flags = self._flags, True
            self._copied.record(self._stream)
            stream.wait_event(self._copied)
        code = _driver().cuStreamWriteValue32_v2(
            stream.cuda_stream, to.data_ptr(), value & 0xFFFFFFFF, 0
        )
        if code:
            raise RuntimeError(f"a flag of a peer could not be set: CUDA driver error {code}")
        self._mark()

    def beside(self) -> Any:
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        here = torch.cuda.current_stream(self.device)
        here.wait_stream(self._stream)
        if self._sets_flags:
            here.wait_stream(self._flags)

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


@cache
def _driver() -> Any:
    """The driver's library. Its copy takes 1 to 2 us of host time, torch's copy_ about five."""
    library = ctypes.CDLL("libcuda.so.1")
    library.cuMemcpyAsync.argtypes = [
        ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
    ]  # fmt: skip
    library.cuStreamWriteValue32_v2.argtypes = [
        ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint
    ]  # fmt: skip
    return library


class ProcessTransport:
    """Ranks without a GPU, processes of one host: what they share is a file that all of them map.

    Copies happen at once. For tests and for trying things out.
    """

    device = torch.device("cpu")

    def __init__(self, group: Any) -> None:
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._group = group

    def share(self, size: int) -> list[torch.Tensor]:
        name = [""]
        first = dist.get_global_rank(self._group, 0)
        if self.rank == 0:
            folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
            descriptor, name[0] = tempfile.mkstemp(prefix="tcgemm-", dir=folder)
            os.truncate(descriptor, size * self.world)
            os.close(descriptor)
        dist.broadcast_object_list(name, src=first, group=self._group)
        try:
            storage = torch.UntypedStorage.from_file(name[0], True, size * self.world)
        finally:
            dist.barrier(self._group)
            if self.rank == 0:
                os.unlink(name[0])
        whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)  # type: ignore[arg-type]
        return list(whole.view(self.world, size).unbind())

    def follow(self) -> None:
        pass

    def fork(self) -> None:
        pass

    def copy(self, to: torch.Tensor, source: torch.Tensor, begin: int = 0) -> None:
        copy_here(to, source, begin)

    def flag(self, to: torch.Tensor, value: int, last: bool) -> None:
        to.fill_(value)

    def beside(self) -> Any:
        return nullcontext()

    def join(self) -> None:
        pass

    def capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass
