"""warp_specialized where a program has one tile at most: C passes through the stages, no register
moves, and the tile is found without a division."""

from __future__ import annotations

import itertools
from dataclasses import replace
from importlib import import_module

import pytest
import records
import scripts_of
import torch

from tcgemm import dispatch
from tcgemm.problem import Fusion, Problem

host = import_module("tcgemm.triton_kernels.host.runtime")
gluon_launch = import_module("tcgemm.triton_kernels.host.gluon_launch")
one_tile = import_module("tcgemm.triton_kernels.rungs.one_tile")
bands = import_module("tcgemm.triton_kernels.device.bands")
ordering = import_module("tcgemm.triton_kernels.device.ordering")
tables = import_module("tcgemm.triton_kernels.planning.tables")
triton_kernels = import_module("tcgemm.triton_kernels")
Request = import_module("tcgemm.triton_kernels.inspection.compile_only").Request

PLANNER = triton_kernels.planners()["warp_specialized"]
SMS, SHARED = 132, 232_448
BF16 = torch.bfloat16
TILE = {
    "BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "NUM_STAGES": 8, "CONSUMERS": 2,
    "SUBTILES": 1, "BUFFERS": 1,
}  # fmt: skip


def problem(M, N, K, layout="nn", dtype_out="bfloat16", **asked):
    return Problem.stored(
        M, N, K, "bfloat16", dtype_out, layout, capability=(9, 0), device="cuda", **asked
    )


@host.triton.jit
def both_orders(out, tiles_m, tiles_n, GROUP_M: host.tl.constexpr):
    tile = host.tl.program_id(0)
    simple_m, simple_n = ordering.grouped(tile, tiles_m, tiles_n, GROUP_M)
    quick_m, quick_n = bands.in_bands(tile, tiles_m, tiles_n, GROUP_M)
    host.tl.store(out + 4 * tile, simple_m)
    host.tl.store(out + 4 * tile + 1, simple_n)
    host.tl.store(out + 4 * tile + 2, quick_m)
    host.tl.store(out + 4 * tile + 3, quick_n)


@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_tiles_come_in_the_same_order_with_and_without_divisions(group):
    for tiles_m, tiles_n in itertools.product((1, 2, 3, 4, 7, 8, 9, 12), (1, 2, 5)):
        out = torch.full((tiles_m * tiles_n, 4), -1, dtype=torch.int32)
        both_orders[(tiles_m * tiles_n,)](out, tiles_m, tiles_n, group)
        assert torch.equal(out[:, :2], out[:, 2:]), (tiles_m, tiles_n)
        assert len({(m, n) for m, n, *_ in out.tolist()}) == tiles_m * tiles_n


def test_c_passes_through_the_stages_where_all_tiles_run_at_once():
    more = 0
    for tile, swap in itertools.product(PLANNER.offered, (0, 1)):
        config = {"NUM_STAGES": 10, **tile, **({"SWAP": swap} if "SWAP" in tile else {})}
        asked = problem(600, 1200, 4096)
        beside = PLANNER.fit(config, "bfloat16", SHARED)
        plan = PLANNER.divide(beside, asked, SMS, False)
        M, N = (1200, 600) if config.get("SWAP") else (600, 1200)
        tiles = -(-M // tile["BLOCK_M"]) * -(-N // tile["BLOCK_N"])
        assert (plan["BUFFERS"] == 0) == (tiles <= SMS)
        if plan["BUFFERS"] == 0:
            assert PLANNER.shared_bytes(plan, "bfloat16") <= SHARED
            another = {**plan, "NUM_STAGES": plan["NUM_STAGES"] + 1}
            full = PLANNER.shared_bytes(another, "bfloat16") > SHARED
            assert full or plan["NUM_STAGES"] == one_tile.MOST_STAGES
            assert plan["NUM_STAGES"] >= beside["NUM_STAGES"]
            more += plan["NUM_STAGES"] > beside["NUM_STAGES"]
    assert more > 8


def test_of_a_few_steps_there_are_no_more_stages():
    deep, short = (PLANNER.divide(TILE, problem(512, 512, K), SMS, False) for K in (1024, 256))
    assert (deep["NUM_STAGES"], short["NUM_STAGES"]) == (9, 4)


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        (problem(2048, 2048, 512), {}),
        (problem(512, 512, 512, beta=1.0), {}),
        (problem(512, 512, 512, dtype_out="float32"), {}),
        (replace(problem(512, 511, 512), c_strides=(511, 1)), {}),
        (problem(512, 512, 512), {"SPLITS": 2}),
        (problem(512, 512, 512), {"BLOCK_N": 256, "SUBTILES": 1}),
        (replace(problem(512, 512, 512), device="cpu"), {}),
    ],
    ids=[
        "more tiles than SMs",
        "C_in",
        "float32",
        "odd rows",
        "parts of K",
        "wide subtiles",
        "cpu",
    ],
)
def test_else_it_has_buffers(asked, config):
    config = {**TILE, **config}
    assert PLANNER.divide(config, asked, SMS, False) == config
    # As where a table of a user's has no buffers.
    none = {**config, "BUFFERS": 0, "NUM_STAGES": 9}
    assert PLANNER.divide(none, asked, SMS, False)["BUFFERS"] == (0 if asked.device == "cpu" else 1)


