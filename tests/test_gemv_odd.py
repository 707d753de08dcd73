"""gemv by one row or column, where no row of the larger operand is a multiple of 16 bytes."""

from __future__ import annotations

import dataclasses
from importlib import import_module

import pytest
import torch
from odd_rows import BF16, among_nan, integers, is_right_wherever_rows_begin, product
from test_small_shapes import problem

from tcgemm.dispatch import choose, find
from tcgemm.repacking import worth

simulator = import_module("tcgemm.cuda_ref.simulator")

# One column or row of every kind: less than a unit of 16 bytes, parts of a warp, many blocks.
SHAPES = [
    (1, 1, 333),
    (1, 9, 1),
    (1, 50, 3),
    (5, 1, 2051),
    (1, 257, 73),
    (130, 1, 1101),
    (1, 700, 7),
]
# Elements between the rows, and before the first.
PLACES = [(0, 0), (3, 0), (0, 1), (1, 5)]


@pytest.mark.spread(7, "shape", "layout")
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_wherever_rows_begin(shape, layout):
    is_right_wherever_rows_begin("gemv", shape, layout, PLACES)


@pytest.mark.spread(2, "columns")
@pytest.mark.parametrize("columns", [1, 4, 16, 128])
def test_right_with_any_number_of_threads_to_a_column(columns):
    """A column for a block, for warps, and for some lanes; and more of it than comes at once."""
    a, b = integers(1, 3301).to(BF16), among_nan(3301, 19, True, integers, 0, 3)
    c = torch.full((1, 19), float("nan"), dtype=BF16)
    plan = {"BLOCK_M": 1, "BLOCK_N": columns, "SPLITS": 1, "WARPS": 16, "BLOCKS": 2}
    report = simulator.simulate(simulator.source_of("gemv"), a, b, c, check=True, plan=plan)
    assert not report.findings
    assert torch.equal(c, (a.double() @ b.double()).to(BF16))


@pytest.mark.spread(2, "columns")
@pytest.mark.parametrize("columns", [24, 56, 120, 248])
def test_right_with_any_width_of_strip(columns):
    a, b = integers(1, 1301).to(BF16), among_nan(1301, 301, False, integers, 0, 3)
    c = torch.full((1, 301), float("nan"), dtype=BF16)
    plan = {"BLOCK_M": 1, "BLOCK_N": columns, "SPLITS": 1, "WARPS": 16, "BLOCKS": 2}
    report = simulator.simulate(simulator.source_of("gemv"), a, b, c, check=True, plan=plan)
    assert report.grid[0] == -(-301 // columns)
    assert not report.findings
    assert torch.equal(c, (a.double() @ b.double()).to(BF16))


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_nan_of_a_neighbour_stays_there(layout):
    """In the same 16 bytes as what comes after it, or before."""
    for of_b in (False, True):
        a, b = torch.ones(1, 53, dtype=BF16), among_nan(53, 37, layout[1] == "t", torch.ones, 0, 0)
        (b[:, 17] if of_b else a[0, 7:8]).fill_(float("nan"))
        c = torch.empty(1, 37, dtype=BF16)
        product("gemv", a, b, c)
        assert c.isnan().sum() == (1 if of_b else 37)
        assert c[0, 17].isnan()


ODD = [
    (1, 3001, 4001, "nn", (4001, 1), (3001, 1)),
    (1, 16001, 8001, "nt", (8001, 1), (1, 8001)),
    (467, 1, 13283, "tn", (1, 467), (1, 1)),
]


@pytest.mark.parametrize(("M", "N", "K", "layout", "a", "b"), ODD, ids=str)
def test_it_is_chosen_and_nothing_is_copied(M, N, K, layout, a, b):
    asked = dataclasses.replace(problem(M, N, K, layout), a_strides=a, b_strides=b)
    assert choose(asked, "cuda").name == "gemv"
    assert worth(asked, "cuda") is None


def test_a_row_that_shared_memory_has_no_room_for_is_refused():
    asked = problem(1, 40, 32769, "nt", b_strides=(1, 32769))
    assert "K=32769" in find("cuda", "gemv").why_not(asked)
    assert find("cuda", "gemv").why_not(problem(1, 41, 32769)) is None
