"""Tiles of one_wave that fit the shorter side of C, or the SMs: right however C lies, planned, and
compiled."""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache
from importlib import import_module

import one_case
import pytest
import records
import torch
from odd_rows import among_nan
from padded import padded
from tcgemm.cuda_ref import planning
from tcgemm.cuda_ref.planning import one_wave_fitted, one_wave_model, one_wave_tile, tables, tuning
from tcgemm.cuda_ref.shapes import one_wave
from test_one_wave import kernels_by_tma, needs_nvcc

from tcgemm import accuracy
from tcgemm.dispatch import choose, find, problem_of
from tcgemm.problem import Problem

simulator = import_module("tcgemm.cuda_ref.simulator")

F16, BF16 = torch.float16, torch.bfloat16
LAYOUTS = ["nn", "nt", "tn", "tt"]
TYPES = {"bfloat16": BF16, "float16": F16}


def source_of(folder, tile, cluster=(1, 1), stages=3):
    return one_case.source_of(
        folder, "one_wave", BLOCK_M=tile[0], BLOCK_N=tile[1], NUM_STAGES=stages,
        CLUSTER_M=cluster[0], CLUSTER_N=cluster[1], DIVIDES=0,
    )  # fmt: skip


def integers(*size):
    return torch.randint(-2, 3, size)


def operands(shape, layout, dtype, fill=integers):
    M, N, K = shape
    return (
        padded(M, K, dtype, layout[0] == "t", fill),
        padded(K, N, dtype, layout[1] == "t", fill),
    )


def check(source, a, b, c, **how):
    """C is poisoned before and right after, and nothing is found."""
    c.fill_(float("nan"))
    report = simulator.simulate(source, a, b, c, check=True, **how)
    assert not report.findings, [str(f) for f in report.findings]
    exact = a.double() @ b.double()
    assert torch.equal(c, exact.to(c.dtype)) or accuracy.error_ratio(a, b, c) < 1
    return report


# BLOCK_M x BLOCK_N, the type, and shapes: a part of a tile, a whole one, and some with edges.
BUILDS = {
    (80, 192): ("bfloat16", [(75, 200, 136)]),
    (96, 64): ("float16", [(96, 64, 64), (170, 130, 136)]),
    (112, 192): ("float16", [(100, 210, 72)]),
    (144, 64): ("bfloat16", [(134, 200, 136), (1, 9, 1)]),
    (160, 128): ("float16", [(300, 257, 200)]),
    (176, 64): ("bfloat16", [(170, 65, 330)]),
    (208, 128): ("bfloat16", [(200, 129, 72)]),
    (224, 64): ("float16", [(214, 63, 136), (225, 70, 65)]),
    (64, 80): ("float16", [(200, 75, 136)]),
    (128, 144): ("bfloat16", [(130, 140, 136)]),
    (64, 160): ("bfloat16", [(70, 150, 72)]),
    (128, 208): ("float16", [(129, 200, 200)]),
}

# Of two consumers with 128 rows each: a part of one's rows, and more than a tile.
TWO_MMAS = {
    (256, 160): ("bfloat16", [(100, 150, 72), (270, 162, 330)]),
    (160, 256): ("float16", [(150, 100, 72), (162, 270, 330)]),
}


@pytest.mark.spread(4, "tile")
@pytest.mark.parametrize("tile", BUILDS, ids=str)
def test_right_for_every_layout_and_however_c_lies(tile, tmp_path):
    dtype, shapes = BUILDS[tile]
    source = source_of(tmp_path, tile)
    for shape in shapes:
        for layout, by_columns in itertools.product(LAYOUTS, [False, True]):
            c = padded(*shape[:2], TYPES[dtype], by_columns, torch.empty)
            check(source, *operands(shape, layout, TYPES[dtype]), c)
        c = padded(*shape[:2], TYPES[dtype], False, torch.empty)
        check(source, *operands(shape, "nt", TYPES[dtype], torch.randn), c)


@pytest.mark.parametrize("tile", TWO_MMAS, ids=str)
def test_consumers_of_128_rows_are_right_for_every_layout_and_however_c_lies(
    tile, tmp_path, thorough
):
    """The ring has four stages, and the longer K takes six steps."""
    dtype, shapes = TWO_MMAS[tile]
    source = source_of(tmp_path, tile, stages=4)
    layouts = LAYOUTS if thorough else ["nn", "tt"]
    for shape, layout, by_columns in itertools.product(shapes, layouts, [False, True]):
        c = padded(*shape[:2], TYPES[dtype], by_columns, torch.empty)
        check(source, *operands(shape, layout, TYPES[dtype]), c)


