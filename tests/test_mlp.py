"""Two layers as one function of autograd: what torch gives, of any order, and what it runs."""

from __future__ import annotations

import pytest
import torch
from conftest import DEVICE
from test_derivative import ACTIVATIONS, near, with_a_derivative  # noqa: F401
from torch.autograd.graph import saved_tensors_hooks

import tcgemm
from tcgemm import launch_cache
from tcgemm.epilogue import FUNCTIONS
from tcgemm.errors import OperandError, OperandTypeError
from tcgemm.launch import Launch
from tcgemm.ops import mlp, running

F = torch.nn.functional
SIZES = [(24,), (32, 24), (32,), (16, 32), (16,)]
"""Of x's rows, up, its bias, down, its bias."""


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    launch_cache.forget()


def operands(rows=(2, 10), dtype=torch.float32):
    shapes = [(*rows, 24), *SIZES[1:]]
    return [torch.randn(s, device=DEVICE).to(dtype).requires_grad_() for s in shapes]


def torchs(epilogue, x, up, up_bias, down, down_bias):
    return F.linear(ACTIVATIONS[epilogue](F.linear(x, up, up_bias)), down, down_bias)


@pytest.fixture
def fused(monkeypatch):
    """Kernels with ``Fusion.aux``, in torch: the ways in which they ran."""
    ran = []

    def start_with_aux(launch, aux, epilogue, *operands):
        def run(a, b, out, z, bias, *none):
            ran.append(aux)
            product = a.float() @ b.float()
            if aux == "write":
                product = product if bias is None else product + bias
                z.copy_(product)
                out.copy_(FUNCTIONS[epilogue](product))
            else:
                at = z.detach().float().requires_grad_()
                with torch.enable_grad():
                    y = ACTIVATIONS[epilogue](at)
                out.copy_(torch.autograd.grad(y, at, product)[0])

        launch.with_aux[aux, epilogue] = run
        return run

    monkeypatch.setattr(Launch, "start_with_aux", start_with_aux)
    return ran


@pytest.mark.spread(8, "dtype", "rows", "epilogue", "backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [(20,), (2, 10)])
@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_it_is_torch_s_on_every_call(backend, epilogue, rows, dtype, request):
    within = 1e-5 if dtype is torch.float32 else 0.03
    for how in range(4):
        if how == 2:  # by two kernels each until then
            launch_cache.forget()
            ran = request.getfixturevalue("fused")
        all_ = operands(rows, dtype)
        y = tcgemm.mlp(*all_, epilogue, backend=backend)
        assert type(y.grad_fn).__name__ == "MlpBackward"
        assert y.shape == (*rows, 16)
        above = torch.randn_like(y)
        mine = torch.autograd.grad(y, all_, above)
        z = torchs(epilogue, *all_)
        near([y, *mine], [z, *torch.autograd.grad(z, all_, above)], within)
    assert ran == 2 * (["read"] if epilogue == "relu" else ["write", "read"])


def products(needed):
    """Of the backward pass: those by x, up and down, and the one on the way to the first layer."""
    return sum(i in (0, 1, 3) for i in needed) + (min(needed) < 3)


@pytest.mark.spread(4, "biased", "backend", "needed")
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (3,), (0, 3), (1, 4), (0, 1, 2, 3, 4)])
def test_only_what_is_needed_is_given(backend, needed, biased, monkeypatch):
    all_ = [t.detach() for t in operands()]
    if not biased:
        all_[2] = all_[4] = None
        needed = tuple(i for i in needed if i % 2 or not i) or (0,)
    wanted = [all_[i].requires_grad_() for i in needed]
    made = []
    real = mlp.multiply_at
    monkeypatch.setattr(mlp, "multiply_at", lambda *asked: made.append(1) or real(*asked))
    y = tcgemm.mlp(*all_, "gelu", backend=backend)
    theirs = torch.autograd.grad(torchs("gelu", *all_).sum(), wanted)
    made.clear()
    near(torch.autograd.grad(y.sum(), wanted, retain_graph=True), theirs)
    assert len(made) == products(needed)
    if len(wanted) > 1:  # a pass that goes on to one of them alone
        made.clear()
        near(torch.autograd.grad(y.sum(), wanted[-1:]), theirs[-1:])
        assert len(made) == products(needed[-1:])


@pytest.mark.spread(4, "epilogue", "backend")
@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_derivatives_of_second_order(backend, epilogue, fused):
    all_ = operands((7,))

    def second(call):
        first = torch.autograd.grad(call(epilogue, *all_).square().sum(), all_, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), all_)

    mine = second(lambda epilogue, *given: tcgemm.mlp(*given, epilogue, backend=backend))
    near(mine, second(torchs), 1e-3)


