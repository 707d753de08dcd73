"""What each backend makes of a problem, and why no other kernel of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...dispatch import Kernel
    from ...gpus import Gpu
    from ...problem import Problem
    from .ranking import Estimate


BY_NAME = "asked for by name"
BY_TABLES = "what the backend chooses of those that take it"


@dataclass(frozen=True, slots=True)
class Choice:
    """What one backend makes of the problem."""

    backend: str
    kernel: str | None
    why: str
    others: dict[str, str]
    """The other kernels of the backend, each with why it is not taken."""
    plan: dict[str, Any] = field(default_factory=dict)
    tile: tuple[int, int] | None = None
    """BLOCK_M, BLOCK_N: the part of C that one block or program computes."""
    tiles: tuple[int, int] | None = None
    """Rows and columns of tiles in C."""
    blocks: int | None = None
    waves: float | None = None
    """Tiles over the GPU's SMs, counting one tile to an SM at a time."""
    last_wave_fill: float | None = None
    """Share of the SMs that have a tile in the last wave."""
    padding_waste: float | None = None
    """Share of the tiles' elements that lie outside C."""
    stage_bytes: int | None = None
    """Shared memory that the pipeline's stages of A and B fill in one block."""
    compiled: dict[str, Any] = field(default_factory=dict)
    """Registers, spilled and shared bytes, as the compiler says."""
    copied: str = ""
    """What is copied into aligned rows first, such as "A and B": plan and tiles are of the copies'
    product."""
    copying_us: float = 0.0

    @property
    def by_name(self) -> bool:
        return self.why == BY_NAME

    @property
    def by_tables(self) -> bool:
        """Whether the backend's own tables and costs choose the kernel."""
        return self.why == BY_TABLES


def choice(
    problem: Problem,
    backend: str,
    kernel: str | None,
    board: Gpu,
    compile_: bool = False,
    ranking: Sequence[Estimate] = (),
) -> Choice:
    """What the backend makes of the problem, and why not otherwise.

    Times are compared as ``ranking`` has them, and called measured where they are.
    """
    from ... import dispatch, repacking
    from ...choosing.sums import as_summed
    from ...errors import UnsupportedError

    problem = as_summed(problem, backend, kernel)
    rows = dispatch.ladder(backend)
    try:
        copies = None if kernel else repacking.worth(problem, backend)
        asked = problem if copies is None else copies.problem
        row = dispatch.choose(asked, backend, kernel)
    except UnsupportedError as error:
        others = {each.name: each.why_not(problem) or "" for each in rows}
        return Choice(backend, None, str(error).splitlines()[0], others)
    times = {each.kernel: each for each in ranking}
    others = {each.name: _why_other(each, row, rows, problem, kernel, times) for each in rows}
    others.pop(row.name)
    why = BY_NAME if kernel else _why_chosen(asked, row)
    plan = dict(row.plan(asked))
    copied: dict[str, Any] = {}
    if copies is not None:
        names = " and ".join(name for name in "ABC" if getattr(copies, name.lower()))
        copied = {"copied": names, "copying_us": repacking.copying_us(problem, copies, backend)}
    return Choice(
        backend,
        row.name,
        why,
        others,
        plan,
        **_grid(plan, asked, board),
        compiled=_compiled(row, asked) if compile_ else {},
        **copied,
    )


def _why_chosen(problem: Problem, row: Kernel) -> str:
    """That the backend's own tables and costs choose it, or what the model says."""
    from ... import dispatch
    from ...choosing import plans, within

    of_tables, _ = dispatch.by_tables(problem, row.backend)
    of_models, _ = dispatch.by_models(problem, row.backend)
    if row != of_models:
        return plans.why(problem, row, of_models, import_module(dispatch.BACKENDS[row.backend]))
    return BY_TABLES if of_tables == row else within.why(problem, row, of_tables)


