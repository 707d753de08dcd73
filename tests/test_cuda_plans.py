"""Which settings CUDA's rungs take: tables, the user's own, and the model."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import re
import statistics
from importlib import import_module
from pathlib import Path

import pytest
import scripts_of
import torch

from tcgemm import cuda_ref
from tcgemm.dispatch import choose, find
from tcgemm.problem import Problem

planning = import_module("tcgemm.cuda_ref.planning")
launch = import_module("tcgemm.cuda_ref.planning.launch")
handle = import_module("tcgemm.cuda_ref.handle")
toolchain = import_module("tcgemm.cuda_ref.build.toolchain")
launch_plan = launch.launch_plan
tuning = import_module("tcgemm.cuda_ref.planning.tuning")
tables = import_module("tcgemm.cuda_ref.planning.tables")
choosing = import_module("tcgemm.cuda_ref.planning.choose")
one_wave = import_module("tcgemm.cuda_ref.shapes.one_wave")
ladder = import_module("tcgemm.cuda_ref.planning.ladder")
TUNINGS = ladder.tunings()

SHAPES = [
    (1, 8192, 8192),
    (3, 1000, 333),
    (16, 4096, 4096),
    (64, 28672, 4096),
    (128, 8192, 8192),
    (256, 256, 16384),
    (7, 7, 7),
]


def problem(M, N, K, layout="nt", **changes):
    a = (K, 1) if layout[0] == "n" else (1, M)
    b = (N, 1) if layout[1] == "n" else (1, K)
    return Problem(M, N, K, "bfloat16", "bfloat16", a, b, (N, 1), capability=(9, 0), **changes)


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Writes the user's own table of the H200."""
    monkeypatch.setenv(tables.FOLDER_VARIABLE, str(tmp_path))

    def write(table):
        text = table if isinstance(table, str) else json.dumps(table)
        tables.user_path("nvidia-h200").write_text(text)
        planning.forget()

    yield write
    planning.forget()


def test_the_shipped_table_is_one():
    table = tables.shipped("nvidia-h200")
    assert table["kernels"]["skinny"]
    assert table["prefer"]
    tables.check(table)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_transposed_problem_has_the_transposed_plan(shape, layout):
    M, N, K = shape
    flip = {"n": "t", "t": "n"}
    there = problem(N, M, K, flip[layout[1]] + flip[layout[0]])
    for kernel in ("skinny", "stream_k", "gemv"):
        if find("cuda", kernel).why_not(problem(*shape, layout)) is not None or M == N:
            continue
        one, other = planning.plan(kernel, problem(*shape, layout)), planning.plan(kernel, there)
        swapped = {**other, "BLOCK_M": other["BLOCK_N"], "BLOCK_N": other["BLOCK_M"]}
        assert one == swapped
        # C++ exchanges the tile's sides with the operands (plan_of in csrc/host/select.cuh).
        told, other_told = launch_plan(one), launch_plan(other)
        assert told[1:3] == other_told[2:0:-1]
        assert (told[0], told[3:]) == (other_told[0], other_told[3:])
        assert all(told[1:3])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", planning.RUNGS)
def test_no_part_of_k_is_empty(kernel, shape):
    steps = -(-shape[2] // 64)
    for capability in ((9, 0), None):
        plan = planning.plan(kernel, problem(*shape))
        assert plan.get("SPLITS", 1) * plan.get("GROUPS", 1) <= max(1, steps // 2), capability


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_model_has_settings_for_a_gpu_without_a_table(shape, monkeypatch):
    unknown = tuning.gpu_of(problem(*shape))._replace(name="", sms=114)
    monkeypatch.setattr(tuning, "gpu_of", lambda problem: unknown)
    monkeypatch.setattr(choosing, "gpu_of", lambda problem: unknown)
    planning.forget()
    for kernel in planning.RUNGS:
        plan = planning.plan(kernel, problem(*shape))
        assert set(TUNINGS[kernel].settings) <= set(plan)
    assert choose(problem(*shape), "cuda").name in (*TUNINGS, "wgmma_persistent", "small", "thin")
    planning.forget()


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((256, 256, 16384), {"SPLITS": 8, "GROUPS": 2}),
        ((384, 384, 8192), {"SPLITS": 8, "GROUPS": 1}),
        ((512, 512, 8192), {"SPLITS": 2, "GROUPS": 4}),
        ((256, 512, 4096), {"SPLITS": 8, "GROUPS": 1}),
    ],
)
def test_the_model_finds_what_was_measured_fastest(shape, config):
    """Of the settings of split_k timed in reports/nvidia-h200/trials/cuda-small.csv."""
    assert planning.fastest("split_k", problem(*shape), 132)[1] == config


TRIALS = Path(__file__).parents[1] / "reports/nvidia-h200/trials"


def timed(name, run, settings_of):
    """(M, N, K, layout) -> {settings: microseconds}, of a run's rows for which there are any."""
    found: dict[tuple[str, ...], dict[tuple[int, ...], float]] = {}
    with (TRIALS / name).open() as file:
        for row in csv.DictReader(file):
            settings = settings_of(row) if row["run"] == run else None
            if settings:
                key = (row["M"], row["N"], row["K"], row["layout"])
                found.setdefault(key, {})[settings] = float(row["us"])
    return found


