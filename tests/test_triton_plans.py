"""The Triton rows: plans, refusals, and what a process must have set up."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

import tcgemm
from tcgemm import dispatch, repacking
from tcgemm.choosing import within
from tcgemm.gpus import find
from tcgemm.problem import Problem
from tcgemm.request import planning_for

triton = import_module("tcgemm.triton_kernels")
plans = import_module("tcgemm.triton_kernels.by_name")
tables = import_module("tcgemm.triton_kernels.planning.tables")
gpus = import_module("tcgemm.triton_kernels.planning.gpus")
choice = import_module("tcgemm.triton_kernels.planning.choice")
k_division = import_module("tcgemm.triton_kernels.planning.k_division")
storage = import_module("tcgemm.triton_kernels.host.storage")
skinny_plan = import_module("tcgemm.triton_kernels.shapes.skinny_plan")

RUNGS = tuple(row.name for row in dispatch.ladder("triton"))
SQUARE = Problem(
    M=4096,
    N=4096,
    K=4096,
    dtype_in="bfloat16",
    dtype_out="bfloat16",
    a_strides=(4096, 1),
    b_strides=(4096, 1),
    c_strides=(4096, 1),
    device="meta",
    capability=(9, 0),
)
DESCRIPTOR = dispatch.find("triton", "descriptor")


def fresh(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Run code in a new process, with TRITON_INTERPRET as given only."""
    clean = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", code], env={**clean, **environment}, capture_output=True, text=True
    )


def test_importing_the_ladder_imports_no_triton_and_no_torch():
    done = fresh(
        "import sys, tcgemm.triton_kernels as t; assert len(t.KERNELS) == 11;"
        "assert not {'triton', 'torch'} & set(sys.modules)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is not the default here")
def test_a_cpu_machine_needs_no_environment_variable():
    done = fresh(
        "import torch, tcgemm\n"
        "a = torch.eye(16, dtype=torch.float16)\n"
        "for kernel in ('naive', 'descriptor'):\n"
        "    assert torch.equal(tcgemm.matmul(a, a, backend='triton', kernel=kernel), a)\n"
    )
    assert done.returncode == 0, done.stderr


def test_triton_imported_too_early_names_the_remedy():
    done = fresh(
        "import torch, triton, tcgemm\n"
        "a = torch.eye(16, dtype=torch.float16)\n"
        "tcgemm.matmul(a, a, backend='triton', kernel='naive')\n"
    )
    assert done.returncode == 1
    assert "RuntimeError" in done.stderr
    assert "TRITON_INTERPRET=1 before Python starts" in done.stderr


def test_a_machine_with_a_gpu_says_where_to_put_the_operands(monkeypatch):
    runtime = import_module("tcgemm.triton_kernels.host.runtime")
    monkeypatch.setattr(runtime, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match=r"\.cuda\(\), or set TRITON_INTERPRET=1"):
        runtime.check(torch.zeros(1))


def test_the_largest_tile_for_large_squares_in_every_layout():
    for layout, strides in (("nn", (4096, 1)), ("nt", (1, 4096))):
        problem = replace(SQUARE, b_strides=strides)
        assert problem.layout == layout
        config = DESCRIPTOR.plan(problem)
        assert (config["BLOCK_M"], config["BLOCK_N"]) == (128, 256)


@pytest.mark.parametrize("name", ["pipelined", "persistent", "descriptor"])
def test_few_rows_take_a_small_tile(name):
    problem = replace(SQUARE, M=16)
    assert dispatch.find("triton", name).plan(problem)["BLOCK_M"] == 64


def test_a_column_major_result_plans_for_its_transpose():
    thin = replace(SQUARE, M=4096, N=16, b_strides=(1, 4096), c_strides=(1, 4096))
    wide = replace(SQUARE, M=16, N=4096, a_strides=(4096, 1))
    assert DESCRIPTOR.plan(thin) == DESCRIPTOR.plan(wide)


