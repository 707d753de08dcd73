"""Fits the shipped model of plans, tcgemm/choosing/plans.py, to races: fit_plans.py [RACES.csv]

A race is every plan of a product, timed behind a foreign kernel in a graph, in rows of
reports/nvidia-h200/trials/races.csv, which it reads unless told. A plan counts by the square of the
fastest plan's time over its own: a choice is among the fast ones. First each kernel's terms get
constants; then boosted trees are grown on what these leave over, by scikit-learn.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from sklearn.ensemble import GradientBoostingRegressor

from tcgemm import gpus
from tcgemm.choosing import fitting, model, plans, trees
from tcgemm.problem import Problem

ROOT = Path(__file__).parents[1]
GPU = gpus.lookup("NVIDIA H200")
RACES = ROOT / "reports" / GPU.slug / "trials" / "races.csv"
BESIDE = ROOT / "reports" / "nvidia-h100-sxm" / "trials" / "tile_races.csv"
"""The same of an H100, which has the SMs and the clock of an H200: races with tiles that none of
the others had."""
WHOLE = ROOT / "reports" / GPU.slug / "trials" / "whole_lines.csv"
"""The same of products whose rows are whole lines of the L2: tables were tuned for such, and RACES
has few."""
H100_BYTES_PER_US = 2.7e6
HELD_UP = 0.6
"""Of their time that products of BESIDE may take by their bytes alone: its memory is
slower."""
BACKEND = "triton"
POWER = 2
"""Of the fastest plan's time over a plan's: its weight."""
GROWN = {
    "n_estimators": 200, "max_depth": 10, "learning_rate": 0.09, "min_samples_leaf": 12,
    "subsample": 0.7, "max_features": 0.5, "random_state": 0,
}  # fmt: skip
"""Of scikit-learn's trees. With a third of the products held out at a time, ten questions lose a
thousandth less than eight of all that was raced, and as much of what was drawn; fewer trees lose
more; more and slower ones gain nothing and take as much longer."""

SECOND_PASS_US = 0.75
"""What a plan that divides K takes longer in `tcgemm bench --suite drawn`, whose foreign kernel
works on C in place, than in races of ELSEWHERE. Ten plans were timed in both ways, and take 0.7 us
more in the median; plans of whole K take the same (docs/lab/cost_model.md)."""
ELSEWHERE = ("7a96c1d", "ad24ec3", "c327f65", "27b646c")
"""Trees whose races had another foreign kernel than that."""

BY_ELEMENTS = ("skinny", "pipelined", "persistent", "thin")
"""Kernels that are taken, and were raced, where elements are loaded one by one."""

EARLY_US = 0.3
"""What the second pass takes less in a graph since it starts before the product has ended
(reports/nvidia-h200/trials/second_pass.csv)."""
LATE = (*ELSEWHERE, "16710ec", "38b2f26")
"""Trees of before that."""


EDGED, EDGE_US = ("e768843",), 0.45
"""Trees whose captured launches of kernels with descriptors kept a programmatic edge, and what that
took: about the median over undivided plans that were timed both ways
(reports/nvidia-h200/trials/captured_first.csv)."""

SINCE = ("0f1a7427",)
"""Trees whose races ran on Triton 3.7.1, with warp_specialized as it is now. Later ones belong
here."""
GAINED_US = {"warp_specialized": 0.25, "descriptor": 0.4, "split_k": 0.15, "persistent": 0.13}
"""What a kernel's plans take less there than in the races of before, of all that were timed in
both: about what leaves the least relative error. Of the others it is less than 0.05 us. A share of
the time besides would tell no more of any (docs/lab/cost_model.md)."""
ONE_TILE_US = 0.36
"""The same of warp_specialized's plans whose C passes through the ring now: before, they had
buffers for it, and a stage or two less."""


class Raced(NamedTuple):
    """A plan of a product, and how long it took."""

    problem: Problem
    kernel: str
    """ "backend/kernel"."""
    asked: Mapping[str, int]
    """The plan, as it is now: one that was raced with buffers for C may do without."""
    us: float
    plan: Mapping[str, int]
    """What a model makes of it."""
    terms: tuple[float, ...]
    second_us: float
    """Of ``us``, what a second launch is taken for, of which the terms say nothing."""
    seen: Problem
    """What ``plan`` is of: the transposed product where the kernel computes that, and a batch of
    parts of K where it is divided."""

    @property
    def first_us(self) -> float:
        """Microseconds of what the terms speak of."""
        return self.us - self.second_us


class HasTime(Protocol):
    """A row of any kernels' races."""

    @property
    def problem(self) -> Problem: ...
    @property
    def us(self) -> float: ...


