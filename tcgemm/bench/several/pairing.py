"""Contenders in turns over several ranks, of which the slowest counts. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..timing import median, quantile

LEAST, MOST = 5, 200

Times = dict[str, list[float]]
"""Contender -> ms of each round."""


def how_many(estimates_ms: Sequence[float], budget_s: float) -> int:
    """Rounds that fit the budget: the same on all ranks, where the estimates are."""
    each = sum(estimates_ms) + 1.0 * len(estimates_ms)  # a delay of about 1 ms before each
    return max(LEAST, min(MOST, round(1e3 * budget_s / each)))


def take_rounds(
    samplers: Mapping[str, Callable[[], float]],
    rounds: int,
    slowest: Callable[[list[float]], list[float]],
) -> Times:
    """Each contender once a round, the first another one from round to round, every second round
    in the reverse order.

    Args:
        samplers: contender -> a function that runs it once; ms on this rank.
        rounds: the same on all ranks, and the contenders' order as well.
        slowest: the largest of each number over the ranks; a call of all ranks.
    """
    names = list(samplers)
    taken = {name: [0.0] * rounds for name in names}
    for number in range(rounds):
        first = number % len(names)
        order = names[first:] + names[:first]
        for name in order if number % 2 == 0 else reversed(order):
            taken[name][number] = samplers[name]()
    flat = slowest([ms for name in names for ms in taken[name]])
    return {name: flat[i * rounds : (i + 1) * rounds] for i, name in enumerate(names)}


def ratio(times: Times, other: str, mine: str) -> float | None:
    """The median over the rounds of the other's time over mine; None where one has no times."""
    if other not in times or mine not in times:
        return None
    return median([o / m for o, m in zip(times[other], times[mine], strict=True)])


def figures(
    times: Times, mine: str, transfer_ms: float, gemm: str, nccl: str, torch_fused: str
) -> dict[str, float | int | None]:
    """The columns of a row that hold times.

    Args:
        transfer_ms: of the bytes that pass the links, by them alone.
        gemm, nccl, torch_fused: the names of these contenders.
    """
    medians = {name: median(of) for name, of in times.items()}
    p20, p50, p80 = (quantile(times[mine], q) for q in (0.2, 0.5, 0.8))
    alone = medians.get(gemm)
    return {
        "ms_p20": p20, "ms_p50": p50, "ms_p80": p80, "gemm_ms": alone,
        "nccl_ms": medians.get(nccl), "torch_fused_ms": medians.get(torch_fused),
        "ratio_nccl": ratio(times, nccl, mine), "ratio_torch": ratio(times, torch_fused, mine),
        "of_limit": None if alone is None else max(alone, transfer_ms) / p50,
        "rounds": len(times[mine]),
    }  # fmt: skip
