"""Plausible mistakes in exercises are refused with a sentence that helps, and other ways to be
right pass. Each is the solution, or the starter, with a few words changed."""

from __future__ import annotations

import pytest

from tcgemm.tools.exercise.catalogue import EXERCISES, find
from tcgemm.tools.exercise.command import failures

BARRIER = "    __syncthreads();\n"
LANDED = "    tcgemm::cp_async_wait<0>();  // this thread's copies have landed\n"
EVERYBODY = "    __syncthreads();             // and so have everybody's\n"
NEXT = "    if (k + BLOCK < K) load(stage ^ 1, k + BLOCK);\n"
COPY = "a[i][x] = first + i < M && k + x < K ? __half2float(*at(gemm.a, first + i, k + x)) : 0.0f;"

MISTAKES = {
    "missing_barrier, of a warp": (
        ("__syncthreads();  // everybody", "__syncwarp();  // everybody"), "race"),
    "missing_barrier, in a branch": (
        ("__syncthreads();  // everybody", "if (row < M) __syncthreads();  // everybody"),
        "divergent barrier"),
    "missing_barrier, only the second": ((BARRIER, ""), "uninitialised"),
    "tail, one of two": (("k + y < K", "k + y <= K"), "out of bounds"),
    "tail, one too few": (("k + x < K", "k + x < K - 1"), "should be -0.7739"),
    "tail, an early return": (
        ("  float sum", "  if (row >= M || col >= N) return;\n  float sum"),
        "exited before barrier"),
    "bank_conflicts, the wrong dimension": (
        ("a[TILE][TILE + PAD]", "a[TILE + PAD][TILE]"), "31,744 of 33,792"),
    "bank_conflicts, no tile": (
        ("a[x][i] *", "__half2float(*at(gemm.a, row, k + i)) *", COPY, ";"), "keep the tile"),
    "async_wait, one group too many": (("wait<0>", "wait<1>"), "async copy in flight"),
    "async_wait, after the barrier": (
        (LANDED + EVERYBODY, EVERYBODY + LANDED), "async copy in flight"),
    "async_wait, nothing in flight": (
        (LANDED + EVERYBODY + NEXT, NEXT + LANDED + EVERYBODY), "that it has just started"),
    "coalescing, C transposed": (("row, col, sum)", "col, row, sum)"), "elements of C are wrong"),
    "uncomputed_tiles, without min": (
        ("min(tiles_m - first, GROUP)", "tiles_m - first"), "written twice"),
    "uncomputed_tiles, in rows": (
        ("first + within % height, tile_n = within / height",
         "blockIdx.x / tiles_n, tile_n = blockIdx.x % tiles_n"), "in groups of 4 tile rows"),
    "race, barrier in the branch": (
        ("if (part < half) sums[part] += sums[part + half];\n    __syncthreads();",
         "if (part < half) { sums[part] += sums[part + half]; __syncthreads(); }"),
        "exited before barrier"),
    "ring_parity, flipped in each step": (("stage = 0, phase ^", "stage = 0; phase ^"), "for ever"),
    "grouped_order, row and column exchanged": (
        ("return first + within % rows, within // rows",
         "return within // rows, first + within % rows"), "never visited"),
    "grouped_order, the last group too high": (("min(tiles_m - first, GROUP_M)", "GROUP_M"),
                                               "5 are never visited"),
    "swizzle, without the remainder": (("(row % 8)", "row"), "stored at [8, 9"),
    "swizzle, nothing returned": (("return unit", "unit"), "place(0, 0) returns None"),
    "swizzle, another name": (("def place", "def position"), "no function 'place'"),
    "num_stages, an unknown name": (("block_m + block_n", "block_m + block"),
                                    "it raises at line 9: NameError"),
    "num_stages, below zero": (("max(0, 227 * 1024 - c_bytes)", "(227 * 1024 - c_bytes)"),
                               "262144) is -2, and 0 fit"),
    "k_tail, one operand": (("in_k[:, None] & (offs_n < N)", "(offs_n < N)"), "NaN stands behind"),
    "k_tail, each block as the first": (("offs_k < K - k", "offs_k < K"), "NaN stands behind"),
    "accumulator, each block narrowed": (
        ("tl.dot(a_block, b_block)", "tl.dot(a_block, b_block).to(tl.float16)"), "2047"),
    "accumulator, of another type": (
        ("dtype=tl.float32", "dtype=tl.float16"), "Triton does not compile it"),
    "roofline, in other units": (("1000 * peak", "peak"), "is 0.206125, and should be 206.125"),
}  # fmt: skip
"""Exercise and mistake -> what is changed in the solution, pair by pair; what is said of it."""

RIGHT = {
    "missing_barrier, first in the loop": (
        "starter", ("    a[y][x] =", "    if (k) __syncthreads();\n    a[y][x] =")),
    "bank_conflicts, a swizzle": (
        "starter", ("a[i][x] =", "a[i][x ^ i] =", "a[x][i] *", "a[x][i ^ x] *")),
    "async_wait, all but the newest": ("solution", (
        LANDED + EVERYBODY + NEXT,
        "    if (k + BLOCK < K) { load(stage ^ 1, k + BLOCK); tcgemm::cp_async_wait<1>(); }\n"
        "    else tcgemm::cp_async_wait<0>();\n" + EVERYBODY)),
    "race, one warp": ("solution", ("__syncthreads();  // each", "__syncwarp();  // each")),
    "swizzle, by a rotation": ("solution", ("unit ^ (row % 8)", "(unit + row) % 8")),
    "grouped_order, as a list": (
        "solution", ("return first + within % rows, within // rows",
                     "return [first + within % rows, within // rows]")),
    "accumulator, added by the dot": (
        "solution", ("acc += tl.dot(a_block, b_block)", "acc = tl.dot(a_block, b_block, acc)")),
}  # fmt: skip
"""Exercise and way -> the text to begin from, and what is changed in it."""


def written(tmp_path, exercise, kind, changes):
    text = exercise.text(kind)
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / exercise.file_name
    path.write_text(text)
    return path


FIRST = {mistake.partition(",")[0]: mistake for mistake in reversed(MISTAKES)}
"""Exercise -> the mistake that ``make test`` makes in it; test_exercises.py checks its solution."""
COMPILED_THERE = "k_tail"
"""Compiled for a GPU as the accumulator is: of these two one is right and one has a mistake in
``make test``."""


def test_each_exercise_has_a_mistake_but_where_the_starter_is_kept():
    assert [each.name for each in EXERCISES if each.name not in FIRST] == [EXERCISES[-1].name]


IN_MAKE_TEST = {mistake for exercise, mistake in FIRST.items() if exercise != COMPILED_THERE}


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(each, marks=[] if each in IN_MAKE_TEST else [pytest.mark.exhaustive])
        for each in MISTAKES
    ],
)
def test_a_mistake_is_refused_with_a_sentence_that_helps(mistake, tmp_path):
    exercise = find(mistake.partition(",")[0])
    changes, said = MISTAKES[mistake]
    lines = failures(exercise, written(tmp_path, exercise, "solution", changes))
    assert any(said in line for line in lines), lines


@pytest.mark.spread(2, "way", at=1)
@pytest.mark.parametrize("way", RIGHT)
def test_another_way_to_be_right_passes(way, tmp_path):
    exercise = find(way.partition(",")[0])
    kind, changes = RIGHT[way]
    assert failures(exercise, written(tmp_path, exercise, kind, changes)) == []
