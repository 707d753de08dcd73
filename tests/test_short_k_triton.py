"""Triton's short_k and thin in float32 and float64: right wherever operands lie, without tl.dot,
and taken where their models say less."""

from __future__ import annotations

import csv
import itertools
import statistics
from collections import defaultdict
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import records
import torch

import tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.problem import Fusion, Problem

rung = import_module("tcgemm.triton_kernels.shapes.short_k")
planned = import_module("tcgemm.triton_kernels.shapes.short_k_plan")
thin_plan = import_module("tcgemm.triton_kernels.shapes.thin_plan")
type_times = import_module("tcgemm.triton_kernels.rungs.type_times")
gpus = import_module("tcgemm.triton_kernels.planning.gpus")
Request = import_module("tcgemm.triton_kernels.inspection.compile_only").Request

KINDS = [
    (torch.float32, "tf32"), (torch.float32, "tf32x3"), (torch.float32, "ieee"),
    (torch.float64, "float64"),
]  # fmt: skip
SIZES = {
    "short_k": [(64, 128, 4), (33, 129, 1), (7, 300, 33), (100, 5, 64), (1, 1, 3), (70, 204, 17)],
    "thin": [(1, 64, 128), (3, 129, 1), (7, 30, 257), (100, 5, 64), (1, 1, 3), (2, 21, 600)],
}
"""Whole tiles and parts of them, K of one element and of several steps, rows of whole vectors."""

LAYOUTS = ("nn", "nt", "tn", "tt")

WAYS = list(
    itertools.product(("rows", "columns", "apart", "off"), ("rows", "columns", "longer", "off"))
)


@pytest.fixture
def on_an_h200(monkeypatch):
    monkeypatch.setattr(gpus, "gpu_here", lambda capability=None: ("nvidia-h200", 232_448, 132))


def somewhere(rows, columns, how, dtype, device, integers=False):
    """A matrix by rows or columns, in rows that are longer, in every second element, or off the
    beginning of its memory, which is NaN around it."""
    memory = torch.full((2 * (rows + 3) * (columns + 3),), float("nan"), dtype=dtype, device=device)
    strides, first = {
        "rows": ((columns, 1), 0),
        "columns": ((1, rows), 0),
        "longer": ((columns + 3, 1), 0),
        "apart": ((2 * columns, 2), 0),
        "off": ((columns, 1), 1),
    }[how]
    matrix = memory.as_strided((rows, columns), strides, first)
    made = torch.randint(-8, 9, (rows, columns)) if integers else torch.randn(rows, columns)
    return matrix.copy_(made)


def product(name, a, b, compute, c=None, **fused):
    """C of a kernel, three times, each into a poisoned matrix, with the same bits."""
    found = []
    for _ in range(3):
        memory = accuracy.poisoned((*a.shape[:-2], a.shape[-2], b.shape[-1] + 2), a.dtype, a.device)
        out = memory[..., : b.shape[-1]] if c is None else c.clone()
        tcgemm.gemm(a, b, out=out, c=c, backend="triton", kernel=name, compute=compute, **fused)
        assert c is not None or memory[..., b.shape[-1] :].isnan().all()
        found.append(out)
    bits = [x.contiguous().view(torch.uint8) for x in found]
    assert torch.equal(bits[0], bits[1])
    assert torch.equal(bits[0], bits[2])
    return found[0]


@pytest.mark.spread(4, "ways", "dtype", "name")
@pytest.mark.parametrize(("dtype", "compute"), KINDS, ids=str)
@pytest.mark.parametrize("ways", WAYS, ids="-".join)
@pytest.mark.parametrize("name", SIZES)
def test_both_checks_wherever_operands_lie(name, ways, dtype, compute, device):
    torch.manual_seed(0)
    for (M, N, K), integers in itertools.product(SIZES[name], (True, False)):
        a = somewhere(M, K, ways[0], dtype, device, integers)
        b = somewhere(K, N, ways[1], dtype, device, integers)
        c = product(name, a, b, compute)
        if integers:
            assert torch.equal(c, (a.double() @ b.double()).to(dtype))
        else:
            assert accuracy.error_ratio(a, b, c, Fusion(compute=compute)) <= 1


@pytest.mark.parametrize("name", SIZES)
def test_a_c_of_columns_and_one_of_elements_apart(name, device):
    for M, N, K in SIZES[name]:
        a = somewhere(M, K, "rows", torch.float32, device)
        b = somewhere(K, N, "columns", torch.float32, device)
        for strides in ((1, M + 1), (3 * N, 2)):
            memory = torch.full((3 * (M + 1) * (N + 1),), float("nan"), device=device)
            out = memory.as_strided((M, N), strides)
            tcgemm.matmul(a, b, backend="triton", kernel=name, out=out)
            assert accuracy.error_ratio(a, b, out, Fusion(compute="tf32x3")) <= 1
            out.fill_(float("nan"))
            assert memory.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("how", ["rows", "columns", "longer"])