@pytest.mark.parametrize(
    "change",
    [
        {"K": 4104, "a_strides": (4104, 1)},
        {"a_strides": (4097, 1)},
        {"b_alignment": 2},
        {"c_strides": (8192, 2)},
        {"N": 4001},
    ],
)
def test_unaligned_problems_take_a_tile_that_does_not_spill(change):
    problem = replace(SQUARE, **change)
    assert not tables.aligned(problem)
    config = dispatch.find("triton", "pipelined").plan(problem)
    assert config["BLOCK_M"] * config["BLOCK_N"] <= 128 * 128
    assert tables.aligned(SQUARE)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"a_strides": (8192, 2)}, r"A has strides \(8192, 2\).* A\.contiguous\(\)"),
        ({"b_strides": (4100, 1)}, r"B has a row pitch of 4100 elements, 8200 bytes.* 4104"),
        ({"c_strides": (4097, 1), "dtype_out": "float32"}, r"C .* 4097 elements, 16388 bytes"),
        ({"a_alignment": 2}, r"A starts at an address that is a multiple of 2 bytes.* 16"),
        ({"a_strides": (0, 1)}, r"A has rows of 4096 elements every 0, which overlap"),
        ({"capability": (8, 0)}, r"compute capability 9\.0 and this GPU has 8\.0"),
    ],
)
def test_descriptor_refuses_with_the_numbers(change, sentence):
    problem = replace(SQUARE, **{"device": "cuda", **change})
    reason = DESCRIPTOR.why_not(problem)
    assert reason is not None
    assert __import__("re").search(sentence, reason), reason


@pytest.mark.parametrize(
    "change",
    [
        {"a_strides": (1, 4096)},
        {"a_strides": (1, 8192), "b_strides": (1, 4104), "c_strides": (1, 4096)},
        {"M": 1, "a_strides": (3, 1), "c_strides": (3, 1)},
        {"M": 1, "a_strides": (4096, 1), "c_strides": (1, 1)},
        {"N": 1, "b_strides": (1, 1), "c_strides": (1, 1)},
        {"K": 1, "a_strides": (1, 1), "b_strides": (4096, 1)},
        {"dtype_out": "float32", "c_strides": (4100, 1)},
    ],
)
def test_descriptor_accepts(change):
    assert DESCRIPTOR.why_not(replace(SQUARE, device="cuda", **change)) is None


def test_pointer_rungs_refuse_nothing():
    odd = replace(SQUARE, device="cuda", a_strides=(0, 3), b_strides=(5, 7), a_alignment=2)
    for name in ("naive", "grouped", "pipelined", "persistent"):
        assert dispatch.find("triton", name).why_not(odd) is None


def test_the_best_rung_falls_back_to_pointers_and_says_why_by_name():
    a, b = torch.ones(480, 9, dtype=torch.float16), torch.ones(9, 8, dtype=torch.float16)
    problem = dispatch.problem_of(a, b, a.new_empty(480, 8))
    assert dispatch.choose(problem, "triton").name == "pipelined"
    tall = replace(
        problem, M=800, N=800, K=137, a_strides=(137, 1), b_strides=(800, 1), c_strides=(800, 1)
    )
    assert dispatch.choose(tall, "triton").name == "persistent"
    with pytest.raises(tcgemm.UnsupportedError, match="pitch of 9 elements, 18 bytes"):
        dispatch.choose(problem, "triton", "descriptor")


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((441, 4675, 7), "nt"), ((6649, 3855, 11), "tt"), ((269, 7577, 109), "tn")],
)
def test_odd_rows_and_a_short_k_get_small_tiles(shape, layout):
    """They take 4.2, 35.9 and 9.0 us so, and 6.0, 39.1 and 13.8 with tiles of 128 or copies."""
    problem = Problem.stored(*shape, "float16", "float16", layout, device="cuda", capability=(9, 0))
    with planning_for(find("h200")):
        row = dispatch.choose(problem, "triton")
        plan = row.plan(problem)
        assert (row.name, plan["BLOCK_M"], plan["BLOCK_N"]) == ("pipelined", 64, 64)
        # Of the largest C copies and a store by vectors take 33.1 us (nn; trials/races.csv).
        assert (repacking.worth(problem, "triton") is None) == (shape[0] != 6649)
    assert not plans.PLANNERS["pipelined"].settled(replace(problem, K=129))
    assert not plans.PLANNERS["pipelined"].settled(replace(problem, bias=True))