@pytest.mark.parametrize(("tile", "cluster"), [((256, 160), (1, 2)), ((160, 256), (2, 1))], ids=str)
def test_consumers_of_128_rows_are_right_in_pairs(tile, cluster, tmp_path):
    """As they are planned for 16316 x 296 x 4008 (nt) and 2548 x 1944 x 920 (nt)."""
    source = source_of(tmp_path, tile, cluster, stages=4)
    shape = (tile[0] * cluster[0] - 9, tile[1] * cluster[1] - 6, 330)
    for layout in ("nt", "tn"):
        c = padded(*shape[:2], BF16, layout == "tn", torch.empty)
        report = check(source, *operands(shape, layout, BF16), c, order="late:4")
        assert report.cluster == 2


@pytest.mark.parametrize("tile", TWO_MMAS, ids=str)
def test_odd_rows_of_c_of_such_consumers_are_stored_right(tile, tmp_path):
    source, dtype = source_of(tmp_path, tile, stages=4), TYPES[TWO_MMAS[tile][0]]
    for layout, by_columns in (("nn", False), ("tt", True), ("tt", False)):
        M, N, K = tile[0] + 3, tile[1] - 11, 72
        height, width = (N, M) if by_columns else (M, N)
        whole = torch.full((height + 2, width + 5), 7.0, dtype=dtype)
        view = whole[1 : height + 1, 3 : width + 3]
        c = view.mT if by_columns else view
        check(source, *operands((M, N, K), layout, dtype), c, order="random:2")
        view.fill_(7.0)
        assert bool((whole == 7).all()), "something beside C was written"


ODD = {(80, 128): "bfloat16", (144, 64): "float16", (112, 192): "bfloat16", (224, 64): "bfloat16"}


@pytest.mark.spread(2, "tile")
@pytest.mark.parametrize("tile", ODD, ids=str)
def test_odd_rows_of_c_are_stored_right_and_nothing_beside_them(tile, tmp_path):
    """Rows that begin at each place of a unit of 16 bytes, and end within one."""
    source, dtype = source_of(tmp_path, tile), TYPES[ODD[tile]]
    for first, (beyond, gap) in enumerate(((1, 0), (3, 4), (8, 5), (14, 1), (-9, 2))):
        M, N, K = tile[0] - 6 * first, tile[1] + beyond, 72
        for by_columns in (False, True):
            height, width = (N, M) if by_columns else (M, N)
            whole = torch.full((height + 2, first + width + gap), 7.0, dtype=dtype)
            view = whole[1 : height + 1, first : first + width]
            c = view.mT if by_columns else view
            check(source, *operands((M, N, K), "nt", dtype), c, order="random:2")
            view.fill_(7.0)
            assert bool((whole == 7).all()), "something beside C was written"


def test_c_in_steps_both_ways_is_stored_right(tmp_path):
    source = source_of(tmp_path, (144, 64))
    whole = torch.full((150, 3 * 70), 7.0, dtype=BF16)
    c = whole[3:137, 1:205:3]
    check(source, *operands((134, 68, 72), "nn", BF16), c)
    c.fill_(7.0)
    assert bool((whole == 7).all())


# BLOCK_M x BLOCK_N and CLUSTER_M x CLUSTER_N: shares are rows, panels, or rows along K.
CLUSTERS = [
    ((144, 64), (1, 2)),
    ((144, 128), (2, 4)),
    ((80, 192), (1, 4)),
    ((224, 64), (2, 2)),
    ((208, 128), (4, 1)),
    ((64, 160), (4, 2)),
]


@pytest.mark.spread(6, "build", "order", at=2)
@pytest.mark.parametrize("order", ["forward", "random:3", "late:4"])
@pytest.mark.parametrize("build", CLUSTERS, ids=str)
def test_right_in_clusters(build, order, tmp_path):
    """Of tiles that fill no whole cluster, and with fewer stages than steps."""
    tile, cluster = build
    source = source_of(tmp_path, tile, cluster)
    shapes = [
        (tile[0] * (2 * cluster[0] - 1) - 9, tile[1] * cluster[1] + 10, 72),
        (7, 33, 650),
    ]
    for shape, layout in itertools.product(shapes, LAYOUTS):
        c = padded(*shape[:2], BF16, layout == "tn", torch.empty)
        report = check(source, *operands(shape, layout, BF16), c, order=order)
        assert report.cluster == cluster[0] * cluster[1]


