"""The times of products over several GPUs, by hand and against what 2 and 4 H200 measured."""

from __future__ import annotations

import json
from statistics import geometric_mean

import numpy as np
import pytest
from typer.testing import CliRunner

import tcgemm
from tcgemm.cli import app
from tcgemm.dist import engine, fitted, model, planning
from tcgemm.dist.model import Host
from tcgemm.dist.overlap import plan as overlap_plan
from tcgemm.dist.rows import rows_of
from tcgemm.errors import OperandError, UnknownNameError

H200 = Host("nvidia-h200")
MIB = 2**20

# Tensor-parallel layers of Llama 8B and 70B: the model's width, the MLP's, the columns of q, k, v.
LLAMA = ((4096, 14336, 6144), (8192, 28672, 10240))


def layers(world, sizes):
    """(operation, M, N, K of a rank's product)."""
    for width, hidden, qkv in LLAMA:
        for M in sizes:
            for N in (qkv, 2 * hidden):
                yield "all_gather", M, N // world, width
            for K in (width, hidden):
                yield "reduce_scatter", M, width, K // world


def limits(world, sizes, op=None):
    found = []
    for each, *shape in layers(world, sizes):
        if op in (None, each):
            times = model.times(each, *shape, "bfloat16", world, H200)
            found.append(times.sequence_us / times.limit_us)
    return geometric_mean(found)


LARGE, SMALL = (2048, 4096, 8192, 16384), (512,)
# What NCCL and cuBLAS took, over the longer of the product and the transfer, on 2 and 4 H200.
MEASURED = [
    (2, LARGE, None, 1.36, 0.05), (2, LARGE, "all_gather", 1.32, 0.05),
    (2, LARGE, "reduce_scatter", 1.41, 0.05), (4, LARGE, None, 1.77, 0.05),
    (4, LARGE, "all_gather", 1.72, 0.05), (4, LARGE, "reduce_scatter", 1.82, 0.05),
    (2, SMALL, None, 1.84, 0.15), (4, SMALL, None, 3.10, 0.15),
]  # fmt: skip


@pytest.mark.parametrize(("world", "sizes", "op", "measured", "within"), MEASURED)
def test_limits_are_those_that_were_measured(world, sizes, op, measured, within):
    assert limits(world, sizes, op) == pytest.approx(measured, rel=within)


def test_a_collective_of_a_measured_size_takes_its_measured_time():
    # 128 MiB in all, of which half passes each of 2 GPUs' links at 232 GB/s.
    assert model.collective_us("all_gather", 128 * MIB, 2, H200) == pytest.approx(64 * MIB / 232e3)
    assert model.collective_us("reduce_scatter", 8 * MIB, 4, H200) == pytest.approx(6 * MIB / 98e3)


def test_time_grows_with_size_and_never_falls_to_nothing():
    sizes = [1, 1024, 300_000, MIB, 5 * MIB, 8 * MIB, 100 * MIB, 600 * MIB, 2000 * MIB]
    for world in (2, 4, 8):
        for op in ("all_gather", "reduce_scatter"):
            times = [model.collective_us(op, size, world, H200) for size in sizes]
            assert times == sorted(times)
            assert times[0] > 10  # NCCL's latency
    assert model.collective_us("all_gather", MIB, 1, H200) == 0


def test_eight_gpus_of_a_host_and_hosts_by_hand():
    size = 512 * MIB
    assert model.collective_us("all_gather", size, 8, H200) == pytest.approx(448 * MIB / 310e3)
    assert model.transfer_us(size, 8, H200) == pytest.approx(448 * MIB / 370e3)
    # Two hosts: half of the bytes come over eight network cards of 50 GB/s, and are then passed on
    # by the links, which carry all that a GPU lacks and take longer.
    assert model.transfer_us(size, 16, H200) == pytest.approx(480 * MIB / 370e3)
    slow = Host("nvidia-h200", host_gb_s=5)
    assert model.transfer_us(size, 16, slow) == pytest.approx(256 * MIB / 40e3)
    assert model.collective_us("all_gather", size, 16, slow) > model.transfer_us(size, 16, slow)


def test_overlap_is_never_better_than_the_limit():
    for world in (2, 4, 8):
        for op, *shape in layers(world, (*SMALL, *LARGE)):
            times = model.times(op, *shape, "bfloat16", world, H200)
            assert times.limit_us < times.overlapped_us
            assert times.limit_us <= times.sequence_us


