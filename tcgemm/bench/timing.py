"""How long a launch takes. ``measure`` times everything; what surrounds it makes its samples.

A **sample** is the mean milliseconds of a launch over one short burst of a contender. ``measure``
takes samples of a kernel and of the baseline in turns, in alternating order, because clocks drift
by 5 to 20 % under a power cap and only neighbours in time can be compared. The statistics are pure
functions of pairs of samples; the GPU enters by ``Launches`` alone. Imports torch only there.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from .cases import Case

GRAPH_BELOW_MS = 0.1
"""Kernels shorter than this are timed by CUDA-graph replays: launch gaps dominate otherwise."""

DOUBT_ABOVE = 1.1
"""A ratio to cuBLAS above this is measured again with the other timer."""

SLOW_MS = 100.0
"""Launches longer than this are paired three times at least, others MIN_PAIRS times."""

MIN_PAIRS = 5
MAX_PAIRS = 1000
GRAPH_MS = 1.0
"""Least duration of a graph, in estimated milliseconds."""

EVENTS_MS = 1.0
"""Least duration of a burst between two events."""

MAX_BUFFERS = 512
CYCLES_PER_MS = 2_000_000
"""Of a GPU at 2 GHz: a delay in cycles is at least as long in milliseconds as asked for."""


class CaptureError(RuntimeError):
    """The kernel cannot be captured into a CUDA graph."""


class Contender(Protocol):
    """Something that can be launched and timed."""

    def estimate(self) -> float:
        """Milliseconds a launch, roughly. Warms up."""
        ...

    def sampler(self, timer: str) -> Callable[[], float]:
        """A function that takes one sample, in ms a launch, with "graph" or "events".

        Raises CaptureError where a graph is asked for and the kernel cannot be captured.
        """
        ...


Pair = tuple[float, float | None]
"""(ms of the kernel, ms of the baseline beside it or None where the baseline is missing)."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds a launch, and the baseline's time over it pair by pair."""

    ms_p20: float
    ms_p50: float
    ms_p80: float
    ratio_p20: float | None
    ratio_p50: float | None
    ratio_p80: float | None
    rounds: int
    timer: str


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile, 0 <= q <= 1, linear between neighbours."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarise(pairs: Sequence[Pair], timer: str) -> Timing:
    """Median, p20 and p80 of the kernel's times and of the ratios pair by pair."""
    times = [ms for ms, _ in pairs]
    ratios = [base / ms for ms, base in pairs if base is not None]
    p20, p50, p80 = (quantile(times, q) for q in (0.2, 0.5, 0.8))
    r20, r50, r80 = (quantile(ratios, q) if ratios else None for q in (0.2, 0.5, 0.8))
    return Timing(p20, p50, p80, r20, r50, r80, len(pairs), timer)


def take_pairs(
    sample: Callable[[], float],
    baseline: Callable[[], float] | None,
    *,
    budget_s: float,
    least: int = MIN_PAIRS,
    most: int = MAX_PAIRS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Pair]:
    """Samples in turns: kernel, baseline, baseline, kernel, ... until the budget is spent.

    At least ``least`` pairs, whatever they take; at most ``most``.
    """
    pairs: list[Pair] = []
    start = clock()
    while len(pairs) < least or (len(pairs) < most and clock() - start < budget_s):
        if baseline is None:
            pairs.append((sample(), None))
        elif len(pairs) % 2 == 0:
            mine = sample()
            pairs.append((mine, baseline()))
        else:
            other = baseline()
            pairs.append((sample(), other))
    return pairs


