"""skinny of tens of columns over a long K in odd rows: what is computed, compiled and chosen."""

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
from conftest import DEVICE
from triton_requests import LIMITS, OF_KIND

import tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.choosing import fitting
from tcgemm.gpus import find
from tcgemm.problem import Fusion, Problem
from tcgemm.request import planning_for

compile_only = import_module("tcgemm.triton_kernels.inspection.compile_only")
plans = import_module("tcgemm.triton_kernels.by_name")
skinny_types = import_module("tcgemm.triton_kernels.shapes.skinny_types")

KINDS = [*skinny_types.IN_ODD_ROWS]
ROWS = Path(__file__).parents[1] / "reports/nvidia-h200/trials/columns_triton.csv"


def problem(kind, M, N, K, layout="nn", **changes):
    dtype_in, dtype_out, compute = OF_KIND[kind]
    asked = Problem.stored(
        M, N, K, dtype_in, dtype_out, layout, device="cuda", capability=(9, 0), compute=compute
    )  # fmt: skip
    return replace(asked, **changes)


@pytest.fixture
def on_an_h200():
    with planning_for(find("h200")):
        yield


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(13, 261, 515), (261, 13, 515), (270, 29, 517)])
def test_every_tile_computes_the_product_in_parts_and_whole(kind, size):
    torch.manual_seed(5)
    M, N, K = size
    dtype, compute = getattr(torch, OF_KIND[kind][0]), OF_KIND[kind][2]
    for number, layout in enumerate(("nn", "nt", "tn", "tt")):
        a = torch.randn((M, K) if layout[0] == "n" else (K, M), device=DEVICE, dtype=dtype)
        b = torch.randn((K, N) if layout[1] == "n" else (N, K), device=DEVICE, dtype=dtype)
        a, b = a if layout[0] == "n" else a.mT, b if layout[1] == "n" else b.mT
        asked = problem(kind, *sorted((M, N)), K, layout)
        found = list(skinny_types.tiles(asked))
        assert len(found) == len(skinny_types.IN_ODD_ROWS[kind])
        rows, columns, depth, stages, warps = found[number % len(found)]
        plan = {
            "SWAP": int(M < N), "BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": depth, "PDL": 0,
            "NUM_STAGES": stages, "NUM_WARPS": warps, "SPLITS": 1 + number,
        }  # fmt: skip
        c = accuracy.poisoned((M, N), dtype, DEVICE)
        dispatch.load("triton", "skinny")(a, b, c, Fusion(compute=compute), **plan)
        assert accuracy.error_ratio(a, b, c, Fusion(compute=compute)) <= 1, layout


@pytest.mark.parametrize("kind", KINDS)
def test_a_tile_stays_in_registers(kind):
    requests = []
    for few, layout in itertools.product((13, 29), ("nn", "nt")):
        asked = problem(kind, few, 4003, 4001, layout)
        for rows, columns, depth, stages, warps in skinny_types.tiles(asked):
            plan = {
                **plans.plan("skinny", asked), "BLOCK_M": rows, "BLOCK_N": columns,
                "BLOCK_K": depth, "NUM_STAGES": stages, "NUM_WARPS": warps, "SPLITS": 4,
            }  # fmt: skip
            dtype_in, dtype_out, compute = OF_KIND[kind]
            requests.append(
                compile_only.Request(
                    "skinny", plan, dtype_in, dtype_out, layout, M=few, N=4003, K=4001,
                    compute=compute,
                )
            )  # fmt: skip
    for request, built in zip(requests, records.triton(requests), strict=True):
        assert built.spill_bytes == 0, request
        assert built.counts["DMMA" if kind == "float64" else "HGMMA"] > 0
        assert built.shared_bytes <= LIMITS[9, 0]


def test_the_class_is_tens_of_columns_over_a_long_k_in_odd_rows():
    belongs = skinny_types.in_odd_rows
    for kind in KINDS:
        assert belongs(problem(kind, 3551, 25, 10119))
        assert belongs(problem(kind, 25, 3551, 10119, "tt"))
        assert not belongs(problem(kind, 3552, 32, 10240)), "rows of whole vectors"
        assert not belongs(problem(kind, 3551, 8, 10119))
        assert not belongs(problem(kind, 3551, 33, 10119))
        assert not belongs(problem(kind, 3551, 25, 511)), "a short K"
        assert not belongs(problem(kind, 255, 25, 10119)), "no side is wide"
    assert not belongs(problem("ieee", 3551, 25, 10119))
    for kind, (M, N, K) in itertools.product(KINDS, ((25, 3551, 10119), (9, 300, 515))):
        for config in skinny_types.configs(problem(kind, M, N, K), 132):
            steps = -(-K // config["BLOCK_K"])
            assert config["SPLITS"] == 1 or steps // config["SPLITS"] >= skinny_types.LEAST_STEPS


def timed():
    """Each product of the class, with the time of each plan, and of the one that was taken."""
    found, before = defaultdict(dict), {}
    with ROWS.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["what"] == "torch":
                continue
            M, N, K = (int(row[side]) for side in "MNK")
            kind = row["compute"]
            asked = problem(kind, M, N, K, row["layout"])
            if not skinny_types.in_odd_rows(asked):
                continue
            plan = frozenset(fitting.plan_of(row["config"]).items())
            found[asked][row["kernel"], plan] = float(row["us"])
            if row["what"] == "taken":
                before[asked] = float(row["us"])
    return found, before


def test_what_is_taken_is_nearly_the_fastest_that_was_timed(on_an_h200):
    found, before = timed()
    lost, gained = defaultdict(list), defaultdict(list)
    for asked, times in found.items():
        row = dispatch.choose(asked, "triton")
        assert row.name == "skinny", asked
        us = times.get((row.name, frozenset(row.plan(asked).items())))
        if us is not None:  # a plan of another number of parts than those that were timed
            lost[asked.compute].append(us / min(times.values()))
            gained[asked.compute].append(before[asked] / us)
    for kind, least, most, gain in (
        ("float64", 9, 1.04, 1.4), ("tf32x3", 6, 1.12, 1.03), ("tf32", 5, 1.04, 1.1)
    ):  # fmt: skip
        assert len(lost[kind]) >= least
        assert statistics.geometric_mean(lost[kind]) < most, kind
        assert statistics.geometric_mean(gained[kind]) > gain, kind


def test_an_unnamed_call_is_right_three_times_over():
    for dtype in (torch.float64, torch.float32):
        for _ in range(3):
            a = torch.randn(300, 513, device=DEVICE, dtype=dtype)
            b = torch.randn(513, 11, device=DEVICE, dtype=dtype)
            c = tcgemm.matmul(a, b, backend="triton")
            assert accuracy.error_ratio(a, b, c, Fusion()) <= 1
