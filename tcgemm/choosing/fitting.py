"""Fits the constants of model.py to timed rows of drawn shapes; what the choice then loses.

Rows are those of ``tcgemm bench --suite drawn`` with kernels named: of a product behind a foreign
kernel, right, and not of before the kernel could divide K. scripts/fit_model.py fits the shipped
files of constants by it, ``tcgemm tune --model`` a user's own.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from operator import mul
from statistics import geometric_mean
from typing import Any, NamedTuple

from .. import dispatch
from ..problem import Problem
from . import model, model_files, within
from .model_files import TERMS

PULL = 0.1
"""Rows, as many as which the constants of all kernels together weigh in a kernel's own fit."""

Sample = tuple[tuple[float, ...], float]
"""Terms of a row, and its microseconds."""


class Timed(NamedTuple):
    """A row: what ran, and how long it took."""

    seed: int
    problem: Problem
    among: str
    kernel: str
    terms: tuple[float, ...]
    us: float
    only_by_name: bool = False
    """Whether the kernel is taken for the problem only where it is named. Such a row tells of what
    all kernels have together, and not of its kernel: it may be slow by what no term counts."""


def timed(
    rows: Iterable[Mapping[str, Any]], sms: int, capability: tuple[int, int]
) -> Iterator[Timed]:
    """The rows that the model can learn from.

    Args:
        rows: with the columns of results.csv, as text or as they are stored.
        sms, capability: of the GPU that they are of.
    """
    for row in rows:
        seed = re.match(r"drawn-s(\d+)-", row["suite"])  # drawn-batched-s... are batches
        if not seed or row["status"] != "ok" or row.get("among") == "alone" or not row["ms_p50"]:
            continue
        if row["backend"] not in ("triton", "cuda") or "ALIGNED_COPIES" in row["config"]:
            continue
        plan = plan_of(row["config"])
        M, N, K = (int(row[x]) for x in "MNK")
        problem = Problem.stored(
            M, N, K, row["dtype_in"], row["dtype_in"], row["layout"],
            device="cuda", capability=capability,
        )  # fmt: skip
        if not model.knows(problem):
            continue
        kernel = dispatch.find(row["backend"], row["kernel"])
        divides = "SPLITS" in kernel.plan(problem)
        if "BLOCK_M" in plan and divides == ("SPLITS" in plan):
            found = model.terms(problem, plan, sms)
            us = 1e3 * float(row["ms_p50"])
            among = row.get("among") or ""
            module = import_module(dispatch.BACKENDS[kernel.backend])
            ladder = dispatch.ladder(kernel.backend)
            alone = within.only_by_name(problem, kernel, ladder, module)
            yield Timed(int(seed[1]), problem, among, kernel.full_name, found, us, alone)


def plan_of(config: str) -> dict[str, int]:
    """The numbers of a row's ``config``, as ``problem.settings`` wrote it."""
    words = (word.partition("=") for word in config.split())
    return {name: int(value) for name, _, value in words if value.lstrip("-").isdigit()}


