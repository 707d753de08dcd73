"""What is chosen where every kernel was raced on an H200, and what was taken before was slower.

The microseconds are in reports/nvidia-h200/trials/races.csv, those of tree 253f7fa where no other
is named.
"""

from __future__ import annotations

import pytest
from tcgemm.cuda_ref.planning.cost import MOST_SPLITS
from tcgemm.cuda_ref.shapes import skinny

from tcgemm import dispatch, gpus, repacking
from tcgemm.problem import Problem
from tcgemm.request import planning_for


@pytest.fixture(autouse=True)
def on_an_h200():
    with planning_for(gpus.find("h200")):
        yield


def chosen(backend, M, N, K, layout, dtype="bfloat16"):
    problem = Problem.stored(M, N, K, dtype, dtype, layout, device="cuda", capability=(9, 0))
    row = dispatch.choose(problem, backend)
    return row.name, row.plan(problem), problem


@pytest.mark.parametrize(
    ("M", "N", "K", "layout"),
    [(4, 96, 15456, "nn"), (64, 64, 10071, "tn"), (20, 64, 13888, "nt"), (48, 16, 12912, "tt")],
)
def test_a_long_k_over_few_columns_has_more_parts_than_a_cluster(M, N, K, layout):
    """5.7, 5.0, 5.9 and 4.9 us; by one_wave 7.2, 5.8, 7.4 and 7.3."""
    name, plan, _ = chosen("cuda", M, N, K, layout)
    assert name == "skinny"
    assert plan["SPLITS"] > MOST_SPLITS


def test_a_few_short_rows_have_no_such_parts():
    """A lies in rows of its 16 rows: TMA reads 64 of them a step."""
    for layout, has in (("tn", False), ("nn", True)):
        problem = Problem.stored(16, 304, 10608, "bfloat16", "bfloat16", layout, device="cuda")
        tried = skinny.candidates(problem, 132)
        assert any(config["SPLITS"] > MOST_SPLITS for config in tried) == has


@pytest.mark.parametrize(
    ("M", "N", "K", "layout", "kernel"),
    [
        (2, 8, 10872, "nn", "thin"),  # 3.8 us, one_wave 7.2
        (16, 16, 12003, "tn", "thin"),  # 5.8, one_wave 6.5
        (32, 32, 224, "tt", "small"),  # 2.4, thin 3.4
        (2, 7904, 480, "nt", "small"),  # 4.7, one_wave 5.1, wgmma_persistent 7.2
        (2, 4568, 1288, "nt", "one_wave"),  # 6.6, gemv 8.7
    ],
)
def test_few_rows_get_the_kernel_that_was_the_faster(M, N, K, layout, kernel):
    assert chosen("cuda", M, N, K, layout)[0] == kernel


@pytest.mark.parametrize(
    ("M", "N", "K", "layout", "pairs"),
    [
        (5604, 1112, 8, "nt", (2, 0)),  # 6.4 us, 8.7 without pairs
        (16136, 248, 24, "tt", (2, 0)),  # 5.0, 7.0
        (569, 7992, 24, "nt", (2, 1)),  # 5.9, 7.1, and 7.3 where they share B: five rows of tiles
        (7960, 456, 8, "tt", (2, 0)),  # 5.1, and 6.4 where they share A, whose rows are long
        (1258, 2504, 8, "nn", (1, 0)),  # 4.8, 5.5 in pairs: B lies by rows
        (1900, 4536, 40, "nt", (1, 0)),  # 8.7, 8.9: K is longer
    ],
)
def test_a_short_k_in_split_sectors_goes_in_pairs(M, N, K, layout, pairs):
    problem = chosen("cuda", M, N, K, layout)[2]
    plan = dispatch.find("cuda", "wgmma_persistent").plan(problem)
    if (plan["BLOCK_M"], plan["BLOCK_N"]) == (128, 128):
        assert (plan["CLUSTER"], plan["SHARES_A"]) == pairs
    else:
        assert plan["CLUSTER"] == pairs[0]


@pytest.mark.parametrize(
    ("M", "N", "K"), [(231, 535, 233), (249, 867, 432), (287, 237, 3614), (573, 157, 3492)]
)
def test_odd_rows_of_triton_are_multiplied_as_they_lie(M, N, K):
    """By skinny 4.8, 8.0, 11.0 and 12.6 us; by pipelined 12.4 and 21.0, and the two others behind
    copies 24.6 and 20.1."""
    name, plan, problem = chosen("triton", M, N, K, "tn", "float16")
    assert name == "skinny"
    assert plan["BLOCK_M"] == 64
    assert repacking.worth(problem, "triton") is None


@pytest.mark.parametrize(
    ("M", "N", "K", "layout"), [(6600, 12824, 106, "tn"), (7194, 6456, 24, "nt")]
)
def test_many_waves_of_split_sectors_are_not_left_to_ping_pong(M, N, K, layout):
    """65 and 44 us by 128 x 192, of tree 2f2ae20 and d74b8f1; 77 and 49 in ping-pong."""
    name, plan, _ = chosen("cuda", M, N, K, layout)
    assert (name, plan["PINGPONG"]) == ("wgmma_persistent", 0)


def test_few_waves_are():
    name, plan, _ = chosen("cuda", 12543, 1864, 8, "nt", "float16")
    assert (name, plan["PINGPONG"]) == ("wgmma_persistent", 1)


@pytest.mark.parametrize(
    ("M", "N", "K", "layout", "dtype", "columns"),
    [
        (16316, 296, 4008, "nt", "bfloat16", (160, 192)),  # 79 and 80 us, by 192 x 128 106
        (681, 7128, 11544, "nn", "float16", (176, 192)),  # by 192: 195, by split_k 246
        (14991, 360, 2728, "nn", "float16", (192,)),  # 60, by 128 x 192 77
    ],
)
def test_tiles_of_256_rows_are_taken_where_they_read_less(M, N, K, layout, dtype, columns):
    """Of tree 2f2ae20, but for 256 x 160: of ab980eb, in three stages. Where fewer columns than
    192 do for all tiles to run at once, the model takes them: 256 x 176 was not raced."""
    name, plan, _ = chosen("triton", M, N, K, layout, dtype)
    assert (name, plan["BLOCK_M"]) == ("warp_specialized", 256)
    assert plan["BLOCK_N"] in columns
    side, other = (M, N) if plan.get("SWAP") else (N, M)
    assert -(-side // plan["BLOCK_N"]) * -(-other // 256) <= 132
