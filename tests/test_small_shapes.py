"""The rungs that divide K: split_k, and skinny and gemv for few rows or columns."""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache
from importlib import import_module

import pytest
import records
import torch
from padded import padded
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.fusion import case

import tcgemm
from tcgemm import accuracy, cuda_ref
from tcgemm.dispatch import choose, find, problem_of
from tcgemm.dispatch import ladder as rows_of
from tcgemm.problem import Problem

simulator = import_module("tcgemm.cuda_ref.simulator")

NAMES = ["split_k", "skinny", "stream_k", "gemv"]
BY_TMA = ["split_k", "skinny", "stream_k"]
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
PAIRS = [(F16, F16), (BF16, F32), (BF16, BF16), (F16, F32)]
# Around the tiles' 16, 64 and 128, with K of a part of a tile, of some and of more than a ring.
SHAPES = [
    (1, 1, 1),
    (1, 257, 72),
    (1, 64, 1100),
    (15, 130, 64),
    (16, 64, 200),
    (17, 129, 65),
    (64, 65, 72),
    (65, 63, 136),
    (128, 130, 40),
    (127, 129, 71),
    (129, 127, 64),
    (130, 17, 72),
    (257, 1, 65),
]


def problem(M=16, N=4096, K=4096, layout="nn", **changes):
    a = (K, 1) if layout[0] == "n" else (1, M)
    b = (N, 1) if layout[1] == "n" else (1, K)
    asked = Problem(M, N, K, "bfloat16", "bfloat16", a, b, (N, 1), capability=(9, 0))
    return dataclasses.replace(asked, **changes)


