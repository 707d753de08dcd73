"""Promises 1 to 8 of docs/contract.md over every kernel and type pair: what a product means."""

from __future__ import annotations

import math

import pytest
import torch
from promises import PADDED, call_of, has_numbers, keeps, multiply, must_keep

import tcgemm
from tcgemm.errors import OperandError, OperandTypeError
from tcgemm.verify.calls import fused_calls, pairs_of
from tcgemm.verify.judge import make


def is_float(pair):
    return pair[2] != "int32"


def test_promise_1_beta_zero_never_reads_c(row, pair, device):
    call = call_of(row, pair, **PADDED)
    made = make(call, device)
    worst = math.nan if is_float(pair) else 2**31 - 1
    without = multiply(row, made, call)
    for c in (torch.full_like(made.out, worst), made.out.fill_(worst)):
        out = c if c is made.out else None
        result = multiply(row, made, call, c=c, beta=0.0, out=out)
        assert torch.equal(result, without)


def test_promise_2_alpha_zero_uses_neither_a_nor_b(row, pair, device):
    special = "nan in A" if is_float(pair) else ""
    call = call_of(row, pair, alpha=0.0, special=special)
    must_keep(row, call, device)
    # beta C and the bias are added without a kernel: every row takes them here.
    must_keep(row, call_of(row, pair, alpha=0.0, beta=-1.0, c="out", bias=True), device)
    must_keep(row, call_of(row, pair, alpha=0.0, beta=3.0, c="row", epilogue="relu"), device)


def test_promise_3_nothing_to_sum(row, pair, device, monkeypatch):
    monkeypatch.setattr("tcgemm.launch._bind", None)
    dtype_in, dtype_out, compute = (*(getattr(torch, d) for d in pair[:2]), pair[2])
    named = {"backend": row.backend, "kernel": row.name, "out_dtype": dtype_out}

    def empty(*shape):
        return torch.empty(shape, dtype=dtype_in, device=device)

    a, b = empty(3, 0), empty(0, 4)
    assert (tcgemm.gemm(a, b, compute=compute, **named) == torch.zeros(3, 4, device=device)).all()
    c, bias = (torch.arange(n, device=device).to(dtype_out) for n in (12, 4))
    result = tcgemm.gemm(a, b, c.view(3, 4), beta=3.0, bias=bias, compute=compute, **named)
    assert torch.equal(result.double(), 3 * c.view(3, 4).double() + bias.double())
    for shape_a, shape_b in (((0, 5), (5, 4)), ((3, 5), (5, 0)), ((0, 3, 5), (5, 4))):
        result = tcgemm.gemm(empty(*shape_a), empty(*shape_b), compute=compute, **named)
        assert result.shape == (*shape_a[:-1], shape_b[1])
        assert result.dtype == dtype_out
        assert result.device.type == device
        assert not result.requires_grad


@pytest.mark.parametrize("K", [16, 17, 33])
def test_promise_4_nan_and_inf_stay_where_they_belong(row, pair, device, K):
    if not is_float(pair):
        pytest.skip("integers have no NaN")
    if device == "cpu" and (16, 17, 33)[pairs_of(row).index(pair) % 3] != K != 17:
        pytest.skip("the pairs share out the sizes on the CPU")
    call = call_of(row, pair, K=K, **PADDED)
    made = make(call, device)
    others = torch.arange(call.M, device=device) != 5
    clean = multiply(row, made, call)
    # The last k is where a tile hangs over the edge.
    made.a[5, -1:] = torch.tensor([math.nan], device=device).to(made.a.dtype)
    result = multiply(row, made, call)
    if result is None:
        assert clean is None
        return
    assert result[5].isnan().all()
    assert torch.equal(result[others], clean[others])
    if pair[0] == "float8_e4m3fn":
        return
    inf = torch.tensor([math.inf], device=device).to(made.a.dtype)
    made.a[5, -1:] = inf
    made.b[-1, :2] = torch.zeros(2, device=device).to(made.b.dtype)
    result = multiply(row, made, call)
    assert result[5, :2].isnan().all(), "Inf times 0"
    assert result[others].isfinite().all()
    sign = made.b[-1].float().sign()[2:]
    present = sign != 0
    assert torch.equal(result[5, 2:][present].float(), sign[present] * math.inf)


def test_promise_5_overflow_gives_inf_and_relu_keeps_nan(row, pair, device):
    if pair[1] == "float16":
        call = call_of(row, pair, K=64, **PADDED)
        made = make(call, device)
        for operand in (made.a, made.b):
            operand.copy_(torch.full(operand.shape, 200.0).to(operand.dtype))
        result = multiply(row, made, call)
        if result is not None:
            assert (result == math.inf).all()
    if is_float(pair) and "relu" in row.fuses:
        call = call_of(row, pair, special="nan in A", epilogue="relu", **PADDED)
        must_keep(row, call, device)


def test_promise_6_integers_wrap(row, pair, device):
    if is_float(pair):
        pytest.skip("for integers")
    dtype = getattr(torch, pair[0])
    value, K = (255, 33104) if dtype == torch.uint8 else (-128, 131200)
    if device == "cpu" and value < 0:
        value, K = -128, 1008
    a = torch.full((2, K), value, dtype=dtype, device=device)
    b = torch.full((4, K), value, dtype=dtype, device=device).T
    c = torch.full((2, 4), 2**31 - 5, dtype=torch.int32, device=device)
    sum_ = K * value * value
    named = {"backend": row.backend, "kernel": row.name}
    results = [(tcgemm.gemm(a, b, **named), sum_)]
    if "beta" in row.fuses:
        results.append((tcgemm.gemm(a, b, c, beta=1, **named), sum_ + 2**31 - 5))
    for result, exact in results:
        assert (result == (exact + 2**31) % 2**32 - 2**31).all()


def test_promise_6_mixed_signs_name_the_pairs(row, device):
    a = torch.ones(4, 4, dtype=torch.int8, device=device)
    with pytest.raises(OperandTypeError, match="int8 with int8, uint8 with uint8"):
        tcgemm.matmul(a, a.to(torch.uint8), backend=row.backend, kernel=row.name)


def test_promise_7_no_silent_promotion_and_vectors(row, device):
    dtype = getattr(torch, row.pairs[0][0])
    named = {"backend": row.backend, "kernel": row.name}
    ones = torch.ones(64, 64, device=device).to(dtype)
    other = torch.bfloat16 if dtype != torch.bfloat16 else torch.float16
    with pytest.raises(OperandTypeError, match=r"A is .* and B is .*nothing is promoted silently"):
        tcgemm.matmul(ones, ones.to(other), **named)
    with pytest.raises(OperandError, match="B is a scalar"):
        tcgemm.matmul(ones, ones[0, 0], **named)
    for a, b, shape in ((ones[0], ones, (64,)), (ones, ones[0], (64,)), (ones[0], ones[0], ())):
        try:
            result = tcgemm.matmul(a, b, **named)
        except tcgemm.UnsupportedError as error:
            has_numbers(str(error))
            continue
        assert result.shape == shape
        assert (result == 64).all()


def test_promise_8_inputs_stay_as_they_are_with_everything_fused(row, pair, device):
    # ``keeps`` compares all operands and what lies around them, before and after.
    assert keeps(row, call_of(row, pair, **PADDED), device)
    for call in fused_calls(row, pair, alone=pair == pairs_of(row)[0]):
        must_keep(row, call, device)
