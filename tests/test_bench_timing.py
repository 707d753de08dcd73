"""The statistics and the pairing, on a fake clock; the GPU's part where there is one."""

import random

import pytest
import torch

from tcgemm.bench import launches, timing


class Clock:
    """Seconds that pass only when something is launched."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Fake:
    """A contender whose launches take known times, by timer; a drift multiplies all of them."""

    def __init__(self, clock, name="kernel", log=None, drift=lambda now: 1.0, **ms):
        self.clock, self.name, self.log, self.drift, self.ms = clock, name, log, drift, ms
        self.estimates = 0

    def estimate(self):
        self.estimates += 1
        return self.ms.get("estimate", next(iter(self.ms.values())))

    def sampler(self, timer):
        if self.ms.get(timer) is None:
            raise timing.CaptureError("not captured")

        def sample():
            ms = self.ms[timer] * self.drift(self.clock.now)
            self.clock.now += ms / 1e3
            if self.log is not None:
                self.log.append((self.name, timer))
            return ms

        return sample


@pytest.mark.parametrize(("q", "expected"), [(0, 1), (0.2, 1.8), (0.5, 3), (0.8, 4.2), (1, 5)])
def test_quantiles_are_linear_between_neighbours(q, expected):
    assert timing.quantile([5, 1, 4, 2, 3], q) == pytest.approx(expected)
    assert timing.quantile([7.0], q) == 7.0


def test_ratios_are_taken_pair_by_pair():
    result = timing.summarise([(1.0, 2.0), (2.0, 2.0), (4.0, 2.0)], "graph")
    assert (result.ms_p50, result.ratio_p50, result.rounds) == (2.0, 1.0, 3)
    assert result.ratio_p20 < result.ratio_p50 < result.ratio_p80
    assert result.timer == "graph"


def test_without_a_baseline_there_are_times_and_no_ratios():
    result = timing.summarise([(1.0, None), (3.0, None)], "events")
    assert result.ms_p50 == 2.0
    assert (result.ratio_p20, result.ratio_p50, result.ratio_p80) == (None, None, None)


def test_samples_alternate_in_order():
    clock, log = Clock(), []
    kernel = Fake(clock, "k", log, events=1).sampler("events")
    base = Fake(clock, "b", log, events=1).sampler("events")
    timing.take_pairs(kernel, base, budget_s=0, least=4, clock=clock)
    assert "".join(name for name, _ in log) == "kbbkkbbk"


@pytest.mark.parametrize(("budget", "rounds"), [(0.0, 5), (0.25, 125), (100.0, 1000)])
def test_rounds_follow_the_budget_within_bounds(budget, rounds):
    clock = Clock()
    kernel, base = (Fake(clock, events=1).sampler("events") for _ in range(2))
    pairs = timing.take_pairs(kernel, base, budget_s=budget, clock=clock)
    assert len(pairs) == pytest.approx(rounds, abs=1)


def test_the_ratio_survives_drifting_clocks():
    clock = Clock()
    noise = random.Random(0)

    def drift(now):
        return 1 + 0.4 * now + noise.uniform(0, 0.01)

    result = timing.measure(
        Fake(clock, drift=drift, events=2.0), Fake(clock, drift=drift, events=1.9), clock=clock
    )
    assert result.ratio_p50 == pytest.approx(0.95, abs=0.01)
    assert result.ms_p80 > 1.05 * result.ms_p20


@pytest.mark.parametrize(("ms", "timer"), [(0.02, "graph"), (0.099, "graph"), (0.1, "events")])
def test_short_kernels_are_timed_by_graph(ms, timer):
    clock = Clock()
    result = timing.measure(
        Fake(clock, graph=ms, events=ms), Fake(clock, graph=ms, events=ms), clock=clock
    )
    assert result.timer == timer


def test_a_kernel_that_cannot_be_captured_is_timed_by_events():
    clock = Clock()
    kernel = Fake(clock, estimate=0.05, graph=None, events=0.05)
    result = timing.measure(kernel, Fake(clock, graph=0.05, events=0.05), clock=clock)
    assert result.timer == "events"


def test_a_slow_kernel_is_paired_three_times_and_not_warmed_up():
    clock, log = Clock(), []
    kernel = Fake(clock, "k", log, events=2000.0)
    result = timing.measure(kernel, Fake(clock, "b", log, events=10.0), clock=clock)
    assert result.rounds == 3
    assert len(log) == 6


def test_a_normal_kernel_warms_up_and_gets_five_pairs_at_least():
    clock, log = Clock(), []
    kernel = Fake(clock, "k", log, events=80.0)
    result = timing.measure(kernel, Fake(clock, "b", log, events=80.0), clock=clock)
    assert result.rounds == 5
    assert len(log) == 12


@pytest.mark.parametrize(
    ("graph", "events", "kept", "ratio"),
    [
        (0.010, 0.019, "events", 20 / 19),  # the claim does not hold with the second timer
        (0.010, 0.009, "graph", 2.0),  # it does: the lower of the two is kept
    ],
)
def test_a_ratio_above_the_doubt_is_measured_with_both_timers(graph, events, kept, ratio):
    clock, log = Clock(), []
    kernel = Fake(clock, "k", log, graph=graph, events=events)
    base = Fake(clock, "b", log, graph=0.020, events=0.020)
    result = timing.measure(kernel, base, budget_s=0.01, clock=clock)
    assert {timer for name, timer in log if name == "b"} == {"graph", "events"}
    assert (result.timer, result.ratio_p50) == (kept, pytest.approx(ratio))


def test_a_ratio_below_the_doubt_is_measured_once():
    clock, log = Clock(), []
    kernel = Fake(clock, "k", log, graph=0.019, events=0.001)
    timing.measure(kernel, Fake(clock, "b", log, graph=0.020), budget_s=0.01, clock=clock)
    assert {timer for _, timer in log} == {"graph"}


def test_the_baseline_is_paired_with_itself():
    clock = Clock()
    cublas = Fake(clock, graph=0.02, events=0.04)
    result = timing.measure(cublas, cublas, budget_s=0.01, clock=clock)
    assert (result.ratio_p50, result.timer) == (1.0, "graph")


def test_a_missing_baseline_leaves_the_time():
    clock = Clock()
    result = timing.measure(Fake(clock, events=0.2), None, budget_s=0.01, clock=clock)
    assert (result.ms_p50, result.ratio_p50) == (0.2, None)


def among(clock, mine, other, foreign, **more):
    contenders = [Fake(clock, graph=ms, events=ms, **more) for ms in (mine, other, foreign)]
    return timing.measure_among(*contenders, "graph", budget_s=0.01, clock=clock)


def test_among_others_the_foreign_kernels_time_is_taken_off_both():
    result = among(Clock(), 0.010, 0.012, 0.004)
    assert result.ms_p50 == pytest.approx(0.006)
    assert result.ratio_p50 == pytest.approx(8 / 6)
    assert result.timer == "graph"
    assert result.rounds >= timing.MIN_PAIRS


def test_among_others_all_three_are_sampled_in_turning_order():
    clock, log = Clock(), []
    names = ("k", "b", "f")
    contenders = [Fake(clock, name, log, events=1.0) for name in names]
    assert timing.measure_among(*contenders, "events", budget_s=0, clock=clock) is None
    rounds = ["".join(name for name, _ in log[i : i + 3]) for i in range(3, len(log), 3)]
    assert rounds == ["kbf", "kfb", "fkb", "fbk", "bfk"]


def test_among_others_a_pair_no_longer_than_what_is_taken_off_says_nothing():
    assert among(Clock(), 0.004, 0.012, 0.004) is None


def test_a_rate_above_the_peak_is_impossible():
    flop = 2 * 4096**3
    assert timing.why_impossible(flop, 0.2, 989.4) is None
    assert timing.why_impossible(flop, 0.1, None) is None
    sentence = timing.why_impossible(flop, 0.1, 989.4)
    assert "1374 TFLOPS" in sentence
    assert "989" in sentence


MIB = 2**20


@pytest.mark.parametrize(
    ("each", "free", "expected"),
    [
        (6 * MIB, 100_000 * MIB, (17, "cold")),  # 17 * 6 >= 2 * 50
        (400 * MIB, 100_000 * MIB, (2, "cold")),  # one set is larger than the L2: still two
        (1024, 100_000 * MIB, (512, "warm")),  # too small to fill it
        (6 * MIB, 40 * MIB, (3, "warm")),  # no memory for more
        (400 * MIB, 100 * MIB, (1, "warm")),
    ],
)
def test_buffers_rotate_over_twice_the_l2(each, free, expected):
    assert launches.buffer_count(each, 50 * MIB, free) == expected


def test_contenders_of_a_case_share_one_ring():
    ring = launches.Ring(3)
    assert [ring.turn() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.gpu
def test_both_timers_agree_on_a_gpu():
    sets = [[torch.randn(2048, 2048, device="cuda").half() for _ in range(3)] for _ in range(5)]
    calls = [lambda a=a, b=b, c=c: torch.mm(a, b, out=c) for a, b, c in sets]
    bound = launches.Launches(calls, launches.Ring(len(calls)))
    # The least of many: other programs may share the GPU.
    graph = min(bound.sampler("graph")() for _ in range(50))
    events = min(bound.sampler("events")() for _ in range(50))
    assert graph > 0
    assert graph == pytest.approx(events, rel=0.3)


@pytest.mark.gpu
def test_a_call_that_synchronises_cannot_be_captured_and_harms_nobody():
    x = torch.ones(1024, device="cuda")

    def call():
        x.add_(1)
        torch.cuda.synchronize()

    bound = launches.Launches([call, call], launches.Ring(2))
    with pytest.raises(timing.CaptureError):
        bound.sampler("graph")
    assert bound.sampler("events")() > 0
    assert launches.Launches([lambda: x.add_(1)], launches.Ring(1)).sampler("graph")() > 0
