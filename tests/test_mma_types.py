"""mma_types: tiles, edges, odd rows, conflicts, what is not finite, parts of K, and the choice."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from importlib import import_module

import mma_sync
import pytest
import records
import scripts_of
import torch
from mma_sync import COMPUTES, F32, LAYOUTS, ONE_ROW, whole_numbers
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.planning import mma_types_model as model
from tcgemm.cuda_ref.shapes import mma_types as rung

from tcgemm import accuracy, cuda_ref
from tcgemm.dispatch import choose, find
from tcgemm.problem import Fusion, Problem

simulator = import_module("tcgemm.cuda_ref.simulator")

TILES = list(model.STEPS["tf32"])


def stored(rows, columns, letter, dtype, odd, fill=torch.randn):
    """A matrix whose rows begin at multiples of 16 bytes, or one element off; NaN lies between."""
    return mma_sync.placed(rows, columns, letter, dtype, (odd, 0), fill)


def defines_of(tile):
    return mma_sync.defines_of(tile, model.Tile(*tile, False, False, False).stages)


def run(a, b, c, compute, tile=rung.DEFAULT, **more):
    return mma_sync.run("mma_types", a, b, c, compute, defines_of(tile), **more)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "x".join(map(str, tile)))
@pytest.mark.parametrize(("compute", "dtype"), COMPUTES)
def test_both_checks_at_the_edges(compute, dtype, tile):
    turn = TILES.index(tile)
    for number, (M, N, K) in enumerate([(1, 8, 8), (129, 17, 1), (64, 40, 200), (70, 131, 72)]):
        layout = LAYOUTS[(number + turn) % 4]
        for odd in (0, 1):
            for fill in (whole_numbers, torch.randn):
                a = stored(M, K, layout[0], dtype, odd, fill)
                b = stored(K, N, layout[1], dtype, odd, fill)
                c = accuracy.poisoned((M, N), dtype, "cpu")
                run(a, b, c, compute, tile)
                if fill is whole_numbers:
                    assert torch.equal(c, (a.double() @ b.double()).to(dtype)), (layout, M, N, K)
                else:
                    found = accuracy.error_ratio(a, b, c, Fusion(compute=compute))
                    assert found <= 1, (layout, M, N, K)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("compute", "dtype"), COMPUTES)
def test_nothing_is_found_in_any_order(compute, dtype, layout):
    for odd, order in ((0, "reverse"), (1, "random:5")):
        a, b = stored(71, 100, layout[0], dtype, odd), stored(100, 77, layout[1], dtype, 1 - odd)
        c = accuracy.poisoned((71, 77), dtype, "cpu")
        report = run(a, b, c, compute, order=order, check=True)
        assert report.ok, [str(finding) for finding in report.findings]
        assert accuracy.error_ratio(a, b, c, Fusion(compute=compute)) <= 1


@pytest.mark.parametrize(("compute", "dtype"), COMPUTES)
@pytest.mark.parametrize("sizes", ONE_ROW)
def test_no_address_of_a_single_row_with_an_odd_stride_is_off(compute, dtype, sizes):
    M, N, K = sizes
    for layout in LAYOUTS:
        a, b = stored(M, K, layout[0], dtype, 1), stored(K, N, layout[1], dtype, 1)
        c = accuracy.poisoned((M, N), dtype, "cpu")
        report = run(a, b, c, compute, check=True)
        assert report.ok, [str(finding) for finding in report.findings]


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "x".join(map(str, tile)))
def test_no_load_of_the_mainloop_meets_a_bank_conflict(tile):
    compute, dtype = COMPUTES[TILES.index(tile) % 2 + 1]
    for layout in LAYOUTS:

        def conflicts(K, layout=layout):
            a, b = stored(64, K, layout[0], dtype, 0), stored(K, 64, layout[1], dtype, 0)
            c = accuracy.poisoned((64, 64), dtype, "cpu")
            return run(a, b, c, compute, tile, count=True).counts.bank_conflicts

        # What the epilogue has does not grow with K.
        assert conflicts(64) == conflicts(192), layout


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_strides_of_which_none_is_1(layout):
    wide = torch.randint(-8, 9, (80, 2 * 50)).float()
    a, b = wide[::2, ::2], torch.randint(-8, 9, (150, 60)).float()[::3, ::2]
    if layout == "tt":
        a, b = b.mT, a.mT
    c = accuracy.poisoned((a.shape[0], b.shape[1]), F32, "cpu")
    cuda_ref.load("mma_types")(a, b, c, Fusion(compute="tf32x3"))
    assert torch.equal(c, a @ b)


@pytest.mark.parametrize("c_t", [False, True])
@pytest.mark.parametrize(("compute", "dtype"), COMPUTES)
def test_everything_fused_over_a_batch(compute, dtype, c_t):
    mma_sync.is_right_with_everything_fused(
        "mma_types", lambda: torch.stack([stored(24, 56, "n", dtype, 0) for _ in range(3)]),
        lambda: torch.stack([stored(56, 41, "t", dtype, 1) for _ in range(3)]), compute, dtype, c_t,
    )  # fmt: skip


QUIET, LOUD = 0x7FFFFFFF, 0x7F800001
"""Bits of NaNs: all of them, as a GPU's own, which rounding up carries into the sign; and the
lowest alone, which the tensor cores do not look at, so that tf32 has Inf for it in every rung."""


def number_of(bits):
    return torch.tensor(bits, dtype=torch.int32).view(F32)


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("compute", ["tf32", "tf32x3"])
def test_what_is_not_finite_stays_so(compute, layout):
    for where in "ab":
        nans = [number_of(QUIET), *([number_of(LOUD)] if compute == "tf32x3" else [])]
        for value in (torch.inf, -torch.inf, *nans):
            a, b = (stored(*of, F32, 0) for of in ((9, 70, layout[0]), (70, 11, layout[1])))
            (a if where == "a" else b)[5, 7] = value
            (b if where == "a" else a)[7 if where == "a" else 3, 5] = 2.0
            c = accuracy.poisoned((9, 11), F32, "cpu")
            run(a, b, c, compute)
            wanted = (a.double() @ b.double()).float()
            torch.testing.assert_close(c, wanted, rtol=1e-2, atol=0.1, equal_nan=True)
            assert torch.equal(c.isfinite(), wanted.isfinite())


def test_inf_times_inf_and_the_largest_numbers():
    large = float(number_of(0x7F7FF800))  # rounded to a tf32 number it would be Inf
    for infinite in (torch.inf, 1.0):
        a, b = torch.zeros(3, 8), torch.zeros(8, 3)
        a[0, 0], b[0, 0] = infinite, infinite
        a[1, 1], b[1, 1] = large, 1.0
        a[2, 2], b[2, 2] = 1.0, -large
        c = accuracy.poisoned((3, 3), F32, "cpu")
        run(a, b, c, "tf32x3")
        assert c.diagonal().tolist() == [infinite, large, -large]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("compute", "dtype"), COMPUTES)
def test_parts_of_k(compute, dtype, layout):
    M, N, K = 35, 70, 515
    for odd, parts, fused in ((0, 2, False), (1, 3, True), (1, 9, False)):
        a = stored(M, K, layout[0], dtype, odd, whole_numbers)
        b = stored(K, N, layout[1], dtype, odd, whole_numbers)
        more = {"alpha": 2.0, "bias": torch.arange(N).to(dtype)} if fused else {}
        c = accuracy.poisoned((M, N), dtype, "cpu")
        fusion = Fusion(compute=compute, **more)
        report = run(a, b, c, compute, plan={"SPLITS": parts}, fusion=fusion, check=True)
        assert report.ok, [str(finding) for finding in report.findings]
        wanted = a.double() @ b.double()
        wanted = 2 * wanted + more["bias"].double() if fused else wanted
        assert torch.equal(c, wanted.to(dtype))


def test_the_launcher_refuses_an_empty_part_and_a_tile_that_it_has_not():
    a, b, c = torch.ones(8, 64), torch.ones(64, 8), torch.zeros(8, 8)
    for plan in ({"SPLITS": 3}, {"BLOCK_M": 32, "BLOCK_N": 32}):
        with pytest.raises(simulator.SimulationError, match="the launcher refuses it"):
            run(a, b, c, "tf32", plan=plan)


def problem(M, N, K, dtype="float32", compute="tf32x3", layout="nn", **more):
    more = {"capability": (9, 0), **more}
    return Problem.stored(M, N, K, dtype, dtype, layout, compute=compute, **more)


@pytest.mark.parametrize(("compute", "dtype"), [("tf32", "float32"), ("float64", "float64")])
def test_rows_that_are_no_vectors_are_known(compute, dtype):
    def known(M, N, K, layout, **more):
        return rung.by_elements(problem(M, N, K, dtype, compute, layout, **more))

    assert known(64, 128, 256, "nn") == (False, False, False)
    assert known(64, 128, 255, "nn") == (True, False, False)
    assert known(64, 129, 256, "nn") == (False, True, True)
    assert known(64, 128, 255, "tn") == (False, False, False)
    assert known(63, 128, 256, "tn") == (True, False, False)
    assert known(64, 128, 255, "nt") == (True, True, False)
    # A column is computed as a row of C': A and B change places.
    assert known(64, 1, 255, "nn")[:2] == (False, True)
    assert known(64, 1, 256, "nt") == (False, False, False)


def test_small_products_of_any_layout_are_given_to_it_and_large_ones_are_not():
    def taken(*sizes, **more):
        return choose(problem(*sizes, **more), "cuda").name

    float64 = {"dtype": "float64", "compute": "float64"}
    for more in ({}, {"compute": "tf32"}, float64):
        assert taken(16, 4096, 4096, **more) == "mma_types"
        assert taken(100, 100, 100, **more) == "mma_types"
        assert taken(4096, 33, 115, layout="tn", **more) == "mma_types"
        assert taken(8192, 8192, 8192, **more) != "mma_types"
    assert taken(64, 4096, 14336, layout="nt") == "wgmma_types"
    assert taken(2711, 350, 2035, layout="tn", **float64) == "mma_types"
    assert taken(4096, 4096, 4096, **float64) == "mma_float64"


def test_plans_are_of_tiles_that_there_are_and_leave_no_part_empty():
    for compute, dtype in (("tf32", "float32"), ("tf32x3", "float32"), ("float64", "float64")):
        for sizes in ((1, 4096, 9001), (128, 128, 16384), (4096, 32, 4096), (7, 7, 7)):
            plan = find("cuda", "mma_types").plan(problem(*sizes, dtype, compute))
            assert (plan["BLOCK_M"], plan["BLOCK_N"]) in TILES
            steps = -(-sizes[2] // plan["BLOCK_K"])
            parts = plan.get("SPLITS", 1)
            assert (parts - 1) * -(-steps // parts) < steps
    assert find("cuda", "mma_types").plan(problem(128, 128, 16384))["SPLITS"] > 8
    batched = problem(128, 128, 16384, batch=4)
    assert "SPLITS" not in find("cuda", "mma_types").plan(batched)
    simulated = problem(16, 4096, 4096, device="cpu")
    plan = find("cuda", "mma_types").plan(simulated)
    assert (plan["BLOCK_M"], plan["BLOCK_N"]) == rung.DEFAULT


def test_the_bound_of_memory_is_read_once_a_choice(monkeypatch):
    for name, dtype, compute in (
        ("shapes.mma_types", "float32", "tf32"),
        ("planning.wgmma_types_model", "float32", "tf32"),
        ("shapes.mma_float64", "float64", "float64"),
    ):
        module, asked = import_module(f"tcgemm.cuda_ref.{name}"), []
        name = name.partition(".")[2].removesuffix("_model")
        monkeypatch.setattr(module, "room", lambda asked=asked: asked.append(0) or 2**30)
        # Of a size that no other test asks about.
        assert find("cuda", name).plan(problem(112, 176, 16352, dtype, compute))["SPLITS"] > 1
        assert len(asked) == 1, name


def test_a_ring_has_room_in_an_sm_as_often_as_its_memory_allows():
    def residents(capability):
        tiles = [model.Tile(*tile, False, False, False) for tile in TILES]
        return {(t.block_m, t.block_n): t.resident(capability) for t in tiles}

    hopper = {(16, 64): 4, (64, 16): 4, (32, 32): 4, (64, 64): 3, (128, 64): 2}
    assert residents((9, 0)) == hopper
    assert residents((8, 0)) == {**hopper, (16, 64): 3, (64, 16): 3, (64, 64): 2}
    small = dict.fromkeys(TILES, 1) | {(32, 32): 2}
    for capability in ((8, 6), (8, 9), (12, 0)):
        assert residents(capability) == small
        asked = problem(4096, 4096, 1024, capability=capability)
        us = [
            model.us(
                "tf32x3", rung.sizes(asked), model.Tile(*rung.DEFAULT, *3 * [False]), 1, 132, c
            )
            for c in (capability, (9, 0))
        ]
        assert us[0] > 1.1 * us[1]
        assert rung.cost(asked, 132) > rung.cost(replace(asked, capability=(9, 0)), 132)


def test_a_k_that_its_launcher_does_not_count_is_refused():
    most = 8 * (2**31 - 17)
    for dtype, compute in (("float32", "tf32"), ("float64", "float64")):
        why_not = find("cuda", "mma_types").why_not
        assert why_not(problem(16, 16, most, dtype, compute)) is None
        reason = why_not(problem(16, 16, most + 1, dtype, compute))
        assert f"K={most + 1} and mma_types counts to {most}" in reason


def test_the_choice_loses_little_to_the_fastest_plans_and_rungs_that_were_timed():
    fit = scripts_of.script("fit_mma_types")
    of = fit.rows()
    for lost, mean, most in (
        (fit.lost_by_plans(of), 1.03, 1.45),
        (fit.lost_by_rungs(of), 1.01, 1.3),
    ):
        assert {*lost} == {compute for compute, _ in COMPUTES}
        for each in lost.values():
            assert len(each) > 80
            assert math.exp(sum(each) / len(each)) < mean
            assert math.exp(max(each)) < most
    # What is said holds of the plans that were timed, and few that are taken were not.
    assert len(fit.never_timed(of)) < 0.15 * sum(map(len, fit.lost_by_plans(of).values()))


def test_a_row_that_is_faster_than_can_be_is_fitted_nowhere():
    fit = scripts_of.script("fit_mma_types")
    (impossible,) = (row for row in fit.all_rows() if row.us < fit.least_us(row))
    of = fit.rows()
    assert len(of) == len(fit.all_rows()) - 1
    assert impossible not in of
    # 7 steps of a tile of 64 x 64 take an SM half a microsecond at its peak.
    assert impossible.us < 1 < fit.least_us(impossible) < 1.3
    # The fastest of the others come as near to the peaks of an H200 as kernels come.
    assert 1.05 < min(row.us / fit.least_us(row) for row in of) < 1.2


needs_nvcc = pytest.mark.skipif(toolchain.find_nvcc() is None, reason="needs nvcc")


@cache
def compiled(compute, tile, target, divides=1):
    number = {"float64": 4, "tf32": 6, "tf32x3": 7}[compute]
    case = (f"-DTCGEMM_COMPUTE={number}", f"-DTCGEMM_DIVIDES={divides}")
    return records.cuda("mma_types", target, (*case, *defines_of(tile)))


@needs_nvcc
@pytest.mark.parametrize("tile", [(16, 64), (64, 64)], ids=str)
@pytest.mark.parametrize("compute", ["tf32", "tf32x3", "float64"])
def test_what_nvcc_makes_of_it(compute, tile):
    report = compiled(compute, tile, "sm_90a")
    kernels = [kernel for kernel in report.kernels if "add_partials" not in kernel.symbol]
    assert len(kernels) == 4, "one for each layout"
    along_m, along_n = (max(1, size // (4 if tile[0] == 16 else 2) // 16) for size in tile)
    parts, terms = (1 if tile[0] == 16 else along_m) * along_n, 3 if compute == "tf32x3" else 1
    unrolled = 2 if compute != "tf32" and tile == (64, 64) else 2 if compute == "float64" else 4
    for kernel in kernels:
        if compute == "float64":
            assert kernel.sass["DMMA"] == 2 * parts * unrolled
            continue
        # A step along K that is careful is compiled besides, and not unrolled.
        assert kernel.sass["HMMA"] == 2 * parts * terms * (unrolled + 1)


@needs_nvcc
def test_tf32x3_spills_little_in_the_largest_tile_and_only_where_a_and_b_lie_along_k():
    kernels = compiled("tf32x3", (128, 64), "sm_90a", divides=0).kernels
    assert len(kernels) == 8, "one for each layout, plain and with an epilogue"
    for kernel in kernels:
        # What is stored and what is loaded: up to 32 and up to 72 bytes.
        assert kernel.spill_bytes <= (104 if "Lb0ELb1E" in kernel.symbol else 0), kernel.symbol
