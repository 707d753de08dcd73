"""K in parts for other types than 16 bits, in the simulator: both checks, edges, what the second
launch finishes; and what the model of time plans."""

from __future__ import annotations

import csv
import itertools
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from tcgemm.cuda_ref import fusion as numbers
from tcgemm.cuda_ref import simulator
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.planning import parts as model
from tcgemm.cuda_ref.planning import wgmma_types_model as tilings
from tcgemm.cuda_ref.shapes import wgmma_types as types

import tcgemm
from tcgemm import accuracy
from tcgemm.choosing import fitting
from tcgemm.dispatch import find
from tcgemm.problem import OUTPUTS, Fusion, Problem

ROOT = Path(__file__).parents[1]

I8, U8, I32, F32, F64 = torch.int8, torch.uint8, torch.int32, torch.float32, torch.float64
E4M3, E5M2, F16, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16
CASES = [
    ("wgmma_types", I8, I32, "int32"),
    ("wgmma_types", U8, I32, "int32"),
    ("wgmma_types", E4M3, BF16, "fast"),
    ("wgmma_types", E5M2, F16, "float32"),
    ("wgmma_types", F32, F32, "tf32"),
    ("wgmma_types", F32, F32, "tf32x3"),
    ("mma_float64", F64, F64, "float64"),
]
STEP = {I8: 128, U8: 128, E4M3: 128, E5M2: 128, F32: 32, F64: 16}


def stored(rows, columns, dtype, letter, make, odd=False):
    """float64's rows are whole vectors, as its kernel wants them; what lies between them is NaN."""
    if letter == "t":
        return stored(columns, rows, dtype, "n", make, odd).mT
    pitch = columns + columns % 2 if dtype == F64 else columns
    buffer = torch.zeros(rows, pitch) if dtype in (I8, U8) else torch.full((rows, pitch), torch.nan)
    buffer[:, :columns] = make((rows, columns))
    return buffer.to(dtype)[:, :columns]


def small_integers(dtype):
    return lambda size: torch.randint(0 if dtype == U8 else -4, 5, size).float()


def divided(
    name, a, b, stored_to, parts, compute, order="forward", check=False, plan=None, **fused
):
    report = simulator.simulate(
        simulator.source_of(name), a, b, stored_to, plan={"SPLITS": parts, **(plan or {})},
        fusion=Fusion(compute=compute, **fused), order=order, check=check,
    )  # fmt: skip
    report.raise_if_stopped()
    assert not report.findings, [str(finding) for finding in report.findings]
    return stored_to


@pytest.mark.spread(3, "layout", "name")
@pytest.mark.parametrize(("name", "dtype", "out", "compute"), CASES, ids=str)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_both_checks_in_any_layout(name, dtype, out, compute, layout):
    """Parts that are all alike, parts of which the last has less, and more than a thread has on
    their way at a time, so that several threads add them."""
    torch.manual_seed(0)
    step = STEP[dtype]
    for (M, N, K), parts in (
        ((64, 128, 4 * step), 2), ((67, 35, 5 * step + 3), 3), ((3, 130, 17 * step - 1), 17),
    ):  # fmt: skip
        exact = small_integers(dtype)
        a, b = stored(M, K, dtype, layout[0], exact), stored(K, N, dtype, layout[1], exact)
        c = accuracy.poisoned((M, N), out, "cpu")
        divided(name, a, b, c, parts, compute)
        assert torch.equal(c, (a.double() @ b.double()).to(out)), (M, N, K)
        if dtype in (I8, U8):
            continue
        a, b = (
            stored(M, K, dtype, layout[0], torch.randn),
            stored(K, N, dtype, layout[1], torch.randn),
        )
        c = divided(name, a, b, accuracy.poisoned((M, N), out, "cpu"), parts, compute)
        assert accuracy.error_ratio(a, b, c, Fusion(compute=compute)) <= 1, (M, N, K)


@pytest.mark.spread(2, "order")
@pytest.mark.parametrize(("name", "dtype", "out", "compute"), CASES, ids=str)
@pytest.mark.parametrize("order", ["reverse", "random:5"])
def test_nothing_is_found_in_any_order(name, dtype, out, compute, order):
    K = 5 * STEP[dtype] - 2
    a, b = (
        stored(70, K, dtype, "n", small_integers(dtype)),
        stored(K, 131, dtype, "n", small_integers(dtype)),
    )
    c = divided(name, a, b, accuracy.poisoned((70, 131), out, "cpu"), 3, compute, order, True)
    assert torch.equal(c, (a.double() @ b.double()).to(out))


