"""Every CUDA rung against float64 on a GPU: edge sizes, layouts, offsets, output types."""

import itertools
import math

import pytest
import torch

import tcgemm
from tcgemm import cuda_ref
from tcgemm.dispatch import find, problem_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

NAMES = [row["name"] for row in cuda_ref.KERNELS if ("float16", "float32") in row["pairs"]]
FEW_ROWS = ("skinny", "stream_k")
"""Take M or N of at most 128 alone."""
UNLIMITED = ["naive", "tiled", "wmma_any", "small"]
LAYOUTS = ["nn", "nt", "tn", "tt"]
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
PAIRS = [(F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)]
EDGES = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 97, 127, 128, 129, 255, 256, 257]
# Relative rounding of the output type, and half the spacing of its subnormal numbers.
ROUNDING = {F16: (2**-11, 2**-25), BF16: (2**-8, 2**-134), F32: (2**-24, 2**-150)}


def place(shape, dtype, transposed=False, offset=0, padding=0, fill=math.nan):
    """(buffer, view of that shape in it): stored transposed, `offset` elements in, rows padded."""
    rows, cols = shape[::-1] if transposed else shape
    pitch = cols + padding
    buffer = torch.full((offset + rows * pitch,), fill, dtype=dtype, device="cuda")
    view = buffer[offset:].view(rows, pitch)[:, :cols]
    return buffer, view.mT if transposed else view


def ratio(a, b, c):
    """The largest error of C over its bound: a correct kernel stays below 1."""
    a, b = a.double(), b.double()
    exact = a @ b
    relative, least = ROUNDING[c.dtype]
    bound = 2 * math.sqrt(a.shape[1]) * 2**-23 * (a.abs() @ b.abs())
    error = (c.double() - exact).abs() / (bound + relative * exact.abs() + least)
    return float(error.nan_to_num(nan=math.inf).max())


def check(kernel, M, N, K, pair, layout="nn", offsets=(0, 0, 0), padding=(0, 0, 0), c_t=False):
    """Both checks of one case, into a poisoned C whose surroundings have to stay as they were."""
    dtype, out_dtype = pair
    _, a = place((M, K), dtype, layout[0] == "t", offsets[0], padding[0])
    _, b = place((K, N), dtype, layout[1] == "t", offsets[1], padding[1])
    buffer, c = place((M, N), out_dtype, c_t, offsets[2], padding[2])
    case = f"{kernel} {M}x{N}x{K} {pair} {layout} {offsets} {padding} {c_t}"

    a.normal_()
    b.normal_()
    tcgemm.matmul(a, b, backend="cuda", kernel=kernel, out=c)
    assert ratio(a, b, c) < 1, case

    # Sums of up to 2048 products of at most 1 are exact in float16 and up to 256 in bfloat16.
    exact = 1 if out_dtype == BF16 and K > 256 else 2 if out_dtype != F32 else 64
    a.copy_(torch.randint(-exact, exact + 1, (M, K), device="cuda"))
    b.copy_(torch.randint(-1, 2, (K, N), device="cuda"))
    buffer.fill_(math.nan)
    tcgemm.matmul(a, b, backend="cuda", kernel=kernel, out=c)
    assert torch.equal(c, (a.double() @ b.double()).to(out_dtype)), case
    assert int((~buffer.isnan()).sum()) == M * N, f"{case}: wrote outside C"


