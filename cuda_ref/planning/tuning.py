"""Settings of a rung that are chosen for each problem: by a table, else by the rung's model.

First the rows of the user's and of the shipped table of the GPU (tables.py), then the rung's own
model of the time, so that an unknown GPU gets a sound choice. Tables and models speak of the
problem with M <= N; a problem with M > N is the transpose of such a one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from . import tables
from .gpu import of as gpu_of
from .ladder import tunings

Config = Mapping[str, int]
"""Name of a setting -> value, as a table's row has it."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The settings of one rung. Problems given to its functions have M <= N; ``sms`` counts SMs."""

    kernel: str
    """The rung's name."""
    settings: tuple[str, ...]
    """Their names, as a table's rows have them."""
    simulated: Config
    """The settings in the simulator, in clusters of one block; or, with ``whole_plan``, all of
    the plan there."""
    candidates: Callable[[Any, int], list[dict[str, int]]]
    """candidates(problem, sms): settings worth trying."""
    modelled_us: Callable[[Config, Any, int], float]
    """modelled_us(config, problem, sms): microseconds by the model."""
    divide: Callable[[Config, Any, int, bool], dict[str, int]]
    """divide(config, problem, sms, transposed): the plan, with the tile of C as the caller's M and
    N have it; ``transposed``: the caller's problem is the transpose of this one."""
    tried: Callable[[Any, int], Sequence[dict[str, int]]] | None = None
    """The candidates that tuning builds and times, where those are fewer."""
    all_us: Callable[[Sequence[Config], Any, int], list[float]] | None = None
    """all_us(configs, problem, sms): ``modelled_us`` of each, where that is sooner of all at
    once."""
    fits: Callable[[Config, Any, int], bool] = field(default=lambda config, problem, sms: True)
    """fits(config, problem, sms): whether a table's row may be taken for the problem."""
    check: Callable[[Config], str | None] = field(default=lambda config: None)
    """check(config): why no build has these settings, as a sentence."""
    may_be_zero: tuple[str, ...] = ()
    """Settings that may be 0; others are 1 or more."""
    newer: Callable[[Config], dict[str, int]] = field(default=dict)
    """newer(config): the settings of an older table by the names that they have now."""
    oriented: Callable[[Any], Any] = field(default=lambda problem: problem)
    """The problem or its transpose, where the rung transposes by how C is stored."""
    as_raced: Callable[[Mapping[str, int]], Mapping[str, int]] = field(default=lambda plan: plan)
    """A plan with the settings of the races that the model of plans has learned from."""
    whole_plan: bool = False

    def plan(self, problem: Any) -> Mapping[str, int]:
        """Keyword arguments of the rung's ``run``: its tile of C, and its settings on a GPU."""
        return plan(self.kernel, problem)

    def cost(self, problem: Any, sms: int) -> float:
        """Microseconds of the problem with the best settings, by the model."""
        return fastest(self.kernel, wide(problem), sms)[0]


def wide(problem: Any) -> Any:
    """The problem, or its transpose, with M <= N."""
    return problem.transposed() if problem.M > problem.N else problem


def _tuning(kernel: str) -> Tuning:
    found = tunings()
    if kernel not in found:
        raise ValueError(f"{kernel} is not tuned: choose from {', '.join(found)}")
    return found[kernel]


@lru_cache(maxsize=4096)
def plan(kernel: str, problem: Any) -> Mapping[str, int]:
    """The plan of a rung that has settings, for a problem."""
    tuning = _tuning(kernel)
    problem = tuning.oriented(problem)
    seen = wide(problem)
    gpu = gpu_of(problem)
    sms = gpu.sms
    if problem.device == "cpu":
        if tuning.whole_plan:
            return tuning.simulated
        config = tuning.simulated
    else:
        rows = tables.rows_of(gpu, kernel)
        row = tables.first(rows, seen, lambda config: tuning.fits(config, seen, sms))
        config = row["config"] if row else _best(kernel, seen, sms)
    return tuning.divide(config, seen, sms, problem.M > problem.N)


def plans_of(
    kernel: str,
    problem: Any,
    sms: int,
    settings: Callable[[Any, int], Iterable[Config]],
    divide: Callable[[Config, Any, int, bool], dict[str, int]] | None = None,
) -> Iterator[Mapping[str, int]]:
    """The plans of a rung with each of ``settings(problem, sms)``, of the problem with M <= N.

    Args:
        divide: as Tuning.divide, for settings of which more is known.
    """
    tuning = _tuning(kernel)
    problem = tuning.oriented(problem)
    seen = wide(problem)
    for config in settings(seen, sms):
        yield (divide or tuning.divide)(config, seen, sms, problem.M > problem.N)


def divide(kernel: str, config: Config, problem: Any, sms: int, transposed: bool) -> dict[str, int]:
    """The plan of a table's config for a problem with M <= N: see Tuning.divide."""
    return _tuning(kernel).divide(config, problem, sms, transposed)


def candidates(kernel: str, problem: Any, shared: int, sms: int) -> Sequence[dict[str, int]]:
    """Settings of a rung that are worth timing for a problem with M <= N.

    Args:
        shared: bytes of shared memory that a block may take; every setting here takes less.
        sms: SMs of the GPU.

    Raises:
        ValueError: the rung has no candidates.
    """
    tuning = _tuning(kernel)
    return (tuning.tried or tuning.candidates)(problem, sms)


def modelled_us(kernel: str, config: Config, problem: Any, sms: int) -> float:
    """Microseconds of a problem with M <= N by the rung's model."""
    return _tuning(kernel).modelled_us(config, problem, sms)


def fastest(kernel: str, problem: Any, sms: int) -> tuple[float, dict[str, int]]:
    """(microseconds, settings) of the rung's best settings by the model, for M <= N."""
    return _fastest_of(candidates(kernel, problem, 0, sms), kernel, problem, sms)


def _best(kernel: str, problem: Any, sms: int) -> Config:
    """The rung's best settings by the model; where there is one alone, no model is asked."""
    found = candidates(kernel, problem, 0, sms)
    return found[0] if len(found) == 1 else _fastest_of(found, kernel, problem, sms)[1]


def _fastest_of(
    found: Sequence[dict[str, int]], kernel: str, problem: Any, sms: int
) -> tuple[float, dict[str, int]]:
    tuning = _tuning(kernel)
    if tuning.all_us is not None:
        times = tuning.all_us(found, problem, sms)
    else:
        times = [tuning.modelled_us(config, problem, sms) for config in found]
    return min(zip(times, found, strict=True), key=lambda pair: pair[0])
