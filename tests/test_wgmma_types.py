"""wgmma beyond 16-bit types, in the simulator: both checks of each type, edges, what is fused."""

import itertools
from dataclasses import replace

import pytest
import torch
from tcgemm.cuda_ref import simulator
from tcgemm.cuda_ref.planning import wgmma_types_model as model
from tcgemm.cuda_ref.shapes import wgmma_types as types

import tcgemm
from tcgemm import accuracy
from tcgemm.dispatch import find
from tcgemm.problem import Fusion, Problem

I8, U8, I32, F32 = torch.int8, torch.uint8, torch.int32, torch.float32
E4M3, E5M2, F16, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16

CASES = [
    (I8, I32, "int32"),
    (U8, I32, "int32"),
    (E4M3, BF16, "fast"),
    (E4M3, F32, "float32"),
    (E5M2, F16, "float32"),
    (F32, F32, "tf32"),
    (F32, F32, "tf32x3"),
]
UNIT = {F16: 2**-11, BF16: 2**-8, F32: 2**-24}


def operand(rows, columns, dtype, transposed, make):
    height, width = (columns, rows) if transposed else (rows, columns)
    view = make((height, width)).to(dtype)
    return view.mT if transposed else view


def small_integers(dtype):
    low = 0 if dtype == U8 else -4
    return lambda size: torch.randint(low, 5, size).float()


def product(a, b, compute, **arguments):
    return tcgemm.gemm(a, b, compute=compute, backend="cuda", kernel="wgmma_types", **arguments)


@pytest.mark.spread(3, "layout", "dtype")
@pytest.mark.parametrize(("dtype", "out_dtype", "compute"), CASES, ids=str)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_integers_are_exact_in_any_layout(dtype, out_dtype, compute, layout):
    """Of odd sizes TMA can read nothing where it is; of 64 x 128 x 96 whatever is K-major."""
    for M, N, K in ((64, 128, 96), (65, 33, 71)):
        a = operand(M, K, dtype, layout[0] == "t", small_integers(dtype))
        b = operand(K, N, dtype, layout[1] == "t", small_integers(dtype))
        c = product(a, b, compute, out_dtype=out_dtype)
        assert torch.equal(c, (a.double() @ b.double()).to(out_dtype))


@pytest.mark.parametrize(("dtype", "out_dtype", "compute"), CASES[2:], ids=str)
def test_normal_operands_stay_within_the_bound(dtype, out_dtype, compute):
    torch.manual_seed(0)
    M, N, K = 96, 72, 384
    a, b = torch.randn(M, K).to(dtype), torch.randn(N, K).to(dtype).mT
    d = a.double() @ b.double()
    sums = a.double().abs() @ b.double().abs()
    slack = 2 * K**0.5 * 2.0**-23 + (2.0**-10 if compute == "tf32" else 0)
    bound = slack * sums + UNIT[out_dtype] * d.abs()
    error = (product(a, b, compute, out_dtype=out_dtype).double() - d).abs()
    assert (error <= bound).all()


def test_three_products_are_as_accurate_as_float32():
    torch.manual_seed(0)
    a, b = torch.randn(64, 512), torch.randn(96, 512).mT
    d = a.double() @ b.double()
    one = (product(a, b, "tf32").double() - d).abs().max()
    three = (product(a, b, "tf32x3").double() - d).abs().max()
    assert three <= 2 * ((a @ b).double() - d).abs().max()
    assert one > 100 * three


def test_tf32_is_rounded_and_not_truncated():
    ones = torch.ones(16, 16)
    a = torch.full((16, 16), 1 + 2**-11 + 2**-13)  # nearer to 1 + 2^-10 than to 1
    assert torch.equal(product(a, ones, "tf32"), torch.full((16, 16), 16 * (1 + 2**-10)))


@pytest.mark.spread(2, "value", at=1)
@pytest.mark.parametrize(("dtype", "value"), [(I8, -128), (U8, 255)], ids=str)
def test_integer_sums_wrap(dtype, value):
    K = 2**17 + 64 if dtype == I8 else 2**16
    a, b = torch.full((1, K), value, dtype=dtype), torch.full((1, K), value, dtype=dtype).mT
    exact = value * value * K
    assert exact >= 2**31
    assert product(a, b, "int32").item() == (exact + 2**31) % 2**32 - 2**31