@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize(("name", "dtype", "out", "compute"), CASES, ids=str)
def test_the_second_launch_does_what_is_fused(name, dtype, out, compute, column_major):
    """In place: C is read where it is written."""
    torch.manual_seed(1)
    M, N, K = 35, 66, 3 * STEP[dtype]
    a, b = (
        stored(M, K, dtype, "n", small_integers(dtype)),
        stored(K, N, dtype, "t", small_integers(dtype)),
    )
    before, bias = torch.randint(-9, 9, (M, N)).to(out), torch.randint(-9, 9, (N,)).to(out)
    c = torch.empty(N, M, dtype=out).mT if column_major else torch.empty(M, N, dtype=out)
    c.copy_(before)
    scales = {}
    d = 2 * (a.double() @ b.double())
    if dtype in (E4M3, E5M2):
        scale_a, scale_b = 2.0 ** torch.randint(-1, 2, (M,)), 2.0 ** torch.randint(-1, 2, (N,))
        scales = {"scale_a": scale_a.float(), "scale_b": scale_b.float()}
        d = d * scale_a.double()[:, None] * scale_b.double()
    divided(
        name, a, b, c, 3, compute, alpha=2.0, beta=-1.0, c=c, bias=bias, epilogue="relu", **scales
    )
    assert torch.equal(c, (d - before.double() + bias.double()).relu().to(out))


def test_a_view_of_c_keeps_what_lies_around_it():
    a, b = (stored(40, 96, F32, "n", small_integers(F32)) for _ in range(2))
    around = torch.full((90, 95), 7.0)
    divided("wgmma_types", a, b.mT, around[3:83:2, 1:81:2], 3, "tf32x3")
    assert torch.equal(around[3:83:2, 1:81:2], a @ b.mT)
    around[3:83:2, 1:81:2] = 7.0
    assert (around == 7.0).all()


@pytest.mark.parametrize("kind", ["split", "split beforehand", "promoted", "plain tf32", "plain"])
def test_each_tiling_divides_k(kind):
    dtype, out, compute = {
        "promoted": (E4M3, BF16, "float32"), "plain tf32": (F32, F32, "tf32"),
        "plain": (I8, I32, "int32"),
    }.get(kind, (F32, F32, "tf32x3"))  # fmt: skip
    K = 5 * STEP[dtype]
    a, b = (
        stored(200, K, dtype, "n", small_integers(dtype)),
        stored(K, 270, dtype, "t", small_integers(dtype)),
    )
    exact = (a.double() @ b.double()).to(out)
    for tiling in tilings.TILINGS[kind]:
        plan = {"BLOCK_M": tiling.block_m, "BLOCK_N": tiling.block_n, "REPACK": int(tiling.repack)}
        for cluster in (1, 2):
            c = accuracy.poisoned((200, 270), out, "cpu")
            divided("wgmma_types", a, b, c, 2, compute, plan={**plan, "CLUSTER": cluster})
            assert torch.equal(c, exact), (tiling, cluster)