Timed = TypeVar("Timed", bound=HasTime)


def races(path: Path = RACES) -> list[dict[str, str]]:
    """The rows of races, those of whole lines among them; of an H100's those of products that its
    memory does not hold up."""
    rows, others = [*rows_of(path), *rows_of(WHOLE)], rows_of(BESIDE)
    fastest: dict[tuple[str, ...], float] = {}
    for row in others:
        fastest[_product(row)] = min(float(row["us"]), fastest.get(_product(row), math.inf))
    for row in others:
        M, N, K = (int(row[name]) for name in "MNK")
        bytes_us = 2 * (M * K + K * N + M * N) / H100_BYTES_PER_US
        if bytes_us <= HELD_UP * fastest[_product(row)]:
            rows.append(row)
    return rows


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _product(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("M", "N", "K", "layout", "dtype"))


def problem_of(row: Mapping[str, str], dtype: str = "") -> Problem:
    """The product of a row; its dtype is the row's unless given."""
    of = dtype or row["dtype"]
    sizes = (int(row[name]) for name in "MNK")
    return Problem.stored(*sizes, of, of, row["layout"], device="cuda", capability=GPU.capability)


def raced(rows: Iterable[Mapping[str, str]]) -> list[Raced]:
    """The right plans of Triton's that the model can learn from."""
    module = import_module("tcgemm.triton_kernels")
    planners = module.planners()
    division = import_module("tcgemm.triton_kernels.planning.k_division")
    found = []
    for row in rows:
        plan = fitting.plan_of(row["config"])
        planner = planners.get(row["kernel"])
        if row["backend"] != BACKEND or planner is None or not plan or "BLOCK_M" not in plan:
            continue
        if "ALIGNED_COPIES" in plan:
            continue
        problem = problem_of(row)
        if row["kernel"] == "warp_specialized":
            plan = now(planner, plan, problem)
        one_by_one = division.by_elements(problem) and not planner.by_tma
        if row["kernel"] not in BY_ELEMENTS if one_by_one else not _offers(planner, problem):
            continue
        name = module.named(problem, f"{BACKEND}/{row['kernel']}")
        second = module.second_launch_us(problem, row["kernel"], plan)
        seen, known = module.by_rows(problem, row["kernel"], plan)
        terms = plans.terms(seen, known, GPU.sms or 0)
        found.append(Raced(problem, name, plan, us_of(row, plan), known, terms, second, seen))
    return found


def now(planner: Any, plan: Mapping[str, int], problem: Problem) -> dict[str, int]:
    """A plan of warp_specialized as its planner makes it now."""
    one_tile = import_module("tcgemm.triton_kernels.rungs.one_tile")
    transposed = planner.transposes(problem)
    seen = problem.transposed() if transposed else problem
    # A planner's own settings have SWAP of the product that the kernel computes.
    swap = {"SWAP": int(bool(plan["SWAP"]) != transposed)} if "SWAP" in plan else {}
    found = one_tile.through_stages(planner, {**plan, **swap}, seen, GPU.sms or 0)
    return {**found, **{name: plan[name] for name in swap}}


def _offers(planner: Any, problem: Problem) -> bool:
    return planner.offers_its_own or (bool(planner.offered) and planner.reads_in_vectors(problem))


def us_of(row: Mapping[str, str], plan: Mapping[str, int]) -> float:
    """Microseconds of a race's row, with Triton, the kernel and the second pass as they are now.

    Args:
        plan: of the row, as it is now.
    """
    us = float(row["us"])
    if row["tree"] in EDGED and row["kernel"] in ("split_k", "warp_specialized"):
        us -= EDGE_US
    if row["backend"] == BACKEND and row["tree"] not in SINCE:
        through = plan.get("BUFFERS") == 0
        us -= ONE_TILE_US if through else GAINED_US.get(row["kernel"], 0.0)
    if plan.get("SPLITS", 1) == 1:
        return us
    return us + SECOND_PASS_US * (row["tree"] in ELSEWHERE) - EARLY_US * (row["tree"] in LATE)


