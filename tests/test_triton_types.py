"""All of gemm on the Triton rungs that take it: types, scaling, epilogues, batches."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import replace
from importlib import import_module

import pytest
import torch

import tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.errors import UnsupportedError
from tcgemm.problem import EPILOGUES, Fusion

triton = import_module("tcgemm.triton_kernels")
dtypes = import_module("tcgemm.triton_kernels.planning.dtypes")
tables = import_module("tcgemm.triton_kernels.planning.tables")

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
RUNGS = ("fused", "descriptor")
CASES = [(rung, pair) for rung in RUNGS for pair in dispatch.find("triton", rung).pairs]


def run_of(rung, pair, M, N, K, layout="nn", **fused):
    """(run, fusion or None): the rung with its own plan for a problem of this pair."""
    row = dispatch.find("triton", rung)
    fusion = Fusion(compute=pair[2] if len(pair) > 2 else dispatch.COMPUTES[pair[0]][0], **fused)

    def run(a, b, c):
        problem = dispatch.problem_of(a, b, c, fusion)
        assert row.why_not(problem) is None, row.why_not(problem)
        extra = {} if problem.plain else {"fusion": fusion}
        dispatch.load("triton", rung)(a, b, c, **extra, **row.plan(problem))

    return run, fusion


def name_of(case):
    return "-".join([case[0], *case[1]])


@pytest.mark.spread(3, "case", "layout")
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_both_checks_of_every_pair(case, layout, device):
    rung, pair = case
    M, N, K = (48, 64, 80) if rung == "descriptor" else (37, 41, 53)
    run, fusion = run_of(rung, pair, M, N, K)
    verdict = accuracy.check(run, M, N, K, pair[0], pair[1], layout, device, 3, fusion.compute)
    assert verdict.ok, verdict.reason


@pytest.mark.spread(2, "epilogue", "pair", "rung")
@pytest.mark.parametrize("epilogue", ["", *EPILOGUES])
@pytest.mark.parametrize("pair", [(F16, F16), (BF16, F32), (F32, F32), (torch.float64,) * 2])
@pytest.mark.parametrize("rung", RUNGS)
def test_everything_fused_at_once(rung, pair, epilogue, device):
    if pair[0] == torch.float64 and rung == "descriptor":
        pytest.skip("descriptor takes no float64")
    generator = torch.Generator(device).manual_seed(4)

    def normal(*shape, dtype=pair[0]):
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    a, b = normal(40, 48), normal(48, 72)
    c, bias = normal(40, 72, dtype=pair[1]), normal(144, dtype=pair[1])[::2]
    got = tcgemm.gemm(
        a, b, c, alpha=-0.7, beta=0.3, bias=bias, epilogue=epilogue or None, out_dtype=pair[1],
        backend="triton", kernel=rung,
    )  # fmt: skip
    fusion = Fusion(alpha=-0.7, beta=0.3, c=c, bias=bias, epilogue=epilogue, compute="")
    fusion = replace(fusion, compute=dispatch.COMPUTES[str(pair[0])[6:]][0])
    assert accuracy.error_ratio(a, b, got, fusion) <= 1


@pytest.mark.parametrize("scales", [(1, 1), (48, 80), (1, 80), (48, 1), (48, 0)])
@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("rung", RUNGS)
def test_scales_and_bias_of_a_c_stored_by_rows_or_columns(rung, column_major, scales, device):
    """descriptor computes a column-major C as its transpose: bias and scales change sides, and the
    strides of C_in their order."""
    a = torch.randn(48, 48, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(48, 80, device=device).to(torch.float8_e4m3fn)
    scale_a, scale_b = (torch.rand(n, device=device) + 0.5 if n else None for n in scales)
    bias = torch.randn(80, device=device, dtype=BF16)
    c = torch.randn(48, 80, device=device, dtype=BF16)
    out = torch.empty(80, 48, device=device, dtype=BF16).mT if column_major else None
    got = tcgemm.gemm(
        a, b, c, beta=2.0, bias=bias, scale_a=scale_a, scale_b=scale_b, epilogue="relu", out=out,
        backend="triton", kernel=rung,
    )  # fmt: skip
    fusion = Fusion(beta=2.0, c=c, bias=bias, scale_a=scale_a, scale_b=scale_b, epilogue="relu")
    assert accuracy.error_ratio(a, b, got, fusion) <= 1


@pytest.mark.parametrize("shared", ["", "a", "b"])
@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("rung", RUNGS)
def test_a_batch_is_one_launch(rung, layout, shared, device):
    def operand(rows, columns, letter, one):
        shape = (1 if one else 3, *((rows, columns) if letter == "n" else (columns, rows)))
        x = torch.randn(shape, device=device, dtype=F16).expand(3, -1, -1)
        return x if letter == "n" else x.mT

    a, b = operand(40, 48, layout[0], shared == "a"), operand(48, 56, layout[1], shared == "b")
    c = torch.full((3, 40, 56), math.nan, device=device, dtype=F32)
    row = dispatch.find("triton", rung)
    plan = dict(row.plan(dispatch.problem_of(a, b, c)))
    grid, *_ = triton.module_of(rung).arguments(a, b, c, **plan)
    tiles = -(-40 // plan["BLOCK_M"]) * -(-56 // plan["BLOCK_N"])
    assert grid == (3 * tiles if rung == "fused" else min(4, 3 * tiles),) or device == "cuda"
    dispatch.load("triton", rung)(a, b, c, **plan)
    for part in range(3):
        assert accuracy.error_ratio(a[part], b[part], c[part]) <= 1


@pytest.mark.parametrize("rung", RUNGS)
def test_c_in_place_and_never_read_where_beta_is_0(rung, device):
    a, b = (torch.randn(48, 48, device=device, dtype=F16) for _ in range(2))
    c = torch.randn(48, 48, device=device, dtype=F16)
    before = c.clone()
    tcgemm.gemm(a, b, c, beta=-2.0, out=c, backend="triton", kernel=rung)
    assert accuracy.error_ratio(a, b, c, Fusion(beta=-2.0, c=before)) <= 1
    c.fill_(math.nan)
    tcgemm.gemm(a, b, alpha=2.0, out=c, backend="triton", kernel=rung)
    assert accuracy.error_ratio(a, b, c, Fusion(alpha=2.0)) <= 1


@pytest.mark.parametrize("compute", ["tf32", "tf32x3", "ieee"])
@pytest.mark.parametrize("rung", RUNGS)
def test_nan_and_infinity_in_float32(rung, compute, device):
    if (rung, compute) == ("descriptor", "ieee"):
        pytest.skip("descriptor takes no ieee")
    a, b = torch.ones(48, 40, device=device), torch.ones(40, 48, device=device)
    # The NaN that a carry of its fraction would turn into a zero.
    a.view(torch.int32)[3, 39] = 0x7FFFFFFF
    a[5, 0] = math.inf
    c = tcgemm.gemm(a, b, compute=compute, backend="triton", kernel=rung)
    assert bool(c[3].isnan().all())
    assert bool((c[5] == math.inf).all())
    assert bool((c[[0, 1, 2, 4, *range(6, 48)]] == 40).all())


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("size", [48, 256])
@pytest.mark.parametrize("rung", RUNGS)
def test_tf32x3_makes_nan_only_where_the_product_is(rung, size, layout, device):
    """An infinity meets low halves of both signs, whose products must not reach the sum."""
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randn(size, size, generator=generator).to(device) for _ in range(2))
    b = b.mT if layout == "nt" else b
    a[5, 3], a[7, 1], a[9, 0] = math.inf, -math.inf, math.nan
    b[2, 4], b[3, 6] = math.inf, 0.0
    a[11, 3], a[11, 5], b[3, 8], b[5, 8] = math.inf, math.inf, 1.5, -2.5
    c = tcgemm.gemm(a, b, compute="tf32x3", backend="triton", kernel=rung).double()
    d = a.double() @ b.double()
    assert torch.equal(c.isnan(), d.isnan())
    assert torch.equal(c[d.isinf()], d[d.isinf()])
    assert bool(d[5, 6].isnan())  # inf times 0
    assert bool(d[11, 8].isnan())  # inf minus inf
    finite = d.isfinite()
    assert float((c - d)[finite].abs().max()) < 1e-4


@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize("rung", RUNGS)
def test_tf32_is_rounded_to_nearest(rung, size, device):
    """In registers, and at 256 in a copy beforehand: 1 + 2^-11 is a tie, which rounds away."""
    a = torch.zeros(size, 32, device=device)
    b = torch.zeros(32, size, device=device)
    a[:, 0] = 1 + 2.0**-11
    a[1, 0] = 1 + 2.0**-11 - 2.0**-23
    b[0] = -1 - 2.0**-11 - 2.0**-12
    c = tcgemm.gemm(a, b, compute="tf32", backend="triton", kernel=rung)
    assert float(c[0, 0]) == -((1 + 2.0**-10) ** 2)
    assert float(c[1, 7]) == -(1 + 2.0**-10)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_integers_wrap_at_two_to_the_31(dtype, device):
    largest = torch.iinfo(dtype).max
    a = torch.full((16, 2**17 + 1600), largest, dtype=dtype, device=device)[:, : 2**17 + 1555]
    b = torch.full((16, 2**17 + 1600), largest, dtype=dtype, device=device)[:, : 2**17 + 1555].mT
    c = tcgemm.gemm(a, b, alpha=3.0, backend="triton", kernel="fused")
    exact = 3 * (2**17 + 1555) * largest**2
    assert exact >= 2**31
    assert bool((c == (exact + 2**31) % 2**32 - 2**31).all())


@pytest.mark.parametrize("rung", RUNGS)
def test_factors_of_integers_wrap_too(rung, device):
    a = torch.ones(16, 32, dtype=torch.int8, device=device)
    c = torch.full((16, 16), 5, dtype=torch.int32, device=device)
    got = tcgemm.gemm(
        a, a[:, :16].mT.contiguous().mT[:, :16].new_ones(32, 16), c, alpha=2.0**32 + 1,
        beta=2.0**31, backend="triton", kernel=rung,
    )  # fmt: skip
    assert bool((got == 32 - 2**31).all())


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues_over_their_whole_range(epilogue, device):
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([0.0, 1e-30, -1e-30, 3e38, -3e38])])
    one = torch.ones(1, 16, device=device)
    got = tcgemm.gemm(
        x[:, None].to(device), one, epilogue=epilogue, compute="ieee", backend="triton"
    )[:, 0].cpu()
    function = tcgemm.epilogue.FUNCTIONS[epilogue]
    exact = function(x.double())
    error = (got.double() - exact).abs()
    assert bool((error <= 2.0**-22 * x.double().abs()).all()), float(error.max())
    special = torch.tensor([[math.inf], [-math.inf], [math.nan]], device=device)
    got = tcgemm.gemm(special, one, epilogue=epilogue, compute="ieee", backend="triton")[:, 0].cpu()
    wanted = function(special[:, 0].cpu().double())
    assert torch.equal(got.isnan(), wanted.isnan())
    assert got[0] == wanted[0]


@pytest.mark.parametrize("rung", RUNGS)
def test_special_values_of_8_bit_floats(rung, device):
    a = torch.ones(48, 48, device=device).to(torch.float8_e5m2)
    a.view(torch.uint8)[2, 5] = 0x7C  # infinity
    a.view(torch.uint8)[3, 6] = 0x7F
    a.view(torch.uint8)[4] = 1  # 2^-16, the least
    b = torch.ones(48, 48, device=device).to(torch.float8_e5m2)
    c = tcgemm.gemm(a, b, out_dtype=F32, backend="triton", kernel=rung)
    assert bool((c[2] == math.inf).all())
    assert bool(c[3].isnan().all())
    assert bool((c[4] == 48 * 2.0**-16).all())
    a = torch.ones(48, 48, device=device).to(torch.float8_e4m3fn)
    a.view(torch.uint8)[3, 6] = 0xFF
    a.view(torch.uint8)[4] = 1  # 2^-9, the least
    b = torch.ones(48, 48, device=device).to(torch.float8_e4m3fn)
    c = tcgemm.gemm(a, b, out_dtype=F32, backend="triton", kernel=rung)
    assert bool(c[3].isnan().all())
    assert int(c.isnan().sum()) == 48
    assert bool((c[4] == 48 * 2.0**-9).all())


def copied(repack, a, b):
    """A and B as the kernel reads them; the launches that copy them have run."""
    room = torch.empty(repack.room(a, b), dtype=torch.uint8, device=a.device)
    a, b, steps = repack.steps(a, b, room)
    for kernel, grid, args, constants in steps:
        kernel[grid](*args, **constants)
    return a, b


def test_operands_are_copied_only_where_they_must_be_and_that_is_logged(caplog, device):
    repack = import_module("tcgemm.triton_kernels.host.repack").Repack("int32")
    a = torch.randint(-8, 8, (16, 33), dtype=torch.int8, device=device)
    b = torch.randint(-8, 8, (33, 24), dtype=torch.int8, device=device)
    with caplog.at_level(logging.INFO, "tcgemm.triton_kernels.host.repack"):
        a_ready, b_ready = copied(repack, a, b)
    assert a_ready is a
    assert torch.equal(b_ready, b)
    assert b_ready.stride() == (1, 48)
    assert [record.getMessage() for record in caplog.records] == [
        "B: 792 bytes copied, for rows of K"
    ]
    shared = b.expand(5, 33, 24)
    assert copied(repack, a.expand(5, 16, 33), shared)[1].stride(0) == 0


def problem(**change):
    from tcgemm.problem import Problem

    fields = {
        "M": 128, "N": 128, "K": 128, "dtype_in": "bfloat16", "dtype_out": "bfloat16",
        "a_strides": (128, 1), "b_strides": (1, 128), "c_strides": (128, 1),
        "capability": (9, 0),
    }  # fmt: skip
    return Problem(**{**fields, **change})


@pytest.mark.parametrize(
    ("rung", "change", "sentence"),
    [
        ("descriptor", {"N": 129, "c_strides": (136, 1)}, r"rows of 129 elements, 258 bytes"),
        ("descriptor", {"M": 125, "c_strides": (1, 128)}, r"rows of 125 elements, 250 bytes"),
        (
            "descriptor",
            {"batch": 2, "batch_strides": (16385, 0, 16384)},
            r"A has a batch stride of 16385 elements, 32770 bytes.* 16392",
        ),
        (
            "fused",
            {"dtype_in": "float8_e5m2", "capability": (8, 6)},
            r"needs compute capability 8\.9 and this GPU has 8\.6",
        ),
        ("descriptor", {"dtype_in": "uint8", "dtype_out": "int32"}, "none of its type pairs"),
        ("persistent", {"epilogue": "gelu"}, "it fuses nothing, and not gelu"),
    ],
)
def test_refusals(rung, change, sentence):
    reason = dispatch.find("triton", rung).why_not(problem(**change))
    assert reason is not None
    assert re.search(sentence, reason), reason


def test_every_pair_has_rows_in_every_architecture():
    for name, rungs in (("sm90", RUNGS), ("sm80", ("fused",))):
        for rung in rungs:
            for pair in dispatch.find("triton", rung).pairs:
                kind = dtypes.kind(pair[0], (*pair, dispatch.COMPUTES[pair[0]][0])[2])
                if kind:
                    assert not tables.shipped()[name]["types"][kind][rung][-1].get("when")


def test_a_rung_without_the_type_names_one_that_has_it():
    a = torch.ones(16, 16, dtype=torch.uint8)
    with pytest.raises(UnsupportedError, match=r"kernels of triton that take it: fused"):
        tcgemm.gemm(a, a, backend="triton", kernel="descriptor")


@pytest.mark.parametrize("asked", [{"compute": "tf32"}, {"epilogue": "relu"}], ids=str)
def test_what_pipelined_took_before_names_the_rung_that_takes_it_now(asked):
    dtype = F32 if "compute" in asked else F16
    a = torch.ones(16, 16, dtype=dtype)
    with pytest.raises(UnsupportedError, match=r"kernels of triton that take it: fused"):
        tcgemm.gemm(a, a, backend="triton", kernel="pipelined", **asked)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_float32_is_the_sum_of_two_terms_in_tf32(layout):
    terms = import_module("tcgemm.triton_kernels.host.repack").Repack("tf32x3", terms=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = torch.randn(33, 70, device=device), torch.randn(70, 20, device=device)
    a[3, 5], a[4, 6] = math.inf, math.nan
    a = a if layout[0] == "n" else a.mT.contiguous().mT
    b = b if layout[1] == "n" else b.mT.contiguous().mT
    for whole, parts in zip((a, b), copied(terms, a, b), strict=True):
        assert parts.shape == (2, *whole.shape)
        along_k = 2 if whole is a else 1
        assert parts.stride(along_k) == 1, "K is contiguous"
        finite = whole.isfinite()
        bits = parts.view(torch.int32) if parts.is_contiguous() else parts.clone().view(torch.int32)
        assert not (bits & 0x1FFF)[:, finite].any(), "the lower 13 bits are zero"
        both = parts.double().sum(0)
        off = (both - whole.double()).abs()[finite] / whole.double().abs()[finite]
        assert off.max() <= 2.0**-21
        assert (parts[0].abs() == 1)[~finite].all()
        torch.testing.assert_close(parts[1][~finite], whole[~finite], equal_nan=True)


@pytest.mark.parametrize("special", [torch.inf, -torch.inf, torch.nan, 3.4028e38])
def test_two_terms_multiply_to_what_the_numbers_do(special):
    """Three products of the terms, as warp_specialized adds them, with Inf, NaN and zeros."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = torch.randn(4, 40, device=device), torch.randn(40, 5, device=device)
    a[1, 3] = special
    b[7, 2] = -special
    b[3, 1] = 0.0
    terms = import_module("tcgemm.triton_kernels.host.repack").Repack("tf32x3", terms=True)
    (high_a, low_a), (high_b, low_b) = (t.double() for t in copied(terms, a, b))
    product = low_a @ high_b + high_a @ low_b + high_a @ high_b
    wanted = a.clone(), b.clone()
    for x in wanted:
        x[x.abs() >= 3.402e38] *= 2  # what rounds to Inf in tf32 counts as it
    # 40 products of some 0.6 err by 2^-21 each; a term that is left out by 2^-11.
    torch.testing.assert_close(
        product, wanted[0].double() @ wanted[1].double(), rtol=1e-6, atol=2e-5, equal_nan=True
    )
