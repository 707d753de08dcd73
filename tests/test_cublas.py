"""The baseline under gemm's contract: on a CPU its stand-in, and what it refuses on a GPU."""

from __future__ import annotations

import math
import re
import threading
import time

import pytest
import torch

import tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.cublas import _mode
from tcgemm.problem import COMPUTES, EPILOGUES, OUTPUTS, Fusion, Problem

CUDA = torch.cuda.is_available()
NAME = "cublas" if CUDA else "torch_cpu"
PAIRS = [
    (dtype, out, compute)
    for dtype, outs in OUTPUTS.items()
    for out in outs
    for compute in COMPUTES[dtype]
]


def run_or_skip(problem):
    reason = dispatch.find("cublas", NAME).why_not(problem)
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_both_checks_of_every_pair(pair, layout, device):
    dtype, out, compute = pair
    fusion = Fusion(compute=compute)

    def run(a, b, c):
        problem = dispatch.problem_of(a, b, c, fusion)
        run_or_skip(problem)
        extra = {} if problem.plain else {"fusion": fusion}
        dispatch.load("cublas", NAME)(a, b, c, **extra)

    verdict = accuracy.check(run, 48, 64, 80, dtype, out, layout, device, 3, compute)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("epilogue", ["", *EPILOGUES])
@pytest.mark.parametrize("dtypes", [("float16", "float16"), ("bfloat16", "float32")])
def test_everything_fused_at_once(dtypes, epilogue, batch, device):
    dtype, out = (getattr(torch, name) for name in dtypes)
    a, b = (torch.randn(*batch, 48, 48, device=device, dtype=dtype) for _ in range(2))
    c = torch.randn(*batch, 48, 48, device=device, dtype=out)
    bias = torch.randn(48, device=device, dtype=out)
    before = c.clone()
    tcgemm.gemm(
        a, b, c, alpha=-0.7, beta=0.3, bias=bias, epilogue=epilogue or None, out=c,
        backend="cublas",
    )  # fmt: skip
    fusion = Fusion(alpha=-0.7, beta=0.3, c=before, bias=bias, epilogue=epilogue)
    assert accuracy.error_ratio(a, b, c, fusion) <= 1


@pytest.mark.parametrize("one", ["", "bias", "beta", "alpha", "relu"])
def test_what_a_single_call_does(one, device):
    """addmm, and mm followed by relu: the shortest ways."""
    a, b, c = (torch.randn(48, 48, device=device, dtype=torch.float16) for _ in range(3))
    asked = {
        "": {},
        "bias": {"bias": c[0].clone()},
        "beta": {"beta": -1.5, "c": c},
        "alpha": {"alpha": 0.3},
        "relu": {"epilogue": "relu"},
    }[one]
    got = tcgemm.gemm(a, b, backend="cublas", **asked)
    assert accuracy.error_ratio(a, b, got, Fusion(**asked)) <= 1