def model_against(kernel, seen_of, tries=None):
    """How much slower the model's choice is than the fastest, and its times over those seen."""
    losses, errors = [], []
    for (*shape, layout), seen in seen_of.items():
        asked = problem(*map(int, shape), layout)
        names, tried = TUNINGS[kernel].settings, tries and tries(asked, 132)
        modelled = {}
        for settings in seen:
            config = dict(zip(names, settings, strict=True))
            if tried is None or config in tried:
                modelled[settings] = planning.modelled_us(kernel, config, asked, 132)
        if modelled:
            picked = min(modelled, key=lambda settings: modelled[settings])
            losses.append(seen[picked] / min(seen.values()))
            errors.append(modelled[picked] / seen[picked])
    return losses, errors


def test_the_model_of_gemv_picks_from_what_was_timed():
    """Of the settings in reports/nvidia-h200/trials/gemv.csv, run f: 2 to 3 % from the fastest."""

    def settings_of(row):
        parts = row["settings"].split() if row["kernel"] == "gemv" else ()
        return tuple(int(part.partition("=")[2]) for part in parts)

    losses, errors = model_against("gemv", timed("gemv.csv", "f", settings_of))
    assert len(losses) > 70
    assert statistics.mean(losses) < 1.04
    assert max(losses) < 1.35
    assert 0.7 < min(errors) < max(errors) < 1.4


def settings_of_wave(row):
    """One_wave's, of a contender such as "128x96 c2 shares A s4, next kernel late"."""
    config = scripts_of.script("fit_one_wave").settings_of(row["contender"])
    return None if config is None else tuple(config[name] for name in one_wave.TUNING.settings)


def test_the_model_of_one_wave_picks_from_what_was_timed():
    """Of the settings in reports/nvidia-h200/trials/waves.csv, timed one product after itself: 2 %
    from the fastest, less by table. Without clusters, whose later start hides behind oneself."""
    seen_of = {
        shape: {settings: us for settings, us in seen.items() if settings[2] == settings[3] == 1}
        for shape, seen in timed("waves.csv", "3", settings_of_wave).items()
    }
    assert len(seen_of) > 400
    losses, _ = model_against("one_wave", seen_of, one_wave.candidates)
    assert statistics.mean(losses) < 1.025
    assert max(losses) < 1.46
    losses = []
    for (*shape, layout), seen in seen_of.items():
        plan = planning.plan("one_wave", problem(*map(int, shape), layout))
        settings = tuple(plan[name] for name in one_wave.TUNING.settings)
        if settings in seen:
            losses.append(seen[settings] / min(seen.values()))
    assert len(losses) > 250  # of others a fitted tile is taken, which was not timed so
    assert statistics.mean(losses) < 1.02
    assert max(losses) < 1.16


@pytest.mark.parametrize(
    "shape", [(1, 256, 128), (256, 1, 128), (300, 304, 304), (1, 8, 8), (512, 4096, 64)], ids=str
)
@pytest.mark.parametrize("more", [{}, {"bias": True}], ids=["plain", "fused"])
def test_a_problem_on_the_cpu_has_a_choice(shape, more):
    asked = dataclasses.replace(problem(*shape), device="cpu", capability=None, **more)
    assert choose(asked, "cuda").name in (*TUNINGS, "wgmma_persistent", "small", "thin")


