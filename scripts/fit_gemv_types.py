"""Fits the constants of CUDA's gemv_types to plans that were timed: fit_gemv_types.py

The rows are reports/nvidia-h200/trials/few_types.csv: of 60 products in three kinds of sums the
rung that was taken before there was gemv_types, and plans of gemv_types, each behind a foreign
kernel in a graph. Most products found their operands in memory: sets of them were multiplied in
turns. What is fitted is the logarithm of the time; a plan counts by the time of its product's
fastest over its own, since a choice is among the fast ones.

It prints the constants, which are copied into cuda_ref/shapes/gemv_types.py with two digits or
three, and what is lost to the fastest rung and plan of each product by the one that is taken: with
the constants that are shipped, and with such as were fitted to one half of the products, for the
others. Float32 is summed the same way for tf32 and tf32x3, so both have each other's plans.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from tcgemm.choosing import fitting
from tcgemm.problem import ITEMSIZE, Problem

rung = import_module("tcgemm.cuda_ref.shapes.gemv_types")
by_name = import_module("tcgemm.cuda_ref.planning.ladder").by_name

ROWS = Path(__file__).parents[1] / "reports/nvidia-h200/trials/few_types.csv"
SMS = 132
TAIL = 0.1
"""Error of a logarithm beyond which it counts less."""
PRIOR = 0.02
"""How much a constant is held to where it was, beside a row."""
FITTED = (
    "START_US", "COLD_US", "ROW_US", "STORE_US", "TRIP_US", "WAIT_US", "WARPS_US", "EXCHANGE_US",
    "PART_US", "FETCH_US", "WAVE_US", "LINES_PER_US", "MEMORY_BYTES_PER_US",
)  # fmt: skip


class Product(NamedTuple):
    """One product, the rung before with its time, and plans of the fitted rung with theirs."""

    problem: Problem
    before: str
    before_us: float
    plans: Mapping[Any, float]

    @property
    def best(self) -> float:
        return min(self.before_us, *self.plans.values())


def problem_of(row: Mapping[str, str]) -> Problem:
    """The product of a row, whose pitch is n: rows behind each other, v: of whole vectors of 16
    bytes, or o: one element more than these."""
    dtype, (M, N, K) = row["dtype"], (int(row[side]) for side in "MNK")
    vector = 16 // ITEMSIZE[dtype]

    def strides(rows: int, columns: int, letter: str) -> tuple[int, int]:
        inner = columns if letter == "n" else rows
        whole = -(-inner // vector) * vector + (row["pitch"] == "o")
        pitch = inner if row["pitch"] == "n" else whole
        return (pitch, 1) if letter == "n" else (1, pitch)

    asked = Problem.stored(
        M, N, K, dtype, dtype, row["layout"], device="cuda", capability=(9, 0),
        compute=row["compute"],
    )  # fmt: skip
    of_a, of_b = strides(M, K, row["layout"][0]), strides(K, N, row["layout"][1])
    return replace(asked, a_strides=of_a, b_strides=of_b)


def way_of(problem: Problem, plan: Mapping[str, int]) -> Any:
    columns = plan["BLOCK_N" if problem.M <= problem.N else "BLOCK_M"]
    along_n = columns * plan["WARPS"] // (rung.COLS * rung.ALL_WARPS)
    return rung.Way(along_n, plan["WARPS"], plan["SPLITS"])


def products() -> list[Product]:
    before: dict[Problem, tuple[str, float]] = {}
    plans: dict[Problem, dict[Any, float]] = defaultdict(dict)
    with ROWS.open(newline="") as file:
        for row in csv.DictReader(file):
            problem, us = problem_of(row), float(row["us"])
            if row["kernel"] == "gemv_types":
                plans[problem][way_of(problem, fitting.plan_of(row["config"]))] = us
            elif row["kernel"] != "torch":
                before[problem] = row["kernel"], us
    other = {"tf32": "tf32x3", "tf32x3": "tf32"}
    found = []
    for problem, (name, us) in before.items():
        same = replace(problem, compute=other.get(problem.compute, problem.compute))
        found.append(Product(problem, name, us, {**plans[same], **plans[problem]}))
    return found


def now() -> list[float]:
    values = [getattr(rung, name) for name in FITTED]
    return [x for value in values for x in (value.values() if isinstance(value, dict) else [value])]


def put(values: Sequence[float]) -> None:
    """Sets all constants of the model, in the order of ``now``."""
    left = iter(values)
    for name in FITTED:
        value = getattr(rung, name)
        several = isinstance(value, dict)
        setattr(rung, name, {key: next(left) for key in value} if several else next(left))
    rung.fastest.cache_clear()


def fit(of: Sequence[Product]) -> None:
    """Sets the constants to those that fit."""
    rows = [(rung.wide(p.problem), way, us, p.best) for p in of for way, us in p.plans.items()]
    measured = np.log([us for _, _, us, _ in rows])
    weight = np.array([best / us for _, _, us, best in rows])
    begin = np.log(now())

    def off(logarithms: Any) -> Any:
        put([float(x) for x in np.exp(logarithms)])
        foretold = np.log([rung.modelled_us(problem, way, SMS) for problem, way, _, _ in rows])
        return np.concatenate([weight * (foretold - measured), PRIOR * (logarithms - begin)])

    found = least_squares(off, begin, loss="soft_l1", f_scale=TAIL, max_nfev=15, diff_step=0.01)
    put([float(f"{x:.3g}") for x in np.exp(found.x)])


def taken(of: Product) -> tuple[str, float]:
    """The rung that costs less, and how long it took: gemv_types in the plan that the model says
    ends first of those that were timed."""
    mine, before = (by_name()[name].cost(of.problem, SMS) for name in ("gemv_types", of.before))
    if mine is None or before < mine:
        return of.before, of.before_us
    problem = rung.wide(of.problem)
    way = min(of.plans, key=lambda way: rung.modelled_us(problem, way, SMS))
    return "gemv_types", of.plans[way]


def lost(of: Sequence[Product]) -> dict[str, list[float]]:
    """How products are summed -> of each, the time of what is taken over that of the fastest."""
    found: dict[str, list[float]] = defaultdict(list)
    for product in of:
        found[product.problem.compute].append(taken(product)[1] / product.best)
    return found


def halves(of: Sequence[Product]) -> tuple[list[Product], list[Product]]:
    """Every other product, in all kinds of sums."""
    sizes = list(dict.fromkeys((p.problem.M, p.problem.N, p.problem.K) for p in of))
    sides: tuple[list[Product], list[Product]] = [], []
    for p in of:
        sides[sizes.index((p.problem.M, p.problem.N, p.problem.K)) % 2].append(p)
    return sides


def lost_by_halves(
    of: Sequence[Product],
    now: Callable[[], list[float]],
    put: Callable[[Sequence[float]], None],
    fit: Callable[[Sequence[Product]], None],
    lost: Callable[[Sequence[Product]], Mapping[str, Sequence[float]]],
) -> dict[str, list[float]]:
    """What is lost of each half of the products with constants that ``fit`` finds for the other, of
    a rung whose constants ``now`` reads and ``put`` sets. They are as before afterwards."""
    shipped, found = now(), defaultdict(list)
    first, second = halves(of)
    for fitted, rest in ((first, second), (second, first)):
        put(shipped)
        fit(fitted)
        for compute, each in lost(rest).items():
            found[compute] += each
    put(shipped)
    return found


def held_out(of: Sequence[Product]) -> dict[str, list[float]]:
    """What is lost with constants that are fitted to the other half of the products."""
    return lost_by_halves(of, now, put, fit, lost)


def told(name: str, of: Mapping[str, Sequence[float]]) -> None:
    for compute, each in of.items():
        mean = math.exp(fmean(map(math.log, each))) - 1
        print(f"{name:9} {compute:8} {mean:6.1%}, at most {max(each) - 1:.0%}, of {len(each)}")


def main() -> None:
    of, shipped = products(), now()
    told("shipped", lost(of))
    told("held out", held_out(of))
    fit(of)
    told("fitted", lost(of))
    print({name: getattr(rung, name) for name in FITTED})
    put(shipped)


if __name__ == "__main__":
    main()