def test_what_is_fused(dtype, how, device):
    a, b = (somewhere(*size, "rows", dtype, device, True) for size in ((70, 9), (9, 140)))
    c = somewhere(70, 140, how, dtype, device, True)
    bias = somewhere(1, 140, "rows", dtype, device, True)[0]
    exact = (2 * (a @ b) - c + bias).relu()
    fused = {"alpha": 2.0, "beta": -1.0, "bias": bias, "epilogue": "relu"}
    assert torch.equal(product("short_k", a, b, None, c, **fused), exact)
    found = product("short_k", a, b, None, alpha=0.5, epilogue="gelu")
    wanted = torch.nn.functional.gelu(0.5 * (a @ b))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_batch_may_share_an_operand(device):
    for shared_a, shared_b, columns in itertools.product((False, True), (False, True), (150, 151)):
        a = torch.randint(-8, 9, (1 if shared_a else 3, 40, 7), device=device).float()
        b = torch.randint(-8, 9, (1 if shared_b else 3, 7, columns), device=device).float()
        a, b = a.expand(3, 40, 7), b.expand(3, 7, columns)
        assert torch.equal(product("short_k", a, b, "tf32"), a @ b)


@pytest.mark.parametrize(("name", "rows"), [("short_k", 40), ("thin", 8)])
def test_inf_and_nan_are_those_of_the_product(name, rows, device):
    for dtype, compute in KINDS:
        a, b = (somewhere(*size, "rows", dtype, device) for size in ((rows, 9), (9, 200)))
        a[3, 8], a[7, 0], b[4, 140], b[0, 150] = torch.inf, torch.nan, -torch.inf, 0
        a[5, 0] = torch.inf  # times 0
        torch.testing.assert_close(product(name, a, b, compute), a @ b, equal_nan=True)


def problem(M, N, K, dtype="float32", compute="tf32x3", layout="nn", **more):
    compute = "float64" if dtype == "float64" else compute
    return Problem.stored(
        M, N, K, dtype, dtype, layout, compute=compute, device="cuda", capability=(9, 0), **more
    )  # fmt: skip


def test_what_it_does_not_take_is_refused_with_the_numbers():
    why_not = dispatch.find("triton", "short_k").why_not
    assert why_not(problem(8, 8, planned.MOST_K)) is None
    assert f"K={planned.MOST_K + 1}" in why_not(problem(8, 8, planned.MOST_K + 1))
    bfloat16 = Problem.stored(8, 8, 8, "bfloat16", "bfloat16", capability=(9, 0))
    assert "bfloat16" in why_not(bfloat16)


@pytest.mark.parametrize(
    ("how_b", "how_c", "size", "vector"),
    [
        ("rows", "rows", (40, 128, 4), 4),
        ("rows", "rows", (40, 130, 4), 1),
        ("columns", "rows", (40, 128, 4), 1),
        ("rows", "columns", (40, 128, 4), 1),
        ("off", "rows", (40, 128, 4), 1),
        ("longer", "rows", (40, 128, 4), 1),
        ("longer", "longer", (40, 129, 4), 1),  # of rows that begin at vectors, and end within one
        ("longer", "rows", (40, 128, 1), 4),  # of one row nothing is apart
    ],
)
def test_vectors_where_rows_of_b_and_c_are_whole(how_b, how_c, size, vector):
    M, N, K = size
    b, c = (
        somewhere(K, N, how_b, torch.float32, "cpu"),
        somewhere(M, N, how_c, torch.float32, "cpu"),
    )
    b, c = (x if x.data_ptr() % 16 in (0, 4) else x.clone() for x in (b, c))
    assert rung.unit(b, c) == vector
    asked = replace(problem(M, N, K), b_strides=b.stride(), c_strides=c.stride())
    asked = replace(asked, b_alignment=16 if b.data_ptr() % 16 == 0 else 4)
    assert planned.in_vectors(asked) == (vector > 1)


TAKEN = [
    ((3209, 3453, 1), "tn", "float32", "short_k"),
    ((5484, 612, 4), "nn", "float32", "short_k"),
    ((1744, 1232, 1), "tn", "float32", "short_k"),
    ((8192, 8192, 1), "nn", "float64", "short_k"),
    ((131, 137, 1), "nn", "float64", "short_k"),
    ((64, 64, 16), "nn", "float32", "short_k"),
    ((255, 1, 12593), "nn", "float32", "thin"),
    ((3, 1, 113), "tn", "float32", "thin"),
    ((1084, 1, 7), "nn", "float32", "thin"),
]


