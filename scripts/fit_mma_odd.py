"""Fits the constants of CUDA's mma_odd to plans that were timed: fit_mma_odd.py

The rows are reports/nvidia-h200/trials/columns.csv: products of tens of rows or columns over a long
K, each by the rung that was taken before there was mma_odd, by plans of mma_odd, and by torch, each
behind a foreign kernel in a graph, with operands that lie in memory. Rows of builds that were given
up are left out: whose copies are of elements or ask for 256 bytes, and whose step is another. What
is fitted is the logarithm of the time; a plan counts by the time of its product's fastest plan over
its own, since a choice is among the fast ones.

It prints the constants, which are copied into cuda_ref/shapes/mma_odd.py, and what is lost to the
fastest rung and plan of each product by the one that is taken: with the constants that are shipped,
and with such as were fitted to one half of the products, for the others.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from fit_gemv_types import SMS, TAIL, Product, lost_by_halves, problem_of, told
from scipy.optimize import least_squares

from tcgemm.choosing import fitting
from tcgemm.problem import Problem

rung = import_module("tcgemm.cuda_ref.shapes.mma_odd")
parts = import_module("tcgemm.cuda_ref.planning.parts")
by_name = import_module("tcgemm.cuda_ref.planning.ladder").by_name

ROWS = Path(__file__).parents[1] / "reports/nvidia-h200/trials/columns.csv"
PRIOR = 0.03
"""How much a constant is held to where it was, beside a row."""
FITTED = (
    "START_US", "COLD_US", "WAVE_US", "MEMORY_BYTES_PER_US", "SECOND_US", "PART_US",
    "SUMS_BYTES_PER_US",
)  # fmt: skip


def way_of(plan: Mapping[str, int], itemsize: int) -> tuple[Any, int] | None:
    """The tile and the parts of K; None of builds that were given up."""
    tile = rung.Tile(*sorted((plan["BLOCK_M"], plan["BLOCK_N"]), reverse=True))
    kept = plan["WINDOWS"] == 1 and plan["STEP_BYTES"] == rung.STEP_K * itemsize
    known = tile in rung.TILES[itemsize] and plan["NUM_STAGES"] == rung.stages(itemsize)
    return (tile, plan.get("SPLITS", 1)) if kept and known else None


def products() -> list[Product]:
    """Of sizes that mma_odd may be chosen for, wherever their rows begin."""
    before: dict[Problem, tuple[str, float]] = {}
    plans: dict[Problem, dict[tuple[Any, int], float]] = defaultdict(dict)
    with ROWS.open(newline="") as file:
        for row in csv.DictReader(file):
            problem, us = problem_of(row), float(row["us"])
            if row["kernel"] == "mma_odd":
                plan = fitting.plan_of(row["config"])
                way = way_of(plan, 8 if problem.dtype_in == "float64" else 4)
                if way is not None:
                    plans[problem][way] = us
            elif row["kernel"] != "torch":
                before[problem] = row["kernel"], us
    return [Product(p, *before[p], plans[p]) for p in before if plans[p] and odd(p)]


def odd(problem: Problem) -> bool:
    """Whether it is of few rows or columns and its long side begins anywhere, however long K is."""
    return bool(rung.suits(replace(problem, K=max(problem.K, rung.LEAST_K_BYTES))))


def now() -> list[float]:
    found = [getattr(rung, name) for name in FITTED]
    return found + [x for of in rung.STEPS.values() for step in of.values() for x in step]


def put(values: Sequence[float]) -> None:
    """Sets all constants of the model, in the order of ``now``."""
    left = iter(values)
    for name in FITTED:
        setattr(rung, name, next(left))
    for of in rung.STEPS.values():
        for tile in of:
            of[tile] = rung.Step(next(left), next(left))
    rung._fastest.cache_clear()


def foretold(problem: Problem, way: tuple[Any, int]) -> float:
    return float(rung.us(problem.compute, rung.sizes(problem), *way, SMS))


def fit(of: Sequence[Product]) -> None:
    """Sets the constants to those that fit."""
    rows = [(p.problem, way, us, min(p.plans.values())) for p in of for way, us in p.plans.items()]
    measured = np.log([us for _, _, us, _ in rows])
    weight = np.array([best / us for _, _, us, best in rows])
    begin = np.log(now())

    def off(logarithms: Any) -> Any:
        put([float(x) for x in np.exp(logarithms)])
        times = np.log([foretold(problem, way) for problem, way, _, _ in rows])
        return np.concatenate([weight * (times - measured), PRIOR * (logarithms - begin)])

    found = least_squares(off, begin, loss="soft_l1", f_scale=TAIL, max_nfev=25, diff_step=0.01)
    put([float(f"{x:.3g}") for x in np.exp(found.x)])


def taken(of: Product) -> tuple[str, float]:
    """The rung that costs less, and how long it took: mma_odd in the plan that the model says ends
    first of those that were timed; but of no more parts than it may have."""
    mine, before = (by_name()[name].cost(of.problem, SMS) for name in ("mma_odd", of.before))
    if mine is None or before < mine:
        return of.before, of.before_us
    offered = set(rung.ways(of.problem, SMS, parts.room()))
    timed = [way for way in of.plans if way[1] <= max(w[1] for w in offered if w[0] == way[0])]
    way = min(timed, key=lambda way: foretold(of.problem, way))
    return "mma_odd", of.plans[way]


def lost(of: Sequence[Product]) -> dict[str, list[float]]:
    """How products are summed -> of each, the time of what is taken over that of the fastest; of
    products that mma_odd may be chosen for."""
    found: dict[str, list[float]] = defaultdict(list)
    for product in of:
        if rung.suits(product.problem):
            found[product.problem.compute].append(taken(product)[1] / product.best)
    return found


def held_out(of: Sequence[Product]) -> dict[str, list[float]]:
    """What is lost with constants that are fitted to the other half of the products."""
    return lost_by_halves(of, now, put, fit, lost)


def main() -> None:
    of, shipped = products(), now()
    told("shipped", lost(of))
    told("held out", held_out(of))
    fit(of)
    told("fitted", lost(of))
    print({name: getattr(rung, name) for name in FITTED}, rung.STEPS)
    put(shipped)


if __name__ == "__main__":
    main()
