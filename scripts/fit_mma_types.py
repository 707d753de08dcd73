"""Fits cuda_ref/planning/mma_types.json to plans that were timed: fit_mma_types.py

CUDA's rows of reports/nvidia-h200/trials/mma_types.csv: tiles and parts of K of mma_types, each
behind a foreign kernel in a graph. What is fitted is the logarithm of the time; a plan counts by
the time of its product's fastest plan over its own, since a choice is among the fast ones. It ends
with what the plan that the model takes loses to the fastest, of the plans that were timed, and with
what the rung that CUDA's choice takes loses to the fastest of those that were.
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from tcgemm.choosing import fitting
from tcgemm.dispatch import find
from tcgemm.problem import ITEMSIZE, Problem

model = import_module("tcgemm.cuda_ref.planning.mma_types_model")
rung = import_module("tcgemm.cuda_ref.shapes.mma_types")
by_name = import_module("tcgemm.cuda_ref.planning.ladder").by_name

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "reports" / "nvidia-h200" / "trials" / "mma_types.csv"
SMS = 132
TAIL = 0.1
"""Error of a logarithm beyond which it counts less: few rows are far off, by what no term says."""
PRIOR = 0.05
"""How much a constant is held to where it was, beside a row."""


class Row(NamedTuple):
    """A plan of a product, and how long it took."""

    problem: Problem
    kernel: str
    plan: dict[str, int]
    us: float


def problem_of(row: dict[str, str]) -> Problem:
    """The product of a row: rows of A and B begin at multiples of 16 bytes, or one element off."""
    dtype, (M, N, K) = row["dtype"], (int(row[side]) for side in "MNK")
    asked = Problem.stored(
        M, N, K, dtype, dtype, row["layout"], device="cuda", capability=(9, 0),
        compute=row["compute"],
    )  # fmt: skip
    vector = 16 // ITEMSIZE[dtype]

    def strides(rows: int, columns: int, letter: str) -> tuple[int, int]:
        pitch = -(-(columns if letter == "n" else rows) // vector) * vector + int(row["odd"])
        return (pitch, 1) if letter == "n" else (1, pitch)

    of_a, of_b = strides(M, K, row["layout"][0]), strides(K, N, row["layout"][1])
    return replace(asked, a_strides=of_a, b_strides=of_b)


def rows() -> list[Row]:
    with ROWS.open(newline="") as file:
        return [
            Row(problem_of(r), r["kernel"], fitting.plan_of(r["config"]), float(r["us"]))
            for r in csv.DictReader(file)
            if r["backend"] == "cuda"
        ]


class Timed(NamedTuple):
    """A row as the model takes it."""

    compute: str
    of: Any
    tile: Any
    parts: int
    us: float
    weight: float


def timed(of: Sequence[Row]) -> list[Timed]:
    """Those of mma_types."""
    mine = [row for row in of if row.kernel == "mma_types"]
    best: dict[Problem, float] = {}
    for row in mine:
        best[row.problem] = min(row.us, best.get(row.problem, math.inf))
    return [
        Timed(
            row.problem.compute,
            rung.sizes(row.problem),
            model.Tile(row.plan["BLOCK_M"], row.plan["BLOCK_N"], *rung.by_elements(row.problem)),
            row.plan.get("SPLITS", 1),
            row.us,
            best[row.problem] / row.us,
        )
        for row in mine
    ]


def put(values: Sequence[float]) -> None:
    """Sets all constants of the model, in the order of ``now``."""
    left = iter(values)
    model.CONSTANTS = model.Constants(*(next(left) for _ in model.CONSTANTS))
    for steps in (*model.STEPS.values(), model.BY_ELEMENTS):
        for name in steps:
            steps[name] = model.Step(next(left), next(left))


def now() -> list[float]:
    steps = [step for of in model.STEPS.values() for step in of.values()]
    return [*model.CONSTANTS, *(x for step in (*steps, *model.BY_ELEMENTS.values()) for x in step)]


def foretold(of: Sequence[Timed]) -> Any:
    return np.array([model.us(row.compute, row.of, row.tile, row.parts, SMS) for row in of])


def fit(of: Sequence[Timed]) -> dict[str, Any]:
    """The file."""
    measured, weight = np.log([row.us for row in of]), np.array([row.weight for row in of])
    begin = np.log(now())

    def off(logarithms: Any) -> Any:
        put([float(x) for x in np.exp(logarithms)])
        missed = weight * (np.log(foretold(of)) - measured)
        return np.concatenate([missed, PRIOR * (logarithms - begin)])

    found = least_squares(off, begin, loss="soft_l1", f_scale=TAIL, max_nfev=20, diff_step=0.02)
    put([float(f"{x:.3g}") for x in np.exp(found.x)])
    return {
        "constants": model.CONSTANTS._asdict(),
        "steps": {
            compute: {f"{m}x{n}": list(step) for (m, n), step in steps.items()}
            for compute, steps in model.STEPS.items()
        },
        "by elements": {compute: list(step) for compute, step in model.BY_ELEMENTS.items()},
    }


def told(name: str, lost: dict[str, list[float]]) -> None:
    for compute, each in lost.items():
        mean, most = math.exp(fmean(each)) - 1, math.exp(max(each)) - 1
        print(f"{name:9} {compute:8} {mean:6.1%}, at most {most:.0%}, of {len(each)} products")


def lost_by_plans(of: Sequence[Row]) -> dict[str, list[float]]:
    """How products are summed -> of each, the logarithm of what the plan of the model loses."""
    found: dict[Problem, list[tuple[float, float]]] = defaultdict(list)
    mine = [row for row in of if row.kernel == "mma_types"]
    for row, us in zip(mine, foretold(timed(of)), strict=True):
        found[row.problem].append((us, row.us))
    lost: dict[str, list[float]] = defaultdict(list)
    for problem, plans in found.items():
        lost[problem.compute].append(math.log(min(plans)[1] / min(us for _, us in plans)))
    return lost


def lost_by_rungs(of: Sequence[Row]) -> dict[str, list[float]]:
    """The same of the rung that costs least, with the fastest of its plans that were timed."""
    found: dict[Problem, dict[str, float]] = defaultdict(dict)
    for row in of:
        found[row.problem][row.kernel] = min(row.us, found[row.problem].get(row.kernel, math.inf))
    lost: dict[str, list[float]] = defaultdict(list)
    for problem, times in found.items():
        able = [name for name in times if find("cuda", name).why_not(problem) is None]
        taken = min(able, key=lambda name: by_name()[name].cost(problem, SMS))
        lost[problem.compute].append(math.log(times[taken] / min(times.values())))
    return lost


def main() -> None:
    of = rows()
    file = {"about": "by scripts/fit_mma_types.py", **fit(timed(of))}
    model.FILE.write_text(json.dumps(file, indent=1) + "\n")
    told("its plans", lost_by_plans(of))
    told("the rungs", lost_by_rungs(of))


if __name__ == "__main__":
    main()
