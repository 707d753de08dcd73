"""Fits cuda_ref/planning/mma_types.json to plans that were timed: fit_mma_types.py

CUDA's rows of reports/nvidia-h200/trials/mma_types.csv: tiles and parts of K of mma_types, each
behind a foreign kernel in a graph, with operands that the L2 had kept where they fit. What is
fitted is the logarithm of the time; a plan counts by the time of its product's fastest plan over
its own, since a choice is among the fast ones. A row that says less than its plan can take
(``least_us``) is a fault of the timing, and counts nowhere.

It ends with what the plan that the model takes loses to the fastest, of the plans that were timed,
with what the rung that CUDA's choice takes loses to the fastest of those that were, and with how
many of the plans that the model takes among all were not timed.
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

from tcgemm import gpus
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
EMPTY_US = 0.8
"""A kernel that does nothing, behind a foreign one in a graph (docs/lab/triton_thin.md)."""
GPU = gpus.find("nvidia-h200")


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


def all_rows() -> list[Row]:
    with ROWS.open(newline="") as file:
        return [
            Row(problem_of(r), r["kernel"], fitting.plan_of(r["config"]), float(r["us"]))
            for r in csv.DictReader(file)
            if r["backend"] == "cuda"
        ]


def rows() -> list[Row]:
    """Those that are not faster than can be."""
    return [row for row in all_rows() if row.us >= least_us(row)]


def least_us(row: Row) -> float:
    """What the plan takes at least: an empty kernel, and the longer of what the busiest SM
    multiplies, at the peak of its tensor cores, and of what the L2 does not hold, at the bandwidth
    of memory."""
    problem, of, plan = row.problem, rung.sizes(row.problem), row.plan
    parts = plan.get("SPLITS", 1)
    tiles = -(-of.M // plan["BLOCK_M"]) * -(-of.N // plan["BLOCK_N"]) * parts
    of_block = 2 * plan["BLOCK_M"] * plan["BLOCK_N"] * (problem.K // parts)
    peak = GPU.peak(problem.dtype_in, problem.compute)
    multiplied = -(-tiles // SMS) * of_block / (1e6 * peak / SMS)
    size = (of.M * problem.K + problem.K * of.N + of.M * of.N) * of.sum_bytes
    moved = max(0, size - GPU.l2_bytes) / (1e3 * GPU.bandwidth_gb_s)
    return float(EMPTY_US + max(multiplied, moved))


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
    return np.array([model.us(t.compute, t.of, t.tile, t.parts, SMS, kept=True) for t in of])


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
    """The same of the rung that costs least, with the fastest of its plans that were timed; but for
    products of which wgmma_types reads an operand across K, as it did not when they were timed
    (reports/nvidia-h200/trials/across_k.csv has such)."""
    found: dict[Problem, dict[str, float]] = defaultdict(dict)
    for row in of:
        found[row.problem][row.kernel] = min(row.us, found[row.problem].get(row.kernel, math.inf))
    lost: dict[str, list[float]] = defaultdict(list)
    for problem, times in found.items():
        if "ACROSS" in find("cuda", "wgmma_types").plan(problem):
            continue
        able = [name for name in times if find("cuda", name).why_not(problem) is None]
        taken = min(able, key=lambda name: by_name()[name].cost(problem, SMS))
        lost[problem.compute].append(math.log(times[taken] / min(times.values())))
    return lost


def never_timed(of: Sequence[Row]) -> list[Problem]:
    """Products whose plan, by the model among all, is none of those that were timed."""
    plans: dict[Problem, set[tuple[int, int, int]]] = defaultdict(set)
    for row in of:
        if row.kernel == "mma_types":
            tile = row.plan["BLOCK_M"], row.plan["BLOCK_N"]
            plans[row.problem].add((*tile, row.plan.get("SPLITS", 1)))
    found = []
    for problem, timed_ones in plans.items():
        _, tile, parts = rung.fastest(problem, SMS)
        if (tile.block_m, tile.block_n, parts) not in timed_ones:
            found.append(problem)
    return found


def main() -> None:
    every, of = all_rows(), rows()
    print(f"{len(every) - len(of)} of {len(every)} rows are faster than can be")
    file = {"about": "by scripts/fit_mma_types.py", **fit(timed(of))}
    model.FILE.write_text(json.dumps(file, indent=1) + "\n")
    told("its plans", lost_by_plans(of))
    told("the rungs", lost_by_rungs(of))
    print(f"{len(never_timed(of))} plans that it takes among all were not timed")


if __name__ == "__main__":
    main()
