"""Layers within what torch offers around them: checkpoints, autocast, compiled autograd."""

from __future__ import annotations

import gc
import re
import sys
import threading
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import DEVICE
from torch._dynamo import compiled_autograd
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import tcgemm
from tcgemm import launch_cache, tensors
from tcgemm.errors import OperandError, OperandTypeError, UnsupportedError
from tcgemm.ops import eager, layer

F = torch.nn.functional
BACKEND = {"backend": "cublas"}
ACTIVATIONS = {None: lambda x: x, "relu": torch.relu, "gelu": F.gelu}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    launch_cache.forget()


def pair(epilogue=None, backend="cublas"):
    ours = tcgemm.nn.Linear(8, 8, epilogue=epilogue, backend=backend)
    torchs = torch.nn.Linear(8, 8)
    torchs.load_state_dict(ours.state_dict())
    return ours, torch.nn.Sequential(torchs, torch.nn.GELU()) if epilogue == "gelu" else torchs


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_a_checkpoint_under_autocast_keeps_as_many_tensors_the_second_time(epilogue, reentrant):
    """The second time it stands in a region of its own, without the casts of the layer before."""
    first, second = (tcgemm.nn.Linear(8, 8, epilogue=epilogue, **BACKEND) for _ in range(2))
    found = []
    for kept in (False, True):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = first(x)
            y = checkpoint(second, y, use_reentrant=reentrant) if kept else second(y)
        y.float().square().sum().backward()
        found.append([y, x.grad, *(p.grad for p in (*first.parameters(), *second.parameters()))])
        first.zero_grad()
        second.zero_grad()
    # Without gradients gelu is fused, with them it is not: bfloat16 rounds once more.
    torch.testing.assert_close(*found, atol=0.1, rtol=0.02)


def test_hooks_hear_of_a_layer_s_own_tensors_alone_under_autocast():
    ours, _ = pair()
    heard = []
    with (
        torch.autocast("cpu", torch.bfloat16),
        saved_tensors_hooks(lambda t: heard.append(t.shape) or t, lambda t: t),
    ):
        ours(torch.randn(5, 8))
    assert heard == [(5, 8)]


def test_autocast_of_a_kind_of_device_that_is_not_there():
    ours, torchs = pair("gelu")
    x = torch.randn(5, 8)
    torch.set_autocast_enabled("xpu", True)
    try:
        for _ in range(2):
            torch.testing.assert_close(ours(x), torchs(x))
            torch.testing.assert_close(tcgemm.gemm(x, ours.weight, **BACKEND), x @ ours.weight)
    finally:
        torch.set_autocast_enabled("xpu", False)


@pytest.mark.parametrize("grad", [True, False])
def test_what_is_no_argument_is_named_in_a_sentence(grad):
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    with torch.set_grad_enabled(grad):
        for name in ("epilogue", "compute", "backend", "kernel", "out_dtype"):
            with pytest.raises((OperandError, OperandTypeError), match=name):
                tcgemm.linear(x, w, **{**BACKEND, name: ["gelu"]})
        with pytest.raises(OperandTypeError, match="nested"):
            tcgemm.linear(torch.nested.nested_tensor([x.detach()] * 2), w, **BACKEND)
        with pytest.raises(OperandTypeError, match="weight is a list"):
            tcgemm.linear(x, [[1.0, 2.0, 3.0]], **BACKEND)


@pytest.mark.parametrize("asked", [{}, {"epilogue": "relu"}, {"epilogue": "gelu"}, {"beta": 1.0}])
@pytest.mark.parametrize("backend", ["cublas", "triton"])
def test_no_tensor_of_a_call_outlives_it(backend, asked):
    a, b, c, bias = (torch.randn(*s, device=DEVICE) for s in ((8, 8), (8, 8), (8, 8), (8,)))
    tcgemm.gemm(a, b, c, bias=bias, backend=backend, **asked)
    ours = tcgemm.nn.Linear(8, 8, epilogue=asked.get("epilogue"), backend=backend, device=DEVICE)
    for _ in range(2):
        ours(a).sum().backward()
    refs = [weakref.ref(t) for t in (a, b, c, bias, *ours.parameters())]
    del a, b, c, bias, ours
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(launch_cache, "MOST", 20)
    x = torch.randn(4, 8)
    for count in range(100):  # new layers, new shapes, gradients that lie in ever other ways
        tcgemm.nn.Linear(8, 8, **BACKEND)(torch.randn(1 + count, 8)).sum().backward()
        tcgemm.linear(x, torch.ones(8, 8, requires_grad=True), epilogue="relu", **BACKEND).backward(
            torch.randn(4, 8 + count)[:, :8]
        )
    assert max(map(len, (eager._kinds, eager._recent, launch_cache.launches))) <= 20
    assert max(len(kind.gradients) for kind in eager._kinds.values()) <= layer.LAYOUTS


def test_threads_keep_and_forget_at_once(monkeypatch):
    monkeypatch.setattr(launch_cache, "MOST", 3)
    failed = []

    def keep(thread):
        try:
            for number in range(5000):
                launch_cache.keep(launch_cache.launches, (thread, number), None)
                if number % 50 == 0:
                    launch_cache.forget()
        except Exception as error:  # which a thread would swallow
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=keep, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        launch_cache.forget()
    assert not failed


