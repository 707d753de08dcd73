"""Two layers under torch.compile: the backward pass is the fused one, as it is without."""

from __future__ import annotations

import itertools

import pytest
import torch
from conftest import DEVICE
from test_derivative import near
from test_mlp import fused, operands, torchs  # noqa: F401
from torch.utils.flop_counter import FlopCounterMode

import tcgemm
from tcgemm import launch_cache
from tcgemm.errors import OperandError, UnsupportedError
from tcgemm.ops import compiled as compiled_ops
from tcgemm.ops import mlp_traced

BACKEND = "cublas"
"""Its products run on any machine; that it has the fused kernels is made up."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch.manual_seed(0)
    torch._dynamo.reset()
    launch_cache.forget()
    monkeypatch.setattr(mlp_traced, "_has_aux", lambda backend: backend == BACKEND)
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


def compiled(epilogue, **how):
    return torch.compile(
        lambda *given: tcgemm.mlp(*given, epilogue, backend=BACKEND), fullgraph=True, **how
    )


def low(rows=(2, 10)):
    return operands(rows, torch.bfloat16)


def gradients(call, all_, above):
    y = call(*all_)
    return [y, *torch.autograd.grad(y, all_, above)]


@pytest.mark.spread(2, "epilogue", "kernels")
@pytest.mark.parametrize("kernels", ["there", "missing"])
@pytest.mark.parametrize("epilogue", ["relu", "gelu_tanh", "silu"])
def test_inductor_s_program_runs_the_fused_kernels(
    epilogue, kernels, request, thorough, monkeypatch
):
    """In ``make test`` what Inductor writes in C++ is not compiled, which takes most of the time:
    then its program is run for what it calls, and its numbers are left alone."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.utils import run_and_get_code

    if not thorough:
        nothing = lambda self, types, source: lambda *given: None  # noqa: E731
        monkeypatch.setattr(AsyncCompile, "cpp_pybinding", nothing)
        # g++ would be asked for vectors of each width.
        monkeypatch.setattr("torch._inductor.cpu_vec_isa.valid_vec_isa_list", list)
    ran = request.getfixturevalue("fused") if kernels == "there" else None
    all_, above = low(), torch.randn(2, 10, 16, device=DEVICE).bfloat16()
    call = compiled(epilogue)
    for repeated in range(3):
        mine, codes = run_and_get_code(lambda: gradients(call, all_, above))
        if thorough:
            near(mine, gradients(lambda *given: torchs(epilogue, *given), all_, above), 0.03)
        if not repeated:
            text = "".join(codes)
            assert text.count(f"{compiled_ops.__name__}.through_z(") == 1
            assert text.count(f"{compiled_ops.__name__}.with_z(") == (epilogue != "relu")
            assert "tanh" not in text.replace("gelu_tanh", "")  # no kernel for the activation
            assert ".default(" not in text
    if ran is not None:
        assert ran == 3 * (["read"] if epilogue == "relu" else ["write", "read"])


