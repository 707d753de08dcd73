"""tcgemm.gemm: what it checks and how it turns a call into launches. Values: test_promises_*.py."""

from __future__ import annotations

import math

import pytest
import torch

import tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.call import forget
from tcgemm.epilogue import FUNCTIONS
from tcgemm.errors import OperandError, OperandTypeError, UnsupportedError
from tcgemm.problem import COMPUTES, EPILOGUES, OUTPUTS, Fusion

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64

BACKEND = """
from tcgemm import dispatch, epilogue
from tcgemm.problem import COMPUTES, EPILOGUES, OUTPUTS
import torch

calls = []
PAIRS = tuple((i, o, c) for i in OUTPUTS for o in OUTPUTS[i] for c in COMPUTES[i])
EVERYTHING = ("alpha", "beta", "bias", "scales", "batch", *EPILOGUES)
def row(name, **more):
    return dict(name=name, adds="a rung", pairs=PAIRS, devices=("cpu",), **more)
KERNELS = (
    row("all", fuses=EVERYTHING, mma_shapes=("16x16x16",)),
    row("plain"),
)
def load(name):
    def run(a, b, c, fusion=None):
        calls.append((tuple(a.shape), tuple(b.shape), tuple(c.shape)))
        assert a.dim() == b.dim() == c.dim() in (2, 3)
        whole = c.dtype == torch.int32
        wide = torch.int64 if whole else torch.promote_types(c.dtype, torch.float32)
        value = a.to(wide) @ b.to(wide)
        if fusion is not None:
            assert fusion.compute
            if fusion.scale_a is not None:
                value = value * fusion.scale_a[:, None]
            if fusion.scale_b is not None:
                value = value * fusion.scale_b
            value = value * (int(fusion.alpha) if wide == torch.int64 else fusion.alpha)
            assert (fusion.beta == 0) == (fusion.c is None)
            if fusion.c is not None:
                assert fusion.c.shape == c.shape
                beta = int(fusion.beta) if wide == torch.int64 else fusion.beta
                value = value + beta * fusion.c.to(wide)
            if fusion.bias is not None:
                value = value + fusion.bias.to(wide)
            if wide == torch.int64:
                value = value.to(torch.int32)
            value = epilogue.FUNCTIONS[fusion.epilogue](value)
        c.copy_(value)
    return run
"""


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """The launches of the stand-in backend "echo", which torch computes."""
    import importlib
    import sys

    (tmp_path / "echo_backend.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(dispatch.BACKENDS, "echo", "echo_backend")
    monkeypatch.delitem(sys.modules, "echo_backend", raising=False)
    dispatch.ladder.cache_clear()
    forget()
    dispatch.load.cache_clear()
    yield importlib.import_module("echo_backend").calls
    dispatch.ladder.cache_clear()
    forget()
    dispatch.load.cache_clear()


def gemm(*arguments, **named):
    return tcgemm.gemm(*arguments, backend="echo", **named)


def random(*shape, dtype=F16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def close(result, expected):
    return torch.allclose(result.double(), expected.double(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", OUTPUTS)
def test_every_type_pair_reaches_a_kernel(calls, dtype):
    a, b = (random(5, 5, dtype=getattr(torch, dtype), seed=s) for s in (1, 2))
    for out in OUTPUTS[dtype]:
        for compute in (None, *COMPUTES[dtype]):
            c = gemm(a, b, out_dtype=getattr(torch, out), compute=compute)
            assert c.dtype == getattr(torch, out)
            mode = compute or COMPUTES[dtype][0]
            assert accuracy.error_ratio(a, b, c, Fusion(compute=mode)) <= 1
    assert gemm(a, b).dtype == getattr(torch, OUTPUTS[dtype][0])


@pytest.mark.parametrize("epilogue", ["", *EPILOGUES])
def test_everything_at_once(calls, epilogue):
    a, b, c, bias = random(5, 6), random(6, 7, seed=1), random(5, 7, seed=2), random(7, seed=3)
    result = gemm(a, b, c, alpha=0.5, beta=-2, bias=bias, epilogue=epilogue or None)
    exact = 0.5 * (a.double() @ b.double()) - 2 * c.double() + bias.double()
    assert close(result, FUNCTIONS[epilogue](exact))
    assert len(calls) == 1


def test_integer_factors_wrap(calls):
    a, b = random(5, 600, dtype=torch.int8), random(600, 7, dtype=torch.int8, seed=1)
    c = random(5, 7, dtype=torch.int32, seed=2)
    result = gemm(a, b, c, alpha=1000, beta=3)
    assert torch.equal(result, (1000 * (a.long() @ b.long()) + 3 * c.long()).to(torch.int32))


class TestScales:
    e4m3 = torch.float8_e4m3fn

    def operands(self):
        return random(4, 6, dtype=self.e4m3), random(6, 5, dtype=self.e4m3, seed=1)

    def test_numbers_and_tensors_of_one_element(self, calls):
        a, b = self.operands()
        exact = a.double() @ b.double()
        assert close(gemm(a, b, scale_a=0.5, scale_b=4.0), 2 * exact)
        tensor = torch.tensor([0.5])
        assert close(gemm(a, b, scale_a=tensor, scale_b=tensor[0], alpha=2.0), exact / 2)

    def test_one_for_each_row_and_column(self, calls):
        a, b = self.operands()
        rows, columns = torch.rand(4, 1), torch.rand(1, 5)
        exact = a.double() @ b.double() * rows * columns
        assert close(gemm(a, b, scale_a=rows, scale_b=columns), exact)

    def test_bad_scales(self, calls):
        a, b = self.operands()
        for scale, word in ((torch.rand(3), "3 elements"), (torch.rand(4).half(), "float16")):
            with pytest.raises((OperandError, OperandTypeError), match=word):
                gemm(a, b, scale_a=scale)
        with pytest.raises(OperandTypeError, match="A and B are float16: use alpha"):
            gemm(random(4, 6), random(6, 5), scale_a=2.0)


class TestBlas:
    def test_beta_zero_never_reads_c(self, calls):
        a, b = random(4, 6), random(6, 5)
        c = torch.full((4, 5), math.nan).half()
        assert not gemm(a, b, c, beta=0).isnan().any()
        for _ in range(2):
            assert not gemm(a, b, c, alpha=2.0, beta=0).isnan().any()
        assert torch.equal(gemm(a, b, c, alpha=0.0, beta=0), torch.zeros(4, 5).half())

    def test_alpha_zero_reads_neither_a_nor_b(self, calls):
        a, b = torch.full((4, 6), math.nan).half(), random(6, 5)
        c, bias = random(4, 5, seed=1), random(5, seed=2)
        assert torch.equal(gemm(a, b, alpha=0.0), torch.zeros(4, 5).half())
        result = gemm(a, b, c, alpha=0.0, beta=2.0, bias=bias, epilogue="silu")
        assert close(result, torch.nn.functional.silu(2 * c.double() + bias.double()))
        assert not calls

    def test_no_inner_dimension(self, calls):
        c = random(4, 5)
        assert close(gemm(c.new_empty(4, 0), c.new_empty(0, 5), c, beta=3.0), 3 * c.double())
        empty = torch.empty(4, 0, dtype=torch.int8), torch.empty(0, 5, dtype=torch.int8)
        c = random(4, 5, dtype=torch.int32)
        assert torch.equal(gemm(*empty, c, beta=3), (3 * c.long()).to(torch.int32))
        assert not calls

    def test_in_place(self, calls):
        a, b, c = random(4, 6), random(6, 5), random(4, 5, seed=3)
        expected = gemm(a, b, c, beta=0.5)
        assert gemm(a, b, c, beta=0.5, out=c) is c
        assert torch.equal(c, expected)

    def test_beta_without_c_names_the_cure(self, calls):
        with pytest.raises(OperandError, match=r"beta is 0.5 .* pass c="):
            gemm(random(4, 6), random(6, 5), beta=0.5)


class TestBatches:
    def check(self, a, b, c=None, **named):
        result = gemm(a, b, c, **named)
        exact = a.double() @ b.double()
        if c is not None:
            exact = exact + named["beta"] * c.double()
        assert result.shape == exact.shape
        assert close(result, exact)
        return result

    def test_one_batch_dimension_is_one_launch(self, calls):
        self.check(random(3, 4, 6), random(3, 6, 5, seed=1))
        assert calls == [((3, 4, 6), (3, 6, 5), (3, 4, 5))]

    def test_dimensions_that_step_as_one_are_one_launch(self, calls):
        self.check(random(2, 3, 4, 6), random(2, 3, 6, 5, seed=1), random(5), beta=2.0)
        assert calls == [((6, 4, 6), (6, 6, 5), (6, 4, 5))]

    def test_a_shared_b_is_one_tall_product(self, calls):
        self.check(random(2, 3, 4, 6), random(6, 5, seed=1))
        self.check(random(3, 4, 6), random(1, 6, 5, seed=1), random(3, 4, 5), beta=1.0)
        assert calls == [((24, 6), (6, 5), (24, 5)), ((12, 6), (6, 5), (12, 5))]

    def test_a_shared_operand_has_stride_zero(self, calls):
        self.check(random(4, 6), random(3, 6, 5, seed=1))
        self.check(random(3, 6, 4).mT, random(6, 5, seed=1))
        assert calls == [((3, 4, 6), (3, 6, 5), (3, 4, 5))] * 2

    def test_irregular_batches_take_a_launch_for_each_outer_step(self, calls):
        self.check(random(2, 1, 4, 6), random(1, 3, 6, 5, seed=1))
        assert calls == [((3, 4, 6), (3, 6, 5), (3, 4, 5))] * 2
        calls.clear()
        self.check(random(3, 2, 4, 6).transpose(0, 1), random(2, 3, 6, 5, seed=1))
        assert len(calls) == 2

    def test_every_broadcast_of_torch(self, calls):
        for a_shape, b_shape in [
            ((6,), (6,)), ((6,), (6, 5)), ((4, 6), (6,)), ((2, 4, 6), (6,)), ((6,), (2, 6, 5)),
            ((2, 1, 4, 6), (3, 6, 5)), ((1, 4, 6), (1, 1, 6, 5)), ((5, 1, 2, 4, 6), (3, 1, 6, 5)),
        ]:  # fmt: skip
            self.check(random(*a_shape), random(*b_shape, seed=1))

    def test_empty_batch(self, calls):
        assert gemm(random(0, 4, 6), random(0, 6, 5)).shape == (0, 4, 5)
        assert not calls

    def test_out_of_any_strides(self, calls):
        a, b = random(3, 4, 6), random(3, 6, 5, seed=1)
        base = torch.full((3, 9, 20), 7.0).half()
        out = base[:, 1:5, 2:12:2]
        assert gemm(a, b, out=out) is out
        assert close(out, a.double() @ b.double())
        assert int((base == 7).sum()) == base.numel() - 60

    def test_windows_of_one_batched_buffer_do_not_overlap(self, calls):
        base = random(3, 4, 16)
        a, b, out = base[..., :6], random(3, 6, 5), base[..., 8:13]
        expected = a.double() @ b.double()
        assert close(gemm(a, b, out=out), expected)

    def test_bad_batches(self, calls):
        with pytest.raises(OperandError, match=r"\[2, 4, 6\] and B is \[3, 6, 5\]"):
            gemm(random(2, 4, 6), random(3, 6, 5))
        with pytest.raises(OperandError, match="share memory"):
            gemm(random(2, 4, 6), random(6, 5), out=random(4, 5).expand(2, 4, 5))


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (OperandError, ("unknown epilogue 'swish'", "silu"), {"epilogue": "swish"}),
        (OperandError, ("compute is 'tf32'", "float32 or float16"), {"compute": "tf32"}),
        (OperandTypeError, ("alpha is a str",), {"alpha": "1"}),
        (OperandError, ("bias has shape [4]", "[5]"), {"bias": torch.zeros(4).half()}),
        (OperandTypeError, ("bias is float32", "float16"), {"bias": torch.zeros(5)}),
        (OperandTypeError, ("C is float32",), {"c": torch.zeros(4, 5), "beta": 1.0}),
        (OperandError, ("C has shape [3, 5]", "[4, 5]"), {"c": torch.zeros(3, 5).half()}),
        (UnsupportedError, ("mma_shape 8x8x4", "16x16x16"), {"mma_shape": "8x8x4"}),
    ],
)
def test_bad_arguments(calls, error, words, arguments):
    with pytest.raises(error) as caught:
        gemm(random(4, 6), random(6, 5), **arguments)
    for word in words:
        assert word in str(caught.value)


def test_integers_take_whole_factors_and_relu(calls):
    a, b = random(4, 6, dtype=torch.uint8), random(6, 5, dtype=torch.uint8)
    with pytest.raises(OperandError, match=r"alpha is 0.5 .* whole number"):
        gemm(a, b, alpha=0.5)
    with pytest.raises(OperandError, match="gelu of int32 results is not defined: relu is"):
        gemm(a, b, epilogue="gelu")


def test_out_may_be_c_and_must_not_overlap_it_otherwise(calls):
    base = random(5, 5)
    with pytest.raises(OperandError, match="out overlaps C in memory and is not C"):
        gemm(random(4, 6), random(6, 5), base[:4], beta=1.0, out=base[1:])
    with pytest.raises(OperandError, match="out overlaps bias"):
        gemm(random(4, 6), random(6, 5), bias=base[0], out=base[:4])


def test_a_kernel_that_fuses_nothing_says_so(calls):
    a, b = random(3, 4, 6), random(3, 6, 5)
    for arguments, word in (
        ({"alpha": 2.0}, "alpha"),
        ({"epilogue": "relu"}, "relu"),
        ({}, "batch"),
    ):
        with pytest.raises(UnsupportedError) as caught:
            gemm(a, b, kernel="plain", **arguments)
        message = str(caught.value)
        assert "it fuses nothing" in message
        assert word in message
        assert "kernels of echo that take it: all" in message


def test_a_repeated_call_is_checked_where_it_differs(calls):
    a, b = random(4, 6), random(6, 5)
    for _ in range(3):
        assert close(tcgemm.matmul(a, b, backend="echo"), a.double() @ b.double())
    out = torch.empty(4, 5).half()
    for _ in range(3):
        assert tcgemm.matmul(a, b, backend="echo", out=out) is out
    buffer = random(100)
    a, b, out = buffer[:24].view(4, 6), random(6, 5), buffer[40:60].view(4, 5)
    tcgemm.matmul(a, b, backend="echo", out=out)
    tcgemm.matmul(a, b, backend="echo", out=out)
    with pytest.raises(OperandError, match="out overlaps A"):
        tcgemm.matmul(a, b, backend="echo", out=buffer[8:28].view(4, 5))
    a = a.clone().requires_grad_()
    with torch.no_grad():
        for _ in range(2):
            assert close(tcgemm.matmul(a, b, backend="echo"), a.double() @ b.double())
    c = tcgemm.matmul(a, b, backend="echo")
    assert close(c, a.double() @ b.double())
    (gradient,) = torch.autograd.grad(c.sum(), a)
    assert close(gradient, torch.ones(4, 5).double() @ b.double().T)


ASKED = {
    "compute": lambda: {"out_dtype": F32},
    "alpha": lambda: {"alpha": 0.5},
    "whole alpha": lambda: {"alpha": 2},
    "C": lambda: {"c": random(4, 5), "beta": -1.0},
    "C that is not read": lambda: {"c": torch.full((4, 5), math.nan).half()},
    "C in columns": lambda: {"c": random(5, 4).mT, "beta": 0.5},
    "one row of C": lambda: {"c": random(5), "beta": 1.0},
    "bias": lambda: {"bias": random(5)},
    "stepped bias": lambda: {"bias": random(10)[::2], "epilogue": "relu"},
    "gelu": lambda: {"epilogue": "gelu"},
    "all": lambda: {"alpha": 2.0, "c": random(4, 5), "beta": 1.0, "bias": random(5)},
}


def by_torch(a, b, *, alpha=1.0, beta=0.0, c=None, bias=None, epilogue="", out_dtype=None):
    value = alpha * (a.double() @ b.double())
    value = value if c is None or beta == 0 else value + beta * c.double()
    return FUNCTIONS[epilogue](value if bias is None else value + bias.double())


@pytest.mark.parametrize("in_out", [False, True])
def test_repeated_fused_calls_take_their_own_operands(calls, monkeypatch, in_out):
    chosen = []
    choose = dispatch.choose
    monkeypatch.setattr(dispatch, "choose", lambda *asked: chosen.append(1) or choose(*asked))
    for name, ask in ASKED.items():
        a, b, asked = random(4, 6), random(6, 5), ask()
        out = {"out": torch.empty(4, 5, dtype=asked.get("out_dtype", F16))} if in_out else {}
        for turn in range(3):
            for t in (a, b, asked.get("bias"), asked.get("c")):
                if t is not None and name != "C that is not read":
                    t.copy_(random(*t.shape, seed=turn))
            before = len(chosen)
            result = tcgemm.gemm(a, b, backend="echo", **asked, **out)
            assert not in_out or result is out["out"]
            assert close(result, by_torch(a, b, **asked)), name
            if in_out and turn and name != "one row of C":
                assert len(chosen) == before, f"{name} was chosen anew"


def test_a_repeated_call_adds_in_place_and_refuses_what_overlaps(calls):
    buffer = random(200)
    a, b = random(4, 6), random(6, 5)
    for _ in range(3):
        c = random(4, 5)
        want = a.double() @ b.double() + c.double()
        assert close(tcgemm.gemm(a, b, c, beta=1.0, out=c, backend="echo"), want)
    asked = {"beta": 1.0, "out": buffer[128:148].view(4, 5), "backend": "echo"}
    for _ in range(2):
        tcgemm.gemm(a, b, buffer[:20].view(4, 5), **asked)
    with pytest.raises(OperandError, match="out overlaps C"):
        tcgemm.gemm(a, b, buffer[138:158].view(4, 5), **asked)
    asked = {"out": buffer[128:148].view(4, 5), "backend": "echo"}
    for _ in range(2):
        tcgemm.gemm(a, b, bias=buffer[:5], **asked)
    with pytest.raises(OperandError, match="out overlaps bias"):
        tcgemm.gemm(a, b, bias=buffer[128:133], **asked)


def test_a_repeated_call_with_scales_takes_their_values(calls):
    for _ in range(3):
        a, b = (random(*s).to(torch.float8_e4m3fn) for s in ((4, 6), (6, 5)))
        x, y = torch.rand(4, 1), torch.rand(5)
        c = tcgemm.gemm(a, b, scale_a=x, scale_b=y, out_dtype=F32, backend="echo")
        assert close(c, (a.double() * x) @ (b.double() * y))


def test_what_a_repeated_call_remembers_keeps_no_operand_alive(calls):
    import gc
    import weakref

    a, b, c, bias = random(4, 6), random(6, 5), random(4, 5), random(5)
    tcgemm.gemm(a, b, c, beta=1.0, bias=bias, backend="echo")
    there = [weakref.ref(t) for t in (a, b, c, bias)]
    del a, b, c, bias
    gc.collect()
    assert [ref() for ref in there] == [None] * 4