@pytest.mark.spread(2, "epilogue", "backend")
@pytest.mark.parametrize("epilogue", ["relu", "silu"])
def test_hooks_autocast_graphs_and_transforms_give_the_same(backend, epilogue, fused):
    all_ = operands((20,))
    z = torchs(epilogue, *all_)
    theirs = torch.autograd.grad(z.sum(), all_, retain_graph=True)

    def of(call):
        return torch.autograd.grad(call().sum(), all_)

    def ours():
        return tcgemm.mlp(*all_, epilogue, backend=backend)

    with saved_tensors_hooks(lambda t: t, lambda t: t.mT.contiguous().mT if t.dim() > 1 else t):
        near(of(ours), theirs)
    with torch.autocast(DEVICE, torch.bfloat16):
        y = ours()
    assert y.dtype is torch.bfloat16
    above = torch.randn(3, *z.shape, device=DEVICE)
    near(
        torch.autograd.grad(ours(), all_, above, is_grads_batched=True),
        torch.autograd.grad(z, all_, above, is_grads_batched=True),
    )
    by_function = torch.func.grad(
        lambda *given: tcgemm.mlp(*given, epilogue, backend=backend).sum(), tuple(range(5))
    )
    near(by_function(*(t.detach() for t in all_)), theirs)
    with torch.no_grad():
        near([ours()], [z])


def test_compiled_it_is_part_of_the_graph():
    all_ = operands((20,))
    call = torch.compile(
        lambda *given: tcgemm.mlp(*given, "gelu", backend="cublas"),
        fullgraph=True, backend="aot_eager",
    )  # fmt: skip
    near(torch.autograd.grad(call(*all_).sum(), all_),
         torch.autograd.grad(torchs("gelu", *all_).sum(), all_))  # fmt: skip


def test_what_does_not_fit_is_said_as_of_layers(backend):
    x, up, up_bias, down, down_bias = operands()
    with pytest.raises(
        OperandError, match=r"x is \[2, 10, 24\] and up \[32, 16\].*x has 24 and up 16"
    ):
        tcgemm.mlp(x, torch.randn(32, 16, device=DEVICE), up_bias, down, down_bias, backend=backend)
    with pytest.raises(
        OperandError, match=r"up \[32, 24\] gives 32 features and down \[16, 24\] takes 24"
    ):
        tcgemm.mlp(x, up, up_bias, down[:, :24], down_bias, backend=backend)
    with pytest.raises(OperandTypeError, match="up_bias is float64"):
        tcgemm.mlp(x, up, up_bias.double(), down, down_bias, backend=backend)
    with pytest.raises(OperandError, match=r"down_bias has shape \[32\]"):
        tcgemm.mlp(x, up, up_bias, down, up_bias, backend=backend)
    with pytest.raises(OperandTypeError, match="the hidden layer is float32 and down is float64"):
        tcgemm.mlp(x, up, up_bias, down.double(), down_bias, backend=backend)
    with pytest.raises(OperandError, match=r"takes 16; down\.mT would fit"):
        tcgemm.mlp(x, up, up_bias, down.mT, down_bias, backend=backend)
    eight = [t.detach().to(torch.float8_e4m3fn) for t in (x, up, down)]
    said = (
        r"the hidden layer is bfloat16, which down does not take.*down with .to\(torch.bfloat16\)"
    )
    with pytest.raises(OperandTypeError, match=said):
        tcgemm.mlp(eight[0], eight[1], None, eight[2], None, backend=backend)
    with pytest.raises(OperandError, match="epilogue"):
        tcgemm.mlp(x, up, up_bias, down, down_bias, "gelo", backend=backend)


def test_a_layer_stores_its_pre_activation_in_the_same_kernel(backend, fused):
    x, w, bias, _, _ = operands()
    for count in range(1, 4):
        y = tcgemm.linear(x, w, bias, "gelu", backend=backend)
        y.add_(0)  # no view: it may be written
        mine = torch.autograd.grad(y.sum(), (x, w, bias))
        z = F.gelu(F.linear(x, w, bias))
        near([y, *mine], [z, *torch.autograd.grad(z.sum(), (x, w, bias))], 1e-5)
        assert fused == ["write"] * count


def test_each_product_runs_the_launch_that_was_made_for_such(backend, monkeypatch):
    real, ran = running.start, []

    def start(launch, a, b, bias, out):
        (made,) = launch.problems
        sizes = made.M * made.K, made.K * made.N, made.M * made.N
        assert (a.numel(), b.numel(), out.numel()) == sizes
        if not launch.by_address:
            assert (*out.shape, a.shape[1]) == (made.M, made.N, made.K)
            assert (made.a_strides, made.b_strides) == (a.stride(), b.stride())
        ran.append(launch)
        real(launch, a, b, bias, out)

    monkeypatch.setattr(running, "start", start)
    for _ in range(3):
        all_ = operands()
        ours, theirs = tcgemm.mlp(*all_, "silu", backend=backend), torchs("silu", *all_)
        near([ours], [theirs], 1e-5)
        mine, reference = (torch.autograd.grad(y.sum(), all_) for y in (ours, theirs))
        near(mine, reference, 1e-5)
    assert len(ran) == 3 * 6


def test_operands_that_are_less_aligned_leave_nothing_behind(backend):
    """A launch for addresses that are multiples of 16 is not run for one that is none."""
    _, *rest = operands()
    memory = torch.zeros(20 * 24 + 64, device=DEVICE)
    for offset in (4, 1, 0, 1):
        x = memory[offset:].as_strided((20, 24), (24, 1)).copy_(torch.randn(20, 24))
        near([tcgemm.mlp(x, *rest, "silu", backend=backend)], [torchs("silu", x, *rest)], 1e-5)
        assert all(kind.bits for kind in mlp._recent.values())
    assert len(mlp._recent) == 1
