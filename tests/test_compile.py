"""torch.compile with Inductor, its real compiler: what a user gets who passes no ``backend=``."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tcgemm
from tcgemm import launch_cache
from tcgemm.launch_cache import make
from tcgemm.ops import compiled as compiled_ops

READS_ARGUMENTS = (
    "torch._inductor.ir", "torch._inductor.lowering", "torch._ops", "torch._library.utils",
    "torch._higher_order_ops.auto_functionalize", "torch._subclasses.fake_impls",
)  # fmt: skip
"""Modules of torch whose functions hand an operator's keyword arguments on beside their own."""


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


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
    for name in ("gemm", "gemm_out", "mlp", "gemm_with_z", "gemm_through_z", "gemm_with_sums"):
        packet = getattr(torch.ops.tcgemm, name)
        for argument in packet.default._schema.arguments:
            assert argument.name not in taken, (argument.name, taken[argument.name])


def test_inductor_compiles_forward_and_backward_once_for_all_sizes(monkeypatch):
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 4, bias=False)
    )
    tcgemm.replace_linear(model, backend="cublas")
    expected = copy.deepcopy(model)
    products = []
    start = compiled_ops.start
    monkeypatch.setattr(compiled_ops, "start", lambda *call: products.append(1) or start(*call))
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
    # Two forward and three backward, in five steps; at first torch looks on, through the operator.
    assert 4 * 5 <= len(products) <= 5 * 5


def test_a_program_calls_the_launch_and_copies_nothing():
    """As torch.mm's: a function that fills a buffer of the program's, rows of a batch in one."""
    ours = tcgemm.replace_linear(torch.nn.Linear(8, 4, bias=False), backend="cublas")
    torchs = torch.nn.Linear(8, 4, bias=False)
    torchs.load_state_dict(ours.state_dict())
    compiled = torch.compile(ours, fullgraph=True)
    x, above = torch.randn(2, 16, 8, requires_grad=True), torch.randn(2, 16, 4)
    from torch._inductor.utils import run_and_get_code

    _, (forward, backward) = run_and_get_code(lambda: compiled(x).backward(above))
    mine, x.grad = x.grad, None
    torchs(x).backward(above)
    torch.testing.assert_close(mine, x.grad)
    torch.testing.assert_close(ours.weight.grad, torchs.weight.grad)
    calls = [text.count(f"{compiled_ops.__name__}.") for text in (forward, backward)]
    assert calls == [1, 2]
    assert [text.count("async_compile.cpp") for text in (forward, backward)] == [0, 0]
    assert "gemm.default(" not in forward + backward


@torch.no_grad()
@pytest.mark.parametrize("kind", [
    pytest.param("rows that are copied", marks=pytest.mark.exhaustive), "by columns", "a vector",
])  # fmt: skip
def test_an_operand_of_a_program_in_any_order_and_an_activation(kind):
    x = {
        "rows that are copied": torch.randn(3, 5, 8).transpose(0, 1),
        "by columns": torch.randn(8, 6).mT, "a vector": torch.randn(8),
    }[kind]  # fmt: skip
    model = tcgemm.nn.Linear(8, 4, epilogue="relu", backend="cublas")
    got = torch.compile(model, fullgraph=True)(x)
    expected = torch.relu(torch.nn.functional.linear(x, model.weight, model.bias))
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


@torch.no_grad()
def test_products_that_are_more_than_a_layer_s():
    same = torch.randn(6, 6)
    product = torch.compile(lambda a: tcgemm.gemm(a, a, alpha=2.0, backend="cublas"))
    torch.testing.assert_close(product(same), 2 * same @ same)
    batch, other = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    product = torch.compile(lambda a, b: tcgemm.matmul(a, b, backend="cublas"))
    torch.testing.assert_close(product(batch, other), batch @ other)


def test_a_mode_sees_the_products_of_a_program():
    x, w, bias, out = (torch.randn(*shape) for shape in ((4, 3), (3, 2), (2,), (4, 2)))
    asked = (2.0, "relu", "", "", "cublas", "")
    with FlopCounterMode(display=False) as counter:
        compiled_ops.with_bias(x, w, bias, *asked, out=out)
    assert counter.get_total_flops() == 2 * 4 * 3 * 2
    torch.testing.assert_close(out, torch.relu(2 * x @ w + bias))
    compiled_ops.with_bias(x, w, x[0, :2], *asked, out=out)  # at the address of A
    torch.testing.assert_close(out, torch.relu(2 * x @ w + x[0, :2]))


def test_a_call_of_a_program_is_short():
    """Functions of Python's for a product: of the program, and to the launch."""
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    out = torch.empty(16, 16)
    asked = (1.0, "", "", "", "cublas", "")
    counts = []
    for _ in range(3):
        entered = []
        sys.setprofile(lambda frame, event, _, e=entered: event == "call" and e.append(frame))
        try:
            compiled_ops.product(a, b, *asked, out=out)
        finally:
            sys.setprofile(None)
        counts.append(len(entered))
    torch.testing.assert_close(out, a @ b)
    assert counts[-1] <= 4  # two here, the start, and a kernel's own


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