def test_a_plan_crosses_to_cpp_as_named_numbers():
    plan = {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_K": 64, "SPLITS": 3, "SHARED_KB": 200}
    named = dict(zip(launch.FIELDS, launch_plan(plan), strict=True))
    assert named == {name: plan.get(name, 0) for name in launch.FIELDS}
    assert launch_plan({"PDL": 0})[launch.FIELDS.index("NO_PDL")] == 1
    assert not any(launch_plan({}))


EVERY = {name: number for number, name in enumerate(launch.FIELDS, 2) if name != "NO_PDL"}
"""A plan that sets all there is, each to a number of its own."""


@pytest.mark.parametrize("name", ladder.by_name())
def test_a_launcher_is_told_all_of_a_plan(name, monkeypatch):
    """Nothing stands between: a field that went missing would be 0, and nothing would fail."""
    told = []
    simulator = import_module("tcgemm.cuda_ref.simulator")
    monkeypatch.setattr(simulator, "run", lambda *_, **plan: told.append(plan))
    a = torch.empty(8, 8)
    cuda_ref.load(name)(a, a, a, None, **EVERY)
    assert told == [{} if name in TUNINGS else EVERY]


def test_the_struct_holds_all_of_a_plan():
    a = torch.empty(8, 8)
    held = handle.gemm_of(a, a, a, None, EVERY).plan.contents
    fields = {name: getattr(held, name.lower()) for name in launch.FIELDS}
    assert fields == {**EVERY, "NO_PDL": 0}


@pytest.mark.parametrize("name", ladder.by_name())
def test_what_is_planned_besides_the_tile_is_read(name):
    """By the launcher, or by the build as a macro: a plan says nothing that is not obeyed."""
    planned = set()
    for shape, layout in itertools.product(SHAPES, ["nn", "nt"]):
        asked = problem(*shape, layout)
        if find("cuda", name).why_not(asked) is None:
            planned |= set(find("cuda", name).plan(asked))
    files = toolchain.source_files(toolchain.source(name))
    text = "".join(path.read_text() for path in files)
    read = re.findall(r"\bplan(?:_of\(\w+\))?(?:\.|->)(\w+)", text)
    obeyed = {field.upper() for field in read} | set(re.findall(r"\bTCGEMM_(\w+)", text))
    fields = {"PDL" if field == "NO_PDL" else field for field in launch.FIELDS}
    missing = (planned & fields) - {"BLOCK_M", "BLOCK_N"} - obeyed
    assert missing <= ({"PDL"} if "NO_PDL" in obeyed else set())


def test_the_struct_has_the_same_fields_in_the_same_order():
    header = (Path(toolchain.CSRC) / "host" / "gemm.cuh").read_text()
    struct = re.search(r"struct Plan \{\n(.*?)\n\};", header, re.DOTALL)[1]
    declared = re.findall(r"\b(\w+) = 0", struct)
    assert tuple(name.upper() for name in declared) == launch.FIELDS


def test_a_user_s_table_with_an_earlier_name_is_read_with_a_warning(user, caplog):
    config = {"BLOCK_M": 64, "BLOCK_N": 64, "CLUSTER": 1, "SHARES_A": 0, "SPLITS": 1}
    user({"kernels": {"one_wave": [{"config": {**config, "EARLY": 0}}]}})
    plan = planning.plan("one_wave", problem(256, 512, 512))
    assert (plan["BLOCK_M"], plan["BLOCK_N"], plan["PDL"]) == (64, 64, 0)
    assert "one_wave's EARLY" in caplog.text
    caplog.clear()
    user({"kernels": {"one_wave": [{"config": {**config, "PDL": 0}}]}})
    assert planning.plan("one_wave", problem(256, 512, 512))["PDL"] == 0
    assert "EARLY" not in caplog.text


def test_no_split_of_k_is_empty_whatever_a_table_says():
    config = {"SPLITS": 100, "GROUPS": 50}
    plan = planning.divide("split_k", config, problem(256, 256, 640), 132, False)
    assert plan["SPLITS"] * plan["GROUPS"] <= 10
    assert plan["SPLITS"] == 5
    skinny = {"BLOCK_N": 64, "SPLITS": 100, "SHARED_KB": 112}
    assert planning.divide("skinny", skinny, problem(16, 256, 8192), 132, False)["SPLITS"] == 32


def test_the_user_s_rows_come_first(user):
    asked = problem(16, 4096, 4096)
    config = {"BLOCK_N": 128, "SPLITS": 4, "SHARED_KB": 72}
    user(
        {
            "kernels": {"skinny": [{"when": {"N_max": 4096}, "config": config}]},
            "prefer": [{"when": {"M_max": 16}, "kernel": "wgmma_persistent"}],
        }
    )
    plan = find("cuda", "skinny").plan(asked)
    assert (plan["BLOCK_N"], plan["SPLITS"], plan["SHARED_KB"]) == (128, 4, 72)
    assert choose(asked, "cuda").name == "wgmma_persistent"
    assert find("cuda", "skinny").plan(problem(16, 8192, 4096))["SHARED_KB"] != 72


WRONG = {
    "no JSON": "{",
    "a list": "[]",
    "an unknown rung": {"kernels": {"naive": []}},
    "a setting is missing": {"kernels": {"skinny": [{"config": {"BLOCK_N": 64}}]}},
    "no whole number": {
        "kernels": {"gemv": [{"config": {"SPLITS": 1.5, "WARPS": 8, "BLOCKS": 2}}]}
    },
    "out of range": {"kernels": {"gemv": [{"config": {"SPLITS": 0, "WARPS": 8, "BLOCKS": 2}}]}},
    "an unknown condition": {"prefer": [{"when": {"O_max": 1}, "kernel": "skinny"}]},
    "prefers an unknown rung": {"prefer": [{"kernel": "fast"}]},
}


@pytest.mark.parametrize("table", WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_table_is_passed_over_with_a_warning(table, user, caplog):
    asked = problem(16, 4096, 4096)
    shipped = dict(find("cuda", "skinny").plan(asked))
    user(table)
    assert dict(find("cuda", "skinny").plan(asked)) == shipped
    assert "is passed over" in caplog.text


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", planning.RUNGS)
def test_candidates_fit_tables_and_differ(kernel, shape):
    found = planning.candidates(kernel, problem(*shape), 0, 132)
    assert found
    tables.check({"kernels": {kernel: [{"config": c} for c in found]}, "prefer": []})
    assert len({tuple(c.items()) for c in found}) == len(found)


def test_an_unknown_rung_has_no_candidates():
    with pytest.raises(ValueError, match="choose from one_wave, split_k, skinny, stream_k, gemv"):
        planning.candidates("naive", problem(16, 64, 64), 0, 132)
