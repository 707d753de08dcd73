"""Problem: what is asked, its transpose, its least traffic, and what counts as plain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tcgemm.problem import Problem

ASKED = Problem(
    3, 5, 7, "float16", "float32", (8, 1), (2, 20), (5, 1),
    a_alignment=16, b_alignment=2, c_alignment=64, batch=2, batch_strides=(100, 200, 300),
)  # fmt: skip


def test_the_transpose_swaps_a_and_b_and_all_that_belongs_to_them():
    turned = ASKED.transposed()
    assert (turned.M, turned.N, turned.K) == (5, 3, 7)
    assert (turned.a_strides, turned.b_strides, turned.c_strides) == ((20, 2), (1, 8), (1, 5))
    assert (turned.a_alignment, turned.b_alignment, turned.c_alignment) == (2, 16, 64)
    assert turned.batch_strides == (200, 100, 300)
    assert turned.transposed() == ASKED


def test_the_least_traffic_reads_c_where_beta_is_not_0():
    read, written = 2 * (3 + 5) * 7 * 2, 2 * 3 * 5 * 4
    assert ASKED.bytes == read + written
    assert replace(ASKED, beta=0.5, c_in_strides=(5, 1)).bytes == read + 2 * written


@pytest.mark.parametrize(
    ("M", "K", "strides", "letter"),
    [
        (3, 7, (7, 1), "n"),
        (3, 7, (1, 3), "t"),
        (3, 7, (14, 2), "s"),
        (1, 7, (7, 2), "t"),  # one row: whichever way its numbers step, it is a stored column
        (3, 1, (2, 5), "n"),
    ],
)
def test_the_layout_is_that_of_the_strides_that_count(M, K, strides, letter):
    assert replace(ASKED, M=M, K=K, a_strides=strides).layout[0] == letter


@pytest.mark.parametrize(
    "more",
    [
        {"mma_shape": "16x16x16"}, {"compute": "float16"}, {"alpha": 2.0}, {"bias": True},
        {"beta": 1.0, "c_in_strides": (5, 1)}, {"epilogue": "relu"}, {"dtype_in": "float64"},
    ],
    ids=str,
)  # fmt: skip
def test_what_asks_for_more_than_a_product_is_not_plain(more):
    assert ASKED.plain
    assert not replace(ASKED, **more).plain
