"""float32 in rows that begin anywhere, in Triton: what skinny and fused compute and compile."""

from __future__ import annotations

import itertools
import math
import re
from importlib import import_module

import pytest
import torch
from conftest import DEVICE

import tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.problem import LAYOUTS, Fusion, Problem

compile_only = import_module("tcgemm.triton_kernels.inspection.compile_only")
flat_block = import_module("tcgemm.triton_kernels.device.flat_block")

PLANS = {
    "skinny": {"SWAP": 0, "SPLITS": 3, "PDL": 0},
    "fused": {"GROUP_M": 4},
}
TILE = {"BLOCK_M": 64, "BLOCK_N": 16, "BLOCK_K": 32, "NUM_STAGES": 2, "NUM_WARPS": 4}


def among_nan(rows, columns, letter, gap=0, before=0):
    """A matrix of small whole numbers, its rows so many elements apart, and NaN where it is not."""
    height, width = (rows, columns) if letter == "n" else (columns, rows)
    room = torch.full((before + height * (width + gap) + 16,), math.nan, device=DEVICE)
    view = room.as_strided((height, width), (width + gap, 1), before)
    view.copy_(torch.randint(-8, 9, (height, width)))
    return view if letter == "n" else view.mT


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", ["skinny", "fused"])
@pytest.mark.parametrize(("gap", "before"), [(0, 0), (3, 1)])
def test_whole_numbers_are_exact_wherever_rows_begin(kernel, layout, gap, before):
    for compute, swap in itertools.product(("tf32x3", "tf32"), (0, 1)):
        a = among_nan(67, 99, layout[0], gap, before)
        b = among_nan(99, 21, layout[1], gap, before)
        c = torch.full((67, 21), math.nan, device=DEVICE)
        plan = {**TILE, **PLANS[kernel], **({"SWAP": swap} if kernel == "skinny" else {})}
        dispatch.load("triton", kernel)(a, b, c, Fusion(compute=compute), **plan)
        assert torch.equal(c.double(), a.double() @ b.double()), (compute, swap)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compute", ["tf32x3", "tf32"])
def test_normal_numbers_are_within_the_bound(compute, layout):
    for kernel in PLANS:

        def run(a, b, c, kernel=kernel):
            dispatch.load("triton", kernel)(
                a, b, c, Fusion(compute=compute), **TILE, **PLANS[kernel]
            )

        verdict = accuracy.check(
            run, 67, 21, 99, torch.float32, torch.float32, layout, DEVICE, 3, compute
        )
        assert verdict.ok, (kernel, verdict.reason)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rounded_copies_have_a_k_of_whole_vectors(layout):
    """With zeros past K, whatever was in their memory, so that nothing but a row's NaN is NaN."""
    repack = import_module("tcgemm.triton_kernels.host.repack").Repack("tf32")
    a, b = among_nan(67, 99, layout[0], 3, 1), among_nan(99, 21, layout[1], 3, 1)
    a[5, 98] = math.nan
    room = torch.full((repack.room(a, b),), 0xFF, dtype=torch.uint8, device=DEVICE)
    of_a, of_b, steps = repack.steps(a, b, room)
    for kernel, grid, args, constants in steps:
        kernel[grid](*args, **constants)
    assert (of_a.shape, of_b.shape) == ((67, 112), (112, 21))
    assert (of_a.stride(), of_b.stride()) == ((112, 1), (1, 112))
    assert torch.equal(of_a[:, :99].nan_to_num(7), a.nan_to_num(7))
    assert torch.equal(of_b[:99], b)
    assert not of_a[:, 99:].any()
    assert not of_b[99:].any()
    c = torch.empty(67, 21, device=DEVICE)
    plan = {**TILE, **PLANS["fused"], "REPACK": 1}
    dispatch.load("triton", "fused")(a, b, c, Fusion(compute="tf32"), **plan)
    assert c.isnan().all(1).nonzero().flatten().tolist() == [5]
    exact = a.nan_to_num(0).double() @ b.double()
    rest = [row for row in range(67) if row != 5]
    assert torch.equal(c[rest].double(), exact[rest])


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_a_batch_with_all_that_follows_a_product(layout):
    a = among_nan(33, 45, layout[0])
    b = torch.stack([among_nan(45, 19, "n"), among_nan(45, 19, "n")])
    b = b if layout[1] == "n" else b.mT.contiguous().mT
    c, bias = torch.randn(2, 33, 19, device=DEVICE), torch.randn(19, device=DEVICE)
    got = tcgemm.gemm(
        a, b, c, alpha=0.5, beta=2.0, bias=bias, epilogue="relu", backend="triton", kernel="fused"
    )
    expected = (0.5 * (a.double() @ b.double()) + 2.0 * c.double() + bias.double()).relu()
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("strides", "begin", "unit", "compute", "flat"),
    [
        ((1, 99), 0, 4, "tf32x3", "K"),
        ((21, 1), 0, 4, "tf32", "N"),
        ((1, 100), 0, 4, "tf32x3", ""),
        ((1, 100), 0, 16, "tf32x3", "K"),  # of which fused's compiler does not hear
        ((24, 1), 0, 4, "tf32x3", ""),
        ((24, 1), 1, 4, "tf32x3", "N"),
        ((48, 2), 0, 4, "tf32", "N"),
        ((1, 99), 0, 4, "ieee", ""),
        ((1, 99), 0, 4, "rounded", ""),
    ],
)
def test_b_is_flat_where_its_elements_are_copied_one_by_one(strides, begin, unit, compute, flat):
    b = torch.zeros(5000)[begin:].as_strided((99, 21), strides)
    assert flat_block.flat(b, compute, unit) == flat


