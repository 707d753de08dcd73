"""warp_specialized with tiles whose K is divided, and the launch that adds the parts."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module

import compiling
import pytest
import torch
from conftest import DEVICE
from test_unaligned_rows import is_stored_thrice, memory_of, padded
from triton_requests import DIVIDED

from tcgemm import dispatch
from tcgemm.choosing import plans
from tcgemm.gpus import find
from tcgemm.problem import Fusion, Problem
from tcgemm.request import planning_for

divided_tiles = import_module("tcgemm.triton_kernels.rungs.divided_tiles")
gluon_launch = import_module("tcgemm.triton_kernels.host.gluon_launch")
k_parts = import_module("tcgemm.triton_kernels.device.k_parts")
matrix_parts = import_module("tcgemm.triton_kernels.device.matrix_parts")
triton_kernels = import_module("tcgemm.triton_kernels")

NAME = "warp_specialized"
NAMES = [f"{tile['BLOCK_M']}x{tile['BLOCK_N']}-swap{tile['SWAP']}" for tile in DIVIDED]
SMS = 132


def problem_of(M, N, K, layout="nn", **changes):
    product = Problem.stored(
        M, N, K, "bfloat16", "bfloat16", layout, device="cuda", capability=(9, 0)
    )
    return replace(product, **changes)


def in_parts(problem):
    return [plan for _, plan in triton_kernels.plans(problem, [NAME]) if plan.get("SPLITS", 1) > 1]


# Which parts.


@pytest.mark.parametrize("parts", [2, 3, 7, 15])
@pytest.mark.parametrize("steps", [15, 16, 61, 178])
def test_parts_are_whole_steps_one_after_the_other_and_none_is_empty(steps, parts):
    ends = [k_parts.bounds_of_part.fn(steps, part, parts) for part in range(parts)]
    assert [first for first, _ in ends] == [0, *(last for _, last in ends[:-1])]
    assert ends[-1][1] == steps
    lengths = [last - first for first, last in ends]
    assert min(lengths) >= 1
    assert max(lengths) == -(-steps // parts)


@pytest.mark.parametrize(
    ("tiles", "steps", "parts"),
    [
        (40, 178, [2, 3]), (66, 100, [2]), (67, 100, []), (10, 12, [2]), (10, 11, []),
        # Of 14 steps three parts are five steps each, as many as of 13 to 15; four are four.
        (1, 30, [2, 3, 4, 5]), (12, 70, [2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ],
)  # fmt: skip
def test_parts_fill_the_sms_at_most_once_and_leave_a_part_some_steps(tiles, steps, parts):
    found = divided_tiles.parts_of(tiles, steps, SMS)
    assert found == parts
    for each in found:
        assert tiles * each <= SMS
        assert steps // each >= divided_tiles.LEAST_STEPS


def test_more_parts_that_shorten_none_are_left_out():
    """Of 50 steps seven parts have up to eight, as six have nine; of 24 steps all are different
    until parts are short."""
    for steps in (24, 50, 97, 178):
        found = divided_tiles.parts_of(1, steps, SMS)
        longest = [-(-steps // each) for each in found]
        assert len(set(longest)) == len(longest)
        assert longest == sorted(longest, reverse=True)


# Who is offered them.


@pytest.mark.parametrize(
    "shape",
    [
        (550, 1520, 11376), (73, 4504, 4472), (88, 2376, 7000), (153, 576, 16000),
        (1710, 408, 5528), (907, 800, 3616), (2416, 560, 8032),
    ],
)  # fmt: skip
def test_a_product_of_few_tiles_is_offered_parts_of_k(shape):
    problem = problem_of(*shape)
    found = in_parts(problem)
    assert 0 < len(found) <= divided_tiles.OFFERED
    M, N, K = shape
    for plan in found:
        down, across = (N, M) if plan["SWAP"] else (M, N)
        tiles = -(-down // plan["BLOCK_M"]) * -(-across // plan["BLOCK_N"])
        assert SMS // 3 < tiles * plan["SPLITS"] <= SMS
        assert plan["SPLITS"] % 16, "that would be another kernel"
        assert -(-K // 64) // plan["SPLITS"] >= divided_tiles.LEAST_STEPS
        assert plan["NUM_STAGES"] >= 4
    mirrored = [{**plan, "SWAP": 1 - plan["SWAP"]} for plan in found]
    assert in_parts(problem.transposed()) == mirrored, "of a column-major C"


@pytest.mark.parametrize(
    "shape", [(4096, 4096, 4096), (2000, 2000, 20000), (512, 512, 500), (40, 2000, 8000)]
)
def test_no_other_is(shape):
    assert in_parts(problem_of(*shape)) == []


def test_a_c_that_tma_does_not_reach_is_offered_the_same():
    """Threads store C, in any rows and transposed too: no tile overlaps another."""
    even, odd = problem_of(551, 1528, 11376, "nt"), problem_of(551, 1525, 11376, "nt")
    assert 1 in {plan["SWAP"] for plan in in_parts(odd)}
    tiles = [[(plan["BLOCK_M"], plan["BLOCK_N"]) for plan in in_parts(x)] for x in (even, odd)]
    assert tiles[0] == tiles[1]
    _, plan = triton_kernels.by_rows(odd, NAME, in_parts(odd)[0])
    assert plan["BLOCK_N"] == in_parts(odd)[0]["BLOCK_N"]


# How long it takes, by the model.


def test_a_part_of_k_is_timed_as_a_product_of_a_batch():
    problem = problem_of(550, 1520, 11376, "nt")
    plan = {**DIVIDED[0], "SWAP": 0, "SPLITS": 4}
    seen, without = triton_kernels.by_rows(problem, NAME, plan)
    assert (seen.M, seen.N, seen.K, seen.batch) == (550, 1520, 2844, 4)
    assert "SPLITS" not in without
    seen, _ = triton_kernels.by_rows(problem, NAME, {**plan, "SWAP": 1})
    assert (seen.M, seen.N, seen.batch) == (1520, 550, 4)


def test_the_second_launch_costs_itself_and_what_is_written_and_read():
    problem, of = problem_of(550, 1520, 11376), triton_kernels.second_launch_us
    assert of(problem, NAME, DIVIDED[0] | {"SPLITS": 1}) == 0
    assert of(problem, NAME, {"BLOCK_M": 64}) == of(problem, "split_k", {"SPLITS": 4}) == 0
    moved = 2 * 4 * 3 * 550 * 1520
    assert of(problem, NAME, {"SPLITS": 3}) == pytest.approx(2.0 + moved / 5e6)
    beyond_the_l2 = problem_of(2000, 2000, 20000)
    moved = 2 * 4 * 3 * 2000 * 2000
    assert of(beyond_the_l2, NAME, {"SPLITS": 3}) == pytest.approx(2.0 + moved / 4e6)


def test_the_model_takes_parts_where_they_are_faster_and_says_how_long_both_launches_take():
    with planning_for(find("h200")):
        for shape, layout in (((552, 1520, 11376), "nt"), ((73, 4504, 4472), "nn")):
            problem = problem_of(*shape, layout)
            taken = dispatch.choose(problem, "triton")
            plan = taken.plan(problem)
            assert taken.name == NAME
            assert plan["SPLITS"] > 1
            known = plans.shipped("triton", "nvidia-h200")
            timed, alone = triton_kernels.by_rows(problem, NAME, plan)
            first = known.us(f"triton/{NAME}", timed, alone, SMS, seen=False)
            both = plans.modelled_us(problem, taken, triton_kernels)
            assert both == first + triton_kernels.second_launch_us(problem, NAME, plan)


# The launches.


def launch(c, plan, monkeypatch, K=1000, dtype=torch.bfloat16, fusion=None):
    monkeypatch.setattr(gluon_launch, "programs", lambda a: SMS)
    M, N = c.shape
    a, b = (torch.empty(size, K, dtype=dtype, device="meta") for size in (M, N))
    return gluon_launch.arguments(a, b.mT, c, *([fusion] if fusion else []), **plan)


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("M", [1000, 1001])
def test_parts_lie_as_they_are_computed_in_whole_tiles(M, swap, by_columns, monkeypatch):
    c = torch.empty((2003, M) if by_columns else (M, 2003), dtype=torch.bfloat16, device="meta")
    c = c.mT if by_columns else c
    plan = {**DIVIDED[10], "SWAP": swap, "SPLITS": 3}
    grid, args, constants = launch(c, plan, monkeypatch)
    rows, columns = (2003, M) if swap else (M, 2003)
    m, n = -(-rows // plan["BLOCK_M"]), -(-columns // plan["BLOCK_N"])
    assert grid == (min(SMS, 3 * m * n),)
    config = constants["CONFIG"]
    assert (config.IN_PARTS, config.BATCHED) == (True, True)
    assert (config.C_TRANSPOSED, config.UNALIGNED_C) == (False, 0)
    assert args[5:8] == (None, None, None), "no descriptor of C"
    partials = args[-2]
    assert tuple(partials.shape) == (3, m * plan["BLOCK_M"], n * plan["BLOCK_N"])
    kernel, grid, then, _ = gluon_launch.second(None, None, c, args, plan)
    assert kernel is matrix_parts.add_kernel
    assert then[0] is partials
    assert then[1].shape == (rows, columns)


def test_what_cannot_be_divided_is_refused(monkeypatch):
    c = torch.empty(104, 1000, dtype=torch.bfloat16, device="meta")
    plan = {**DIVIDED[0], "SWAP": 0, "SPLITS": 4}
    with pytest.raises(ValueError, match="SPLITS=4 parts of K need as many steps of it, and it"):
        launch(c, plan, monkeypatch, K=192)
    launch(c, plan, monkeypatch, K=200)
    fused = Fusion(bias=torch.empty(1000, dtype=torch.bfloat16, device="meta"))
    with pytest.raises(ValueError, match="of two matrices, not for what is fused: leave it out"):
        launch(c, plan, monkeypatch, fusion=fused)
    batch = torch.empty(2, 104, 1000, dtype=torch.bfloat16, device="meta")
    with pytest.raises(ValueError, match="not for a batch: leave it out"):
        gluon_launch.arguments(batch, batch.mT, torch.empty(2, 104, 104, device="meta"), **plan)


def test_one_part_is_the_plan_without(monkeypatch):
    c = torch.empty(104, 1000, dtype=torch.bfloat16, device="meta")
    plan = {name: value for name, value in DIVIDED[0].items() if name != "SPLITS"}
    first, second = (launch(c, each, monkeypatch) for each in (plan, {**plan, "SPLITS": 1}))
    assert (first[0], first[2]) == (second[0], second[2])
    assert not first[2]["CONFIG"].IN_PARTS
    assert gluon_launch.second(None, None, c, first[1], plan) is None


# What adds the parts.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("M", "N", "more", "tile", "parts"),
    [
        (73, 200, 0, (64, 80), 3), (64, 64, 8, (64, 64), 2), (1, 17, 3, (64, 96), 9),
        (130, 73, 7, (128, 208), 8), (40, 1, 0, (64, 144), 5),
    ],
)  # fmt: skip
def test_parts_are_added_in_order_and_nothing_beside_c_is_written(
    M, N, more, tile, parts, turned, dtype
):
    rows, columns = -(-M // tile[0]) * tile[0], -(-N // tile[1]) * tile[1]
    partials = torch.randn(parts, rows, columns, device=DEVICE)
    partials[:, M:], partials[..., N:] = torch.nan, torch.nan
    high, wide = (N, M) if turned else (M, N)
    around = torch.full((high + 2, wide + more + 5), torch.nan, dtype=dtype, device=DEVICE)
    c = around[1 : high + 1, 3 : wide + 3]
    c = c.mT if turned else c
    kernel, grid, args, constants = matrix_parts.add(partials, c)
    kernel[grid](*args, **constants)
    wanted = partials[0, :M, :N].clone()
    for part in partials[1:, :M, :N]:
        wanted += part
    assert torch.equal(c, wanted.to(dtype))
    assert int((~around.isnan()).sum()) == M * N


@pytest.mark.parametrize(
    ("shape", "strides", "columns", "known"),
    [
        ((73, 200), (200, 1), 240, (1, 8, 8, 1, 16)),  # rows of 16 bytes
        ((73, 208), (208, 1), 256, (1, 8, 1, 1, 64)),  # of which Triton finds out by itself
        ((73, 201), (201, 1), 240, (1, 1, 1, 1, 16)),
        ((200, 73), (1, 200), 80, (8, 1, 1, 8, 16)),
        ((201, 73), (1, 208), 80, (1, 1, 1, 1, 16)),
        ((200, 73), (1, 200), 192, (8, 1, 1, 8, 16)),  # by columns: a sector of each row
    ],
)
def test_the_compiler_knows_of_rows_of_16_bytes(shape, strides, columns, known):
    c = torch.empty_strided(shape, strides, dtype=torch.bfloat16, device="meta")
    partials = torch.empty(3, 256, columns, device="meta")
    _, grid, args, constants = matrix_parts.add(partials, c)
    names = ("UNIT_M", "UNIT_N", "UNIT_CM", "UNIT_CN", "COLUMNS")
    assert tuple(constants[name] for name in names) == known
    M, N = shape
    assert (args[2] * constants["UNIT_M"], args[3] * constants["UNIT_N"]) == (M, N)
    assert constants["ROWS"] * constants["COLUMNS"] == 512
    assert matrix_parts.LEAST_ROWS % constants["ROWS"] == columns % constants["COLUMNS"] == 0
    assert grid == (-(-M // constants["ROWS"]) * -(-N // constants["COLUMNS"]),)
    assert args[4] * 16 == columns
    assert args[5] * 1024 == 256 * columns


COMPILED = """
import json, re, sys, torch
from importlib import import_module
from triton.runtime import driver
add = import_module("tcgemm.triton_kernels.device.matrix_parts").add
compile_only = import_module("tcgemm.triton_kernels.inspection.compile_only")
driver.set_active(compile_only._Driver((9, 0)))
found = []
for rows, turned, columns in ((1528, False, 1536), (4504, True, 80), (1525, False, 1536)):
    c = torch.empty(73, rows, dtype=torch.bfloat16, device="meta")
    partials = torch.empty(3, 4608, columns, device="meta")
    kernel, grid, args, constants = add(partials, c.mT if turned else c)
    built = kernel.warmup(*args, grid=grid, **constants)
    names = sorted(set(re.findall(r"(?:ld|st)\\.global[.\\w]*", built.asm["ptx"])))
    found.append((names, compile_only._read(built, 0.0, False)["spill_bytes"]))
