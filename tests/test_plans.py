"""The model of plans: its table is what the races give, and it holds on shapes that it has not
seen."""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import geometric_mean

import pytest

from tcgemm import dispatch
from tcgemm.bench.drawn import drawn_cases
from tcgemm.choosing import model, model_files, plans, within
from tcgemm.choosing.fitting import plan_of
from tcgemm.problem import Problem

ROOT = Path(__file__).parents[1]
H200 = "nvidia-h200"
PLANNERS = import_module("tcgemm.triton_kernels").planners()
OFFER = import_module("tcgemm.triton_kernels").plans
gpus = import_module("tcgemm.triton_kernels.planning.gpus")

FOLDS = 5
LOSS, GAIN, WORSE = 1.12, 0.1, 0.08
"""Of the plan that is taken over the fastest timed one, where the fit has not seen the shape: the
geometric mean; how much more tables lose; the share of shapes that it makes slower by 5 %. Seen, on
shapes that were raced because tables were slow there: 1.10, where tables give 1.24, and none."""


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch, tmp_path):
    monkeypatch.setenv("TCGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpus, "gpu_here", lambda capability=None: (H200, 232_448, 132))
    for module in (within, plans):
        monkeypatch.setattr(module, "slug_of", lambda problem: H200)
    model_files.forget()
    yield
    model_files.forget()


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import fit_plans
    finally:
        sys.path.pop(0)
    return fit_plans


@pytest.fixture(scope="module")
def races(script):
    with script.RACES.open(newline="") as file:
        return list(csv.DictReader(file))


def problem_of(M, N, K, layout="nn", dtype="bfloat16", **more):
    return Problem.stored(
        M, N, K, dtype, dtype, layout, device="cuda", capability=(9, 0), **more
    )  # fmt: skip


def test_the_constants_are_what_the_races_give(script):
    shipped = json.loads(Path(plans.__file__).with_name(f"plans-{H200}.json").read_text())
    assert json.loads(script.table())["kernels"] == {
        kernel: {
            name: value if name == "rows" else pytest.approx(value, abs=1e-3)
            for name, value in of.items()
        }
        for kernel, of in shipped["kernels"].items()
    }


def test_of_a_shape_that_it_has_not_seen_it_takes_a_faster_plan(script, races):
    """Of the races since tiles are visited in today's order, whose first plan is what was taken
    then; of the plans that are offered those that were timed."""
    of_today = [row for row in races if row["tree"] == "27b646c" and row["kernel"]]
    rows = [row for row in of_today if row["backend"] == "triton"]
    taken = {}
    for row in rows:
        taken.setdefault(tuple(row[name] for name in ("M", "N", "K", "layout", "dtype")), row)
    every = script.raced(races)
    shapes = list(dict.fromkeys(each.problem for each in every))
    mine, tables = [], []
    for fold in range(FOLDS):
        held = set(shapes[fold::FOLDS])
        known = script.fitted(each for each in every if each.problem not in held)
        constants = {name: tuple(of[term] for term in plans.TERMS) for name, of in known.items()}
        of_shape = defaultdict(list)
        for each in every:
            if each.problem in held:
                of_shape[each.problem].append(each)
        for problem, timed in of_shape.items():
            sizes = map(str, (problem.M, problem.N, problem.K))
            row = taken.get((*sizes, problem.layout, problem.dtype_in))
            if row is None or f"triton/{row['kernel']}" not in constants:
                continue
            modelled = [
                (us, each)
                for each in timed
                if _is_offered(each)
                and (us := _modelled(each, constants, model.sum_of)) is not None
            ]
            us = script.us_of(row, plan_of(row["config"]))
            present = next(
                each for each in timed if each.kernel == f"triton/{row['kernel']}" and each.us == us
            )
            present_us = _modelled(present, constants, model.least_of)
            best_us, best = min(modelled, key=lambda one: one[0], default=(present_us, present))
            got = best if best_us < present_us * (1 - plans.earned(present_us)) else present
            fastest = min(each.us for each in timed)
            mine.append(got.us / fastest)
            tables.append(present.us / fastest)
    assert len(mine) >= 12
    assert geometric_mean(mine) < LOSS
    assert geometric_mean(mine) < geometric_mean(tables) - GAIN
    slower = sum(m > 1.05 * t for m, t in zip(mine, tables, strict=True))
    assert slower <= WORSE * len(mine)


def _modelled(each, constants, by):
    return by(constants[each.kernel], each.terms) if each.kernel in constants else None


def _is_offered(each, names=tuple(PLANNERS)):
    kernel = each.kernel.partition("/")[2]
    return any(name == kernel and plan == each.plan for name, plan in OFFER(each.problem, names))


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_offered_can_run(seed):
    """Its settings are those of the kernel, its stages fit, and parts of K are none too many."""
    names = [row.name for row in dispatch.ladder("triton")]
    for case in drawn_cases(seed, 40):
        problem = replace(case.product(capability=(9, 0)), device="cuda")
        able = [name for name in names if dispatch.find("triton", name).why_not(problem) is None]
        for name, plan in OFFER(problem, able):
            usual = dispatch.find("triton", name).plan(problem)
            assert set(plan) == set(usual) - {"L2_PREFETCH", "REST", "REPACK"}, (name, case)
            assert PLANNERS[name].shared_bytes(plan, problem.dtype_out) <= 232_448
            assert plan["NUM_STAGES"] >= 2
            assert plan.get("SPLITS", 1) <= -(-problem.K // plan["BLOCK_K"])


def test_nothing_is_offered_where_it_was_not_timed():
    names = tuple(PLANNERS)
    assert list(OFFER(problem_of(264, 264, 2912), names))
    for other in (
        problem_of(265, 225, 2913),  # odd rows
        problem_of(264, 264, 2912, dtype="float32"),
        replace(problem_of(264, 264, 2912), bias=True),
        replace(problem_of(264, 264, 2912), capability=(8, 0)),
        replace(problem_of(264, 264, 2912), batch=2, batch_strides=(264 * 2912,) * 3),
    ):
        assert not list(OFFER(other, names))
    by_units = [name for name, _ in OFFER(problem_of(264, 264, 2904), names)]  # rows of 8 elements
    assert not {"pipelined", "persistent"} & set(by_units)


def test_a_plan_is_taken_for_its_problem_alone():
    """The row says the plan of the model for the problem that it was chosen for."""
    problem = problem_of(265, 224, 2912, "nn", "float16")
    tables, _ = dispatch.by_models(problem, "triton")
    taken = dispatch.choose(problem, "triton")
    assert taken.plan(problem) != tables.plan(problem)
    assert dispatch.plan(problem, "triton").config == taken.plan(problem)
    other = problem_of(4096, 4096, 4096)
    assert taken.plan(other) == dispatch.find("triton", taken.name).plan(other)


def test_a_plan_has_to_earn_its_place(monkeypatch):
    problem = problem_of(265, 224, 2912, "nn", "float16")
    tables, rows = dispatch.by_models(problem, "triton")
    module = import_module("tcgemm.triton_kernels")
    assert plans.better(problem, tables, rows, module).plan(problem) != tables.plan(problem)
    monkeypatch.setattr(plans, "EARNED", 0.9)
    assert plans.better(problem, tables, rows, module) is tables
    monkeypatch.undo()


def test_a_table_of_the_users_own_comes_first(tmp_path, monkeypatch):
    problem = problem_of(265, 224, 2912, "nn", "float16")
    model_of_plans = dispatch.choose(problem, "triton")
    module = import_module("tcgemm.triton_kernels")
    with monkeypatch.context() as patch:
        patch.setattr(module, "tuned_by_user", lambda _: True)
        assert dispatch.choose(problem, "triton") == dispatch.by_tables(problem, "triton")[0]
    usual = {**dispatch.find("triton", "split_k").plan(problem)}
    usual.pop("WHOLE")
    rows = {"kernels": {"split_k": [{"when": {}, "config": {**usual, "GROUP_M": 2}}]}}
    (tmp_path / f"configs-{H200}.json").write_text(json.dumps(rows))
    by_name = import_module("tcgemm.triton_kernels.by_name")
    by_name.forget()
    try:
        mine = dispatch.choose(problem, "triton", "split_k").plan(problem)
        assert mine["GROUP_M"] == 2
        assert "split_k" not in {name for name, _ in OFFER(problem, list(PLANNERS))}
        with monkeypatch.context() as patch:
            patch.setattr(plans, "EARNED", -9.0)  # any plan would do
            assert dispatch.by_models(problem, "triton")[0].name == "split_k"
            assert dispatch.choose(problem, "triton").plan(problem) == mine
    finally:
        (tmp_path / f"configs-{H200}.json").unlink()
        by_name.forget()
    assert dispatch.choose(problem, "triton").plan(problem) == model_of_plans.plan(problem)


def test_a_kernel_has_one_plan_whether_it_is_named_or_not():
    changed = 0
    for case in drawn_cases(3, 60):
        problem = replace(case.product(capability=(9, 0)), device="cuda")
        taken = dispatch.choose(problem, "triton")
        named = dispatch.plan(problem, "triton", taken.name)
        assert named.config == taken.plan(problem), case
        changed += taken != dispatch.by_models(problem, "triton")[0]
    assert changed > 2


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (1024, 1024, 1024), (64, 4096, 14336)])
def test_a_tuned_product_keeps_the_plan_of_its_table(shape):
    problem = problem_of(*shape, "nt")
    assert dispatch.choose(problem, "triton") == dispatch.by_tables(problem, "triton")[0]


