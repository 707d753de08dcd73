"""The short way of a layer: as torch's gradients, with as few calls of Python as it takes."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import scripts_of
import torch
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import tcgemm
from tcgemm import launch_cache, tensors
from tcgemm.ops import eager, layer, running

F = torch.nn.functional
BACKEND = {"backend": "cublas"}
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


def variables(*shapes, dtype=torch.float64):
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes]


def is_short(y):
    return type(y.grad_fn).__name__ == "LayerBackward"


def same(mine, theirs):
    assert len(mine) == len(theirs)
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, y)


SHAPES = {"matrix": (5, 8), "batch": (2, 3, 8), "batches": (2, 1, 3, 8), "one row": (1, 8)}


@pytest.mark.parametrize("epilogue", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_are_torch_s(shape, epilogue):
    x, w, bias = operands = variables(shape, (4, 8), (4,))
    above = torch.randn(*shape[:-1], 4, dtype=torch.float64)
    for _ in range(3):
        y = tcgemm.linear(x, w, bias, epilogue, **BACKEND)
        assert epilogue not in (None, "relu") or is_short(y)
        z = ACTIVATIONS[epilogue](F.linear(x, w, bias))
        same([y], [z])
        same(torch.autograd.grad(y, operands, above), torch.autograd.grad(z, operands, above))


@pytest.mark.parametrize("needed", ["x", "w", "bias", "x w", "w bias", "x bias"])
def test_only_what_is_needed_is_multiplied(needed, monkeypatch):
    x, w, bias = (torch.randn(*shape) for shape in ((2, 3, 8), (4, 8), (4,)))
    wanted = [{"x": x, "w": w, "bias": bias}[name].requires_grad_() for name in needed.split()]
    products = []
    start = running.start
    for module in (running, layer):
        monkeypatch.setattr(module, "start", lambda *call: products.append(1) or start(*call))
    y = tcgemm.linear(x, w, bias, **BACKEND)
    assert is_short(y)
    products.clear()
    mine = torch.autograd.grad(y.sum(), wanted)
    assert len(products) == len({"x", "w"} & set(needed.split()))
    same(mine, torch.autograd.grad(F.linear(x, w, bias).sum(), wanted))


def test_a_weight_by_columns_and_one_of_matmul():
    x, w = variables((5, 8), (8, 4))
    for call, torchs in (
        (lambda: tcgemm.matmul(x, w, **BACKEND), lambda: x @ w),
        (lambda: tcgemm.linear(x, w.mT, **BACKEND), lambda: x @ w),
        (lambda: tcgemm.gemm(x, w, epilogue="relu", **BACKEND), lambda: torch.relu(x @ w)),
    ):
        y = call()
        assert is_short(y)
        same(torch.autograd.grad(y.sum(), (x, w)), torch.autograd.grad(torchs().sum(), (x, w)))
    leaf = torch.randn(4, 8, dtype=torch.float64).mT.requires_grad_()
    (gradient,) = torch.autograd.grad(tcgemm.matmul(x, leaf, **BACKEND).sum(), leaf)
    assert gradient.stride() == leaf.stride()


def test_a_result_of_another_dtype():
    x, w = (t.detach().bfloat16().requires_grad_() for t in variables((6, 8), (4, 8)))
    y = tcgemm.linear(x, w, out_dtype=torch.float32, **BACKEND)
    assert (y.dtype, is_short(y)) == (torch.float32, True)
    y.square().sum().backward()
    assert x.grad.dtype == w.grad.dtype == torch.bfloat16


def test_derivatives_of_the_gradients():
    def layer(x, w, bias):
        return tcgemm.linear(x, w, bias, "relu", **BACKEND)

    operands = variables((2, 4, 3), (2, 3), (2,))
    assert is_short(layer(*operands))
    assert torch.autograd.gradgradcheck(layer, operands)
    assert torch.autograd.gradcheck(layer, operands, check_batched_grad=True)
    w = operands[1]
    y = layer(*operands)
    with forward_ad.dual_level():  # the backward pass is what is differentiated
        dual = forward_ad.make_dual(torch.ones_like(y), torch.full_like(y, 2.0))
        (mine,) = torch.autograd.grad(y, w, dual, retain_graph=True)
        tangent = forward_ad.unpack_dual(mine).tangent
    same([tangent], torch.autograd.grad(y, w, torch.full_like(y, 2.0)))


def test_what_looks_on_sees_the_backward_pass():
    x, w, _ = variables((4, 3), (2, 3), (2,))
    y = tcgemm.linear(x, w, **BACKEND)
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    assert counter.get_total_flops() == 2 * (2 * 4 * 3 * 2)


def test_saved_tensors_go_through_hooks():
    x, w, bias = operands = variables((4, 3), (2, 3), (2,))
    packed = []

    def unpack(t):  # elsewhere in memory, and by columns
        return t.mT.contiguous().mT

    with saved_tensors_hooks(lambda t: packed.append(t.shape) or t, unpack):
        y = tcgemm.linear(x, w, bias, **BACKEND)
    assert sorted(packed) == [(2, 3), (4, 3)]
    mine = torch.autograd.grad(y.square().sum(), operands)
    same(mine, torch.autograd.grad(F.linear(x, w, bias).square().sum(), operands))


def test_a_saved_tensor_that_changes_makes_backward_raise():
    x, w, _ = variables((4, 3), (2, 3), (2,))
    y = tcgemm.linear(x, w, **BACKEND)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_result_may_be_overwritten_as_torch_s():
    x, w, _ = variables((2, 4, 3), (2, 3), (2,))
    tcgemm.linear(x, w, **BACKEND).relu_().sum().backward()
    mine, x.grad = x.grad, None
    F.linear(x, w).relu_().sum().backward()
    same([mine], [x.grad])


def test_the_long_way_where_torch_has_to_see():
    x, w, bias = variables((4, 3), (2, 3), (2,), dtype=torch.float32)
    assert is_short(tcgemm.linear(x, w, bias, **BACKEND))
    assert not is_short(tcgemm.linear(torch.randn(3, 2, 3).transpose(0, 1), w, **BACKEND))
    with FlopCounterMode(display=False) as counter:
        tcgemm.linear(x, w, bias, **BACKEND)
    assert counter.get_total_flops() == 2 * 4 * 3 * 2
    per_sample = torch.vmap(torch.func.grad(lambda x: tcgemm.linear(x, w, **BACKEND).sum()))
    assert torch.allclose(per_sample(x), w.sum(0).expand(4, 3))


@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_autocast_takes_the_short_way(epilogue):
    operands = variables((2, 5, 8), (4, 8), (4,), dtype=torch.float32)
    layer = tcgemm.nn.Linear(8, 4, epilogue=epilogue, **BACKEND)
    layer.weight, layer.bias = map(torch.nn.Parameter, operands[1:])
    found = []
    for call in (
        lambda x, w, bias: tcgemm.linear(x, w, bias, epilogue, **BACKEND),
        lambda x, w, bias: ACTIVATIONS[epilogue](F.linear(x, w, bias)),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            y = call(*operands)
            assert torch.is_autocast_enabled("cpu")
        assert y.dtype == torch.bfloat16
        gradients = torch.autograd.grad(y.float().square().sum(), operands)
        assert {gradient.dtype for gradient in gradients} == {torch.float32}
        found.append([y, *gradients])
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(operands[0])
        assert epilogue not in (None, "relu") or is_short(y)
        assert is_short(tcgemm.linear(*(t.double() for t in operands), **BACKEND))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=0.2, rtol=0.02)


def test_autocast_keeps_the_cast_of_a_weight_until_it_ends():
    x, w, _ = variables((4, 3), (2, 3), (2,), dtype=torch.float32)
    found = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(2):
                y = tcgemm.linear(x, w, **BACKEND)
                found.append(y.grad_fn.next_functions[1][0])
            with torch.autocast("cpu", torch.bfloat16):
                y = tcgemm.linear(x, w, **BACKEND)
                assert y.grad_fn.next_functions[1][0] is found[-1]
        w.data.mul_(2)  # which no version tells
    assert found[0] is found[1]
    assert found[2] is found[3] is not found[0]
    torch.testing.assert_close(y.float(), F.linear(x, w / 2), atol=0.05, rtol=0.05)
    y.sum().backward()
    torch.testing.assert_close(w.grad, x.sum(0).expand(2, 3), atol=0.05, rtol=0.05)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        one, other = (tcgemm.linear(x, w, **BACKEND) for _ in range(2))
    assert one.grad_fn.next_functions[1][0] is not other.grad_fn.next_functions[1][0]


def test_a_view_put_in_place_of_a_weight_is_seen_by_backward(monkeypatch):
    """At the same address, and no version counter tells: no launch for the old view is taken."""
    kept = []
    multiply = layer.multiply
    monkeypatch.setattr(
        layer, "multiply", lambda launch, *rest: kept.append(launch) or multiply(launch, *rest)
    )
    for turned in (False, False, True):  # the second call finds launches that the first one made
        x, w, _ = variables((4, 3), (3, 3), (3,))
        y = tcgemm.linear(x, w, **BACKEND)
        assert is_short(y)
        if turned:
            w.data = w.data.mT
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.ones(4, 3, dtype=x.dtype) @ w.detach())
    assert [launch is not None for launch in kept] == [False, False, True, True, False, False]


def test_what_is_kept_is_forgotten():
    x, w, _ = variables((4, 3), (2, 3), (2,))
    tcgemm.linear(x, w, **BACKEND)
    assert eager._kinds
    launch_cache.forget()
    assert not eager._kinds


def test_operands_of_another_kind_are_not_mistaken():
    """Each differs from the first in one thing that a launch depends on."""
    w = torch.randn(4, 8)
    calls = [
        (torch.randn(5, 8), w, None), (torch.randn(5, 16)[:, ::2], w, None),
        (torch.randn(41)[1:].view(5, 8), w, None), (torch.randn(5, 8), w, torch.randn(4)),
        (torch.randn(5, 8), torch.randn(8, 4).mT, None), (torch.randn(8, 5).mT, w, None),
        (torch.randn(5, 8), w, torch.randn(8)[::2]), (torch.randn(5, 1).expand(5, 8), w, None),
    ]  # fmt: skip
    for x, weight, bias in calls + calls:
        z = tcgemm.linear(x, weight, bias, "relu", **BACKEND)
        same([z], [torch.relu(F.linear(x, weight, bias))])
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        mine = torch.autograd.grad(tcgemm.linear(x, weight, bias, **BACKEND).sum(), (x, weight))
        same(mine, torch.autograd.grad(F.linear(x, weight, bias).sum(), (x, weight)))


def negated(t):
    return torch.complex(torch.zeros_like(t), -t.detach()).conj().imag


@pytest.mark.parametrize("guarded", [True, False], ids=["by TensorGuards", "in Python"])
def test_a_call_like_the_last_is_not_one_where_somebody_looks_on(guarded, monkeypatch):
    """With one weight: what differs from the last call is seen, also where no shape tells."""
    launch_cache.forget()
    if not guarded:
        monkeypatch.setattr(tensors, "_dynamos", None)
    x, w, bias = variables((8, 8), (8, 8), (8,), dtype=torch.float32)

    def layer(x=x, bias=bias):
        y = tcgemm.linear(x, w, bias, **BACKEND)
        same([y], [F.linear(x, w, bias)])
        return y

    for _ in range(2):
        assert is_short(layer())
        assert is_short(layer(bias=None))
        assert is_short(layer(bias=torch.randn(16)[::2]))
        assert is_short(layer(torch.randn(8, 8).mT))
        assert is_short(layer(torch.randn(65)[1:].view(8, 8)))
        layer(negated(x))
        with torch.no_grad():
            assert layer().grad_fn is None
        with torch.inference_mode():
            assert layer().is_inference()
        with torch.autocast("cpu", torch.bfloat16):
            assert tcgemm.linear(x, w, bias, **BACKEND).dtype == torch.bfloat16
        with FlopCounterMode(display=False) as counter:
            layer()
        assert counter.get_total_flops() == 2 * 2 * 8**3  # torch's too
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            tangent = forward_ad.unpack_dual(tcgemm.linear(dual, w, bias, **BACKEND)).tangent
        same([tangent], [F.linear(torch.ones_like(x), w)])
        (slope,) = torch.func.grad(lambda *v: tcgemm.linear(*v, w, bias, **BACKEND).sum(), (0,))(x)
        same([slope], [w.sum(0).expand(8, 8)])
        with pytest.raises(tcgemm.errors.OperandTypeError):
            tcgemm.linear(x.double(), w, bias, **BACKEND)


def test_a_weight_that_is_another_in_place():
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.nn.Parameter(torch.randn(4, 4), requires_grad=False)
    for data in (w.data, w.data.mT, torch.randn(2, 4), torch.randn(4, 4).bfloat16()):
        w.data = data
        if data.dtype == x.dtype:
            y = tcgemm.linear(x, w, **BACKEND)
            same([y], [F.linear(x, w)])
            same(torch.autograd.grad(y.sum(), x), torch.autograd.grad(F.linear(x, w).sum(), x))
    with pytest.raises(tcgemm.errors.OperandTypeError):
        tcgemm.linear(x, w, **BACKEND)


def test_memory_is_laid_out_as_asked_without_inductor_s_functions():
    t = torch.randn(20, requires_grad=True)[3:]
    for lay in (tensors.laid, tensors._laid):
        mine = lay(t, (2, 3), (1, 4), 2)
        assert not mine.requires_grad
        same([mine], [t.detach()[2:].as_strided((2, 3), (1, 4), 5)])
    for empty in (tensors.allocator(of_cpu=True), partial(tensors._empty, "cpu")):
        made = empty((2, 3), (1, 2), torch.float16)
        assert (made.shape, made.stride(), made.dtype) == ((2, 3), (1, 2), torch.float16)


def python_calls(f, but=None):
    """Calls of functions of Python, and of C, that one call of f makes once it is warm; none that
    code of the module ``but`` makes.

    The least of several: results of another alignment make launches of their own.
    """
    counts = []
    for _ in range(20):
        counted = {"call": 0, "c_call": 0}

        def count(frame, event, argument, counted=counted):
            if event in counted and (but is None or frame.f_globals["__name__"] != but):
                counted[event] += 1

        sys.setprofile(count)
        try:
            f()
        finally:
            sys.setprofile(None)
        counts.append((counted["call"], counted["c_call"]))
    return min(counts)


@pytest.mark.parametrize("shape", [(64, 64), (2, 64, 64)])
def test_a_step_of_a_layer_makes_few_calls(shape):
    """Beside torch's; the way through the operator and its gradients made 260 more, and 360."""
    x = torch.randn(*shape, requires_grad=True)
    above = torch.ones(shape)
    torchs = torch.nn.Linear(64, 64)
    ours = tcgemm.nn.Linear(64, 64, **BACKEND)

    def step(layer):
        layer(x).backward(above)

    calls, of_c = python_calls(lambda: step(ours))
    torch_calls, torch_of_c = python_calls(lambda: step(torchs))
    assert calls - torch_calls <= 20
    assert of_c - torch_of_c <= 46


def test_the_script_that_measures_it(monkeypatch, capsys):
    script = scripts_of.script("host_time_of_layers")
    monkeypatch.setattr(script, "ROUNDS", 1)
    monkeypatch.setattr(sys, "argv", ["host_time_of_layers.py", "--without-kernels"])
    threads = torch.get_num_threads()
    try:
        script.main()
    finally:
        torch.set_num_threads(threads)
        launch_cache.forget()  # these start nothing
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == 20
    assert all(float(ratio) > 0 for name, *_, ratio in rows if "tcgemm" in name)
