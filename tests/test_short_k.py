"""short_k: float32 and float64 over a K of a few elements, on CUDA cores."""

import csv
import itertools
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
import records
import torch
from tcgemm.cuda_ref import choose as choose_among
from tcgemm.cuda_ref import simulator
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.shapes import short_k as rung

import tcgemm
from tcgemm import accuracy
from tcgemm.dispatch import choose, find
from tcgemm.problem import Fusion, Problem

ROOT = Path(__file__).parents[1]
MOST_K = toolchain.constants("short_k")["MOST_K"]
KINDS = [(torch.float32, "tf32"), (torch.float32, "tf32x3"), (torch.float64, "float64")]
SIZES = [(64, 128, 4), (33, 129, 1), (7, 300, 33), (100, 5, 64), (1, 1, 3), (70, 201, 17)]
"""Whole tiles and parts of them, all of what K may have, and one of each."""


def operand(rows, columns, dtype, transposed, integers=False):
    if transposed:
        return operand(columns, rows, dtype, False, integers).mT
    made = torch.randint(-8, 9, (rows, columns)) if integers else torch.randn(rows, columns)
    return made.to(dtype)


def product(a, b, compute, out=None, order="forward", check=False, **fused):
    out = accuracy.poisoned((*a.shape[:-1], b.shape[-1]), a.dtype, "cpu") if out is None else out
    report = simulator.simulate(
        simulator.source_of("short_k"), a, b, out, fusion=Fusion(compute=compute, **fused),
        order=order, check=check,
    )  # fmt: skip
    assert not report.findings, [str(finding) for finding in report.findings]
    return out


