"""Batches in the benchmark: what is drawn, how one is verified, stored and reported."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from tcgemm import accuracy, dispatch, gpus
from tcgemm.bench import case_bench, cases, drawn, run, store
from tcgemm.bench.case import Case, case_of_row
from tcgemm.choosing import fitting
from tcgemm.cli import app
from tcgemm.errors import OperandError, UnsupportedError
from tcgemm.report.derive import derive, plain
from tcgemm.tools.explain import ranking
from tcgemm.tools.tune import command as tune

TRIALS = Path(__file__).parents[1] / "reports" / "nvidia-h200" / "trials"
BATCH = 3


def batch_of(M, N, K, layout="nn", batch=BATCH, dtype="bfloat16"):
    return Case("shape", M, N, K, dtype, dtype, layout, "", batch=batch)


def test_about_one_drawn_case_in_ten_is_a_batch_and_the_others_are_as_before():
    with_some = cases.build("drawn-batched", seed=9, count=400)
    assert with_some == cases.build("drawn-batched", seed=9, count=400)
    assert with_some[:50] == cases.build("drawn-batched", seed=9, count=50)
    batches = [case for case in with_some if case.batch > 1]
    assert 25 <= len(batches) <= 55
    alone = [case for case in with_some if case.batch == 1]
    assert alone == cases.build("drawn", seed=9, count=len(alone))
    sizes = [case.batch for case in batches]
    assert 2 <= min(sizes) < 4
    assert 32 < max(sizes) <= 64
    assert len(set(batches)) == len(batches)
    other = [case for case in cases.build("drawn-batched", seed=10, count=400) if case.batch > 1]
    assert not {(c.M, c.N, c.K) for c in batches} & {(c.M, c.N, c.K) for c in other}


def test_a_drawn_batch_is_no_larger_than_one_product_may_be():
    many = drawn._drawn(3, (), (), drawn.random.Random(3).random)
    drawn_ = [next(many) for _ in range(3000)]
    assert max(2 * c.M * c.N * c.K * c.batch for c in drawn_) <= 4e12
    assert max(c.product().bytes for c in drawn_) <= 6 * 16384**2
    assert {c.suite.rsplit("-a")[0] for c in drawn_} == {"drawn-batched-s3"}
    for case in drawn_[:200]:
        alignment = int(case.suite.rsplit("-a")[1])
        strides = case.product().a_strides, case.product().b_strides, case.product().c_strides
        assert not any(2 * max(each) % alignment for each in strides)


def test_the_committed_rows_are_of_the_shapes_that_seeds_give():
    with (TRIALS / "drawn_kernels.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["suite"].startswith("drawn-s20")]
    seen = {tuple(row[x] for x in ("suite", "M", "N", "K", "dtype_in", "layout")) for row in rows}
    given = {
        (case.suite, str(case.M), str(case.N), str(case.K), case.dtype_in, case.layout)
        for seed in (201, 202, 203)
        for case in drawn.drawn_cases(seed, 40)
    }
    assert len(seen) > 100
    assert seen <= given


def test_a_batch_is_named_and_counted_as_one():
    case = batch_of(64, 32, 16)
    assert str(case) == "3 x 64x32x16 bfloat16 nn"
    assert case.flop == 3 * 2 * 64 * 32 * 16
    problem = case.product()
    assert (problem.batch, problem.batch_strides) == (3, (64 * 16, 16 * 32, 64 * 32))
    assert problem.bytes == 3 * batch_of(64, 32, 16, batch=1).product().bytes
    assert run.key(case, "triton", "fused") != run.key(replace(case, batch=1), "triton", "fused")


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_operands_of_a_batch_lie_as_the_case_says(layout):
    case = batch_of(24, 16, 40, layout)
    oracle = accuracy.BatchOracle(BATCH, 24, 16, 40, "bfloat16", "bfloat16", layout, seed=5)
    for a, b in ((oracle.a, oracle.b), (oracle.integer_a, oracle.integer_b)):
        found = dispatch.problem_of(a, b, oracle.output())
        for name in ("a_strides", "b_strides", "c_strides", "batch", "batch_strides"):
            assert getattr(found, name) == getattr(case.product(), name), name
    one = accuracy.Oracle(24, 16, 40, "bfloat16", "bfloat16", layout, seed=5)
    assert torch.equal(oracle.a[0], one.a)
    assert not torch.equal(oracle.a[1], one.a)
    a, b = accuracy.batch_of_operands(BATCH, 24, 16, 40, torch.bfloat16, layout, "cpu", 5)
    assert torch.equal(a, oracle.a)
    assert torch.equal(b, oracle.b)
    assert a.stride() == oracle.a.stride()


def right(a, b, c):
    c.copy_(a.double() @ b.double())


def off_by_little(a, b, c):
    right(a, b, c)
    c[2, 3, 4] *= 1.02


def not_the_last(a, b, c):
    right(a[:-1], b[:-1], c[:-1])


def every_from_the_first(a, b, c):
    right(a, b[:1], c)


def beyond(a, b, c):
    right(a, b, c)
    c.as_strided((1,), (1,), c.storage_offset() + c.numel()).fill_(1)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (right, ""),
        (off_by_little, "times its bound; 1 of 1152 elements differ on exact integers"),
        (not_the_last, "not finite or never written; 384 of 1152 elements differ"),
        (every_from_the_first, "elements differ on exact integers"),
        (beyond, "memory next to C was written"),
    ],
)
def test_each_product_of_a_batch_is_held_to_both_checks(kernel, says):
    verdict = accuracy.BatchOracle(BATCH, 24, 16, 40, "bfloat16", "bfloat16", "tn").check(kernel)
    assert verdict.ok == (not says)
    assert says in verdict.reason
    assert verdict.elements == 3 * 24 * 16


def test_a_reference_of_what_was_timed_holds_each_product_to_its_bound():
    a, b = accuracy.batch_of_operands(BATCH, 24, 16, 40, torch.bfloat16, "nn", "cpu", 1)
    c = (a.double() @ b.double()).bfloat16()
    reference = accuracy.reference_of(a, b, c.dtype)
    assert reference.error_ratio(c) <= 1
    c[2, 23, 15] += 1
    assert reference.error_ratio(c) > 1
    alone = accuracy.reference_of(a[0], b[0], c.dtype)
    assert alone.error_ratio(c[0]) <= 1 < alone.error_ratio(c[1])


@pytest.mark.parametrize("name", ["cublas/torch_cpu", "triton/fused"])
def test_kernels_that_take_batches_are_verified_on_one(name):
    bench = case_bench.CaseBench(batch_of(40, 24, 33, "nt"), "cpu", 0, 0.01, set())
    (row,), _ = bench.measure(*name.split("/"))
    assert (row["status"], row["reason"]) == ("ok", "")
    assert row["exact_errors"] == 0
    assert 0 < row["error_ratio"] <= 1


def test_kernels_that_take_no_batch_are_no_contenders():
    case = batch_of(64, 64, 64)
    rows = run.contenders(kernels=["triton/fused", "triton/pipelined", "cublas/cublas"])
    units = run.units_of([replace(case, batch=1), case], rows)
    told = [(unit.full_name, unit.case.batch) for unit in units]
    assert ("triton/fused", 3) in told
    assert ("cublas/cublas", 3) in told
    assert [batch for name, batch in told if name == "triton/pipelined"] == [1]


def stored(case, ms, **more):
    named = {name: getattr(case, name) for name in run.CASE_COLUMNS}
    return {"suite": case.suite, **named, "status": "ok", "ms_p50": ms, "backend": "triton",
            "kernel": "fused", "timer": "graph", **more}  # fmt: skip


def test_a_stored_batch_comes_back_and_is_known_as_done(tmp_path):
    results = store.Store(tmp_path, "r", {"gpu_slug": "nvidia-h200"})
    case = batch_of(64, 32, 16)
    for each in (case, replace(case, batch=1)):
        results.append(stored(each, 0.5))
    results.close()
    many, one = store.read(tmp_path)
    assert case_of_row(many) == replace(case, suite="")
    assert case_of_row(one).batch == 1
    assert run.keys_of_row(many) == [run.key(case, "triton", "fused")]
    assert run.keys_of_row(one) == [run.key(replace(case, batch=1), "triton", "fused")]


def test_what_is_derived_counts_the_batch():
    rows = [stored(batch_of(64, 32, 16), 0.5), stored(batch_of(64, 32, 16, batch=1), 0.5)]
    frame = pd.DataFrame(rows, columns=list(store.COLUMNS), dtype=str)
    table = derive(frame, gpus.lookup("NVIDIA H200")).set_index("batch")
    for column in ("flop", "bytes", "eops", "tflops", "gb_s", "floor_ms"):
        assert table.loc[3, column] == pytest.approx(3 * table.loc[1, column]), column
    assert table.loc[3, "intensity"] == table.loc[1, "intensity"]
    assert table.loc[3, "shape"] == "3 of 64 × 32 × 16"
    assert table.loc[1, "shape"] == "64 × 32 × 16"
    assert list(plain(table.reset_index())["batch"]) == [1]


def test_a_batch_tells_nothing_of_one_product_s_time():
    """Neither the model, nor what explain scales to a product that is not near."""
    row = stored(replace(batch_of(64, 32, 16), suite="drawn-batched-s7-a128"), 0.5)
    rows = [{**row, "config": "BLOCK_M=64 BLOCK_N=64"}]
    assert not list(fitting.timed(rows, 132, (9, 0)))
    alone = [{**each, "suite": "drawn-s7-a128", "batch": 1} for each in rows]
    assert len(list(fitting.timed(alone, 132, (9, 0)))) == 1
    wide = [{**row, "dtype_in": "float32"} for row in alone]
    assert not list(fitting.timed(wide, 132, (9, 0))), "the model speaks of 16 bits"

    case = batch_of(4096, 4096, 4096, batch=64)
    measured = {("triton", "fused"): {case: ranking.Measured(64_000.0, "r", None, True)}}
    board = gpus.find("h200")
    kernel = dispatch.find("triton", "fused")
    one = replace(case, batch=1).product(capability=(9, 0))
    many = case.product(capability=(9, 0))
    near = [
        ranking._estimate(problem, kernel, board, measured["triton", "fused"])
        for problem in (one, many)
    ]
    assert near[0].us is None
    assert near[1].us == pytest.approx(64_000.0)


def test_the_suite_is_of_a_gpu():
    with pytest.raises(UnsupportedError, match="suite drawn-batched is measured on a GPU"):
        cases.build("drawn-batched", device="cpu")
    asked = ["bench", "--suite", "squares", "--count", "3"]
    error = CliRunner().invoke(app, asked).exception
    assert "only --suite drawn or drawn-batched takes it" in str(error)


@pytest.mark.gpu
def test_a_batch_is_timed_beside_torch_bmm(tmp_path):
    chosen = [batch_of(512, 512, 512, "nt", 8), batch_of(100, 60, 72, "tn", 5)]
    results = store.Store(tmp_path, "r", {"gpu_slug": "gpu"})
    kernels = run.contenders([], ["cublas/cublas", "triton/fused"])
    run.run(run.units_of(chosen, kernels), results)
    results.close()
    rows = store.read(tmp_path)
    assert {row["status"] for row in rows} == {"ok"}
    assert {(row["backend"], row["batch"]) for row in rows} == {
        (backend, batch) for backend in ("cublas", "triton") for batch in ("8", "5")
    }
    for row in rows:
        if row["backend"] == "cublas":
            assert float(row["ratio_p50"]) == pytest.approx(1, abs=0.15)


def test_what_takes_single_products_takes_no_batches():
    tuned = tune._cases(None, "drawn-batched", "bfloat16", None, None)
    assert tuned
    assert all(case.batch == 1 for case in tuned)
    asked = ["bench", "--steady", "--suite", "drawn-batched", "--seed", "9", "--count", "40"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 2
    assert "--steady times plain single products" in " ".join(done.output.split())
    with pytest.raises(OperandError, match="suite drawn-batched is of"):
        cases.build("drawn-batched", fused=["bias"], seed=9, count=5)
