"""warp_specialized with a float32 operand as it lies: threads read it, and wgmma has it in
registers."""

from __future__ import annotations

import csv
import itertools
import statistics
from collections import defaultdict
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import records
import torch
from conftest import DEVICE
from test_unaligned_rows import memory_of, padded
from triton_requests import LIMITS

from tcgemm import dispatch
from tcgemm.gpus import find
from tcgemm.problem import Fusion, Problem
from tcgemm.request import planning_for

ROOT = Path(__file__).parents[1]
across_k = import_module("tcgemm.triton_kernels.device.across_k")
across_tiles = import_module("tcgemm.triton_kernels.rungs.across_tiles")
compile_only = import_module("tcgemm.triton_kernels.inspection.compile_only")
gluon_launch = import_module("tcgemm.triton_kernels.host.gluon_launch")
plans = import_module("tcgemm.triton_kernels.by_name")
repack = import_module("tcgemm.triton_kernels.host.repack")
tables = import_module("tcgemm.triton_kernels.planning.tables")
type_times = import_module("tcgemm.triton_kernels.rungs.type_times")

NAME = "warp_specialized"
SMS = 132
COMPUTES = ("tf32", "tf32x3")


def problem_of(compute, M, N, K, layout="nn", **changes):
    asked = Problem.stored(
        M, N, K, "float32", "float32", layout, capability=(9, 0), compute=compute
    )  # fmt: skip
    return replace(asked, **changes)


def tiles_of(compute):
    return [row["config"] for row in tables.shipped_rows("sm90", NAME, compute)]


def fitted(compute, config):
    return plans.fit(NAME, config, "float32", LIMITS[9, 0], "float32", compute)


# Which thread reads what.


class Block:
    """What a kernel sees of shared memory, with its elements in a tensor of torch."""

    def __init__(self, elements):
        self.elements, self.shape = elements, elements.shape

    def permute(self, order):
        return Block(self.elements.permute(order))

    def load(self, layout):
        return self.elements


@pytest.mark.parametrize("depth", [32, 64])
def test_rows_go_to_wgmma_and_back(depth, monkeypatch):
    """By the kernel's own functions, of tensors of torch."""
    by_torch = SimpleNamespace(
        reshape=torch.reshape,
        permute=torch.permute,
        convert_layout=lambda x, layout: x,
        static_assert=lambda holds: None,
        DotOperandLayout=lambda *of: None,
        DistributedLinearLayout=lambda **of: None,
    )
    monkeypatch.setattr(across_k, "gl", by_torch)
    config = SimpleNamespace(A_TRANSPOSED=True)
    stored = torch.arange(depth * 64).reshape(depth, 64)
    first = across_k.operand_of.fn(Block(stored), None, config)
    assert torch.equal(across_k.in_order.fn(first, config), stored.mT)
    # Rows t / 4 and t / 4 + 8 of wgmma are neighbours in memory.
    assert all(first[row + 8, 0] == first[row, 0] + 1 for row in (*range(8), *range(16, 24)))
    lying = SimpleNamespace(A_TRANSPOSED=False)
    first = across_k.operand_of.fn(Block(stored.mT), None, lying)
    assert torch.equal(across_k.in_order.fn(first, lying), stored.mT)


