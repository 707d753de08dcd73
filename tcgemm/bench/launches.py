"""Launches on the GPU: the operands that they rotate over, and the samples that they are timed by.

``timing.measure`` asks a ``Launches`` for its samples. Imports torch only where it runs.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .timing import CaptureError

if TYPE_CHECKING:
    import torch

    from ..problem import Fusion
    from .case import Case

GRAPH_MS = 1.0
"""Least duration of a graph, in estimated milliseconds."""

EVENTS_MS = 1.0
"""Least duration of a burst between two events."""

MAX_BUFFERS = 512
CYCLES_PER_MS = 2_000_000
"""Of a GPU at 2 GHz: a delay in cycles is at least as long in milliseconds as asked for."""


def buffer_count(bytes_each: int, l2_bytes: int, free_bytes: int) -> tuple[int, str]:
    """How many sets of A, B and C to rotate over, and whether that is "cold" or "warm".

    Cold: at least two sets and twice the L2 in all, so that no set is still cached when its turn
    comes again. At most MAX_BUFFERS sets and half of the free memory; always at least one.
    """
    wanted = max(2, math.ceil(2 * l2_bytes / bytes_each))
    count = max(1, min(wanted, MAX_BUFFERS, free_bytes // 2 // bytes_each))
    return count, "cold" if count >= 2 and count * bytes_each >= 2 * l2_bytes else "warm"


class Ring:
    """Whose turn it is among the sets of operands: one position for all contenders of a case, so
    that none finds in the cache what another has just left there."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._next = 0

    def turn(self) -> int:
        """The index of the set to use now."""
        index = self._next
        self._next = (index + 1) % self.size
        return index

    def end_at_last_after(self, turns: int) -> None:
        """Let the set that is used after so many turns be the last one."""
        self._next = -turns % self.size


def rotating_operands(
    case: Case, seed: int = 0
) -> tuple[list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], str, Ring]:
    """Sets of A, B and C of a case on the GPU: (sets, "cold" or "warm", the ring over them).

    Their data is not that of ``accuracy.Oracle``, which has the seed itself.
    """
    import torch

    from .. import accuracy

    size = case.product().bytes
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    count, cache = buffer_count(size, l2_bytes, torch.cuda.mem_get_info()[0])
    dtype_in, dtype_out = accuracy.as_dtype(case.dtype_in), accuracy.as_dtype(case.dtype_out)
    leading = (case.batch,) if case.batch > 1 else ()
    sets = [
        (
            *accuracy.batch_of_operands(
                case.batch,
                case.M,
                case.N,
                case.K,
                dtype_in,
                case.layout,
                "cuda",
                seed + 1 + number,
                data=case.data,
            ),
            torch.empty(*leading, case.M, case.N, dtype=dtype_out, device="cuda"),
        )
        for number in range(count)
    ]
    return sets, cache, Ring(count)


def repeated_calls(
    backend: str,
    kernel: str | None,
    sets: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor, Fusion]],
) -> list[Callable[[], Any]]:
    """For each set of A, B, C and what is fused: what a user's repeated call of ``gemm`` runs.

    The one place where the benchmark decides how a kernel is called. The first set stands for the
    user's first call, which checks, chooses, plans and makes the ``launch.Launch``; every set is
    then handed to that very object, as every later call of the kind is once it has found it by
    its key.

    Args:
        backend, kernel: as ``gemm`` is given them; kernel None leaves the choice to the backend.
        sets: A[M, K], B[K, N], C[M, N] and the fusion, all of one case and alignment; of a batch
            each has its products as a leading dimension.
    """
    from ..launch import make
    from ..launch_cache import run_launch

    def arguments(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, of: Fusion) -> Any:
        return (
            a, b, of.c, of.alpha, of.beta, of.bias, of.epilogue or None, out, out.dtype,
            of.compute or None, of.scale_a, of.scale_b, of.mma_shape or None, backend, kernel,
        )  # fmt: skip

    launch = make(*arguments(*sets[0]))
    return [partial(run_launch, launch, arguments(*each)) for each in sets]


