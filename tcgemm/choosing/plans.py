"""Which plan a product gets, where a language offers others besides what its tables say.

A table's row knows a product by its size, and was tuned to shapes of suites. How rows lie, how deep
K is and how many SMs have work ask for other tiles and other parts of K. So a language's module
offers plans (``plans(problem, able)``), and a model takes the fastest of all its kernels'. It is a
sum of terms, those of model.py and a few that tell plans of one kernel apart, times a factor that
trees give (trees.py). Both stand in ``plans-<backend>-<gpu>.json`` and are fitted by
scripts/fit_plans.py and scripts/fit_cuda_plans.py to plans that were timed behind a foreign kernel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import gpus
from ..problem import Problem
from . import model, model_files, trees
from .measured import slug_of
from .within import MOSTLY_START_US, settled, tuned

if TYPE_CHECKING:
    from ..dispatch import Kernel

OF_MODEL = model.TERMS[: model.TERMS.index("store")]
"""Terms of model.py that tell plans apart: the first ones."""

TERMS = (*OF_MODEL, "no_pdl", "steps", "registers", "parts", "programs")
"""Names of the terms, in the order in which ``terms`` gives them."""

EARNED = 0.02
"""Of its time that a plan has to win, by the model, to be taken, where EARNED_US is less. With a
quarter of 1,073 raced products of Triton held out at a time all that is taken loses 2.8 % to the
fastest, and a product in 40 is slower by a twentieth; twice as much of longer products would be
2.9 % and a product in 50. Of CUDA's, with 64 shapes held out that were raced as they were drawn,
all that is taken loses 1.9 %; what was taken before this model lost 3.3 %."""

EARNED_US = {"triton": 0.235}
"""Microseconds that a language's plan has to win at least, which is more up to 12 us: what single
launches of short products differ by. Without it 0.4 % less is lost of Triton's products, and half
as many again are slower; of CUDA's 0.5 % less is lost, and fewer are slower by a tenth."""

NEAR = 1.2
"""Times the least time of the kernels' fastest plans by terms, up to which trees are asked about a
plan, by its terms. Of these first plans they are asked in any case: by its terms alone thin, which
they say takes twice as long, would leave out all others at 2 x 15773 x 17 (nn)."""


FEW = 32
"""Plans, by their number, of which trees are asked about all at once."""

AMONG_US = 100.0
"""Microseconds, by the model, up to which it speaks of whole lines. What takes longer is limited by
power, which tables know and races of a few launches do not."""


class Taken(NamedTuple):
    """A plan of a kernel, and how long the model says that it takes."""

    kernel: str
    plan: Mapping[str, Any]
    us: float


Asked = tuple[str, Problem, Mapping[str, Any]]
"""A kernel as the model knows it, a product whose C lies by rows, and a plan of it."""