def plan(M, why_not=None, gpu="nvidia-h200", N=4096, K=8192, why_not_one_shot=None, world=2):
    bounds = engine.bounds_us("all_gather", M, N, K, "bfloat16", world)
    asked = M, N, K, "bfloat16", world, Host(gpu), why_not, "", why_not_one_shot, bounds
    return planning.plan_of("all_gather", *asked)


def test_the_plan_overlaps_where_that_pays_and_says_why():
    large = plan(8192)
    assert large.way == "overlapped"
    assert "us overlapped" in large.why
    none = plan(8192, "no engine", why_not_one_shot="no engine")
    assert (none.way, none.why) == ("sequence", "no engine")
    both = plan(8192, "no engine", why_not_one_shot="odd rows")
    assert (both.way, both.why) == ("sequence", "no engine; nor in one shot: odd rows")
    unknown = plan(8192, gpu="")
    assert unknown.way == "sequence"
    assert "links of a CPU were not measured" in unknown.why


def test_the_plan_stays_where_flags_cost_more_than_they_hide(monkeypatch):
    slow = (fitted.Way(1.0, 1000.0, 16.0),)
    ways = {(language, "all_gather"): slow for language in fitted.LANGUAGES}
    monkeypatch.setattr(fitted, "of", lambda slug: fitted.Fitted(ways))
    planning.plan_of.cache_clear()
    try:
        found = plan(512, why_not_one_shot="odd rows")
        assert found.way == "sequence"
        assert found.why.startswith("nothing else would pay: about 1")
        assert found.why.endswith("; not in one shot: odd rows")
    finally:
        planning.plan_of.cache_clear()


