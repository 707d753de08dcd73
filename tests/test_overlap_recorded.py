"""What an overlapped call repeats of the one before: launches are recorded once for each kind."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from test_overlap import ranks_in_turns

from tcgemm.dist.options import Options
from tcgemm.dist.overlap import plan as planning
from tcgemm.dist.overlap.kinds import KernelCall


class Launches:
    """Stands in for Triton: which kernels it launched, and which launches were made again."""

    def __init__(self, monkeypatch) -> None:
        self.launched, self.again, self.ahead = [], [], []
        run = self.run = import_module("tcgemm.triton_kernels.overlap.run")
        monkeypatch.setattr(run, "INTERPRETED", False)
        monkeypatch.setattr(run, "record", self.record)
        monkeypatch.setattr(run, "check", lambda like: None)
        for module, name in (
            (run.signals, "enter"), (run.signals, "await_stored"),
            (run.gathering, "kernel"), (run.scattering, "kernel"),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, self.kernel(name))
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)

    def kernel(self, name):
        def launch(*args, **constants):
            self.launched.append((name, args, constants))
            return name

        return type("Kernel", (), {"__getitem__": lambda of, grid: launch})()

    def record(self, compiled, step, addresses, room, ahead):
        self.ahead.append((compiled, ahead[3]["PDL"]))
        return lambda stream, there: self.again.append((compiled, stream, there))

    def taken(self):
        """Names of what was launched and of what was made again, since the last time."""
        found = [name for name, *_ in self.launched], [name for name, *_ in self.again]
        self.launched.clear()
        self.again.clear()
        return found


@pytest.fixture
def launches(monkeypatch):
    return Launches(monkeypatch)


def gathered(launches, rank, a, b, out, **asked):
    plan = planning.in_parts(planning.INTERPRETED[0], 8, 1)
    rank.gather(launches.run, a, b, out, plan, Options("triton", rows=16, **asked))


@pytest.mark.parametrize("ahead", [False, True])
def test_launches_of_a_gather_are_recorded_once_for_each_kind_and_slot(launches, ahead):
    rank = ranks_in_turns(2)[0]
    a, b, out = torch.ones(8, 16).half(), torch.ones(16, 8).half(), torch.empty(16, 8).half()
    both = ["kernel"] if ahead else ["enter", "kernel"]
    rank._number = 0 if ahead else None
    for _ in range(2):  # two slots
        gathered(launches, rank, a, b, out)
    assert launches.taken() == (both * 2, [])
    for _ in range(2):
        gathered(launches, rank, a, b, out)
    assert launches.taken() == ([], both * 2)
    other = torch.empty(16, 8).half()
    for _ in range(2):
        gathered(launches, rank, a, b, other)
    assert {(name, stream) for name, stream, _ in launches.again} == {(n, 7) for n in both}
    assert launches.again[len(both) - 1][2][:4] == (a.data_ptr(), b.data_ptr(), other.data_ptr(), 0)
    launches.taken()
    for lies in (a.clone(), torch.ones(33 * 8).half()[:128].view(8, 16)):
        for _ in range(4):  # descriptors hold the address of A
            gathered(launches, rank, lies, b, out)
        assert launches.taken() == (["kernel"] * 2, both[:-1] * 2 + both * 2)
    with_bias = {"bias": torch.ones(8).half(), "epilogue": "relu"}
    for _ in range(2):
        gathered(launches, rank, a, b, out, **with_bias)
    assert launches.taken() == (both * 2, [])


def test_another_alignment_of_what_is_no_descriptor_is_another_kernel(launches):
    rank = ranks_in_turns(2)[0]
    a, b = torch.ones(8, 16).half(), torch.ones(16, 8).half()
    whole = torch.empty(16 * 8 + 1).half()
    for _ in range(4):
        gathered(launches, rank, a, b, whole[:-1].view(16, 8))
    launches.taken()
    for _ in range(4):
        gathered(launches, rank, a, b, whole[1:].view(16, 8))
    assert launches.taken()[0] == ["kernel"] * 2


def test_recordings_tell_all_addresses_that_kernels_take(launches):
    rank = ranks_in_turns(2)[0]
    a, b, out = torch.ones(16, 16).half(), torch.ones(16, 8).half(), torch.empty(8, 8).half()
    carried = planning.in_parts(planning.INTERPRETED[0], 8, 1, carried=True)
    stored = replace(carried, carried=False, early=True)
    for plan, number in product((carried, stored), (None, 0)):
        rank._number = number
        rank.scatter(launches.run, a, b, out, plan, Options("triton", rows=16))
        (call,) = (each for each in rank.kinds.values() if isinstance(each, KernelCall))
        rank.kinds.clear()
        known = {a.data_ptr(), b.data_ptr(), out.data_ptr(), *call.addresses}
        for _, args, constants in launches.launched:
            tensors = [x for x in (*args, *constants.values()) if isinstance(x, torch.Tensor)]
            assert {x.data_ptr() for x in tensors} <= known
        launches.taken()


def test_what_starts_early_is_known_to_stand_behind_what_lets_it(launches):
    rank = ranks_in_turns(2)[0]
    rank._number = None
    a, b, out = torch.ones(16, 16).half(), torch.ones(16, 8).half(), torch.empty(8, 8).half()
    for early in (False, True):
        plan = replace(planning.in_parts(planning.INTERPRETED[0], 8, 1), early=early)
        launches.ahead.clear()
        rank.scatter(launches.run, a, b, out, plan, Options("triton", rows=16))
        assert launches.ahead == [("enter", False), ("kernel", early)]
        assert [made[2]["PDL"] for made in launches.launched] == [early] * 2
        launches.taken()


def test_a_call_with_tensors_of_its_own_is_not_kept(launches):
    rank = ranks_in_turns(2)[0]
    a = torch.ones(8, 16).to(torch.float8_e5m2)
    b = torch.ones(8, 16).to(torch.float8_e5m2).mT
    out = torch.empty(16, 8).bfloat16()
    for _ in range(4):
        gathered(launches, rank, a, b, out, scale_a=torch.ones(()))
    assert launches.taken() == (["kernel"] * 4, [])
    assert not rank.kinds


def test_kept_launches_are_only_so_many(launches, monkeypatch):
    monkeypatch.setattr(launches.run, "KEPT", 4)
    rank = ranks_in_turns(2)[0]
    b, out = torch.ones(16, 8).half(), torch.empty(16, 8).half()
    operands = [torch.ones(8, 16).half() for _ in range(9)]
    for a in operands:
        gathered(launches, rank, a, b, out)
    assert all(len(call.kept) <= 4 for call in rank.kinds.values())


@pytest.mark.parametrize("ahead", [False, True])
def test_kernels_in_cuda_are_bound_once_for_each_kind_and_slot(monkeypatch, ahead):
    run = import_module("tcgemm.cuda_ref.overlap.run")
    made, again = [], []

    def start(peers, a, b, c, fusion, tile):
        made.append(peers.step)
        return lambda *operands: again.append((peers.step, operands))

    monkeypatch.setattr(run, "_start", start)
    rank = ranks_in_turns(2)[0]
    a, b, bias = torch.ones(8, 16).half(), torch.ones(16, 8).half(), torch.ones(8).half()
    outs = [torch.empty(16, 8).half() for _ in range(4)]
    plan = planning.in_parts(planning.SIMULATED[0], 8, 1)
    rank._number = 0 if ahead else None
    for out in outs:
        rank.gather(run, a, b, out, plan, Options("cuda", rows=16, bias=bias))
    steps = [run.GATHER] if ahead else [run.ENTER, run.GATHER]
    assert made == steps * 2
    assert [step for step, _ in again] == steps * 2
    assert all(x is y for x, y in zip(again[len(steps) - 1][1], (a, b, outs[2], bias), strict=True))


def test_a_kept_call_of_gpus_is_one_of_the_shape_alone():
    """What was planned is found again by numbers, and is no other where one of them is another."""
    from tcgemm.dist import overlap

    like = SimpleNamespace(is_cuda=True, itemsize=2)
    plans = [
        overlap._plan("all_gather", M, 6144, 4096, 2, Options(language), like)
        for M in (2048, 16384)
        for language in ("triton", "cuda")
    ]
    assert len({plan.tile for plan in plans}) > 1
    assert plans[0] is overlap._plan("all_gather", 2048, 6144, 4096, 2, Options("triton"), like)