def test_what_is_settled_stays_whatever_the_model_of_kernels_says(monkeypatch):
    problem = Problem.stored(1, 5001, 5003, "bfloat16", "bfloat16", "tt", device="cuda",
                             capability=(9, 0))  # fmt: skip
    module = import_module("tcgemm.triton_kernels")
    rows = [dispatch.find("triton", name) for name in ("skinny", "thin")]
    with planning_for(find("h200")):
        assert module.planners()["thin"].settled(problem)
        monkeypatch.setattr(within, "slug_of", lambda problem: "nvidia-h200")
        monkeypatch.setattr(within, "tuned", lambda problem, slug: False)
        us = {"triton/thin": 90.0, "triton/skinny": 9.0}
        monkeypatch.setattr(within, "_modelled_us", lambda _, row, *more: us[row.full_name])
        monkeypatch.setattr(within.model, "constants", lambda slug: us)
        assert within.faster(problem, rows[1], rows, module) is rows[1]
        us["triton/thin"], us["triton/skinny"] = 9.0, 90.0
        assert within.faster(problem, rows[0], rows, module) is rows[1], "skinny is not settled"


def asked(M, N, K, layout="nt", **changes):
    """A plain product on a GPU of the H200's kind."""
    problem = replace(
        SQUARE,
        M=M,
        N=N,
        K=K,
        a_strides=(K, 1) if layout[0] == "n" else (1, M),
        b_strides=(N, 1) if layout[1] == "n" else (1, K),
        c_strides=(N, 1),
        device="cuda",
    )
    return replace(problem, **changes)


@pytest.mark.parametrize(
    ("shape", "layout", "name"),
    [
        ((16, 4096, 4096), "nt", "skinny"),
        ((4096, 16, 4096), "nn", "skinny"),
        ((1, 28672, 4096), "nn", "pipelined"),
        ((64, 2112, 7168), "nt", "skinny"),
        ((64, 28672, 4096), "nt", "descriptor"),
        ((64, 4096, 14336), "nt", "warp_specialized"),
        ((128, 8192, 8192), "nt", "split_k"),
        ((8192, 128, 8192), "nt", "split_k"),
        ((256, 256, 16384), "nt", "split_k"),
        ((4096, 2112, 7168), "nt", "split_k"),
        ((1024, 1024, 1024), "nt", "warp_specialized"),
        ((4096, 4096, 4096), "nt", "warp_specialized"),
        ((16, 4097, 4096), "nt", "pipelined"),
        ((1000, 1001, 1003), "nt", "persistent"),
    ],
    ids=str,
)
def test_the_rung_measured_fastest_is_chosen(shape, layout, name):
    problem = asked(*shape, layout)
    assert dispatch.choose(problem, "triton").name == name
    assert dispatch.choose(problem, "triton", "persistent").name == "persistent"


@pytest.mark.parametrize(
    ("shape", "layout", "name", "wanted"),
    [
        ((100, 100, 100), "nt", "skinny", {"BLOCK_M": 32, "BLOCK_K": 128, "SPLITS": 1}),
        ((16, 4096, 4096), "nt", "skinny", {"BLOCK_M": 64, "L2_PREFETCH": 1}),
        ((16, 4096, 4096), "nn", "skinny", {"BLOCK_M": 128, "BLOCK_N": 16, "SPLITS": 4}),
        ((1, 8192, 8192), "nt", "skinny", {"BLOCK_K": 128, "L2_PREFETCH": 1}),
        ((2, 10912, 608), "nn", "skinny", {"BLOCK_M": 128, "BLOCK_N": 16, "SPLITS": 1}),
        ((3072, 768, 8192), "tn", "warp_specialized", {"BLOCK_N": 96, "REST": 32}),
        ((768, 768, 8192), "tn", "split_k", {"BLOCK_M": 128, "SPLITS": 3}),
        ((256, 256, 16384), "nn", "split_k", {"SPLITS": 8, "L2_PREFETCH": 1}),
        ((4096, 128, 4096), "nn", "warp_specialized", {"GROUP_M": 1, "L2_PREFETCH": 2}),
        ((128, 6144, 4096), "nt", "warp_specialized", {"BLOCK_N": 48, "REST": 16}),
        ((128, 6144, 4096), "nn", "warp_specialized", {"BLOCK_N": 128}),
        ((64, 4096, 14336), "nn", "warp_specialized", {"BLOCK_K": 64, "NUM_STAGES": 12}),
        ((3072, 3072, 3072), "nt", "warp_specialized", {"BLOCK_N": 192, "REST": 64}),
        ((8192, 8192, 8192), "nt", "warp_specialized", {"BLOCK_M": 128, "BLOCK_N": 256}),
    ],
    ids=str,
)
def test_what_an_h200_takes(shape, layout, name, wanted, monkeypatch):
    monkeypatch.setattr(gpus, "gpu_here", lambda capability=None: ("nvidia-h200", 232_448, 132))
    plans.forget()
    row = dispatch.choose(asked(*shape, layout), "triton")
    plan = row.plan(asked(*shape, layout))
    plans.forget()
    assert row.name == name
    assert wanted.items() <= plan.items()
    assert plan.get("REST", 0) == wanted.get("REST", 0)


