"""The Triton ladder. All that tcgemm knows of it: KERNELS, buildable, choose, sure, plans, by_rows,
second_launch_us, planned_by_user, tuned_by_user, load, inspect, derivative, copier, COPIED_US and
ODD_C.

Importing it imports neither triton nor torch: the rows are plain data, a rung loads on first use.
A new rung is ``NAME.py`` and ``NAME_plan.py`` in rungs/ or shapes/, and its name below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

if __name__ != "tcgemm.triton_kernels":
    raise ImportError("import tcgemm.triton_kernels: the bare name belongs to another distribution")

from .inspection import STAGES as STAGES
from .inspection import inspect as _inspect
from .planning import gpus, offered, tables
from .planning.choice import planned_by_user as planned_by_user
from .planning.choice import preferred
from .planning.choice import tuned_by_user as tuned_by_user
from .planning.planner import Planner
from .rungs import type_choice

ORDER = (
    "rungs.naive",
    "rungs.grouped",
    "rungs.pipelined",
    "rungs.fused",
    "rungs.persistent",
    "rungs.descriptor",
    "rungs.warp_specialized",
    "shapes.short_k",
    "shapes.thin",
    "shapes.skinny",
    "shapes.split_k",
)
"""The modules of the kernels: the ladder from its first rung to its last, then the specialists."""

COPIED_US = (2.0, 2.5), 3.2
"""Microseconds of one copy and of two, by one launch, and of the kernel that reads them, besides
what they read, multiply and write: of twelve products with a copy of A and of B, less what a second
launch took (reports/nvidia-h200/trials/races.csv)."""

ODD_C = 2.0e6
"""Bytes of a C in odd rows that warp_specialized stores in a microsecond: 1979 x 16211 x 84 (tn)
takes 40 us, and 8147 x 9669 x 86 (tn) 86 (reports/nvidia-h200/trials/races.csv)."""

_MODULES = {path.partition(".")[2]: path for path in ORDER}
_PLANS = {name: import_module(f".{path}_plan", __name__) for name, path in _MODULES.items()}


@cache
def planners() -> dict[str, Planner]:
    """Kernel -> its planner, in ladder order; without those that are planned without tables."""
    return {name: m.PLANNER for name, m in _PLANS.items() if hasattr(m, "PLANNER")}


def choose(problem: Any, able: Sequence[str]) -> str:
    """The kernel to run: the one for which that is settled, else the one that tables prefer, else
    the highest that pays for the problem, or of other types than 16-bit floats one that is faster
    by their models (rungs/type_choice.py).

    A kernel that has no tables was never measured against the others: the last such is taken, so
    that a rung just added is seen to run.

    Args:
        problem: of a call.
        able: names of the kernels that accept it, in ladder order; at least one.
    """
    return _choose(problem, tuple(able), tables.edition())


def buildable(problem: Any, able: Sequence[str]) -> list[str]:
    """Of the kernels that accept the problem those that can be built here: all."""
    return list(able)


def plans(problem: Any, able: Sequence[str]) -> Iterator[tuple[str, Mapping[str, int]]]:
    """(kernel, plan) of kernels in ``able`` that are worth a look besides what tables say."""
    return offered.plans(problem, able, planners())


def named(problem: Any, kernel: str) -> str:
    """As what the model of plans knows a kernel; see offered.py."""
    return offered.named(problem, kernel, planners())


def by_rows(problem: Any, kernel: str, plan: Mapping[str, int]) -> tuple[Any, Mapping[str, int]]:
    """The same product and plan where C lies by rows; see offered.py."""
    return offered.by_rows(problem, kernel, plan, planners())


def second_launch_us(problem: Any, kernel: str, plan: Mapping[str, int]) -> float:
    """Microseconds of a plan besides those of what ``by_rows`` makes of it; see offered.py."""
    return offered.second_launch_us(problem, kernel, plan, planners())


@lru_cache(maxsize=4096)
def _choose(problem: Any, able: tuple[str, ...], edition: int) -> str:
    measured = planners()
    unmeasured = [name for name in able if name not in measured]
    if unmeasured:
        return unmeasured[-1]
    settled = [name for name in able if measured[name].settled(problem)]
    if settled and not tuned_by_user(problem):
        return settled[-1]
    best = preferred(problem, able)
    if best is not None:
        return best
    pays = [name for name in able if measured[name].pays(problem)]
    usual = (pays or able)[-1]
    return type_choice.choose(problem, usual, able, measured, gpus.sms_of(problem))


def sure(problem: Any, name: str) -> bool:
    """Whether the kernel, if it is chosen, stays chosen whatever the model of drawn shapes says."""
    return name in planners() and planners()[name].settled(problem)


def forget() -> None:
    """Choose anew from now on: tables have changed."""
    _choose.cache_clear()


KERNELS: tuple[dict[str, Any], ...] = tuple(module.ROW for module in _PLANS.values())
"""One row a kernel: the fields of tcgemm.dispatch.Kernel."""


def module_of(name: str) -> ModuleType:
    """The module of a kernel, which imports triton."""
    return import_module(f".{_MODULES[name]}", __name__)


def load(name: str) -> Callable[..., None]:
    """The callable ``run(a, b, c, fusion=None, **plan)``: the ``Rung`` of the module of its name.

    ``run.bind``, with the same arguments, gives a function of (a, b, c, c_in, bias, scale_a,
    scale_b) for many calls of one kind; see launching.Bound.
    """
    run: Callable[..., None] = module_of(name).run
    return run


def derivative_kernel() -> Callable[..., Callable[..., None]]:
    """``bind(dy, z, dz, fusion)``, which gives ``start(dy, z, dz, None, db)`` for such tensors: the
    derivative of the epilogue that ``fusion`` names, and its column sums where ``db`` is no None;
    with Z and dZ None, ``start(dy, None, None, None, db)``: only the column sums of dY. See
    derivative.py."""
    module = import_module(".derivative", __name__)
    bind: Callable[..., Callable[..., None]] = partial(module.run.bind, **module.TILE)
    return bind


def copier(x: Any, copy: Any, *second: Any) -> Callable[..., None] | None:
    """``start(copy, x)``, which copies odd rows of 16-bit elements into aligned ones; see
    host/copies.py. A second matrix and its copy go by the same launch."""
    module = import_module(".host.copies", __name__)
    made: Callable[..., None] | None = module.copier(x, copy, *second)
    return made


def inspect(
    name: str, problem: Any, texts: bool = False, plan: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """What Triton makes of the rung for the problem, for its GPU; no GPU needed.

    With ``texts``, also the stages ttgir, ptx and sass. ``plan``: by default that of tables. Raises
    RuntimeError where the rung does not compile.
    """
    return _inspect(name, plan or _PLANS[name].ROW["plan"](problem), problem, texts)


def compiles(name: str, plan: Mapping[str, int], problem: Any) -> list[str]:
    """What has to be compiled for a product, one line each, whether it is there or not.

    Wants a process that compiles (TRITON_INTERPRET=0); no GPU.
    """
    from .inspection.specialisations import specialisations

    return [f"{each.kernel} {each.key}" for each in specialisations(name, plan, problem)]


def prepare(name: str, plan: Mapping[str, int], problem: Any) -> int:
    """Compile what a product needs and Triton's cache does not hold; how many kernels that were.

    As ``compiles``. Raises what Triton raises.
    """
    from .inspection.specialisations import compile_all

    return compile_all(name, plan, problem)


def plan_for(capability: tuple[int, int], gpu: str, sms: int) -> None:
    """Have plans be for that GPU, named as its table is, on a machine that has none; without a name
    for what its architecture's table says."""
    from .planning import gpus, planner

    limits = gpus.LIMITS.get(capability, gpus.UNKNOWN)
    gpus.stands_for.pop(capability, None)
    if gpu:
        gpus.stands_for[capability] = gpu, limits.shared_bytes, sms or limits.sms
    planner.forget()
    forget()