def fitted(rows: Iterable[Raced]) -> dict[str, Any]:
    """Kernel -> its constants and how many rows they are of. Each kernel's fit is drawn to the
    constants that all of them have together, as that of model.py is."""
    kernels = defaultdict(list)
    for row, weight in weighed(rows):
        kernels[row.kernel].append((row.terms, row.first_us, weight))
    together = [each for of in kernels.values() for each in of]
    samples = [(terms, us) for terms, us, _ in together]
    common = fitting.fit(samples, weights=[weight for *_, weight in together])
    pull = [fitting.PULL * x for x in fitting.mean_squares(samples)]
    found = {}
    for kernel, of in sorted(kernels.items()):
        if len(of) < model.LEAST_ROWS:
            continue
        samples = [(terms, us) for terms, us, _ in of]
        own = fitting.fit(
            samples, list(zip(common, pull, strict=True)), [weight for *_, weight in of]
        )
        told = fitting.told(own, samples)
        found[kernel] = {"rows": len(of), **dict(zip(plans.TERMS, told, strict=True))}
    return found


def weighed(rows: Iterable[Timed]) -> list[tuple[Timed, float]]:
    """Each row with its weight."""
    rows = list(rows)
    fastest: dict[Problem, float] = {}
    for row in rows:
        fastest[row.problem] = min(row.us, fastest.get(row.problem, row.us))
    return [(row, (fastest[row.problem] / row.us) ** POWER) for row in rows]


def grown(
    rows: Iterable[Raced], kernels: Mapping[str, Any], how: Mapping[str, Any]
) -> list[trees.Tree]:
    """Trees of the logarithm of what a plan takes over what its terms say; ``how`` as GROWN."""
    constants = plans.read({"kernels": kernels, "trees": []}).constants
    numbers = {name: number for number, name in enumerate(constants)}
    facts, over, weights = [], [], []
    for row, weight in weighed(rows):
        if row.kernel in constants:
            number = numbers[row.kernel]
            facts.append(trees.facts(number, row.seen, row.plan, GPU.sms or 0))
            over.append(math.log(row.first_us / model.least_of(constants[row.kernel], row.terms)))
            weights.append(weight)
    told = 1 + max(i for i, column in enumerate(zip(*facts, strict=True)) if len({*column}) > 1)
    facts = [each[:told] for each in facts]  # no column more that is the same in all
    found = GradientBoostingRegressor(**how).fit(facts, over, sample_weight=weights)
    begun = float(found.init_.constant_[0, 0])
    return [
        [[trees.LEAF], [round(begun, 5)], [0]],
        *(tree_of(each.tree_, found.learning_rate) for each in found.estimators_[:, 0]),
    ]


def tree_of(grown: Any, rate: float) -> trees.Tree:
    """One of scikit-learn's, in whose order of nodes the first child follows its parent."""
    assert all(child in (-1, at + 1) for at, child in enumerate(grown.children_left))
    nodes = zip(
        grown.feature, grown.threshold, grown.value[:, 0, 0], grown.children_right, strict=True
    )
    told = [
        (trees.LEAF, round(rate * float(value), 5), 0)
        if other < 0
        else (int(fact), round(float(most), 6), int(other) - at)
        for at, (fact, most, value, other) in enumerate(nodes)
    ]
    return [list(of_all) for of_all in zip(*told, strict=True)]


def model_of(rows: Iterable[Raced], how: Mapping[str, Any] = GROWN) -> dict[str, Any]:
    """The model that a GPU's file holds."""
    rows = list(rows)
    kernels = fitted(rows)
    return {"kernels": kernels, "trees": grown(rows, kernels, how)}


def table(path: Path = RACES) -> str:
    """The file of Triton's plans on the GPU."""
    return table_of(model_of(raced(races(path))), "fit_plans.py", whole_lines=True)


def table_of(found: Mapping[str, Any], script: str, whole_lines: bool = False) -> str:
    """A model as a file of the GPU, a line for each constant and each part of the trees.
    ``whole_lines``: whether products of such rows, as tables have, were raced."""
    head = {"about": f"{GPU.name}: scripts/{script}", "gpu": GPU.slug}
    whole = {
        **head,
        **({"whole_lines": True} if whole_lines else {}),
        "kernels": found["kernels"],
        "trees": trees.pack(found["trees"]),
    }
    return json.dumps(whole, indent=1) + "\n"


def write(backend: str, text: str) -> None:
    """Have the shipped model of a language's plans be this."""
    to = ROOT / "tcgemm" / "choosing" / f"plans-{backend}-{GPU.slug}.json"
    to.write_text(text)
    plans.shipped.cache_clear()
    print(f"wrote {to.relative_to(ROOT)}")


def main() -> None:
    write(BACKEND, table(*map(Path, sys.argv[1:2])))


if __name__ == "__main__":
    main()
