"""The model of both languages: its table is what the rows give, and it holds on other seeds."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from tcgemm.bench import drawn
from tcgemm.bench.case import Case
from tcgemm.choosing import model

ROOT = Path(__file__).parents[1]
DRAWN = ROOT / "reports" / "nvidia-h200" / "trials" / "drawn.csv"
LOSS = 1.04
"""Of the choice by the model, on a seed that it was not fitted on, over the faster of two: the
geometric mean. Seen: 1.036, where always Triton is 1.17 and always CUDA 1.11."""


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import fit_model
    finally:
        sys.path.pop(0)
    return fit_model


@pytest.fixture(scope="module")
def timed(script):
    with DRAWN.open(newline="") as file:
        return list(script.timed(csv.DictReader(file)))


def test_the_constants_are_what_the_rows_give(script, timed):
    shipped = json.loads(Path(model.__file__).with_name("model-nvidia-h200.json").read_text())
    assert set(shipped["seeds"]) <= set(drawn.FITTED) - set(script.CHECKED)
    rows = [row for row in timed if row.seed in shipped["seeds"]]
    of = defaultdict(list)
    for row in rows:
        of[row.kernel].append(row)
    kernel = "cuda/skinny"  # one, for its time
    again = script.fitted(of[kernel])[kernel]
    assert again == pytest.approx(shipped["kernels"][kernel], abs=1e-3)


def test_of_a_seed_that_it_was_not_fitted_on_it_takes_the_faster_language(script, timed):
    known = model.constants("nvidia-h200")
    cases = defaultdict(dict)
    for row in timed:
        if row.seed in script.CHECKED:
            cases[row.case, row.among][row.kernel] = row
    losses = []
    for rows in cases.values():
        if len(rows) < 2 or not set(rows) <= set(known):
            continue
        taken = min(rows, key=lambda kernel: model.sum_of(known[kernel], rows[kernel].terms))
        losses.append(rows[taken].us / min(row.us for row in rows.values()))
    assert len(losses) > 100
    assert math.exp(sum(map(math.log, losses)) / len(losses)) < LOSS


def test_a_fit_finds_constants_that_made_the_times():
    made = (2.0, 0.5, 0.0)
    samples = [((1.0, x, y), made[0] + made[1] * x) for x in (1, 2, 7, 20) for y in (1, 3)]
    assert model.fit(samples) == pytest.approx(made, abs=0.01)


def test_a_plan_says_what_takes_time():
    problem = Case("shape", 256, 512, 1024, "bfloat16", "bfloat16", "nn", "").product(
        capability=(9, 0)
    )
    plan = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "SPLITS": 2}
    found = dict(zip(model.TERMS, model.terms(problem, plan, 132), strict=True))
    assert (found["wave"], found["step"], found["divided"]) == (1, 8, 1)
    assert (found["load_split_lines"], found["odd_c"], found["copies"]) == (0, 0, 0)
    swapped = {**plan, "SWAP": 1}
    tall = dict(zip(model.TERMS, model.terms(problem, swapped, 8), strict=True))
    assert tall["wave"] == 4  # 2 x 8 tiles of 128 x 64, two parts of each, on 8 SMs
    odd = replace(problem, a_strides=(1025, 1), c_strides=(513, 1))
    found = dict(zip(model.TERMS, model.terms(odd, plan, 132, copies=1), strict=True))
    assert found["load_by_elements"] == found["load"] > 0
    assert (found["odd_c"], found["copies"]) == (256 * 512 / 1e6, 1)


def test_what_it_does_not_know_has_no_time():
    problem = Case("shape", 64, 64, 64, "bfloat16", "bfloat16", "nn", "").product(capability=(9, 0))
    plan = {"BLOCK_M": 64, "BLOCK_N": 64}
    assert model.estimated_us("cuda/one_wave", problem, plan, "nvidia-h200", 132) > 1
    assert model.estimated_us("cuda/one_wave", problem, plan, "nvidia-a100", 108) is None
    assert model.estimated_us("cuda/naive", problem, plan, "nvidia-h200", 132) is None
