"""Fits triton_kernels/rungs/type_times.json to plans that were timed: fit_type_times.py

Triton's rows of reports/nvidia-h200/trials/type_parts.csv: plans of each type but 16-bit floats,
each behind a foreign kernel in a graph. What is fitted is the logarithm of the time; a plan counts
by the time of its product's fastest plan over its own, since a choice is among the fast ones. The
steps of each type in turn, then what all have in common, ROUNDS times; last the steps of float64
again, to the rows of float64_triton.csv as well, which have warp_specialized. It ends with what the
plan that the model takes loses to the fastest, of the plans that were timed.
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from tcgemm.choosing import fitting
from tcgemm.problem import OUTPUTS, Problem

times = import_module("tcgemm.triton_kernels.rungs.type_times")
kind_of = import_module("tcgemm.triton_kernels.planning.dtypes").kind

ROOT = Path(__file__).parents[1]
TRIALS = ROOT / "reports" / "nvidia-h200" / "trials"
ROWS, FLOAT64_ROWS = TRIALS / "type_parts.csv", TRIALS / "float64_triton.csv"
SMS = 132
ROUNDS = 4
TAIL = 0.1
"""Error of a logarithm beyond which it counts less: few rows are far off, by what no term says."""
PRIOR = 0.05
"""How much a constant is held to where it was, beside a row."""
LEAST = 0.001
"""A constant that is 0 has no logarithm."""
BEGIN = {
    "constants": {
        "start": 1.9, "memory": 2.7e6, "l2": 4.2e6, "stored": 2.6e6, "copies": 1.5, "second": 2.0,
        "sums": 3.0e6, "outside": 0.4, "odd_8_bits": 1.3, "odd_float32": 3.0, "odd_float64": 0.3,
    },
    "steps": {
        kind: {
            "fused": step,
            "warp_specialized": (*step[:4], LEAST, LEAST),
            "skinny": step,
        }
        for kind, step in {
            "tf32x3": (0.3, 0.2, 0.4, 0.4, 0.3, 0.03),
            "tf32": (0.3, 0.05, 0.08, 0.2, 0.3, 0.03),
            "float64": (0.2, 0.25, 0.3, 0.3, 0.03, 0.03),
            "ieee": (0.2, 0.3, 0.9, 0.06, 0.3, 0.3),
            "int8": (0.1, 0.07, 0.08, 0.1, LEAST, LEAST),
            "float8": (0.1, 0.07, 0.08, 0.1, LEAST, LEAST),
            "float8_promoted": (0.1, 0.07, 0.08, 0.1, LEAST, LEAST),
        }.items()
    },
}  # fmt: skip
"""Where the fit begins. Blocks that warp_specialized multiplies pass through no registers."""
NO_GLUON = ("float64", "ieee")
"""Kinds of which ROWS have no plan of warp_specialized."""
FLOAT64_BEGIN = (0.05, 0.1, 0.287, 0.2, LEAST, LEAST)
"""Where its step of float64 begins."""


class Row(NamedTuple):
    """A plan of a product, and how long it took."""

    problem: Problem
    kind: str
    kernel: str
    plan: Mapping[str, int]
    us: float


def rows(paths: Sequence[Path] = (ROWS, FLOAT64_ROWS)) -> list[Row]:
    """Triton's plans, each once: of those that were timed twice the first. Those whose blocks of B
    are loaded by device/flat_block.py now are left out: they took six times as long a step."""
    found: dict[Any, Row] = {}
    for path in paths:
        for row in csv.DictReader(path.open(newline="")):
            if row["backend"] != "triton":
                continue
            dtype, (M, N, K) = row["dtype"], (int(row[x]) for x in "MNK")
            out = "bfloat16" if dtype.startswith("float8") else OUTPUTS[dtype][0]
            problem = Problem.stored(
                M, N, K, dtype, out, row["layout"], device="cuda", capability=(9, 0),
                compute=row["compute"],
            )  # fmt: skip
            plan = fitting.plan_of(row["config"])
            kind = kind_of(dtype, row["compute"])
            if kind in ("tf32", "tf32x3") and times.one_by_one(row["kernel"], problem, plan):
                continue
            made = Row(problem, kind, row["kernel"], plan, float(row["us"]))
            found.setdefault((problem, row["kernel"], *sorted(plan.items())), made)
    return list(found.values())


def foretold(of: Iterable[Row]) -> np.ndarray[Any, Any]:
    return np.array([times.us(row.kernel, row.problem, row.plan, SMS) for row in of])


def losses(of: Sequence[Row]) -> dict[str, list[float]]:
    """Kind -> of each product, the logarithm of what the plan that the model takes loses."""
    by_product: dict[Problem, list[tuple[float, float]]] = defaultdict(list)
    for row, us in zip(of, foretold(of), strict=True):
        by_product[row.problem].append((us, row.us))
    lost: dict[str, list[float]] = defaultdict(list)
    for problem, found in by_product.items():
        best = min(us for _, us in found)
        kind = kind_of(problem.dtype_in, problem.compute)
        lost[kind].append(math.log(min(found)[1] / best))
    return lost


def weights(of: Sequence[Row]) -> np.ndarray[Any, Any]:
    best: dict[Problem, float] = {}
    for row in of:
        best[row.problem] = min(row.us, best.get(row.problem, math.inf))
    return np.array([best[row.problem] / row.us for row in of])


def adjust(of: Sequence[Row], now: Sequence[float], put: Callable[[Sequence[float]], None]) -> None:
    """Constants that fit the rows better, from where they are now; ``put`` sets them."""
    measured, weight = np.log([row.us for row in of]), weights(of)
    begin = np.log(np.maximum(now, LEAST))

    def off(logarithms: Any) -> Any:
        put([float(x) for x in np.exp(logarithms)])
        held = PRIOR * (logarithms - begin)
        return np.concatenate([weight * (np.log(foretold(of)) - measured), held])

    found = least_squares(off, begin, loss="soft_l1", f_scale=TAIL, max_nfev=12, diff_step=0.02)
    put([float(x) for x in np.exp(found.x)])


def adjust_steps(of: Sequence[Row], kind: str) -> None:
    """Steps of a kind that fit its rows better."""
    steps = times.STEPS[kind]

    def put(values: Sequence[float]) -> None:
        for number, kernel in enumerate(steps):
            steps[kernel] = times.Step(*values[6 * number : 6 * number + 6])

    mine = [row for row in of if row.kind == kind]
    adjust(mine, [x for step in steps.values() for x in step], put)


def fit() -> dict[str, Any]:
    """The file's two tables."""
    of = rows((ROWS,))
    times.CONSTANTS = times.Constants(**BEGIN["constants"])
    times.STEPS = {
        kind: {
            kernel: times.Step(*step)
            for kernel, step in steps.items()
            if not (kernel == "warp_specialized" and kind in NO_GLUON)
        }
        for kind, steps in BEGIN["steps"].items()
    }

    def put_all(values: Sequence[float]) -> None:
        times.CONSTANTS = times.Constants(*values)

    for _ in range(ROUNDS):
        for kind in times.STEPS:
            adjust_steps(of, kind)
        adjust(of, times.CONSTANTS, put_all)
    of_float64 = times.STEPS["float64"]
    times.STEPS["float64"] = {
        "fused": of_float64["fused"],
        "warp_specialized": times.Step(*FLOAT64_BEGIN),
        "skinny": of_float64["skinny"],
    }
    for _ in range(ROUNDS):
        adjust_steps(rows(), "float64")
    return {
        "constants": {name: _short(x) for name, x in times.CONSTANTS._asdict().items()},
        "steps": {
            kind: {kernel: [_short(x) for x in step] for kernel, step in steps.items()}
            for kind, steps in times.STEPS.items()
        },
    }


def _short(x: float) -> float:
    return float(f"{x:.3g}")


def main() -> None:
    file = {"about": "by scripts/fit_type_times.py", **fit()}
    times.FILE.write_text(json.dumps(file, indent=1) + "\n")
    lost = losses(rows())
    for kind, each in lost.items():
        print(f"{kind:16} {math.exp(fmean(each)) - 1:6.1%}, at most {math.exp(max(each)) - 1:.0%}")
    every = [x for each in lost.values() for x in each]
    print(f"{'all':16} {math.exp(fmean(every)) - 1:6.1%} of {len(every)} products")


if __name__ == "__main__":
    main()