@pytest.mark.parametrize("shape", [(16, 4096, 4096), (256, 256, 16384), (4096, 4096, 4096)])
def test_one_choice_is_made_among_the_kernels_that_are_able(shape):
    problem = asked(*shape)
    able = [row.name for row in dispatch.ladder("triton") if row.why_not(problem) is None]
    while able:
        chosen = triton.choose(problem, able)
        assert chosen in able
        if len(able) == len(RUNGS):
            assert chosen == dispatch.choose(problem, "triton").name
        able.remove(chosen)


def test_a_row_says_whether_it_is_of_the_ladder_or_a_specialist():
    kinds = {row.name: row.kind for row in dispatch.ladder("triton")}
    assert {name for name, kind in kinds.items() if kind == "shape"} == {
        "short_k",
        "thin",
        "skinny",
        "split_k",
    }
    assert set(kinds.values()) == {"ladder", "shape"}
    assert list(kinds.values()) == sorted(kinds.values()), "the ladder first"


@pytest.mark.parametrize("thin", [16, 64])
@pytest.mark.parametrize("wide", [64, 1000])
def test_a_second_pass_has_to_pay(thin, wide, monkeypatch):
    """A short K is not divided, however many SMs idle; a longer one into no fewer parts."""
    monkeypatch.setattr(gpus, "gpu_here", lambda capability=None: ("nvidia-h200", 232_448, 132))
    plans.forget()
    parts = [
        dispatch.find("triton", "skinny").plan(asked(wide, thin, K))["SPLITS"]
        for K in (128, 256, 512, 1024, 4096, 16384)
    ]
    assert parts[0] == parts[1] == 1
    assert parts[-1] > 4
    assert parts == sorted(parts)


def test_what_a_division_takes_is_weighed(monkeypatch):
    monkeypatch.setattr(k_division, "SECOND_US", 1e9)
    config = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}
    assert k_division.parts_of(asked(64, 64, 16384), config, 32) == 1
    monkeypatch.setattr(k_division, "SECOND_US", 0.0)
    assert k_division.parts_of(asked(64, 64, 128), config, 32) == 2


def test_c_in_comes_to_no_second_accumulator(monkeypatch):
    monkeypatch.setattr(gpus, "gpu_here", lambda capability=None: ("nvidia-h200", 232_448, 132))
    plans.forget()
    plan = SPECIALIZED.plan(asked(3072, 3072, 3072, beta=1.0))
    plans.forget()
    assert "REST" not in plan
    assert plan["BUFFERS"] == plan["SUBTILES"]


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
@pytest.mark.parametrize("shape", [(16, 4096, 4096), (64, 4096, 4096), (128, 8192, 8192)], ids=str)
def test_a_rung_that_the_gpu_lacks_is_not_waited_for(capability, shape):
    chosen = dispatch.choose(asked(*shape, capability=capability), "triton")
    assert chosen.capability <= capability
    assert chosen.name not in ("naive", "grouped", "warp_specialized")


@pytest.mark.parametrize("change", [{"alpha": 2.0}, {"epilogue": "relu"}, {"batch": 3}], ids=str)
def test_tables_of_plain_products_say_nothing_of_others(change):
    """What divides K fuses nothing; with few rows pointers are best, else TMA."""
    few = asked(16, 4096, 4096, **change)
    assert choice.preferred(few, RUNGS) is None
    assert dispatch.choose(few, "triton").name == "fused"
    assert dispatch.choose(replace(few, M=128), "triton").name == "warp_specialized"


