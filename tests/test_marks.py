"""What `make test` leaves to `make test-all`: a spread of parameters, and all but one type pair."""

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


@pytest.mark.parametrize(("n", "sizes"), [(2, (8, 2)), (3, (5, 4)), (4, (8, 8, 4)), (4, (9, 3, 4))])
def test_a_spread_keeps_one_in_n_and_every_value(n, sizes):
    names = [f"p{i}" for i in range(len(sizes))]
    mark = SimpleNamespace(args=(n, *names))
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


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 12, 20])
def test_of_the_pairs_that_a_cpu_tries_one_is_kept_and_each_over_the_tests(monkeypatch, number):
    monkeypatch.setattr(conftest, "DEVICE", "cpu")
    pairs = [(str(i),) for i in range(number)]
    every = set()
    for turn in range(60):
        drawn = conftest.drawn_pairs(pairs, turn)
        kept = [pair for pair, exhaustive in drawn if not exhaustive]
        assert len(kept) == 1
        assert len(drawn) <= conftest.PAIRS_ON_A_CPU
        every.update(kept)
        first = conftest.drawn_pairs(pairs, turn, first=True)
        assert [pair for pair, _ in first] == [pair for pair, _ in drawn]
        assert (pairs[0], True) not in first
    assert every == set(pairs)


def test_a_gpu_takes_all_pairs(monkeypatch):
    monkeypatch.setattr(conftest, "DEVICE", "cuda")
    pairs = [("a",), ("b",), ("c",)]
    assert conftest.drawn_pairs(pairs, 1) == [(pair, False) for pair in pairs]
