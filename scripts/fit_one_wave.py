"""Grows the trees of one_wave, cuda_ref/planning/one_wave_trees.json: fit_one_wave.py [RACES.csv]

From races of its plans among other kernels, those of scripts/fit_plans.py unless told, and from
reports/nvidia-h200/trials/waves.csv, where each was timed behind launches of itself and which
counts less. As fit_plans.py does it of Triton's plans: each plan counts by its weight, and trees
are grown on what the terms leave over.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fit_plans import GPU, GROWN, RACES, ROOT, problem_of, races, tree_of, weighed
from sklearn.ensemble import GradientBoostingRegressor
from tcgemm.cuda_ref.planning.cost import TILE_K
from tcgemm.cuda_ref.planning.pairs import SPLIT_SECTORS, rows_lie

from tcgemm.choosing import fitting, trees
from tcgemm.choosing.model import VECTOR
from tcgemm.problem import Problem

one_wave = import_module("tcgemm.cuda_ref.shapes.one_wave")
one_wave_fitted = import_module("tcgemm.cuda_ref.planning.one_wave_fitted")
model = import_module("tcgemm.cuda_ref.planning.one_wave_model")
tiles = import_module("tcgemm.cuda_ref.planning.one_wave_tile")
own = import_module("tcgemm.cuda_ref.planning.one_wave_trees")

GROWN_HERE = {**GROWN, "max_depth": 8, "learning_rate": 0.07, "min_samples_leaf": 5}
"""There are fewer races than of Triton's plans."""


WAVES = RACES.with_name("waves.csv")
CHOICES, LISTED = RACES.with_name("tile_choice.csv"), RACES.with_name("listed_among.csv")
"""Plans among other kernels, of products whose rows are whole lines; of LISTED those that trees of
some age took."""
RUN = "3"
"""Of WAVES, the one whose every setting has a name."""
WEIGHT_OF_WAVES = 0.3
"""There are four times as many of them as races, and in races, as in a model, other kernels run
before and after."""


IN_ROWS, IN_ROWS_LATER, FEW_STEPS = 0.94, 0.98, 4
"""Of what a block of more than one warpgroup took while TMA stored a C whose rows split sectors of
the L2, what it takes since its threads do, of few steps along K and of more
(reports/nvidia-h200/trials/rows_of_c.csv)."""

MORE_STAGES, MORE_STAGES_OF_PARTS = 0.974, 0.959
"""Of what a plan took with chunks of C beside its ring, what it takes with one stage more: where K
is whole, and where it is divided (reports/nvidia-h200/trials/one_wave_stages.csv)."""

SINCE = (
    "1a1df4d", "253f7fa", "d74b8f1", "2f2ae20", "006426d", "137973f", "6d720e8", "ab44cd4",
    "6816fb9", "ab980eb", "7310c63", "3e612ad", "77418ac",
)  # fmt: skip
"""The trees whose races are of that."""


class Raced(NamedTuple):
    """A plan of a product with M <= N, and how long it took."""

    problem: Problem
    config: Mapping[str, int]
    us: float


def raced(rows: Iterable[Mapping[str, str]]) -> list[Raced]:
    """The plans in rows of races."""
    found = []
    for row in rows:
        if row["backend"] != "cuda" or row["kernel"] != "one_wave" or not row["config"]:
            continue
        plan = one_wave.TUNING.newer(fitting.plan_of(row["config"]))
        if "ALIGNED_COPIES" in plan:
            continue
        problem = problem_of(row)
        us = float(row["us"]) * since_stored_in_rows(row["tree"], problem, plan)
        if problem.M > problem.N:
            problem = problem.transposed()
            turned = {"M": "N", "N": "M"}
            plan = {name[:-1] + turned.get(name[-1], name[-1]): x for name, x in plan.items()}
        config = {name: plan[name] for name in one_wave.TUNING.settings}
        found.append(Raced(problem, config, us))
    return found


def since_stored_in_rows(tree: str, problem: Problem, plan: Mapping[str, int]) -> float:
    """Of what a plan took in a tree's races, what it takes since threads store C by rows."""
    if tree in SINCE or not _now_in_rows(problem, plan):
        return 1.0
    return IN_ROWS if problem.K <= FEW_STEPS * TILE_K else IN_ROWS_LATER


