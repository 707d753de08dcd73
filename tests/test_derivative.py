"""An activation's derivative and the gradient of the bias, by one kernel of either language."""

from __future__ import annotations

import json
from importlib import import_module

import compiling
import pytest
import torch
from conftest import DEVICE
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import tcgemm
from tcgemm import dispatch, launch_cache
from tcgemm.ops import layer
from tcgemm.problem import Fusion

F = torch.nn.functional
ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
ROUNDED = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""How far a number may be from the truth, of its own size and of 1."""


@pytest.fixture
def half(thorough):
    """A type of 16 bits; in ``make test`` the one for which other tests build the same kernels."""
    return torch.bfloat16 if thorough else torch.float16


@pytest.fixture(params=["triton", "cuda"], name="backend")
def with_a_derivative(request):
    if dispatch.derivative(request.param) is None:
        pytest.skip(f"{request.param} has no compiler here")
    return request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    launch_cache.forget()


def run(backend, epilogue, above, z, below, total):
    bind = dispatch.derivative(backend)
    bind(above, z, below, Fusion(epilogue=epilogue, bias=total))(above, z, below, None, total)


@pytest.mark.spread(8, "shape", "dtype", "epilogue", "backend")
@pytest.mark.parametrize("shape", [(200, 150), (1, 1), (65, 129), (4200, 3)])
@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_it_is_torch_s_in_float64(backend, epilogue, dtype, shape):
    M, N = shape
    z = (3 * torch.randn(M, N, device=DEVICE)).to(dtype)
    above = torch.randn(N, M, device=DEVICE).to(dtype).mT
    exact = z.double().requires_grad_()
    ACTIVATIONS[epilogue](exact).backward(above.double())
    below, total = torch.empty_like(z), torch.empty(2 * N, dtype=dtype, device=DEVICE)[::2]
    run(backend, epilogue, above, z, below, total)
    near = ROUNDED[dtype]
    torch.testing.assert_close(below.double(), exact.grad, atol=near, rtol=near)
    # The sum is rounded once: what is summed is not.
    sums, size = exact.grad.sum(0), exact.grad.abs().sum(0)
    assert bool(((total.double() - sums).abs() <= near * sums.abs() + 2e-6 * (size + 1)).all())


@pytest.mark.spread(8, "shape", "dtype", "by_columns", "backend")
@pytest.mark.parametrize("shape", [(200, 150), (1, 1), (65, 129), (4200, 3)])
@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("by_columns", [False, True])
def test_column_sums_alone(backend, by_columns, dtype, shape):
    M, N = shape
    bind, near, found = dispatch.derivative(backend), ROUNDED[dtype], []
    start = None
    for _ in range(3):
        above = torch.randn(N, M, device=DEVICE).to(dtype).mT
        above = above if by_columns else above.contiguous()
        total = torch.full((2 * N,), torch.nan, dtype=dtype, device=DEVICE)[::2]
        start = start or bind(above, None, None, Fusion(bias=total))
        start(above, None, None, None, total)
        sums, size = above.double().sum(0), above.double().abs().sum(0)
        wrong = (total.double() - sums).abs()
        assert bool((wrong <= near * sums.abs() + 2e-6 * (size + 1)).all())
        found.append((above, total))
    for above, total in found:
        again = torch.empty(2 * N, dtype=dtype, device=DEVICE)[::2]
        start(above, None, None, None, again)
        assert torch.equal(again, total), "the sums change from run to run"


def test_the_sums_do_not_change_from_run_to_run_and_are_left_out_where_nobody_asks(backend):
    z, above = (torch.randn(300, 70, device=DEVICE) for _ in range(2))
    found = []
    for total in (torch.empty(70, device=DEVICE), torch.empty(70, device=DEVICE), None):
        below = torch.empty_like(z)
        run(backend, "gelu", above, z, below, total)
        found.append((below, total))
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][0], found[2][0])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(8192, 3072), (4099, 3001), (20, 100_000)])
@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_large_ones_on_a_gpu_have_the_same_bits_each_time_and_in_a_graph(backend, epilogue, shape):
    z, above = (torch.randn(shape, device="cuda").bfloat16() for _ in range(2))
    below, total = torch.empty_like(z), torch.empty(shape[1], device="cuda").bfloat16()
    start = dispatch.derivative(backend)(z, z, below, Fusion(epilogue=epilogue, bias=total))
    found = []
    for _ in range(3):
        start(above, z, below.fill_(torch.nan), None, total.fill_(torch.nan))
        found.append((below.clone(), total.clone()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        start(above, z, below, None, total)
    below.fill_(torch.nan), total.fill_(torch.nan)
    graph.replay()
    found.append((below, total))
    assert all(torch.equal(x, y) for other in found for x, y in zip(other, found[0], strict=True))
    exact = z.double().requires_grad_()
    ACTIVATIONS[epilogue](exact).backward(above.double())
    near = ROUNDED[torch.bfloat16]
    torch.testing.assert_close(below.double(), exact.grad, atol=near, rtol=near)
    torch.testing.assert_close(total.double(), exact.grad.sum(0), atol=1e-2, rtol=near)


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_far_out_and_near_0_it_is_torch_s(backend, epilogue, dtype):
    sizes = [0.0, 1e-45, 1e-38, 1e-30, 1e-6, 5.0, 13.0, 50.0, 1e4, 1e18, 1e20, 3e38, torch.inf]
    z = torch.tensor([[*sizes, *(-x for x in sizes), torch.nan]], device=DEVICE).to(dtype)
    above, below = torch.full_like(z, 2.0), torch.empty_like(z)
    run(backend, epilogue, above, z, below, None)
    z.requires_grad_()
    ACTIVATIONS[epilogue](z).backward(above)
    near = ROUNDED[dtype]
    torch.testing.assert_close(below, z.grad, atol=4 * near, rtol=4 * near, equal_nan=True)


def test_relu_passes_what_torch_s_passes(backend):
    z = torch.tensor([[0.0, -0.0, torch.nan, 1.0, -1.0, torch.inf]], device=DEVICE)
    for number in (torch.inf, torch.nan, 2.0):
        above = torch.full_like(z, number)
        below = torch.empty_like(z)
        run(backend, "relu", above, z, below, None)
        torch.testing.assert_close(
            below, torch.ops.aten.threshold_backward(above, z, 0), equal_nan=True
        )


def operands(shape=(2, 20, 24), dtype=torch.float32):
    shapes = (shape, (32, 24), (32,))
    return [torch.randn(*s, device=DEVICE).to(dtype).requires_grad_() for s in shapes]


def torchs(epilogue, x, w, bias):
    return ACTIVATIONS[epilogue](F.linear(x, w, bias))


def near(mine, theirs, within=1e-4):
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, y, atol=within * float(y.detach().abs().max()), rtol=within)


@pytest.fixture
def derivatives(monkeypatch):
    """The calls of the kernel."""
    made = []
    through = layer.through
    monkeypatch.setattr(layer, "through", lambda *call: made.append(call) or through(*call))
    return made


@pytest.mark.spread(5, "dtype", "shape", "epilogue", "backend")
@pytest.mark.parametrize("dtype", [
    torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.exhaustive),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(20, 24), (2, 10, 24)])
@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_a_layer_takes_it(backend, epilogue, shape, dtype, derivatives):
    x, w, bias = all_ = operands(shape, dtype)
    above = torch.randn(*shape[:-1], 32, device=DEVICE).to(dtype)
    for count in range(1, 4):
        y = tcgemm.linear(x, w, bias, epilogue, backend=backend)
        assert type(y.grad_fn).__name__ == "LayerBackward"
        mine = torch.autograd.grad(y, all_, above)
        assert len(derivatives) == count
        z = torchs(epilogue, x, w, bias)
        within = 1e-5 if dtype is torch.float32 else 0.02
        near([y, *mine], [z, *torch.autograd.grad(z, all_, above)], within)


@pytest.mark.parametrize("needed", ["x w", "w", "w bias", "x bias", "bias", "x"])
@pytest.mark.parametrize("epilogue", ["relu", "gelu"])
def test_only_what_is_needed_is_given(backend, epilogue, needed, derivatives):
    x, w, bias = (t.detach() for t in operands())
    wanted = [{"x": x, "w": w, "bias": bias}[name].requires_grad_() for name in needed.split()]
    y = tcgemm.linear(x, w, bias, epilogue, backend=backend)
    near(
        torch.autograd.grad(y.sum(), wanted),
        torch.autograd.grad(torchs(epilogue, x, w, bias).sum(), wanted),
    )
    # x is kept for a second derivative, which a weight without a gradient is not worth.
    assert len(derivatives) == (epilogue == "relu" or w.requires_grad)


@pytest.mark.spread(4, "biased", "epilogue", "backend")
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_derivatives_of_second_order(backend, epilogue, biased):
    x, w, bias = operands()
    leaves = (x, w, bias) if biased else (x, w)

    def second(call):
        y = call(epilogue, *((x, w, bias) if biased else (x, w, None)))
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    near(
        second(lambda epilogue, x, w, bias: tcgemm.linear(x, w, bias, epilogue, backend=backend)),
        second(torchs),
    )


def elsewhere(t):
    """The same numbers in other memory, matrices by columns."""
    return t.mT.contiguous().mT if t.dim() > 1 else t.clone()


@pytest.mark.spread(2, "epilogue", "backend")
@pytest.mark.parametrize("epilogue", ["relu", "gelu"])
def test_who_looks_on_or_has_hooks_gets_the_same(backend, epilogue, half, derivatives):
    x, w, bias = all_ = operands()
    z = torchs(epilogue, x, w, bias)
    theirs = torch.autograd.grad(z.sum(), all_, retain_graph=True)
    y = tcgemm.linear(x, w, bias, epilogue, backend=backend)
    with FlopCounterMode(display=False) as counter:
        near(torch.autograd.grad(y.sum(), all_, retain_graph=True), theirs)
    assert counter.get_total_flops() == 2 * (2 * 40 * 24 * 32)
    above = torch.randn(3, *y.shape, device=DEVICE)
    near(
        torch.autograd.grad(y, all_, above, is_grads_batched=True, retain_graph=True),
        torch.autograd.grad(z, all_, above, is_grads_batched=True),
    )
    assert not derivatives
    near(torch.autograd.grad(y, all_, torch.ones((), device=DEVICE).expand(y.shape)), theirs)
    with saved_tensors_hooks(lambda t: t, elsewhere):
        y = tcgemm.linear(x, w, bias, epilogue, backend=backend)
    near(torch.autograd.grad(y.sum(), all_), theirs)
    with torch.autocast(DEVICE, half):
        y = tcgemm.linear(x, w, bias, epilogue, backend=backend)
    mine = torch.autograd.grad(y.float().sum(), all_)
    if epilogue != "relu":  # whose slope jumps where 16 bits have another sign
        near(mine, theirs, 0.03)
    assert len(derivatives) == 3


def test_a_result_of_another_dtype_and_an_accumulated_gradient(backend, half):
    x, w, bias = operands(dtype=half)
    bias = bias.detach().float().requires_grad_()
    y = tcgemm.linear(x, w, bias, "silu", out_dtype=torch.float32, backend=backend)
    z = F.silu(F.linear(x.float(), w.float(), bias))
    mine = torch.autograd.grad(y.square().sum(), (x, w, bias))
    assert [t.dtype for t in mine] == [half, half, torch.float32]
    near([t.float() for t in mine], [
        t.float() for t in torch.autograd.grad(z.square().sum(), (x, w, bias))
    ], 0.02)  # fmt: skip
    model = tcgemm.nn.Linear(
        24, 32, epilogue="gelu", backend=backend, accumulate=True, device=DEVICE
    )
    x = x.detach().float()
    for _ in range(2):
        model(x).sum().backward()
    twice = torch.autograd.grad(
        2 * torchs("gelu", x, *model.parameters()).sum(), [*model.parameters()]
    )
    near([t.grad for t in model.parameters()], twice)


@pytest.mark.spread(3, "name")
@pytest.mark.parametrize("name", ["cuda", "triton", "cublas"])
def test_float64_and_other_backends_are_torch_s(name, derivatives):
    all_ = [t.detach().double().requires_grad_() for t in operands((4, 24))]

    def call(x, w, bias):
        return tcgemm.linear(x, w, bias, "gelu", backend=name)

    assert torch.autograd.gradcheck(call, all_, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, all_, fast_mode=True)
    assert not derivatives
    assert dispatch.derivative("cublas") is None


FOR_AN_H200 = """
import json, re, sys
from importlib import import_module
from types import SimpleNamespace
import torch
from triton.runtime import driver
derivative = import_module("tcgemm.triton_kernels.derivative")
inspection = "tcgemm.triton_kernels.inspection"
driver.set_active(import_module(inspection + ".compile_only")._Driver((9, 0)))
jitted = import_module(inspection + ".specialisations")._jitted
found = {}
for epilogue in sys.argv[1:]:
    x = torch.empty(8192, 3072, dtype=torch.bfloat16, device="meta")
    asked = dict(alpha=1.0, beta=0.0, epilogue=epilogue, compute="float32", mma_shape="", aux="")
    tensors = dict(c=None, bias=x[0], scale_a=None, scale_b=None)
    asked = SimpleNamespace(**asked, **tensors)
    bound = derivative.run.bind(x, x, x, asked, **derivative.TILE)
    for kernel, grid, args, constants in bound.steps(x, x, x, asked):
        ptx = jitted(kernel).warmup(*args, grid=grid, **constants).asm["ptx"]
        loads = set(re.findall(r"(?:ld|st)\\.global\\.\\S+", ptx))
        found[f"{epilogue} {kernel.__name__}"] = [grid[0], sorted(loads), "erf" in ptx]
print(json.dumps(found))
"""


def test_it_compiles_for_an_h200_and_moves_16_bytes_at_a_time(thorough):
    epilogues = list(ACTIVATIONS) if thorough else ["gelu"]
    done = compiling.run("-c", FOR_AN_H200, *epilogues)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 2 * len(epilogues)
    for name, (programs, moves, _) in found.items():
        if "add" not in name:
            assert programs == 8192 // 128 * 3072 // 64
            assert {m for m in moves if "st.global.b32" not in m} == {
                "ld.global.v4.b32", "st.global.v4.b32",
            }  # fmt: skip


def test_the_plan_fits_the_kernel():
    tile = import_module("tcgemm.triton_kernels.derivative").TILE
    assert tile["ROWS"] % tile["BLOCK_M"] == 0