print(json.dumps(found))
"""


def test_the_second_launch_loads_and_stores_vectors():
    """Of rows of 16 bytes, along C's rows and across them; of odd rows it stores elements."""
    done = compiling.run("-c", COMPILED)
    assert done.returncode == 0, done.stderr
    loads, pairs, elements = "ld.global.v4.b32", "st.global.v2.b32", "st.global.b16"
    assert json.loads(done.stdout.splitlines()[-1]) == [
        [[loads, pairs], 0], [[loads, pairs], 0], [[loads, elements], 0],
    ]  # fmt: skip


# What it gives.


@pytest.mark.gpu
@pytest.mark.parametrize("a_and_b", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("number", range(len(DIVIDED)), ids=lambda i: NAMES[i])
def test_the_product_is_right_and_nothing_beside_it_is_written(number, a_and_b):
    """In all layouts of A and B, with ragged K; each order of C, each dtype and each number of
    parts in turn."""
    turn = number // 2 + ("nn", "nt", "tn", "tt").index(a_and_b)
    layout = a_and_b + "nt"[turn % 2]
    dtype = (torch.bfloat16, torch.float16)[turn // 2 % 2]
    transposed = layout[2:] == "t"
    for M, N, K, more, start in (
        (134, 515, 1096, 0, 0), (73, 333, 200, 3, 1), (300, 100, 2024, 8, 8), (7, 264, 129, 0, 0),
        (1, 1024, 640, 5, 3),
    ):  # fmt: skip
        a = torch.randn(M, K, device=DEVICE).to(dtype)
        b = torch.randn(K, N, device=DEVICE).to(dtype)
        a = padded(a.mT).mT if layout[0] == "t" else padded(a)
        b = padded(b.mT).mT if layout[1] == "t" else padded(b)
        inner = M if transposed else N
        around, c = memory_of(M, N, dtype, transposed, inner + more, start)
        parts = min(-(-K // 64), (2, 3, 9, 12)[(turn + M) % 4])
        is_stored_thrice(a, b, c, around, {**DIVIDED[number], "SPLITS": parts})
