"""torch.compile with Inductor, its real compiler: what a user gets who passes no ``backend=``."""

from __future__ import annotations

import copy
import importlib
import inspect

import pytest
import torch

import tcgemm
from tcgemm.launch import Launch

READS_ARGUMENTS = (
    "torch._inductor.ir", "torch._inductor.lowering", "torch._ops", "torch._library.utils",
    "torch._higher_order_ops.auto_functionalize", "torch._subclasses.fake_impls",
)  # fmt: skip
"""Modules of torch whose functions hand an operator's keyword arguments on beside their own."""


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def taken_by_torch():
    """{name of an argument: the function of torch that takes it beside ``**kwargs``}."""
    found = {}
    for name in READS_ARGUMENTS:
        try:
            module = importlib.import_module(name)
        except ImportError:  # another version's
            continue
        for holder in (module, *filter(inspect.isclass, vars(module).values())):
            for each in vars(holder).values():
                function = inspect.unwrap(getattr(each, "__func__", each))
                if not inspect.isfunction(function):
                    continue
                parameters = inspect.signature(function).parameters.values()
                if any(p.kind is p.VAR_KEYWORD for p in parameters):
                    for p in parameters:
                        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                            found[p.name] = f"{function.__module__}.{function.__qualname__}"
    return found


def test_no_argument_of_an_operator_has_a_name_that_torch_takes_itself():
    """``FallbackKernel.create(kernel, *args, **kwargs)`` cannot lower an operator with a keyword
    argument ``kernel``."""
    taken = taken_by_torch()
    assert "kernel" in taken
    tcgemm.matmul  # noqa: B018 - registers them
    for packet in (torch.ops.tcgemm.gemm, torch.ops.tcgemm.gemm_out):
        for argument in packet.default._schema.arguments:
            assert argument.name not in taken, (argument.name, taken[argument.name])


def test_inductor_compiles_forward_and_backward_once_for_all_sizes(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
    tcgemm.replace_linear(model, backend="cublas")
    expected = copy.deepcopy(model)
    products = []
    run = Launch.__call__
    monkeypatch.setattr(Launch, "__call__", lambda *call: products.append(1) or run(*call))
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for M in (3, 7, 1, 16, 33):
        x = torch.randn(M, 8)
        for each in (compiled, expected):
            each(x).square().mean().backward()
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert counters["stats"]["unique_graphs"] <= 2
    assert len(products) == 2 * 5 * 5  # two forward and three backward, in five steps of two models