def test_a_kernel_that_is_asked_for_gets_the_faster_of_its_own_plans():
    problem = problem_of(265, 224, 2912, "nn", "float16")
    asked = dispatch.choose(problem, "triton", "split_k")
    assert asked.name == "split_k"
    assert asked.plan(problem) != dispatch.find("triton", "split_k").plan(problem)


def test_a_gpu_without_races_goes_by_its_kin(monkeypatch):
    assert plans._known("nvidia-h100-sxm") == plans.constants(H200)
    assert plans._known("nvidia-a100-40gb-sxm") == {}


def test_terms_tell_plans_of_one_kernel_apart():
    problem = problem_of(256, 512, 1024)
    plan = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "NUM_WARPS": 4, "SPLITS": 2, "PDL": 0}
    found = dict(zip(plans.TERMS, plans.terms(problem, plan, 132), strict=True))
    assert (found["no_pdl"], found["steps"], found["parts"]) == (1, 8, 2)
    assert found["registers"] == 0.5
    assert found["programs"] == pytest.approx(32 / 132)
    deeper = dict(zip(plans.TERMS, plans.terms(problem, plan | {"BLOCK_K": 128}, 132), strict=True))
    assert (deeper["steps"], deeper["step"]) == (4, found["step"])
    warps = {**plan, "NUM_WARPS": 0, "CONSUMERS": 2}
    assert plans.terms(problem, warps, 132)[plans.TERMS.index("registers")] == 0.25


def test_a_divided_k_takes_the_second_pass_that_races_missed(script, races):
    """Only in races of those trees: later ones have the suite's foreign kernel."""
    of = {"us": "3.0", "tree": "27b646c"}
    assert script.us_of(of, {"SPLITS": 4}) == 3.0 + script.SECOND_PASS_US
    assert script.us_of(of, {"SPLITS": 1}) == script.us_of(of, {}) == 3.0
    assert script.us_of({**of, "tree": "0000000"}, {"SPLITS": 4}) == 3.0
    assert {row["tree"] for row in races} >= set(script.ELSEWHERE)


def test_what_a_plan_has_to_win_grows_without_a_step():
    short, longer = plans.earned(within.SHORT_US), plans.earned(2 * within.SHORT_US)
    assert plans.earned(2.0) == short == within.EARNED
    assert longer == plans.earned(100.0) == plans.OF_LONGER * within.EARNED
    assert short < plans.earned(1.5 * within.SHORT_US) < longer