def test_the_plan_stores_few_rows_at_once_and_overlaps_many():
    """Predicted for four H200: of few rows flags and copies cost more than stores by one kernel."""
    few = plan(512, N=6144 // 4, K=4096, world=4)
    assert few.way == "one_shot"
    times = few.times
    moved = 512 * 4096 * 2 * 3 / 4
    assert times.written_us == pytest.approx(model.written_us(512 * 4096 * 2, 4, H200))
    assert times.written_us == pytest.approx(5.65 + moved / 370e3, rel=0.02)
    assert times.one_shot_us == pytest.approx(
        times.gemm_us + times.written_us + fitted.of(H200.slug).one_shot_us("all_gather")
    )
    assert f"{times.one_shot_us:.0f} us in one shot" in few.why
    assert plan(512, N=6144 // 4, K=4096, world=4, why_not_one_shot="").way == "overlapped"
    assert plan(64, N=6144 // 4, K=4096, world=4, why_not_one_shot="").way == "sequence"
    assert plan(16384, N=6144 // 4, K=4096, world=4).way == "overlapped"
    refused = plan(16384, "cuda is named", N=6144 // 4, K=4096, world=4)
    assert (refused.way, refused.refused, refused.refused_one_shot) == ("one_shot", True, False)
    assert refused.why.endswith("; not overlapped: cuda is named")


def test_one_shot_refuses_in_numbers():
    def said(op="all_gather", M=512, N=64, K=64, dtype="bfloat16", world=4, out_dtype=None):
        return planning.why_not_one_shot(op, M, N, K, dtype, world, out_dtype)

    assert said() is None
    assert "one rank" in said(world=1)
    assert "9 ranks: it takes up to 8" in said(world=9)
    assert "M=0 K=64: there is nothing" in said(M=0)
    assert said(N=0) is None, "ranks need not share it"
    assert "M=512 N=0: there is nothing" in said("reduce_scatter", N=0)
    assert said(N=7) is None
    assert "K=60 of bfloat16: it stores rows of whole 16 bytes, not of 120" in said(K=60)
    for dtype in ("float64", "int8", "uint8", "float8_e5m2", "float32"):
        assert said(dtype=dtype) is None
    assert "int8: it stores rows of whole 16 bytes, not of 24" in said(K=24, dtype="int8")
    assert "bytes each, and it keeps to" in said(M=1 << 26)
    scatter = {"op": "reduce_scatter"}
    assert said(**scatter, K=7) is None
    assert "N=60 of bfloat16" in said(**scatter, N=60)
    assert said(**scatter, N=60, out_dtype="float32") is None
    for dtype, result in (("float64", "float64"), ("int8", "int32")):
        assert f"partial sums are {result}: it adds float16" in said(**scatter, dtype=dtype)


def test_explain_shows_all_three_ways():
    told = tcgemm.dist.explain("all_gather", 512, 6144, 4096, world=4)
    assert "way: one_shot: about" in str(told)
    times = told.plan.times
    assert (
        f"one shot: about {times.one_shot_us:.0f} us, of which {times.written_us:.0f} us are stores"
    ) in str(told)
    besides = fitted.of(H200.slug).one_shot_us("all_gather")
    assert f"{besides:.0f} us of launches and flags are fitted" in str(told)
    assert told.facts()["one_shot_us"] == told.plan.times.one_shot_us
    told = tcgemm.dist.explain("reduce_scatter", 512, 6144, 4096, "float64", world=4)
    assert "one shot: about" not in str(told)
    assert told.facts()["refused_one_shot"]


def test_explain_with_and_without_an_engine(monkeypatch):
    monkeypatch.setattr(engine, "is_there", lambda: True)
    told = tcgemm.dist.explain("all_gather", 8192, 8192, 8192, world=2)
    assert told.plan.way == "overlapped"
    assert told.local == (8192, 4096, 8192)
    assert "way: overlapped: about" in str(told)
    assert told.facts()["sequence_us"] == pytest.approx(told.plan.times.sequence_us)
    monkeypatch.setattr(engine, "is_there", lambda: False)
    told = tcgemm.dist.explain("reduce_scatter", 5, 64, 65, world=4)
    assert told.plan.why == engine.NOT_THERE
    assert told.local == (5, 64, 17)
    assert "by rank: 2, 2, 1, 0" in str(told)
    assert "of one host" in tcgemm.dist.explain("all_gather", 64, 64, 64, world=16).plan.why
    assert "nothing to wait for" in str(tcgemm.dist.explain("all_gather", 64, 64, 64, world=1))


def test_explain_refuses_what_does_not_exist():
    with pytest.raises(UnknownNameError, match="unknown operation 'gather'"):
        tcgemm.dist.explain("gather", 1, 1, 1, world=2)
    with pytest.raises(OperandError, match="world is 0: at least 1"):
        tcgemm.dist.explain("all_gather", 1, 1, 1, world=0)
    for rate in (0, float("nan"), float("inf"), "50", True, 10**400):
        with pytest.raises(OperandError, match=r"host_gb_s is .*a number above 0"):
            tcgemm.dist.explain("all_gather", 1, 1, 1, world=2, host_gb_s=rate)
    for rows in (16384.5, True, "8", np.array([3, 4])):
        with pytest.raises(OperandError, match=r"M is .*a whole number"):
            tcgemm.dist.explain("all_gather", rows, 1, 1, world=2)
    for name in ("cudaa", ""):
        with pytest.raises(UnknownNameError, match=f"unknown backend '{name}': choose from"):
            tcgemm.dist.explain("all_gather", 8, 8, 8, world=2, backend=name)


@pytest.mark.parametrize(
    ("K", "dtype", "asked", "why"),
    [
        (8192, "int8", {}, "operands are int8"),
        (8192, "float32", {}, "operands are float32"),
        (8192, "float64", {}, "operands are float64"),
        (8191, "bfloat16", {}, "K=8191 and N=2048 of bfloat16: it takes multiples of 8 and of 8"),
        (8200, "float8_e4m3fn", {}, "multiples of 16 and of 8"),
        (8192, "float8_e4m3fn", {"backend": "cuda"}, "8-bit floats overlap in triton"),
        (8192, "bfloat16", {"kernel": "naive"}, "'naive' is named"),
        (8192, "bfloat16", {"out_dtype": "float32"}, "its result of bfloat16 is bfloat16"),
        (8192, "float16", {"compute": "float16"}, "it sums float16 as float32 only"),
        (1 << 20, "bfloat16", {}, "bytes each, and it keeps to"),
    ],
)
def test_explain_refuses_what_the_engine_does(K, dtype, asked, why):
    told = tcgemm.dist.explain("all_gather", 16384, 8192, K, dtype, world=4, **asked)
    assert told.plan.way != "overlapped"
    assert why in told.plan.why
    assert "overlapped: about" not in str(told)
    assert told.facts()["refused"]


def test_explain_knows_the_engine_s_tiles_and_parts():
    wide = tcgemm.dist.explain("all_gather", 1 << 18, 1 << 16, 1024, world=2).plan
    assert "a rank would have 131072 tiles, and it has flags for 32768" in wide.why
    even = tcgemm.dist.explain("reduce_scatter", 4096, 4096, 8208, world=2).plan
    assert even.way == "overlapped"
    uneven = tcgemm.dist.explain("reduce_scatter", 4096, 4096, 4000 * 4 - 2, world=4).plan
    assert "K=15998 does not divide by 4 ranks" in uneven.why
    eight = tcgemm.dist.explain("all_gather", 16384, 8192, 8192, "float8_e5m2", world=4).plan
    assert (eight.way, eight.times.language) == ("overlapped", "triton")
    for tiles, item in ((overlap_plan.TILES, 2), (overlap_plan.TILES_OF_8_BITS, 1)):
        sizes = max((tile.BLOCK_M, tile.BLOCK_N) for tile in tiles)
        assert sizes == planning.LARGEST_TILE[item]


def test_of_one_rank_no_overlap_is_timed():
    assert "overlapped: about" not in str(tcgemm.dist.explain("all_gather", 64, 64, 64, world=1))
    told = tcgemm.dist.explain("all_gather", 64, 64, 64, world=2)
    assert "overlapped: about" in str(told)
    assert not told.facts()["refused"]


def test_numbers_of_numpy_are_numbers():
    def told(number, size):
        asked = {"world": size(16), "host_gb_s": number(50)}
        return tcgemm.dist.explain("all_gather", size(64), size(64), size(64), **asked)

    assert told(np.float32, np.int64) == told(float, int)
    assert json.dumps(told(np.float32, np.int64).facts()) == json.dumps(told(float, int).facts())


def test_the_command_explains_the_layer_and_then_a_rank_s_product():
    arguments = ["explain", "4096x28672x8192", "--gpu", "h200", "--op", "all_gather",
                 "--world", "4", "--dtype", "bfloat16"]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "each rank multiplies 4096x7168x8192" in result.stdout
    assert "The product of one rank:\n4096x7168x8192 bfloat16" in result.stdout
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert found["several"]["local"] == [4096, 7168, 8192]
    assert found["several"]["limit_us"] <= found["several"]["sequence_us"]


def test_rows_lie_as_torch_chunk_lays_them():
    import torch

    for M in range(12):
        for world in (1, 2, 3, 5, 8):
            chunks = [len(part) for part in torch.arange(M).chunk(world)] if M else []
            held = [last - first for first, last in (rows_of(M, world, r) for r in range(world))]
            assert held == [*chunks, *[0] * (world - len(chunks))]


def test_what_is_explained_is_of_the_backend_that_is_named():
    def way(backend):
        return tcgemm.dist.explain("all_gather", 4096, 4096, 4096, world=4, backend=backend).plan

    assert way(None) == way("auto")
    for language in ("triton", "cuda"):
        assert way(language).times.language == language
    assert way("cublas").way != "overlapped"
    assert "'cublas' overlaps" in way("cublas").why


@pytest.mark.parametrize("backend", ["cublas", "cuda"])
def test_what_is_explained_is_of_the_environment_s_backend_as_the_call_is(backend, monkeypatch):
    def told(**asked):
        return tcgemm.dist.explain("all_gather", 4096, 4096, 4096, world=4, **asked).plan

    of_auto, named = told(), told(backend=backend)
    monkeypatch.setenv("TCGEMM_BACKEND", backend)
    assert told() == named
    assert told(backend="auto") == of_auto
    monkeypatch.setenv("TCGEMM_BACKEND", "foo")
    assert told(backend=backend) == named
    with pytest.raises(UnknownNameError, match="TCGEMM_BACKEND is 'foo', no backend"):
        told()


def test_the_command_obeys_the_environment_only_where_no_backend_is_named(monkeypatch):
    def way(*asked):
        arguments = ["explain", "4096x4096x4096", "--gpu", "h200", "--op", "all_gather", "--json"]
        return CliRunner().invoke(app, [*arguments, *asked])

    monkeypatch.setenv("TCGEMM_BACKEND", "cublas")
    assert "'cublas' overlaps" in json.loads(way().stdout)["several"]["why"]
    monkeypatch.setenv("TCGEMM_BACKEND", "foo")
    assert json.loads(way("--backend", "cuda").stdout)["several"]["language"] == "cuda"
    assert "TCGEMM_BACKEND is 'foo'" in str(way().exception)