def test_one_program_serves_all_sizes_and_biases_may_be_missing(monkeypatch):
    call = compiled("gelu", dynamic=True)
    real, starts = mlp_traced.with_z, []

    def with_z(*given):
        starts.append(given[-2].data_ptr() - given[-1].data_ptr())
        return real(*given)

    monkeypatch.setattr(mlp_traced, "with_z", with_z)
    torch._dynamo.utils.counters.clear()
    for M in (3, 7, 16):
        x, up, _, down, _ = low((M,))
        above = torch.randn(M, 16, device=DEVICE).bfloat16()
        given = [x, up, down]

        def ours(x, up, down):
            return call(x, up, None, down, None)

        def theirs(x, up, down):
            return torchs("gelu", x, up, None, down, None)

        near(gradients(ours, given, above), gradients(theirs, given, above), 0.03)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    # From where f(z) begins to z: as well aligned, however many rows there are. At first torch
    # looks on, and both have memory of their own.
    assert {512, 1024} <= {*starts}


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (4,), (0, 3)])
def test_only_what_is_needed_is_in_the_graph(needed):
    all_ = [t.detach() for t in low()]
    wanted = [all_[i].requires_grad_() for i in needed]
    names = []

    def keep(graph, _):
        names.append([str(node.target) for node in graph.graph.nodes])
        return graph

    from torch._dynamo.backends.common import aot_autograd

    call = compiled("gelu", backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
    near(
        torch.autograd.grad(call(*all_).sum(), wanted),
        torch.autograd.grad(torchs("gelu", *all_).sum(), wanted), 0.03,
    )  # fmt: skip
    backward = names[-1]
    assert backward.count("tcgemm.gemm.default") == sum(i in (0, 1, 3) for i in needed)
    assert backward.count("tcgemm.gemm_through_z.default") == (min(needed) < 3)


def test_derivatives_of_second_order_and_transforms():
    all_ = low((7,))
    call = compiled("gelu", backend="eager")

    def second(call):
        first = torch.autograd.grad(call(*all_).square().sum(), all_, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), all_)

    near(second(call), second(lambda *given: torchs("gelu", *given)), 0.1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_transforms_within_a_program(backend):
    all_ = low((7,))
    plain = tuple(t.detach() for t in all_)

    def ours(*given):
        return tcgemm.mlp(*given, "gelu", backend=BACKEND)

    def theirs(*given):
        return torchs("gelu", *given)

    def by_function(call):
        return torch.func.grad(lambda *given: call(*given).sum(), tuple(range(5)))(*plain)

    def mapped(call):
        return torch.func.vmap(lambda x: call(x, *all_[1:]))(torch.stack([plain[0]] * 3))

    for through in (by_function, mapped):
        torch._dynamo.reset()
        program = torch.compile(lambda through=through: through(ours), backend=backend)
        near([*program()], [*through(theirs)], 0.05)


def test_what_is_not_fused_is_two_layers():
    names = []

    def keep(graph, _):
        names.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    from torch._dynamo.backends.common import aot_autograd

    def taken(all_, **how):
        names.clear()
        torch._dynamo.reset()
        call = compiled("gelu", backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
        with torch.autocast(DEVICE, torch.bfloat16, enabled=how.get("autocast", False)):
            y = call(*all_)
        near([y], [torchs("gelu", *all_).to(y.dtype)], 0.03)
        return "tcgemm.gemm_with_z.default" in [*itertools.chain(*names)]

    assert taken(low())
    assert not taken([t.detach() for t in low()])  # nobody asks for a gradient
    assert not taken(operands())  # float32
    assert not taken(operands(), autocast=True)
    with torch.no_grad():
        assert not taken(low())
    with torch.inference_mode():
        assert not taken([t.detach() for t in low()])


def test_the_operators_are_torch_s_own():
    x, up, up_bias, down, down_bias = (t.detach() for t in low((20,)))
    z = torch.randn(20, 32, device=DEVICE).bfloat16()
    grad = torch.randn(20, 16, device=DEVICE).bfloat16()
    asked = {"epilogue": "silu", "backend": BACKEND}
    check = torch.library.opcheck
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    check(mlp_traced.gemm_with_z, (x, up.mT, up_bias), asked, test_utils=tests)
    check(mlp_traced.gemm_through_z, (grad, down, z), asked, test_utils=tests)
    check(mlp_traced.mlp, (x, up, up_bias, down, down_bias), asked, test_utils=tests[:2])
    with FlopCounterMode(display=False) as counter:
        mlp_traced.gemm_with_z(x, up.mT, up_bias, **asked)
        mlp_traced.gemm_through_z(grad, down, z, **asked)
    assert counter.get_total_flops() == 2 * 20 * 32 * (24 + 16)
    with pytest.raises(UnsupportedError, match=r"tcgemm::gemm_with_z.*call tcgemm\.mlp"):
        mlp_traced.gemm_with_z(x.requires_grad_(), up.mT, up_bias, **asked)


def test_a_mode_sees_what_a_program_of_inductor_s_calls():
    x, up, up_bias, down, _ = (t.detach() for t in low((20,)))
    both = torch.empty(2, 20, 32, device=DEVICE, dtype=torch.bfloat16)
    out = torch.empty(20, 32, device=DEVICE, dtype=torch.bfloat16)
    grad = torch.randn(20, 16, device=DEVICE).bfloat16()
    with FlopCounterMode(display=False) as counter:
        compiled_ops.with_z(x, up.mT, up_bias, "relu", "", BACKEND, out=both)
        compiled_ops.through_z(grad, down, both[1], "relu", "", BACKEND, out=out)
    assert counter.get_total_flops() == 2 * 20 * 32 * (24 + 16)
    z = torch.nn.functional.linear(x, up, up_bias)
    near([both[0], both[1], out], [z.relu(), z, (grad @ down) * (both[1] > 0)], 0.03)


def test_what_does_not_fit_is_said():
    x, up, up_bias, down, down_bias = low()
    with pytest.raises(Exception, match=r"\[2, 10, 24\].*\[16, 32\]") as said:
        compiled("gelu", backend="eager")(x, up.mT[:16].mT, up_bias, down, down_bias)
    assert OperandError.__name__ in repr(said.value) or "OperandError" in str(said.value)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("epilogue", ["relu", "gelu_tanh"])
def test_a_gpu_s_kernels_give_what_float64_does(backend, epilogue, device, monkeypatch):
    monkeypatch.undo()  # kernels are there
    all_ = [
        (torch.randn(*shape, device=device) / shape[-1] ** 0.5).bfloat16().requires_grad_()
        for shape in ((4, 96, 256), (512, 256), (512,), (256, 512), (256,))
    ]
    exact = [t.detach().double().requires_grad_() for t in all_]
    above = torch.randn(4, 96, 256, device=device).bfloat16()
    call = torch.compile(
        lambda *given: tcgemm.mlp(*given, epilogue, backend=backend), fullgraph=True
    )
    expected = gradients(lambda *given: torchs(epilogue, *given), exact, above.double())
    for _ in range(3):
        for mine, theirs in zip(gradients(call, all_, above), expected, strict=True):
            assert (mine.double() - theirs).abs().max() <= 0.03 * theirs.abs().max()