def test_scales_of_8_bit_floats(device):
    a = torch.randn(48, 48, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(48, 48, device=device).to(torch.float8_e4m3fn).mT
    for scale_a, scale_b in ((1, 1), (48, 1), (1, 48)):
        scales = {
            "scale_a": torch.rand(scale_a, device=device) + 0.5,
            "scale_b": torch.rand(scale_b, device=device) + 0.5,
        }
        got = tcgemm.gemm(a, b, backend="cublas", **scales)
        assert accuracy.error_ratio(a, b, got, Fusion(**scales)) <= 1


def test_integers_wrap_before_relu(device):
    a = torch.full((32, 2**17 + 1552), 127, dtype=torch.int8, device=device)
    c = tcgemm.gemm(a, a.mT, alpha=2.0, epilogue="relu", backend="cublas")
    exact = 2 * (2**17 + 1552) * 127**2
    wrapped = (exact + 2**31) % 2**32 - 2**31
    assert exact >= 2**31
    assert bool((c == max(wrapped, 0)).all())


def test_nan_in_c_is_not_read(device):
    a = torch.ones(48, 48, device=device)
    out = torch.full((48, 48), math.nan, device=device)
    tcgemm.gemm(a, a, alpha=2.0, out=out, compute="ieee", backend="cublas")
    assert bool((out == 96).all())


@pytest.mark.parametrize("before", [("highest", False), ("high", True)])
@pytest.mark.parametrize("compute", ["tf32", "ieee", "float16", "float32"])
def test_global_settings_are_those_of_the_call_and_come_back(compute, before):
    flags = torch.backends.cuda.matmul
    here = torch.get_float32_matmul_precision(), flags.allow_fp16_accumulation

    def settings():
        return torch.get_float32_matmul_precision(), flags.allow_fp16_accumulation

    def fails_inside():
        with _mode(compute):
            wanted = "high" if compute == "tf32" else "highest"
            assert settings() == (wanted, compute == "float16")
            raise ZeroDivisionError

    def set_to(precision, halves):
        torch.set_float32_matmul_precision(precision)
        flags.allow_fp16_accumulation = halves

    set_to(*before)
    try:
        with pytest.raises(ZeroDivisionError):
            fails_inside()
        assert settings() == before
    finally:
        set_to(*here)


def test_two_threads_do_not_see_each_others_settings():
    seen = []

    def ask(compute):
        for _ in range(50):
            with _mode(compute):
                time.sleep(0)
                seen.append((compute, torch.backends.cuda.matmul.allow_fp16_accumulation))

    threads = [threading.Thread(target=ask, args=(x,)) for x in ("float16", "float32")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 100
    assert all(halves == (compute == "float16") for compute, halves in seen)


INT8 = {"dtype_in": "int8", "dtype_out": "int32"}
FLOAT8 = {"dtype_in": "float8_e4m3fn", "dtype_out": "bfloat16"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({**INT8, "M": 16}, "M is 16 and torch._int_mm needs more than 16 rows"),
        ({**INT8, "K": 100}, "K is 100 .* multiple of 8: pad it to 104"),
        ({**INT8, "N": 129}, "N is 129 .* multiple of 8: pad it to 136"),
        ({**INT8, "a_alignment": 4}, r"A starts at .* multiple of 4 bytes only.*A\.clone"),
        ({**INT8, "b_strides": (2, 256)}, r"B has strides \(2, 256\).*B\.contiguous"),
        ({**FLOAT8, "K": 120}, "K is 120 and torch._scaled_mm needs a multiple of 16"),
        ({**FLOAT8, "b_strides": (128, 1)}, "the layout is nn and torch._scaled_mm takes nt"),
        ({**FLOAT8, "capability": (8, 0)}, r"compute capability 8\.9 and this GPU has 8\.0"),
        ({"dtype_in": "uint8", "dtype_out": "int32"}, "none of its type pairs"),
        ({"dtype_in": "float8_e5m2"}, "none of its type pairs"),
    ],
)
def test_refusals(change, sentence):
    problem = Problem(
        **{
            "M": 128, "N": 128, "K": 128, "dtype_in": "float16", "dtype_out": "bfloat16",
            "a_strides": (128, 1), "b_strides": (1, 128), "c_strides": (128, 1),
            "capability": (9, 0), **change,
        }
    )  # fmt: skip
    reason = dispatch.find("cublas", "cublas").why_not(problem)
    assert reason is not None
    assert re.search(sentence, reason), reason


@pytest.mark.parametrize("operand", ["A", "B"])
@pytest.mark.parametrize("strides", [(0, 1), (3, 1), (1, 0), (1, 3)])
def test_cublas_best_refuses_lines_that_overlap(operand, strides):
    row = dispatch.find("cublas", "cublas_best")
    made = dict.fromkeys(("a_strides", "b_strides", "c_strides"), (40, 1))
    made[f"{operand.lower()}_strides"] = strides
    made |= {"device": "cuda", "capability": (9, 0)}
    apart = strides[0] if strides[1] == 1 else strides[1]
    reason = row.why_not(Problem(40, 40, 40, "float16", "float16", **made)) or "it takes it"
    assert f"{operand} lies in lines of 40 elements that start {apart} apart" in reason
    assert row.why_not(Problem(1, 1, 1, "float16", "float16", **made)) is None
