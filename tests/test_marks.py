"""What `make test` leaves to `make test-all`: of some parameters, type pairs and turns."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys

import conftest
import pytest
import workers

from tcgemm import dispatch

SPREADS = ((2, (8, 2), 0), (4, (9, 3, 4), 1))
"""n, how many values each parameter has, the place that is kept."""


def kept_of_each(tmp_path):
    """What pytest keeps of a test of each of SPREADS: the places of its parameters' values."""
    lines = ["import pytest"]
    for number, (n, sizes, at) in enumerate(SPREADS):
        names = [f"p{i}" for i in range(len(sizes))]
        lines.append(f"@pytest.mark.spread({n}, *{names}, at={at})")
        for name, size in zip(names, sizes, strict=True):
            lines.append(f"@pytest.mark.parametrize('{name}', range({size}))")
        lines.append(f"def test_{number}({', '.join(names)}): ...")
    (tmp_path / "test_it.py").write_text("\n".join(lines))
    for copied in (conftest, workers):
        shutil.copy(copied.__file__, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, "--rootdir", tmp_path, tmp_path], capture_output=True, text=True, env=environment
    )
    # Values in the brackets stand in the order of the decorators from below.
    return [
        [tuple(map(int, each.split("-")))[::-1] for each in found]
        for found in (
            re.findall(rf"test_{number}\[([\d-]+)\]", done.stdout) for number in range(len(SPREADS))
        )
    ]


def test_a_spread_keeps_one_in_n_and_every_value(tmp_path):
    """As pytest has it: another version has numbered combinations where it had numbered values."""
    for (n, sizes, _), kept in zip(SPREADS, kept_of_each(tmp_path), strict=True):
        assert len(kept) == pytest.approx(math.prod(sizes) / n, abs=1)
        for number, size in enumerate(sizes):
            assert {places[number] for places in kept} == set(range(size))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12, 20])
def test_a_cpu_tries_each_pair_over_the_tests_and_keeps_two_at_every_fourth_turn(
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
    assert len(kept) == 15
    assert pairs[0] in kept
    assert len(set(kept)) == min(count, 2)
    of_kernels = {
        pair
        for number in range(60)
        for pair, exhaustive in conftest.drawn_pairs(pairs, number, 4)
        if not exhaustive
    }
    assert of_kernels == set(pairs[1:] or pairs)


def test_of_a_kernel_that_is_built_by_type_the_first_pair_is_kept(monkeypatch):
    monkeypatch.setattr(conftest, "DEVICE", "cpu")
    pairs = [(str(i),) for i in range(4)]
    every, kept = set(), []
    for turn in range(60):
        drawn = conftest.drawn_pairs(pairs, 7, turn, built_by_type=True)
        every.update(pair for pair, _ in drawn)
        kept += [pair for pair, exhaustive in drawn if not exhaustive]
    assert every == set(pairs)
    assert kept == [pairs[0]] * 15
    rows = {row.name for row in dispatch.ladder("cuda") if conftest.built_by_type(row)}
    assert rows >= {"skinny", "stream_k", "small", "one_wave", "wgmma_persistent"}
    assert not rows & {"naive", "gemv", "wmma_types", "wgmma_types"}


def test_a_gpu_takes_all_pairs(monkeypatch):
    monkeypatch.setattr(conftest, "DEVICE", "cuda")
    pairs = [("a",), ("b",), ("c",)]
    assert conftest.drawn_pairs(pairs, 1, 1) == [(pair, False) for pair in pairs]
