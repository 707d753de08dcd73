"""The search: the candidates of one problem tried on a machine, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ...bench.case import Case
from ...errors import first_line
from ...problem import settings

WORTH = 1.01
"""A candidate is kept where it is faster than the present choice by more than this."""


FINALISTS, AGAIN = 3, 3
"""So many of the fastest are timed so many times again, and the least of their speed-ups counts: of
a hundred candidates that are as fast as the present choice, one looks faster by luck."""


@dataclass(frozen=True)
class Candidate:
    """A configuration of a rung: as tables hold it, and as the rung's ``run`` takes it."""

    kernel: str
    config: dict[str, int]
    plan: dict[str, int]

    def __str__(self) -> str:
        return f"{self.kernel} {settings(self.config)}"


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate."""

    candidate: Candidate
    status: str
    """ok, or why it was dropped: failed, spills, wrong."""
    reason: str = ""
    ms: float = 0.0
    speedup: float = 0.0
    """The present choice's time over its own, pair by pair; of a finalist the least of several."""
    finalist: bool = False


@dataclass
class Found:
    """What tuning a problem gave."""

    case: Case
    present: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def best(self) -> Outcome | None:
        """The fastest right candidate, where it beats the present choice; else None."""
        right = [o for o in self.outcomes if o.status == "ok" and o.finalist]
        best = max(right, key=lambda o: o.speedup, default=None)
        return best if best is not None and best.speedup > WORTH else None


class Machine(Protocol):
    """What tuning needs of a GPU; a test brings its own."""

    gpu: str
    """The table's name, e.g. nvidia-h200."""

    def capturing(self) -> bool:
        """Whether launches go into a graph, and cannot be timed."""
        ...

    def candidates(self, case: Case, kernels: Sequence[str]) -> list[Candidate]:
        """What to try."""
        ...

    def compile(self, case: Case, candidates: Sequence[Candidate]) -> list[Outcome | None]:
        """Compile them, in parallel: why one is dropped, or None."""
        ...

    def prepare(self, case: Case) -> tuple[str, Bench]:
        """The present choice in words, and what judges candidates of this problem."""
        ...


class Bench(Protocol):
    """The operands of a problem on a GPU, and the present choice to be beaten."""

    def verify(self, candidate: Candidate) -> str:
        """What is wrong with the result; empty where nothing is."""
        ...

    def time(self, candidate: Candidate) -> tuple[float, float]:
        """(ms a launch, the present choice's time over it), taken in turns."""
        ...


def tune_case(case: Case, kernels: Sequence[str], machine: Machine) -> Found:
    """Try every candidate of the rungs on one problem."""
    tried = machine.candidates(case, kernels)
    dropped = machine.compile(case, tried)
    present, bench = machine.prepare(case)
    found = Found(case, present, [o for o in dropped if o is not None])
    for candidate, why in zip(tried, dropped, strict=True):
        if why is None:
            found.outcomes.append(_judge(candidate, bench))
    right = [i for i, o in enumerate(found.outcomes) if o.status == "ok" and o.speedup > WORTH]
    for index in sorted(right, key=lambda i: -found.outcomes[i].speedup)[:FINALISTS]:
        found.outcomes[index] = _judge_again(found.outcomes[index], bench)
    return found


def _judge_again(first: Outcome, bench: Bench) -> Outcome:
    """A finalist, with the least speed-up of all its timings; or what became of it in one."""
    least = first
    for _ in range(AGAIN):
        outcome = _judge(first.candidate, bench)
        if outcome.status != "ok":
            return outcome
        least = min(least, outcome, key=lambda each: each.speedup)
    return replace(least, finalist=True)


def _judge(candidate: Candidate, bench: Bench) -> Outcome:
    try:
        wrong = bench.verify(candidate)
        if wrong:
            return Outcome(candidate, "wrong", wrong)
        ms, speedup = bench.time(candidate)
    except RuntimeError as error:
        return Outcome(candidate, "failed", first_line(error)[:200])
    return Outcome(candidate, "ok", "", ms, speedup)
