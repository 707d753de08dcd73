"""Kernels in the clusters that plans of a GPU have: pairs that share loads, parts of K that blocks
exchange. A plan for the CPU has clusters of one block, so each test says which it wants."""

from __future__ import annotations

import dataclasses
from importlib import import_module

import one_case
import pytest
import torch
from padded import padded
from tcgemm.cuda_ref.fusion import TILE
from tcgemm.cuda_ref.rungs import wgmma_persistent

from tcgemm.dispatch import find, problem_of
from tcgemm.problem import Fusion

simulator = import_module("tcgemm.cuda_ref.simulator")

BF16 = torch.bfloat16
LAYOUTS = ["nn", "nt", "tn", "tt"]
ORDERS = ["forward", "reverse", "random:3", "late:4"]


def check(name, shape, layout, plan, *, out=BF16, turned=False, pitched=True, **options):
    """The report of a run whose C is exact and in which nothing is found."""

    def matrix(rows, cols, dtype, transposed, fill):
        if pitched:
            return padded(rows, cols, dtype, transposed, fill)
        height, width = (cols, rows) if transposed else (rows, cols)
        view = fill(height, width).to(dtype)
        return view.mT if transposed else view

    M, N, K = shape
    a = matrix(M, K, BF16, layout[0] == "t", lambda *size: torch.randint(-2, 3, size))
    b = matrix(K, N, BF16, layout[1] == "t", lambda *size: torch.randint(-2, 3, size))
    c = matrix(M, N, out, turned, lambda *size: torch.full(size, float("nan")))
    source = name if hasattr(name, "is_file") else simulator.source_of(name)
    report = simulator.simulate(source, a, b, c, check=True, plan=plan, timeout_s=60, **options)
    assert not report.findings, [str(f) for f in report.findings]
    assert torch.equal(c, (a.double() @ b.double()).to(out)), (shape, layout, turned, plan)
    return report


def in_each_layout(name, shapes, plan, order, **options):
    """With C by rows and by columns in turn; the cluster of the last run."""
    for i, layout in enumerate(LAYOUTS):
        shape = shapes[i % len(shapes)]
        report = check(name, shape, layout, plan, turned=i % 2 == 1, order=order, **options)
    return report.cluster


# Tiles that are full and those that are not, a part of K of one step, and rows that no block of the
# cluster has.
@pytest.mark.spread(8, "splits", "order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("splits", [3, 2, 5, 8])
def test_small_exchanges_sums_by_bulk_copies(splits, order):
    plan = {"BLOCK_M": 32, "BLOCK_N": 32, "SPLITS": splits}
    assert in_each_layout("small", [(71, 5, 1040), (9, 104, 776)], plan, order) == splits
    wide = {"BLOCK_M": 64, "BLOCK_N": 64, "SPLITS": splits}
    for by_elements in (plan, wide):
        shapes = [(9, 75, 701)]
        assert in_each_layout("small", shapes, by_elements, order, pitched=False) == splits


@pytest.mark.spread(8, "splits", "groups", "order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("groups", [2, 1])
@pytest.mark.parametrize("splits", [3, 2, 8])
def test_split_k_adds_the_parts_of_clusters(splits, groups, order):
    plan = {"SPLITS": splits, "GROUPS": groups}
    shapes = [(100, 130, 64 * splits * groups + 40), (5, 264, 1100)]
    for i, layout in enumerate(LAYOUTS):
        report = check("split_k", shapes[i % 2], layout, plan, turned=i > 1, order=order)
        assert report.cluster == splits


@pytest.mark.spread(16, "splits", "width", "order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [48, 64, 112, 128])
@pytest.mark.parametrize("splits", [3, 4, 7])
def test_skinny_adds_the_parts_of_a_cluster(splits, width, order):
    plan = {"BLOCK_N": width, "SPLITS": splits, "SHARED_KB": 200}
    shapes = [(17, 129, 1100), (70, 100, 520), (1, 260, 584)]
    assert in_each_layout("skinny", shapes, plan, order) == splits


@pytest.mark.spread(8, "splits", "width", "order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [64, 48])
@pytest.mark.parametrize("splits", [12, 9, 17, 32])
def test_skinny_adds_more_parts_than_a_cluster_has_by_a_second_kernel(splits, width, order):
    plan = {"BLOCK_M": width, "BLOCK_N": width, "SPLITS": splits, "SHARED_KB": 112}
    shapes = [(3, 72, 64 * splits + 40), (200, 8, 2072), (17, 129, 64 * splits), (1, 24, 4096)]
    assert in_each_layout("skinny", shapes, plan, order) == 1
    assert in_each_layout("skinny", shapes[::-1], plan, order) == 1


@pytest.mark.spread(6, "splits", "order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("splits", [4, 2, 8])
def test_gemv_reads_the_sums_of_its_cluster_tile_after_tile(splits, order):
    plan = {"SPLITS": splits, "WARPS": 4, "BLOCKS": 1}
    for shape in ((1, 1300, 1100), (7, 520, 2056), (17, 300, 72)):
        for layout in ("nn", "nt"):
            assert check("gemv", shape, layout, plan, order=order).cluster == splits
    # B in rows that begin anywhere.
    wide = {"BLOCK_M": 1, "BLOCK_N": 56, "SPLITS": splits, "WARPS": 8, "BLOCKS": 2}
    report = check("gemv", (1, 301, 701), "nn", wide, order=order, pitched=False)
    assert report.cluster == splits


@pytest.mark.spread(5, "shares_a", "order")
@pytest.mark.parametrize("order", [*ORDERS, "late:8"])
@pytest.mark.parametrize("shares_a", [0, 1])
def test_pairs_of_wgmma_persistent_share_a_panel(shares_a, order, tmp_path):
    """Several tiles to a pair, the last with a block that has no tile, and rings that wrap."""
    tile = next(t for t in wgmma_persistent.TILES if (t.BLOCK_M, t.BLOCK_N) == (128, 128))
    values = {key: tile.plan[key] for key in TILE if key in tile.plan} | {"SHARES_A": shares_a}
    source = one_case.source_of(tmp_path, "wgmma_persistent", **values)
    shapes = [(650, 392, 200), (392, 650, 136)]
    for i, layout in enumerate(LAYOUTS):
        report = check(source, shapes[i % 2], layout, {"CLUSTER": 2}, order=order)
        assert (report.cluster, report.grid[0]) == (2, 8)


@pytest.mark.spread(4, "order")
@pytest.mark.parametrize("order", ORDERS)
def test_pairs_of_wgmma_types_share_b(order):
    a, b = torch.randint(-4, 5, (392, 640)).to(torch.int8), torch.randint(-4, 5, (264, 640))
    b, c = b.to(torch.int8).mT, torch.zeros(392, 264, dtype=torch.int32)
    asked = dataclasses.replace(problem_of(a, b, c), compute="int32")
    plan = {**find("cuda", "wgmma_types").plan(asked), "CLUSTER": 2}
    source = simulator.source_of("wgmma_types")
    report = simulator.simulate(
        source, a, b, c, fusion=Fusion(compute="int32"), check=True, plan=plan, order=order
    )
    assert report.cluster == 2
    assert not report.findings, [str(f) for f in report.findings]
    assert torch.equal(c, (a.double() @ b.double()).to(torch.int32))
