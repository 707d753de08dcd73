"""thin: up to four rows or columns of C, by operands that begin anywhere, on CUDA cores."""

from __future__ import annotations

import dataclasses
from importlib import import_module

import pytest
import records
import torch
from odd_rows import BF16, among_nan, integers, is_right_wherever_rows_begin, product
from tcgemm.cuda_ref.build import toolchain
from test_small_shapes import problem

from tcgemm.choosing import within
from tcgemm.dispatch import choose, find
from tcgemm.problem import Fusion
from tcgemm.repacking import worth

thin = import_module("tcgemm.cuda_ref.shapes.thin")

# Of C one element, less than a thread has, many blocks; of K one, less than a warp, several trips.
SHAPES = [
    (1, 1, 1),
    (1, 21, 81),
    (2, 355, 19),
    (3, 5, 1291),
    (4, 33, 130),
    (150, 4, 7),
    (9, 11, 333),
]
PLACES = [(0, 0), (3, 1), (1, 5)]


@pytest.mark.spread(7, "shape", "layout")
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_wherever_rows_begin(shape, layout):
    is_right_wherever_rows_begin("thin", shape, layout, PLACES)


@pytest.mark.spread(4, "layout", "order")
@pytest.mark.parametrize("order", ["forward", "reverse", "random:3", "late:4"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_right_with_any_lanes_warps_and_parts_of_K(layout, order):
    """Powers of two of lanes along N and of warps along K, clusters of any number of blocks."""
    a, b = (
        among_nan(3, 701, False, integers, 3, 1),
        among_nan(701, 37, layout[1] == "t", integers, 0, 3),
    )
    c = torch.empty(37, 3, dtype=BF16).mT
    expected = (a.double() @ b.double()).to(BF16)
    for lanes, warps, splits in (
        (1, 8, 3),
        (2, 4, 1),
        (4, 1, 5),
        (8, 2, 2),
        (16, 8, 8),
        (32, 1, 1),
    ):
        columns = thin.COLS * lanes * (thin.ALL_WARPS // warps)
        plan = {"BLOCK_M": 4, "BLOCK_N": columns, "WARPS": warps, "SPLITS": splits}
        report = product("thin", a, b, c, plan, order=order)
        assert report.grid[0] == -(-37 // columns) * splits
        assert report.cluster == splits
        assert torch.equal(c, expected), plan


def test_nan_of_an_element_reaches_its_row_and_column_alone():
    a, b = among_nan(2, 53, False, torch.ones, 0, 0), among_nan(53, 9, True, torch.ones, 0, 0)
    a[1, 7], b[52, 4] = float("nan"), float("nan")
    c = torch.empty(2, 9, dtype=BF16)
    product("thin", a, b, c)
    assert c.isnan().nonzero().tolist() == [[0, 4], *([1, n] for n in range(9))]


def test_the_kernel_of_a_plain_product_and_the_one_of_others_agree():
    a, b = (torch.randn(*size).to(BF16) for size in ((2, 45), (45, 30)))
    plain, other = (torch.empty(2, 30, dtype=BF16) for _ in range(2))
    run = import_module("tcgemm.cuda_ref").load("thin")
    run(a, b, plain)
    run(a, b, other, Fusion(bias=torch.zeros(30, dtype=BF16)))
    assert torch.equal(plain, other)


# Odd rows of few columns, whose K is short, divided, or a long stream; C's rows are not its own.
CHOSEN = [
    (1, 21, 81, "tn", (1, 1), (21, 1), "thin"),
    (62, 1, 527, "nt", (527, 1), (1, 527), "thin"),
    (3, 21, 12509, "tt", (1, 3), (1, 12509), "thin"),
    (2226, 1, 1865, "nn", (1865, 1), (1, 1), "thin"),
    (1, 16001, 8001, "nt", (8001, 1), (1, 8001), "gemv"),
    (3, 12001, 21, "nt", (21, 1), (1, 21), "small"),
    (5, 99, 9999, "tt", (1, 5), (1, 9999), "small"),
    (16, 13, 12145, "nt", (12145, 1), (1, 12145), "thin"),
    (3, 64, 14592, "nt", (14592, 1), (1, 14592), "skinny"),
    (4, 512, 4096, "nn", (4096, 1), (512, 1), "small"),
]


@pytest.mark.parametrize(("M", "N", "K", "layout", "a", "b", "kernel"), CHOSEN, ids=str)
def test_it_is_chosen_where_it_was_the_fastest(M, N, K, layout, a, b, kernel, monkeypatch):
    """reports/nvidia-h100-sxm/trials/thin.csv; of 3 x 64 x 14592, where 5.6 us was the least then,
    what divides K further since (the races of 253f7fa)."""
    monkeypatch.setattr(within, "slug_of", lambda problem: "nvidia-h200")
    asked = dataclasses.replace(problem(M, N, K, layout), a_strides=a, b_strides=b)
    assert choose(asked, "cuda").name == kernel
    assert worth(asked, "cuda") is None or kernel != "thin"


def test_a_column_for_each_warp_stays_with_gemv_whatever_the_model_says(monkeypatch):
    monkeypatch.setattr(within, "slug_of", lambda problem: "nvidia-h200")
    sure = import_module("tcgemm.cuda_ref").sure
    row = problem(1, 64, 2048, "nt")
    assert sure(row, "gemv")
    assert choose(row, "cuda").name == "gemv"
    assert not sure(problem(1, 64, 2048, "nn"), "gemv")
    assert not sure(problem(2, 64, 2048, "nt"), "gemv")
    assert not sure(problem(1, 64, 64, "nt"), "gemv")
    assert not sure(row, "small")


def test_sizes_that_it_cannot_count_are_refused_with_the_numbers():
    assert find("cuda", "thin").why_not(problem(500, 400, 7)) is None
    most = thin.MOST
    assert find("cuda", "thin").why_not(problem(1, 1, most)) is None
    assert f"K={most + 1} and thin counts to {most}" in find("cuda", "thin").why_not(
        problem(1, 1, most + 1)
    )


def test_a_batch_of_more_tiles_than_a_grid_of_clusters_has_is_refused():
    asked = dataclasses.replace(problem(8, 8, 512), batch=2**27, batch_strides=(0, 0, 64))
    assert "tiles of 4 x" in find("cuda", "thin").why_not(asked)


@pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)
def test_it_spills_nothing_and_two_blocks_fit_an_sm():
    """A lane's loads of four steps are on their way together, and C's are all there is besides."""
    made = records.cuda("thin", "sm_90a")
    assert made.spill_bytes == 0
    assert len(made.kernels) == 4 * 3 * 2  # types; one, two and four rows; plain and what follows
    for kernel in made.kernels:
        rows = next(n for n in (1, 2, 4) if f"thinILi{n}E" in kernel.symbol)
        assert kernel.registers <= 128
        assert kernel.sass["HMMA"] == kernel.sass["LDSM"] == 0
        assert kernel.sass["LDG"] >= thin.AT_ONCE * (rows + thin.COLS)