@pytest.mark.parametrize(("dtype", "value"), [(I8, -128), (U8, 255)], ids=str)
def test_integer_sums_of_parts_wrap(dtype, value):
    K = 2**17 + 64 if dtype == I8 else 2**16
    a, b = torch.full((1, K), value, dtype=dtype), torch.full((1, K), value, dtype=dtype).mT
    exact = value * value * K
    c = divided("wgmma_types", a, b, torch.zeros(1, 1, dtype=I32), 4, "int32")
    assert c.item() == (exact + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("compute", ["tf32", "tf32x3", "float64"])
def test_inf_and_nan_meet_no_padding(compute):
    """The last part ends within a step, and in the last tile rows of A and B are missing."""
    name, dtype = ("mma_float64", F64) if compute == "float64" else ("wgmma_types", F32)
    K = 5 * STEP[dtype] - 3
    a, b = stored(40, K, dtype, "n", torch.randn), stored(K, 50, dtype, "t", torch.randn)
    a[7, K - 1], a[9, 0], b[K - 2, 11] = torch.nan, torch.inf, -torch.inf
    c = divided(name, a, b, accuracy.poisoned((40, 50), dtype, "cpu"), 3, compute)
    exact = (a.double() @ b.double()).to(dtype)
    torch.testing.assert_close(c, exact, rtol=1e-2, atol=0.1, equal_nan=True)
    assert c[7].isnan().all()
    assert int(c.isnan().any(1).sum()) == int(exact.isnan().any(1).sum())


@pytest.mark.parametrize(("name", "dtype"), [("wgmma_types", F32), ("mma_float64", F64)])
def test_the_launcher_refuses_parts_that_are_empty_and_batches(name, dtype):
    compute = "tf32" if dtype == F32 else "float64"
    a, b, c = (torch.ones(2, 64, 4 * STEP[dtype], dtype=dtype) for _ in range(3))
    c = torch.zeros(2, 64, 64, dtype=dtype)
    for arguments, parts in (((a[0], b[0].mT, c[0]), 3), ((a, b.mT, c), 2)):
        with pytest.raises(simulator.SimulationError, match="the launcher refuses it"):
            divided(name, *arguments, parts, compute)


def problem(M, N, K, dtype="float32", out="float32", compute="tf32x3", layout="nt", **more):
    return Problem.stored(M, N, K, dtype, out, layout, compute=compute, capability=(9, 0), **more)


def planned(*sizes, **more):
    asked = problem(*sizes, **more)
    name = "mma_float64" if asked.dtype_in == "float64" else "wgmma_types"
    return find("cuda", name).plan(asked)


KINDS = [
    {"compute": "tf32x3"}, {"compute": "tf32"},
    {"dtype": "float8_e4m3fn", "out": "bfloat16", "compute": "fast"},
    {"dtype": "float8_e4m3fn", "out": "bfloat16", "compute": "float32"},
    {"dtype": "int8", "out": "int32", "compute": "int32"},
    {"dtype": "float64", "out": "float64", "compute": "float64"},
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(kind.values()))
def test_a_long_k_over_a_small_c_is_divided_and_a_large_c_is_not(kind):
    for layout in ("nt", "nn"):
        plan = planned(128, 128, 16384, layout=layout, **kind)
        assert plan["SPLITS"] >= 16
        assert planned(128, 128, 16384, layout=layout, bias=True, **kind)["SPLITS"] >= 16
        for sizes in ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 64), (128, 128, 64)):
            assert "SPLITS" not in planned(*sizes, layout=layout, **kind)
        assert "SPLITS" not in planned(128, 128, 16384, layout=layout, batch=4, **kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(kind.values()))