def fitted(rows: Iterable[Timed]) -> dict[str, Any]:
    """Kernel -> its constants and how many rows they are of.

    Of kernels by TMA few rows have a C in odd rows, and those a small one. By what a clock errs
    there, a C of a million elements would take half a millisecond. So each kernel's fit is drawn,
    by the weight of PULL rows, to the constants that all kernels of its language have together.
    """
    languages: dict[str, dict[str, list[Timed]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        languages[row.kernel.partition("/")[0]][row.kernel].append(row)
    found = {}
    for kernels in languages.values():
        together = [(row.terms, row.us) for of in kernels.values() for row in of]
        weights = [PULL * x for x in mean_squares(together)]
        common = list(zip(fit(together), weights, strict=True))
        for kernel, timed_rows in kernels.items():
            of = [(row.terms, row.us) for row in timed_rows if not row.only_by_name]
            if len(of) >= model.LEAST_ROWS:
                constants = told(fit(of, common), of)
                found[kernel] = {"rows": len(of), **dict(zip(TERMS, constants, strict=True))}
    return dict(sorted(found.items()))


def told(constants: Sequence[float], samples: list[Sample]) -> list[list[float]]:
    """Of each term what a file holds: its constant, the most that a row had, and how many had some;
    of what none had, no constant."""
    every = zip(constants, *_seen(samples), strict=True)
    return [[round(x, 4) if rows else 0.0, most, rows] for x, most, rows in every]


def _seen(samples: list[Sample]) -> tuple[list[float], list[int]]:
    """Of each term the most that a row had, rounded up, and how many rows had some."""
    terms = list(zip(*(each for each, _ in samples), strict=True))
    most = [math.ceil(max(term) * 1e4) / 1e4 for term in terms]
    return most, [sum(x > 0 for x in term) for term in terms]


def fit(
    samples: Sequence[Sample],
    common: Sequence[tuple[float, float]] = (),
    weights: Sequence[float] = (),
) -> list[float]:
    """The constants, none below 0, with the least sum of squared relative errors.

    Args:
        samples: (terms, microseconds) of each row.
        common: (constant, weight) of each term: what a constant is drawn to, so that a term of
            which the samples tell little does not get a constant from their noise.
        weights: of each row; by default 1.
    """
    rows = [[term / us for term in each] for each, us in samples]
    columns = list(zip(*rows, strict=True))
    weighed = [list(map(mul, column, weights)) for column in columns] if weights else columns
    # By default what keeps terms apart that few rows tell apart.
    common = common or [(0.0, 1e-6 * len(rows))] * len(columns)
    products = [[sum(map(mul, one, other)) for other in columns] for one in weighed]
    sums = [sum(column) for column in weighed]
    found = [to for to, _ in common]
    for _ in range(2000):  # one constant at a time
        before = list(found)
        for i, (to, weight) in enumerate(common):
            if of := products[i][i] + weight:
                off = sums[i] - sum(map(mul, products[i], found))
                found[i] = max(0.0, found[i] + (off + weight * (to - found[i])) / of)
        if max(abs(new - old) for new, old in zip(found, before, strict=True)) < 1e-7:
            break
    return found


def mean_squares(samples: Sequence[Sample]) -> list[float]:
    """Of each term over the microseconds of its row: how much a row tells of the constant."""
    columns = zip(*([term / us for term in each] for each, us in samples), strict=True)
    return [sum(x * x for x in column) / len(samples) for column in columns]


class Loss(NamedTuple):
    """How much slower than the fastest timed kernel of a language its choice is, in the geometric
    mean of rows whose seed the fit had not seen: 0.01 is 1 %."""

    backend: str
    rows: int
    """Rows of one kernel each: a product is two, in a graph and in a stream."""
    of_model: float
    of_tables: float
    """Of tables and costs alone."""
    of_present: float | None = None
    """Of the model that choices go by now, where it has not seen the seeds either."""


def held_out(
    rows: Sequence[Timed], slug: str, sms: int, present: model_files.Model | None = None
) -> list[Loss]:
    """The losses of each language, each seed held out in turn.

    Rows do not count whose kernels other seeds tell too little of to choose among two, nor those of
    products of which a choice was not timed: the fit's, or that of tables and costs or ``present``.

    Args:
        rows: of two seeds at least.
        slug, sms: of the GPU that they are of, for which this process plans.
        present: a model to compare with, which was fitted to none of these seeds.
    """
    lost: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for seed in sorted({row.seed for row in rows}):
        known = model_files.constants_of(fitted(row for row in rows if row.seed != seed))
        cases: dict[tuple[str, Problem, str], dict[str, float]] = defaultdict(dict)
        for row in rows:
            if row.seed == seed:
                backend = row.kernel.partition("/")[0]
                cases[backend, row.problem, row.among][row.kernel] = row.us
        told = Counter(name.partition("/")[0] for name in known)
        models = [model_files.Model(known, sms), *([present] if present else [])]
        for (backend, problem, _), us in cases.items():
            if told[backend] < 2:
                continue
            taken = [_taken(problem, backend, slug, each) for each in models]
            taken.insert(1, dispatch.by_tables(problem, backend)[0].full_name)
            if set(taken) <= set(us):
                lost[backend].append(tuple(us[name] / min(us.values()) for name in taken))
    return [
        Loss(backend, len(of), *(geometric_mean(each) - 1 for each in zip(*of, strict=True)))
        for backend, of in sorted(lost.items())
    ]


def _taken(problem: Problem, backend: str, slug: str, by: model_files.Model) -> str:
    """The kernel that is chosen where choices go by this model."""
    with model_files.standing_in(slug, by):
        return dispatch.by_models(problem, backend)[0].full_name