@pytest.mark.spread(2, "compute")
@pytest.mark.parametrize("compute", ["fast", "float32"])
@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
def test_scales_bias_and_residual(compute, column_major, per_row):
    torch.manual_seed(0)
    M, N, K = 66, 40, 160
    a, b = torch.randn(M, K).to(E4M3), torch.randn(N, K).to(E4M3).mT
    scale_a, scale_b = (
        (torch.rand(M) + 0.5, torch.rand(N) + 0.5)
        if per_row
        else (
            torch.tensor(0.5),
            torch.tensor(3.0),
        )
    )
    c, bias = torch.randn(M, N).to(BF16), torch.randn(N).to(BF16)
    out = torch.empty(N, M, dtype=BF16).mT if column_major else torch.empty(M, N, dtype=BF16)
    product(
        a, b, compute, c=c, alpha=2.0, beta=-1.0, bias=bias, epilogue="relu",
        scale_a=scale_a, scale_b=scale_b, out=out,
    )  # fmt: skip
    column = scale_a.double().reshape(-1, 1) if per_row else scale_a.double()
    d = 2 * column * scale_b.double() * (a.double() @ b.double()) - c.double() + bias.double()
    torch.testing.assert_close(out.double(), d.relu(), rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize(("dtype", "compute"), [(I8, "int32"), (F32, "tf32")], ids=str)
def test_a_batch_is_one_launch_and_may_share_an_operand(dtype, compute):
    make = small_integers(dtype)
    for a, b in (
        (make((3, 33, 64)).to(dtype), make((3, 48, 64)).to(dtype).mT),
        (make((3, 33, 50)).to(dtype), make((50, 48)).to(dtype).expand(3, -1, -1)),
    ):
        expected = (a.double() @ b.double()).float()
        assert torch.equal(product(a, b, compute).float(), expected)


SPECIALS = (torch.inf, -torch.inf, torch.nan)


def test_three_products_of_inf_and_nan_are_what_they_are_in_float32():
    """Inf times Inf, Inf times what has a low half of the other sign, NaN in either operand."""
    torch.manual_seed(0)
    a, b = torch.randn(40, 70), torch.randn(48, 70).mT
    for i, value in enumerate(SPECIALS):
        a[7 + 11 * i, 5 * i] = b[9 + i, 3 + 13 * i] = value
    a[30, 33] = b[33, 21] = torch.inf
    exact = a.double() @ b.double()
    torch.testing.assert_close(
        product(a, b, "tf32x3"), exact.float(), rtol=1e-4, atol=1e-4, equal_nan=True
    )


def test_a_nan_in_the_lowest_bits_stays_a_nan():
    a, b = torch.ones(3, 8), torch.ones(8, 5)
    a.view(torch.int32)[1, 4] = 0x7F800001
    b.view(torch.int32)[2, 3] = -0x7FFFFF  # 0xFF800001
    nan = product(a, b, "tf32x3").isnan()
    assert nan[1].all()
    assert nan[:, 3].all()
    assert int(nan.sum()) == 5 + 3 - 1


SPLIT_BEFOREHAND = {"BLOCK_M": 128, "BLOCK_N": 128, "REPACK": 1}


def split_product(a, b, plan, out=None, order="forward", check=False, **fused):
    out = torch.full((*a.shape[:-1], b.shape[-1]), torch.nan) if out is None else out
    report = simulator.simulate(
        simulator.source_of("wgmma_types"), a, b, out, plan={**SPLIT_BEFOREHAND, **plan},
        fusion=Fusion(compute="tf32x3", **fused), order=order, check=check,
    )  # fmt: skip
    assert not report.findings, [str(finding) for finding in report.findings]
    return out


@pytest.mark.parametrize("plan", [{"REPACK": 0}, SPLIT_BEFOREHAND], ids=["in kernel", "beforehand"])
@pytest.mark.parametrize("K", [1, 3])
def test_the_product_of_low_terms_that_is_left_out_is_small(plan, K):
    """The numbers whose lower half is largest beside the upper one: cut off behind the 10 bits of
    fraction that the tensor cores look at it is all ones, 2^-10 of them."""
    lower = torch.tensor([0x1FFD, 0x1FFE, 0x1FFF, 0x1000, 0xFFF, 0]).view(6, 1)
    upper = torch.arange(0x3F800000, 0x3F800000 + 40 * 0x2000, 0x2000)
    numbers = (upper + lower).flatten().int().view(torch.float32)
    a, b = numbers[:, None].repeat(1, K), -numbers[None, :70].repeat(K, 1)
    c = split_product(a, b, plan)
    exact = a.double() @ b.double()
    bound = (3 * 2.0**-22 + 2 * K**0.5 * 2.0**-23) * (a.double().abs() @ b.double().abs())
    assert bool(((c.double() - exact).abs() <= bound).all())


def both_ways(a, b, **more):
    """C where B is split beforehand, which has to be C where the kernel splits it, to the bit."""
    c = split_product(a, b, {}, **more)
    in_kernel = split_product(a, b, {"REPACK": 0}, **more)
    assert torch.equal(c.nan_to_num(nan=7.0), in_kernel.nan_to_num(nan=7.0))
    assert torch.equal(c.isnan(), in_kernel.isnan())
    return c


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_what_is_split_beforehand_gives_the_same_bits(layout):
    """Rows that are whole vectors, rows that are not, and a C of less than a tile."""
    torch.manual_seed(0)
    for M, N, K in ((64, 140, 96), (257, 129, 71), (3, 5, 1)):
        a = operand(M, K, F32, layout[0] == "t", torch.randn)
        b = operand(K, N, F32, layout[1] == "t", torch.randn)
        assert accuracy.error_ratio(a, b, both_ways(a, b), Fusion(compute="tf32x3")) <= 1
        a, b = (torch.randint_like(x, -64, 65) for x in (a, b))
        assert torch.equal(split_product(a, b, {}), (a.double() @ b.double()).float())


def test_split_beforehand_in_views_batches_and_columns_of_c():
    torch.manual_seed(0)
    asked, buffer = Fusion(compute="tf32x3"), torch.randn(210, 450)
    a, b = buffer[3:150, 1:83:2], buffer[1:83:2, 2:300:3]
    assert accuracy.error_ratio(a, b, both_ways(a, b), asked) <= 1
    columns = torch.full((b.shape[1], a.shape[0]), torch.nan).mT
    assert accuracy.error_ratio(a, b, split_product(a, b, {}, out=columns), asked) <= 1
    for shared_a, shared_b in itertools.product((False, True), repeat=2):
        a = torch.randn(1 if shared_a else 3, 40, 70).expand(3, 40, 70)
        b = torch.randn(1 if shared_b else 3, 50, 70).mT.expand(3, 70, 50)
        assert accuracy.error_ratio(a, b, both_ways(a, b), asked) <= 1


@pytest.mark.spread(2, "order")
@pytest.mark.parametrize("order", ["forward", "random:5", "late:0", "late:4"])
def test_nothing_races_where_b_is_split_beforehand(order):
    """Rings that wrap, with and without pairs of blocks that share B."""
    a, b = torch.randint(-4, 5, (200, 300)).float(), torch.randint(-4, 5, (300, 70)).float()
    for plan in ({}, {"CLUSTER": 2}):
        assert torch.equal(split_product(a, b, plan, order=order, check=True), a @ b)


def test_inf_and_nan_that_are_split_beforehand():
    torch.manual_seed(0)
    for transposed in (False, True):
        a, b = torch.randn(40, 70), operand(70, 48, F32, transposed, torch.randn)
        for i, value in enumerate(SPECIALS):
            a[7 + 11 * i, 5 * i] = b[3 + 13 * i, 9 + i] = value
        a[30, 33] = b[33, 21] = torch.inf
        a[31, 50], b[50, :] = torch.inf, 1.0  # whose low term is 0
        exact = (a.double() @ b.double()).float()
        torch.testing.assert_close(both_ways(a, b), exact, rtol=1e-4, atol=1e-4, equal_nan=True)
    b = torch.ones(8, 5)
    b.view(torch.int32)[2, 3] = -0x7FFFFF  # 0xFF800001
    assert both_ways(torch.ones(3, 8), b).isnan().nonzero()[:, 1].tolist() == [3, 3, 3]


def test_b_is_split_beforehand_where_that_pays(monkeypatch):
    def repacks(M, N, K, layout="nt", step_of_b=None, **more):
        asked = Problem.stored(M, N, K, "float32", "float32", layout, compute="tf32x3", **more)
        if step_of_b is not None:
            of_a, _, of_c = asked.batch_strides
            asked = replace(asked, batch_strides=(of_a, step_of_b, of_c))
        return find("cuda", "wgmma_types").plan(asked).get("REPACK", 0)

    assert repacks(4096, 4096, 4096) == repacks(2048, 2048, 2048) == repacks(4096, 512, 4096) == 1
    assert repacks(1024, 1024, 1024) == 0
    assert repacks(512, 4096, 4096) == 0, "each row of tiles reads all of B"
    assert repacks(512, 4096, 4096, "nn") == 1, "which is copied in any case"
    assert repacks(4096, 4096, 64) == 0, "two steps a wave"
    assert repacks(512, 4096, 4095) == 1, "so are rows that are no whole vectors"
    assert repacks(512, 1024, 4096, batch=16) == 0
    assert repacks(512, 1024, 4096, step_of_b=0, batch=16) == 1, "one B for all"
    columns = Problem(4096, 512, 4096, "float32", "float32", (4096, 1), (1, 4096), (1, 4096),
                      compute="tf32x3")  # fmt: skip
    assert "REPACK" not in find("cuda", "wgmma_types").plan(columns), "C' = B' A'"
    assert repacks(16384, 16384, 16384) == 0, "2 GiB"
    monkeypatch.setenv("TCGEMM_WORKSPACE_MIB", "127")
    assert (repacks(4096, 4096, 4096), repacks(4096, 2048, 4096)) == (0, 1)


def test_the_instance_is_that_of_the_plan():
    asked = Problem.stored(4096, 4096, 4096, "float32", "float32", "nt", compute="tf32x3")
    plan = find("cuda", "wgmma_types").plan(asked)
    small = {**plan, "BLOCK_M": 64, "CONSUMERS": 1, "REPACK": 0}
    symbols = {True: "Tiling<Mode, 2, 1, 128, false, 1, true, false>",
               False: "Tiling<Mode, 1, 1, 128, false, 2, false, false>"}  # fmt: skip
    for own, symbol in symbols.items():
        assert types.instance(asked, plan)["T"](symbol) == own
        assert types.instance(asked, small)["T"](symbol) != own


def side(M, N, dtype, out, compute="", **more):
    asked = Problem(M, N, 4096, dtype, out, (4096, 1), (1, 4096), (N, 1), compute=compute, **more)
    tiling = model.tiling_of(asked, 2**30)
    return tiling.block_m, tiling.block_n, int(tiling.pingpong)


def test_the_tiling_is_the_one_that_ends_first():
    """With K whole."""
    assert side(1024, 1024, "int8", "int32") == (64, 128, 0)
    assert side(4096, 4096, "int8", "int32") == (128, 128, 1)
    assert side(8192, 8192, "int8", "int32") == (128, 192, 1)
    assert side(8192, 8192, "int8", "int32", bias=True) == (128, 128, 1)
    assert side(8192, 8192, "float8_e4m3fn", "bfloat16", "float32") == (128, 128, 0)
    assert side(3072, 3072, "float8_e4m3fn", "bfloat16", "float32") == (192, 128, 0)
    assert side(4096, 4096, "float32", "float32", "tf32") == (128, 256, 0)
    assert side(8192, 8192, "float32", "float32", "tf32") == (128, 192, 1)
    assert side(1024, 1024, "float32", "float32", "tf32x3") == (64, 128, 0)
    assert side(4096, 4096, "float32", "float32", "tf32x3") == (128, 128, 0)


OF_KIND = {
    "split": ("float32", "float32", "tf32x3", {}),
    "split beforehand": ("float32", "float32", "tf32x3", {}),
    "promoted": ("float8_e4m3fn", "bfloat16", "float32", {}),
    "promoted fused": ("float8_e4m3fn", "bfloat16", "float32", {"bias": True}),
    "plain tf32": ("float32", "float32", "tf32", {}),
    "plain": ("int8", "int32", "int32", {}),
    "fused": ("int8", "int32", "int32", {"bias": True}),
}


@pytest.mark.parametrize("kind", OF_KIND)
def test_each_tiling_that_python_plans_is_one_that_the_launcher_has(kind):
    """And any other is an error, never another tile in its place."""
    dtype, out_dtype, compute, more = OF_KIND[kind]
    a, b = (
        torch.ones(130, 32).to(getattr(torch, dtype)),
        torch.ones(200, 32).to(getattr(torch, dtype)).mT,
    )
    bias = torch.ones(200).to(getattr(torch, out_dtype)) if more else None
    fusion = Fusion(compute=compute, bias=bias)
    grids = set()
    for tile in (*model.TILINGS[kind], None):
        c = torch.zeros(130, 200, dtype=getattr(torch, out_dtype))
        plan = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n} if tile else {"BLOCK_M": 48}
        plan["REPACK"] = int(kind == "split beforehand")
        arguments = (simulator.source_of("wgmma_types"), a, b, c)
        if tile is None:
            with pytest.raises(simulator.SimulationError, match="the launcher refuses it"):
                simulator.simulate(*arguments, fusion=fusion, plan=plan)
            continue
        report = simulator.simulate(*arguments, fusion=fusion, plan=plan)
        assert torch.equal(c, torch.full_like(c, 33 if more else 32))
        tiles = -(-130 // tile.block_m) * -(-200 // tile.block_n)
        assert report.grid[0] == tiles
        grids.add((report.grid, report.block))
    assert len(grids) > 1 or len(model.TILINGS[kind]) == 1
    assert model.TILINGS[kind][0].rate == 100


@pytest.mark.spread(2, "N", "K")
@pytest.mark.parametrize("K", [64, 250])
@pytest.mark.parametrize("N", [1024, 1001])
def test_ping_pong_waits_for_the_last_warp(N, K):
    """With few steps a barrier that a single warp moves on is two phases ahead of a late one."""
    a, b = (operand(*size, I8, False, small_integers(I8)) for size in ((512, K), (N, K)))
    exact = (a.double() @ b.mT.double()).to(I32)
    fusion, plan = Fusion(compute="int32"), {"BLOCK_M": 128, "BLOCK_N": 128}
    for warp in range(4, 12):  # the consumers'
        c = torch.zeros(512, N, dtype=I32)
        report = simulator.simulate(
            simulator.source_of("wgmma_types"), a, b.mT, c, fusion=fusion, plan=plan,
            order=f"late:{warp}",
        )  # fmt: skip
        assert report.grid == (8, 1, 1), "32 tiles, two for each consumer of a block"
        assert report.ok, (warp, report.findings)
        assert torch.equal(c, exact)


def test_pairs_of_blocks_are_planned():
    def cluster(M, N, **more):
        asked = Problem(M, N, 4096, "int8", "int32", (4096, 1), (1, 4096), (N, 1), **more)
        return find("cuda", "wgmma_types").plan(asked)["CLUSTER"]

    assert cluster(8192, 8192) == 2
    assert cluster(2048, 2048) == 1, "too few waves"
    assert cluster(128 * 9, 2**17) == 1, "an odd number of tiles along the pair"
    assert cluster(8192, 8192, device="cpu") == 1


def test_nan_stays_in_its_row():
    for compute in ("tf32", "tf32x3"):
        a, b = torch.randn(40, 64), torch.randn(32, 64).mT
        a[7, 5] = torch.nan
        rows = product(a, b, compute).isnan()
        assert rows.all(1).nonzero().flatten().tolist() == [7]
        assert int(rows.sum()) == 32


@pytest.mark.parametrize("order", ["forward", "random:5"])
def test_nothing_races_where_operands_are_packed_and_split(order):
    a, b = torch.randint(-4, 5, (65, 70)).float(), torch.randint(-4, 5, (70, 33)).float()
    c = torch.empty(65, 33)
    source = simulator.source_of("wgmma_types")
    report = simulator.simulate(
        source, a, b, c, fusion=Fusion(compute="tf32x3"), order=order, check=True
    )
    assert not report.findings
    assert torch.equal(c, a @ b)


def test_whatever_lies_anywhere_is_taken():
    row = find("cuda", "wgmma_types")
    for dtype, strides in itertools.product(("int8", "uint8"), ((7, 1), (3, 9), (0, 0))):
        asked = Problem(5, 6, 7, dtype, "int32", strides, strides, (6, 1), a_alignment=1)
        assert row.why_not(asked) is None


def test_what_is_refused_is_said_with_the_numbers():
    row = find("cuda", "wgmma_types")

    def why(M=8, dtypes=("int8", "int32"), **more):
        return row.why_not(Problem(M, 8, 8, *dtypes, (8, 1), (8, 1), (8, 1), **more))

    assert f"M={2**31 - 1}" in why(M=2**31 - 1)
    assert "0.5" in why(alpha=0.5)
    assert "gelu" in why(epilogue="gelu")
    assert "ieee" in why(dtypes=("float32", "float32"), compute="ieee")
    assert "9.0" in why(capability=(8, 0))


@pytest.mark.parametrize(
    ("dtype", "compute", "width"),
    [("int8", "int32", 128), ("float8_e4m3fn", "float32", 128), ("float32", "tf32", 32)],
)
def test_the_plan_counts_in_elements(dtype, compute, width):
    out = "int32" if dtype == "int8" else "float32"
    asked = Problem(8, 8, 8, dtype, out, (8, 1), (8, 1), (8, 1), compute=compute)
    plan = find("cuda", "wgmma_types").plan(asked)
    assert plan["BLOCK_K"] == width
