"""Races of all plans of a kernel (reports/nvidia-h200/trials/races.csv), beside the plan taken; and
what tests of models of races share."""

from __future__ import annotations

import csv
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from tcgemm.cuda_ref.shapes.one_wave import TUNING

from tcgemm.choosing.fitting import plan_of
from tcgemm.dispatch import find
from tcgemm.problem import Problem

RACES = Path(__file__).parents[1] / "reports/nvidia-h200/trials/races.csv"


def problem_of(M, N, K, layout="nn", dtype="bfloat16", **more):
    """A product on the GPU of the races."""
    return Problem.stored(M, N, K, dtype, dtype, layout, device="cuda", capability=(9, 0), **more)


def constants_near(kernels):
    """What the constants of a model of plans equal on a processor that rounds elsewhere."""
    return {
        kernel: {
            name: value if name == "rows" else pytest.approx(value, abs=1e-3)
            for name, value in of.items()
        }
        for kernel, of in kernels.items()
    }


@cache
def _races():
    """(tree, problem, kernel) of CUDA -> (settings, microseconds) of each plan."""
    cases = defaultdict(list)
    with RACES.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["backend"] == "cuda" and row["config"]:
                sizes = (int(row[x]) for x in "MNK")
                problem = problem_of(*sizes, row["layout"], row["dtype"])
                settings = plan_of(row["config"])
                if row["kernel"] == "one_wave":
                    settings = TUNING.newer(settings)
                    settings.pop("NUM_STAGES")  # which go by the tile, and were fewer
                cases[row["tree"], problem, row["kernel"]].append((settings, float(row["us"])))
    return dict(cases)


def losses(kernel, trees=()):
    """What the kernel's plan takes over its fastest raced one, of each race with several plans.

    Args:
        trees: whose races; by default all.
    """
    found = []
    row = find("cuda", kernel)
    for (tree, problem, name), plans in _races().items():
        if (
            name != kernel
            or len(plans) < 2
            or row.why_not(problem)
            or (trees and tree not in trees)
        ):
            continue
        plan = row.plan(problem)
        mine = [
            us
            for settings, us in plans
            if all(plan[each] == value for each, value in settings.items() if each in plan)
        ]
        if mine:
            found.append(min(mine) / min(us for _, us in plans))
    return found
