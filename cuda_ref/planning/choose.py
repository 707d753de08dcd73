"""Which rung a problem is given to.

First what is settled for sure, then what the tables of the GPU prefer, then what is settled by
measurement whatever a model says, then the least cost: of each specialist that the problem suits,
and of the ladder. No rung is named here: each says in its own Python file what it costs (see
ladder.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

from ..build.toolchain import ROOT
from . import tables
from .gpu import of as gpu_of
from .ladder import by_name
from .refusals import refuse_tma
from .tuning import wide

SPECIALISTS = ROOT / "shapes"


def choose(problem: Any, able: Sequence[str]) -> str:
    """The rung to take of those that accept the problem.

    Args:
        able: names of rungs that accept it, at least one, in any order.
    """
    return _choose(problem, frozenset(able))


def choosable(problem: Any, able: Iterable[str]) -> list[str]:
    """Of rungs that accept the problem those that may be taken where none is named: without such as
    another rung that accepts it is better than always, unless the user's own table names one."""
    able, of_user = list(able), _of_user(problem)
    by_name_alone = {
        name
        for name, only in _only_by_name().items()
        if name in able and name != of_user and only(problem)
    }
    return [name for name in able if name not in by_name_alone] or able


@cache
def _only_by_name() -> dict[str, Callable[[Any], bool]]:
    """What rungs say, of those that say for which problems they are taken only by name."""
    return {
        name: module.only_by_name
        for name, module in by_name().items()
        if hasattr(module, "only_by_name")
    }


@lru_cache(maxsize=4096)
def _choose(problem: Any, able: frozenset[str]) -> str:
    left = choosable(problem, able)
    rungs = [module for name, module in by_name().items() if name in left]
    names = {module.ROW["name"] for module in rungs}
    gpu = gpu_of(problem)
    settled = [
        module.ROW["name"]
        for module in reversed(rungs)
        if hasattr(module, "settled") and module.settled(problem, gpu.sms)
    ]
    for_sure = [name for name in settled if sure(problem, name)]
    if for_sure and not tuned_by_user(problem):
        return str(for_sure[0])
    # Tables hold single products, whose rows were whole vectors.
    if problem.batch == 1 and (refuse_tma(problem) is None or tuned_by_user(problem)):
        preferred = tables.first(tables.preferences(gpu), wide(problem))
        if preferred and preferred["kernel"] in names:
            return _highest_for(preferred["kernel"], rungs)
    if settled:
        return str(settled[0])
    times = {}
    for module in rungs:
        us = module.cost(problem, gpu.sms) if hasattr(module, "cost") else None
        if us is not None:
            times[module.ROW["name"]] = us
    if times:
        return _highest_for(min(times, key=lambda name: times[name]), rungs)
    return _highest(rungs)


def sure(problem: Any, name: str) -> bool:
    """Whether the rung, if it is chosen, stays chosen whatever the model of drawn shapes says, and
    where it is settled, whatever tables say too, but for the user's own."""
    module = by_name()[name]
    return hasattr(module, "sure") and bool(module.sure(problem))


def tuned_by_user(problem: Any) -> bool:
    """Whether a row of the user's own table names the rung of a problem."""
    return _of_user(problem) is not None


def _of_user(problem: Any) -> str | None:
    """The rung that the user's own table names for it; tables hold single products."""
    rows = tables.of_user(gpu_of(problem)[0])["prefer"] if problem.batch == 1 else []
    row = tables.first(rows, wide(problem)) if rows else None
    return None if row is None else str(row["kernel"])


def _highest_for(name: str, rungs: Sequence[ModuleType]) -> str:
    """The rung, where it is a specialist; else the highest of the ladder, for which it stands."""
    return name if _is_specialist(by_name()[name]) else _highest(rungs)


def _highest(rungs: Sequence[ModuleType]) -> str:
    """The last rung of those that no cost tells apart."""
    ladder = [m for m in rungs if not (_is_specialist(m) and hasattr(m, "cost"))]
    return str((ladder or rungs)[-1].ROW["name"])


def _is_specialist(module: ModuleType) -> bool:
    return str(module.__file__).startswith(str(SPECIALISTS))


def forget() -> None:
    """Choose anew from now on, as the tables say then."""
    _choose.cache_clear()