# What the compiler makes of it.

TILES = {
    "skinny": {"SWAP": 0, "BLOCK_M": 64, "SPLITS": 4, "PDL": 1, "NUM_STAGES": 4, "NUM_WARPS": 4},
    "fused": {"BLOCK_M": 64, "GROUP_M": 8, "NUM_STAGES": 3, "NUM_WARPS": 4},
}


def request(kernel, layout, compute, columns, depth, capability=(9, 0)):
    plan = {**TILES[kernel], "BLOCK_N": columns, "BLOCK_K": depth}
    return compile_only.Request(
        kernel, plan, "float32", "float32", layout, capability, 6001, 43, 3645, compute
    )


def places(built):
    """How blocks of A and of B lie in shared memory between global memory and registers."""
    text = built.assembly["ttgir"]
    named = dict(re.findall(r"^(#shared\d*) = (#ttg\.\w+<.*?>)$", text, re.M))
    copies = re.findall(r"async_copy_global_to_local .* -> <([\dx]+)xf32, (#shared\d*)", text)
    return {(size, named[name]) for size, name in copies}


def test_no_copied_block_lies_across_its_rows():
    """A block of B that is no dot operand has no swizzle: in two dimensions all of a warp's words
    would be in one bank."""
    asked = [
        request(kernel, layout, compute, columns, depth)
        for kernel, layout in itertools.product(TILES, LAYOUTS)
        for compute, columns, depth in (("tf32x3", 64, 32), ("tf32", 16, 64))
    ]
    for each, built in zip(asked, compile_only.compile_rungs(asked, assembly=True), strict=True):
        assert built.counts["LDGSTS"] > 0 == built.counts["LDG"], each
        assert (built.spill_bytes, built.serialized) == (0, False), each
        block = str(each.plan["BLOCK_N"] * each.plan["BLOCK_K"])
        found = places(built)
        assert block in {size for size, _ in found}, each
        for size, place in found:
            assert size == block or "vec = 1," not in place, (each, place)


@pytest.mark.parametrize("capability", [(8, 0), (12, 0)], ids=str)
def test_mma_sync_reads_b_as_it_did(capability):
    """B is a dot operand there, whose place is swizzled."""
    (built,) = compile_only.compile_rungs(
        [request("fused", "nt", "tf32", 64, 32, capability)], assembly=True
    )
    assert {size for size, _ in places(built)} == {"64x32", "32x64"}


def test_b_is_one_row_for_tcgen05_too():
    """It reads B from shared memory as wgmma does."""
    (built,) = compile_only.compile_rungs(
        [request("fused", "nt", "tf32", 64, 32, (10, 0))], assembly=True
    )
    assert "ttng.tc_gen5_mma " in built.assembly["ttgir"]
    assert "2048" in {size for size, _ in places(built)}


# What is chosen.


@pytest.mark.parametrize("compute", ["tf32x3", "tf32"])
def test_odd_rows_take_about_as_long_as_even_ones_by_the_model(compute):
    type_times = import_module("tcgemm.triton_kernels.rungs.type_times")
    for layout in LAYOUTS:
        us = []
        for size in ((6248, 43, 3645), (6248, 44, 3648)):
            problem = Problem.stored(
                *size, "float32", "float32", layout, capability=(9, 0), compute=compute
            )
            plan = dispatch.find("triton", "skinny").plan(problem)
            us.append(type_times.us("skinny", problem, plan, 132))
        assert us[0] < 1.2 * us[1], (layout, us)


def test_rounded_copies_are_no_odd_rows():
    """fused reads rounded copies of both operands in tf32."""
    type_times = import_module("tcgemm.triton_kernels.rungs.type_times")
    for compute, copied in (("tf32", True), ("tf32x3", False)):
        problem = Problem.stored(
            1003, 1001, 999, "float32", "float32", "nn", capability=(9, 0), compute=compute
        )
        assert type_times.one_by_one("fused", problem, {"REPACK": 1}) != copied
        assert type_times.one_by_one("fused", problem, {})
        assert type_times.one_by_one("skinny", problem, {})
        assert not type_times.one_by_one("warp_specialized", problem, {"REPACK": 1})
