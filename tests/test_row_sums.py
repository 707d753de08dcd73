"""The gradients of a weight and of its bias by one product, which also sums the rows of A."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from conftest import DEVICE
from test_derivative import near
from torch.utils.flop_counter import FlopCounterMode
from triton_requests import SUMMING

import tcgemm
from tcgemm import dispatch, launch_cache
from tcgemm.launch import Launch
from tcgemm.ops import compiled as compiled_ops
from tcgemm.ops import lowering, register_late, row_sums
from tcgemm.problem import Fusion, Problem

gluon_launch = import_module("tcgemm.triton_kernels.host.gluon_launch")

BACKEND = "cublas"
"""Its products run on any machine; that it has a kernel with sums is made up."""


@pytest.fixture
def has_sums(monkeypatch):
    torch.manual_seed(0)
    torch._dynamo.reset()
    launch_cache.forget()
    monkeypatch.setattr(row_sums, "_has_sums", lambda backend, device: backend == BACKEND)
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


@pytest.mark.gpu
@pytest.mark.parametrize("tile", SUMMING, ids=lambda t: f"{t['BLOCK_M']}x{t['BLOCK_N']}")
@pytest.mark.parametrize("layout", ["tn", "tt"])
def test_sums_and_product_are_right_in_each_of_three_calls(tile, layout):
    for M, N, K, dtype in (
        (3072, 768, 8192, torch.bfloat16), (8, 8, 8, torch.float16), (200, 72, 1000, torch.float16),
        (1160, 3000, 8, torch.bfloat16), (72, 1304, 4104, torch.bfloat16),
        (72, 6600, 5000, torch.bfloat16),
    ):  # fmt: skip
        problem = Problem.stored(
            M, N, K, str(dtype)[6:], str(dtype)[6:], layout, capability=(9, 0), aux="sums"
        )
        row = dispatch.find("triton", "warp_specialized")
        assert row.why_not(problem) is None
        bits = set()
        for number in range(3):
            a = torch.randn(M, K, device=DEVICE).to(dtype) + 0.25
            b = torch.randn(K, N, device=DEVICE).to(dtype)
            a = a.mT.contiguous().mT
            b = b if layout[1] == "n" else b.mT.contiguous().mT
            around = torch.full((M + 16,), torch.nan, device=DEVICE, dtype=dtype)
            c, sums = torch.full((M, N), torch.nan, device=DEVICE, dtype=dtype), around[8:-8]
            fusion = Fusion(c=sums, aux="sums")
            if not number:
                start = dispatch.load("triton", row.name).bind(a, b, c, fusion, **tile)
            for _ in range(2):
                sums.fill_(torch.nan)
                start(a, b, c, sums, None, None, None)
                bits.add((number, sums.view(torch.int16).cpu().numpy().tobytes()))
            size, near_by = a.double().abs().sum(1), 2**-8 if dtype is torch.bfloat16 else 2**-11
            wanted = a.double().sum(1)
            assert bool(((sums - wanted).abs() <= near_by * wanted.abs() + 1e-5 * size).all())
            assert int((~around.isnan()).sum()) == M, "wrote outside the sums"
            product, of_size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
            assert bool(((c - product).abs() <= near_by * product.abs() + 1e-5 * of_size).all())
        assert len(bits) == 3, "two calls with the same operands differ"


def test_the_second_launch_adds_what_tiles_of_a_row_have():
    """Of a C with fewer tiles in a row than parts, the others hold nothing."""
    above, b, c = (
        torch.empty(*size, dtype=torch.bfloat16, device="meta")
        for size in ((4096, 96), (4096, 200), (96, 200))
    )
    a = above.mT
    total = torch.empty(96, dtype=torch.bfloat16, device="meta")
    for fusion, parts in ((Fusion(c=total, aux="sums"), 2), (None, 0)):
        _, args, constants = gluon_launch.arguments(a, b, c, fusion, **SUMMING[1])
        step = gluon_launch.second(a, b, c, args, SUMMING[1])
        assert ("sums" if parts else "") == constants["CONFIG"].AUX
        assert not constants["CONFIG"].FUSED
        if not parts:
            assert step is None
            continue
        sums, into, N, count, _ = step[2]
        assert (list(sums.shape), into is total, N, count) == ([64, 96], True, 96, parts)
        wide = torch.empty(96, 65 * 128, dtype=torch.bfloat16, device="meta")
        assert gluon_launch.second(a, b, wide, args, SUMMING[1])[2][3] == 64


def test_who_refuses_the_sums_says_why():
    asked = Problem.stored(
        3072, 768, 8192, "bfloat16", "bfloat16", "tn", capability=(9, 0), aux="sums"
    )
    row = dispatch.find("triton", "warp_specialized")
    assert row.why_not(asked) is None
    assert asked.fused == ("row_sums",)
    for changed, sentence in (
        ({"dtype_out": "float32"}, "a sum of rows needs one dtype of 16 bits"),
        ({"alpha": 0.5}, "plain product of matrices, not with alpha"),
        ({"batch": 3}, "plain product of matrices, not with batch"),
        ({"c_strides": (1, 3072)}, "C is column-major"),
        ({"a_strides": (8192, 1)}, "A is not stored transposed"),
    ):
        assert sentence in row.why_not(replace(asked, **changed))
    assert "row_sums" in dispatch.find("cuda", "wgmma_persistent").why_not(asked)


def backward_of(call, x, *parameters):
    """The operators of a backward pass, as AOTAutograd has them, and the gradients."""
    names = []

    def keep(graph, _):
        names.append([str(node.target) for node in graph.graph.nodes])
        return graph

    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=keep)
    y = torch.compile(call, fullgraph=True, backend=backend)(x)
    above = torch.randn_like(y)
    found = torch.autograd.grad(y, parameters, above)
    return names[0], found, torch.autograd.grad(call(x), parameters, above)


@pytest.mark.parametrize("rows", [(24,), (2, 12)])
def test_a_compiled_layer_has_one_operator_for_both_gradients(has_sums, rows):
    layer = tcgemm.nn.Linear(40, 24, dtype=torch.bfloat16, device=DEVICE, backend=BACKEND)
    x = torch.randn(*rows, 40, device=DEVICE).bfloat16()
    names, mine, theirs = backward_of(layer, x, layer.weight, layer.bias)
    assert names.count("tcgemm.gemm_with_sums.default") == 1
    assert not [name for name in names if "sum.dim" in name]
    near(mine, theirs, 0.03)
    for wanted, other in ((layer.weight, layer.bias), (layer.bias, layer.weight)):
        torch._dynamo.reset()
        wanted.requires_grad_(True)
        other.requires_grad_(False)
        names, mine, theirs = backward_of(layer, x, wanted)
        assert "tcgemm.gemm_with_sums.default" not in names
        near(mine, theirs, 0.03)


@pytest.mark.parametrize(
    ("dtype", "how"), [(torch.float32, {}), (torch.bfloat16, {"out_dtype": torch.float32})]
)
def test_other_layers_sum_by_themselves(has_sums, dtype, how):
    x, w = (torch.randn(24, 24, device=DEVICE).to(dtype).requires_grad_() for _ in range(2))
    bias = torch.randn(24, device=DEVICE).to(how.get("out_dtype", dtype)).requires_grad_()

    def call(x):
        return tcgemm.linear(x, w, bias, backend=BACKEND, **how)

    names, mine, theirs = backward_of(call, x, w, bias)
    assert "tcgemm.gemm_with_sums.default" not in names
    near(mine, theirs, 0.03)


@pytest.mark.parametrize("asked", [{"alpha": 0.5}, {"rows": True}])
def test_no_scaled_product_has_it_and_no_weight_that_lies_by_rows(has_sums, asked):
    x, w = (torch.randn(24, 24, device=DEVICE).bfloat16().requires_grad_() for _ in range(2))
    bias = torch.randn(24, device=DEVICE).bfloat16().requires_grad_()

    def call(x):
        b = w if asked.get("rows") else w.mT
        return tcgemm.gemm(x, b, alpha=asked.get("alpha", 1.0), bias=bias, backend=BACKEND)

    names, mine, theirs = backward_of(call, x, w, bias)
    assert "tcgemm.gemm_with_sums.default" not in names
    near(mine, theirs, 0.03)


def test_an_mlp_has_it_for_both_of_its_layers(has_sums, monkeypatch):
    from tcgemm.ops import mlp_traced

    monkeypatch.setattr(mlp_traced, "_has_aux", lambda backend: backend == BACKEND)
    x = torch.randn(24, 16, device=DEVICE).bfloat16()
    up, down = (torch.randn(*size, device=DEVICE).bfloat16() for size in ((32, 16), (16, 32)))
    biases = [torch.randn(size, device=DEVICE).bfloat16() for size in (32, 16)]
    given = [t.requires_grad_() for t in (up, biases[0], down, biases[1])]

    def call(x):
        return tcgemm.mlp(x, *given, "gelu_tanh", backend=BACKEND)

    names, mine, theirs = backward_of(call, x, *given)
    assert names.count("tcgemm.gemm_with_sums.default") == 2
    assert not [name for name in names if "sum.dim" in name]
    near(mine, theirs, 0.04)


@pytest.mark.parametrize("kernel", ["there", "missing"])
def test_inductor_s_program_has_both_in_one_buffer(has_sums, monkeypatch, kernel):
    from torch._inductor.utils import run_and_get_code

    ran = []

    def start_with_aux(launch, aux, epilogue, a, b, bias, sums, out):
        def run(a, b, out, sums, *none):
            ran.append(aux)
            out.copy_(a @ b)
            sums.copy_(a.float().sum(1))

        launch.with_aux[aux, epilogue] = run
        return run

    if kernel == "there":
        monkeypatch.setattr(Launch, "start_with_aux", start_with_aux)
    layer = tcgemm.nn.Linear(40, 72, dtype=torch.bfloat16, device=DEVICE, backend=BACKEND)
    program = torch.compile(layer, fullgraph=True, dynamic=True)

    def gradients(call, x, above):
        return torch.autograd.grad(call(x), (layer.weight, layer.bias), above)

    for rows in (24, 17, 131):
        x, above = (torch.randn(rows, size, device=DEVICE).bfloat16() for size in (40, 72))
        mine, codes = run_and_get_code(lambda x=x, above=above: gradients(program, x, above))
        text = "".join(codes)
        if rows == 24:
            assert text.count(f"{compiled_ops.__name__}.with_sums(") == 1
            assert ".default(" not in text
        near(mine, gradients(layer, x, above), 0.03)
        assert mine[0].is_contiguous()
        by_address = mine[1].data_ptr() - mine[0].data_ptr()
        assert by_address == -(-40 * 72 // lowering.ALIGNED) * lowering.ALIGNED * 2
    assert ran == ([] if kernel == "missing" else ["sums"] * 3)


def test_the_operator_is_torch_s_own():
    a, b = (torch.randn(*size, device=DEVICE).bfloat16() for size in ((40, 24), (24, 72)))
    asked = {"backend": BACKEND}
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(row_sums.gemm_with_sums, (a, b), asked, test_utils=tests)
    register_late()
    with FlopCounterMode(display=False) as counter:
        row_sums.gemm_with_sums(a, b, **asked)
        out = torch.empty(40 * 72 + 40, device=DEVICE, dtype=torch.bfloat16)
        compiled_ops.with_sums(a, b, "", BACKEND, out=out)
    assert counter.get_total_flops() == 2 * 2 * 40 * 72 * 24
    near([out[:-40].view(40, 72), out[-40:]], [a @ b, a.float().sum(1).bfloat16()], 0.03)


def test_a_traced_step_runs_with_gradients_and_keeps_tangents(has_sums):
    from torch.autograd import forward_ad
    from torch.fx.experimental.proxy_tensor import make_fx

    w, bias = (torch.randn(*size, device=DEVICE).bfloat16() for size in ((40, 24), (40,)))
    x, above = (torch.randn(16, size, device=DEVICE).bfloat16() for size in (24, 40))
    given = [t.requires_grad_() for t in (w, bias)]

    def step(w, bias, x, above):
        return torch.autograd.grad(tcgemm.linear(x, w, bias, backend=BACKEND), (w, bias), above)

    graph = make_fx(step, tracing_mode="fake")(*given, x, above)
    assert "gemm_with_sums" in graph.code
    theirs = step(*given, x, above)
    near(graph(*given, x, above), theirs, 0.03)
    again = torch.autograd.grad(graph(*given, x, above.requires_grad_())[0].sum(), above)[0]
    near([again], [x.detach().sum(1)[:, None].expand(16, 40)], 0.05)
    with forward_ad.dual_level(), torch.no_grad():
        a = forward_ad.make_dual(above.detach().mT.contiguous(), torch.ones(40, 16).bfloat16())
        both = row_sums.gemm_with_sums(a, x, backend=BACKEND)
        assert all(forward_ad.unpack_dual(t).tangent is not None for t in both)


@pytest.mark.parametrize("backend", [BACKEND, "triton"])
@pytest.mark.parametrize(("M", "K", "N"), [(40, 0, 72), (0, 24, 72), (40, 24, 0), (40, 24, 72)])
def test_a_size_of_0_leaves_sums_of_nothing(backend, M, K, N):
    a, b = (torch.randn(*size, device=DEVICE).bfloat16() for size in ((K, M), (K, N)))
    product, sums = row_sums.gemm_with_sums(a.mT, b, backend=backend)
    assert (product.shape, sums.shape) == ((M, N), (M,))
    for mine, theirs in ((product, a.mT @ b), (sums, a.float().sum(0).bfloat16())):
        torch.testing.assert_close(mine, theirs, atol=0.2, rtol=0.03)


def test_a_backend_has_the_operator_where_its_kernel_runs():
    assert row_sums._on("triton", (9, 0))
    for backend, capability in (("triton", (8, 0)), ("triton", (10, 0)), ("cuda", (9, 0))):
        assert not row_sums._on(backend, capability)
    assert not row_sums._on(dispatch.AUTO, (9, 0))
    assert not row_sums._has_sums("triton", torch.device("cpu"))