def measure(
    contender: Contender,
    baseline: Contender | None,
    *,
    budget_s: float = 0.25,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """The time of a kernel, paired with the baseline's: the one function that times everything.

    Each side takes the timer that fits its duration: CUDA-graph replays below GRAPH_BELOW_MS,
    CUDA events otherwise, or where it cannot be captured. A fifth of the budget warms up. A ratio
    above DOUBT_ABOVE is measured again with both timers exchanged, and the lower ratio is kept.

    Args:
        contender: the kernel; compiled, verified.
        baseline: cuBLAS on the same buffers, or None where it cannot run; the contender itself
            where that is cuBLAS.
        budget_s: seconds to spend on pairs; slow kernels exceed it, see ``take_pairs``.

    Returns:
        Timing in ms a launch. Ratios are None where there is no baseline.
    """
    mine = contender.estimate()
    other = baseline.estimate() if baseline is not None else math.inf
    timing = _measure(contender, baseline, _timer(mine), _timer(other), mine, budget_s, clock)
    if baseline is contender or timing.ratio_p50 is None or timing.ratio_p50 <= DOUBT_ABOVE:
        return timing
    again = _measure(
        contender, baseline, _other(timing.timer), _other(_timer(other)), mine, budget_s, clock
    )
    assert again.ratio_p50 is not None
    return again if again.ratio_p50 < timing.ratio_p50 else timing


def _measure(
    contender: Contender,
    baseline: Contender | None,
    timer: str,
    baseline_timer: str,
    estimate_ms: float,
    budget_s: float,
    clock: Callable[[], float],
) -> Timing:
    sample, timer = _sampler(contender, timer)
    other = _sampler(baseline, baseline_timer)[0] if baseline is not None else None
    slow = estimate_ms > SLOW_MS
    if not slow:
        take_pairs(sample, other, budget_s=budget_s / 5, least=1, clock=clock)
    least = 3 if slow else MIN_PAIRS
    return summarise(take_pairs(sample, other, budget_s=budget_s, least=least, clock=clock), timer)


def _timer(ms: float) -> str:
    return "graph" if ms < GRAPH_BELOW_MS else "events"


def _other(timer: str) -> str:
    return "events" if timer == "graph" else "graph"


def _sampler(contender: Contender, timer: str) -> tuple[Callable[[], float], str]:
    try:
        return contender.sampler(timer), timer
    except CaptureError:
        return contender.sampler("events"), "events"


def why_impossible(flop: int, ms: float, ceiling_tflops: float | None) -> str | None:
    """Why a time cannot be true: it is above the dense peak. None where it can be, or who knows."""
    rate = flop / ms / 1e9
    if ceiling_tflops is None or rate <= ceiling_tflops:
        return None
    return (
        f"{rate:.0f} TFLOPS in {ms:.4g} ms is above the dense peak of {ceiling_tflops:.0f}: "
        "the time cannot be right"
    )


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
    sets = [
        (
            *accuracy.operands(
                case.M, case.N, case.K, dtype_in, case.layout, "cuda", seed + 1 + number
            ),
            torch.empty(case.M, case.N, dtype=dtype_out, device="cuda"),
        )
        for number in range(count)
    ]
    return sets, cache, Ring(count)


class Launches:
    """A contender on the GPU: one kernel, bound to each of several sets of operands.

    ``calls`` are functions of no arguments that launch on the current stream, one for each set of
    the ring; a burst walks over them, so that each launch finds its operands out of the cache.
    """

    def __init__(self, calls: Sequence[Callable[[], Any]], ring: Ring) -> None:
        self._calls = calls
        self._ring = ring
        self._ms = 0.0
        self._host_ms = 0.0
        self._samplers: dict[str, Callable[[], float]] = {}

    def estimate(self) -> float:
        import torch

        if self._ms:
            return self._ms
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Every set first: a launcher may have to prepare for addresses that it has not seen, and
        # that time of the CPU would pass for the kernel's.
        for launches in (len(self._calls), 5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            start.record()
            for _ in range(launches):
                self._calls[self._ring.turn()]()
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
        calls, ring = self._calls, self._ring
        launches = min(64, max(1, math.ceil(EVENTS_MS / self._ms)))
        delay_ms = 0.05 + 1.5 * min(launches * self._host_ms, 20)

        def burst() -> None:
            for _ in range(launches):
                calls[ring.turn()]()

        return _between_events(burst, launches, delay_ms)

    def _graph(self) -> Callable[[], float]:
        rounds = max(1, math.ceil(GRAPH_MS / (self._ms * len(self._calls))))
        launches = rounds * len(self._calls)
        graph = _capture(list(self._calls) * rounds)
        return _between_events(graph.replay, launches, 0.1 + 0.001 * launches)


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


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return statistics.median(values) if values else None
