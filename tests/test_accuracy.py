"""The two checks catch every planted bug and blame no correct order of summation."""

import math

import pytest
import torch

from tcgemm import accuracy
from tcgemm.accuracy import regions
from tcgemm.bench.case import DATA
from tcgemm.epilogue import FUNCTIONS
from tcgemm.errors import OperandError
from tcgemm.problem import Fusion

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
PAIRS = [(F16, F32), (F16, F16), (BF16, F32), (BF16, BF16)]
OTHER_PAIRS = [
    (F32, F32),
    (torch.float64, torch.float64),
    (torch.int8, torch.int32),
    (torch.uint8, torch.int32),
    *(
        (dtype, out)
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
        for out in (F16, BF16, F32)
    ),
]
M, N, K = 64, 96, 520


def correct(a, b, c):
    c.copy_(a.float() @ b.float())


def split_k(a, b, c):
    parts = [x.float() @ y.float() for x, y in zip(a.split(128, 1), b.split(128, 0), strict=True)]
    c.copy_(sum(reversed(parts)))


def k_by_k(a, b, c):
    total = torch.zeros(c.shape)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1].float() * b[k].float()
    c.copy_(total)


def dropped_last_k(a, b, c):
    correct(a[:, :-1], b[:-1], c)


def dropped_k_tail(a, b, c):
    correct(a[:, : K // 16 * 16], b[: K // 16 * 16], c)


def float16_accumulation(a, b, c):
    total = torch.zeros(c.shape)
    for k in range(0, a.shape[1], 32):
        total = (total + a[:, k : k + 32].float() @ b[k : k + 32].float()).half().float()
    c.copy_(total)


def accumulation_of_13_bits(a, b, c):
    total = torch.zeros(c.shape)
    for k in range(0, a.shape[1], 16):
        total += a[:, k : k + 16].float() @ b[k : k + 16].float()
        total = (total.view(torch.int32) & ~0x3FF).view(F32)
    c.copy_(total)


def one_wrong_element(a, b, c):
    correct(a, b, c)
    c[17, 31] += 1


def stale_row(a, b, c):
    correct(a, b, c)
    c[5] = c[4]


def row_never_written(a, b, c):
    before = c[5].clone()
    correct(a, b, c)
    c[5] = before


def all_zeros(a, b, c):
    c.zero_()


def writes_past_the_end(a, b, c):
    correct(a, b, c)
    c.as_strided((1,), (1,), c.storage_offset() + c.numel()).zero_()


def reads_c(a, b, c):
    c += (a.float() @ b.float()).to(c.dtype)


def swapped_halves(a, b, c):
    correct(a, b, c)
    c.copy_(c.roll(N // 2, 1))


BUGS = [
    dropped_last_k,
    dropped_k_tail,
    float16_accumulation,
    accumulation_of_13_bits,
    one_wrong_element,
    stale_row,
    row_never_written,
    all_zeros,
    writes_past_the_end,
    reads_c,
    swapped_halves,
]


@pytest.fixture(scope="module")
def oracles():
    return {
        (pair, layout): accuracy.Oracle(M, N, K, *pair, layout=layout, seed=3)
        for pair in PAIRS
        for layout in ("nn", "nt", "tn", "tt")
    }


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("kernel", [correct, split_k, k_by_k])
def test_a_correct_kernel_passes_in_any_order(oracles, kernel, pair, layout):
    verdict = oracles[pair, layout].check(kernel)
    assert verdict.ok, verdict.reason
    assert 0 <= verdict.error_ratio <= 1
    assert verdict.reason == ""


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(oracles, bug, pair):
    if bug is accumulation_of_13_bits and pair[1] == BF16:
        pytest.skip("13 bits are more than a bfloat16 result shows")
    verdict = oracles[pair, "nn"].check(bug)
    assert not verdict.ok
    assert verdict.reason


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 33, 2), (17, 1, 300), (5, 7, 4099)])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_no_correct_kernel_is_blamed_on_odd_shapes(pair, shape, seed):
    assert accuracy.check(correct, *shape, *pair, seed=seed).ok


def correct_in_any_type(a, b, c):
    if c.dtype == torch.int32:
        c.copy_(a.long() @ b.long())
    else:
        wide = torch.promote_types(c.dtype, F32)
        c.copy_(a.to(wide) @ b.to(wide))


def in_any_type(bug):
    """The bug in the operands' shapes, around a product that is right for the dtype."""

    def run(a, b, c):
        K = a.shape[1]
        if bug == "last k":
            correct_in_any_type(a[:, : K - 1], b[: K - 1], c)
        else:
            correct_in_any_type(a, b, c)
        if bug == "an element":
            c[17, 31] += 1
        if bug == "a stale row":
            c[5] = c[4]
        if bug == "past the end":
            c.as_strided((1,), (1,), c.storage_offset() + c.numel()).zero_()

    return run


@pytest.mark.parametrize("pair", OTHER_PAIRS, ids=str)
@pytest.mark.parametrize("bug", ["", "last k", "an element", "a stale row", "past the end"])
def test_every_type_pair_is_judged(pair, bug):
    verdict = accuracy.check(in_any_type(bug), M, N, 130, *pair, seed=2)
    assert verdict.ok == (not bug), verdict


def tf32(x, bits=13):
    """Rounded to nearest in the top 19 bits, ties away: what cvt.rna.tf32 does."""
    return ((x.view(torch.int32) + (1 << (bits - 1))) & -(1 << bits)).view(F32)


def by_tf32(a, b, c):
    c.copy_(tf32(a) @ tf32(b))


def by_three_products(a, b, c):
    a_high, b_high = tf32(a), tf32(b)
    a_low, b_low = tf32(a - a_high), tf32(b - b_high)
    c.copy_(a_low @ b_high + a_high @ b_low + a_high @ b_high)


@pytest.mark.parametrize(("kernel", "compute"), [(by_tf32, "tf32"), (by_three_products, "tf32x3")])
@pytest.mark.parametrize("shape", [(1, 1, 1), (64, 96, 520)])
def test_what_operands_lose_belongs_to_the_compute_mode(kernel, compute, shape):
    for seed in range(5):
        assert accuracy.check(kernel, *shape, F32, F32, seed=seed, compute=compute).ok
    assert not accuracy.check(by_tf32, 64, 96, 520, F32, F32, compute="tf32x3").ok


def test_float16_sums_have_their_own_bound():
    def run(a, b, c):
        total = torch.zeros(c.shape, dtype=F16)
        for k in range(0, a.shape[1], 16):
            total += (a[:, k : k + 16].float() @ b[k : k + 16].float()).half()
        c.copy_(total)

    assert accuracy.check(run, 64, 96, 520, F16, F16, compute="float16").ok
    assert not accuracy.check(run, 64, 96, 520, F16, F16).ok
    assert accuracy.check(run, 8, 8, 5000, F16, F16, compute="float16").exact_errors == 0


FUSED = [
    {"alpha": -1.5},
    {"c": True, "beta": 0.5},
    {"bias": True},
    *({"epilogue": name, "bias": True} for name in ("relu", "gelu", "gelu_tanh", "silu")),
]


@pytest.mark.parametrize("fused", FUSED, ids=str)
@pytest.mark.parametrize("pair", [(F16, F16), (BF16, F32), (torch.float64, torch.float64)], ids=str)
def test_what_is_fused_is_judged_too(fused, pair):
    generator = torch.Generator().manual_seed(4)
    a, b = accuracy.operands(33, 40, 70, pair[0], "nt", "cpu", 1)
    fields = {"compute": "float64" if pair[0] == torch.float64 else "float32", **fused}
    for name, shape in (("c", (33, 40)), ("bias", (40,))):
        if fields.get(name):
            fields[name] = torch.randn(shape, generator=generator).to(pair[1])
    fusion = Fusion(**fields)
    wide = torch.promote_types(pair[1], F32)
    value = fusion.alpha * (a.to(wide) @ b.to(wide))
    value = value if fusion.c is None else value + fusion.beta * fusion.c.to(wide)
    value = value if fusion.bias is None else value + fusion.bias.to(wide)
    right = FUNCTIONS[fusion.epilogue](value).to(pair[1])
    assert accuracy.error_ratio(a, b, right, fusion) <= 1
    wrong = right.clone()
    wrong[7, 3] += 0.1
    assert accuracy.error_ratio(a, b, wrong, fusion) > 1
    assert accuracy.error_ratio(a, b, right) > 1


def test_a_batch_is_judged_product_by_product():
    a, b = torch.randn(3, 5, 6), torch.randn(3, 6, 7)
    c = a @ b
    fusion = Fusion(compute="ieee")
    assert accuracy.error_ratio(a, b, c, fusion) <= 1
    c[1, 2, 3] += 1
    assert accuracy.error_ratio(a, b, c, fusion) > 1


def test_a_product_rounded_before_c_is_added_is_told_and_can_be_allowed():
    a, b = (torch.randn(64, 64, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    a, b = a.bfloat16(), b.bfloat16()
    exact = a.double() @ b.double()
    c_in = (-exact + 0.3).bfloat16()
    fusion = Fusion(beta=1.0, c=c_in)
    once = (exact + c_in.double()).bfloat16()
    twice = (exact.bfloat16().double() + c_in.double()).bfloat16()
    for allowed in (False, True):
        assert accuracy.error_ratio(a, b, once, fusion, allowed) <= 1
        assert (accuracy.error_ratio(a, b, twice, fusion, allowed) <= 1) == allowed
    assert accuracy.error_ratio(a, b, twice + 1, fusion, True) > 1


def test_the_verdict_on_a_product_rounded_twice_says_so():
    c_in = torch.randn(48, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
    fusion = Fusion(beta=1.0, c=c_in)

    def twice(a, b, c):
        c.copy_((a.double() @ b.double()).bfloat16().double() + c_in.double())

    def wrong(a, b, c):
        c.copy_(a.double() @ b.double() + 1.1 * c_in.double())

    oracle = accuracy.Oracle(48, 64, 80, "bfloat16", "bfloat16", fusion=fusion)
    verdict = oracle.check(twice)
    assert not verdict.ok
    assert "lets the product be rounded to the dtype of C before C is added" in verdict.reason
    assert "rounded" not in oracle.check(wrong).reason


def test_accumulation_in_float16_shows_on_long_sums_of_normal_data(oracles):
    assert oracles[(F16, F16), "nn"].check(float16_accumulation).error_ratio > 1


def test_the_exact_check_counts_elements(oracles):
    verdict = oracles[(F16, F32), "nn"].check(one_wrong_element)
    assert verdict.exact_errors == 1
    assert "1 of 6144 elements" in verdict.reason


def test_data_is_fresh_for_every_seed_and_the_same_for_one():
    first, second, again = (
        accuracy.operands(8, 8, 8, F16, "nn", "cpu", seed) for seed in (1, 2, 1)
    )
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_the_benchmark_and_the_oracle_know_the_same_data():
    assert accuracy.inputs.DATA == DATA


@pytest.mark.parametrize("dtype", [F16, torch.float8_e4m3fn, torch.int8, torch.uint8])
@pytest.mark.parametrize("data", DATA)
def test_operands_hold_the_data_that_is_named(data, dtype):
    a, _ = accuracy.operands(64, 8, 64, dtype, "nn", "cpu", 0, data=data)
    held = a.float() if dtype.is_floating_point else a.int()
    low, high = float(held.min()), float(held.max())
    whole = bool((held == held.round()).all())
    if data == "zeros":
        assert (low, high) == (0, 0)
    elif data == "ints":
        assert whole
        assert (low, high) == (0 if dtype == torch.uint8 else -8, 8)
    elif not dtype.is_floating_point:
        assert high - low > 240
    else:
        assert not whole
        assert (0 <= low < 0.1 and 0.9 < high <= 1) if data == "uniform" else low < -2 < 2 < high


@pytest.mark.parametrize("data", DATA)
def test_a_wrong_kernel_is_found_whatever_the_data(data):
    oracle = accuracy.Oracle(48, 64, 80, "float16", "float16", data=data)
    assert oracle.check(correct).ok
    assert not oracle.check(lambda a, b, c: c.zero_()).ok, "on integers it shows"
    if data != "zeros":
        assert oracle.check(lambda a, b, c: c.zero_()).error_ratio > 1


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_operands_are_stored_as_the_layout_says(layout):
    a, b = accuracy.operands(3, 5, 7, BF16, layout, "cpu", 0)
    assert (a.shape, b.shape) == ((3, 7), (7, 5))
    assert a.stride() == ((7, 1) if layout[0] == "n" else (1, 3))
    assert b.stride() == ((5, 1) if layout[1] == "n" else (1, 7))


@pytest.mark.parametrize("dtype_out", [F16, BF16, F32])
@pytest.mark.parametrize("length", [1, 100, 4096, 4097, 16384, 2**17, 2**24])
def test_every_partial_sum_of_the_integers_is_exact(length, dtype_out):
    largest = accuracy.largest_integer(length, dtype_out)
    assert largest >= 1
    assert length * largest**2 <= 2**24
    assert largest <= (64 if dtype_out == F32 else 8)


def test_sums_that_cannot_be_exact_are_refused():
    with pytest.raises(OperandError, match="16777217"):
        accuracy.largest_integer(2**24 + 1, F32)


def overflowing(sign=1.0):
    a = torch.full((1, 16), 256.0, dtype=F16)
    b = torch.full((16, 1), sign * 256.0, dtype=F16)
    return a, b


def test_float16_overflow_must_be_inf_of_the_right_sign():
    a, b = overflowing(-1)
    inf = torch.full((1, 1), -math.inf, dtype=F16)
    assert accuracy.error_ratio(a, b, inf) == 0
    assert accuracy.error_ratio(a, b, -inf) == math.inf
    assert accuracy.error_ratio(a, b, torch.full((1, 1), -65504.0, dtype=F16)) == math.inf


def test_inf_where_nothing_overflows_is_wrong():
    a, b = overflowing()
    assert accuracy.error_ratio(a[:, :1] / 256, b[:1], torch.full((1, 1), math.inf)) == math.inf


def test_nan_is_wrong_and_so_is_a_subnormal_flushed_far():
    a, b = torch.full((1, 1), 2.0**-12, dtype=F16), torch.full((1, 1), 2.0**-12, dtype=F16)
    assert accuracy.error_ratio(a, b, torch.full((1, 1), math.nan, dtype=F16)) == math.inf
    assert accuracy.error_ratio(a, b, torch.full((1, 1), 2.0**-24, dtype=F16)) == 0
    assert accuracy.error_ratio(a, b, torch.zeros((1, 1), dtype=F16)) > 1


def test_error_ratio_takes_any_strides():
    base = torch.randn(40, 60).to(BF16)
    a, b = base[::2, ::3], base[:20, 5:6].expand(20, 9)
    assert accuracy.error_ratio(a, b, (a.float() @ b.float()).to(BF16)) <= 1


@pytest.mark.parametrize("size", [1, 5, 66, 67, 300, 16384])
def test_a_sample_covers_every_stratum_and_both_ends(size):
    index = regions.sampled(size, seed=1)
    assert index.tolist() == sorted(set(index.tolist()))
    assert index[0] == 0
    assert index[-1] == size - 1
    assert int(index.diff().max() if size > 1 else 0) <= 2 * math.ceil(size / regions.STRATA)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    "shape", [(100, 100, 100), (1, 4096, 512), (4096, 1, 64), (6000, 6000, 512)]
)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_gpu_references_agree_with_torch(pair, shape, layout):
    def mm(a, b, c):
        c.copy_(torch.mm(a.double(), b.double()))

    oracle = accuracy.Oracle(*shape, *pair, layout=layout, device="cuda")
    assert oracle.check(mm).ok

    def one_column_off(a, b, c):
        mm(a, b, c)
        c[:, -1] += 1

    assert not oracle.check(one_column_off).ok