def followed(
    calls: Sequence[Callable[[], Any]], outputs: Sequence[torch.Tensor]
) -> list[Callable[[], None]]:
    """Each call with torch's elementwise ``mul_`` by 1 on its output behind it: a foreign kernel
    that reads what was written, as a user's program has one, and leaves it as it is."""

    def both(call: Callable[[], None], c: torch.Tensor) -> Callable[[], None]:
        def run() -> None:
            call()
            c.mul_(1)

        return run

    return [both(call, c) for call, c in zip(calls, outputs, strict=True)]


class Launches:
    """A contender on the GPU: one kernel, bound to each of several sets of operands.

    ``calls`` are functions of no arguments that launch on the current stream, one for each set of
    the ring; a burst walks over them, so that each launch finds its operands out of the cache.
    """

    def __init__(self, calls: Sequence[Callable[[], Any]], ring: Ring) -> None:
        self.calls = calls
        self._ring = ring
        self._ms = 0.0
        self._host_ms = 0.0
        self._samplers: dict[str, Callable[[], float]] = {}
        self._bursts: dict[str, tuple[Callable[[], Any], int]] = {}

    @property
    def timers(self) -> list[str]:
        """The timers that samples were taken with."""
        return list(self._bursts)

    def run_again(self, timer: str) -> None:
        """Launch once more what was timed with that timer, to the end; the last set comes last.

        A graph is the very graph that was replayed, a burst the very calls.
        """
        burst, launches = self._bursts[timer]
        self._ring.end_at_last_after(launches)
        burst()
        _synchronize()

    def estimate(self) -> float:
        import torch

        if self._ms:
            return self._ms
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Every set first: a launcher may have to prepare for addresses that it has not seen, and
        # that time of the CPU would pass for the kernel's.
        for launches in (len(self.calls), 5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            start.record()
            for _ in range(launches):
                self.calls[self._ring.turn()]()
            end.record()
            self._host_ms = (time.perf_counter() - began) * 1e3 / launches
            end.synchronize()
            self._ms = max(start.elapsed_time(end) / launches, 1e-3)
            if self._ms > 50:
                break
        return self._ms

    def sampler(self, timer: str) -> Callable[[], float]:
        self.estimate()
        if timer not in self._samplers:
            self._samplers[timer] = self._graph() if timer == "graph" else self._events()
        return self._samplers[timer]

    def _events(self) -> Callable[[], float]:
        calls, ring = self.calls, self._ring
        launches = min(64, max(1, math.ceil(EVENTS_MS / self._ms)))
        delay_ms = 0.05 + 1.5 * min(launches * self._host_ms, 20)

        def burst() -> None:
            for _ in range(launches):
                calls[ring.turn()]()

        self._bursts["events"] = burst, launches
        return _between_events(burst, launches, delay_ms)

    def _graph(self) -> Callable[[], float]:
        rounds = max(1, math.ceil(GRAPH_MS / (self._ms * len(self.calls))))
        launches = rounds * len(self.calls)
        graph = _capture(list(self.calls) * rounds)
        self._bursts["graph"] = graph.replay, launches
        return _between_events(graph.replay, launches, 0.1 + 0.001 * launches)


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _between_events(
    burst: Callable[[], Any], launches: int, delay_ms: float
) -> Callable[[], float]:
    """A sample: the burst between two events, behind a delay during which the CPU runs ahead.

    Without the delay the first launch's time on the CPU would count as the kernel's.
    """
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        torch.cuda._sleep(int(delay_ms * CYCLES_PER_MS))
        start.record()
        burst()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / launches

    return sample


_stream: torch.cuda.Stream | None = None


def _capture(calls: Sequence[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    """The launches in a CUDA graph. Raises CaptureError where the kernel cannot be captured."""
    import torch

    global _stream
    if _stream is None:
        # One stream for all captures: cuBLAS keeps a workspace for each stream it has seen.
        _stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    failure: Exception | None = None
    # A collected tensor or graph would free memory on the GPU, which breaks a capture.
    gc.disable()
    try:
        with torch.cuda.stream(_stream):
            calls[0]()  # libraries set themselves up for this stream outside of the capture
            _stream.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for call in calls:
                    call()
            except Exception as error:
                failure = error
            try:
                graph.capture_end()
            except Exception as error:
                failure = failure or error
    finally:
        gc.enable()
    torch.cuda.synchronize()
    if failure is not None:
        raise CaptureError(str(failure)) from failure
    graph.replay()
    torch.cuda.synchronize()
    return graph