def test_a_plan_without_buffers_for_c_gets_one_and_the_stages_that_fit_beside_it():
    none = {**TILE, "BUFFERS": 0, "NUM_STAGES": 9}
    assert PLANNER.divide(none, problem(2048, 2048, 512), SMS, False) == TILE


def test_the_model_of_plans_is_asked_about_the_plan_that_runs():
    asked = problem(1024, 1024, 1024)
    plan = dict(PLANNER.divide(TILE, asked, SMS, False))
    assert (plan["BUFFERS"], plan["NUM_STAGES"]) == (0, 9)
    assert triton_kernels.by_rows(asked, "warp_specialized", plan) == (asked, plan)


@pytest.mark.parametrize("swap", [{}, {"SWAP": 0}, {"SWAP": 1}])
def test_a_raced_plan_is_turned_into_the_one_that_runs_now(swap):
    """Of 8456 x 64 one way of lying is 67 tiles, and the other 133, which are more than SMs."""
    script = scripts_of.script("fit_plans")
    tile = {**TILE, **swap}
    through = []
    for rows, columns in ((8456, 64), (64, 8456), (1024, 64), (4096, 4096)):
        by_rows = problem(rows, columns, 1024)
        for asked in (by_rows, by_rows.transposed()):
            transposed = PLANNER.transposes(asked)
            seen = asked.transposed() if transposed else asked
            plan = PLANNER.divide(tile, seen, SMS, transposed)
            beside = {**plan, "BUFFERS": 1, "NUM_STAGES": 8}
            assert script.now(PLANNER, beside, asked) == plan
            through.append(plan["BUFFERS"] == 0)
    assert through.count(True) == through.count(False) == 4


def operands(M, N, K, dtype=BF16, dtype_out=BF16):
    return (
        torch.empty(M, K, dtype=dtype), torch.empty(K, N, dtype=dtype),
        torch.empty(M, N, dtype=dtype_out),
    )  # fmt: skip


def test_every_tile_has_a_program_of_its_own_on_however_few_sms(monkeypatch):
    monkeypatch.setattr(gluon_launch, "programs", lambda a: 4)
    beside, *_ = gluon_launch.arguments(*operands(512, 512, 256), **TILE)
    through, _, constants = gluon_launch.arguments(
        *operands(512, 512, 256), **{**TILE, "BUFFERS": 0, "NUM_STAGES": 9}
    )
    assert (beside, through, constants["BUFFERS"]) == ((4,), (32,), 0)


