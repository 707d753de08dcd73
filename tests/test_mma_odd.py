"""mma_odd: few rows or columns over a long K, whose long side begins anywhere."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from importlib import import_module

import mma_sync
import pytest
import records
import scripts_of
import torch
from mma_sync import COMPUTES, F32, F64, LAYOUTS, ONE_ROW, placed, whole_numbers
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.shapes import mma_odd as rung

from tcgemm import accuracy
from tcgemm.dispatch import choose, find
from tcgemm.problem import Fusion, Problem

simulator = import_module("tcgemm.cuda_ref.simulator")

TILES = [tile for long, few in rung.TILES[4] for tile in ((long, few), (few, long))]
PLACES = [(0, 0), (1, 0), (2, 3), (3, 1)]
"""Of mma_sync.placed."""


def defines_of(tile):
    return mma_sync.defines_of(tile, rung.stages(8 if max(tile) == 64 else 4))


def run(a, b, c, compute, tile=rung.DEFAULT, **more):
    return mma_sync.run("mma_odd", a, b, c, compute, defines_of(tile), **more)


@pytest.mark.spread(3, "compute", "tile")
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "x".join(map(str, tile)))
@pytest.mark.parametrize(("compute", "dtype"), COMPUTES)
def test_both_checks_wherever_rows_begin(compute, dtype, tile):
    for number, (M, N, K) in enumerate([(1, 8, 8), (129, 17, 1), (70, 131, 75), (130, 9, 200)]):
        for layout, place in itertools.product(LAYOUTS, PLACES):
            fill = whole_numbers if (number + place[0]) % 2 else torch.randn
            a = placed(M, K, layout[0], dtype, place, fill)
            b = placed(K, N, layout[1], dtype, place, fill)
            c = accuracy.poisoned((M, N), dtype, "cpu")
            run(a, b, c, compute, tile)
            if fill is whole_numbers:
                assert torch.equal(c, (a.double() @ b.double()).to(dtype)), (layout, place, M, N, K)
            else:
                found = accuracy.error_ratio(a, b, c, Fusion(compute=compute))
                assert found <= 1, (layout, place, M, N, K)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", [(128, 32), (32, 128)], ids=str)
def test_nothing_outside_is_read_and_nothing_races(tile, layout):
    for number, (place, order) in enumerate(itertools.product(PLACES, ("reverse", "random:5"))):
        compute, dtype = COMPUTES[number % 3]
        a = placed(71, 100, layout[0], dtype, place)
        b = placed(100, 77, layout[1], dtype, place)
        c = accuracy.poisoned((71, 77), dtype, "cpu")
        report = run(a, b, c, compute, tile, order=order, check=True)
        assert report.ok, [str(finding) for finding in report.findings]
        assert accuracy.error_ratio(a, b, c, Fusion(compute=compute)) <= 1


@pytest.mark.parametrize(("compute", "dtype"), COMPUTES)
@pytest.mark.parametrize("sizes", ONE_ROW)
def test_no_address_of_a_single_row_with_an_odd_stride_is_off(compute, dtype, sizes):
    M, N, K = sizes
    for layout, place in itertools.product(LAYOUTS, PLACES[1:]):
        a, b = placed(M, K, layout[0], dtype, place), placed(K, N, layout[1], dtype, place)
        c = accuracy.poisoned((M, N), dtype, "cpu")
        report = run(a, b, c, compute, check=True)
        assert report.ok, [str(finding) for finding in report.findings]


@pytest.mark.parametrize("tile", [(64, 32), (32, 64), (64, 16)], ids=str)
def test_no_load_meets_a_bank_conflict_but_of_shifted_rows(tile):
    """Odd rows of doubles along K meet in no bank either. Others do: two at once."""

    def conflicts(K, dtype, compute, layout, odd):
        a, b = (placed(*of, dtype, (odd, 0)) for of in ((128, K, layout[0]), (K, 128, layout[1])))
        c = accuracy.poisoned((128, 128), dtype, "cpu")
        return run(a, b, c, compute, tile, count=True).counts.bank_conflicts

    for compute, dtype in (COMPUTES[0], COMPUTES[2]):
        for layout in LAYOUTS:
            along_k = (layout[0] == "n") if tile[0] > tile[1] else (layout[1] == "t")
            for odd in (0, 1) if along_k and dtype == F64 else (0,):
                of = dtype, compute, layout, odd
                # What the epilogue has does not grow with K.
                assert conflicts(64, *of) == conflicts(192, *of), of


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("compute", ["tf32", "tf32x3"])
def test_what_is_not_finite_stays_so(compute, layout):
    for where, value in itertools.product("ab", (torch.inf, -torch.inf, torch.nan)):
        a, b = (placed(*of, F32, (1, 1)) for of in ((9, 70, layout[0]), (70, 11, layout[1])))
        (a if where == "a" else b)[5, 7] = value
        (b if where == "a" else a)[7 if where == "a" else 3, 5] = 2.0
        c = accuracy.poisoned((9, 11), F32, "cpu")
        run(a, b, c, compute)
        wanted = (a.double() @ b.double()).float()
        torch.testing.assert_close(c, wanted, rtol=1e-2, atol=0.1, equal_nan=True)
        assert torch.equal(c.isfinite(), wanted.isfinite())


@pytest.mark.parametrize("tile", [(128, 32), (32, 128)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("compute", "dtype"), COMPUTES)
def test_parts_of_k(compute, dtype, layout, tile):
    M, N, K = 35, 70, 515
    for place, parts, fused in ((PLACES[0], 2, False), (PLACES[1], 3, True), (PLACES[2], 9, False)):
        a, b = (
            placed(M, K, layout[0], dtype, place, whole_numbers),
            placed(K, N, layout[1], dtype, place, whole_numbers),
        )
        more = {"alpha": 2.0, "bias": torch.arange(N).to(dtype)} if fused else {}
        for transposed in (False, True):
            c = accuracy.poisoned((N, M) if transposed else (M, N), dtype, "cpu")
            c = c.mT if transposed else c
            fusion = Fusion(compute=compute, **more)
            report = run(a, b, c, compute, tile, plan={"SPLITS": parts}, fusion=fusion, check=True)
            assert report.ok, [str(finding) for finding in report.findings]
            wanted = a.double() @ b.double()
            wanted = 2 * wanted + more["bias"].double() if fused else wanted
            assert torch.equal(c, wanted.to(dtype))


@pytest.mark.parametrize("c_t", [False, True])
@pytest.mark.parametrize(("compute", "dtype"), COMPUTES)
def test_everything_fused_over_a_batch(compute, dtype, c_t):
    mma_sync.is_right_with_everything_fused(
        "mma_odd", lambda: torch.randn(3, 24, 57).to(dtype),
        lambda: torch.randn(3, 41, 57).to(dtype).mT, compute, dtype, c_t,
    )  # fmt: skip


def problem(M, N, K, dtype="float64", compute="float64", layout="nn", **more):
    more = {"capability": (9, 0), **more}
    return Problem.stored(M, N, K, dtype, dtype, layout, compute=compute, **more)


def test_a_long_side_without_neighbours_is_refused_and_named():
    why_not = find("cuda", "mma_odd").why_not
    asked = problem(3000, 20, 1001)
    assert why_not(asked) is None
    spread = replace(asked, a_strides=(2002, 2))
    assert "A has strides (2002, 2)" in why_not(spread)
    assert why_not(replace(asked, b_strides=(40, 2))) is None
    wide = problem(20, 3000, 1001)
    assert "B has strides (6000, 2)" in why_not(replace(wide, b_strides=(6000, 2)))
    assert why_not(replace(wide, a_strides=(2002, 2))) is None
    # Of a C by columns the transposed product is computed, whose A is B.
    by_columns = replace(asked, c_strides=(1, 3000))
    assert "A has strides (2002, 2)" in why_not(replace(by_columns, a_strides=(2002, 2)))
    assert why_not(replace(by_columns, b_strides=(40, 2))) is None
    assert "K=" in why_not(problem(16, 16, 8 * (2**31 - 17) + 1))
    reason = why_not(replace(asked, capability=(12, 0)))
    assert "102400 bytes of shared memory and compute capability 12.0 has 101376" in reason
    a, b = torch.ones(300, 64)[:, ::2], torch.ones(32, 9)
    narrow = replace(problem(3000, 20, 1001, "float32", "tf32"), capability=(12, 0))
    assert "112640 bytes of shared memory" in why_not(narrow)
    with pytest.raises(simulator.SimulationError, match="the launcher refuses it"):
        run(a, b, torch.zeros(300, 9), "tf32")


def test_plans_are_of_tiles_that_there_are_and_leave_no_part_empty():
    for (compute, dtype), sizes in itertools.product(
        COMPUTES,
        ((3551, 25, 10119), (25, 3551, 10119), (500, 60, 20001), (7, 7, 7), (300, 300, 99)),
    ):
        asked = problem(*sizes, str(dtype).removeprefix("torch."), compute)
        plan = find("cuda", "mma_odd").plan(asked)
        tile = plan["BLOCK_M"], plan["BLOCK_N"]
        assert tuple(sorted(tile, reverse=True)) in rung.TILES[dtype.itemsize]
        assert (tile[0] > tile[1]) == (sizes[0] >= sizes[1])
        assert plan["NUM_STAGES"] == rung.stages(dtype.itemsize)
        steps, parts = -(-sizes[2] // plan["BLOCK_K"]), plan.get("SPLITS", 1)
        assert (parts - 1) * -(-steps // parts) < steps
    assert "SPLITS" not in find("cuda", "mma_odd").plan(problem(500, 60, 20001, batch=4))


def test_it_is_chosen_for_few_columns_over_a_long_k_in_odd_rows_alone():
    def suits(*sizes, **more):
        return rung.suits(problem(*sizes, **more))

    assert suits(3551, 25, 10119)
    assert suits(25, 3551, 10119, layout="tt")
    assert suits(3551, 25, 10119, layout="tn")
    assert suits(3551, 25, 10119, dtype="float32", compute="tf32x3")
    across = {"layout": "tn", "dtype": "float32", "compute": "tf32x3"}
    assert suits(3551, 16, 10119, **across)
    assert not suits(3551, 17, 10119, **across), "mma_types was faster across K"
    assert not suits(17, 3551, 10119, **{**across, "layout": "nn"}), "and where B is the long side"
    assert suits(17, 3551, 10119, **{**across, "layout": "nt"})
    assert not suits(3551, 25, 10118), "rows of whole vectors"
    assert not suits(3552, 25, 10119, layout="tn"), "rows of whole vectors"
    assert not suits(3551, 8, 10119), "gemv_types has these"
    assert not suits(3551, 33, 10119), "mma_types was faster"
    assert not suits(30, 32, 10119), "no side is long"
    assert not suits(3551, 25, 333), "a short K"
    assert not suits(3551, 25, 10119, batch=2)
    for asked in (problem(3551, 25, 10118), problem(4096, 4096, 4096)):
        assert rung.cost(asked, 132) is None
        assert choose(asked, "cuda").name != "mma_odd"
    assert choose(problem(3551, 25, 10119), "cuda").name == "mma_odd"


def test_the_choice_loses_little_to_the_fastest_rungs_and_plans_that_were_timed():
    fit = scripts_of.script("fit_mma_odd")
    of = fit.products()
    lost = fit.lost(of)
    assert {*lost} == {"tf32", "tf32x3", "float64"}
    for each in lost.values():
        assert len(each) >= 10
        assert math.exp(sum(map(math.log, each)) / len(each)) < 1.04
        assert max(each) < 1.12
    # What it was before: so much is gained.
    for compute, least in (("float64", 1.3), ("tf32x3", 1.1), ("tf32", 1.05)):
        mine = [p for p in of if p.problem.compute == compute and rung.suits(p.problem)]
        gained = [math.log(p.before_us / fit.taken(p)[1]) for p in mine]
        assert math.exp(sum(gained) / len(gained)) > least, compute
    assert any(fit.taken(p)[0] != "mma_odd" for p in of), "it is weighed"


def test_the_choice_loses_little_on_products_that_its_constants_were_not_fitted_to():
    fit = scripts_of.script("fit_mma_odd")
    shipped = fit.now()
    for each in fit.held_out(fit.products()).values():
        assert math.exp(sum(map(math.log, each)) / len(each)) < 1.05
        assert max(each) < 1.2
    assert fit.now() == shipped


@cache
def compiled(compute, tile, divides):
    number = {"float64": 4, "tf32": 6, "tf32x3": 7}[compute]
    case = (f"-DTCGEMM_COMPUTE={number}", f"-DTCGEMM_DIVIDES={divides}")
    return records.cuda("mma_odd", "sm_90a", (*case, *defines_of(tile)))


@pytest.mark.skipif(toolchain.find_nvcc() is None, reason="needs nvcc")
@pytest.mark.parametrize("tile", [(128, 32), (16, 64)], ids=str)
@pytest.mark.parametrize("compute", ["tf32", "tf32x3", "float64"])
def test_what_nvcc_makes_of_it(compute, tile):
    for divides in (0, 1):
        report = compiled(compute, tile, divides)
        kernels = [each for each in report.kernels if "add_partials" not in each.symbol]
        assert len(kernels) == (4 if divides else 8), "for each layout, plain or with an epilogue"
        parts = 4 if tile == (128, 32) else 1  # of 16 x 16, of a warp
        unrolled = 2 if compute == "tf32x3" else 4
        for kernel in kernels:
            assert kernel.spill_bytes == 0, kernel.symbol
            if compute == "float64":
                assert kernel.sass["DMMA"] == 2 * parts * unrolled
                continue
            # A step along K that is careful is compiled besides, and not unrolled.
            terms = 3 if compute == "tf32x3" else 1
            assert kernel.sass["HMMA"] == 2 * parts * terms * (unrolled + 1)
