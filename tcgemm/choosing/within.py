"""Which kernel of a language a short product gets, where no table was tuned for it.

The languages' own tables and costs were fitted to the shapes of suites, a product after itself.
What users bring besides is short and of any size, among other kernels: there the model of model.py,
which was fitted to drawn shapes among others, is nearer to what is timed. So a language chooses,
and where a product is short the model may take another kernel, if that is faster by more than the
model errs. A longer product has to win more; one near to a case that was tuned for stays as
it was chosen. Of a kernel with more of something than any row had, or with what few rows had, the
model knows only what it takes at least; so such a kernel is not taken, and gives way to one that
beats that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..problem import Problem
from . import model, model_files
from .measured import nearest, slug_of

if TYPE_CHECKING:
    from ..dispatch import Kernel

SHORT_US = 8.0
"""Microseconds, by the model, of a product that it may decide about lightly."""

EARNED = 0.06
"""Of its time that a short product has to win before another kernel is taken; of a longer one
OF_LONGER times as much. Of seeds that the model has not seen less than 2 % (CUDA) and 1.5 %
(Triton) are lost to the fastest kernel that was timed, to which tests/test_choosing_model.py holds
it: see docs/lab/cost_model.md."""

OF_LONGER = 3.0

TUNED = 0.5
"""Doublings of M, N and K, in all, up to which a product is taken to be a case that was tuned,
where all rows are whole sectors of the L2, as in those cases: at 73 x 4504 x 4472 (nn), near to a
case of 64 x 4096 x 4096, Triton's table has a plan at 0.63 of cuBLAS
(reports/nvidia-h200/trials/drawn.csv)."""

MOSTLY_START_US = 3.0
"""Microseconds, by the model, up to which that does not count. Suites were timed one product after
another, where the next one's start hides behind this one's end; among others it is most of what so
short a product takes."""


def only_by_name(problem: Problem, row: Kernel, ladder: Sequence[Kernel], module: Any) -> bool:
    """Whether the kernel is taken for the problem only where it is named, by what its language's
    module says: another one of the ladder was faster always."""
    if not hasattr(module, "choosable"):
        return False
    return row.name not in module.choosable(problem, [each.name for each in ladder])


def settled(problem: Problem, module: Any) -> bool:
    """Whether no model is asked: a table of the user's own speaks of the problem, or the backend,
    whose module it is, has none."""
    return not hasattr(module, "tuned_by_user") or bool(module.tuned_by_user(problem))


def tuned(problem: Problem, slug: str) -> bool:
    """Whether a table was tuned for a case like the problem."""
    apart = (max(problem.a_strides), max(problem.b_strides), max(problem.c_strides))
    whole = all(stride % model.SECTOR == 0 for stride in apart)
    return whole and nearest(problem, slug, TUNED) is not None


def faster(problem: Problem, chosen: Kernel, able: Sequence[Kernel], module: Any = None) -> Kernel:
    """The kernel to take: ``chosen``, or the one that the model says is faster by enough.

    Args:
        chosen: what the language's tables and costs say.
        able: kernels of the language that accept the problem.
        module: of the language; see ``settled``.
    """
    if module is not None and settled(problem, module):
        return chosen
    if hasattr(module, "sure") and module.sure(problem, chosen.name):
        return chosen
    if problem.device != "cuda" or problem.batch > 1 or not model.knows(problem):
        return chosen
    slug = slug_of(problem)
    if chosen.full_name not in model.constants(slug):
        return chosen
    known = _modelled_us(problem, chosen, slug)
    present = _modelled_us(problem, chosen, slug, True) if known is None else known
    if present is None or (present > MOSTLY_START_US and tuned(problem, slug)):
        return chosen
    best, least = chosen, present
    for row in able:
        us = known if row is chosen else _modelled_us(problem, row, slug)
        if us is not None and us < least:
            best, least = row, us
    earned = EARNED * (1 if present < SHORT_US else OF_LONGER)
    return best if least < present * (1 - earned) else chosen


def _modelled_us(problem: Problem, row: Kernel, slug: str, at_least: bool = False) -> float | None:
    if row.full_name not in model.constants(slug):  # no plan is worth making
        return None
    plan, sms = row.plan(problem), model.sms_of(slug)
    return model.estimated_us(row.full_name, problem, plan, slug, sms, at_least)


def why(problem: Problem, taken: Kernel, of_tables: Kernel) -> str:
    """In words, why ``taken`` is: ``faster`` gave it in the place of what tables and costs say."""
    slug = slug_of(problem)
    mine, theirs = (_modelled_us(problem, row, slug, True) for row in (taken, of_tables))
    if mine is None or theirs is None:
        return f"in the place of {of_tables.name}"
    return (
        f"as among other kernels {model_files.of(slug).whose} model of drawn shapes has it at "
        f"{mine:.1f} us, and "
        f"{of_tables.name}, which tables and costs choose, at {theirs:.1f}"
    )
