"""What the rungs refuse, and that the sentence has the numbers in it."""

import dataclasses

import pytest

from tcgemm.dispatch import choose, find, ladder
from tcgemm.errors import UnsupportedError
from tcgemm.problem import Problem


def problem(M=128, N=128, K=128, layout="nn", **changes):
    a = (K, 1) if layout[0] == "n" else (1, M)
    b = (N, 1) if layout[1] == "n" else (1, K)
    asked = Problem(M, N, K, "float16", "float16", a, b, (N, 1), capability=(9, 0))
    return dataclasses.replace(asked, **changes)


def why(name, asked):
    return find("cuda", name).why_not(asked)


VECTORS = ["wmma_double_buffered", "wmma_grouped"]
LIMITED = ["wmma", *VECTORS]
UNLIMITED = ["naive", "tiled", "wmma_any"]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("name", [*LIMITED, *UNLIMITED])
def test_every_rung_takes_every_layout(name, layout):
    assert why(name, problem(layout=layout)) is None


@pytest.mark.parametrize("name", UNLIMITED)
def test_the_others_take_odd_sizes_strides_and_addresses(name):
    odd = problem(7, 13, 5, a_strides=(3, 17), b_strides=(0, 2), a_alignment=2, c_strides=(2, 99))
    assert why(name, odd) is None


@pytest.mark.parametrize("name", LIMITED)
def test_sizes_are_refused_with_the_number_and_what_fits(name):
    reason = why(name, problem(M=100))
    assert "M=100 is no multiple of" in reason
    assert "wmma_any" in reason
    assert ("M=112" if name == "wmma" else "M=128") in reason


MANY = problem(1, 8, 8, batch_strides=(0, 0, 8))
"""Of whose batch each result is a tile."""


@pytest.mark.parametrize(
    "kernel",
    [row for row in (*ladder("cuda"), *ladder("triton")) if "batch" in row.fuses],
    ids=lambda row: row.full_name,
)
def test_more_tiles_than_a_launcher_counts_are_refused(kernel):
    """The launchers of small, gemv and those with a schedule return an error from fewer on."""
    parts = {"small": 8, "thin": 8, "gemv_types": 8, "gemv": 2}
    parts |= {"wgmma_persistent": 2, "wgmma_types": 2}
    most = (2**31 - 1) // parts.get(kernel.name, 1) if kernel.backend == "cuda" else 2**31 - 2**16
    asked = dataclasses.replace(MANY, dtype_in=kernel.pairs[0][0])
    asked = dataclasses.replace(asked, dtype_out=kernel.pairs[0][1], compute="")
    assert kernel.refuse(dataclasses.replace(asked, batch=2**20)) is None
    reason = kernel.refuse(dataclasses.replace(asked, batch=2**31 + 1))
    assert reason
    if "tiles" in reason:
        assert "2147483649 results of 1 x 8 are 2147483649 tiles of" in reason
        assert f"it counts to {most}: split it" in reason
    assert kernel.refuse(dataclasses.replace(asked, batch=most - 10**6)) is None


def test_tiles_of_a_column_major_c_are_counted_as_they_lie():
    """Tiles of mma_float64 have 64 rows and 128 columns: of C as it lies in memory."""
    batch = 2**30
    for M, N, c_strides, tiles in (
        (64, 128, (128, 1), 1),
        (64, 128, (1, 64), 2),
        (128, 64, (64, 1), 2),
        (128, 64, (1, 128), 1),
    ):
        asked = dataclasses.replace(
            problem(M, N, 8), dtype_in="float64", dtype_out="float64", compute="",
            c_strides=c_strides, batch=batch, batch_strides=(0, 0, M * N),
        )  # fmt: skip
        reason = find("cuda", "mma_float64").refuse(asked)
        if tiles == 1:
            assert reason is None, (M, N, c_strides)
        else:
            shape = "128 x 64" if c_strides[0] == 1 else "64 x 128"
            assert f"are {tiles * batch} tiles of {shape}" in str(reason), (M, N, c_strides)
    # The tile of thin is that of C as it is asked for: 4 rows, whichever way they lie.
    thin = problem(
        4, 8, 8, b_strides=(8, 1), c_strides=(1, 4), batch=2**27, batch_strides=(0, 0, 32)
    )
    plan = find("cuda", "thin").plan(thin)
    assert (plan["BLOCK_M"], plan["BLOCK_N"] >= 8) == (4, True)
    assert find("cuda", "thin").refuse(thin) is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("wmma_any", "float16"), ("wmma_types", "float64"), ("wmma_multistage", "float16"),
        ("mma_multistage", "float16"), ("mma_float64", "float64"), ("mma_types", "float64"),
        ("grouped", "float16"),
    ],
)  # fmt: skip
def test_groups_of_tile_rows_that_are_not_counted_are_refused(name, dtype):
    """Tiles are visited in groups of GROUP_M rows, and those of a group counted in 32 bits."""
    kernel = find("triton" if name == "grouped" else "cuda", name)
    for column in (False, True) if name != "grouped" else (False,):

        def long(size, column=column):
            M, N = (size, 1) if column else (1, size)
            of_a, of_b, of_c = ((1, 0), (1, 1), (1, M)) if column else ((8, 1), (0, 1), (N, 1))
            return dataclasses.replace(
                problem(M, N, 8), dtype_in=dtype, dtype_out=dtype, compute="",
                a_strides=of_a, b_strides=of_b, c_strides=of_c,
            )  # fmt: skip

        plan = kernel.plan(long(2**33))
        most = (2**31 - 1) // plan["GROUP_M"]
        most = (2**31 - 2**16) // plan["GROUP_M"] if name == "grouped" else most
        assert kernel.refuse(long(most * plan["BLOCK_N"])) is None
        reason = kernel.refuse(long(most * plan["BLOCK_N"] + 1))
        assert f"{plan['GROUP_M']} rows of tiles of" in reason
        assert f"are {plan['GROUP_M'] * (most + 1)}, and it counts to" in reason