@pytest.mark.parametrize(
    ("asked_too", "name"),
    [
        ({"epilogue": "gelu"}, "descriptor"),
        ({"epilogue": "gelu_tanh"}, "warp_specialized"),
        ({"epilogue": "gelu", "M": 1024}, "warp_specialized"),
        ({"epilogue": "gelu", "beta": 1.0, "c_in_strides": (4096, 1)}, "warp_specialized"),
    ],
)
def test_the_exact_gelu_of_a_large_c_goes_to_descriptor(asked_too, name):
    problem = replace(asked(4096, 4096, 4096, "nt"), bias=True, **asked_too)
    assert dispatch.choose(problem, "triton").name == name


@pytest.mark.parametrize(
    ("shape", "whole", "parts"),
    [
        ((256, 256, 16384), 0, 8),
        ((512, 512, 8192), 0, 4),
        ((512, 512, 512), 64, 1),
        ((4096, 2112, 7168), 264, 16),
        ((128, 8192, 8192), 128, 1),
        ((128, 4096, 14336), 0, 2),
        ((128, 128, 64), 2, 1),
    ],
    ids=str,
)
def test_what_fills_no_wave_is_divided(shape, whole, parts):
    """Of 132 SMs: 4096 x 2112 is 272 tiles, two waves and 8 tiles, in 16 parts each."""
    plan = dispatch.find("triton", "split_k").plan(replace(asked(*shape), device="meta"))
    assert (plan["WHOLE"], plan["SPLITS"]) == (whole, parts)


@pytest.mark.parametrize("K", [1, 64, 128, 129, 257, 4096])
@pytest.mark.parametrize("name", ["skinny", "split_k"])
def test_no_part_is_without_a_step_of_k(name, K):
    plan = dispatch.find("triton", name).plan(replace(asked(16, 256, K), device="meta"))
    assert 1 <= plan["SPLITS"] <= -(-K // plan["BLOCK_K"])
    assert plan["SPLITS"] <= k_division.MOST_PARTS


def test_a_table_asks_for_no_more_parts_than_there_are_steps_of_k():
    planner = dispatch.find("triton", "split_k").plan
    config = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "SPLITS": 8, "GROUP_M": 1, "PDL": 0}
    for K, parts in ((1, 1), (64, 1), (65, 2), (8192, 8)):
        assert planner.divide(config, asked(64, 64, K), 132, False)["SPLITS"] == parts


@pytest.mark.parametrize("name", ["skinny", "split_k"])
def test_a_problem_and_its_transpose_take_the_same_tiles(name):
    row = dispatch.find("triton", name)
    thin = dict(row.plan(replace(asked(16, 4096, 4096, "nt"), device="meta")))
    tall = dict(row.plan(replace(asked(4096, 16, 4096, "nt"), device="meta")))
    assert thin.pop("SWAP") == 1 - tall.pop("SWAP")
    assert thin == tall


def test_every_table_ends_without_conditions_and_covers_every_rung():
    shipped = tables.shipped()
    assert {"sm80", "sm90", "nvidia-h200"} <= set(shipped)
    for name, table in shipped.items():
        rungs = table["kernels"]
        planners = [each for each in plans.PLANNERS.values() if each.has_table]
        wanted = {each.table for each in planners}
        by_tma = {row.name for row in dispatch.ladder("triton") if row.capability >= (9, 0)}
        assert set(rungs) == wanted - (by_tma if name == "sm80" else set())
        assert len(wanted) == len(planners) - 1, "only fused takes the rows of another"
        for rows in rungs.values():
            assert not rows[-1].get("when")


def test_fit_gives_up_stages_first_then_depth():
    config = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "NUM_STAGES": 4}
    assert plans.fit("pipelined", config, "bfloat16", 232_448) == config
    assert plans.fit("pipelined", config, "bfloat16", 166_912)["NUM_STAGES"] == 3
    tight = plans.fit("descriptor", config, "float32", 101_376)
    assert (tight["NUM_STAGES"], tight["BLOCK_K"]) == (2, 16)


def test_a_tile_of_c_that_does_not_fit_gets_narrower_and_not_shallower():
    config = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "NUM_STAGES": 3}
    narrow = plans.fit("pipelined", config, "float32", 101_376)
    assert narrow == {**config, "BLOCK_N": 128}
    assert plans.fit("pipelined", config, "float32", 166_912) == config
    tf32 = plans.fit("descriptor", {**config, "BLOCK_K": 32}, "float32", 101_376, "float32", "tf32")
    assert (tf32["BLOCK_N"], tf32["BLOCK_K"]) == (128, 32)