def test_no_part_is_empty_and_blocks_fill_the_sms(kind):
    for M, N, K in itertools.product((1, 16, 100, 640), (1, 33, 512, 4096), (511, 4096, 70001)):
        plan = planned(M, N, K, **kind)
        if (parts := plan.get("SPLITS", 1)) == 1:
            continue
        steps = -(-K // plan["BLOCK_K"])
        assert (parts - 1) * -(-steps // parts) < steps
        assert -(-steps // parts) >= model.LEAST_STEPS
        sides = (N, M) if N == 1 else (M, N)  # a column is computed as a row of C'
        tiles = -(-sides[0] // plan["BLOCK_M"]) * -(-sides[1] // plan["BLOCK_N"])
        assert parts <= model.MOST_PARTS
        assert tiles * parts <= model.MOST_WAVES * 132


def test_the_model_weighs_the_second_launch():
    of, way = model.Sizes(128, 128, 512, 4), model.Way(64, 128, 0.3, 8)
    whole, two = model.us(of, way, 1, 132), model.us(of, way, 2, 132)
    moved = 2 * model.workspace_bytes(of, 2) / model.SUMS_BYTES_PER_US
    assert whole - two == pytest.approx(
        256 * 0.3 - model.SECOND_US - 2 * model.PART_US - moved, rel=1e-3
    )
    assert model.workspace_bytes(model.Sizes(3, 5, 9, 4), 2) == 2 * 3 * 8 * 4
    assert model.workspace_bytes(model.Sizes(3, 5, 9, 8), 3) == 3 * 3 * 6 * 8
    short = model.Sizes(128, 128, 3, 4)
    assert model.best(short, way, [(way, 2), (way, 3)], 132) is None
    assert model.best(of, way, [(way, 2), (way, 32)], 132) == (way, 32)
    assert model.best(of, way, [], 132) is None
    assert list(model.divisions(model.Sizes(64, 128, 13, 4), 64, 128, 132)) == [2, 3]


def test_the_workspace_has_the_bounds_of_copies(monkeypatch):
    assert planned(128, 512, 16384)["SPLITS"] > 4
    monkeypatch.setenv(model.WORKSPACE_VARIABLE, "1")
    assert planned(128, 512, 16384)["SPLITS"] == 4, "of 256 KiB each"


def test_coordinates_end_where_those_of_tma_do():
    most = 2**31 - 256
    asked = problem(8, 8, most, "int8", "int32", "int32")
    plan = find("cuda", "wgmma_types").plan(asked)
    steps, parts = -(-most // 128), plan.get("SPLITS", 1)
    assert parts == 1 or parts * -(-steps // parts) * 128 <= most


def test_parts_are_a_build_of_their_own():
    for name, dtype, out in (
        ("wgmma_types", "int8", "int32"),
        ("mma_float64", "float64", "float64"),
    ):
        macros = toolchain.built_by_case(toolchain.source(name))
        whole = {"BLOCK_M": 64, "BLOCK_N": 128}
        flags = [
            set(numbers.case(dtype, None, out, False, macros, plan))
            for plan in (whole, {**whole, "SPLITS": 2}, {**whole, "SPLITS": 5})
        ]
        assert flags[0] ^ flags[1] == {"-DTCGEMM_DIVIDES=0", "-DTCGEMM_DIVIDES=1"}
        assert flags[1] == flags[2]


def test_the_instance_is_that_of_parts():
    asked = problem(128, 128, 16384, "float8_e4m3fn", "bfloat16", "fast", bias=True)
    tests = types.instance(asked, find("cuda", "wgmma_types").plan(asked))
    assert tests["Extra"]("(anonymous namespace)::Part")
    assert tests["Out"]("float")
    assert not tests["Extra"]("tcgemm::Plain")
    assert not tests["Out"]("__nv_bfloat16")


COMPUTES = {F32: "tf32x3", F64: "float64"}


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_call_divides_k_as_it_is_planned(dtype):
    """On the simulator's eight SMs, three calls of one kind."""
    for seed in range(3):
        torch.manual_seed(seed)
        a, b = torch.randn(16, 4096, dtype=dtype), torch.randn(4096, 24, dtype=dtype)
        kernel = "wgmma_types" if dtype == F32 else "mma_float64"
        asked = problem(16, 24, 4096, *[str(dtype)[6:]] * 2, COMPUTES[dtype], "nn", device="cpu")
        assert find("cuda", kernel).plan(asked)["SPLITS"] > 1
        c = tcgemm.matmul(a, b, backend="cuda", kernel=kernel)
        assert accuracy.error_ratio(a, b, c) <= 1


def test_of_plans_that_were_timed_the_one_taken_is_nearly_the_fastest():
    """Of reports/nvidia-h200/trials/type_parts.csv, where A and B lie along K, or in float64."""
    with (ROOT / "reports/nvidia-h200/trials/type_parts.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["backend"] == "cuda"]
    timed = defaultdict(dict)
    for row in rows:
        if row["layout"] == "nt" or row["dtype"] == "float64":
            what = tuple(row[name] for name in ("dtype", "compute", "layout", *"MNK"))
            plan = fitting.plan_of(row["config"])
            timed[what].setdefault(tuple(sorted(plan.items())), float(row["us"]))
    lost = []
    for (dtype, compute, layout, *sizes), found in timed.items():
        out = "bfloat16" if dtype.startswith("float8") else OUTPUTS[dtype][0]
        plan = planned(*map(int, sizes), dtype=dtype, out=out, compute=compute, layout=layout)
        settings = {name for config in found for name, _ in config}
        key = tuple(sorted((name, x) for name, x in plan.items() if name in settings))
        if key in found:
            lost.append(found[key] / min(found.values()))
    assert len(lost) > 100, (len(lost), len(timed))
    assert statistics.geometric_mean(lost) < 1.04
