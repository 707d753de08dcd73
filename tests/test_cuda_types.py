"""The rungs that take every type and all that can be fused, on the CPU and through the compiler."""

from __future__ import annotations

import itertools
from functools import cache
from importlib import import_module
from types import SimpleNamespace

import pytest
import records
import torch
from tcgemm.cuda_ref import fusion as numbers
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.shapes import wmma_types as limits

from tcgemm import accuracy, cuda_ref, dispatch
from tcgemm.problem import COMPUTES, Fusion

simulator = import_module("tcgemm.cuda_ref.simulator")

NAMES = ("naive", "wmma_any", "wmma_types")
ROWS = {name: dispatch.find("cuda", name) for name in NAMES}
CASES = [
    pytest.param(name, (*pair, *COMPUTES[pair[0]][:1])[:3], id="-".join((name, *pair)))
    for name in NAMES
    for pair in ROWS[name].pairs
]
SHAPED = [
    pytest.param((*pair, *COMPUTES[pair[0]][:1])[:3], shape, id="-".join((*pair, shape)))
    for pair in ROWS["wmma_types"].pairs
    for shape in limits.wmma_shapes(pair[0])
]
INTEGERS = ("int8", "uint8")


def ask(compute, **more):
    """What is asked, as dispatch says it."""
    return Fusion(compute=compute, **more)


def normal(dtype, *shape, seed=0, transposed=False):
    if transposed:
        shape = (*shape[:-2], shape[-1], shape[-2])
    generator = torch.Generator().manual_seed(seed)
    if dtype in INTEGERS:
        low, high = (-128, 128) if dtype == "int8" else (0, 256)
        values = torch.randint(low, high, shape, generator=generator)
    else:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
    values = values.to(accuracy.as_dtype(dtype))
    return values.mT if transposed else values


def wrapped(exact):
    """int64 modulo 2^32."""
    return exact.to(torch.int32)


def judge(a, b, c, fusion):
    if c.dtype == torch.int32:
        exact = int(fusion.alpha) * (a.long() @ b.long())
        if fusion.c is not None:
            exact += int(fusion.beta) * fusion.c.long()
        if fusion.bias is not None:
            exact += fusion.bias.long()
        value = wrapped(exact)
        assert torch.equal(c, value.clamp(min=0) if fusion.epilogue else value)
    else:
        assert accuracy.error_ratio(a, b, c, fusion) <= 1


def run(name, a, b, dtype_out, fusion, c=None):
    if c is None:
        shape = (*a.shape[:-1], b.shape[-1])
        c = accuracy.poisoned(shape, accuracy.as_dtype(dtype_out), "cpu")
    cuda_ref.load(name)(a, b, c, fusion)
    return c


@pytest.mark.spread(3, "case")
@pytest.mark.parametrize(("name", "case"), CASES)
def test_both_checks_at_the_edges(name, case):
    dtype_in, dtype_out, compute = case
    for turn, (M, N, K) in enumerate(((1, 1, 1), (17, 33, 31), (129, 65, 9), (33, 130, 67))):
        layout = ("nn", "nt", "tn", "tt")[turn]
        verdict = accuracy.check(
            lambda a, b, c: run(name, a, b, dtype_out, ask(compute), c),
            M, N, K, dtype_in, dtype_out, layout, compute=compute,
        )  # fmt: skip
        assert verdict.ok, (M, N, K, layout, verdict.reason)


@pytest.mark.spread(8, "case", at=2)
@pytest.mark.parametrize(("case", "shape"), SHAPED)
def test_every_wmma_shape_layout_and_storage_of_c(case, shape):
    dtype_in, dtype_out, compute = case
    fusion = ask(compute, mma_shape=shape)
    for a_t, b_t, c_t in itertools.product((False, True), repeat=3):
        a = normal(dtype_in, 37, 40, transposed=a_t)
        b = normal(dtype_in, 40, 70, seed=1, transposed=b_t)
        c = torch.empty((70, 37) if c_t else (37, 70), dtype=accuracy.as_dtype(dtype_out))
        judge(a, b, run("wmma_types", a, b, dtype_out, fusion, c.mT if c_t else c), fusion)