SPECIALIZED = dispatch.find("triton", "warp_specialized")


@pytest.mark.parametrize(
    ("M", "N", "tile"),
    [
        (4096, 4096, (128, 256)),
        (8192, 8192, (192, 128)),
        (6144, 6144, (128, 256)),
        (3072, 3072, (192, 128)),
        (4096, 2112, (192, 128)),
        (1024, 1024, (128, 64)),
        (512, 512, (64, 64)),
        (64, 2112, (64, 32)),
        (128, 8192, (128, 64)),
        (128, 4096, (64, 64)),
        (128, 28672, (128, 256)),
    ],
)
def test_the_tile_that_ends_first_is_taken(M, N, tile):
    problem = replace(SQUARE, M=M, N=N, b_strides=(N, 1), c_strides=(N, 1))
    config = SPECIALIZED.plan(problem)
    assert (config["BLOCK_M"], config["BLOCK_N"]) == tile


@pytest.mark.parametrize(("K", "wider"), [(1984, True), (64, False)])
def test_rows_that_split_lines_of_the_l2_take_tiles_that_read_less(K, wider):
    """Of 9544 elements: 375 tiles of 64 x 128 are three rounds of less area than 114 of 128 x 256,
    and read twice as much. Of a short K most is stored, and that counts for little."""
    rows = tables.shipped()["nvidia-h200"]["kernels"]["warp_specialized"]

    def area(N):
        problem = replace(
            SQUARE, M=301, N=N, K=K, a_strides=(K, 1), b_strides=(N, 1), c_strides=(N, 1)
        )
        config = tables.choose(rows, problem, 132)
        return config["BLOCK_M"] * config["BLOCK_N"]

    assert area(9472) == 64 * 128
    assert (area(9544) > area(9472)) == wider


def test_small_tiles_of_several_waves_and_a_long_k_count_less():
    """Their rates were measured in one wave: 640 tiles of 128 x 64 are five."""
    rows = tables.shipped()["nvidia-h200"]["kernels"]["warp_specialized"]

    def area(M, K):
        asked = replace(
            SQUARE, M=M, N=2560, K=K, a_strides=(K, 1), b_strides=(2560, 1), c_strides=(2560, 1)
        )
        config = tables.choose(rows, asked, 132)
        return config["BLOCK_M"] * config["BLOCK_N"]

    assert area(2048, 8192) == 192 * 128
    assert area(2048, 1024) == area(256, 8192) == 128 * 64


def gradient(M, N, K, layout, **changes):
    """The plan of a product of a training step on an H200."""
    product = Problem.stored(
        M, N, K, "bfloat16", "bfloat16", layout, device="cuda", capability=(9, 0), **changes
    )
    with planning_for(find("h200")):
        return SPECIALIZED.plan(product)


@pytest.mark.parametrize(
    ("shape", "tile", "group"),
    [
        ((3072, 768, 8192, "tn"), (192, 96), 1),  # 8 tiles across: eight rows of them run at once
        ((768, 3072, 8192, "tn"), (192, 96), 8),  # 32 across: they do not
        ((2304, 768, 8192, "tn"), (128, 128), 1),
        ((8192, 768, 3072, "nn"), (192, 128), 1),
        ((8192, 768, 3072, "nt"), (192, 128), 1),
        ((8192, 768, 768, "nn"), (128, 128), 8),  # a short K
        ((8192, 3072, 768, "nn"), (128, 256), 8),
        ((5392, 144, 5848, "tn"), (128, 64), 8),  # a small tile
    ],
    ids=str,
)
def test_of_a_long_k_neighbours_share_rows_of_a(shape, tile, group):
    plan = gradient(*shape)
    assert (plan["BLOCK_M"], plan["BLOCK_N"], plan["GROUP_M"]) == (*tile, group)


def test_more_programs_want_smaller_tiles():
    rows = tables.shipped()["sm90"]["kernels"]["warp_specialized"]
    areas = [
        config["BLOCK_M"] * config["BLOCK_N"]
        for programs in (16, 64, 256, 1024)
        for config in [tables.choose(rows, replace(SQUARE, M=1024, N=1024), programs)]
    ]
    assert areas == sorted(areas, reverse=True)
    assert areas[0] > areas[-1]