@pytest.mark.spread(9, "name", "shape")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_right_at_the_edges_and_nothing_found(name, shape, thorough):
    """Both checks in every layout, rows and columns of C, with the simulator's checks on."""
    M, N, K = shape
    cases = itertools.product(["nn", "nt", "tn", "tt"], [False, True])
    pairs = PAIRS if thorough else [(BF16, BF16)]  # each pair of types is a build of its own
    for i, (layout, turned) in enumerate(cases):
        dtype, out = pairs[(i + i // 2) % len(pairs)]
        for fill in (torch.randn, lambda *size: torch.randint(-2, 3, size)):
            a = padded(M, K, dtype, layout[0] == "t", fill)
            b = padded(K, N, dtype, layout[1] == "t", fill)
            c = padded(M, N, out, turned, lambda *size: torch.full(size, float("nan")))
            report = simulator.simulate(simulator.source_of(name), a, b, c, check=True)
            assert not report.findings, [str(f) for f in report.findings]
            if fill is torch.randn:
                assert accuracy.error_ratio(a, b, c) < 1, (layout, turned)
            else:
                assert torch.equal(c, (a.double() @ b.double()).to(out)), (layout, turned)


def assert_exact(source, shapes, **how):
    """Integers, with B and C by rows and by columns, and the simulator's checks on.

    Returns the last run's report.
    """
    for (M, N, K), layout, turned in itertools.product(shapes, ["nn", "nt"], [False, True]):
        a = padded(M, K, BF16, False, lambda *size: torch.randint(-2, 3, size))
        b = padded(K, N, BF16, layout[1] == "t", lambda *size: torch.randint(-2, 3, size))
        c = padded(M, N, BF16, turned, lambda *size: torch.full(size, float("nan")))
        report = simulator.simulate(source, a, b, c, check=True, **how)
        assert not report.findings, [str(f) for f in report.findings]
        assert torch.equal(c, (a.double() @ b.double()).to(BF16)), ((M, N, K), layout, turned)
    return report


# A changed copy is built for these types alone, as the rung itself is.
OF_BFLOAT16 = "#define TCGEMM_IN 1\n#define TCGEMM_OUT 1\n"
# 48 columns are one panel, 112 two of 56.
WIDTHS = {48: [(17, 129, 72), (128, 300, 65)], 112: [(100, 230, 136), (64, 112, 1100)]}


@pytest.mark.parametrize("width", WIDTHS)
def test_skinny_is_right_in_every_width(width):
    """As above, of widths that the simulator's plan does not take."""
    plan = {"BLOCK_N": width, "SPLITS": 1, "SHARED_KB": 200}
    report = assert_exact(simulator.source_of("skinny"), WIDTHS[width], plan=plan)
    assert report.grid[0] == -(-WIDTHS[width][-1][1] // width)


def test_stream_k_adds_the_parts_of_a_tile(tmp_path, monkeypatch):
    """With ranges that end anywhere, and one block for all tiles: in the order of the blocks none
    waits for a later one."""
    text = simulator.source_of("stream_k").read_text()
    source = tmp_path / "stream_k.cu"
    whole = "if (!BLOCKS_RUN_AT_ONCE) return static_cast<int>(tiles);"
    assert whole in text
    told = 'if (!BLOCKS_RUN_AT_ONCE) return std::atoi(std::getenv("BLOCKS"));'
    source.write_text(OF_BFLOAT16 + text.replace(whole, told))
    for blocks in (1, 7):
        monkeypatch.setenv("BLOCKS", str(blocks))
        report = assert_exact(source, [(17, 129, 330), (100, 200, 648)], workers=1)
        assert report.grid[0] == blocks


SIMULATED_SMS = 8


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((1, 300, 72), "nt"),
        ((1, 20, 32768), "nt"),
        ((1, 20, 32769), "nt"),
        ((4, 300, 200), "nt"),
        ((4, 300, 200), "nn"),
        ((300, 1, 200), "nn"),
        ((17, 40, 72), "nn"),
        ((1, 1, 72), "nt"),
    ],
    ids=str,
)
def test_the_plan_of_gemv_is_what_is_launched(shape, layout):
    M, N, K = shape
    a = padded(M, K, BF16, False, torch.randn)
    b = padded(K, N, BF16, layout[1] == "t" or N == 1, torch.randn)
    if M == N == 1:  # a column that is a row of a wider matrix
        b = torch.randn(80, dtype=BF16).as_strided((K, N), (1, 80))
    c = torch.empty(M, N, dtype=BF16)
    plan = find("cuda", "gemv").plan(problem_of(a, b, c))
    report = simulator.simulate(simulator.source_of("gemv"), a, b, c, plan=plan)
    assert report.block[0] == 32 * plan["WARPS"]
    side, few = (M, N) if M > N else (N, M)
    if plan["WARPS"] == 16:
        assert report.grid[0] == min(side, SIMULATED_SMS)
    else:
        tiles = -(-side // max(plan["BLOCK_M"], plan["BLOCK_N"])) * -(-few // 8)
        assert report.grid[0] == min(tiles, plan["BLOCKS"] * SIMULATED_SMS)


def test_the_rings_of_gemv_go_on_from_tile_to_tile(tmp_path):
    """With so few blocks that each has many tiles, or its warps many columns."""
    text = simulator.source_of("gemv").read_text()
    for many, few in {"std::min(tiles, most)": "2", "std::min(sms, o.N)": "1"}.items():
        assert text.count(many) == 1
        text = text.replace(many, few)
    source = tmp_path / "gemv.cu"
    source.write_text(text)
    assert_exact(source, [(1, 50, 2100), (1, 300, 72), (3, 129, 650), (17, 290, 136)])


@pytest.mark.spread(2, "name", "order")
@pytest.mark.parametrize("order", ["reverse", "random:5"])
@pytest.mark.parametrize("name", NAMES)
def test_no_order_of_threads_shows(name, order):
    a = padded(20, 1100, F16, False, torch.randn)
    b = padded(1100, 130, F16, False, torch.randn)
    c = torch.full((20, 130), float("nan"), dtype=F16)
    report = simulator.simulate(simulator.source_of(name), a, b, c, order=order)
    assert not report.findings
    assert accuracy.error_ratio(a, b, c) < 1


@pytest.mark.spread(3, "name", "M", "activation")
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize(("M", "N"), [(5, 130), (130, 8)])
@pytest.mark.parametrize("name", NAMES)
def test_what_follows_the_product_is_fused(name, M, N, activation):
    """alpha, beta, bias and an activation, with C by rows and by columns."""
    torch.manual_seed(0)
    a, b = torch.randn(M, 72, dtype=F16), torch.randn(N, 72, dtype=F16).mT
    c, bias = torch.randn(M, N, dtype=F16), torch.randn(N, dtype=F16)
    act = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}
    exact = act[activation](0.5 * (a.double() @ b.double()) - 2 * c.double() + bias.double())
    for out in (torch.empty(M, N, dtype=F16), torch.empty(N, M, dtype=F16).mT):
        got = tcgemm.gemm(
            a, b, c, alpha=0.5, beta=-2.0, bias=bias, epilogue=activation, out=out,
            backend="cuda", kernel=name,
        )  # fmt: skip
        assert torch.allclose(got.double(), exact, rtol=2**-10, atol=2**-10)


def test_skinny_refuses_with_the_numbers():
    reason = find("cuda", "skinny").why_not(problem(129, 130, 64))
    assert "M=129 and N=130" in reason
    assert "128" in reason


@pytest.mark.parametrize("shape", [(1, 8192, 8192), (104, 4096, 8200), (4096, 16, 4096)], ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_few_rows_and_few_columns_go_to_rungs_for_them(shape, layout):
    few = "gemv" if shape == (1, 8192, 8192) and layout[1] == "t" else "skinny"
    if shape == (4096, 16, 4096) and layout[1] == "n":  # rows of 16 elements, by the 4096 columns
        few = "one_wave"
    assert choose(problem(*shape, layout=layout), "cuda").name == few


def test_gemv_refuses_with_the_numbers():
    why_not = find("cuda", "gemv").why_not
    assert "B is 256-byte aligned with rows 8194" in why_not(problem(2, b_strides=(4097, 1)))
    assert "B is 8-byte aligned" in why_not(problem(2, b_alignment=8))
    assert "A is 8-byte aligned" in why_not(problem(4096, 2, a_alignment=8))
    assert why_not(problem(1, a_alignment=2, a_strides=(9, 3))) is None
    assert "K=2147483648 and gemv counts to 2147483392" in why_not(problem(1, K=2**31))


def test_few_rows_that_tma_cannot_read_go_to_gemv():
    assert choose(problem(4, a_strides=(4099, 1)), "cuda").name == "gemv"


def test_batches_of_few_rows_go_to_gemv():
    asked = problem(4, batch=3, batch_strides=(4 * 4096, 4096 * 4096, 4 * 4096))
    assert choose(asked, "cuda").name == "gemv"


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((256, 256, 16384), "one_wave"),
        ((512, 512, 512), "one_wave"),
        ((1024, 1024, 1024), "one_wave"),
        ((256, 256, 128), "one_wave"),
        ((2048, 2048, 2048), "wgmma_persistent"),
        ((4096, 2112, 7168), "wgmma_persistent"),
        ((128, 28672, 4096), "one_wave"),
        ((64, 28672, 4096), "stream_k"),
        ((64, 28680, 4096), "stream_k"),
        ((64, 16384, 4096), "skinny"),
        ((128, 6144, 4096), "one_wave"),
        ((128, 128, 128), "one_wave"),
        ((64, 2048, 512), "one_wave"),
        ((64, 512, 512), "skinny"),
        ((1, 28672, 4096), "gemv"),
        ((1, 4096, 4096), "skinny"),
        ((8, 4096, 4096), "skinny"),
        ((64, 64, 1024), "skinny"),
        ((256, 264, 16384), "one_wave"),
    ],
)
def test_the_choice_is_the_rung_measured_fastest(shape, name):
    """Of tables and costs: the model of drawn shapes may give a short product to another."""
    asked = problem(*shape)
    able = [row.name for row in rows_of("cuda") if row.why_not(asked) is None]
    assert cuda_ref.choose(asked, able) == name


gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0",
)
DEEP = [
    ("skinny", (16, 4096, 4096)),
    ("skinny", (100, 2112, 7168)),
    ("skinny", (4096, 16, 4096)),
    ("stream_k", (64, 11008, 4096)),
    ("stream_k", (100, 2112, 7168)),
    ("stream_k", (4096, 16, 4096)),
    ("one_wave", (256, 256, 16384)),
    ("one_wave", (128, 6144, 4096)),
    ("one_wave", (72, 6144, 4096)),  # fours that share what there is of A
    ("one_wave", (4096, 120, 4096)),
    ("one_wave", (250, 7112, 2048)),  # pairs of uneven tiles, and the last one in part
    ("one_wave", (200, 2304, 4096)),
    ("one_wave", (64, 5120, 5120)),  # the next kernel waits
    ("split_k", (256, 256, 16384)),
    ("split_k", (300, 520, 8192)),
    ("gemv", (5, 4096, 14336)),
    ("gemv", (1, 28672, 4096)),
    ("gemv", (1, 384, 8192)),  # clusters that divide K of a K-major B
    ("gemv", (4096, 1, 8192)),
]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("name", "shape"), DEEP, ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_deep_sums_are_exact_in_every_place_of_c(name, shape, layout):
    M, N, K = shape
    a = torch.randint(-2, 3, (M, K), device="cuda").to(BF16)
    b = torch.randint(-2, 3, (K, N) if layout == "nn" else (N, K), device="cuda").to(BF16)
    b = b if layout == "nn" else b.mT
    for c in (torch.empty(M, N, device="cuda"), torch.empty(N, M, device="cuda").mT):
        tcgemm.matmul(a, b, backend="cuda", kernel=name, out=c)
        assert torch.equal(c.double(), a.double() @ b.double())


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("name", "shape"), DEEP, ids=str)
def test_two_streams_and_reruns_give_the_same_bits(name, shape):
    """Clusters and workspaces of two calls at once: each keeps to its own."""
    M, N, K = shape
    pairs = [
        (
            torch.randn(M, K, device="cuda", dtype=BF16),
            torch.randn(N, K, device="cuda", dtype=BF16).mT,
        )
        for _ in range(2)
    ]
    alone = [tcgemm.matmul(*pair, backend="cuda", kernel=name) for pair in pairs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in pairs]
    together: list[list[torch.Tensor]] = [[], []]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                together[i].append(tcgemm.matmul(*pairs[i], backend="cuda", kernel=name))
    torch.cuda.synchronize()
    for i in range(2):
        assert all(torch.equal(alone[i], c) for c in together[i])


