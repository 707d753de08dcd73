"""tcgemm as an operator of torch: seen by modes, transforms, traces, compilers and autocast."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import tcgemm
from tcgemm.errors import OperandError, OperandTypeError, UnsupportedError

BACKEND = {"backend": "cublas"}
F = torch.nn.functional


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def matmul(a, b):
    return tcgemm.matmul(a, b, **BACKEND)


def fused(a, b, bias):
    return tcgemm.gemm(a, b, alpha=0.5, bias=bias, epilogue="gelu", **BACKEND)


def operators():
    tcgemm.matmul  # noqa: B018 - registers them
    return torch.ops.tcgemm.gemm.default, torch.ops.tcgemm.gemm_out.default


def none_but(*given):
    return (*given, *(None,) * (6 - len(given)))


CHECKED = {
    "plain": (none_but(torch.randn(5, 7), torch.randn(7, 3)), {}),
    "batch": (none_but(torch.randn(2, 5, 7), torch.randn(7, 3)), {}),
    "fused": (
        none_but(torch.randn(5, 7), torch.randn(7, 3), torch.randn(5, 3), torch.randn(3)),
        {"alpha": 0.5, "beta": 1.0, "epilogue": "relu"},
    ),
    "gelu": (none_but(torch.randn(5, 7), torch.randn(7, 3)), {"epilogue": "gelu"}),
}


@pytest.mark.parametrize("name", CHECKED)
def test_opcheck(name):
    operands, asked = CHECKED[name]
    operands = tuple(None if t is None else t.clone().requires_grad_() for t in operands)
    torch.library.opcheck(operators()[0], operands, {**asked, **BACKEND})


def test_opcheck_out():
    operands = none_but(torch.randn(5, 7), torch.randn(7, 3))
    torch.library.opcheck(operators()[1], operands, {"out": torch.empty(5, 3), **BACKEND})


def test_they_are_registered_on_use_not_on_import():
    code = (
        "import torch, tcgemm\n"
        "print(hasattr(torch.ops.tcgemm, 'gemm'))\n"
        "tcgemm.matmul\n"
        "print(hasattr(torch.ops.tcgemm, 'gemm'))"
    )
    lines = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert lines == ["False", "True"]


def test_compile_without_a_break_and_two_graphs_for_five_sizes():
    torch._dynamo.reset()
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    w, bias = torch.randn(32, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    compiled = torch.compile(
        lambda x: fused(2 * x, w, bias).sum(), fullgraph=True, backend=counting
    )
    for M in (1, 2, 5, 17, 64):
        x = torch.randn(M, 32, requires_grad=True)
        mine = torch.autograd.grad(compiled(x), (x, w, bias))
        z = F.gelu(x @ w + bias).sum()
        for gradient, reference in zip(mine, torch.autograd.grad(z, (x, w, bias)), strict=True):
            assert torch.allclose(gradient, reference, atol=1e-3)
    assert 1 <= len(graphs) <= 2
    assert all("tcgemm" in graph.code for graph in graphs)


def test_compile_out_vectors_and_a_named_rung():
    torch._dynamo.reset()
    a, v, out = torch.randn(5, 4), torch.randn(4), torch.empty(5)

    def both(a, v, out):
        tcgemm.matmul(a, v, out=out, **BACKEND)
        return out + tcgemm.matmul(a, v, kernel="torch_cpu", **BACKEND)

    result = torch.compile(both, fullgraph=True, backend="aot_eager")(a, v, out)
    assert torch.allclose(result, 2 * a @ v, atol=1e-5)
    assert torch.allclose(out, a @ v, atol=1e-5)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(32, 16))

    def forward(self, x):
        return tcgemm.gemm(x, self.weight, epilogue="gelu", **BACKEND)


def test_export_keeps_the_operator_and_its_gradient():
    model = Model()
    size = {0: torch.export.Dim("M")}
    exported = torch.export.export(model, (torch.randn(8, 32),), dynamic_shapes=(size,))
    assert "tcgemm.gemm.default" in str(exported.graph)
    x = torch.randn(3, 32)
    loaded = exported.module()
    assert torch.allclose(loaded(x), model(x), atol=1e-5)
    loaded(x).sum().backward()
    model(x).sum().backward()
    (mine,) = (p.grad for p in loaded.parameters())
    assert torch.allclose(mine, model.weight.grad, atol=1e-5)


def test_make_fx_keeps_the_product_and_its_gradient():
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    traced = make_fx(matmul)(a, b)
    assert "tcgemm" in traced.code
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    assert torch.allclose(traced(a, b), a @ b, atol=1e-5)
    gradient = make_fx(lambda a, b: torch.autograd.grad(matmul(a, b).sum(), a))
    assert gradient(a.requires_grad_(), b).code.count("tcgemm.gemm") == 2


def test_tensors_without_memory():
    from torch._subclasses import FakeTensorMode

    a, b, bias = torch.randn(3, 4, 5), torch.randn(5, 6), torch.randn(6)
    meta = tcgemm.gemm(a.to("meta"), b.to("meta"), out_dtype=torch.float32)
    assert (meta.shape, meta.dtype, meta.is_meta) == ((3, 4, 6), torch.float32, True)
    with FakeTensorMode() as mode:
        fake = fused(*(mode.from_tensor(t) for t in (a, b, bias)))
    assert fake.shape == (3, 4, 6)
    fake_out = mode.from_tensor(torch.empty(4, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that the address of a fake one was asked for
        with pytest.raises(AssertionError, match="FakeTensor"):  # torch's
            tcgemm.matmul(a[0], b, out=fake_out, **BACKEND)
    zero = torch._efficientzerotensor(4, 5)
    assert torch.equal(matmul(zero, b), torch.zeros(4, 6))
    assert torch.allclose(torch.func.functionalize(matmul)(a, b), a @ b, atol=1e-5)
    with pytest.raises(OperandError, match=r"inner dimensions differ: A is \[3, 4, 5\]"):
        matmul(a.to("meta"), b.T.to("meta"))
    with pytest.raises(OperandTypeError, match="A is float32 and B is float64"):
        matmul(a.to("meta"), b.double().to("meta"))


def test_flops_are_counted():
    a, b = torch.randn(3, 4, 5), torch.randn(5, 6, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        matmul(a, b.detach())
    assert counter.get_total_flops() == 2 * 3 * 4 * 5 * 6
    with FlopCounterMode(display=False) as counter:
        matmul(a, b).sum().backward()
    assert counter.get_total_flops() == 2 * (2 * 3 * 4 * 5 * 6)


IN_DIMS = {
    "A": (0, None, None),
    "B": (None, 2, None),
    "bias": (None, None, 0),
    "A and B": (1, 0, None),
    "all": (0, 0, 1),
}


@pytest.mark.parametrize("dims", IN_DIMS.values(), ids=IN_DIMS)
@pytest.mark.parametrize("with_c", [False, True])
def test_vmap(dims, with_c):
    def with_batch(t, dim):
        return t if dim is None else torch.stack([t, -t, 2 * t]).movedim(0, dim)

    a, b, bias = map(with_batch, (torch.randn(2, 4, 5), torch.randn(5, 6), torch.randn(6)), dims)
    c = torch.randn(4, 6)

    def mine(a, b, bias):
        asked = {"bias": bias, "epilogue": "relu", **BACKEND}
        return tcgemm.gemm(a, b, c, beta=0.5, **asked) if with_c else tcgemm.gemm(a, b, **asked)

    def torchs(a, b, bias):
        return torch.relu(a @ b + bias + (0.5 * c if with_c else 0))

    result = torch.vmap(mine, in_dims=dims)(a, b, bias)
    assert torch.allclose(result, torch.vmap(torchs, in_dims=dims)(a, b, bias), atol=1e-5)


def test_vmap_of_scales_and_of_nothing():
    a, b = (torch.randn(16, 16).to(torch.float8_e4m3fn) for _ in range(2))
    scales = torch.tensor([1.0, 2.0])

    def product(scale):
        return tcgemm.gemm(a, b, scale_a=scale, out_dtype=torch.float32, **BACKEND)

    result = torch.vmap(product)(scales)
    assert torch.allclose(result[1], 2 * result[0])
    assert torch.vmap(product)(scales[:0]).shape == (0, 16, 16)


def test_vmap_of_an_empty_batch_with_c_and_bias():
    a, b, c, bias = (torch.randn(0, *s).bfloat16() for s in ((3, 4), (4, 5), (3, 5), (5,)))
    call = torch.vmap(lambda a, b, c, bias: tcgemm.gemm(a, b, c, beta=2, bias=bias, **BACKEND))
    assert call(a, b, c, bias).shape == (0, 3, 5)


def test_transforms_of_torch_func():
    x, w = torch.randn(3, 4, 5), torch.randn(5, 6)

    def mine(w, x):
        return tcgemm.gemm(x, w, epilogue="silu", **BACKEND).square().sum()

    def torchs(w, x):
        return F.silu(x @ w).square().sum()

    for transform in (
        torch.func.grad,
        lambda f: torch.vmap(torch.func.grad(f), in_dims=(None, 0)),
        lambda f: lambda w, x: torch.func.hessian(f)(w, x[0]),
        lambda f: lambda w, x: torch.func.jvp(f, (w, x), (w, x))[1],
        lambda f: lambda w, x: torch.func.jacrev(torch.func.jacfwd(f))(w, x[0]),
    ):
        assert torch.allclose(transform(mine)(w, x), transform(torchs)(w, x), atol=1e-3)
    with pytest.raises(UnsupportedError, match="out= is given within a transform"):
        torch.vmap(lambda out: tcgemm.matmul(x[0], w, out=out))(torch.empty(2, 4, 6))


@pytest.mark.parametrize("epilogue", [None, "relu", "silu"])
def test_forward_mode_of_forward_mode_keeps_every_derivative(epilogue):
    operands = [torch.randn(*s, dtype=torch.float64) for s in ((2, 3), (3, 2), (2, 2), (2,))]
    apply = tcgemm.epilogue.FUNCTIONS[epilogue or ""]

    def mine(a, b, c, bias):
        asked = {"alpha": 0.5, "beta": -2.0, "bias": bias, "epilogue": epilogue}
        return tcgemm.gemm(a, b, c, **asked, **BACKEND)

    def torchs(a, b, c, bias):
        return apply(0.5 * a @ b - 2 * c + bias)

    def second(f):
        jacfwd = torch.func.jacfwd
        return torch.utils._pytree.tree_leaves(
            jacfwd(jacfwd(f, (0, 1, 2, 3)), (0, 1, 2, 3))(*operands)
        )

    torch.testing.assert_close(second(mine), second(torchs))

    def tangent_of_a_tangent(f):  # a tangent that itself has one
        a, b, c, bias = operands
        inner = lambda t: torch.func.jvp(lambda c: f(a, b, c, bias), (c,), (t,))[1]  # noqa: E731
        return torch.func.jvp(inner, (c,), (c,))[1]

    torch.testing.assert_close(tangent_of_a_tangent(mine), tangent_of_a_tangent(torchs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
def test_a_mapped_bias_beside_c_is_rounded_once(dtype):
    shapes = (5, 3, 4), (5, 4, 6), (5, 3, 6), (5, 6)
    if dtype is torch.int8:
        a, b, c, bias = (torch.randint(-100, 100, s, dtype=dtype) for s in shapes)
        c, bias = c.int() << 24, bias.int() << 24
    else:
        a, b, c, bias = (torch.randn(s).to(dtype) for s in shapes)
        c, bias = 100 * c, -150 * c[:, 0]
    if dtype is torch.float16:  # twice C is past the range of float16, and the result is not
        c, bias = torch.full_like(c, 5e4), torch.full_like(bias, -6e4)

    def call(a, b, c, bias):
        return tcgemm.gemm(a, b, c, beta=2, bias=bias, **BACKEND)

    each = torch.stack([call(*operands) for operands in zip(a, b, c, bias, strict=True)])
    mapped = torch.vmap(call)(a, b, c, bias)
    assert each.isfinite().all()
    exact = dtype is not torch.float32
    torch.testing.assert_close(mapped, each, **({"atol": 0, "rtol": 0} if exact else {}))


def test_vmap_is_one_product():
    """torch's own way, a product for each that is mapped over, is what there is without a rule."""
    x, w, bias = torch.randn(3, 4, 5), torch.randn(5, 6), torch.randn(3, 6)
    c = torch.randn(3, 4, 6)

    def each(x, bias, c):
        return tcgemm.gemm(x, w, c, beta=2.0, bias=bias, epilogue="silu", **BACKEND)

    def gradient(x):
        return torch.func.grad(lambda x: matmul(x, w).square().sum())(x)

    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        found = torch.vmap(each)(x, bias, c)
        gradients = torch.vmap(gradient)(x)
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)
    expected = torch.nn.functional.silu(x @ w + 2 * c + bias[:, None])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients, 2 * x @ w @ w.T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("trained", [False, True])