def test_a_wide_result_gives_up_its_second_buffer_before_a_stage():
    wide = SPECIALIZED.plan(replace(SQUARE, dtype_out="float32"))
    narrow = SPECIALIZED.plan(SQUARE)
    assert (narrow["BUFFERS"], wide["BUFFERS"]) == (2, 1)
    assert wide["NUM_STAGES"] == narrow["NUM_STAGES"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"capability": (10, 0)}, r"9\.0 alone and this GPU has 10\.0"),
        ({"capability": (8, 9)}, r"capability 9\.0 and this GPU has 8\.9"),
        ({"device": "cpu", "capability": None}, r"runs on cuda tensors and these are on cpu"),
        ({"b_strides": (4100, 1)}, r"B has a row pitch of 4100 elements, 8200 bytes"),
        (
            {"N": 4001, "bias": True},
            r"C has rows of 4001 elements, 8002 bytes.* multiple of 8 fits",
        ),
        ({"N": 4002, "dtype_out": "float32"}, r"4002 elements, 16008 bytes.* multiple of 4 fits"),
        (
            {"dtype_in": "float32", "dtype_out": "float32", "compute": "tf32x3", "batch": 3},
            r"batch of 3 in tf32x3",
        ),
        ({"dtype_in": "uint8", "dtype_out": "int32", "compute": "int32"}, r"uint8"),
    ],
)
def test_warp_specialized_refuses_with_the_numbers(change, sentence):
    reason = SPECIALIZED.why_not(replace(SQUARE, **{"device": "cuda", **change}))
    assert reason is not None
    assert __import__("re").search(sentence, reason), reason


def test_warp_specialized_takes_what_tma_reaches():
    on_gpu = replace(SQUARE, device="cuda")
    assert dispatch.choose(on_gpu, "triton") == SPECIALIZED
    column = {"a_strides": (1, 4096), "b_strides": (4096, 1), "c_strides": (1, 4096)}
    assert SPECIALIZED.why_not(replace(on_gpu, **column)) is None
    eight = {"dtype_in": "int8", "dtype_out": "int32", "compute": "int32", "b_strides": (1, 4096)}
    assert SPECIALIZED.why_not(replace(on_gpu, **eight)) is None


@pytest.mark.parametrize(
    ("dtype_in", "dtype_out", "compute"),
    [
        ("int8", "int32", "int32"),
        ("float8_e4m3fn", "bfloat16", "fast"),
        ("float8_e5m2", "float16", "float32"),
        ("float32", "float32", "tf32"),
    ],
)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_what_does_not_lie_along_k_is_copied_first(dtype_in, dtype_out, compute, layout):
    stored = {"n": (4096, 1), "t": (1, 4096)}
    strides = {"a_strides": stored[layout[0]], "b_strides": stored[layout[1]]}
    types = {"dtype_in": dtype_in, "dtype_out": dtype_out, "compute": compute}
    plan = SPECIALIZED.plan(replace(SQUARE, device="cuda", **types, **strides))
    if compute == "tf32":  # one operand may lie across K
        assert plan.get("ACROSS", 0) == (layout != "nt")
        assert plan.get("REPACK", 0) == (layout == "tn")
    else:
        assert plan.get("REPACK", 0) == (layout != "nt")


@pytest.mark.parametrize("dtype_out", ["bfloat16", "float32"])
@pytest.mark.parametrize("M", [64, 1024, 2048, 4096])
def test_c_in_has_a_buffer_for_every_piece_beside_three_stages(dtype_out, M):
    asked_for = {"beta": 1.0, "c_in_strides": (4096, 1), "dtype_out": dtype_out}
    plan = SPECIALIZED.plan(replace(SQUARE, device="cuda", M=M, **asked_for))
    assert plan["BUFFERS"] == plan["SUBTILES"]
    assert plan["NUM_STAGES"] >= 3
    assert plans.shared_bytes("warp_specialized", plan, dtype_out) <= 232_448


def test_a_store_past_the_row_is_refused_on_a_gpu_and_not_in_the_interpreter():
    """Seen on an H200: 128 x 129 in 16 bits wrote 7 elements past each row."""
    padded = replace(SQUARE, N=129, c_strides=(136, 1), b_strides=(136, 1))
    assert "129 elements, 258 bytes" in (DESCRIPTOR.why_not(replace(padded, device="cuda")) or "")
    assert DESCRIPTOR.why_not(replace(padded, device="cpu", capability=None)) is None
    whole = replace(padded, N=136, device="cuda")
    assert DESCRIPTOR.why_not(whole) is None


