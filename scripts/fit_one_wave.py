"""Grows the trees of one_wave, cuda_ref/shapes/one_wave_trees.json: fit_one_wave.py [RACES.csv]

From races of its plans where rows of A or B begin within lines of the L2, in rows of
reports/nvidia-h200/trials/races.csv unless told. As scripts/fit_plans.py does it of Triton's plans:
each plan counts by its weight, and trees are grown on what the terms leave over.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fit_plans import GPU, GROWN, RACES, ROOT, tree_of, weighed
from sklearn.ensemble import GradientBoostingRegressor

from tcgemm.choosing import fitting, trees
from tcgemm.problem import Problem

one_wave = import_module("tcgemm.cuda_ref.shapes.one_wave")
model = import_module("tcgemm.cuda_ref.shapes.one_wave_model")
tiles = import_module("tcgemm.cuda_ref.shapes.one_wave_tile")
own = import_module("tcgemm.cuda_ref.shapes.one_wave_trees")

GROWN_HERE = {**GROWN, "learning_rate": 0.07, "min_samples_leaf": 5}
"""There are fewer races than of Triton's plans."""


class Raced(NamedTuple):
    """A plan of a product with M <= N, and how long it took."""

    problem: Problem
    config: Mapping[str, int]
    us: float


def raced(rows: Iterable[Mapping[str, str]]) -> list[Raced]:
    """The plans that trees can learn from."""
    found = []
    for row in rows:
        if row["backend"] != "cuda" or row["kernel"] != "one_wave" or not row["config"]:
            continue
        plan = one_wave.TUNING.newer(fitting.plan_of(row["config"]))
        if "ALIGNED_COPIES" in plan:
            continue
        sizes = (int(row[name]) for name in "MNK")
        problem = Problem.stored(
            *sizes, row["dtype"], row["dtype"], row["layout"], device="cuda",
            capability=GPU.capability,
        )  # fmt: skip
        if problem.M > problem.N:
            problem = problem.transposed()
            turned = {"M": "N", "N": "M"}
            plan = {name[:-1] + turned.get(name[-1], name[-1]): x for name, x in plan.items()}
        config = {name: plan[name] for name in one_wave.TUNING.settings}
        if tiles.splits_lines(problem):
            found.append(Raced(problem, config, float(row["us"])))
    return found


def grown(rows: Iterable[Raced]) -> list[trees.Tree]:
    """Trees of the logarithm of what a plan takes over what its terms say."""
    facts, over, weights = [], [], []
    for row, weight in weighed(rows):
        us = model.by_terms(row.config, row.problem, GPU.sms)
        facts.append(own.facts(row.config, row.problem, GPU.sms, us))
        over.append(math.log(row.us / us))
        weights.append(weight)
    found = GradientBoostingRegressor(**GROWN_HERE).fit(facts, over, sample_weight=weights)
    begun = float(found.init_.constant_[0, 0])
    first: list[Any] = [[(trees.LEAF, round(begun, 5), 0)]]
    return first + [tree_of(each.tree_, found.learning_rate) for each in found.estimators_[:, 0]]


def table(path: Path = RACES) -> str:
    """The file, a line for each tree."""
    with path.open(newline="") as file:
        found = grown(raced(csv.DictReader(file)))
    lines = ",\n  ".join(json.dumps(tree, separators=(",", ":")) for tree in found)
    return f'{{\n "about": "{GPU.name}: scripts/fit_one_wave.py",\n "trees": [\n  {lines}\n ]\n}}\n'


def main() -> None:
    own.FILE.write_text(table(*map(Path, sys.argv[1:2])))
    print(f"wrote {own.FILE.resolve().relative_to(ROOT)}")


if __name__ == "__main__":
    main()
