"""A kernel that spoils operands, or that is wrong only when it is called again, gets no time."""

import types
from dataclasses import replace

import pytest
import torch

from tcgemm import dispatch
from tcgemm.bench import case_bench, cases, timing
from tcgemm.bench.contender import contender
from tcgemm.bench.launches import Ring


def product(a, b, c, fusion=None, **plan):
    value = a.float() @ b.float()
    if fusion is not None and fusion.c is not None:
        value = value + fusion.c.float()
    if fusion is not None and fusion.bias is not None:
        value = value + fusion.bias.float()
    c.copy_(value)


def writes_into_a(a, b, c, fusion=None, **plan):
    product(a, b, c, fusion)
    a[0, 0] += 1


def turns_a_zero_of_b(a, b, c, fusion=None, **plan):
    b[0, 0] = 0.0 if b[0, 0] != 0 else -0.0
    product(a, b, c, fusion)


def writes_into_bias(a, b, c, fusion=None, **plan):
    product(a, b, c, fusion)
    fusion.bias[1:3] = 7


def writes_into_c_in(a, b, c, fusion=None, **plan):
    product(a, b, c, fusion)
    fusion.c[0] = float("nan")


@pytest.fixture
def kernels(monkeypatch):
    """A backend whose kernels are given as name -> callable."""
    made = types.ModuleType("made_for_a_test")

    def use(**runs):
        pairs = (("bfloat16", "bfloat16"),)
        row = {"adds": "", "pairs": pairs, "devices": ("cpu",), "fuses": ("beta", "bias", "batch")}
        made.KERNELS = [{"name": name, **row} for name in runs]
        made.load = runs.__getitem__
        monkeypatch.setattr(dispatch, "import_module", lambda name: made)
        monkeypatch.setitem(dispatch.BACKENDS, "made", "made_for_a_test")

    yield use
    dispatch.ladder.cache_clear()
    dispatch.load.cache_clear()


def a_bench(fused="", batch=1):
    (case,) = cases.build(shapes=["16x8x4"], device="cpu", fused=[fused] if fused else ())
    case = replace(case, batch=batch)
    return case_bench.CaseBench(case, "cpu", 0, 0.01, set())


@pytest.mark.parametrize(
    ("run", "fused", "says"),
    [
        (writes_into_a, "", "it changed 2 elements of A,"),
        (turns_a_zero_of_b, "", "2 elements of B,"),
        (writes_into_bias, "bias", "2 elements of bias,"),
        (writes_into_c_in, "residual", "8 elements of the C that is read,"),
    ],
)
def test_a_kernel_that_writes_into_an_operand_is_wrong_and_the_next_is_judged_fairly(
    kernels, run, fused, says
):
    kernels(spoils=run, innocent=product)
    bench = a_bench(fused)
    (row,), _ = bench.measure("made", "spoils")
    assert row["status"] == "wrong"
    assert says in row["reason"]
    assert "may only read" in row["reason"]
    assert not row.get("ms_p50")
    (row,), _ = bench.measure("made", "innocent")
    assert (row["status"], row["reason"]) == ("ok", "")


def timed(kernels, run, monkeypatch, others=None, batch=1):
    """The row of a kernel timed on a clock of its own, on the CPU, over three sets of operands.

    ``others``, where given, takes the rows of it timed among other kernels.
    """
    kernels(timed=run)
    bench = a_bench(batch=batch)
    shape = (16, 8) if batch == 1 else (batch, 16, 8)
    sets = [
        (*case_bench.accuracy.batch_of_operands(
            batch, 16, 8, 4, torch.bfloat16, "nn", "cpu", seed),
         torch.empty(shape, dtype=torch.bfloat16))
        for seed in range(3)
    ]  # fmt: skip

    def measure(contender, baseline, *, budget_s):
        assert (baseline is None) == (others is None)
        calls = contender.calls

        def burst():
            for call in calls:
                call()

        burst()
        contender._bursts["graph"] = burst, len(calls)
        return timing.Timing(1.0, 1.0, 1.0, None, None, None, 5, "graph")

    monkeypatch.setattr(case_bench, "rotating_operands", lambda *_: (sets, "cold", Ring(3)))
    monkeypatch.setattr(case_bench, "measure", measure)
    baseline = None if others is None else case_bench.Launches([lambda: None] * 3, Ring(3))
    monkeypatch.setattr(bench, "_baseline", lambda: baseline)
    monkeypatch.setattr(case_bench.Launches, "estimate", lambda self: 0.01)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    row = {}
    try:
        (a, b, c), fusion = sets[0], bench._fusion()
        problem = dispatch.problem_of(a, b, c, fusion)
        mine = contender("made", "timed", problem, a, b, fusion)
        bench._time(mine, row, [] if others is None else others)
    except case_bench.WrongError as error:
        return row, str(error)
    return row, ""


def test_what_was_timed_is_right(kernels, monkeypatch):
    row, wrong = timed(kernels, product, monkeypatch)
    assert not wrong
    assert row["status"] == "ok"
    assert row["ms_p50"] == 1.0


