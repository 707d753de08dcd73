"""The pre-activation beside a product: stored with its activation, or read for the derivative."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from conftest import DEVICE
from test_derivative import ACTIVATIONS

from tcgemm import dispatch
from tcgemm.problem import EPILOGUES, Fusion, Problem

gluon_launch = import_module("tcgemm.triton_kernels.host.gluon_launch")
launching = import_module("tcgemm.triton_kernels.host.launching")

KERNELS = {"triton": "warp_specialized", "cuda": "wgmma_persistent"}
ROUNDED = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""How far a number may be from the truth, of its own size."""
PLACES = ("rows", "padded", "columns", "shifted")
SHAPES = [(72, 40, 24)]
if DEVICE == "cuda":
    SHAPES = [(1, 8, 1), (257, 136, 65), (1000, 1304, 200), (131, 129, 67), (8192, 3072, 768)]


def matrix(rows, columns, dtype, place="rows", fill=None):
    """(memory around it, a matrix in it): with its rows apart, by columns, or no TMA address."""
    if place == "columns":
        memory, inner = matrix(columns, rows, dtype, "rows", fill)
        return memory, inner.mT
    pitch = -(-columns // 8) * 8 + {"rows": 0, "padded": 16, "shifted": 3}[place]
    memory = torch.full((rows + 1, pitch + 8), torch.nan, device=DEVICE, dtype=dtype)
    first = 1 if place == "shifted" else 0
    inner = memory[:rows, first : first + columns]
    if fill is not None:
        inner.normal_().mul_(fill)
    return memory, inner


def operands(shape, dtype, aux, layout, z_place, c_place):
    """A, B, C, Z, bias, and the memory around C and Z; what is written holds NaN."""
    M, N, K = shape
    _, a = matrix(M, K, dtype, "rows" if layout[0] == "n" else "columns", 1.0)
    _, b = matrix(K, N, dtype, "rows" if layout[1] == "n" else "columns", K**-0.5)
    around_c, c = matrix(M, N, dtype, c_place)
    around_z, z = matrix(M, N, dtype, z_place, 2.0 if aux == "read" else None)
    bias = torch.randn(N, device=DEVICE).to(dtype) if aux == "write" else None
    return a, b, c, z, bias, around_c, around_z


def check(aux, epilogue, a, b, c, z, bias, around_c, around_z):
    near = ROUNDED[c.dtype]
    product, size = a.double() @ b.double(), a.double().abs() @ b.double().abs() + 1
    if aux == "write":
        exact = product + bias.double()
        assert bool(((z.double() - exact).abs() <= near * exact.abs() + 1e-5 * size).all())
        wanted = ACTIVATIONS[epilogue](exact)
        assert int((~around_z.isnan()).sum()) == z.numel(), "wrote outside Z"
    else:
        exact = z.double().requires_grad_()
        ACTIVATIONS[epilogue](exact).backward(product)
        wanted = exact.grad
    assert bool(((c.double() - wanted).abs() <= near * wanted.abs() + 1e-5 * size).all())
    assert int((~around_c.isnan()).sum()) == c.numel(), "wrote outside C"


def start_of(backend, epilogue, aux, tensors):
    """The kernel bound to such tensors; or why it does not take them."""
    a, b, c, z, bias, *_ = tensors
    fusion = Fusion(c=z, bias=bias, epilogue=epilogue, aux=aux)
    problem = dispatch.problem_of(a, b, c, fusion)
    row = dispatch.find(backend, KERNELS[backend])
    reason = row.why_not(problem)
    if reason is not None:
        return reason
    return dispatch.load(backend, row.name).bind(a, b, c, fusion, **row.plan(problem))


# In CUDA where Z is read as well: test_aux_cuda.py.
@pytest.mark.spread(7, "epilogue", "aux", "dtype", "backend", at=1)
@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("aux", ["write", "read"])
@pytest.mark.parametrize("backend", KERNELS)
def test_it_is_torch_s_in_float64_wherever_z_lies(backend, aux, epilogue, dtype):
    layout, ran = "nt" if aux == "write" else "nn", 0
    cases = [
        (shape, z_place, c_place)
        for shape in SHAPES
        for z_place in PLACES
        for c_place in ("rows", "columns")
        if shape[0] < 8192 or (z_place, c_place) == ("rows", "rows")
    ]
    reason = None
    for shape, z_place, c_place in cases if DEVICE == "cuda" else cases[::3]:
        calls = [operands(shape, dtype, aux, layout, z_place, c_place) for _ in range(3)]
        start = start_of(backend, epilogue, aux, calls[0])
        if isinstance(start, str):
            reason = start
            in_units = all(side % 8 == 0 for side in shape[:2])
            assert DEVICE == "cpu" or not in_units, reason
            continue
        for a, b, c, z, bias, *_ in calls:
            start(a, b, c, z, bias, None, None)
        for tensors in calls:
            check(aux, epilogue, *tensors)
        ran += 1
    if not ran:
        pytest.skip(reason)


def on_h200(aux, **changed):
    """A layer's product of 8192 tokens."""
    layout = "nt" if aux == "write" else "nn"
    problem = Problem.stored(
        8192, 3072, 768, "bfloat16", "bfloat16", layout, capability=(9, 0), epilogue="gelu_tanh",
        bias=aux == "write", aux=aux,
    )  # fmt: skip
    return replace(problem, **{"c_in_strides": (3072, 1), **changed})


def launch_of(aux, z, M=8192, N=3072):
    """The plan, and the arguments of the kernel, on the meta device."""
    row = dispatch.find("triton", "warp_specialized")
    plan = row.plan(on_h200(aux))
    a, b, c = (
        torch.empty(*size, dtype=torch.bfloat16, device="meta")
        for size in ((M, 768), (768, N), (M, N))
    )
    fusion = Fusion(c=z, epilogue="gelu_tanh", aux=aux)
    _, args, constants = gluon_launch.arguments(a, b, c, fusion, **plan)
    names = ["staged", "streamed", "pitch", "M", "N", "K", "batches", "c_in"]
    return plan, SimpleNamespace(**dict(zip(names, args[7:], strict=False))), constants["CONFIG"]


def test_z_passes_the_buffers_of_c_by_tma_where_it_reaches_it():
    by_rows = torch.empty(8192, 3072, dtype=torch.bfloat16, device="meta")
    by_columns = torch.empty(3072, 8192, dtype=torch.bfloat16, device="meta").mT
    plan, args, config = launch_of("read", by_rows)
    assert plan["BUFFERS"] == plan["SUBTILES"]
    assert "REST" not in plan
    assert (config.AUX, config.STAGED, args.c_in) == ("read", True, None)
    plan, args, config = launch_of("write", by_rows)
    assert plan["BUFFERS"] > 1, "Z and C of a subtile have a buffer each"
    assert (config.AUX, config.STAGED, args.staged) == ("write", False, None)
    assert list(args.c_in.shape) == [8192, 3072]
    for aux in ("read", "write"):
        _, args, config = launch_of(aux, by_columns)
        assert (config.STAGED, args.staged, args.c_in is by_columns) == (False, None, True)


@pytest.mark.parametrize("aux", ["write", "read"])
def test_only_one_dtype_of_16_bits_has_a_pre_activation(aux):
    row = dispatch.find("triton", "warp_specialized")
    assert row.why_not(on_h200(aux)) is None
    assert on_h200(aux).fused[-1] == {"write": "preactivation", "read": "derivative"}[aux]
    sentence = "A and B are bfloat16, C is float32, and a pre-activation needs one dtype of 16 bits"
    assert row.why_not(on_h200(aux, dtype_out="float32")) == sentence


def test_every_launch_is_told_what_z_is_for():
    told = []

    def arguments(a, b, c, fusion):
        told.append((fusion.aux, fusion.c))
        return (1,), (), {}

    a, *later = (torch.empty(8, 8, device=DEVICE) for _ in range(3))
    nothing = {(1,): lambda: None}
    start = launching.Rung(nothing, arguments).bind(a, a, a, Fusion(c=a, aux="write"))
    for z in later:
        start(a, a, a, z)
    assert [(aux, z.data_ptr()) for aux, z in told] == [("write", z.data_ptr()) for z in later]