def since_chunks_in_ring(
    problem: Problem, plan: Mapping[str, int], us: float
) -> tuple[dict[str, int], float]:
    """A raced plan with the stages that its tile has in its ring, and what it takes with them; of
    a B in whole panels, since what fewer rows have gained no model knows.

    That is what it took, of fewer steps along K than it had stages, and of a large tile, whose
    chunks were in the ring before; and of 128 x 128, whose stages more were not timed.
    """
    tile = plan["BLOCK_M"], plan["BLOCK_N"]
    divided, float32 = plan["SPLITS"] > 1, problem.dtype_out == "float32"
    now = {**plan, "NUM_STAGES": tiles.stages(*tile, divided, float32, problem.plain)}
    stages = tiles.in_whole_panels(now)["NUM_STAGES"]
    steps = -(-problem.K // (TILE_K * plan["SPLITS"]))
    timed = tile != (128, 128) and not tiles.chunks_in_ring(*tile)
    if timed and plan["NUM_STAGES"] < min(stages, steps):
        us *= MORE_STAGES_OF_PARTS if divided else MORE_STAGES
    return {**plan, "NUM_STAGES": stages}, us


def _now_in_rows(problem: Problem, plan: Mapping[str, int]) -> bool:
    """Whether threads store C, which TMA could store too; as IN_ROWS of one_wave/build.cuh."""
    by_tma = problem.N % VECTOR == 0 and rows_lie(2, problem.c_strides) == SPLIT_SECTORS
    tall = plan["BLOCK_M"] > 64 and not one_wave_fitted.swaps(plan["BLOCK_M"])
    return bool(by_tma and plan["SPLITS"] == 1 and tall)


def alone(path: Path = WAVES) -> list[Raced]:
    """The plans of WAVES, of products with M <= N."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == RUN]
    found = [(row, settings_of(row["contender"])) for row in rows]
    return [
        Raced(problem_of(row, "bfloat16"), config, float(row["us"]))
        for row, config in found
        if config is not None and (config["BLOCK_M"], config["BLOCK_N"]) in model.STEP
    ]


def in_parts(path: Path = CHOICES) -> list[Raced]:
    """The plans of CHOICES that divide K, named such as "128x64_s8", without clusters."""
    found = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            said = re.fullmatch(r"(\d+)x(\d+)_s(\d+)", row["contender"])
            if said and row["about"] == "without_clusters":
                m, n, parts = map(int, said.groups())
                config = dict(zip(one_wave.TUNING.settings, (m, n, 1, 1, parts, 1), strict=True))
                found.append(Raced(problem_of(row, "bfloat16"), config, float(row["us"])))
    return found


def listed(path: Path = LISTED) -> list[Raced]:
    """The plans of LISTED behind a foreign kernel in a graph."""
    with path.open(newline="") as file:
        return raced(
            {**row, "dtype": row["dtype_in"], "us": str(1e3 * float(row["ms_p50"]))}
            for row in csv.DictReader(file)
            if row["among"] == "graph" and row["status"] == "ok"
        )


def settings_of(contender: str) -> dict[str, int] | None:
    """The settings of a contender such as "128x96 c2 shares A s4, next kernel late"; None of
    others."""
    said = re.fullmatch(
        r"(\d+)x(\d+) c(\d)( shares A)?(?: s(\d+))?, next kernel (after wait|late)", contender
    )
    if not said:
        return None
    m, n, cluster, shares, splits, start = said.groups()
    blocks = (1, int(cluster)) if shares else (int(cluster), 1)
    values = (int(m), int(n), *blocks, int(splits or 1), int(start != "late"))
    return dict(zip(one_wave.TUNING.settings, values, strict=True))


def timed_among(path: Path = RACES) -> list[Raced]:
    """All plans that were timed among other kernels."""
    return [*raced(races(path)), *in_parts(), *listed()]


def grown(among: Iterable[Raced], by_itself: Iterable[Raced]) -> list[trees.Tree]:
    """Trees of the logarithm of what a plan takes over what its terms say.

    Args:
        among: other kernels; by_itself: behind launches of itself, of WEIGHT_OF_WAVES.
    """
    facts, over, weights = [], [], []
    for rows, counts in ((among, 1.0), (by_itself, WEIGHT_OF_WAVES)):
        for row, weight in weighed(rows):
            us = model.by_terms(row.config, row.problem, GPU.sms)
            facts.append(own.facts(row.config, row.problem, GPU.sms, us))
            over.append(math.log(row.us / us))
            weights.append(weight * counts)
    found = GradientBoostingRegressor(**GROWN_HERE).fit(facts, over, sample_weight=weights)
    begun = float(found.init_.constant_[0, 0])
    first: list[trees.Tree] = [[[trees.LEAF], [round(begun, 5)], [0]]]
    return first + [tree_of(each.tree_, found.learning_rate) for each in found.estimators_[:, 0]]


def table(path: Path = RACES) -> str:
    """The file, a line for each part of the trees."""
    found = trees.pack(grown(timed_among(path), alone()))
    about = f"{GPU.name}: scripts/fit_one_wave.py"
    return json.dumps({"about": about, "trees": found}, indent=1) + "\n"


def main() -> None:
    own.FILE.write_text(table(*map(Path, sys.argv[1:2])))
    print(f"wrote {own.FILE.resolve().relative_to(ROOT)}")


if __name__ == "__main__":
    main()
