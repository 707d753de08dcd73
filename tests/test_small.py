"""The rung small: any rows, by words and staged; and where it is chosen."""

from __future__ import annotations

import dataclasses
import itertools
from importlib import import_module

import pytest
import records
import torch
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.fusion import case

import tcgemm
from tcgemm import accuracy
from tcgemm.dispatch import choose, find
from tcgemm.problem import Problem

simulator = import_module("tcgemm.cuda_ref.simulator")

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
PAIRS = [(F16, F16), (BF16, F32), (BF16, BF16), (F16, F32)]
# Around the tile of 32 and steps of 16; up to one step for each of 16 warps, and beyond.
SHAPES = [
    (1, 1, 1),
    (7, 33, 15),
    (31, 32, 16),
    (33, 31, 17),
    (36, 40, 100),
    (33, 4, 260),
    (5, 6, 1030),
]
STAGED = (40, 24, 136)
"""Of whole vectors, and two stages of them."""


def between(rows, cols, dtype, transposed, offset, fill):
    """A matrix in a buffer full of NaN, with `offset` elements between its rows."""
    height, width = (cols, rows) if transposed else (rows, cols)
    buffer = torch.full((height + 2, width + offset), float("nan"), dtype=dtype)
    view = buffer[1 : height + 1, offset:]
    view.copy_(fill(height, width))
    return view.mT if transposed else view


@pytest.mark.spread(3, "shape", at=2)
@pytest.mark.parametrize(
    ("shape", "offset"),
    [*itertools.product(SHAPES, (1, 4)), (STAGED, 8)],
    ids=lambda value: {1: "elements", 4: "words", 8: "vectors"}.get(value) or str(value),
)
def test_right_at_the_edges_and_nothing_found(shape, offset, thorough):
    M, N, K = shape
    cases = itertools.product(["nn", "nt", "tn", "tt"], [False, True])
    pairs = PAIRS if thorough else PAIRS[::2]
    for i, (layout, turned) in enumerate(cases):
        dtype, out = pairs[(i + i // 2) % len(pairs)]
        for fill in (torch.randn, lambda *size: torch.randint(-2, 3, size)):
            a = between(M, K, dtype, layout[0] == "t", offset, fill)
            b = between(K, N, dtype, layout[1] == "t", offset, fill)
            c = between(M, N, out, turned, offset, lambda *size: torch.full(size, float("nan")))
            report = simulator.simulate(simulator.source_of("small"), a, b, c, check=True)
            assert not report.findings, [str(f) for f in report.findings]
            if fill is torch.randn:
                assert accuracy.error_ratio(a, b, c) < 1, (layout, turned)
            else:
                assert torch.equal(c, (a.double() @ b.double()).to(out)), (layout, turned)


@pytest.mark.parametrize("order", ["reverse", "random:5"])
def test_no_order_of_threads_shows(order):
    a, b = torch.randn(20, 1100).half(), torch.randn(1100, 50).half()
    c = torch.full((20, 50), float("nan"))
    report = simulator.simulate(simulator.source_of("small"), a, b, c, order=order)
    assert not report.findings
    assert accuracy.error_ratio(a, b, c) < 1


def test_any_strides_are_read():
    buffer = torch.randn(40, 60, 3).half()
    a, b = buffer[:, ::2, 1], buffer[0, :30, 0].expand(7, 30).mT
    got = tcgemm.matmul(a, b, backend="cuda", kernel="small", out_dtype=F32)
    assert accuracy.error_ratio(a, b, got) < 1


def problem(M, N, K, layout="nn", **changes):
    a = (K, 1) if layout[0] == "n" else (1, M)
    b = (N, 1) if layout[1] == "n" else (1, K)
    asked = Problem(M, N, K, "bfloat16", "bfloat16", a, b, (N, 1), capability=(9, 0))
    return dataclasses.replace(asked, **changes)


needs_nvcc = pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)


@needs_nvcc
@pytest.mark.parametrize("fusion", [None, tcgemm.problem.Fusion(bias=True)], ids=["plain", "fused"])
def test_it_spills_nothing_and_loads_all_at_once(fusion):
    macros = toolchain.built_by_case(toolchain.source("small"))
    made = records.cuda("small", "sm_90a", case(BF16, fusion, BF16, macros=macros))
    assert made.spill_bytes == 0
    # Types of C; four layouts by words of 8 and of 4 bytes, and staged by 16 and by elements.
    assert len(made.kernels) == 2 * 4 * 4
    staged = [kernel for kernel in made.kernels if kernel.sass["LDSM"] > 0]
    assert len(staged) == len(made.kernels) // 2
    for kernel in made.kernels:
        assert kernel.sass["HMMA"] > 0
        assert kernel.sass["UTMALDG"] == 0
        if kernel not in staged:
            assert kernel.sass["BAR"] == 1
    for kernel in staged:  # four blocks to an SM
        assert kernel.registers <= 64


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    "shape", [(100, 100, 100), (127, 129, 65), (250, 252, 33), (1000, 100, 100), (60, 60, 2050)]
)
def test_small_products_of_any_rows_are_its(shape, layout):
    assert choose(problem(*shape, layout=layout), "cuda").name == "small"


@pytest.mark.parametrize(
    "shape", [(16, 16, 16), (9, 8, 824), (256, 256, 256), (512, 512, 512), (64, 64, 4096)]
)
def test_products_that_tma_reads_are_not(shape):
    assert choose(problem(*shape), "cuda").name != "small"


def test_few_tiles_divide_a_long_k_and_many_do_not():
    plan = find("cuda", "small").plan
    assert plan(problem(9, 8, 824))["SPLITS"] == 7
    assert plan(problem(16, 16, 16))["SPLITS"] == 1
    assert plan(problem(126, 4913, 21, "nt"))["SPLITS"] == 1
    assert plan(problem(2, 35, 1049))["SPLITS"] == 6


def test_a_batch_of_small_products_is_its():
    asked = problem(100, 100, 100, batch=3, batch_strides=(10000, 10000, 10000))
    assert choose(asked, "cuda").name == "small"


def test_vectors_want_rows_and_ends_at_multiples_of_them():
    plan = find("cuda", "small").plan
    assert plan(problem(96, 104, 16))["VECTOR"] == 8
    assert plan(problem(96, 104, 16, a_alignment=8))["VECTOR"] == 4
    assert plan(problem(100, 100, 100))["VECTOR"] == 4
    assert plan(problem(100, 100, 102))["VECTOR"] == 2
    assert plan(problem(100, 100, 101))["VECTOR"] == 1
    assert plan(problem(101, 100, 100))["VECTOR"] == 4
    assert plan(problem(101, 100, 100, "tn"))["VECTOR"] == 1
    assert plan(problem(100, 100, 100, a_alignment=2))["VECTOR"] == 1


def test_sizes_that_its_launcher_cannot_count_are_refused():
    long = Problem(8, 8, 2**31 - 200, "float16", "float16", (2**31, 1), (8, 1), (8, 1))
    assert f"K={2**31 - 200}" in find("cuda", "small").why_not(long)
    assert find("cuda", "small").why_not(dataclasses.replace(long, K=2**31 - 256)) is None
