"""gemv_types: few rows or columns of float32 and float64, that lie anywhere, on CUDA cores."""

import csv
import dataclasses
import itertools
import math
import re
from importlib import import_module

import pytest
import records
import scripts_of
import torch
from tcgemm.cuda_ref import simulator
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.shapes import gemv_types as rung

import tcgemm
from tcgemm import accuracy
from tcgemm.dispatch import choose, find, problem_of
from tcgemm.problem import Fusion, Problem

KINDS = [
    (torch.float32, "tf32"),
    (torch.float32, "tf32x3"),
    (torch.float32, "ieee"),
    (torch.float64, "float64"),
]
COMPUTE = {torch.float32: "tf32", torch.float64: "float64"}
SIZES = [(1, 1, 1), (1, 255, 130), (3, 37, 701), (8, 20, 300), (200, 5, 33), (11, 13, 45)]
SIZES += [(4, 9, 600)]
"""One element; a row; columns that are no vectors; vectors; few columns; two tiles of rows; rows
that are vectors beside columns that are none."""
PLACES = [(0, 0), (3, 1), (4, 2), (4, 4)]
"""How far rows lie apart beyond their length, and how far behind a multiple of 16 bytes A and B
begin, in elements."""
LAYOUTS = ["nn", "nt", "tn", "tt"]


def placed(rows, columns, dtype, transposed, place=(0, 0), integers=False):
    """A matrix with NaN wherever it is not."""
    if transposed:
        return placed(columns, rows, dtype, False, place, integers).mT
    before, apart = place[1], columns + place[0]
    memory = torch.full((before + rows * apart + 16,), torch.nan, dtype=dtype)
    view = memory.as_strided((rows, columns), (apart, 1), before)
    made = torch.randint(-8, 9, (rows, columns)) if integers else torch.randn(rows, columns)
    return view.copy_(made)


def product(a, b, compute, out=None, plan=None, order="forward", **fused):
    """C of the last of three runs, each of which writes it anew."""
    out = torch.empty(*a.shape[:-1], b.shape[-1], dtype=a.dtype) if out is None else out
    kept, found = out.clone(), []
    fusion = Fusion(compute=compute, **fused)
    for _ in range(3):
        out.copy_(kept if fused else torch.full_like(kept, torch.nan))
        report = simulator.simulate(
            simulator.source_of("gemv_types"), a, b, out, fusion=fusion, order=order, check=True,
            plan=rung.plan(problem_of(a, b, out, fusion)) if plan is None else plan,
        )  # fmt: skip
        found += report.findings
    assert not found, [str(finding) for finding in found]
    return out, report


