"""Promises 9 to 16 of docs/contract.md over every kernel and type pair: memory and sizes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from promises import PADDED, call_of, has_numbers, keeps, must_keep

import tcgemm
from tcgemm import accuracy
from tcgemm.errors import OperandError, OperandTypeError
from tcgemm.verify.calls import EDGES, OF_OUTPUTS, DrawnCall, Stored, pairs_of

LETTERS = {"n": "row", "t": "column"}


def turn(row, pair):
    """Another number for each pair of the row, so that its pairs share out the cases."""
    return pairs_of(row).index(pair)


def share(cases, row, pair, device):
    """All cases on a GPU and for a row's first pair, else two."""
    cases = list(cases)
    if device == "cuda" or turn(row, pair) == 0:
        return cases
    return [cases[(2 * turn(row, pair) + i) % len(cases)] for i in range(2)]


def test_promise_9_out_of_any_strides_is_written_in_place(row, pair, device):
    # ``keeps`` compares what lies around ``out``, before and after.
    kept = [
        keeps(row, call_of(row, pair, out=Stored(view, offset), exact=exact, **PADDED), device)
        for view, offset, exact in share(
            zip(OF_OUTPUTS, (0, 8, 0, 1, 3, 2), (True, False) * 3, strict=True), row, pair, device
        )
    ]
    assert any(kept) or turn(row, pair)


def test_promise_10_bad_outs_are_errors(row, device):
    pair = pairs_of(row)[0]
    dtype_in, dtype_out = (getattr(torch, name) for name in pair[:2])
    both = torch.ones(64, 64, device=device).to(dtype_in)
    named = {"backend": row.backend, "kernel": row.name}

    def out(*shape, dtype=dtype_out):
        return torch.empty(shape, dtype=dtype, device=device)

    for bad, error, words in (
        (out(64, 64, dtype=torch.int16), OperandTypeError, "int16"),
        (out(64, 63), OperandError, r"\[64, 63\] and C is \[64, 64\]"),
        (out(1, 64).expand(64, 64), OperandError, "share memory"),
        (out(200).as_strided((64, 64), (2, 1)), OperandError, "share memory"),
    ):
        with pytest.raises(error, match=words):
            tcgemm.matmul(both, both, out=bad, **named)
    if dtype_in == dtype_out:
        flat = torch.ones(3 * 4096, device=device).to(dtype_in)
        a, b = flat[:4096].view(64, 64), flat[4096:8192].view(64, 64)
        for name, bad in (("A", a), ("B", flat[8000 : 8000 + 4096].view(64, 64))):
            with pytest.raises(OperandError, match=f"out overlaps {name}"):
                tcgemm.matmul(a, b, out=bad, **named)


def test_promise_10_out_may_be_c(row, pair, device):
    for beta, view in ((1.0, "row"), (-1.0, "stepped")):
        call = call_of(row, pair, beta=beta, c="out", out=Stored(view), **PADDED)
        taken = keeps(row, call, device)
        assert taken or "beta" not in row.fuses or view == "stepped"


def test_promise_11_out_that_requires_grad(row, device):
    a = torch.ones(64, 64, device=device).half()
    out = torch.empty(64, 64, device=device).half().requires_grad_()
    with pytest.raises(RuntimeError) as torchs:
        torch.mm(a, a, out=out)
    with pytest.raises(OperandError) as ours:
        tcgemm.matmul(a, a, out=out, backend=row.backend, kernel=row.name)
    words = "functions with out=... arguments don't support automatic differentiation"
    assert words in str(torchs.value)
    assert words in str(ours.value)


def test_promise_12_layouts(row, pair, device):
    layouts = list(itertools.product("nt", "nt", "nt"))
    for a, b, out in share(layouts, row, pair, device):
        views = {"a": Stored(LETTERS[a]), "b": Stored(LETTERS[b]), "out": Stored(LETTERS[out])}
        assert keeps(row, call_of(row, pair, M=64, N=64, K=64, **views), device)


@pytest.mark.spread(2, "operand", "row")
@pytest.mark.parametrize("operand", ["a", "b"])
def test_promise_12_views(row, pair, device, operand):
    views = ("sliced", "stepped", "expanded", "overlapping", "padded column")
    for view in share(views, row, pair, device):
        asked = {**PADDED, operand: Stored(view)}
        keeps(row, call_of(row, pair, **asked), device)


def test_promise_12_batches_of_any_strides(row, pair, device):
    if "batch" not in row.fuses:
        pytest.skip("one product a launch")
    for batch, of_a, of_b in share(
        (
            ((3,), "full", "full"),
            ((3,), "shared", "full"),
            ((3,), "full", "shared"),
            ((2, 2), "full", "first"),
            ((2, 3), "turned", "full"),
        ),
        row,
        pair,
        device,
    ):
        views = {"a": Stored("padded row", 0, of_a), "b": Stored("padded column", 0, of_b)}
        must_keep(row, call_of(row, pair, batch=batch, **views), device)


