"""What TMA cannot read, said with the numbers, and what it can."""

import dataclasses

import pytest

from tcgemm.dispatch import choose, find, ladder
from tcgemm.problem import Problem

NAMES = [
    row.name
    for row in ladder("cuda")
    if row.capability == (9, 0)
    and ("bfloat16", "bfloat16") in row.pairs
    and row.name not in ("gemv", "small", "thin")
]
pytestmark = pytest.mark.parametrize("name", NAMES)


def problem(M=128, N=128, K=128, layout="nn", **changes):
    a = (K, 1) if layout[0] == "n" else (1, M)
    b = (N, 1) if layout[1] == "n" else (1, K)
    asked = Problem(M, N, K, "bfloat16", "bfloat16", a, b, (N, 1), capability=(9, 0))
    return dataclasses.replace(asked, **changes)


def why(name, asked):
    return find("cuda", name).why_not(asked)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_layout_is_taken(name, layout):
    assert why(name, problem(layout=layout)) is None


def test_odd_sizes_are_taken_where_rows_are_padded(name):
    assert why(name, problem(127, 129, 71, a_strides=(72, 1), b_strides=(136, 1))) is None


def test_an_odd_extent_across_the_rows_is_taken(name):
    assert why(name, problem(M=127)) is None
    assert why(name, problem(M=127, layout="tn")) is not None


@pytest.mark.parametrize("pitch", [100, 129, 4, 0])
def test_rows_that_are_no_multiple_of_16_bytes_are_refused(name, pitch):
    reason = why(name, problem(b_strides=(pitch, 1)))
    assert reason.startswith("B has ")
    assert str(pitch * 2) in reason
    assert "wmma_any" in reason


def test_the_remedy_is_the_next_pitch_that_fits(name):
    assert "pad the rows to 104 elements" in why(name, problem(b_strides=(100, 1)))


def test_addresses_are_refused_with_their_alignment(name):
    assert why(name, problem(a_alignment=8)).startswith("A is 8-byte aligned and TMA needs 16")


def test_strides_that_are_neither_1_are_refused(name):
    assert "(256, 2)" in why(name, problem(a_strides=(256, 2)))


def test_overlapping_rows_are_taken(name):
    assert why(name, problem(a_strides=(8, 1))) is None


def test_the_stride_of_an_extent_of_1_is_free(name):
    assert why(name, problem(M=1, a_strides=(3, 1))) is None
    assert why(name, problem(K=1, a_strides=(1, 5), b_strides=(7, 1))) is None
    assert why(name, problem(K=1, a_strides=(8, 5), b_strides=(7, 1))) is None
    assert why(name, problem(K=1, a_strides=(3, 5), b_strides=(7, 1))) is not None


@pytest.mark.parametrize("strides", [(1, 128), (7, 1000), (129, 1)])
def test_c_may_lie_anywhere(name, strides):
    assert why(name, problem(c_strides=strides, c_alignment=2)) is None


def test_extents_beyond_32_bit_coordinates_are_refused(name):
    assert "M=2147483647" in why(name, problem(M=2**31 - 1))


def test_an_older_gpu_is_refused(name):
    assert "9.0 and this GPU has 8.0" in why(name, problem(capability=(8, 0)))


def test_the_plan_names_the_tile(name):
    assert {"BLOCK_M", "BLOCK_N", "BLOCK_K"} <= set(find("cuda", name).plan(problem()))


def test_a_tma_rung_is_chosen_and_another_where_tma_cannot(name):
    assert choose(problem(512, 512, 512), "cuda").name in NAMES
    assert choose(problem(b_strides=(129, 1)), "cuda").name == "small"


def test_no_other_gpu_has_wgmma(name):
    for capability in ((10, 0), (12, 0)):
        reason = why(name, problem(capability=capability))
        assert reason == (
            "wgmma exists on compute capability 9.0 alone and this GPU has {}.{}".format(
                *capability
            )
        )
        assert choose(problem(capability=capability), "cuda").capability == (8, 0)
