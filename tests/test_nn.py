"""linear, nn.Linear, replace_linear, and torch's own products on our kernels."""

from __future__ import annotations

import copy
import threading

import pytest
import torch

import tcgemm
from tcgemm.errors import OperandError, OperandTypeError, UnknownNameError

F = torch.nn.functional
ACTIVATIONS = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    tcgemm.stats(reset=True)


@pytest.mark.parametrize("epilogue", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (8,)])
def test_linear_is_torch_s_and_an_activation(epilogue, shape):
    x, w, bias = (torch.randn(*s, requires_grad=True) for s in (shape, (4, 8), (4,)))
    y = tcgemm.linear(x, w, bias, epilogue=epilogue, backend="cublas")
    z = ACTIVATIONS[epilogue](F.linear(x, w, bias))
    assert torch.allclose(y, z, atol=1e-5)
    mine = torch.autograd.grad(y.square().sum(), (x, w, bias))
    for gradient, reference in zip(
        mine, torch.autograd.grad(z.square().sum(), (x, w, bias)), strict=True
    ):
        assert torch.allclose(gradient, reference, atol=1e-4)
    assert mine[1].is_contiguous()


def test_a_module_is_a_torch_linear():
    module = tcgemm.nn.Linear(8, 4, epilogue="gelu", backend="cublas")
    assert isinstance(module, torch.nn.Linear)
    assert "epilogue=gelu, backend=cublas" in repr(module)
    torchs = torch.nn.Linear(8, 4)
    torchs.load_state_dict(module.state_dict())
    x = torch.randn(5, 8)
    assert torch.allclose(module(x), F.gelu(torchs(x)), atol=1e-5)
    with pytest.raises(OperandError, match="unknown epilogue 'tanh'"):
        tcgemm.nn.Linear(8, 4, epilogue="tanh")
    with pytest.raises(UnknownNameError, match="metal"):
        tcgemm.nn.Linear(8, 4, backend="metal")
    with pytest.raises(OperandTypeError, match="backend is a list"):
        tcgemm.nn.Linear(8, 4, backend=["cublas"])


class Odd(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_replace_linear_keeps_all_but_the_product():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Sequential(torch.nn.GELU(), torch.nn.Linear(16, 4)),
        Odd(4, 4),
    )  # fmt: skip
    expected = copy.deepcopy(model)
    parameters = list(model.parameters())
    assert tcgemm.replace_linear(model, backend="cublas") is model
    assert [type(m) for m in (model[0], model[1][1], model[2])] == [tcgemm.nn.Linear] * 2 + [Odd]
    assert all(p is q for p, q in zip(parameters, model.parameters(), strict=True))
    x = torch.randn(5, 8)
    assert torch.allclose(model(x), expected(x), atol=1e-5)
    alone = torch.nn.Linear(8, 4)
    assert type(tcgemm.replace_linear(alone)) is tcgemm.nn.Linear
    with pytest.raises(UnknownNameError):
        tcgemm.replace_linear(alone, backend="metal")
    for wrong in (None, tcgemm.linear, torch.nn.Linear):
        kind = type(wrong).__name__
        with pytest.raises(OperandTypeError, match=f"model is a {kind}, not a torch.nn.Module"):
            tcgemm.replace_linear(wrong)


def test_replace_linear_leaves_a_layer_of_ours_what_it_was_told():
    told = {"backend": "cublas", "accumulate": True, "epilogue": "relu"}
    layer = tcgemm.nn.Linear(4, 4, **told)
    model = torch.nn.Sequential(layer, torch.nn.Linear(4, 4))

    def of(module):
        return {name: getattr(module, name) for name in told}

    tcgemm.replace_linear(model)
    assert of(layer) == told
    assert of(model[1]) == {"backend": None, "accumulate": False, "epilogue": None}
    tcgemm.replace_linear(model, "cuda")
    assert of(layer) == {**told, "backend": "cuda"}
    tcgemm.replace_linear(model, accumulate=True)
    assert of(model[1]) == {"backend": "cuda", "accumulate": True, "epilogue": None}
    tcgemm.replace_linear(model)
    assert (layer.accumulate, model[1].accumulate) == (True, True)
    tcgemm.replace_linear(model, accumulate=False)
    assert of(layer) == {**told, "backend": "cuda", "accumulate": False}


def test_the_layers_over_gpus_are_listed():
    assert {"ColumnParallelLinear", "RowParallelLinear", "Linear"} <= {*dir(tcgemm.nn)}


def test_a_replaced_model_compiles_in_one_piece_and_trains_alike():
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    expected = copy.deepcopy(model)
    compiled = torch.compile(
        tcgemm.replace_linear(model, backend="cublas"), fullgraph=True, backend="aot_eager"
    )
    for each in (compiled, expected):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            x = torch.randn(6, 8, generator=generator)
            each(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_the_override_takes_forward_and_backward_and_ends():
    x, w = torch.randn(5, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
    with tcgemm.override_aten(backend="cublas"):
        F.linear(x, w, torch.randn(4)).sum().backward()
    counted = {(each.operator, each.where): each.calls for each in tcgemm.stats()}
    assert counted == {("addmm", "cublas/torch_cpu"): 1, ("mm", "cublas/torch_cpu"): 2}
    x @ w.T
    assert sum(each.calls for each in tcgemm.stats(reset=True)) == 3
    assert tcgemm.stats() == []


def test_overrides_nest_and_reach_threads():
    a = torch.randn(4, 4).half()
    with tcgemm.override_aten(backend="cublas"):
        with tcgemm.override_aten(backend="cuda"):
            thread = threading.Thread(target=torch.mm, args=(a, a))
            thread.start()
            thread.join()
        torch.mm(a, a)
    torch.mm(a, a)
    where = [each.where.split("/")[0] for each in tcgemm.stats() for _ in range(each.calls)]
    assert sorted(where) == ["cublas", "cuda"]


def test_what_the_override_refuses_is_torch_s_and_counted():
    numbers = torch.arange(6).reshape(2, 3)
    with tcgemm.override_aten(backend="cublas"):
        assert torch.equal(numbers @ numbers.T, torch.tensor([[5, 14], [14, 50]]))
        with pytest.raises(RuntimeError, match="dtype"):
            torch.mm(torch.randn(2, 3), torch.randn(3, 2).double())
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(torch.randn(2, 3), torch.randn(2, 3))
    assert sum(each.calls for each in tcgemm.stats()) == 1  # what raised ran nowhere
    (whole,) = (each for each in tcgemm.stats() if "int64" in each.reason)
    assert (whole.operator, whole.where, whole.calls) == ("mm", "torch", 1)