@pytest.mark.spread(3, "case")
@pytest.mark.parametrize(("name", "case"), CASES)
def test_everything_fused_over_a_batch(name, case):
    dtype_in, dtype_out, compute = case
    batch, M, N, K = 3, 19, 37, 21
    epilogues = ("", "relu") if dtype_out == "int32" else ("relu", "gelu", "gelu_tanh", "silu")
    for turn, epilogue in enumerate(epilogues):
        # A is shared by the batch, or B is; C_in is column-major in every second turn.
        a = normal(dtype_in, batch, M, K)
        b = normal(dtype_in, batch, K, N, seed=1, transposed=True)
        a, b = (a[:1].expand(batch, M, K), b) if turn % 2 else (a, b[:1].expand(batch, K, N))
        c = normal("int8" if dtype_out == "int32" else dtype_out, batch, M, N, seed=2)
        c = c.to(accuracy.as_dtype(dtype_out))
        c = c.mT.contiguous().mT if turn % 2 else c
        fusion = ask(
            compute,
            alpha=-2.0 if dtype_out == "int32" else 0.5,
            beta=3.0,
            c=c,
            bias=c[0, 0].clone(),
            epilogue=epilogue,
        )
        judge(a, b, run(name, a, b, dtype_out, fusion), fusion)


