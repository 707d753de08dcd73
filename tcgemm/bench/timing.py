"""How long a launch takes. ``measure`` times everything; what surrounds it makes its samples.

A **sample** is the mean milliseconds of a launch over one short burst of a contender. ``measure``
takes samples of a kernel and of the baseline in turns, in alternating order, because clocks drift
by 5 to 20 % under a power cap and only neighbours in time can be compared. The statistics are pure
functions of pairs of samples; the GPU enters by ``launches.Launches`` alone. Imports no torch.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

GRAPH_BELOW_MS = 0.1
"""Kernels shorter than this are timed by CUDA-graph replays: launch gaps dominate otherwise."""

DOUBT_ABOVE = 1.1
"""A ratio to cuBLAS above this is measured again with the other timer."""

SLOW_MS = 100.0
"""Launches longer than this are paired three times at least, others MIN_PAIRS times."""

MIN_PAIRS = 5
MAX_PAIRS = 1000


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


def measure_among(
    pair: Contender,
    baseline_pair: Contender,
    foreign: Contender,
    timer: str,
    *,
    budget_s: float = 0.25,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing | None:
    """The time of a kernel among others, as in a user's program: paired with the baseline's.

    Args:
        pair: the kernel, and a foreign kernel behind each of its launches.
        baseline_pair: the baseline with the same behind it.
        foreign: the foreign kernel alone, whose median time is taken off both.
        timer: "graph" or "events", for all three, which are sampled in turns.
        budget_s: seconds to spend.

    Returns:
        Timing of the kernel in ms a launch; None where a pair took no longer than what is taken
        off, so that nothing can be said.

    Raises CaptureError where a graph is asked for and one of them cannot be captured.
    """
    samplers = [contender.sampler(timer) for contender in (pair, baseline_pair, foreign)]
    for sample in samplers:
        sample()
    rounds: list[list[float]] = []
    start = clock()
    while len(rounds) < MIN_PAIRS or (len(rounds) < MAX_PAIRS and clock() - start < budget_s):
        of_round = [0.0] * len(samplers)
        first = len(rounds) % len(samplers)
        order = [*range(first, len(samplers)), *range(first)]
        for index in order if len(rounds) % 2 == 0 else reversed(order):
            of_round[index] = samplers[index]()
        rounds.append(of_round)
    off = statistics.median(of_round[2] for of_round in rounds)
    pairs: list[Pair] = [(mine - off, other - off) for mine, other, _ in rounds]
    if min(ms for pair in pairs for ms in pair if ms is not None) <= 0:
        return None
    return summarise(pairs, timer)


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


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return statistics.median(values) if values else None