@pytest.mark.parametrize(("size", "layout", "dtype", "kernel"), TAKEN, ids=str)
def test_it_is_taken_where_its_model_says_less(size, layout, dtype, kernel, on_an_h200):
    asked = problem(*size, dtype, layout=layout)
    assert dispatch.choose(asked, "triton").name == kernel
    assert dispatch.choose(replace(asked, capability=(8, 0)), "triton").name != kernel


@pytest.mark.parametrize(
    ("size", "layout"),
    [((4096, 4096, 64), "nt"), ((2921, 431, 49), "tt"), ((64, 4096, 4096), "nt"),
     ((777, 3001, 24), "tn"), ((4096, 4096, 16), "nn"), ((1708, 7028, 20), "nn")],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_is_not_where_a_tensor_core_is_faster(size, layout, dtype, on_an_h200):
    chosen = dispatch.choose(problem(*size, dtype, layout=layout), "triton").name
    assert chosen not in ("short_k", "thin")


def test_a_longer_k_than_ever_won_is_taken_by_name_alone(on_an_h200):
    most = planned.MOST_TAKEN_K
    assert dispatch.choose(problem(64, 64, most), "triton").name == "short_k"
    assert dispatch.choose(problem(64, 64, most + 1), "triton").name != "short_k"
    assert dispatch.find("triton", "short_k").why_not(problem(64, 64, most + 1)) is None


ROWS = Path(__file__).parents[1] / "reports/nvidia-h200/trials/few_triton.csv"

NOISE_US = 0.4
"""Of the times there, which are differences of graphs."""


def timed_products():
    """Of an H200: each product, its microseconds by kernel and plan, and what was taken before
    there was short_k, where that was timed."""
    found, before = defaultdict(dict), {}
    with ROWS.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["what"] == "torch":
                continue
            M, N, K, pitch = (int(row[name]) for name in ("M", "N", "K", "pitch"))
            layout = row["layout"]
            asked = problem(M, N, K, row["dtype"], row["compute"], layout[:2])
            asked = replace(
                asked,
                a_strides=(K + pitch, 1) if layout[0] == "n" else (1, M + pitch),
                b_strides=(N + pitch, 1) if layout[1] == "n" else (1, K + pitch),
                c_strides=(1, M) if layout[2:] == "t" else (N, 1),
            )
            plan = frozenset((k, int(v)) for k, v in (x.split("=") for x in row["config"].split()))
            found[asked][row["kernel"], plan] = float(row["us"])
            if row["what"] == "before":
                before[asked] = float(row["us"])
    return found, before


def test_it_is_chosen_where_it_was_the_fastest(on_an_h200):
    """Beside all kernels and plans that were timed; what is chosen and was not is passed over."""
    found, before = timed_products()
    lost, large, slower, taken = [], [], [], []
    for asked, times in found.items():
        row = dispatch.choose(asked, "triton")
        us = times.get((row.name, frozenset(row.plan(asked).items())))
        if us is None:
            continue
        least = min(times.values())
        taken.append(row.name)
        lost.append((us + NOISE_US) / (least + NOISE_US))
        large += lost[-1:] if least > 1 else []
        if asked in before:
            slower.append((us + NOISE_US) / (before[asked] + NOISE_US))
    assert len(lost) > 150
    assert statistics.geometric_mean(lost) < 1.08
    assert statistics.geometric_mean(large) < 1.055
    assert max(large) < 1.55
    assert statistics.geometric_mean(slower) < 0.63
    assert max(slower) < 1.25
    assert 0.2 < taken.count("short_k") / len(taken) < 0.5


def test_of_16_bits_the_plans_of_thin_are_as_before(on_an_h200):
    """Constants of other types are not theirs."""
    row = dispatch.find("triton", "thin")
    of = {(1, 4096, 4096, "nt"): (2, 1024, 4), (3, 16, 4000, "nn"): (1, 4096, 4)}
    for (M, N, K, layout), (columns, depth, warps) in of.items():
        asked = Problem.stored(
            M, N, K, "bfloat16", "bfloat16", layout, device="cuda", capability=(9, 0)
        )
        plan = row.plan(asked)
        assert (plan["BLOCK_N"], plan["BLOCK_K"], plan["NUM_WARPS"]) == (columns, depth, warps)


def test_a_batch_and_what_is_fused_go_the_same_way(on_an_h200):
    for more in ({"batch": 50}, {"bias": True}, {"epilogue": "gelu", "batch": 3}):
        short = problem(1000, 1000, 3, **more)
        assert dispatch.choose(short, "triton").name == "short_k"
        assert dispatch.choose(replace(short, K=2048), "triton").name != "short_k"


def test_a_longer_product_takes_longer_by_the_model():
    for dtype, layout in itertools.product(("float32", "float64"), LAYOUTS):
        of = [
            planned.fastest(problem(4000, 1001, K, dtype, layout=layout), 132)[0]
            for K in (1, 9, 64)
        ]
        assert of == sorted(of)
        small = planned.fastest(problem(400, 1001, 9, dtype, layout=layout), 132)[0]
        assert small < of[1]


def plans_of(dtype):
    """Every tile that either kernel may take, of each way that operands lie: a request, and the
    elements of C that a thread stores at once."""
    found = {}
    compute = "float64" if dtype == "float64" else "tf32x3"
    types = {"dtype_in": dtype, "dtype_out": dtype, "compute": compute}
    ways = [(layout, 12) for layout in ("nn", "nt", "tn", "tt", "nnt")] + [("nn", 1), ("tt", 1)]
    for (layout, K), N in itertools.product(ways, (16, 31, 64, 1024, 1023)):
        asked = problem(1000, N, K, dtype, layout=layout[:2])
        if len(layout) == 3:
            asked = replace(asked, c_strides=(1, 1000)).transposed()
        vector = (4 if dtype == "float32" else 2) if planned.in_vectors(asked) else 1
        for config in planned.configs(asked):
            plan = {"SWAP": int(len(layout) == 3), **config, "PDL": 1}
            request = Request("short_k", plan, layout=layout, M=1000, N=N, K=K, **types)
            found[repr(request)] = request, vector
    for layout, (N, K) in itertools.product(LAYOUTS, ((64, 20000), (63, 20001), (4000, 5))):
        asked = problem(2, N, K, dtype, layout=layout)
        for config in thin_plan.configs(asked):
            if config["BLOCK_N"] in (1, 8, 32) or K == 5:
                plan = {"SWAP": 0, **config, "PDL": 1}
                request = Request("thin", plan, layout=layout, M=2, N=N, K=K, **types)
                found[repr(request)] = request, 1
    return list(found.values())


WORD_SPILLED = 16
"""Bytes a thread, at most, where B lies along K, and so each column has an address of its own."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_triton_makes_of_them(dtype):
    """No tensor core, next to nothing spilled, no barrier where nothing is exchanged; vectors where
    rows are whole."""
    requests, vectors = zip(*plans_of(dtype), strict=True)
    for request, vector, built in zip(requests, vectors, records.triton(requests), strict=True):
        counts, plan = built.counts, request.plan
        along_k = request.kernel == "short_k" and request.layout in ("nt", "tt", "nnt")
        assert built.spill_bytes <= (WORD_SPILLED if along_k else 0), request
        assert counts["LDL"] == counts["STL"] == int(built.spill_bytes > 0), request
        assert counts["HGMMA"] == counts["HMMA"] == counts["DMMA"] == 0
        assert counts["FFMA"] > 0 or dtype == "float64"
        if request.kernel == "short_k":
            assert counts["BAR"] == built.shared_bytes == 0, request
            assert built.registers <= rung.REGISTERS
            of_thread = plan["BLOCK_M"] * plan["BLOCK_N"] // (32 * plan["NUM_WARPS"])
            assert counts["STG"] == max(1, of_thread // vector), request


FEW_SPILLED = 64
"""Bytes a thread, where a C that is read waits beside the sums. A tile that does not fit spills
hundreds."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_fused_stays_in_registers(dtype):
    compute = "float64" if dtype == "float64" else "tf32x3"
    types = {"dtype_in": dtype, "dtype_out": dtype, "compute": compute}
    rows = planned.MOST_ROWS[8 if dtype == "float64" else 4][128]
    tile = {"BLOCK_M": rows, "BLOCK_N": planned.WIDE}
    asked = ({"epilogue": "gelu"}, {"bias": True, "c_in": True, "epilogue": "relu", "batch": 3})
    requests = [
        Request(
            "short_k",
            {"SWAP": int(len(layout) == 3), **tile, "BLOCK_K": 4, "PDL": 1, "NUM_WARPS": 8},
            layout=layout, M=1024, N=N, K=11, **types, **more,
        )
        for layout, N in (("nn", 1024), ("nn", 1023), ("nnt", 1024)) for more in asked
    ]  # fmt: skip
    for request, built in zip(requests, records.triton(requests), strict=True):
        assert built.spill_bytes <= FEW_SPILLED, request
        assert built.registers <= rung.REGISTERS
        if request.N % 4 == 0 and len(request.layout) == 2:
            assert built.counts["STG"] < rows * planned.WIDE // 256, "no vectors"