@pytest.mark.parametrize("depth", [32, 64])
def test_half_of_a_warp_reads_all_banks_once(depth):
    layout = across_k.lies(depth)
    layout = getattr(layout, "value", layout)
    (low, _), columns = layout.reg_bases[0], layout.reg_bases[1:]
    assert low == 1, "two rows are one vector"
    assert [column for _, column in columns] == [4 << bit for bit in range(len(columns))]
    for column, half in itertools.product((0, 4, 12), (0, 16)):
        banks = set()
        for lane in range(half, half + 16):
            bases = [base for bit, base in enumerate(layout.lane_bases) if lane >> bit & 1]
            row, k = sum(base[0] for base in bases), column + sum(base[1] for base in bases)
            unit = (row % 32 // 4) ^ (k % 8)  # swizzled by 128 bytes
            banks |= {4 * unit + row % 4, 4 * unit + row % 4 + 1}
        assert banks == set(range(32))


# What the compiler makes of it.


@cache
def requests():
    """Each tile whole, and with its K divided."""
    found = []
    for compute in COMPUTES:
        for tile in tiles_of(compute):
            for layout, swap, parts in (("nn", 1, 1), ("tt", 0, 3), ("nt", 0, 1)):
                if layout == "nt" and compute == "tf32":
                    continue
                given = {"SWAP": swap, "ACROSS": 1}
                if parts > 1:
                    given |= {"SPLITS": parts, "BUFFERS": 1, "NUM_STAGES": 10}
                plan = fitted(compute, {**tile, **given})
                found.append(
                    compile_only.Request(
                        NAME, plan, "float32", "float32", layout, M=512, N=384, K=8192,
                        compute=compute,
                    )
                )  # fmt: skip
    copied = {**tiles_of("tf32")[0], "SWAP": 0, "ACROSS": 1, "REPACK": 1}
    found.append(compile_only.Request(NAME, copied, "float32", "float32", "tn", compute="tf32"))
    return found


@pytest.mark.parametrize("compute", COMPUTES)
def test_operands_in_registers_stay_there(compute):
    """Nothing is spilled, no product waits for another, and a block is read once for each step, by
    vectors: what is exchanged among threads would be read twice."""
    mine = [request for request in requests() if request.compute == compute]
    for request, built in zip(mine, records.triton(mine), strict=True):
        plan = request.plan
        consumers, depth = plan["CONSUMERS"], plan["BLOCK_K"]
        assert (built.spill_bytes, built.serialized) == (0, False), built.log
        assert "C7508" not in built.log, "registers are not moved to the consumers"
        # Code for the last step, and for all before it.
        products = 3 if compute == "tf32x3" else 1
        assert built.counts["HGMMA"] == 2 * products * consumers * depth // 8
        along = request.layout == "nt"
        assert built.counts["LDSM"] == (2 * consumers * depth // 8 if along else 0)
        assert built.counts["LDS"] == 1 + (0 if along else 2 * consumers * depth // 4)
        divided = plan.get("SPLITS", 1) > 1
        stored = plan["BLOCK_M"] * plan["BLOCK_N"] // 2 // 128 if divided else 0
        assert built.counts["STG"] == stored
        assert built.counts["UTMASTG"] == (0 if divided else consumers * plan["SUBTILES"])
        bound = plans.shared_bytes(NAME, plan, "float32", "float32", compute)
        assert built.shared_bytes <= bound <= LIMITS[9, 0]


# What is launched.


def launch(compute, layout, plan, monkeypatch, size=(200, 300, 1000), fusion=None, c=None):
    """The arguments of the product, with the copies that the plan asks for."""
    monkeypatch.setattr(gluon_launch, "programs", lambda a: SMS)
    M, N, K = size
    a = torch.empty((M, K) if layout[0] == "n" else (K, M), device="meta")
    b = torch.empty((K, N) if layout[1] == "n" else (N, K), device="meta")
    a, b = a if layout[0] == "n" else a.mT, b if layout[1] == "n" else b.mT
    c = torch.empty(M, N, device="meta") if c is None else c
    copies, steps = repack.repack_for_wgmma(compute, plan), []
    if copies is not None and (room := copies.room(a, b)):
        a, b, steps = copies.steps(a, b, torch.empty(room, dtype=torch.uint8, device="meta"))
    fusion = Fusion(compute=compute) if fusion is None else fusion
    return steps, *gluon_launch.arguments(a, b, c, fusion, **plan)


ONE = {"tf32": 3, "tf32x3": 1}
"""The tile of each table that these tests take."""


@pytest.mark.parametrize(
    ("layout", "way", "copied"),
    [
        ("nn", {"SWAP": 1}, ""), ("tt", {"SWAP": 0}, ""),
        ("tn", {"SWAP": 1, "REPACK": 1}, "A"), ("tn", {"SWAP": 0, "REPACK": 1}, "B"),
    ],
)  # fmt: skip
def test_tf32_copies_at_most_the_other_operand(layout, way, copied, monkeypatch):
    plan = {**tiles_of("tf32")[ONE["tf32"]], "ACROSS": 1, **way}
    steps, grid, args, constants = launch("tf32", layout, plan, monkeypatch)
    config = constants["CONFIG"]
    assert (config.ACROSS, config.A_TRANSPOSED, config.B_TRANSPOSED) == (True, True, True)
    assert (config.TERMS, config.A_TERMS, config.PROMOTE) == (1, 1, False)
    assert config.C_TRANSPOSED is bool(way["SWAP"])
    down, across = (300, 200) if way["SWAP"] else (200, 300)
    assert grid == (-(-down // plan["BLOCK_M"]) * -(-across // plan["BLOCK_N"]),)
    # As it lies: rows of K.
    assert (args[0].shape, list(args[0].block_shape)) == ([1000, down], [32, 64])
    assert (args[1].shape, list(args[1].block_shape)) == ([across, 1000], [plan["BLOCK_N"], 32])
    assert len(steps) == len(copied)
    if copied:
        assert steps[0][2][6] is None, "one operand"
        assert steps[0][2][2] == (200 if copied == "A" else 300)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("swap", [0, 1])
def test_tf32x3_copies_the_terms_of_the_other_operand(layout, swap, monkeypatch):
    plan = {**tiles_of("tf32x3")[ONE["tf32x3"]], "ACROSS": 1, "SWAP": swap}
    steps, _, args, constants = launch("tf32x3", layout, plan, monkeypatch)
    config = constants["CONFIG"]
    assert (config.TERMS, config.A_TERMS, config.PROMOTE) == (2, 1, True)
    first = layout[1] == "n" if swap else layout[0] == "t"
    assert config.A_TRANSPOSED is first
    down, across = (300, 200) if swap else (200, 300)
    assert args[0].shape == ([1000, down] if first else [down, 1000])
    assert (args[1].shape, args[1].block_shape[0]) == ([2, across, 1000], 1)
    assert len(steps) == 1
    assert steps[0][2][6] is None, "one operand"
    assert steps[0][2][2] == across


def test_parts_of_k_need_no_transposed_store(monkeypatch):
    plan = {**tiles_of("tf32")[ONE["tf32"]], "ACROSS": 1, "SWAP": 1, "SPLITS": 3}
    odd = torch.empty(200, 301, device="meta")[:, :300]
    _, grid, args, constants = launch("tf32", "nn", plan, monkeypatch, c=odd)
    config = constants["CONFIG"]
    assert (config.IN_PARTS, config.C_TRANSPOSED) == (True, False)
    assert grid == (3 * -(-300 // plan["BLOCK_M"]) * -(-200 // plan["BLOCK_N"]),)
    _, _, then, _ = gluon_launch.second(None, None, odd, args, plan)
    assert then[0] is args[-2]


@pytest.mark.parametrize(
    ("compute", "layout", "change", "why"),
    [
        ("tf32", "nt", {"SWAP": 0}, "for an operand across K, and A lies along it"),
        ("tf32", "nt", {"SWAP": 1}, "for an operand across K, and B lies along it"),
        ("tf32", "nn", {"SWAP": 0}, "for an operand across K, and A lies along it"),
        ("tf32", "tn", {"SWAP": 1}, "ACROSS=1 needs a copy of A: REPACK=1 makes it"),
        ("tf32", "tn", {"SWAP": 0}, "ACROSS=1 needs a copy of B: REPACK=1 makes it"),
        ("tf32", "nn", {}, "ACROSS=1 needs a SWAP"),
        ("tf32", "nn", {"SWAP": 1, "CONSUMERS": 1}, "64 rows a consumer, and here each has 128"),
        ("ieee", "nn", {"SWAP": 1}, "for float32 in tf32 and tf32x3, not for torch.float32 in i"),
    ],
)
def test_what_threads_cannot_read_so_is_refused(compute, layout, change, why, monkeypatch):
    plan = {**tiles_of("tf32")[ONE["tf32"]], "ACROSS": 1, **change}
    with pytest.raises(ValueError, match=why):
        launch(compute, layout, plan, monkeypatch)


def test_what_is_fused_and_batches_are_refused(monkeypatch):
    plan = {**tiles_of("tf32")[ONE["tf32"]], "ACROSS": 1, "SWAP": 1}
    bias = Fusion(compute="tf32", bias=torch.empty(300, device="meta"))
    with pytest.raises(ValueError, match="of two matrices, not for what is fused"):
        launch("tf32", "nn", plan, monkeypatch, fusion=bias)
    batch = torch.empty(2, 64, 64, device="meta")
    with pytest.raises(ValueError, match="of two matrices, not for a batch"):
        gluon_launch.arguments(batch, batch, batch, Fusion(compute="tf32"), **plan)
    terms = torch.empty(2, 200, 64, device="meta"), torch.empty(2, 64, 300, device="meta")
    plan = {**tiles_of("tf32x3")[ONE["tf32x3"]], "ACROSS": 1, "SWAP": 1}
    c = torch.empty(200, 300, device="meta")
    with pytest.raises(ValueError, match="ACROSS=1 multiplies B as it lies, and here it is a copy"):
        gluon_launch.arguments(*terms, c, Fusion(compute="tf32x3"), **plan)


def test_float32_is_stored_transposed_where_tma_can(monkeypatch):
    plan = {**tiles_of("tf32")[ONE["tf32"]], "SWAP": 1}
    for by_columns, swap in ((False, 1), (True, 0)):
        c = torch.empty((300, 200) if by_columns else (200, 300), device="meta")
        given = {**plan, "SWAP": swap}
        c = c.mT if by_columns else c
        _, _, args, constants = launch("tf32", "nt", given, monkeypatch, c=c)
        assert constants["CONFIG"].C_TRANSPOSED
        assert list(args[4].block_shape) == [64, 64]
    odd = torch.empty(200, 304, device="meta")[:, :301]
    with pytest.raises(ValueError, match="needs a C that TMA stores, and it has rows of 301"):
        launch("tf32", "nt", plan, monkeypatch, size=(200, 301, 1000), c=odd)
    bias = Fusion(compute="tf32", bias=torch.empty(300, device="meta"))
    with pytest.raises(ValueError, match="plain products with a C of 16 bits or of float32"):
        launch("tf32", "nt", plan, monkeypatch, fusion=bias)


# What is planned.


@pytest.fixture
def h100():
    with planning_for(find("h100")):
        yield


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("size", [(256, 6144, 4096), (4096, 4096, 4096), (100, 60, 20000)])
def test_the_operand_across_k_is_the_first(compute, size, h100):
    for layout in ("nn", "nt", "tn", "tt"):
        problem = problem_of(compute, *size, layout)
        plan = dispatch.find("triton", NAME).plan(problem)
        if layout == "nt" and compute == "tf32":
            assert not {"ACROSS", "REPACK"} & set(plan)
            continue
        if (layout, compute) == ("nt", "tf32x3") and size == (4096, 4096, 4096):
            assert "ACROSS" not in plan, "a large product multiplies faster by copies"
            continue
        assert plan["ACROSS"] == 1
        if compute == "tf32":
            assert plan["SWAP"] == {"nn": 1, "tt": 0}.get(layout, plan["SWAP"])
            assert plan.get("REPACK", 0) == (layout == "tn")
        copied = type_times.copied_bytes(NAME, problem, plan)
        # Where both ways are open the smaller operand is copied, here the kernel's B.
        if size == (256, 6144, 4096) and (compute == "tf32x3" or layout == "tn"):
            assert (plan["SWAP"], copied[1]) == (1, 0)


def test_copied_bytes_are_those_of_the_copies_that_are_made():
    """Read, and written: once, or as two terms."""
    of_a, of_b = 64 * 1000 * 4, 320 * 1000 * 4
    for compute, layout, way, wanted in (
        ("tf32", "nn", {"SWAP": 1}, (0, 0)),
        ("tf32", "tn", {"SWAP": 1, "REPACK": 1}, (2 * of_a, 0)),
        ("tf32", "tn", {"SWAP": 0, "REPACK": 1}, (0, 2 * of_b)),
        ("tf32x3", "nt", {"SWAP": 0}, (0, 3 * of_b)),
        ("tf32x3", "nt", {"SWAP": 1}, (3 * of_a, 0)),
    ):
        problem = problem_of(compute, 64, 320, 1000, layout)
        tile = tiles_of(compute)[ONE[compute]]
        plan = {**tile, "ACROSS": 1, **way}
        assert type_times.copied_bytes(NAME, problem, plan) == wanted
        a = torch.empty(64, 1000, device="meta")
        b = torch.empty(1000, 320, device="meta")
        a = a if layout[0] == "n" else torch.empty(1000, 64, device="meta").mT
        b = b if layout[1] == "n" else torch.empty(320, 1000, device="meta").mT
        copies = repack.repack_for_wgmma(compute, plan)
        written = 0 if copies is None else copies.room(a, b)
        read = 0 if not any(wanted) else of_a if wanted[0] else of_b
        assert written + read == sum(wanted)


def test_a_plan_without_the_word_says_what_it_said():
    """Tables of before have REPACK, which copies A and B."""
    problem = problem_of("tf32", 64, 300, 1000, "tn")
    tile = tiles_of("tf32")[ONE["tf32"]]
    copied = type_times.copied_bytes(NAME, problem, {**tile, "REPACK": 1})
    assert copied == (2 * 64 * 1000 * 4, 2 * 300 * 1000 * 4)
    for compute in COMPUTES:
        fused = problem_of(compute, 256, 6144, 4096, "nn", bias=True)
        plan = dispatch.find("triton", NAME).plan(fused)
        assert "ACROSS" not in plan
        assert plan.get("REPACK", 0) == (compute == "tf32")


def test_columns_of_c_exchange_what_is_first(h100):
    for compute, layout in itertools.product(COMPUTES, ("nn", "tt", "tn")):
        problem = problem_of(compute, 256, 6144, 4096, layout, c_strides=(1, 256))
        plan, mirrored = map(dispatch.find("triton", NAME).plan, (problem, problem.transposed()))
        assert plan["ACROSS"] == 1
        assert plan == {**mirrored, "SWAP": 1 - mirrored["SWAP"]}


def test_a_block_of_one_term_leaves_room_for_stages():
    plan = {**tiles_of("tf32x3")[0], "NUM_STAGES": 10, "SWAP": 0}
    alone = fitted("tf32x3", {**plan, "ACROSS": 1})["NUM_STAGES"]
    assert alone > fitted("tf32x3", plan)["NUM_STAGES"]


# What it gives.


def cases(compute):
    """(layout, plan) of each way and tile, whole and divided."""
    for layout in ("nn", "nt", "tn", "tt"):
        for way in across_tiles.ways(problem_of(compute, 300, 516, 1000, layout)):
            for tile in tiles_of(compute):
                yield layout, fitted(compute, {**tile, **way})
                split = {"SPLITS": 3, "BUFFERS": 1, "NUM_STAGES": 10}
                yield layout, fitted(compute, {**tile, **way, **split})


SIZES = ((300, 516, 1000), (64, 36, 391), (4, 132, 1311), (132, 260, 196), (1024, 512, 1023))


def operands(layout, M, N, K, integers):
    def made(rows, columns):
        if integers:
            return torch.randint(-8, 9, (rows, columns), device=DEVICE).float()
        return torch.randn(rows, columns, device=DEVICE)

    a, b = made(M, K), made(K, N)
    a = padded(a.mT).mT if layout[0] == "t" else padded(a)
    b = padded(b.mT).mT if layout[1] == "t" else padded(b)
    return a, b


@pytest.mark.gpu
@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("by_columns", [False, True])
def test_products_are_right_and_nothing_beside_them_is_written(compute, size, by_columns):
    """Whole numbers to the bit, others within a bound of float64; twice the same."""
    M, N, K = size
    run = dispatch.load("triton", NAME)
    pitch = -(-(M if by_columns else N) // 4) * 4 + 4
    for layout, plan in cases(compute):
        for integers in (True, False):
            a, b = operands(layout, M, N, K, integers)
            exact = a.double() @ b.double()
            found = []
            for _ in range(2):
                around, c = memory_of(M, N, torch.float32, by_columns, pitch, 4)
                run(a, b, c, Fusion(compute=compute), **plan)
                assert int((~around.isnan()).sum()) == M * N, (layout, plan)
                found.append(c)
            assert torch.equal(*found), (layout, plan)
            if integers:
                assert torch.equal(c, exact.float()), (layout, plan)
                continue
            unit = 2**-10 if compute == "tf32" else 2**-20
            slack = (unit + K**0.5 * 2.0**-22) * (a.double().abs() @ b.double().abs())
            assert ((c.double() - exact).abs() <= slack).all(), (layout, plan)


@pytest.mark.gpu
@pytest.mark.parametrize("compute", COMPUTES)
def test_inf_and_nan_stay_where_they_belong(compute):
    """A NaN whose upper bits are zero is NaN too, and Inf of either sign keeps it."""
    run = dispatch.load("triton", NAME)
    odd = torch.tensor(
        [0x7F800000, -0x800000, 0x7F800001, 0x7FC00000], dtype=torch.int32, device=DEVICE
    ).view(torch.float32)
    for layout, plan in cases(compute):
        a, b = operands(layout, 68, 132, 200, False)
        if compute == "tf32x3":
            a[40, 100], a[3, 199], a[65, 7], b[100, 5] = odd[0], odd[1], odd[2], odd[0]
        a[20, 50], b[30, 131] = odd[3], odd[1]
        c = torch.full((68, 132), 7.0, device=DEVICE)
        run(a, b, c, Fusion(compute=compute), **plan)
        exact = a.double() @ b.double()
        assert torch.equal(c.isnan(), exact.isnan()), (layout, plan)
        assert torch.equal(c == torch.inf, exact == torch.inf), (layout, plan)
        assert torch.equal(c == -torch.inf, exact == -torch.inf), (layout, plan)


def test_of_plans_that_were_timed_the_one_taken_is_nearly_the_fastest():
    """Of reports/nvidia-h200/trials/across_k_triton.csv: with copies and without."""
    timed = defaultdict(dict)
    with (ROOT / "reports/nvidia-h200/trials/across_k_triton.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            kind, *settings = row["what"].split()
            if kind in ("today", "across"):
                plan = {name: int(x) for name, x in (each.split("=") for each in settings)}
                what = tuple(row[name] for name in ("compute", "layout", *"MNK"))
                timed[what][row["what"]] = plan, float(row["us"])
    lost = defaultdict(list)
    for (compute, layout, *sizes), found in timed.items():
        asked = Problem.stored(
            *map(int, sizes), "float32", "float32", layout, compute=compute, capability=(9, 0)
        )

        def modelled(of, asked=asked):
            plan, _ = of
            earned = 1 + type_times.EARNED * ("SPLITS" in plan)
            return earned * type_times.us("warp_specialized", asked, plan, 132)

        lost[compute].append(
            min(found.values(), key=modelled)[1] / min(us for _, us in found.values())
        )
    assert {compute: len(each) > 40 for compute, each in lost.items()} == {
        "tf32": True,
        "tf32x3": True,
    }
    assert statistics.geometric_mean(lost["tf32"]) < 1.03
    assert statistics.geometric_mean(lost["tf32x3"]) < 1.018
    assert max(map(max, lost.values())) < 1.3