def test_operands_in_odd_rows_are_refused_as_ever():
    a = among_nan(134, 72, False, integers, 1, 0)
    b, c = torch.ones(72, 64, dtype=BF16), torch.empty(134, 64, dtype=BF16)
    assert find("cuda", "one_wave").why_not(problem_of(a, b, c)) is not None


def problem(M, N, K, layout="nn", c_strides=None, **changes):
    a = (K, 1) if layout[0] == "n" else (1, M)
    b = (N, 1) if layout[1] == "n" else (1, K)
    asked = Problem(
        M, N, K, "bfloat16", "bfloat16", a, b, c_strides or (N, 1), device="cuda",
        capability=(9, 0),
    )  # fmt: skip
    return dataclasses.replace(asked, **changes)


def tiles(asked):
    seen = tuning.wide(asked)
    return {(each["BLOCK_M"], each["BLOCK_N"]) for each in one_wave.candidates(seen, 132)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_rows_are_offered_a_tile_that_fits_them(layout):
    """cuBLAS takes 17.3 us for the first, and 40.6 for the second."""
    assert (144, 128) in tiles(problem(134, 12064, 2144, layout))
    assert {(224, 64), (112, 128)} <= tiles(problem(214, 8016, 7472, layout))
    # 94 tiles of 134 x 128 run at once, and 189 of 134 x 64 do not.
    assert (144, 64) not in tiles(problem(134, 12064, 2144, layout))


def test_so_are_few_columns_without_being_swapped():
    asked = problem(5000, 136, 1024)
    assert {(144, 64), (144, 128)} <= tiles(asked)
    plan = find("cuda", "one_wave").plan(asked)
    assert plan["BLOCK_M"] % 64 == 0
    assert plan["BLOCK_N"] in one_wave_fitted.WIDTHS
    # The same memory, written by columns: the launcher transposes it.
    assert plan == planning.plan("one_wave", problem(136, 5000, 1024, "tt", (1, 136)))


@pytest.mark.parametrize(
    ("side", "width"),
    [(64, None), (65, 80), (96, 96), (97, 112), (113, None), (129, 144), (161, 176), (177, None),
     (200, 208), (224, 224), (225, None), (258, 144), (300, 160), (512, None), (520, None)],
)  # fmt: skip
def test_a_side_has_one_width_and_none_where_a_multiple_of_64_is_as_narrow(side, width):
    found = one_wave_fitted.fitted(problem(side, 5000, 512), 0)  # no SMs: for none of a wave
    assert {m for m, _ in found} == ({width} if width else set())
    rows = {rows for rows, widest in one_wave_fitted.WIDEST.items() if rows < 256}
    rows = {each for each in rows if width and width <= one_wave_fitted.WIDEST[each]}
    assert {n for _, n in found} == rows
    assert len(found) == len(rows)
    assert {64, 128} <= rows or not width


@pytest.mark.parametrize(("M", "N"), [(0, 0), (0, 64), (0, 20_000)])
def test_an_empty_product_gets_no_tile_that_fits(M, N):
    assert one_wave_fitted.fitted(problem(M, N, 64), 132) == ()


def test_what_is_stored_transposed_is_plain_and_of_16_bits():
    by_rows, by_columns = (2000, 1), (1, 136)
    for c_strides, changes, held in (
        (by_rows, {}, True),
        (by_rows, {"dtype_out": "float32"}, False),
        (by_columns, {"dtype_out": "float32"}, True),
        (by_rows, {"bias": True}, False),
        (by_columns, {"bias": True}, False),
        ((4000, 2), {}, False),
        ((2001, 1), {}, False),  # odd rows
        ((1, 137), {}, False),
        (by_rows, {"c_alignment": 8}, False),
    ):
        asked = problem(136, 2000, 640, "nt", c_strides, **changes)
        found = one_wave_fitted.fitted(asked, 132)
        assert ((144, 64) in found) == held, (c_strides, changes)
        assert set(found) <= {tile for tile in found if one_wave_fitted.stores(*tile, asked)}
        assert held or (144, 64) not in tiles(asked)
        if not held and c_strides in ((2000, 1), (1, 136), (4000, 2)) and asked.c_alignment == 16:
            assert all(m % 64 == 0 for m, _ in tiles(asked) if not one_wave.by_columns(asked))


def test_a_c_of_32_bits_is_stored_as_it_is_computed():
    """Its tiles that fit the SMs lie along the rows of C alone."""
    for by_columns in (False, True):
        asked = problem(1944, 2552, 920, c_strides=(1, 1944) if by_columns else None)
        wide = dataclasses.replace(asked, dtype_out="float32")
        one, other = (set(one_wave_fitted.fitted(each, 132)) for each in (asked, wide))
        assert {(256, 160), (160, 256)} <= one
        assert other == {tile for tile in one if tile[1 if by_columns else 0] % 64 == 0}
        assert other < one


# The shape, and BLOCK_M x BLOCK_N of tiles that lie either way.
ONE_WAVE = [((2548, 1944, 920), {(256, 160), (160, 256)}), ((16316, 296, 4008), {(256, 160)})]


@pytest.mark.parametrize(("shape", "those"), ONE_WAVE, ids=str)
def test_a_product_of_a_little_more_than_a_wave_is_offered_tiles_that_run_at_once(shape, those):
    """The first takes 15.9 us so and 20.8 by 128 x 192, the second 60.1; cuBLAS 15.5 and 58.6
    (reports/nvidia-h200/trials/races.csv, of trees ab980eb and ab44cd4)."""
    asked = problem(*shape, "nt")
    seen = tuning.wide(asked)
    found = one_wave.candidates(seen, 132)
    transposed = seen != asked
    of_asked = {
        tuple(each[name] for name in ("BLOCK_M", "BLOCK_N"))[:: -1 if transposed else 1]
        for each in found
    }
    assert those <= of_asked
    for each in found:
        assert one_wave_tile.blocks_of(each, seen) <= 132
        assert one_wave_tile.runs_at_once(each, seen, 132)
    assert choose(asked, "cuda").name == "one_wave"
    plan = find("cuda", "one_wave").plan(asked)
    tile = plan["BLOCK_M"], plan["BLOCK_N"]
    assert tile in those
    assert plan["NUM_STAGES"] == 4
    blocks = -(-shape[0] // tile[0]) * -(-shape[1] // tile[1])
    assert 0.8 * 132 < blocks <= 132


@pytest.mark.parametrize("sms", [132, 114])
def test_a_tile_of_one_wave_is_the_narrowest_that_runs_at_once(sms):
    """By itself, or in clusters of four, for which there are fewer SMs."""
    seen = 0
    for M, N in ((1944, 2552), (296, 16320), (1536, 1536), (681, 7128), (1034, 2928), (700, 904)):
        asked = problem(M, N, 4096)
        for m, n in set(one_wave_fitted.fitted(asked, sms)) - set(one_wave_fitted.fitted(asked, 0)):
            assert (m, n) in one_wave_fitted.FITTED or (n, m) in one_wave_fitted.FITTED
            assert -(-M // m) * -(-N // n) <= sms
            width = n if m in one_wave_fitted.WIDEST else m
            narrower = [each for each in one_wave_fitted.WIDTHS if each < width]
            if not narrower:
                continue
            short = narrower[-1]
            m, n = (m, short) if width == n else (short, n)
            assert -(-M // m) * -(-N // n) > one_wave_tile.at_once(4, sms), (M, N, m, n)
            seen += 1
    assert seen > 5


def test_k_is_divided_of_no_tile_that_is_stored_transposed():
    for M, N in ((90, 3000), (200, 900)):
        for each in one_wave.candidates(problem(M, N, 8192), 132):
            assert each["SPLITS"] == 1 or each["BLOCK_M"] % 64 == 0


def test_a_user_s_row_may_ask_for_it_and_what_cannot_have_it_gets_another_tile():
    config = {"BLOCK_M": 224, "BLOCK_N": 64, "CLUSTER_M": 1, "CLUSTER_N": 2, "SPLITS": 1, "PDL": 1}
    tables.check({"kernels": {"one_wave": [{"config": config}]}, "prefer": []})
    asked = problem(214, 8016, 7472)
    plan = one_wave.divide(config, asked, 132, False)
    assert (plan["BLOCK_M"], plan["BLOCK_N"], plan["NUM_STAGES"]) == (224, 64, 6)
    assert (plan["CLUSTER_M"], plan["CLUSTER_N"]) == (1, 2)
    fused = one_wave.divide(config, problem(214, 8016, 7472, bias=True), 132, False)
    assert (fused["BLOCK_M"], fused["BLOCK_N"]) == (128, 64)
    wrong = {"kernels": {"one_wave": [{"config": {**config, "SPLITS": 2}}]}, "prefer": []}
    with pytest.raises(ValueError, match="one_wave has no such build"):
        tables.check(wrong)


def test_the_ring_of_every_fitted_tile_has_four_stages_and_fits_an_sm():
    for (m, n), by_columns in itertools.product(one_wave_fitted.FITTED, [False, True]):
        asked = problem(m, 5000, 8192, c_strides=(1, m) if by_columns else None)
        config = {"BLOCK_M": m, "BLOCK_N": n, "CLUSTER_M": 1, "CLUSTER_N": 1, "SPLITS": 1, "PDL": 1}
        plan = one_wave.divide(config, asked, 132, by_columns)
        tile = plan["BLOCK_M"], plan["BLOCK_N"]
        assert tile == ((n, m) if by_columns else (m, n))
        stage = (n + m) * 128
        chunks = 0 if not by_columns or m * n > 128 * 128 else n // 64 * -(-m // 64) * 8192
        ring = plan["NUM_STAGES"] * stage
        assert 4 <= plan["NUM_STAGES"] <= one_wave_tile.MOST_STAGES
        assert n // 64 * m * 128 <= ring  # C passes through it
        assert 1024 + max(chunks, ring) <= 232448  # of a plain product chunks lie in the ring
        most = one_wave_tile.ENOUGH_STAGES.get((n, m, False), one_wave_tile.MOST_STAGES)
        assert 1024 + ring + stage > 232448 or plan["NUM_STAGES"] == most
        # Of a B in whole panels the kernel takes as many as fit.
        assert 231424 // ((n + one_wave_tile.whole_panels(m)) * 128) >= 4


def test_every_fitted_tile_has_a_step_between_those_of_its_neighbours():
    known = [48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224]
    for length in one_wave_fitted.WIDEST:
        steps = [
            one_wave_model.STEP[length, width]
            for width in known
            if (length, width) in one_wave_model.STEP
        ]
        assert steps == sorted(steps)


def test_the_choice_of_the_two_shapes_is_a_fitted_tile():
    """17.1 and 42.3 us: each the fastest of tree ab980eb (trials/races.csv). The second
    takes 50.1 in tiles of 224 x 64."""
    for shape, tile in (((134, 12064, 2144), (144, 128)), ((214, 8016, 7472), (112, 128))):
        asked = problem(*shape)
        assert choose(asked, "cuda").name == "one_wave"
        plan = find("cuda", "one_wave").plan(asked)
        assert (plan["BLOCK_M"], plan["BLOCK_N"]) == tile


# BLOCK_M, BLOCK_N, NUM_STAGES, CLUSTER_M, CLUSTER_N.
COMPILED = [
    (144, 128, 5, 1, 4), (224, 64, 5, 1, 2), (224, 128, 4, 1, 1), (112, 192, 5, 1, 1),
    (128, 208, 4, 1, 1), (64, 80, 8, 2, 1), (192, 80, 4, 1, 1), (64, 160, 6, 1, 1),
    (256, 160, 4, 1, 2), (160, 256, 4, 2, 1), (256, 176, 4, 1, 1),
]  # fmt: skip


@cache
def compiled(values):
    names = ("BLOCK_M", "BLOCK_N", "NUM_STAGES", "CLUSTER_M", "CLUSTER_N", "DIVIDES", "IN", "OUT")
    given = dict(zip((*names, "PLAIN"), (*values, 0, 1, 1, 1), strict=True))
    defines = tuple(f"-DTCGEMM_{name}={value}" for name, value in given.items())
    return records.cuda("one_wave", "sm_90a", defines)


@needs_nvcc
@pytest.mark.parametrize("values", COMPILED, ids=str)
def test_nothing_is_spilled_or_serialized(values):
    kernels = kernels_by_tma(compiled(values))
    assert len(kernels) == 4  # a build for each layout
    for kernel in kernels:
        # Two consumers of 256 rows have the producers' registers too.
        assert kernel.sass["USETMAXREG"] == (2 if 256 in values[:2] else 0)
