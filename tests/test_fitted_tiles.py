"""warp_specialized with tiles that fit the short side of C, or the SMs, and with tiles that lie
across C."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from conftest import DEVICE
from test_unaligned_rows import is_stored_thrice, memory_of, padded
from triton_requests import FITTED, LIMITS

from tcgemm import dispatch
from tcgemm.gpus import find
from tcgemm.problem import Problem
from tcgemm.request import planning_for

fitted_tiles = import_module("tcgemm.triton_kernels.rungs.fitted_tiles")
by_name = import_module("tcgemm.triton_kernels.by_name")
gluon_launch = import_module("tcgemm.triton_kernels.host.gluon_launch")
tile_blocks = import_module("tcgemm.triton_kernels.host.tile_blocks")
triton_kernels = import_module("tcgemm.triton_kernels")

ROW = dispatch.find("triton", "warp_specialized")
NAMES = [f"{tile['BLOCK_M']}x{tile['BLOCK_N']}-swap{tile['SWAP']}" for tile in FITTED]


def problem_of(M, N, K, layout="nn", **changes):
    product = Problem.stored(
        M, N, K, "bfloat16", "bfloat16", layout, device="cuda", capability=(9, 0)
    )
    return replace(product, **changes)


def offered(problem):
    """(BLOCK_M, BLOCK_N, SWAP) of the tiles that fit."""
    return {
        (plan["BLOCK_M"], plan["BLOCK_N"], plan["SWAP"])
        for _, plan in triton_kernels.plans(problem, ["warp_specialized"])
        if "SWAP" in plan and "SPLITS" not in plan
    }


# Which tiles there are.


@pytest.mark.parametrize(
    ("columns", "rest", "blocks"),
    [(128, 0, [128]), (144, 16, [128, 16]), (224, 96, [128, 64, 32]), (208, 80, [128, 64, 16])],
)
def test_columns_are_divided_into_powers_of_two(columns, rest, blocks):
    assert tile_blocks.blocks_of(columns, rest) == blocks


def test_three_blocks_are_most():
    with pytest.raises(ValueError, match="REST=112 is a sum of 3 powers of two"):
        tile_blocks.blocks_of(240, 112)


@pytest.mark.parametrize(
    ("columns", "rest", "subtiles", "wide"),
    [
        (128, 0, 2, 64), (192, 64, 3, 64), (96, 32, 3, 32), (48, 16, 3, 16), (256, 128, 4, 64),
        (144, 16, 3, 64), (160, 32, 3, 64), (224, 96, 4, 64), (112, 48, 3, 64), (80, 16, 2, 64),
    ],
)  # fmt: skip
def test_a_subtile_is_as_wide_as_its_count_leaves(columns, rest, subtiles, wide):
    assert tile_blocks.subtile_columns(columns, rest, subtiles) == wide


@pytest.mark.parametrize("tile", FITTED, ids=NAMES)
def test_a_tile_that_fits_is_blocks_and_subtiles_without_a_remainder(tile):
    first, *others = tile_blocks.blocks_of(tile["BLOCK_N"], tile["REST"])
    assert first in (64, 128)
    assert first > max(others)
    size = tile["BLOCK_M"], tile["BLOCK_N"]
    wide = 32 if size in fitted_tiles.NARROW else 64
    assert tile_blocks.subtile_columns(tile["BLOCK_N"], tile["REST"], tile["SUBTILES"]) == wide
    assert tile["SUBTILES"] == first // wide + len(others)
    # The widest of 256 rows has no room for a fourth, however narrow its subtiles are.
    assert tile["NUM_STAGES"] >= (3 if size == (256, fitted_tiles.MOST_OF_256) else 4)


def test_subtiles_are_narrow_where_else_there_are_three_stages():
    for rows, columns in fitted_tiles.NARROW:
        narrow = next(
            tile for tile in FITTED if (tile["BLOCK_M"], tile["BLOCK_N"]) == (rows, columns)
        )
        rest = narrow["REST"]
        wide = {**narrow, "SUBTILES": (columns - rest) // 64 + rest.bit_count()}
        shared = [by_name.shared_bytes(ROW.name, tile, "bfloat16") for tile in (narrow, wide)]
        assert narrow["NUM_STAGES"] == 4
        assert shared[0] <= LIMITS[9, 0] < shared[1]


@pytest.mark.parametrize(
    ("size", "columns"),
    [
        (64, 0), (65, 80), (80, 80), (81, 96), (100, 112), (112, 112), (113, 0), (128, 0),
        (129, 144), (134, 144), (145, 160), (150, 160), (161, 176), (176, 176), (177, 0), (192, 0),
        (193, 208), (200, 208), (214, 224), (224, 224), (225, 0), (256, 0), (270, 144), (1000, 0),
    ],
)  # fmt: skip
def test_a_short_side_has_one_width_or_none(size, columns):
    assert fitted_tiles.columns_for(size) == columns


def test_tiles_that_overlap_are_as_much_narrower():
    assert fitted_tiles.columns_for(144, 8) == 160
    assert fitted_tiles.columns_for(136, 8) == 144


@pytest.mark.parametrize(
    ("side", "other", "rows", "columns"),
    [
        (296, 16316, 256, 160),  # 64 tiles along the other side, so two here, of 148 and more
        (1944, 2548, 256, 160),  # ten, so thirteen, of 150 and more
        (2548, 1944, 256, 160),  # eight, so sixteen, of 160 and more
        (7128, 681, 256, 176),  # three, so 44
        (7128, 681, 128, 0),  # six, so 22, of 324 and more: there is no such tile
        (3000, 1000, 128, 0),  # eight, so sixteen, of 188 and more: 192 is as narrow
        (3000, 1000, 64, 0),  # sixteen, so eight, of 375 and more
        (1056, 1000, 128, 80),  # 66 and more: 80 is the narrowest that there is
        (1000, 64 * 133, 64, 0),  # more tiles along the other side than SMs
        (160, 64 * 132, 64, 160),  # one of each: it is as wide as the side
        (161, 64 * 132, 64, 176),
    ],
)
def test_the_narrowest_columns_with_which_all_tiles_run_at_once(side, other, rows, columns):
    assert fitted_tiles.columns_at_once(side, other, rows, 132) == columns
    if columns:
        assert -(-other // rows) * -(-side // columns) <= 132
        for less in (each for each in (*fitted_tiles.COLUMNS, 64, 128, 192) if each < columns):
            assert -(-other // rows) * -(-side // less) > 132


# Who is offered them.


@pytest.mark.parametrize(
    ("shape", "of_side", "of_wave"),
    [
        ((134, 12064, 2144), {(64, 144, 1), (128, 144, 1)}, set()),
        ((214, 8016, 7472), {(64, 224, 1), (128, 224, 1)}, {(128, 112, 1)}),
        (
            (5878, 160, 8736), {(64, 160, 0), (128, 160, 0)},
            {(64, 144, 1), (128, 80, 0), (128, 96, 1)},
        ),
        ((14216, 200, 360), {(64, 208, 0), (128, 208, 0)}, {(128, 224, 1)}),
        ((134, 200, 1024), {(m, n, s) for m in (64, 128) for n, s in ((144, 1), (208, 0))}, set()),
        ((128, 12064, 2144), set(), {(128, 96, 0)}),
        ((16316, 296, 4008), set(), {(256, 160, 0)}),
        ((2548, 1944, 920), set(), {(256, 160, 0), (256, 160, 1)}),
        ((48, 160, 2144), set(), set()),
    ],
)  # fmt: skip
def test_a_product_is_offered_tiles_that_fit_a_short_side_or_the_sms(shape, of_side, of_wave):
    product = problem_of(*shape)
    assert offered(product) == of_side | of_wave
    M, N, _ = shape
    for rows, columns, swap in of_wave:
        side, other = (M, N) if swap else (N, M)
        assert -(-side // columns) * -(-other // rows) <= 132
    mirror = {(rows, columns, 1 - swap) for rows, columns, swap in of_side | of_wave}
    assert offered(product.transposed()) == mirror, "of a column-major C"


def test_a_gpu_of_fewer_sms_is_offered_wider_tiles():
    config = next(tile for tile in FITTED if (tile["BLOCK_M"], tile["BLOCK_N"]) == (256, 160))
    product, wider = problem_of(16316, 296, 4008), {**config, "BLOCK_N": 176, "SWAP": 0}
    config = {**config, "SWAP": 0}
    assert fitted_tiles.suits(config, product, 0, 132)
    assert fitted_tiles.suits(config, product, 0, 128)
    assert not fitted_tiles.suits(config, product, 0, 127)  # a tile of the whole side is too wide
    assert not fitted_tiles.suits(wider, product, 0, 132)
    assert not fitted_tiles.suits(config, product, 8, 132), "of tiles that overlap none is"


def test_only_a_c_that_tma_stores_has_its_tiles_across_it():
    odd = problem_of(134, 12061, 2144, "nt")
    assert ROW.why_not(odd) is None
    assert offered(odd) == set()
    assert offered(problem_of(12061, 149, 2144, "nt")) == {(64, 160, 0), (128, 160, 0)}


def test_terms_and_trees_take_the_tile_that_fits():
    """The first two are the fastest of those raced, 19.2 and 48.0 us (races.csv, ab980eb)."""
    with planning_for(find("h200")):
        for shape, tile in (
            ((134, 12064, 2144), (128, 144, 1)), ((214, 8016, 7472), (128, 112, 1)),
            ((14216, 200, 360), (128, 208, 0)),
        ):  # fmt: skip
            problem = problem_of(*shape)
            taken = dispatch.choose(problem, "triton")
            plan = taken.plan(problem)
            assert taken.name == "warp_specialized"
            assert (plan["BLOCK_M"], plan["BLOCK_N"], plan["SWAP"]) == tile


def test_a_swapped_tile_takes_as_long_as_that_of_the_transpose():
    """It is timed as the product that it computes; of the two C lies by rows in one."""
    problem = problem_of(134, 12064, 2144)
    plan = {**FITTED[0], "SWAP": 1}
    seen, without = triton_kernels.by_rows(problem, "warp_specialized", plan)
    assert (seen, "SWAP" in without) == (problem.transposed(), False)
    seen, _ = triton_kernels.by_rows(problem, "warp_specialized", {**plan, "SWAP": 0})
    assert seen == problem
    column_major = problem.transposed()
    for mirrored, product in ((1, problem), (0, column_major)):
        plan = {**plan, "SWAP": mirrored}
        assert triton_kernels.by_rows(column_major, "warp_specialized", plan)[0] == product


# The launch.


def launch(c, tile, monkeypatch):
    monkeypatch.setattr(gluon_launch, "programs", lambda a: 132)
    M, N = c.shape
    a, b = (torch.empty(size, 64, dtype=torch.bfloat16, device="meta") for size in (M, N))
    return gluon_launch.arguments(a, b.mT, c, **tile)


def of_width(columns, swap):
    return next(
        tile for tile in FITTED
        if (tile["BLOCK_M"], tile["BLOCK_N"], tile["SWAP"]) == (128, columns, swap)
    )  # fmt: skip


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("columns", [144, 224, 160])
def test_blocks_of_c_lie_as_c_does(columns, swap, by_columns, monkeypatch):
    shape = (1000, 2000)[:: -1 if by_columns else 1]
    c = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    c = c.mT if by_columns else c
    grid, args, constants = launch(c, of_width(columns, swap), monkeypatch)
    M, N = c.shape[::-1] if swap else c.shape
    assert grid == (-(-M // 128) * -(-N // columns),)
    across = bool(swap) != by_columns
    assert constants["CONFIG"].C_TRANSPOSED is across
    described = args[4:7]
    assert tuple(described[0].shape) == shape
    last = {144: 16, 160: 32, 224: 32}[columns]
    sides = [[64, 64], [last, 64] if across else [64, last]]
    assert [list(each.block_shape) for each in described if each is not None] == sides
    assert [each is None for each in described[1:]] == [columns == 224, columns != 224]


def test_a_c_that_cannot_be_stored_transposed_is_refused(monkeypatch):
    odd = torch.empty(100, 1001, dtype=torch.bfloat16, device="meta")
    with pytest.raises(ValueError, match="needs a C that TMA stores, and it has rows of 1001"):
        launch(odd, of_width(144, 1), monkeypatch)
    wide = torch.empty(104, 1000, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match="plain products with a C of 16 bits"):
        launch(wide, of_width(144, 1), monkeypatch)


# What it gives.


@pytest.mark.gpu
@pytest.mark.parametrize("a_and_b", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("number", range(len(FITTED)), ids=lambda i: NAMES[i])
def test_the_product_is_right_and_nothing_beside_it_is_written(number, a_and_b):
    """In all layouts of A and B; each order of C, and each dtype, in every other case."""
    tile, turn = FITTED[number], number // 2 + ("nn", "nt", "tn", "tt").index(a_and_b)
    layout = a_and_b + "nt"[turn % 2]
    dtype = (torch.bfloat16, torch.float16)[turn // 2 % 2]
    transposed = layout[2:] == "t"
    swapped = bool(tile["SWAP"]) != transposed
    for M, N, K, more, start in (
        (134, 1208, 136, 0, 0), (2056, 152, 1064, 8, 8), (213, 2000, 8, 0, 0), (7, 264, 64, 16, 8),
        (1, 1024, 72, 0, 0), (1000, 1, 64, 0, 0), (301, 449, 328, 3, 1),
    ):  # fmt: skip
        pitch = (M if transposed else N) + more
        inner = M if transposed else N
        if swapped and (inner % 8 or pitch % 8):
            continue  # TMA does not store it
        a = torch.randn(M, K, device=DEVICE).to(dtype)
        b = torch.randn(K, N, device=DEVICE).to(dtype)
        a = padded(a.mT).mT if layout[0] == "t" else padded(a)
        b = padded(b.mT).mT if layout[1] == "t" else padded(b)
        around, c = memory_of(M, N, dtype, transposed, pitch, start)
        is_stored_thrice(a, b, c, around, tile)