needs_nvcc = pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)
report = cache(records.cuda)


@needs_nvcc
def test_gemv_copies_asynchronously_and_spills_nothing():
    made = report("gemv", "sm_90a")
    assert made.spill_bytes == 0
    by_rings = [kernel for kernel in made.kernels if kernel.sass["LDGSTS"]]
    assert not any(kernel.sass["UTMALDG"] for kernel in made.kernels)
    # A column for each warp is no tensor core's work, nor are odd rows of either kind.
    without = [kernel for kernel in by_rings if kernel.sass["HMMA"] == 0]
    assert len(without) == len(by_rings) // 3 == len(cuda_ref.PAIRS)
    assert len(made.kernels) == len(by_rings) + 2 * len(cuda_ref.PAIRS)


@needs_nvcc
def test_gemv_meets_its_cluster_before_it_leaves():
    """Its blocks wait for each other's sums, and once more until all have read them: a block that
    has left takes its shared memory along."""
    for kernel in report("gemv", "sm_90a").kernels:
        # An arrival and a wait each; those that take whole columns of B exchange nothing.
        odd_by_rows = "Lb0ELb0ELb1E" in kernel.symbol
        assert kernel.sass["UCGABAR"] == (2 * 2 if kernel.sass["HMMA"] or odd_by_rows else 0)


@needs_nvcc
@pytest.mark.parametrize("name", BY_TMA)
def test_nothing_is_spilled_or_serialized(name):
    macros = toolchain.built_by_case(toolchain.source(name))
    defines = case(torch.bfloat16, None, torch.bfloat16, macros=macros) if macros else ()
    made = report(name, "sm_90a", defines)
    assert made.spill_bytes == 0
    assert made.sass["STL"] == 0
    kernels = [kernel for kernel in made.kernels if kernel.sass["HGMMA"]]
    # Type pairs, majors of B, and of A: one tile for split_k; for skinny six and, transposed, four.
    pairs = 1 if defines else len(cuda_ref.PAIRS)
    assert len(kernels) == pairs * 2 * {"split_k": 2, "skinny": 18, "stream_k": 10}[name]
    for kernel in kernels:
        assert kernel.sass["UTMALDG"] > 0
        assert kernel.sass["WARPGROUP"] < kernel.sass["HGMMA"] + 4
        for other in ("HMMA", "LDSM", "LDGSTS"):
            assert kernel.sass[other] == 0, other
