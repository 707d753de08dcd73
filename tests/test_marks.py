"""What `make test` leaves to `make test-all`: of some parameters, type pairs and turns."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import conftest
import pytest


def item(mark, **places):
    return SimpleNamespace(
        get_closest_marker=lambda name: mark if name == "spread" else None,
        callspec=SimpleNamespace(indices=places),
    )


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(("n", "sizes"), [(2, (8, 2)), (3, (5, 4)), (4, (8, 8, 4)), (4, (9, 3, 4))])
def test_a_spread_keeps_one_in_n_and_every_value(n, sizes, at):
    names = [f"p{i}" for i in range(len(sizes))]
    mark = SimpleNamespace(args=(n, *names), kwargs={"at": at})
    kept = [
        places
        for places in itertools.product(*map(range, sizes))
        if not conftest.is_left_by_spread(item(mark, **dict(zip(names, places, strict=True))))
    ]
    total = len(list(itertools.product(*map(range, sizes))))
    assert len(kept) == pytest.approx(total / n, abs=1)
    for number, size in enumerate(sizes):
        assert {places[number] for places in kept} == set(range(size))


def test_what_has_no_mark_is_kept():
    assert not conftest.is_left_by_spread(item(None, p=1))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12, 20])
def test_a_cpu_tries_each_pair_over_the_tests_and_keeps_two_at_every_second_turn(
    monkeypatch, count
):
    monkeypatch.setattr(conftest, "DEVICE", "cpu")
    pairs = [(str(i),) for i in range(count)]
    every, kept = set(), []
    for turn in range(60):
        drawn = conftest.drawn_pairs(pairs, 7, turn)
        assert len({pair for pair, _ in drawn}) == len(drawn) == min(count, conftest.PAIRS_ON_A_CPU)
        every.update(pair for pair, _ in drawn)
        kept += [pair for pair, exhaustive in drawn if not exhaustive]
    assert every == set(pairs)
    assert len(kept) == 30
    assert pairs[0] in kept
    assert len(set(kept)) == min(count, 2)
    of_kernels = {
        pair
        for number in range(60)
        for pair, exhaustive in conftest.drawn_pairs(pairs, number, 2)
        if not exhaustive
    }
    assert of_kernels == set(pairs[1:] or pairs)


def test_a_gpu_takes_all_pairs(monkeypatch):
    monkeypatch.setattr(conftest, "DEVICE", "cuda")
    pairs = [("a",), ("b",), ("c",)]
    assert conftest.drawn_pairs(pairs, 1, 1) == [(pair, False) for pair in pairs]