@pytest.mark.parametrize(
    ("of", "changed", "fusion", "said"),
    [
        ({"dtype_out": torch.float16}, {}, None, "of one 16-bit type, .*bfloat16 and .*float16"),
        ({"dtype_out": torch.float32}, {}, None, "of one 16-bit type, and these are .*float32"),
        ({}, {"BLOCK_K": 32}, None, "a block of A: 64 columns do not fit BLOCK_K=32"),
        ({}, {}, "c", "a C_in or a sum beside it has no place there: BUFFERS=1"),
        ({"pitch": 516}, {}, None, "a C that TMA cannot store has no place there: BUFFERS=1"),
    ],
)
def test_a_plan_by_hand_that_has_no_room_for_c_is_refused(of, changed, fusion, said):
    a, b, c = operands(512, 512, 256, dtype_out=of.get("dtype_out", BF16))
    if "pitch" in of:
        c = torch.empty(512, of["pitch"], dtype=BF16)[:, :512]
    asked = Fusion(c=torch.empty_like(c), beta=1.0) if fusion else None
    with pytest.raises(ValueError, match=said):
        gluon_launch.arguments(a, b, c, asked, **{**TILE, "BUFFERS": 0, **changed})


def test_registers_move_where_accumulators_are_many():
    keeps = gluon_launch.MAY_KEEP_REGISTERS
    plain = {1: (96, 128, 170), 2: (64, 96, 112), 3: (48, 64, 85)}
    fused = {1: (64, 96, 127), 2: (32, 64, 83), 3: (32, 48, 63)}
    for follows, of in ((False, plain), (True, fused)):
        for consumers, few in of.items():
            for each in few:
                moves = gluon_launch.moves_registers(consumers, each, follows)
                assert moves is not keeps, (consumers, each, follows)
            assert gluon_launch.moves_registers(consumers, few[-1] + 2, follows)


def test_before_triton_3_7_they_always_move(monkeypatch):
    monkeypatch.setattr(gluon_launch, "MAY_KEEP_REGISTERS", False)
    assert gluon_launch.moves_registers(1, 32, False)


def test_what_the_compiler_makes_of_it():
    """No warp waits for registers, none is spilled, and shared memory holds the stages alone."""
    plan = dict(dispatch.find("triton", "warp_specialized").plan(problem(1024, 1024, 1024)))
    large = {**TILE, "BLOCK_N": 256, "NUM_STAGES": 4, "SUBTILES": 4}
    one, many = records.triton([
        Request("warp_specialized", plan, M=1024, N=1024, K=1024),
        Request("warp_specialized", large),
    ])  # fmt: skip
    assert plan["BUFFERS"] == 0
    assert one.spill_bytes == many.spill_bytes == 0
    stages = plan["NUM_STAGES"] * (plan["BLOCK_M"] + plan["BLOCK_N"]) * plan["BLOCK_K"] * 2
    assert stages <= one.shared_bytes <= stages + one_tile.BARRIERS
    moves = not gluon_launch.MAY_KEEP_REGISTERS
    assert (one.counts["USETMAXREG"] > 0) == moves
    assert many.counts["USETMAXREG"] > 0


def test_an_epilogue_beside_three_consumers_spills_nothing():
    """Each thread has 128 registers at most where they stay, and 64 hold accumulators."""
    tile = {
        "BLOCK_M": 192, "BLOCK_N": 128, "BLOCK_K": 128, "GROUP_M": 8, "NUM_STAGES": 3,
        "CONSUMERS": 3, "SUBTILES": 2, "BUFFERS": 2,
    }  # fmt: skip
    wanted = Request(
        "warp_specialized", tile, "float8_e4m3fn", "float32", "nt", compute="fast", scales="row",
        c_in=True, bias=True, epilogue="gelu",
    )  # fmt: skip
    (built,) = records.triton([wanted])
    assert (built.spill_bytes, built.serialized) == (0, False)


@pytest.mark.parametrize(("M", "N"), [(8, 2**31 + 64), (2**31 + 64, 8)])
def test_a_side_of_more_than_31_bits_is_compiled_and_none_of_tma_s(M, N):
    for name in ("descriptor", "warp_specialized", "split_k"):
        why = dispatch.find("triton", name).why_not(problem(M, N, 16))
        assert f"is {M} x 16 and TMA counts to" in why or f"is 16 x {N} and TMA counts to" in why
    row = dispatch.find("triton", "skinny")
    asked = problem(M, N, 16)
    assert row.why_not(asked) is None
    (built,) = records.triton([Request("skinny", dict(row.plan(asked)), M=M, N=N, K=16)])
    assert built.spill_bytes == 0