def test_triton_counts_the_tiles_of_a_column_major_c_as_they_lie():
    shape = {"a_strides": (8, 1), "b_strides": (32, 1), "batch_strides": (0, 0, 2048)}
    for name in ("descriptor", "warp_specialized"):
        asked = problem(64, 32, 8, c_strides=(1, 64), batch=2**30, **shape)
        plan = find("triton", name).plan(asked)
        assert (plan["BLOCK_M"], plan["BLOCK_N"], plan.get("SWAP", 1)) == (64, 32, 1)
        reason = find("triton", name).refuse(asked)
        assert f"are {2 * 2**30} tiles of 32 x 64" in reason


@pytest.mark.parametrize(
    ("name", "K", "ok"),
    [
        ("wmma", 16, True),
        ("wmma_double_buffered", 48, True),
        ("wmma_grouped", 48, False),
        ("wmma", 24, False),
    ],
)
def test_the_step_along_k_is_the_limit(name, K, ok):
    assert (why(name, problem(K=K)) is None) == ok


@pytest.mark.parametrize("name", LIMITED)
def test_strides_that_are_neither_1_are_refused(name):
    assert "(256, 2)" in why(name, problem(a_strides=(256, 2)))


@pytest.mark.parametrize("name", LIMITED)
def test_rows_that_are_not_16_byte_aligned_are_refused(name):
    reason = why(name, problem(b_strides=(129, 1)))
    assert reason.startswith("B ")
    assert "129" in reason or "258" in reason


@pytest.mark.parametrize("name", LIMITED)
def test_addresses_are_refused_with_their_alignment(name):
    assert "A is 2-byte aligned" in why(name, problem(a_alignment=2))


@pytest.mark.parametrize("name", VECTORS)
def test_c_needs_aligned_rows_for_vector_stores(name):
    assert why(name, problem(c_strides=(130, 1))).startswith("C ")
    assert why(name, problem(c_strides=(132, 1), dtype_out="float32")) is None


def test_c_may_lie_anywhere_for_wmma():
    assert why("wmma", problem(c_strides=(7, 1000), c_alignment=2)) is None


@pytest.mark.parametrize("name", VECTORS)
def test_a_column_major_c_swaps_the_tile(name):
    assert why(name, problem(c_strides=(1, 128))) is None


def test_bfloat16_fragments_need_capability_8():
    asked = problem(dtype_in="bfloat16", dtype_out="float32", capability=(7, 5))
    assert "has 7.5" in why("wmma", asked)
    assert why("naive", asked) is None
    assert why("wmma", problem(capability=(7, 5))) is None


@pytest.mark.parametrize("name", [*VECTORS, "wmma_any"])
def test_async_copies_need_capability_8(name):
    assert "8.0" in why(name, problem(capability=(7, 5)))


def test_a_leading_dimension_beyond_32_bits_of_offset_is_refused():
    assert str(2**27) in why("wmma", problem(a_strides=(2**27, 1)))


def test_a_refused_rung_names_those_that_take_the_problem():
    with pytest.raises(UnsupportedError, match=r"M=100 is no multiple.*naive, tiled, wmma_any"):
        choose(problem(M=100), "cuda", "wmma")


def test_the_ladder_is_in_order():
    assert [row.name for row in ladder("cuda")][:6] == [
        "naive",
        "tiled",
        "wmma",
        "wmma_double_buffered",
        "wmma_grouped",
        "wmma_any",
    ]
