"""The ranking of ``tcgemm explain``: the model by hand, and how well it foretells times."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from tcgemm import dispatch, gpus
from tcgemm.bench import store
from tcgemm.bench.case import CASE_COLUMNS, case_of_row
from tcgemm.problem import Problem
from tcgemm.tools.explain import ranking

H200 = gpus.lookup("NVIDIA H200")
REPORT = Path(__file__).parents[1] / "reports" / "nvidia-h200"


def problem_of(M, N, K, layout="nn", dtype="bfloat16"):
    return Problem.stored(M, N, K, dtype, dtype, layout, capability=(9, 0))


def result(kernel, M, N, K, us, **more):
    backend, name = kernel.split("/")
    cells = dict.fromkeys(CASE_COLUMNS, "")
    types = {"dtype_in": "bfloat16", "dtype_out": "bfloat16", "compute": "float32", "layout": "nn"}
    sizes = {"M": str(M), "N": str(N), "K": str(K)}
    timed = {"status": "ok", "ms_p50": str(us / 1e3)}
    return {"backend": backend, "kernel": name, **cells, **types, **sizes, **timed, **more}


@pytest.mark.parametrize(
    ("plan", "block"),
    [
        ({"BLOCK_M": 128, "BLOCK_N": 256, "SWAP": 0}, (128, 256)),
        ({"BLOCK_M": 128, "BLOCK_N": 16, "SWAP": 1}, (16, 128)),
        ({"MMA_M": 16, "WARPS_M": 4, "MMA_N": 16, "WARPS_N": 2}, (64, 32)),
        ({}, None),
    ],
)
def test_the_block_of_a_plan(plan, block):
    assert ranking.block_of(plan) == block


@pytest.mark.parametrize(("columns", "rounds"), [(11, 1), (12, 2), (22, 2)])
def test_the_model_counts_whole_rounds(columns, rounds):
    plan = {"BLOCK_M": 128, "BLOCK_N": 128}
    us = ranking.ideal_us(problem_of(12 * 128, columns * 128, 8192), plan, H200)
    assert us == pytest.approx(2 + rounds * 132 * 2 * 128 * 128 * 8192 / 989.4e6)


def test_parts_of_k_fill_idle_sms():
    whole, parts = ({"BLOCK_M": 128, "BLOCK_N": 128, "SPLITS": splits} for splits in (1, 32))
    problem = problem_of(128, 512, 65536)
    assert ranking.ideal_us(problem, whole, H200) > 10 * ranking.ideal_us(problem, parts, H200)


def test_rows_of_other_data_than_normal_are_no_measure_for_a_call():
    rows = [result("cuda/wmma", 512, 512, 512, 9, data="zeros")]
    assert ranking.of_results(rows) == {}
    rows.append(result("cuda/wmma", 512, 512, 512, 12, data="normal"))
    ((measured,),) = (of.values() for of in ranking.of_results(rows).values())
    assert measured.us == 12


def test_a_single_product_is_no_measurement_of_a_batch():
    """It foretells one, where no batch was measured; a measured batch comes first."""
    problem = Problem.stored(
        512, 512, 512, "bfloat16", "bfloat16", "nn", capability=(9, 0), batch=64
    )
    rows = dispatch.select(["triton"], ["fused"])
    alone = result("triton/fused", 512, 512, 512, 4)
    (found,) = ranking.rank(problem, rows, H200, [alone])
    assert (found.us > 4, found.exact) == (True, False)
    of_batch = result("triton/fused", 512, 512, 512, 30, batch="64")
    (found,) = ranking.rank(problem, rows, H200, [alone, of_batch])
    assert (found.us, found.exact) == (pytest.approx(30), True)
    (found,) = ranking.rank(problem_of(512, 512, 512), rows, H200, [alone, of_batch])
    assert (found.us, found.exact) == (pytest.approx(4), True)


def test_a_measured_shape_keeps_its_time_and_the_order_follows():
    rows = dispatch.select(["triton"], ["naive", "grouped", "pipelined"])
    results = [
        result("triton/naive", 512, 512, 512, 30),
        result("triton/grouped", 512, 512, 512, 90),
        result("triton/grouped", 512, 512, 512, 20),
        result("triton/pipelined", 512, 512, 512, 10, status="wrong"),
    ]
    found = ranking.rank(problem_of(512, 512, 512), rows, H200, results)
    assert [each.kernel.split("/")[1] for each in found] == ["grouped", "naive", "pipelined"]
    assert [each.us for each in found] == [pytest.approx(20), pytest.approx(30), None]


def test_runs_at_other_clocks_are_compared_by_their_ratio_to_cublas():
    """grouped ran at half the clock, and beside cuBLAS it was the faster one."""
    rows = dispatch.select(["triton"], ["naive", "grouped"])
    results = [
        result("triton/naive", 512, 512, 512, 30, run="one", ratio_p50="0.5", sm_clock_mhz="1980"),
        result(
            "triton/grouped", 512, 512, 512, 40, run="two", ratio_p50="0.75", sm_clock_mhz="990"
        ),
    ]
    found = ranking.rank(problem_of(512, 512, 512), rows, H200, results)
    cublas = (30 * 0.5 + 40 * 0.75) / 2
    assert [(each.kernel, each.us) for each in found] == [
        ("triton/grouped", pytest.approx(cublas / 0.75)),
        ("triton/naive", pytest.approx(cublas / 0.5)),
    ]
    assert all(each.exact for each in found)
    words = ranking.spread(found)
    assert "2 runs at SM clocks of 990 to 1980 MHz" in words
    assert ranking.spread(found[:1]) == ""
    bare = [result("triton/naive", 512, 512, 512, 30, run="one"), results[1]]
    words = ranking.spread(ranking.rank(problem_of(512, 512, 512), rows, H200, bare))
    assert "triton/naive had no cuBLAS beside it" in words


def test_the_nearest_shape_counts_and_other_types_do_not():
    (row,) = dispatch.select(["triton"], ["naive"])
    results = [
        result("triton/naive", 4096, 4096, 4096, 300),
        result("triton/naive", 512, 512, 512, 30),
        result("triton/naive", 1000, 1000, 1000, 1, dtype_in="float16", dtype_out="float16"),
    ]
    (found,) = ranking.rank(problem_of(1024, 1024, 512), [row], H200, results)
    assert found.measured.startswith("512x512x512")
    (found,) = ranking.rank(problem_of(4096, 4000, 4096), [row], H200, results)
    assert found.measured.startswith("4096x4096x4096")


def test_a_shape_too_far_away_says_nothing():
    (row,) = dispatch.select(["triton"], ["naive"])
    results = [result("triton/naive", 4096, 4096, 4096, 300)]
    (found,) = ranking.rank(problem_of(16, 4096, 4096), [row], H200, results)
    assert (found.us, found.measured) == (None, "")


def test_the_command_ranks_by_a_folder_of_results(tmp_path):
    from typer.testing import CliRunner

    from tcgemm.cli import app

    arguments = ["explain", "1000x1000x1000", "--gpu", "h200", "--backend", "triton"]
    shown = CliRunner().invoke(app, [*arguments, "--results", str(REPORT)])
    assert "ranking: estimates" in shown.output
    assert "at 1024x1024x1024" in shown.output
    missing = CliRunner().invoke(app, [*arguments, "--results", str(tmp_path)])
    assert "no such file" in str(missing.exception)


def test_what_refuses_is_not_ranked():
    rows = dispatch.select(["triton"], ["naive", "descriptor"])
    found = ranking.rank(problem_of(33, 35, 37), rows, H200, [])
    assert [each.kernel for each in found] == ["triton/naive"]


@pytest.mark.exhaustive
def test_shapes_that_were_left_out_are_foretold():
    """Each of some measured cases from the results without its shape."""
    results = [row for row in store.read(REPORT) if row["status"] == "ok" and not row["fused"]]
    cases = sorted({case_of_row(row) for row in results if row["dtype_in"] == "bfloat16"}, key=str)
    errors, losses = [], []
    rows = [row for row in dispatch.select() if row.backend != "cublas"]
    for case in cases[:: len(cases) // 30]:
        size = {name: str(getattr(case, name)) for name in "MNK"}
        others = [row for row in results if size.items() - row.items()]
        took = {
            f"{row['backend']}/{row['kernel']}": 1e3 * float(row["ms_p50"])
            for row in results
            if case_of_row(row) == case and row["ms_p50"]
        }
        found = ranking.rank(case.product(capability=(9, 0)), rows, H200, others)
        timed = [each for each in found if each.us and each.kernel in took]
        errors += [abs(math.log(each.us / took[each.kernel])) for each in timed]
        if timed:
            losses.append(took[timed[0].kernel] / min(took[each.kernel] for each in timed))
    assert len(losses) > 20
    assert statistics.median(errors) < math.log(1.2)
    assert statistics.median(losses) < 1.05