H200 = SimpleNamespace(
    name="NVIDIA H200", shared_memory_per_block_optin=232_448, multi_processor_count=132
)


@pytest.fixture
def other_gpus():
    """GPUs that a test puts in the place of those that are here."""
    gpus._of_device.cache_clear()
    yield
    gpus._of_device.cache_clear()


@pytest.mark.usefixtures("other_gpus")
def test_a_gpu_is_found_by_its_capability_whichever_is_current(monkeypatch):
    orin = SimpleNamespace(
        name="Orin", shared_memory_per_block_optin=166_912, multi_processor_count=16
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: ((8, 7), (9, 0))[i])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: (orin, H200)[i])
    for current, name in ((0, "orin"), (1, "nvidia-h200")):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        assert gpus.gpu_here()[0] == name
        assert gpus.gpu_here((8, 7)) == ("orin", 166_912, 16)
        assert gpus.gpu_here((9, 0)) == ("nvidia-h200", 232_448, 132)
        assert gpus.gpu_here((8, 0)) == ("", 0, 0)


@pytest.mark.usefixtures("other_gpus")
def test_a_plan_for_a_gpu_that_is_not_here_does_not_ask_the_one_that_is(monkeypatch):
    other = replace(SQUARE, device="cuda", capability=(8, 0), M=4096, N=4096, K=4096)
    plans.forget()
    with monkeypatch.context() as here:
        here.setattr(torch.cuda, "is_available", lambda: False)
        alone = plans.plan("pipelined", other)
    plans.forget()
    with monkeypatch.context() as here:
        here.setattr(torch.cuda, "is_available", lambda: True)
        here.setattr(torch.cuda, "current_device", lambda: 0)
        here.setattr(torch.cuda, "device_count", lambda: 1)
        here.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
        here.setattr(torch.cuda, "get_device_properties", lambda index: H200)
        beside_another = plans.plan("pipelined", other)
        mine = plans.plan("pipelined", replace(other, capability=(9, 0)))
    plans.forget()
    assert beside_another == alone
    assert mine != alone


@pytest.mark.parametrize(("dtype_out", "flatten"), [("bfloat16", 1), ("float32", 0)])
def test_a_c_that_is_read_has_memory_beside_the_next_tiles_stages(dtype_out, flatten, monkeypatch):
    """Where the loops are joined those are full; a stage of 128 x 256 x 64 then goes for C_in."""
    row = {
        "BLOCK_M": 128,
        "BLOCK_N": 256,
        "BLOCK_K": 64,
        "GROUP_M": 8,
        "FLATTEN": 1,
        "NUM_STAGES": 4,
        "NUM_WARPS": 8,
    }
    monkeypatch.setattr(tables, "choose", lambda *_: dict(row))
    plans.forget()
    asked = Problem.stored(4096, 4096, 4096, "bfloat16", dtype_out, "nt", capability=(9, 0))
    plain = plans.plan("descriptor", asked)
    reads = plans.plan("descriptor", replace(asked, beta=1.0, c_in_strides=(4096, 1)))
    plans.forget()
    assert plain["FLATTEN"] == 1
    assert reads["FLATTEN"] == flatten
    assert (plain["NUM_STAGES"], reads["NUM_STAGES"]) == ((4, 3) if flatten else (3, 3))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_step_of_odd_rows_is_of_what_registers_can_hold(layout, monkeypatch):
    """Each thread has its elements of a step in registers, where no vector can be loaded."""
    monkeypatch.setattr(gpus, "gpu_here", lambda capability=None: ("nvidia-h200", 232_448, 132))
    plans.forget()
    for M, N, K in itertools.product((3, 17, 49, 61), (67, 266, 3001), (93, 213, 909, 5001)):
        a = (1, M) if layout[0] == "t" else (K, 1)
        b = (1, K) if layout[1] == "t" else (N, 1)
        odd = replace(SQUARE, M=M, N=N, K=K, a_strides=a, b_strides=b, c_strides=(N, 1))
        assert odd.layout == layout
        plan = dispatch.find("triton", "skinny").plan(odd)
        tile = plan["BLOCK_M"], plan["BLOCK_N"], plan["BLOCK_K"]
        assert not skinny_plan.spills(odd, *tile), (M, N, K, tile)
    plans.forget()