def test_promise_13_offsets_and_odd_sizes(row, pair, device):
    for offset in share((1, 2, 3), row, pair, device):
        call = call_of(
            row, pair, M=33, N=17, K=31,
            a=Stored("row", offset), b=Stored("row", offset + 1), out=Stored("row", offset),
        )  # fmt: skip
        keeps(row, call, device)
    if turn(row, pair) == 0:
        keeps(row, DrawnCall(100, 100, 100, *pair), device)


def test_promise_14_a_ragged_number_of_tile_columns(row, pair, device):
    if turn(row, pair) and device == "cpu":
        pytest.skip("the order of tiles knows no type: once a kernel on the CPU")
    must_keep(row, DrawnCall(128, 320, 64, *pair), device)
    must_keep(row, DrawnCall(128, 320, 64, *pair, exact=True), device)
    keeps(row, DrawnCall(127, 129, 65, *pair), device)


def test_promise_15_sizes_around_every_edge(row, pair, device):
    some = range(3 if turn(row, pair) else 12) if device == "cpu" else range(40)
    for index in some:
        step = 14 * turn(row, pair) + 5 * index
        M, N, K = (EDGES[step * p // 3 % len(EDGES)] for p in (3, 7, 13))
        asked = PADDED if index % 2 else {}
        keeps(row, DrawnCall(M, N, K, *pair, seed=index, **asked), device)


def test_promise_15_primes_rows_and_columns(row, pair, device):
    shapes = ((13, 19, 37), (1, 67, 29), (71, 1, 23), (1, 1, 101))
    for M, N, K in share(shapes, row, pair, device):
        keeps(row, DrawnCall(M, N, K, *pair, **PADDED), device)


def test_promise_16_offsets_are_64_bit(row, pair, device):
    """Rows 2^26 elements apart: the last of 64 lies past 2^31 elements."""
    if turn(row, pair) and device == "cpu":
        pytest.skip("strides know no type: once a kernel on the CPU")
    dtype_in, dtype_out = (getattr(torch, name) for name in pair[:2])
    made = {}
    for step, name in itertools.product((2**26, 2**26 + 1), ("A", "B", "out")):
        if step % 2 and turn(row, pair):
            continue
        try:
            dtype = dtype_out if name == "out" else dtype_in
            if dtype not in made:
                made.clear()
                made[dtype] = torch.empty(2**32 + 2**20, dtype=dtype, device=device)
        except RuntimeError:
            pytest.skip("there is no room for addresses past 2^31 elements")
        far = made[dtype].as_strided((64, 64), (step, 1))
        a, b = accuracy.operands(64, 64, 64, dtype_in, "nn", device, 5)
        out = torch.empty(64, 64, dtype=dtype_out, device=device)
        if name == "A":
            a = far.copy_(a)
        elif name == "B":
            b = far.copy_(b)
        else:
            out = far
        named = {"backend": row.backend, "kernel": row.name, "compute": pair[2]}
        try:
            tcgemm.gemm(a, b, out=out, **named)
        except tcgemm.UnsupportedError as error:
            has_numbers(str(error))
            continue
        fusion = tcgemm.problem.Fusion(compute=pair[2])
        assert accuracy.error_ratio(a, b, out, fusion) <= 1, (name, step)


# What only a GPU can show.


@pytest.mark.gpu
def test_promise_15_larger_sizes_around_every_edge(row, pair):
    sizes = (127, 128, 129, 255, 256, 257, 509)
    shapes = [*zip(sizes, sizes[2:] + sizes[:2], sizes[3:] + sizes[:3], strict=True)]
    shapes += [(1, 4099, 517), (4099, 1, 517), (128, 128, 95), (128, 128, 97)]
    for index, (M, N, K) in enumerate(shapes):
        asked = PADDED if index % 2 else {}
        keeps(row, DrawnCall(M, N, K, *pair, exact=index % 3 == 0, **asked), "cuda")


@pytest.mark.gpu
def test_promise_15_long_sums(row, pair):
    # As torch._scaled_mm, and Gluon for 8 bits, take them: A by rows, B by columns.
    must_keep(row, DrawnCall(64, 64, 2**17, *pair, b=Stored("column")), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(70001, 16, 32), (16, 70001, 32), (70016, 64, 32)], ids=str)
def test_promise_15_dimensions_above_65535(row, shape):
    pair = pairs_of(row)[0]
    M, N, K = shape
    keeps(row, DrawnCall(M, N, K, *pair, **PADDED), "cuda")


@pytest.mark.gpu
def test_promise_15_batches_above_65535(row):
    if "batch" not in row.fuses:
        pytest.skip("one product a launch")
    dtype_in, dtype_out, compute = pairs_of(row)[0]
    a = torch.randn(70001, 4, 8, device="cuda").to(getattr(torch, dtype_in))
    b = torch.randn(70001, 8, 8, device="cuda").to(getattr(torch, dtype_in))
    out = torch.full((70001, 4, 8), math.nan, device="cuda").to(getattr(torch, dtype_out))
    tcgemm.gemm(a, b, out=out, compute=compute, backend=row.backend, kernel=row.name)
    exact = (a[:, :, :, None].double() * b[:, None].double()).sum(2)
    assert torch.allclose(out.double(), exact, rtol=1e-2, atol=1e-2)
    for index in (0, 65535, 65536, 70000):
        assert accuracy.error_ratio(a[index], b[index], out[index]) <= 1
