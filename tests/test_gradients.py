"""Derivatives of a product: first and second order, both modes, by differences and by torch."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.autograd import forward_ad

import tcgemm
from tcgemm import launch_cache
from tcgemm.errors import OperandError, UnsupportedError
from tcgemm.problem import EPILOGUES

BACKEND = {"backend": "cublas"}


def variable(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def by_differences(function, *operands, second=True):
    assert torch.autograd.gradcheck(
        function, operands, check_forward_ad=True, check_batched_grad=True
    )
    if second:
        assert torch.autograd.gradgradcheck(function, operands)


@pytest.mark.parametrize("epilogue", [None, *EPILOGUES])
def test_every_epilogue_with_C_bias_and_factors(epilogue):
    def product(a, b, c, bias):
        asked = {"alpha": 0.5, "beta": -2.0, "bias": bias, "epilogue": epilogue}
        return tcgemm.gemm(a, b, c, **asked, **BACKEND)

    by_differences(product, variable(4, 3), variable(3, 2), variable(4, 2), variable(2))


SHAPES = {
    "matrices": ((4, 3), (3, 2)),
    "vector and matrix": ((3,), (3, 2)),
    "matrix and vector": ((4, 3), (3,)),
    "vectors": ((3,), (3,)),
    "batch with one B": ((2, 4, 3), (3, 2)),
    "one A with a batch": ((4, 3), (2, 3, 2)),
    "batches that broadcast": ((2, 1, 2, 3), (3, 3, 2)),
    "batch of one": ((1, 2, 3), (2, 3, 2)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_shapes(shapes):
    def product(a, b):
        return tcgemm.matmul(a, b, **BACKEND)

    a, b = (variable(*shape) for shape in shapes)
    by_differences(product, a, b, second=len(shapes[0]) == len(shapes[1]))
    ours = torch.autograd.grad(product(a, b).sum(), (a, b))
    torchs = torch.autograd.grad(torch.matmul(a, b).sum(), (a, b))
    for mine, theirs in zip(ours, torchs, strict=True):
        assert mine.shape == theirs.shape
        assert torch.allclose(mine, theirs)


def test_C_that_broadcasts_and_a_batch_s_bias():
    def product(a, b, c, bias):
        return tcgemm.gemm(a, b, c, beta=2.0, bias=bias, epilogue="silu", **BACKEND)

    by_differences(
        product, variable(2, 2, 3), variable(3, 2), variable(2, 1, 2), variable(2), second=False
    )


@pytest.mark.parametrize(("a_by", "b_by"), list(itertools.product("nt", "nt")))
def test_a_gradient_lies_as_its_operand(a_by, b_by):
    """What accumulates it into .grad then copies nothing."""
    a = torch.randn(5, 4) if a_by == "n" else torch.randn(4, 5).mT
    b = torch.randn(4, 3) if b_by == "n" else torch.randn(3, 4).mT
    a.requires_grad_()
    b.requires_grad_()
    by_a, by_b = torch.autograd.grad(tcgemm.matmul(a, b, **BACKEND).sum(), (a, b))
    assert by_a.stride() == a.stride()
    assert by_b.stride() == b.stride()


@pytest.mark.parametrize("asked", ["a", "b", "bias", "c", "ab"])
def test_nothing_is_multiplied_that_nobody_needs(asked, monkeypatch):
    products = []
    run = launch_cache.run_launch
    monkeypatch.setattr(launch_cache, "run_launch", lambda *call: products.append(1) or run(*call))
    operands = {"a": torch.randn(4, 3), "b": torch.randn(3, 2), "c": torch.randn(4, 2),
                "bias": torch.randn(2)}  # fmt: skip
    for name in ("bias",) if asked == "bias" else ("c",) if asked == "c" else asked:
        operands[name].requires_grad_()
    y = tcgemm.gemm(**operands, beta=1.0, epilogue="relu", **BACKEND)
    products.clear()
    y.sum().backward()
    assert len(products) == {"a": 1, "b": 1, "ab": 2}.get(asked, 0)
    for name, operand in operands.items():
        assert (operand.grad is not None) == (name == asked or (name in "ab" and asked == "ab"))


def test_a_C_that_is_not_read_has_gradient_zero():
    c = torch.full((4, 2), torch.nan, requires_grad=True)
    y = tcgemm.gemm(torch.randn(4, 3), torch.randn(3, 2), c, **BACKEND)
    (by_c,) = torch.autograd.grad(y.sum() * torch.inf, c)
    assert torch.equal(by_c, torch.zeros(4, 2))


@pytest.mark.spread(2, "backend", "dtype")
@pytest.mark.parametrize("backend", ["cuda", "triton"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_on_our_kernels(backend, dtype, device):
    x, w = (torch.randn(2, 5, 24, device=device), torch.randn(16, 24, device=device))
    x, w, bias = (t.to(dtype).requires_grad_() for t in (x, w, torch.randn(16, device=device)))
    exact = [t.detach().double().requires_grad_() for t in (x, w, bias)]
    y = tcgemm.gemm(x, w.mT, bias=bias, epilogue="gelu", backend=backend)
    z = torch.nn.functional.gelu(torch.nn.functional.linear(*exact))
    above = torch.randn_like(y)
    y.backward(above)
    z.backward(above.double())
    for mine, reference in zip((y, x.grad, w.grad, bias.grad),
                               (z, *(t.grad for t in exact)), strict=True):  # fmt: skip
        bound = 0.02 * reference.abs().max()
        assert (mine.double() - reference).abs().max() <= bound


def test_a_result_wider_than_its_operands():
    a, b = (torch.randn(8, 8).bfloat16().requires_grad_() for _ in range(2))
    y = tcgemm.gemm(a, b, out_dtype=torch.float32, epilogue="gelu_tanh", **BACKEND)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert a.grad.dtype == b.grad.dtype == torch.bfloat16


def test_8_bits_have_no_gradient():
    a, b = (torch.randn(16, 16).to(torch.float8_e4m3fn) for _ in range(2))
    bias = torch.zeros(16).bfloat16().requires_grad_()
    with pytest.raises(UnsupportedError, match=r"bias requires grad .* 8-bit .*bfloat16"):
        tcgemm.gemm(a, b.mT.contiguous().mT, bias=bias, **BACKEND)
    scale = torch.ones(1, requires_grad=True)
    with pytest.raises(UnsupportedError, match="scale_a requires grad"):
        tcgemm.gemm(a, b, scale_a=scale, **BACKEND)
    with torch.no_grad():
        tcgemm.gemm(a, b, bias=bias, scale_a=scale, **BACKEND)


@pytest.mark.parametrize("name", ["A", "B", "C", "bias", "out"])
def test_out_has_no_gradient(name):
    operands = {"A": torch.randn(4, 3), "B": torch.randn(3, 2), "C": torch.randn(4, 2),
                "bias": torch.randn(2), "out": torch.empty(4, 2)}  # fmt: skip
    operands[name].requires_grad_()
    a, b, c, bias, out = operands.values()
    with pytest.raises(OperandError, match=f"{name} requires grad"):
        tcgemm.gemm(a, b, c, beta=1.0, bias=bias, out=out, **BACKEND)
    with torch.no_grad():
        assert tcgemm.gemm(a, b, c, beta=1.0, bias=bias, out=out, **BACKEND) is out


def test_factors_have_no_gradient():
    a = torch.randn(4, 4)
    alpha = torch.tensor(2.0)
    product = tcgemm.gemm(a, a, alpha=alpha, **BACKEND)
    assert torch.allclose(product, 2 * a @ a, atol=1e-5)
    with pytest.raises(UnsupportedError, match=r"alpha requires grad, .* number"):
        tcgemm.gemm(a, a, alpha=alpha.requires_grad_(), **BACKEND)


def test_a_saved_tensor_that_out_overwrites_makes_backward_raise():
    w, saved = torch.ones(4, 4, requires_grad=True), torch.full((4, 4), 3.0)
    y = (w * saved).sum()
    tcgemm.matmul(torch.randn(4, 4), torch.randn(4, 4), out=saved, **BACKEND)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_tangents():
    x, w, t = torch.randn(4, 3), torch.randn(3, 2), torch.randn(4, 3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        mine = forward_ad.unpack_dual(tcgemm.gemm(dual, w, alpha=2.0, epilogue="relu", **BACKEND))
        plain = tcgemm.matmul(x, w, **BACKEND)
        assert forward_ad.unpack_dual(plain).tangent is None
    torchs = torch.func.jvp(lambda x: torch.relu(2 * x @ w), (x,), (t,))
    assert torch.allclose(mine.primal, torchs[0], atol=1e-5)
    assert torch.allclose(mine.tangent, torchs[1], atol=1e-5)


def test_a_compute_mode_is_the_backward_pass_s_too():
    """float16 sums of 4096 ones stop at 2048; the gradient by B shows how it was summed."""
    a = torch.ones(4096, 1).half()
    b = torch.ones(1, 8).half().requires_grad_()
    asked = []
    make = launch_cache.make
    launch_cache.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_cache, "make", lambda *call: asked.append(call[9]) or make(*call))
        tcgemm.gemm(a, b, compute="float16", **BACKEND).sum().backward()
    assert asked == ["float16"] * 2


def test_a_rung_that_is_named_multiplies_forward_only(monkeypatch):
    """Backward's operands are transposed: the rung for them is chosen anew, of one backend."""
    rungs = []
    make = launch_cache.make
    monkeypatch.setattr(launch_cache, "make", lambda *call: rungs.append(call[-2:]) or make(*call))
    launch_cache.forget()
    a, b = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    tcgemm.matmul(a, b, backend="cublas", kernel="torch_cpu").sum().backward()
    assert rungs[0] == ("cublas", "torch_cpu")
    assert rungs[-1] == ("cublas", None)