def test_autocast(trained):
    x, w, bias = torch.randn(4, 5), torch.randn(5, 6), torch.randn(6)
    w.requires_grad_(trained)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = tcgemm.gemm(x, w, bias=bias, compute="tf32", **BACKEND)
        wide = tcgemm.gemm(x, w, bias=bias, out_dtype=torch.float32, **BACKEND)
        exact = matmul(x.double(), w.double())
        repeated = tcgemm.gemm(x, w, bias=bias, **BACKEND)
    assert (y.dtype, wide.dtype, exact.dtype) == (torch.bfloat16, torch.float32, torch.float64)
    assert torch.equal(y, repeated)
    assert torch.allclose(wide, x @ w + bias, atol=0.1)
    if trained:
        wide.sum().backward()
        assert w.grad.dtype == torch.float32
        assert torch.allclose(w.grad, x.T @ torch.ones(4, 6), atol=0.1)
    assert tcgemm.gemm(x, w, bias=bias, **BACKEND).dtype == torch.float32


def test_a_plain_call_meets_no_operator(monkeypatch):
    """What torch does not have to see goes past the dispatcher, gradients of plain tensors too."""
    from tcgemm.ops import operator

    monkeypatch.setattr(operator, "gemm", None)
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    for _ in range(2):
        matmul(a, b)
        matmul(a.requires_grad_(), b).sum().backward()


def test_the_operator_itself_takes_matrices_alone():
    with pytest.raises(OperandError, match=r"A has 1 dimensions .* tcgemm\.gemm"):
        operators()[0](*none_but(torch.randn(5), torch.randn(5, 6)))


def test_activation_checkpointing_multiplies_again():
    from torch.utils.checkpoint import checkpoint

    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    deep = checkpoint(lambda x: matmul(torch.tanh(matmul(x, w)), w), x, use_reentrant=False)
    mine = torch.autograd.grad(deep.sum(), (x, w))
    theirs = torch.autograd.grad((torch.tanh(x @ w) @ w).sum(), (x, w))
    for gradient, reference in zip(mine, theirs, strict=True):
        assert torch.allclose(gradient, reference, atol=1e-5)