@pytest.mark.spread(4, "dtype", "layout")
@pytest.mark.parametrize(("dtype", "compute"), KINDS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_both_checks_wherever_rows_begin(size, layout, dtype, compute):
    torch.manual_seed(0)
    M, N, K = size
    for place, integers in itertools.product(PLACES, (True, False)):
        a = placed(M, K, dtype, layout[0] == "t", place, integers)
        b = placed(K, N, dtype, layout[1] == "t", place, integers)
        c, _ = product(a, b, compute)
        if integers:
            assert torch.equal(c, a @ b), place
        else:
            assert accuracy.error_ratio(a, b, c, Fusion(compute=compute)) <= 1, place


def test_the_sizes_take_each_way_of_loading():
    """Vectors of B along N and along K, and elements; and vectors of A across its rows beside
    elements of B, and beside vectors along N, for either type."""
    seen = {
        (dtype, rung.lengths(wide), rung.length_of_a(wide))
        for dtype in (torch.float32, torch.float64)
        for (M, N, K), layout, place in itertools.product(SIZES, LAYOUTS, PLACES)
        for a in [placed(M, K, dtype, layout[0] == "t", place)]
        for b in [placed(K, N, dtype, layout[1] == "t", place)]
        for wide in [rung.wide(problem_of(a, b, torch.empty(M, N, dtype=dtype)))]
    }
    for dtype, vector in ((torch.float32, 4), (torch.float64, 2)):
        ways = (((1, 1), 1), ((1, vector), vector), ((vector, 1), 1))
        for loads in (*ways, ((1, 1), vector), ((vector, 1), vector)):
            assert (dtype, *loads) in seen


@pytest.mark.parametrize("order", ["forward", "reverse", "random:3", "late:4"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("place", [(0, 0), (1, 1)])
def test_right_with_any_lanes_warps_and_parts_of_k(place, layout, order):
    """Powers of two of lanes along N and of warps along K, clusters of any number of blocks; the
    sums of one plan are the same bits in whatever order blocks and warps run."""
    dtype = torch.float64 if order == "late:4" else torch.float32
    a = placed(3, 700, dtype, False, place, True)
    b = placed(700, 36, dtype, layout[1] == "t", place, True)
    for lanes, warps, splits in (
        (1, 8, 3),
        (2, 4, 1),
        (4, 1, 5),
        (8, 2, 2),
        (16, 8, 8),
        (32, 1, 1),
    ):
        way = rung.Way(lanes, warps, splits)
        plan = {"BLOCK_M": 4, "BLOCK_N": way.columns, "WARPS": warps, "SPLITS": splits}
        c, report = product(a, b, COMPUTE[dtype], plan=plan, order=order)
        assert torch.equal(c, a @ b), plan
        assert (report.grid[0], report.cluster) == (-(-36 // way.columns) * splits, splits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [4, 11, 16])
def test_vectors_across_rows_of_a(rows, dtype):
    """Where rows of A are neighbours; of 11 rows the second tile has three, and takes elements."""
    a = placed(rows, 400, dtype, True, (-rows % 4, 0), True)
    for layout, gap in (("n", 3), ("n", 0), ("t", 1)):
        b = placed(400, 36, dtype, layout == "t", (gap, 0), True)
        for way in (rung.Way(1, 1, 1), rung.Way(8, 2, 2)):
            plan = {"BLOCK_M": 8, "BLOCK_N": way.columns, "WARPS": way.warps, "SPLITS": way.splits}
            c, _ = product(a, b, COMPUTE[dtype], plan=plan)
            assert torch.equal(c, a @ b), (layout, gap, way)


def test_the_same_bits_in_whatever_order_blocks_run():
    a, b = torch.randn(2, 3000), torch.randn(3000, 40)
    plan = {"BLOCK_M": 2, "BLOCK_N": 16, "WARPS": 8, "SPLITS": 6}
    made = [product(a, b, "tf32x3", None, plan, order)[0] for order in ("forward", "random:7")]
    assert torch.equal(*made)


def test_operands_of_any_strides_and_what_lies_around_c():
    buffer, around = torch.randn(90, 900), torch.zeros(24, 700)
    a, b = buffer[3:8, 1:60:3], buffer[::4, 2:].mT[:20, 1:21]
    for out in (around[2:12:2, 1:61:3], around[1:21, 3:8].mT, around[4:9, 5:25]):
        c, _ = product(a, b, "tf32x3", out)
        assert accuracy.error_ratio(a, b, c, Fusion(compute="tf32x3")) <= 1
        out.zero_()
        assert not around.any()
    a, b = buffer[:1, :5].expand(7, 5), buffer[:1, :30].expand(5, 30)
    c, _ = product(a, b, "tf32x3")
    assert accuracy.error_ratio(a, b, c) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("size", [(5, 60), (60, 2)])
def test_what_is_fused(size, dtype, column_major):
    M, N = size
    a, b = placed(M, 40, dtype, False, integers=True), placed(40, N, dtype, False, integers=True)
    c = placed(M, N, dtype, column_major, integers=True)
    bias = placed(1, N, dtype, False, integers=True)[0]
    exact = (2 * (a @ b) - c + bias).relu()
    fused = {"alpha": 2.0, "beta": -1.0, "bias": bias, "epilogue": "relu"}
    out = c.clone()
    assert torch.equal(product(a, b, COMPUTE[dtype], out, c=c, **fused)[0], exact)


@pytest.mark.parametrize("pitch", [40, 41])
def test_a_batch_may_share_an_operand(pitch):
    """Matrices that are vectors' lengths apart, and not."""
    for of_a, of_b in ((3, 3), (1, 3), (3, 1)):
        a = torch.randint(-8, 9, (of_a, 2, pitch)).float()[..., :40].expand(3, 2, 40)
        b = torch.randint(-8, 9, (of_b, 30, pitch)).float()[..., :40].mT.expand(3, 40, 30)
        assert torch.equal(product(a, b, "tf32")[0], a @ b)


def test_inf_and_nan_are_those_of_the_product():
    for dtype, compute in KINDS:
        a, b = (placed(*size, dtype, False) for size in ((6, 9), (9, 200)))
        a[3, 8], a[1, 0], b[4, 140], b[0, 150] = torch.inf, torch.nan, -torch.inf, 0
        a[5, 0] = torch.inf  # times 0
        torch.testing.assert_close(product(a, b, compute)[0], a @ b, equal_nan=True)


def problem(M, N, K, dtype="float32", compute="", layout="nn", **more):
    more = {"capability": (9, 0), **more}
    return Problem.stored(M, N, K, dtype, dtype, layout, compute=compute, **more)


def test_sizes_that_it_cannot_count_are_refused_with_the_numbers():
    why_not = find("cuda", "gemv_types").why_not
    assert why_not(problem(1, 1, rung.MOST)) is None
    assert f"K={rung.MOST + 1} and gemv_types counts to {rung.MOST}" in why_not(
        problem(1, 1, rung.MOST + 1)
    )
    assert "M=" in why_not(problem(rung.MOST + 1, 1, 1))
    assert why_not(problem(8, 8, 8, "bfloat16")) is not None
    many = dataclasses.replace(problem(8, 8, 512), batch=2**29, batch_strides=(0, 0, 64))
    assert "tiles of 8 x" in why_not(many)


def test_a_call_takes_it():
    a, b = torch.randn(3, 500), torch.randn(500, 40)
    for _ in range(3):
        c = tcgemm.matmul(a, b, backend="cuda", kernel="gemv_types")
        assert accuracy.error_ratio(a, b, c) <= 1


CHOSEN = [
    (255, 1, 12593, "float32", "tf32x3", "nn"),
    (255, 1, 12593, "float64", "", "nn"),
    (3, 1, 113, "float32", "tf32x3", "tn"),
    (3, 1, 113, "float64", "", "tn"),
    (1, 1, 16384, "float32", "tf32", "nn"),
    (1, 4096, 4096, "float64", "", "nt"),
    (1000, 8, 333, "float32", "tf32x3", "nn"),
]
LEFT = [
    (5, 8, 8, "float64", "", "nn"),
    (8, 4096, 4096, "float64", "", "nt"),
    (16, 2048, 2048, "float32", "tf32x3", "tt"),
    (2, 1500, 1, "float32", "tf32", "tn"),
]
"""Of few rows, too, but faster by another rung: where there is next to no work, and where 8 rows or
16 of a long K are."""


@pytest.mark.parametrize("asked", [*CHOSEN, *LEFT], ids=str)
def test_few_rows_are_given_to_it_where_it_was_faster(asked):
    """Each was timed: reports/nvidia-h200/trials/few_types.csv."""
    M, N, K, dtype, compute, layout = asked
    name = choose(problem(M, N, K, dtype, compute, layout), "cuda").name
    assert (name == "gemv_types") == (asked in CHOSEN)


def test_the_choice_loses_little_to_the_fastest_rungs_and_plans_that_were_timed():
    fit = scripts_of.script("fit_gemv_types")
    of = fit.products()
    assert len(of) == 180
    lost = fit.lost(of)
    assert {*lost} == {"tf32", "tf32x3", "float64"}
    for each in lost.values():
        assert len(each) == 60
        assert math.exp(sum(map(math.log, each)) / len(each)) < 1.02
        assert max(each) < 1.2
    # It is weighed, and neither always taken nor never.
    assert 0.5 < [fit.taken(product)[0] for product in of].count("gemv_types") / len(of) < 0.75
    # Hardly a product goes to a rung that was not timed for it.
    elsewhere = [p for p in of if choose(p.problem, "cuda").name not in ("gemv_types", p.before)]
    assert len(elsewhere) < 0.03 * len(of)


def test_the_choice_loses_little_on_products_that_its_constants_were_not_fitted_to():
    fit = scripts_of.script("fit_gemv_types")
    shipped = fit.now()
    for each in fit.held_out(fit.products()).values():
        assert math.exp(sum(map(math.log, each)) / len(each)) < 1.04
        assert max(each) < 1.5
    assert fit.now() == shipped


def test_a_row_of_the_csv_is_the_product_that_was_timed():
    fit = scripts_of.script("fit_gemv_types")
    row = {"dtype": "float32", "compute": "tf32", "layout": "nt", "M": "5", "N": "7", "K": "9"}
    for pitch, length in (("n", 9), ("v", 12), ("o", 13)):
        asked = fit.problem_of({**row, "pitch": pitch})
        assert (asked.a_strides, asked.b_strides) == ((length, 1), (1, length))


def test_operands_that_are_cold_take_longer():
    """And those of mma_types that are copied by elements longer still."""
    model = import_module("tcgemm.cuda_ref.planning.mma_types_model")
    mma = import_module("tcgemm.cuda_ref.shapes.mma_types")
    of, odd = mma.sizes(problem(255, 1, 12593)), {}
    for kept in (True, False):
        for by_elements in (False, True):
            tile = model.Tile(16, 64, by_elements, by_elements, False)
            odd[kept, by_elements] = model.us("tf32x3", of, tile, 66, 132, kept=kept)
    assert odd[False, False] > odd[True, False] + 0.8
    assert odd[False, True] - odd[False, False] > 1.2 * (odd[True, True] - odd[True, False])
    # The constants of few_types.csv, within what its rows say of a wait for memory.
    for us in (rung.COLD_US, model.COLD_US):
        assert 0.5 < us < 1.5
    few, many = (rung.modelled_us(problem(1, n, 8), rung.Way(8, 8, 1), 132) for n in (64, 20000))
    assert many > few + 0.8 * rung.COLD_US


def length(strides, rows, columns):
    """Elements of a matrix in memory."""
    return strides[0] * rows if strides[1] == 1 else strides[1] * columns


def batches():
    """Of reports/nvidia-h200/trials/few_plans.csv: each batch with what its rungs took."""
    fit, found = scripts_of.script("fit_gemv_types"), {}
    for row in csv.DictReader((fit.ROWS.parent / "few_plans.csv").open(newline="")):
        if row["batch"] != "1" and row["kernel"] != "torch":
            one = fit.problem_of(row)
            lengths = (
                length(one.a_strides, one.M, one.K),
                length(one.b_strides, one.K, one.N),
                one.M * one.N,
            )
            asked = dataclasses.replace(one, batch=int(row["batch"]), batch_strides=lengths)
            found.setdefault(asked, {}).setdefault(row["kernel"], float(row["us"]))
    return found


def test_of_a_batch_too_the_faster_rung_is_taken():
    """No constant was fitted to these."""
    lost = []
    for asked, us in batches().items():
        taken = us.get(choose(asked, "cuda").name)
        assert taken is not None, asked
        lost.append(taken / min(us.values()))
    assert len(lost) == 24
    assert math.exp(sum(map(math.log, lost)) / len(lost)) < 1.02
    assert max(lost) < 1.1


def test_ieee_goes_to_it_where_rows_are_few_and_to_the_ladder_elsewhere():
    assert choose(problem(4, 500, 500, compute="ieee"), "cuda").name == "gemv_types"
    assert choose(problem(500, 500, 500, compute="ieee"), "cuda").name == "naive"


def test_without_a_k_there_is_a_plan():
    assert rung.plan(problem(4, 64, 0))["SPLITS"] == 1


def test_of_many_rows_it_says_no_time():
    most = rung.MOST_CHOSEN_ROWS
    assert rung.cost(problem(most, 300, 300), 132) > 0
    assert rung.cost(problem(300, most, 300), 132) > 0
    assert rung.cost(problem(most + 1, 300, 300), 132) is None


def test_the_model_says_more_of_more_work_and_of_rows_that_lie_apart():
    least = rung.cost(problem(1, 2000, 2000, layout="nt"), 132)
    assert rung.cost(problem(1, 4000, 2000, layout="nt"), 132) > least
    assert rung.cost(problem(8, 2000, 2000, layout="nt"), 132) > least
    apart = dataclasses.replace(problem(1, 2000, 2000), b_strides=(6000, 3))
    assert rung.cost(apart, 132) > 1.5 * least
    odd = dataclasses.replace(problem(8, 20000, 2000, layout="nt"), b_strides=(1, 2001))
    assert rung.cost(odd, 132) > rung.cost(problem(8, 20000, 2000, layout="nt"), 132)


def test_lanes_that_load_from_lines_of_their_own_cost_more():
    """Blocks of as many columns and parts of K: lanes along K, and lanes along rows of B."""
    asked = problem(1, 4096, 4096)
    apart, along = rung.Way(1, 2, 1), rung.Way(4, 8, 1)
    assert apart.columns == along.columns
    assert rung.modelled_us(asked, apart, 132) > 1.2 * rung.modelled_us(asked, along, 132)


needs_nvcc = pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)


@needs_nvcc
def test_what_nvcc_makes_of_it():
    """Nothing is spilled, an SM has room for the blocks that the plan counts on, and what a trip
    loads comes before what it multiplies, in vectors."""
    made = records.cuda("gemv_types", "sm_90a")
    assert made.spill_bytes == 0
    assert len(made.kernels) == 2 * 4 * 3 * 2  # types, rows, ways of loading, plain and fused
    for kernel in made.kernels:
        assert kernel.sass["HMMA"] == kernel.sass["DMMA"] == 0
        found = re.search(r"gemv_typesI([fd])Li(\d)ELi(\d)ELi(\d)E", kernel.symbol)
        dtype = "float32" if found[1] == "f" else "float64"
        rows, along_n, along_k = map(int, found.groups()[1:])
        at_once = rung.resident(problem(rows, 4096, 4096, dtype))
        assert kernel.registers * 256 * at_once <= 65536
        # A trip that is whole, one that is not, and where rows of A are vectors one with these.
        loads, vector = 16 // (along_n * along_k), 4 if dtype == "float32" else 2
        across = loads + 4 * rows // vector if along_k == 1 and rows % vector == 0 else 0
        assert kernel.sass["LDG"] >= 2 * (loads + 4 * rows // along_k) + across


def test_an_instance_is_found_by_its_types_rows_and_loads():
    for dtype, rows, layout, wanted in (
        ("float32", 3, "nn", ("float", "4", "4", "1")),
        ("float64", 5, "nt", ("double", "8", "1", "2")),
    ):
        asked = problem(rows, 300, 300, dtype, layout=layout)
        tests = rung.instance(asked, rung.plan(asked))
        names = ("Real", "ROWS", "ALONG_N", "ALONG_K")
        assert all(tests[name](value) for name, value in zip(names, wanted, strict=True))
        assert not any(tests[name]("other") for name in names)