def test_a_kernel_that_is_wrong_from_the_second_call_on_gets_no_time(kernels, monkeypatch):
    calls = []

    def second_call_wrong(a, b, c, **plan):
        product(a, b, c)
        calls.append(a)
        if len(calls) > 3:
            c[0, 0] += 8

    row, wrong = timed(kernels, second_call_wrong, monkeypatch)
    assert "right when called for the first time" in wrong
    assert "times its bound after the CUDA-graph replays that were timed" in wrong
    assert not row


def test_the_operations_of_a_batch_are_those_of_all_its_products(kernels, monkeypatch):
    """16 x 8 x 4, five times."""
    flop = []
    monkeypatch.setattr(case_bench, "why_impossible", lambda *told: flop.append(told[0]))
    row, wrong = timed(kernels, product, monkeypatch, batch=5)
    assert (row["status"], wrong) == ("ok", "")
    assert flop == [5120]


def test_each_product_of_a_batch_that_was_timed_is_held_to_the_bound(kernels, monkeypatch):
    calls = []

    def second_call_wrong_in_the_last(a, b, c, **plan):
        product(a, b, c)
        calls.append(a)
        if len(calls) > 3:
            c[4, 15, 7] += 8

    row, wrong = timed(kernels, second_call_wrong_in_the_last, monkeypatch, batch=5)
    assert "times its bound after the CUDA-graph replays that were timed" in wrong
    assert not row


def test_a_launch_that_was_timed_and_writes_nothing_is_seen(kernels, monkeypatch):
    calls = []

    def only_the_first(a, b, c, **plan):
        calls.append(a)
        if len(calls) <= 3:
            product(a, b, c)

    _, wrong = timed(kernels, only_the_first, monkeypatch)
    assert "not finite or never written" in wrong


@pytest.mark.parametrize("fault", ["zeros", "last k"])
def test_sums_in_float16_are_held_to_exact_integers_when_they_were_timed(fault):
    """The bound of float16 sums lets all zeros pass from a K of 3,600 on."""
    (case,) = cases.build(
        None, shapes=["16x8x4096"], dtypes=["float16"], computes=["float16"], device="cpu"
    )
    bench = case_bench.CaseBench(case, "cpu", 0, 0.01, set())
    a, b = case_bench.accuracy.operands(16, 8, 4096, torch.float16, "nn", "cpu", 1)
    c = torch.empty(16, 8, dtype=torch.float16)
    broken, was = [], (a.clone(), b.clone())

    def call():
        short = 4095 if broken == ["last k"] else 4096
        c.copy_(a[:, :short].double() @ b[:short].double())
        if broken == ["zeros"]:
            c.zero_()

    launches = case_bench.Launches([call], Ring(1))
    launches._bursts["events"] = call, 1
    buffers = [(a, b, c, case_bench.Fusion(compute="float16"))]
    bench._check_timed(launches, buffers)
    broken.append(fault)
    with pytest.raises(case_bench.WrongError, match=r"exact integers .* after the launches"):
        bench._check_timed(launches, buffers)
    assert torch.equal(a, was[0])
    assert torch.equal(b, was[1])


def test_the_callable_that_a_repeated_call_uses_is_what_is_timed(kernels, monkeypatch):
    def run(a, b, c, **plan):
        product(a, b, c)

    run.bind = lambda *first, **plan: lambda a, b, c, *terms: c.fill_(1.0)
    _, wrong = timed(kernels, run, monkeypatch)
    assert "times its bound" in wrong


def test_operands_spoiled_while_timing_are_seen(kernels, monkeypatch):
    _, wrong = timed(kernels, writes_into_a, monkeypatch)
    assert "elements of A, which a kernel may only read" in wrong


def test_a_short_product_is_timed_among_others_in_a_graph_and_in_a_stream(kernels, monkeypatch):
    seen = []

    def measure_among(pair, baseline_pair, foreign, timer, *, budget_s):
        seen.append(timer)
        for each in (foreign, baseline_pair, pair):
            for call in each.calls:
                call()
        pair._bursts[timer] = lambda: [call() for call in pair.calls], len(pair.calls)
        ms = 2.0 if timer == "graph" else 3.0
        return timing.Timing(ms, ms, ms, 0.9, 0.9, 0.9, 5, timer)

    monkeypatch.setattr(case_bench, "measure_among", measure_among)
    others = []
    row, wrong = timed(kernels, product, monkeypatch, others)
    assert not wrong
    assert seen == ["graph", "events"]
    assert (row["among"], row["ms_p50"]) == ("alone", 1.0)
    assert [(other["among"], other["ms_p50"]) for other in others] == [
        ("graph", 2.0),
        ("stream", 3.0),
    ]


def test_a_foreign_kernel_follows_each_launch_and_leaves_its_output():
    c = torch.zeros(2, 2)
    (both,) = case_bench.followed([lambda: c.fill_(3.0)], [c])
    version = c._version
    both()
    assert c._version == version + 2
    assert c.eq(3).all()