def terms(problem: Problem, plan: Mapping[str, Any], sms: int) -> tuple[float, ...]:
    """The quantities that take a plan its time, in the order of TERMS; see ``model.terms``."""
    block_m, block_n = plan["BLOCK_M"], plan["BLOCK_N"]
    across = (block_n, block_m) if plan.get("SWAP") else (block_m, block_n)
    tiles = -(-problem.M // across[0]) * -(-problem.N // across[1]) * problem.batch
    parts = plan.get("SPLITS", 1)
    warps = plan.get("NUM_WARPS") or 4 * plan.get("CONSUMERS", 1)
    all_steps = -(-problem.K // plan["BLOCK_K"])
    steps = -(-all_steps // parts)
    return (
        *model.terms(problem, plan, sms)[: len(OF_MODEL)],
        float(plan.get("PDL", 1) == 0),
        -(-tiles * parts // sms) * steps,
        block_m * block_n / (128 * 128) * 4 / warps,
        parts if parts > 1 else 0.0,
        tiles * parts / sms,
    )


class PlanModel(NamedTuple):
    """What a GPU's file says."""

    constants: Mapping[str, model_files.Constants]
    """ "backend/kernel" -> the constants of its terms; empty of a GPU that has no file."""
    trees: trees.Trees = trees.read(())
    whole_lines: bool = False
    """Whether products whose rows are whole lines of the L2, as those of tables, were raced too."""

    def by_terms(
        self, kernel: str, problem: Problem, plan: Mapping[str, Any], sms: int, seen: bool = True
    ) -> float | None:
        """Microseconds of a kernel's plan by its terms alone; None of a kernel that it does not
        know.

        Args:
            seen: None too where a term is more than any row had, or is one that few rows had; else
                of such a term the most that was seen.
        """
        of = self.constants.get(kernel)
        if of is None:
            return None
        found = terms(problem, plan, sms)
        return model.sum_of(of, found) if seen else model.least_of(of, found)

    def factors(self, asked: Sequence[Asked], sms: int) -> list[float]:
        """What the times by terms of kernels' plans are multiplied by."""
        numbers = {name: number for number, name in enumerate(self.constants)}
        return trees.factors(self.trees, [trees.facts(numbers[k], p, q, sms) for k, p, q in asked])

    def us(
        self, kernel: str, problem: Problem, plan: Mapping[str, Any], sms: int, seen: bool = True
    ) -> float | None:
        """Microseconds of a kernel's plan; None as of ``by_terms``."""
        us = self.by_terms(kernel, problem, plan, sms, seen)
        return None if us is None else us * self.factors([(kernel, problem, plan)], sms)[0]


@cache
def shipped(backend: str, slug: str) -> PlanModel:
    """The model of a language on a GPU; of one that has no file it knows no kernel."""
    path = Path(__file__).with_name(f"plans-{backend}-{slug}.json")
    return read(json.loads(path.read_text())) if path.is_file() else PlanModel({})


def read(file: Mapping[str, Any]) -> PlanModel:
    """The model that a file holds."""
    kernels = file["kernels"]
    constants = {name: tuple(of[term] for term in TERMS) for name, of in kernels.items()}
    return PlanModel(constants, trees.read(file["trees"]), file.get("whole_lines", False))


def _known(backend: str, slug: str) -> PlanModel:
    """A GPU without a file goes by that of the nearest with the same compute capability, as it
    is."""
    kin = gpus.kin(slug, lambda each: bool(shipped(backend, each).constants))
    return shipped(backend, kin)


def of_named(problem: Problem, row: Kernel, module: Any, unnamed: Callable[[], Kernel]) -> Kernel:
    """The row of a kernel that is asked for by name: with the plan that it has where it is chosen
    unnamed, or the faster of its own."""
    if not hasattr(module, "plans"):
        return row
    taken = unnamed()
    return taken if taken.name == row.name else better(problem, row, [row], module)


def better(problem: Problem, chosen: Kernel, able: Sequence[Kernel], module: Any) -> Kernel:
    """The kernel to take, with its plan: ``chosen`` as it is, or the row whose plan is faster by
    enough.

    Args:
        chosen: what the language's tables and costs, or the model of kernels, say.
        able: kernels of the language that accept the problem.
        module: of the language. One that offers no plans keeps ``chosen``, and so does a
            configuration of the user's own that holds for it. Where the user's own model chose it,
            only its plan may change.
    """
    if not hasattr(module, "plans") or settled(problem, module):
        return chosen
    if module.planned_by_user(problem, chosen.name):
        return chosen
    if model_files.of(slug_of(problem)).yours:  # which has settled the kernel
        able = [chosen]
    found = fastest(problem, chosen, able, module)
    if found is None:
        return chosen
    taken, present_us = found
    # Copies, which are compared with what is taken, go by the same model.
    if taken.us >= present_us * (1 - earned(present_us, chosen.backend)):
        return _timed(chosen, problem, present_us)
    row = next(row for row in able if row.name == taken.kernel)
    return _timed(replace(row, plan=_Always(problem, taken.plan, row)), problem, taken.us)


def _timed(row: Kernel, problem: Problem, us: float) -> Kernel:
    """The row, of which ``unaligned_us`` says what the model does, where it says anything."""
    if row.unaligned_us(problem) is None:
        return row
    return replace(
        row, unaligned_us=lambda asked: us if asked == problem else row.unaligned_us(asked)
    )


def earned(us: float, backend: str) -> float:
    """The share of its microseconds that a language's plan has to be faster by, to be taken in its
    place."""
    return max(EARNED, EARNED_US.get(backend, 0.0) / us)


class _Always:
    """The plan of a problem, as it was chosen; of any other what the kernel's own planner says."""

    def __init__(self, problem: Problem, plan: Mapping[str, Any], row: Kernel) -> None:
        self._problem, self._plan, self._row = problem, plan, row

    def __call__(self, problem: Problem) -> Mapping[str, Any]:
        return self._plan if problem == self._problem else self._row.plan(problem)


def fastest(
    problem: Problem, chosen: Kernel, able: Sequence[Kernel], module: Any
) -> tuple[Taken, float] | None:
    """The fastest plan that is offered, and the microseconds of ``chosen``, by the model; None
    where it does not speak of the problem."""
    if problem.device != "cuda" or problem.batch > 1 or not model.knows(problem):
        return None
    slug = slug_of(problem)
    known, sms = _known(chosen.backend, slug), model.sms_of(slug)
    if module.named(problem, chosen.full_name) not in known.constants:
        return None
    if not sms or not problem.M or not problem.N:
        return None
    if tuned(problem, slug):
        present_us = _us_of_row(known, problem, chosen, module, sms)
        most = AMONG_US if known.whole_lines else MOSTLY_START_US
        if present_us is None or present_us > most:
            return None
    present = _by_terms(known, problem, chosen, module, sms)
    assert present is not None
    names = {row.name: module.named(problem, row.full_name) for row in able}
    found: list[tuple[Taken, float, Asked]] = []
    seen = set()
    for name, offered in module.plans(problem, list(names)):
        plan_of = name, frozenset(offered.items())
        if plan_of in seen:
            continue
        seen.add(plan_of)
        timed, plan = module.by_rows(problem, name, offered)
        us = known.by_terms(names[name], timed, plan, sms)
        if us is not None:
            second = module.second_launch_us(problem, name, offered)
            found.append((Taken(name, offered, us + second), second, (names[name], timed, plan)))

    def ask(numbers: Sequence[int], *besides: Asked) -> list[float]:
        """Fill in ``asked``; the factors of ``besides``."""
        factors = known.factors([*(found[i][2] for i in numbers), *besides], sms)
        for number, factor in zip(numbers, factors, strict=False):
            taken, second, _ = found[number]
            asked[number] = taken._replace(us=(taken.us - second) * factor + second)
        return factors[len(numbers) :]

    found.sort(key=lambda each: each[0].us)
    asked: dict[int, Taken] = {}
    firsts = {each[0].kernel: number for number, each in reversed(list(enumerate(found)))}
    of_present, us_of_present, second_of_present = present
    few = len(found) <= FEW
    # At once, which takes trees less time.
    (factor,) = ask(range(len(found)) if few else [*firsts.values()], of_present)
    present_us = us_of_present * factor + second_of_present
    most = NEAR * min((asked[number].us for number in firsts.values()), default=0.0)
    near = [i for i, each in enumerate(found) if each[0].us <= most and i not in firsts.values()]
    if not few:
        ask(near)
    best = min((asked[i] for i in (*firsts.values(), *near)), key=_us, default=None)
    return None if best is None else (best, present_us)


def _us(taken: Taken) -> float:
    return taken.us


def modelled_us(problem: Problem, row: Kernel, module: Any) -> float | None:
    """Microseconds of a kernel with its plan; None of a kernel or a product that the model does not
    know, or of a language that offers no plans."""
    slug = slug_of(problem)
    if problem.device != "cuda" or problem.batch > 1 or not model.knows(problem):
        return None
    if not hasattr(module, "plans") or not (sms := model.sms_of(slug)):
        return None
    return _us_of_row(_known(row.backend, slug), problem, row, module, sms)


def _us_of_row(
    known: PlanModel, problem: Problem, row: Kernel, module: Any, sms: int
) -> float | None:
    """Microseconds of a kernel with its plan; None of a kernel that the model does not know."""
    if (found := _by_terms(known, problem, row, module, sms)) is None:
        return None
    asked, us, second = found
    return us * known.factors([asked], sms)[0] + second


def _by_terms(
    known: PlanModel, problem: Problem, row: Kernel, module: Any, sms: int
) -> tuple[Asked, float, float] | None:
    """What trees are asked about a kernel with its plan, and its microseconds by terms and of a
    second launch; None of a kernel that the model does not know."""
    own = row.plan(problem)
    name = module.named(problem, row.full_name)
    timed, plan = module.by_rows(problem, row.name, own)
    us = known.by_terms(name, timed, plan, sms, seen=False)
    if us is None:
        return None
    return (name, timed, plan), us, module.second_launch_us(problem, row.name, own)


def why(problem: Problem, taken: Kernel, before: Kernel, module: Any) -> str:
    """In words, why ``taken`` is: ``better`` gave it in the place of ``before``."""
    mine, theirs = (modelled_us(problem, row, module) for row in (taken, before))
    if taken.name == before.name:
        return (
            f"with this plan, as among other kernels the model of plans has it at {mine:.1f} us, "
            f"and that of its table at {theirs:.1f}"
        )
    return (
        f"as among other kernels the model of plans has it at {mine:.1f} us, and {before.name}, "
        f"which would be taken else, at {theirs:.1f}"
    )
