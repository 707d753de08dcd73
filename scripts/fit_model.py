"""Fits the model of tcgemm/choosing/model.py to timed rows: fit_model.py ROWS.csv ...

Rows are those of `scripts/drawn_rows kernels`, or trials/drawn_kernels.csv: of a product behind a
foreign kernel, right, and not of before the kernel could divide K. Of seeds that FITTED of
tcgemm/bench/drawn.py does not name none is taken, so that the others are left to check by.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tcgemm import dispatch, gpus
from tcgemm.bench.case import Case
from tcgemm.choosing import model

ROOT = Path(__file__).parents[1]
GPU = "nvidia-h200"
SMS = 132


Sample = tuple[tuple[float, ...], float]
"""Terms of a row, and its microseconds."""


class Timed(NamedTuple):
    """A row: what ran, and how long it took."""

    seed: int
    case: Case
    among: str
    kernel: str
    terms: tuple[float, ...]
    us: float


def timed(rows: Iterable[Mapping[str, str]]) -> Iterator[Timed]:
    """The rows that the model can learn from."""
    for row in rows:
        seed = re.match(r"drawn-s(\d+)-", row["suite"])
        if not seed or row["status"] != "ok" or row.get("among") == "alone" or not row["ms_p50"]:
            continue
        if row["backend"] not in ("triton", "cuda") or "ALIGNED_COPIES" in row["config"]:
            continue
        plan = {
            name: int(value)
            for name, _, value in (word.partition("=") for word in row["config"].split())
            if value.lstrip("-").isdigit()
        }
        case = Case(
            row["suite"], *(int(row[x]) for x in "MNK"), row["dtype_in"], row["dtype_in"],
            row["layout"], "",
        )  # fmt: skip
        problem = replace(case.product(capability=(9, 0)), device="cuda")
        kernel = dispatch.find(row["backend"], row["kernel"])
        divides = "SPLITS" in kernel.plan(problem)
        if "BLOCK_M" in plan and divides == ("SPLITS" in plan):
            found = model.terms(problem, plan, SMS)
            us = 1e3 * float(row["ms_p50"])
            yield Timed(int(seed[1]), case, row.get("among", ""), kernel.full_name, found, us)


def fitted(rows: Iterable[Timed]) -> dict[str, Any]:
    """Kernel -> its constants and how many rows they are of.

    Of kernels by TMA few rows have a C in odd rows, and those a small one. By what a clock errs
    there, a C of a million elements would take half a millisecond. So each kernel's fit is drawn,
    by the weight of PULL rows, to the constants that all kernels of its language have together.
    """
    languages: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        languages[row.kernel.partition("/")[0]][row.kernel].append((row.terms, row.us))
    found = {}
    for kernels in languages.values():
        together = [sample for of in kernels.values() for sample in of]
        weights = [model.PULL * x for x in model.mean_squares(together)]
        common = list(zip(model.fit(together), weights, strict=True))
        for kernel, of in kernels.items():
            if len(of) >= model.LEAST_ROWS:
                constants = zip(model.fit(of, common), *_seen(of), strict=True)
                told = ([round(x, 4) if rows else 0.0, most, rows] for x, most, rows in constants)
                found[kernel] = {"rows": len(of), **dict(zip(model.TERMS, told, strict=True))}
    return dict(sorted(found.items()))


def _seen(samples: list[Sample]) -> tuple[list[float], list[int]]:
    """Of each term the most that a row had, rounded up, and how many rows had some."""
    terms = list(zip(*(each for each, _ in samples), strict=True))
    most = [math.ceil(max(term) * 1e4) / 1e4 for term in terms]
    return most, [sum(x > 0 for x in term) for term in terms]


def table(paths: Iterable[Path]) -> str:
    """The table of the GPU, as its file holds it."""
    from tcgemm.bench.drawn import FITTED

    rows = []
    for path in paths:
        with path.open(newline="") as file:
            rows += list(timed(csv.DictReader(file)))
    rows = [row for row in rows if row.seed in FITTED]
    found = {
        "about": f"{gpus.lookup('NVIDIA H200').name}: scripts/fit_model.py",
        "seeds": sorted({row.seed for row in rows}),
        "kernels": fitted(rows),
    }
    return json.dumps(found, indent=1) + "\n"


def main() -> None:
    paths = [Path(each) for each in sys.argv[1:]]
    if not paths:
        sys.exit("usage: python scripts/fit_model.py ROWS.csv ...")
    to = ROOT / "tcgemm" / "choosing" / f"model-{GPU}.json"
    to.write_text(table(paths))
    print(f"wrote {to.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