def _why_other(
    other: Kernel,
    row: Kernel,
    rows: tuple[Kernel, ...],
    problem: Problem,
    kernel: str | None,
    times: Mapping[str, Estimate],
) -> str:
    from ...choosing import within
    from ...dispatch import BACKENDS

    reason = other.why_not(problem)
    if reason is not None:
        return reason
    if kernel is not None:
        why = f"takes it too, and {row.name} was asked for"
    elif within.only_by_name(problem, other, rows, import_module(BACKENDS[other.backend])):
        why = "takes it too, and only where it is named: others were faster always"
    elif [each.name for each in rows].index(row.name) > rows.index(other):
        why = f"takes it too, and {row.name} is a higher rung"
    else:
        why = f"takes it too, and gives way to {row.name}"
    return f"{why}: {_comparison(times.get(other.full_name), times.get(row.full_name))}"


def _comparison(other: Estimate | None, chosen: Estimate | None) -> str:
    """Which of the two is slower, as far as it is known and from what."""
    if other is None or other.us is None:
        return "no time of it is known near this shape"
    if chosen is None or chosen.us is None:
        return f"{other.us:.1f} us here, and no time of the other is known near this shape"
    how = "measured" if other.exact and chosen.exact else "estimated"
    which = "slower" if other.us > chosen.us else "faster" if other.us < chosen.us else "as fast"
    return f"{how} {which}, {other.us:.1f} us to {chosen.us:.1f}"


def _grid(plan: dict[str, Any], problem: Problem, board: Gpu) -> dict[str, Any]:
    from ...problem import stage_bytes
    from .ranking import block_of

    block = block_of(plan)
    if block is None:
        return {}
    tiles = (math.ceil(problem.M / block[0]), math.ceil(problem.N / block[1]))
    parts = plan.get("SPLITS", 1) * plan.get("GROUPS", 1)
    blocks = tiles[0] * tiles[1] * problem.batch * parts
    covered = tiles[0] * block[0] * tiles[1] * block[1]
    found: dict[str, Any] = {
        "tile": block,
        "tiles": tiles,
        "blocks": blocks,
        "padding_waste": 1 - problem.M * problem.N / covered,
    }
    if board.sms:
        waves = blocks / board.sms
        rest = blocks % board.sms
        found["waves"] = waves
        found["last_wave_fill"] = rest / board.sms if rest else 1.0
    if "NUM_STAGES" in plan:  # else the kernel has its own rule of how many there are
        found["stage_bytes"] = stage_bytes(plan, problem)
    return found


def _compiled(row: Kernel, problem: Problem) -> dict[str, Any]:
    """What the backend's optional ``inspect`` says; a reason where it cannot."""
    from ... import dispatch
    from ...errors import first_line

    module = import_module(dispatch.BACKENDS[row.backend])
    inspect = getattr(module, "inspect", None)
    if inspect is None:
        return {"unknown": f"{row.backend} is no source that could be compiled here"}
    try:
        own = {"plan": row.plan(problem)} if hasattr(module, "plans") else {}
        found: dict[str, Any] = inspect(row.name, problem, **own)
    except (RuntimeError, ValueError) as error:
        return {"unknown": first_line(error)}
    return found


def auto_backends(problem: Problem, kernel: str | None, board: Gpu) -> list[str]:
    """The backend that backend="auto" would take; both where neither takes the problem."""
    from ...choosing.auto import LANGUAGES, backend_for
    from ...choosing.sums import as_summed
    from ...errors import UnsupportedError
    from ...vocabulary import AUTO

    problem = as_summed(problem, AUTO, kernel)
    try:
        return [backend_for(problem, kernel, board.slug).backend]
    except UnsupportedError:
        return list(LANGUAGES)


def auto_choice(problem: Problem, kernel: str | None, board: Gpu) -> str:
    """What backend="auto" would take, and why."""
    from ...choosing.auto import backend_for
    from ...choosing.sums import as_summed
    from ...errors import UnsupportedError, first_line
    from ...vocabulary import AUTO

    problem = as_summed(problem, AUTO, kernel)
    try:
        backend, why = backend_for(problem, kernel, board.slug)
    except UnsupportedError as error:
        return f"none: {first_line(error)}"
    return f"{backend}, {why}"