@pytest.mark.parametrize("c_t", [False, True])
@pytest.mark.parametrize("scales", ["tensor", "row", "mixed"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_scales(dtype, scales, c_t):
    a, b = normal(dtype, 20, 30), normal(dtype, 30, 25, seed=1)
    scale_a = torch.rand(20 if scales != "tensor" else 1) + 0.5
    scale_b = torch.rand(25 if scales == "row" else 1) + 0.5
    fusion = ask("float32", scale_a=scale_a, scale_b=scale_b, alpha=2.0)
    c = torch.empty((25, 20) if c_t else (20, 25))
    judge(a, b, run("naive", a, b, "float32", fusion, c.mT if c_t else c), fusion)


@pytest.mark.spread(14, "case", "check", at=7)
@pytest.mark.parametrize("check", ["forward", "reverse", "random:7"])
@pytest.mark.parametrize(("case", "shape"), SHAPED)
def test_nothing_is_found_in_any_order(case, shape, check):
    dtype_in, dtype_out, compute = case
    a = normal(dtype_in, 2, 40, 70, transposed=check == "reverse")
    b = normal(dtype_in, 2, 70, 33, seed=1, transposed=check == "forward")
    c = accuracy.poisoned((2, 40, 33), accuracy.as_dtype(dtype_out), "cpu")
    c_in = torch.ones(2, 40, 33).to(c.dtype)
    fusion = ask(compute, beta=1.0, c=c_in, bias=c_in[0, 0], epilogue="relu", mma_shape=shape)
    source = simulator.source_of("wmma_types")
    report = simulator.simulate(source, a, b, c, fusion=fusion, order=check, check=True)
    assert not report.findings, [str(finding) for finding in report.findings]
    judge(a, b, c, fusion)


@pytest.mark.spread(2, "name", "dtype")
@pytest.mark.parametrize("name", ["naive", "wmma_types"])
@pytest.mark.parametrize(("dtype", "value"), [("int8", -128), ("uint8", 255)])
def test_integers_wrap_at_2_to_the_31(name, dtype, value):
    K = 2**31 // value**2 + 1
    a = torch.full((2, K), value, dtype=accuracy.as_dtype(dtype))
    b = torch.full((K, 3), value, dtype=accuracy.as_dtype(dtype))
    c = run(name, a, b, "int32", ask("int32"))
    assert c[0, 0] == K * value**2 - 2**32 < 0
    c_in = torch.full((2, 3), 2**31 - 1, dtype=torch.int32)
    fusion = ask("int32", alpha=-3.0, beta=5.0, c=c_in, bias=c_in[0])
    judge(a, b, run(name, a, b, "int32", fusion), fusion)


FLOATS = [case for case in CASES if case.values[1][1] != "int32"]


@pytest.mark.spread(3, "case")
@pytest.mark.parametrize(("name", "case"), FLOATS)
def test_special_values(name, case):
    dtype_in, dtype_out, compute = case
    dtype = accuracy.as_dtype(dtype_in)
    a = normal(dtype_in, 20, 24).double()
    b = normal(dtype_in, 24, 18, seed=1).double()
    a[3, 5] = float("nan")
    if dtype_in != "float8_e4m3fn":
        a[7, 2], b[2, 4] = float("inf"), 0.0
    expected = a @ b
    c = run(name, a.to(dtype), b.to(dtype), dtype_out, ask(compute))
    assert torch.equal(c.isnan(), expected.isnan())
    assert torch.equal(c.isinf(), expected.isinf())
    assert torch.equal(c[c.isinf()].double(), expected[expected.isinf()])


@pytest.mark.parametrize("name", NAMES)
def test_relu_keeps_nan_and_beta_0_never_reads_c(name):
    a, b = normal("float16", 18, 20), normal("float16", 20, 17, seed=1)
    a[2, 2] = float("nan")
    c = torch.full((18, 17), float("nan"), dtype=torch.float16)
    run(name, a, b, "float16", ask("float32", epilogue="relu"), c)
    assert c[2].isnan().all()
    assert not c[:2].isnan().any()
    assert not c[3:].isnan().any()


@pytest.mark.spread(3, "case")
@pytest.mark.parametrize(("name", "case"), CASES)
def test_in_place_in_a_window_of_odd_offset(name, case):
    dtype_in, dtype_out, compute = case
    a = normal(dtype_in, 24, 31)[1:23, 3:30]
    b = normal(dtype_in, 31, 41, seed=1)[1:28, ::2]
    buffer = torch.ones(30, 43).to(accuracy.as_dtype(dtype_out))
    before = buffer.clone()
    c = buffer[5:27, 1:43:2]
    fusion = ask(compute, beta=2.0, c=c, alpha=1.0)
    run(name, a, b, dtype_out, fusion, c)
    judge(a, b, c, SimpleNamespace(**{**vars_of(fusion), "c": before[5:27, 1:43:2]}))
    buffer[5:27, 1:43:2] = 1
    assert torch.equal(buffer, before)


def vars_of(fusion):
    return {name: getattr(fusion, name) for name in Fusion.__slots__}


def test_names_of_shapes_that_wmma_does_not_have_are_refused():
    a, b = normal("float32", 8, 8), normal("float32", 8, 8)
    problem = dispatch.problem_of(a, b, torch.empty(8, 8), Fusion(compute="tf32"))
    assert limits.refuse_wmma_types(problem) is None
    problem = dispatch.problem_of(
        a, b, torch.empty(8, 8), Fusion(compute="tf32", mma_shape="32x8x16")
    )
    assert "32x8x16 is none of WMMA's for float32: 16x16x8" in limits.refuse_wmma_types(problem)


@pytest.mark.parametrize(
    ("words", "more"),
    [("alpha=0.5 is no integer", {"alpha": 0.5}), ("no int32 result", {"epilogue": "gelu"})],
)
def test_integers_refuse_what_they_do_not_have(words, more):
    problem = SimpleNamespace(
        **{"dtype_in": "int8", "dtype_out": "int32", "mma_shape": "", "alpha": 1.0, "beta": 0.0,
           "epilogue": "", **more}
    )  # fmt: skip
    assert words in limits.refuse_wmma_types(problem)


needs_nvcc = pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)
BUILDS = {
    (pair[0], (*pair, *COMPUTES[pair[0]][:1])[2], square)
    for pair in ROWS["wmma_types"].pairs
    for square in {len(set(s.split("x")[:2])) == 1 for s in limits.wmma_shapes(pair[0])}
}
OPCODES = {"float64": "DMMA", "int8": "IMMA", "uint8": "IMMA"}


@cache
def compiled(dtype, compute, square):
    fusion = ask(compute, mma_shape="" if square else "32x8x16")
    defines = numbers.case(accuracy.as_dtype(dtype), fusion)
    return records.cuda("wmma_types", "sm_90a", defines)


@needs_nvcc
@pytest.mark.parametrize(("dtype", "compute", "square"), sorted(BUILDS))
def test_each_build_holds_its_case_and_spills_nothing(dtype, compute, square):
    report = compiled(dtype, compute, square)
    assert len(report.kernels) == (4 if square else 8)
    assert report.spill_bytes == 0
    assert report.registers * 2 * 128 <= 65536
    for kernel in report.kernels:
        assert kernel.sass[OPCODES.get(dtype, "HMMA")] > 0
        assert kernel.sass["LDGSTS"] > 0
        assert kernel.sass["LD"] == 0, "see fragment.cuh"


@needs_nvcc
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a"])
def test_naive_compiles_for_all_and_spills_nothing(target):
    assert records.cuda("naive", target).spill_bytes == 0


@pytest.mark.parametrize("K", [16, 512])
def test_tf32x3_errs_at_most_twice_as_much_as_float32(K):
    a, b = normal("float32", 64, K), normal("float32", K, 64, seed=1)
    exact = a.double() @ b.double()
    c = run("wmma_types", a, b, "float32", ask("tf32x3"))
    assert (c.double() - exact).norm() <= 2 * ((a @ b).double() - exact).norm()


def test_tf32x3_holds_the_largest_float32():
    largest = torch.finfo(torch.float32).max
    a, b = torch.full((1, 1), largest), torch.full((1, 1), 2.0**-10)
    c = run("wmma_types", a, b, "float32", ask("tf32x3"))
    assert c.item() == pytest.approx(largest / 1024, rel=2.0**-10)