@pytest.mark.parametrize(("dtype", "compute"), KINDS, ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_both_checks_in_any_layout(dtype, compute, layout):
    torch.manual_seed(0)
    for (M, N, K), integers in itertools.product(SIZES, (True, False)):
        a = operand(M, K, dtype, layout[0] == "t", integers)
        b = operand(K, N, dtype, layout[1] == "t", integers)
        for out in (None, torch.full((N, M), torch.nan, dtype=dtype).mT):
            c = product(a, b, compute, out)
            if integers:
                assert torch.equal(c, a @ b)
            else:
                assert accuracy.error_ratio(a, b, c, Fusion(compute=compute)) <= 1


def test_operands_of_any_strides_and_what_lies_around_c():
    buffer, around = torch.randn(90, 900), torch.zeros(150, 500)
    a, b = buffer[3:73, 1:60:3], buffer[::4, 2:].mT[:20, 1:21]
    out = around[2:142:2, 1:61:3]
    c = product(a, b, "tf32x3", out)
    assert accuracy.error_ratio(a, b, c, Fusion(compute="tf32x3")) <= 1
    out.zero_()
    assert not around.any()
    c = product(buffer[:1, :5].expand(40, 5), buffer[:1, :30].expand(5, 30), "tf32x3")
    assert accuracy.error_ratio(buffer[:1, :5].expand(40, 5), buffer[:1, :30].expand(5, 30), c) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("column_major", [False, True])
def test_what_is_fused(dtype, column_major):
    a, b = (operand(*size, dtype, False, True) for size in ((70, 9), (9, 140)))
    c, bias = operand(70, 140, dtype, column_major, True), operand(1, 140, dtype, False, True)[0]
    exact = (2 * (a @ b) - c + bias).relu()
    compute = "float64" if dtype == torch.float64 else "tf32"
    fused = {"c": c, "alpha": 2.0, "beta": -1.0, "bias": bias, "epilogue": "relu"}
    assert torch.equal(product(a, b, compute, c.clone(), **fused), exact)


def test_a_batch_may_share_an_operand():
    for shared_a, shared_b in ((False, False), (True, False), (False, True)):
        a = torch.randint(-8, 9, (1 if shared_a else 3, 40, 7)).float().expand(3, 40, 7)
        b = torch.randint(-8, 9, (1 if shared_b else 3, 7, 150)).float().expand(3, 7, 150)
        assert torch.equal(product(a, b, "tf32"), a @ b)


@pytest.mark.parametrize("order", ["random:5", "late:0", "late:3"])
def test_nothing_races(order):
    for layout in ("nn", "tt"):
        a = operand(70, 31, torch.float32, layout[0] == "t", True)
        b = operand(31, 300, torch.float32, layout[1] == "t", True)
        assert torch.equal(product(a, b, "tf32x3", order=order, check=True), a @ b)


def test_inf_and_nan_are_those_of_the_product():
    for dtype, compute in KINDS:
        a, b = (operand(*size, dtype, False) for size in ((40, 9), (9, 200)))
        a[3, 8], a[7, 0], b[4, 140], b[0, 150] = torch.inf, torch.nan, -torch.inf, 0
        a[9, 0] = torch.inf  # times 0
        torch.testing.assert_close(product(a, b, compute), a @ b, equal_nan=True)


def problem(M, N, K, dtype="float32", compute="tf32x3", layout="nn", **more):
    return Problem.stored(M, N, K, dtype, dtype, layout, compute=compute, capability=(9, 0), **more)


def test_a_longer_k_is_refused_with_the_numbers():
    why_not = find("cuda", "short_k").why_not
    assert why_not(problem(8, 8, MOST_K)) is None
    assert f"K={MOST_K + 1}" in why_not(problem(8, 8, MOST_K + 1))
    with pytest.raises(simulator.SimulationError, match="the launcher refuses it"):
        product(torch.ones(8, 65), torch.ones(65, 8), "tf32")
    assert why_not(problem(8, 8, 8, "bfloat16", "float32")) is not None


def test_beyond_what_was_timed_it_is_taken_by_name_alone():
    assert rung.cost(problem(4096, 4096, rung.MOST_TIMED_K), 132) > 0
    assert rung.cost(problem(4096, 4096, rung.MOST_TIMED_K + 1), 132) is None
    assert choose(problem(5000, 5000, rung.MOST_TIMED_K + 1), "cuda").name != "short_k"


def test_a_call_takes_it():
    a, b = torch.randn(300, 5), torch.randn(5, 400)
    for _ in range(3):
        c = tcgemm.matmul(a, b, backend="cuda", kernel="short_k")
        assert accuracy.error_ratio(a, b, c) <= 1


def test_it_is_chosen_where_it_was_the_fastest():
    """Of reports/nvidia-h200/trials/short_k_types.csv, beside the plans of the other rungs."""
    timed = defaultdict(dict)
    with (ROOT / "reports/nvidia-h200/trials/short_k_types.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            what = tuple(row[name] for name in ("dtype", "compute", "layout", *"MNK"))
            timed[what][row["kernel"]] = float(row["us"])
    lost, taken = [], []
    for (dtype, compute, layout, *sizes), found in timed.items():
        rungs = {kernel: us for kernel, us in found.items() if kernel != "torch"}
        name = choose_among(problem(*map(int, sizes), dtype, compute, layout), [*rungs])
        taken.append(name)
        lost.append(rungs[name] / min(rungs.values()))
    assert len(lost) > 100
    assert statistics.geometric_mean(lost) < 1.035
    assert max(lost) < 1.7
    assert 0.2 < taken.count("short_k") / len(taken) < 0.95


needs_nvcc = pytest.mark.skipif(toolchain.find_nvcc() is None, reason="needs nvcc")


@needs_nvcc
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_what_nvcc_makes_of_it(target):
    """All copies are asynchronous, nothing is spilled, and no tensor core is asked."""
    report = records.cuda("short_k", target)
    assert len(report.kernels) == 4
    assert report.spill_bytes == 0
    for kernel in report.kernels:
        assert kernel.sass["LDGSTS"] >= 2
        assert kernel.sass["HMMA"] == kernel.sass["DMMA"] == 0
        assert kernel.registers <= 128
