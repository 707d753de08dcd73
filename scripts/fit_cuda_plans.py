"""Fits the shipped model of CUDA's plans, tcgemm/choosing/plans.py, to races: fit_cuda_plans.py

As fit_plans.py does it of Triton's, and by its functions. The races are those of races.csv, of
short_k.csv and of cuda_plans.csv in reports/nvidia-h200/trials; the trees of one_wave alone, which
foretell it where something is fused, are grown on those of races.csv (fit_one_wave.py).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

import fit_one_wave
import fit_plans
from fit_plans import GPU, RACES, Raced

from tcgemm.choosing import fitting, plans

BACKEND = "cuda"
FILES = (RACES, RACES.with_name("short_k.csv"), RACES.with_name("cuda_plans.csv"))

KERNELS = ("wgmma_persistent", "one_wave", "small", "skinny", "split_k", "stream_k")
"""Rungs that were raced against each other where operands are read by TMA or in vectors."""


def races(paths: Iterable[Path] = FILES) -> list[dict[str, str]]:
    """The rows of the files."""
    found: list[dict[str, str]] = []
    for path in paths:
        with path.open(newline="") as file:
            found += csv.DictReader(file)
    return found


def raced(rows: Iterable[Mapping[str, str]]) -> list[Raced]:
    """CUDA's right plans that the model can learn from: see plans of planning/offered.py."""
    module = import_module("tcgemm.cuda_ref")
    offered = import_module("tcgemm.cuda_ref.planning.offered")
    found = []
    for row in rows:
        plan = fitting.plan_of(row["config"] or "")
        if row["backend"] != BACKEND or row["kernel"] not in KERNELS or "BLOCK_M" not in plan:
            continue
        if "ALIGNED_COPIES" in plan or not row["us"]:
            continue
        problem = fit_plans.problem_of(row)
        if not offered.raced(problem):
            continue
        us = float(row["us"])
        if row["kernel"] == "one_wave":
            plan = fit_one_wave.one_wave.TUNING.newer(plan)
            us *= fit_one_wave.since_stored_in_rows(row["tree"], problem, plan)
            plan, us = fit_one_wave.since_chunks_in_ring(problem, plan, us)
        seen, known = module.by_rows(problem, row["kernel"], plan)
        terms = plans.terms(seen, known, GPU.sms or 0)
        name = module.named(problem, f"{BACKEND}/{row['kernel']}")
        found.append(Raced(problem, name, plan, us, known, terms, 0.0, seen))
    return found


model_of = fit_plans.model_of


def table() -> str:
    """The file of CUDA's plans on the GPU."""
    return fit_plans.table_of(model_of(raced(races())), "fit_cuda_plans.py")


def main() -> None:
    fit_plans.write(BACKEND, table())


if __name__ == "__main__":
    main()