@pytest.mark.parametrize("M", EDGES)
@pytest.mark.parametrize("kernel", UNLIMITED)
def test_edge_sizes_pairwise(kernel, M):
    """Each pair of edge sizes meets in (M, N), in (M, K) and in (N, K)."""
    for j, N in enumerate(EDGES):
        K = EDGES[(EDGES.index(M) + j) % len(EDGES)]
        check(kernel, M, N, K, PAIRS[j % 4], LAYOUTS[(j // 4 + M) % 4])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("kernel", NAMES)
def test_whole_tiles(kernel, pair, layout):
    last = (640, 64, 96) if kernel in FEW_ROWS else (640, 576, 96)
    for M, N, K in ((64, 64, 32), (128, 320, 64), (192, 128, 256), last):
        for c_t in (False, True):
            check(kernel, M, N, K, pair, layout, c_t=c_t)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(128, 320, 64), (100, 100, 100), (127, 129, 65)], ids=str)
@pytest.mark.parametrize("kernel", UNLIMITED)
def test_shapes_that_broke_others(kernel, shape, layout):
    for pair in PAIRS:
        check(kernel, *shape, pair, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", NAMES)
def test_one_tile_column_of_many_rows(kernel, layout):
    check(kernel, 4096, 128, 4096, (F16, F32), layout)


@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", UNLIMITED)
def test_offsets_and_padded_rows(kernel, layout, offset):
    for which in range(3):
        offsets = tuple(offset if i == which else 0 for i in range(3))
        for padding in ((0, 0, 0), (8, 8, 8), (3, 1, 5)):
            check(kernel, 96, 72, 40, PAIRS[which], layout, offsets, padding, c_t=which == 1)


@pytest.mark.parametrize("kernel", UNLIMITED)
def test_step_slices_stride_0_and_overlapping_views(kernel):
    base = torch.randn(300, 300, device="cuda", dtype=F16)
    views = [
        base[::2, ::3][:100, :70],
        base[:1].expand(100, 300)[:, :70],
        base.as_strided((100, 70), (1, 1)),
        base.as_strided((100, 70), (3, 5)),
        base[:, :1].expand(300, 70)[:100],
    ]
    for a, b in itertools.product(views, views):
        out = torch.full((200, 300), math.nan, device="cuda", dtype=F32)[::2, ::3]
        tcgemm.matmul(a, b.mT, backend="cuda", kernel=kernel, out=out)
        assert ratio(a, b.mT, out) < 1, (a.stride(), b.stride())


@pytest.mark.parametrize("kernel", NAMES)
def test_nan_and_inf_stay_in_their_rows(kernel):
    a, b = (torch.randn(128, 128, device="cuda", dtype=F16) for _ in range(2))
    a[5, 7] = math.nan
    a[9, 127] = math.inf
    c = tcgemm.matmul(a, b, backend="cuda", kernel=kernel, out_dtype=F32)
    clean = torch.ones(128, dtype=torch.bool, device="cuda")
    clean[[5, 9]] = False
    assert c[5].isnan().all()
    assert c[9].isinf().all()
    assert c[clean].isfinite().all()


@pytest.mark.parametrize("kernel", UNLIMITED)
def test_padding_never_meets_inf(kernel):
    """Inf in the last k and the last row, where a tile hangs over the edge."""
    a = torch.ones(33, 17, device="cuda", dtype=F16)
    b = torch.ones(17, 35, device="cuda", dtype=F16)
    a[:, 16] = math.inf
    b[0, 34] = math.inf
    c = tcgemm.matmul(a, b, backend="cuda", kernel=kernel)
    assert (c == math.inf).all()


@pytest.mark.parametrize("kernel", NAMES)
def test_float16_overflow_is_inf(kernel):
    a = torch.full((128, 128), 200.0, device="cuda", dtype=F16)
    assert (tcgemm.matmul(a, a, backend="cuda", kernel=kernel) == math.inf).all()


@pytest.mark.parametrize("kernel", UNLIMITED)
def test_dimensions_above_the_grid_limit_of_y_and_z(kernel):
    check(kernel, 70001, 3, 5, (F16, F16))
    check(kernel, 3, 70001 * 17, 5, (BF16, F32))


@pytest.mark.parametrize("kernel", UNLIMITED)
def test_a_long_sum(kernel):
    check(kernel, 17, 33, 2**17, (F16, F32), "nt")


@pytest.mark.parametrize("kernel", UNLIMITED)
def test_offsets_beyond_31_bits(kernel):
    buffer = torch.zeros(3 * 2**30, device="cuda", dtype=F16)
    a = buffer.as_strided((3, 40), (2**30, 1))
    b = buffer.as_strided((40, 3), (1, 2**30), 64)
    a.normal_()
    b.normal_()
    assert ratio(a, b, tcgemm.matmul(a, b, backend="cuda", kernel=kernel)) < 1


@pytest.mark.parametrize("kernel", NAMES)
def test_two_runs_agree_to_the_bit(kernel):
    a, b = (torch.randn(512, 512, device="cuda", dtype=BF16) for _ in range(2))
    a = a[:128] if kernel in FEW_ROWS else a
    one, two = (tcgemm.matmul(a, b, backend="cuda", kernel=kernel) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("kernel", NAMES)
def test_work_is_ordered_on_the_current_stream_and_captured(kernel):
    a, b = (torch.randn(256, 256, device="cuda", dtype=F16) for _ in range(2))
    a = a[:128] if kernel in FEW_ROWS else a
    c = tcgemm.matmul(a, b, backend="cuda", kernel=kernel)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tcgemm.matmul(a, b, backend="cuda", kernel=kernel, out=c)
    a.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert ratio(a, b, c) < 1


@pytest.mark.parametrize("kernel", NAMES)
def test_a_refusal_here_is_the_row_s(kernel):
    a = torch.randn(100, 100, device="cuda", dtype=F16)
    reason = find("cuda", kernel).why_not(problem_of(a, a, a))
    if reason is None:
        check(kernel, 100, 100, 100, (F16, F16))
    else:
        with pytest.raises(tcgemm.UnsupportedError, match=r"100 is no multiple|200 bytes"):
            tcgemm.matmul(a, a, backend="cuda", kernel=kernel)


def test_no_kernel_named_takes_the_highest_rung_that_fits():
    a = torch.randn(100, 100, device="cuda", dtype=F16)
    assert ratio(a, a, tcgemm.matmul(a, a, backend="cuda")) < 1
