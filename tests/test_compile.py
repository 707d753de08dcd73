"""torch.compile with Inductor, its real compiler: what a user gets who passes no ``backend=``."""

from __future__ import annotations

import copy
import importlib
import inspect

import pytest
import torch

import tcgemm
from tcgemm import launch_cache
from tcgemm.launch import Launch
from tcgemm.launch_cache import make

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
    run = Launch.write
    monkeypatch.setattr(Launch, "write", lambda *call: products.append(1) or run(*call))
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
    assert (
        len(products) == 5 * 5
    )  # two forward and three backward, in five steps; eager ones are short


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_model_trains_as_in_float64(backend, mode, device):
    """In reduce-overhead torch captures the products in CUDA graphs, from the second step on."""
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 128)
    ).to(device)
    exact = copy.deepcopy(model).double()
    model = tcgemm.replace_linear(model.bfloat16(), backend=backend)
    exact.load_state_dict(model.state_dict())
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(384, 256, device=device).bfloat16()
        for each, batch in ((compiled, x), (exact, x.double())):
            each(batch).float().square().mean().backward()
        for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
            error = (mine.grad.double() - theirs.grad).abs().max()
            assert error <= 0.03 * theirs.grad.abs().max()
            mine.grad = theirs.grad = None


@pytest.mark.exhaustive
def test_aot_inductor_packages_the_operator(tmp_path):
    """The package runs where tcgemm is imported: its operators are functions of Python."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    tcgemm.replace_linear(model, backend="cublas")
    size = {0: torch.export.Dim("M", min=2, max=64)}
    with torch.no_grad():
        exported = torch.export.export(model, (torch.randn(5, 8),), dynamic_shapes=(size,))
        path = torch._inductor.aoti_compile_and_package(
            exported, package_path=str(tmp_path / "model.pt2")
        )
        x = torch.randn(9, 8)
        torch.testing.assert_close(torch._inductor.aoti_load_package(path)(x), model(x))


def test_the_operator_s_name_of_a_rung_is_the_api_s_kernel(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "tcgemm.launch_cache.make", lambda *call: asked.append(call[-2:]) or make(*call)
    )
    launch_cache.forget()

    def product(a, b):
        return tcgemm.matmul(a, b, backend="cublas", kernel="torch_cpu")

    a, b = torch.randn(4, 5), torch.randn(5, 6)
    result = torch.compile(product, fullgraph=True, backend="aot_eager")(a, b)
    torch.testing.assert_close(result, a @ b)
    assert asked == [("cublas", "torch_cpu")]