@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_forward_mode_of_all_directions_at_once(epilogue):
    w, x = torch.randn(3, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)

    def both(derivative):
        torch.testing.assert_close(
            derivative(lambda x: tcgemm.linear(x, w, None, epilogue, **BACKEND)),
            derivative(lambda x: ACTIVATIONS[epilogue](F.linear(x, w))),
        )

    functional = torch.autograd.functional
    every = {"vectorize": True}
    both(lambda f: functional.jacobian(f, x, strategy="forward-mode", **every))
    both(
        lambda f: functional.hessian(
            lambda x: f(x).square().sum(), x, outer_jacobian_strategy="forward-mode", **every
        )
    )


@pytest.mark.spread(2, "epilogue", "backend")
@pytest.mark.parametrize("backend", ["cublas", "triton"])
@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_compiled_autograd_makes_one_graph_of_the_backward_pass(epilogue, backend):
    torch._dynamo.reset()
    found, nodes = [], []

    def backend_of_torch(graph, _):
        nodes.append([str(node.target) for node in graph.graph.nodes])
        return graph

    for model in (ours := [each.to(DEVICE) for each in pair(epilogue, backend)]):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
        x = x.to(DEVICE).requires_grad_()
        with compiled_autograd._enable(
            lambda graph: torch.compile(graph, backend=backend_of_torch, fullgraph=True)
        ):
            y = model(x)
            if epilogue == "relu" and model is ours[1]:
                y = torch.relu(y)
            y.square().sum().backward()
        found.append([x.grad, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
    assert sum("tcgemm.gemm" in name for name in nodes[0]) == 2


class Watching(TorchDispatchMode):
    """As torch's own modes for traces and selective checkpoints, which guards pass over."""

    def __init__(self):
        super().__init__()
        self.seen = []

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("grad", [False, True])
def test_each_mode_sees_a_layer_that_ran_before(grad):
    ours, torchs = pair()
    x, y = torch.randn(2, 5, 8)
    with torch.set_grad_enabled(grad):
        ours(x)
        with Watching() as mode:
            ours(x)
        assert "tcgemm.gemm.default" in mode.seen
        traced = make_fx(ours)(x)
        first = traced(y)
        traced(x)
        torch.testing.assert_close(first, torchs(y))
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert type(ours(x)) is FakeTensor


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("asked", ["x", "weight", "bias", "x weight", "x weight bias"])
def test_a_pass_multiplies_for_what_it_was_asked(asked, create_graph):
    shapes = {"x": (4, 8), "weight": (8, 8), "bias": (8,)}
    operands = {name: torch.randn(*shapes[name], requires_grad=True) for name in shapes}
    wanted = [operands[name] for name in asked.split()]
    found = []
    for linear in (F.linear, partial(tcgemm.linear, **BACKEND)):
        y = linear(*operands.values()).square().sum()
        with torch.profiler.profile() as profile:
            found.append(torch.autograd.grad(y, wanted, create_graph=create_graph))
        products = [event.name for event in profile.events()].count("aten::mm")
        assert products == len({"x", "weight"} & set(asked.split()))
    torch.testing.assert_close(*found)


def test_a_pass_by_weights_asks_about_one_of_them(monkeypatch):
    """The others' gradients are made: the error that tells takes as long as a small product."""
    errors = []

    def will_run(node, really=layer.will_run):
        try:
            return really(node)
        except RuntimeError:
            errors.append(node)
            raise

    monkeypatch.setattr(layer, "will_run", will_run)
    model = torch.nn.Sequential(*(tcgemm.nn.Linear(8, 8, **BACKEND) for _ in range(5)))
    x = torch.randn(4, 8, requires_grad=True)
    for _ in range(2):
        loss = model(x).sum()
        mine = torch.autograd.grad(loss, [*model.parameters()])
        theirs = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
        theirs.load_state_dict(model.state_dict())
        exact = torch.autograd.grad(theirs(x).sum(), [*theirs.parameters()])
        torch.testing.assert_close(mine, exact)
    assert len(errors) == 2


@pytest.mark.parametrize("needed", [False, True])
def test_a_tangent_is_seen_after_a_call_without(needed):
    w, x = torch.randn(8, 8, requires_grad=needed), torch.randn(5, 8, requires_grad=needed)
    for _ in range(2):
        tcgemm.linear(x, w, **BACKEND)
        with forward_ad.dual_level():
            y = tcgemm.linear(forward_ad.make_dual(x, torch.ones_like(x)), w, **BACKEND)
            tangent = forward_ad.unpack_dual(y).tangent
        torch.testing.assert_close(tangent, torch.ones(5, 8) @ w.mT)


def test_operands_that_are_less_aligned_are_looked_at(monkeypatch):
    """A CPU's launches give the same either way: a GPU's would read past their alignment."""
    ours, _ = pair()
    looked = []
    look = eager._looked_at
    monkeypatch.setattr(eager, "_looked_at", lambda *call: looked.append(1) or look(*call))
    aligned, other = torch.randn(5, 8), torch.randn(41)[1:].view(5, 8)
    for x in (aligned, aligned, other, other, aligned):
        ours(x)
    assert len(looked) == 3


@pytest.mark.parametrize("known", [None, SimpleNamespace(TensorGuards=lambda *tensors: None)])
def test_without_torch_s_guard_each_call_is_looked_at(known, monkeypatch):
    monkeypatch.setattr(tensors, "_dynamos", known)
    ours, torchs = pair()
    x = torch.randn(5, 8)
    assert not tensors.guard(x)(x)
    for _ in range(2):
        torch.testing.assert_close(ours(x), torchs(x))


def test_a_torch_that_lacks_what_is_asked_is_named():
    with pytest.raises(UnsupportedError, match=f"{re.escape(torch.__version__)}.*_no_such_name"):
        tensors._private("_functorch._no_such_name")
