"""torch.fx takes a product, or a layer, as one node, whichever of its operands is traced."""

from __future__ import annotations

import pytest
import torch

import tcgemm
from tcgemm import launch_cache, tensors
from tcgemm.errors import OperandTypeError

BACKEND = {"backend": "cublas"}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    launch_cache.forget()


def test_torch_fx_takes_a_layer_as_one_node():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    x = torch.randn(5, 8)
    expected = model(x)
    tcgemm.replace_linear(model, **BACKEND)
    traced = torch.fx.symbolic_trace(model)
    assert [n.target for n in traced.graph.nodes].count(tcgemm.linear) == 2
    torch.testing.assert_close(traced(x), expected)
    traced(x).sum().backward()
    assert model[0].weight.grad is not None


class Products(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 6))
        self.bias = torch.nn.Parameter(torch.randn(4))
        self.whole = torch.randn(6, 4)

    def forward(self, x):
        hidden = tcgemm.matmul(x, self.weight, **BACKEND)
        return tcgemm.gemm(hidden, self.whole, bias=self.bias, epilogue="relu", **BACKEND)


def test_torch_fx_takes_a_product_as_one_node():
    model, x = Products(), torch.randn(5, 8)
    traced = torch.fx.symbolic_trace(model)
    calls = [node for node in traced.graph.nodes if node.op.startswith("call")]
    assert [node.target for node in calls] == [tcgemm.matmul, tcgemm.gemm]
    named = torch.fx.symbolic_trace(lambda x: tcgemm.matmul(x, x))
    assert "backend = None" in named.code  # the default is that of the time when it runs
    torch.testing.assert_close(traced(x), model(x))
    eye = torch.eye(5)
    for function in (tcgemm.matmul, tcgemm.linear):  # of a tensor by what is traced
        traced = torch.fx.symbolic_trace(lambda x: function(eye, x, **BACKEND))  # noqa: B023
        torch.testing.assert_close(traced(x[:, :5]), function(eye, x[:, :5], **BACKEND))


@pytest.mark.parametrize("name", ["c", "bias", "out", "alpha", "beta", "scale_a", "scale_b"])
def test_torch_fx_takes_a_product_of_which_any_operand_is_traced(name):
    """Buffers are multiplied, which torch.fx leaves as they are; what is traced comes beside."""
    with_c = {"c": torch.randn(5, 6), "beta": 0.5} if name in ("alpha", "beta") else {}
    shapes = {"c": (5, 6), "bias": (6,), "out": (5, 6)}
    given = torch.randn(shapes.get(name, ()))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", torch.randn(5, 8))
            self.register_buffer("b", torch.randn(8, 6))
            self.register_buffer("c", with_c.get("c"))

        def forward(self, x):
            asked = {**with_c, "c": self.c} if with_c else {"beta": 0.5} if name == "c" else {}
            asked = {**asked, "epilogue": "relu", name: x}
            return tcgemm.gemm(self.a, self.b, **asked, **BACKEND)

    model = Model()
    traced = torch.fx.symbolic_trace(model)
    calls = [node.target for node in traced.graph.nodes if node.op.startswith("call")]
    assert calls == [tcgemm.gemm]
    if not name.startswith("scale"):
        torch.testing.assert_close(traced(given), model(given))


@pytest.mark.parametrize("autocast", [False, True])
def test_torch_fx_takes_a_layer_of_which_the_bias_is_traced(autocast):
    x, weight, bias = torch.randn(5, 8), torch.randn(6, 8), torch.randn(6)
    expected = tcgemm.linear(x, weight, bias, **BACKEND)  # and what is kept of it is not taken
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        traced = torch.fx.symbolic_trace(lambda bias: tcgemm.linear(x, weight, bias, **BACKEND))
    calls = [node.target for node in traced.graph.nodes if node.op.startswith("call")]
    assert calls == [tcgemm.linear]
    torch.testing.assert_close(traced(bias), expected)


def test_torch_fx_takes_the_two_layers_of_an_mlp_as_two_nodes():
    up, down = torch.randn(6, 8, requires_grad=True), torch.randn(8, 6)
    x, bias = torch.randn(5, 8), torch.randn(6)
    for mlp, given in (
        (lambda x: tcgemm.mlp(x, up, bias, down, None, **BACKEND), x),
        (lambda bias: tcgemm.mlp(x, up, bias, down, None, **BACKEND), bias),
    ):
        traced = torch.fx.symbolic_trace(mlp)
        calls = [node.target for node in traced.graph.nodes if node.op.startswith("call")]
        assert calls == [tcgemm.linear] * 2
        torch.testing.assert_close(traced(given), mlp(given))


def test_under_a_mode_of_torch_s_functions_nothing_is_taken_for_a_tracer():
    """A default device is such a mode: all that is given then looks as if it recorded calls."""
    assert tensors.recorders((torch.ones(2), 1.0, None)) == ()
    with torch.device("cpu"):
        assert tensors.recorders((torch.ones(2), 1.0, None)) == ()


def test_what_only_looks_like_an_array_is_not_told_to_be_one():
    proxy = torch.fx.Proxy(torch.fx.Graph().placeholder("x"))  # any attribute is made when asked
    with pytest.raises(OperandTypeError, match=r"C is a Proxy, not a torch\.Tensor$"):
        tensors.check_kind("C", proxy)
