"""Gradients of a weight that are added to its .grad within the product."""

from __future__ import annotations

import contextlib
import copy

import pytest
import ranks
import torch

import tcgemm
from tcgemm import launch_cache

BACKEND = {"backend": "cublas"}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def added(monkeypatch):
    """beta of each product that was made with a C to be read."""
    found = []
    run_launch = launch_cache.run_launch

    def looked_at(launch, arguments):
        if arguments[2] is not None:
            found.append((arguments[4], arguments[2] is arguments[7]))
        return run_launch(launch, arguments)

    monkeypatch.setattr(launch_cache, "run_launch", looked_at)
    return found


def pair(dtype=torch.float32, **asked):
    ours = tcgemm.nn.Linear(8, 4, dtype=dtype, accumulate=True, **BACKEND, **asked)
    torchs = torch.nn.Linear(8, 4, dtype=dtype)
    torchs.load_state_dict(ours.state_dict())
    return ours, torchs


@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8)])
@pytest.mark.parametrize("by_columns", [False, True])
def test_three_backward_passes_add_up_in_place(shape, by_columns, added):
    ours, torchs = pair()
    if by_columns:
        ours.weight = torch.nn.Parameter(ours.weight.detach().mT.contiguous().mT)
    kept = None
    for _ in range(3):
        x = torch.randn(shape)
        for layer in (ours, torchs):
            layer(x).square().sum().backward()
        assert kept is None or ours.weight.grad is kept
        kept = ours.weight.grad
        torch.testing.assert_close(kept, torchs.weight.grad)
        torch.testing.assert_close(ours.bias.grad, torchs.bias.grad)
    assert added == [(1.0, True)] * 2
    assert kept._version > 0


def test_it_is_asked_for():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    assert not tcgemm.replace_linear(model, **BACKEND)[0].accumulate
    assert tcgemm.replace_linear(model, **BACKEND, accumulate=True)[0].accumulate
    assert "accumulate=True" in repr(model)


def test_the_gradient_itself_is_given_where_it_is_asked_for(added):
    ours, torchs = pair()
    x = torch.randn(5, 8)
    for layer in (ours, torchs):
        layer(x).sum().backward()
    before = ours.weight.grad.clone()
    mine = torch.autograd.grad(ours(x).sum(), ours.weight)
    torch.testing.assert_close(mine, torch.autograd.grad(torchs(x).sum(), torchs.weight))
    assert torch.equal(ours.weight.grad, before)
    ours(x).sum().backward(inputs=[ours.bias])
    assert torch.equal(ours.weight.grad, before)
    for layer in (ours, torchs):
        layer(x).square().sum().backward(create_graph=True)
    torch.testing.assert_close(ours.weight.grad, torchs.weight.grad)
    assert not added


@pytest.mark.parametrize("kind", ["gradient", "accumulated"])
def test_hooks_see_what_they_see_of_torch(kind, added):
    seen = []
    for layer in pair():
        weight = layer.weight
        if kind == "gradient":
            weight.register_hook(lambda grad: seen.append(grad.clone()))
        else:
            weight.register_post_accumulate_grad_hook(lambda w: seen.append(w.grad.clone()))
        for _ in range(2):
            layer(torch.arange(40.0).view(5, 8)).sum().backward()
    torch.testing.assert_close(seen[:2], seen[2:])
    assert not added


def test_a_weight_of_two_layers_and_one_that_is_computed(added):
    ours, torchs = pair()
    second = copy.deepcopy(ours)
    second.weight = ours.weight
    x = torch.randn(5, 8)
    for layer, other in ((ours, second), (torchs, torchs)):
        for _ in range(2):
            (layer(x).sum() + other(2 * x).square().sum()).backward()
    torch.testing.assert_close(ours.weight.grad, torchs.weight.grad)
    assert added
    added.clear()
    leaf = torch.randn(4, 8, requires_grad=True)
    computed = tcgemm.nn.Linear(8, 4, bias=False, accumulate=True, **BACKEND)
    del computed.weight
    computed.weight = 2 * leaf
    computed(x).sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * x.sum(0).expand(4, 8))
    assert not added


def test_a_gradient_of_another_dtype_is_torch_s_to_add(added):
    ours, _ = pair()
    x = torch.randn(5, 8)
    ours.weight.grad = torch.zeros(4, 8).to_sparse()
    ours(x).sum().backward()
    torch.testing.assert_close(ours.weight.grad.to_dense(), x.sum(0).expand(4, 8))
    assert not added


def test_a_gradient_in_the_memory_of_an_operand_is_torch_s_to_add():
    found = []
    for layer in pair():
        x = torch.ones(4, 8)
        layer.weight.grad = x
        layer(x).sum().backward()
        found.append(layer.weight.grad)
    torch.testing.assert_close(*found)


def data_parallel(rank):
    torch.manual_seed(0)
    ours, torchs = pair()
    wrapped = torch.nn.parallel.DistributedDataParallel(ours)
    for _ in range(3):
        x = torch.randn(5, 8)
        for layer in (wrapped, torchs):
            layer(x).square().sum().backward()
        torch.testing.assert_close(ours.weight.grad, torchs.weight.grad)
    with wrapped.no_sync():
        wrapped(x).sum().backward()
    torchs(x).sum().backward()
    torch.testing.assert_close(ours.weight.grad, torchs.weight.grad)


def test_data_parallel_sums_over_its_ranks():
    """DistributedDataParallel, of one rank: its hooks run though torch adds nothing itself.

    In a process of its own: where the model is the last to hold a gloo group, torch 2.13 joins
    the group's threads with Python's lock held, which one of them may wait for.
    """
    with contextlib.closing(ranks.Ranks(1)) as one:
        one(data_parallel)
