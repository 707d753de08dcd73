"""The Hopper rungs at the edges of their tiles, on an H100 or H200."""

import itertools
import math

import pytest
import torch

import tcgemm
from tcgemm.dispatch import ladder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a GPU of compute capability 9.0",
    ),
]

NAMES = [
    row.name
    for row in ladder("cuda")
    if row.capability == (9, 0) and ("bfloat16", "bfloat16") in row.pairs
]
LAYOUTS = ["nn", "nt", "tn", "tt"]
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
PAIRS = [(F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)]
SHAPES = [
    (127, 129, 72),
    (128, 320, 64),
    (64, 8, 8),
    (1, 1, 1),
    (1, 257, 64),
    (257, 1, 65),
    (129, 257, 321),
    (640, 1000, 1016),
    (2049, 2300, 96),
]


def operand(rows, cols, dtype, transposed, most):
    """Integers in a NaN-filled buffer, rows 16-byte aligned: what is outside must not count."""
    height, width = (cols, rows) if transposed else (rows, cols)
    buffer = torch.full((height + 1, -(-width // 8) * 8 + 8), math.nan, dtype=dtype, device="cuda")
    view = buffer[:height, :width]
    view.copy_(torch.randint(-most, most + 1, (height, width), device="cuda"))
    return view.mT if transposed else view


def output(M, N, dtype, place):
    """(buffer, C in it): C by TMA, by plain stores, column-major, in steps of 2."""
    if place == "columns":
        buffer = torch.full((N + 1, -(-M // 8) * 8 + 8), math.nan, dtype=dtype, device="cuda")
        return buffer, buffer[:N, :M].mT
    if place == "steps":
        buffer = torch.full((M + 1, 2 * N + 1), math.nan, dtype=dtype, device="cuda")
        return buffer, buffer[:M, : 2 * N : 2]
    first, pitch = {"tma": (0, -(-N // 8) * 8 + 8), "odd": (0, N + 1), "shifted": (1, N + 2)}[place]
    buffer = torch.full((M + 1, pitch), math.nan, dtype=dtype, device="cuda")
    return buffer, buffer[:M, first : first + N]


def check(kernel, M, N, K, pair, layout, place):
    dtype, out_dtype = pair
    most = 64 if out_dtype == F32 else 4
    a = operand(M, K, dtype, layout[0] == "t", most)
    b = operand(K, N, dtype, layout[1] == "t", most)
    buffer, c = output(M, N, out_dtype, place)
    tcgemm.matmul(a, b, backend="cuda", kernel=kernel, out=c)
    case = f"{kernel} {M}x{N}x{K} {pair} {layout} {place}"
    assert torch.equal(c, (a.double() @ b.double()).to(out_dtype)), case
    assert int((~buffer.isnan()).sum()) == M * N, f"{case}: wrote outside C"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", NAMES)
def test_integers_are_exact_and_stay_inside_c(kernel, layout, shape):
    if kernel in ("skinny", "stream_k") and min(shape[:2]) > 128:
        pytest.skip("neither M nor N is 128 or less")
    for pair, place in itertools.product(PAIRS, ("tma", "odd", "shifted", "columns", "steps")):
        check(kernel, *shape, pair, layout, place)


@pytest.mark.parametrize("tiles", [131, 132, 133, 528, 529, 2 * 529])
@pytest.mark.parametrize("kernel", NAMES)
def test_every_tile_of_a_schedule_is_visited(kernel, tiles):
    """Around one and four rounds of 132 SMs, in a row of tiles and in a column."""
    check(kernel, 128, 256 * tiles, 64, (BF16, F32), "nt", "tma")
    N = 128 if kernel in ("skinny", "stream_k") else 256
    check(kernel, 128 * tiles, N, 64, (BF16, F32), "nn", "tma")


@pytest.mark.parametrize("kernel", NAMES)
def test_kernels_in_a_row_wait_for_each_other(kernel):
    """Each product reads what the one before wrote: an early start must not show."""
    a = torch.eye(256, device="cuda", dtype=F16).roll(1, 0)
    c = x = torch.randn(256, 128, device="cuda", dtype=F16)
    for _ in range(64):
        c = tcgemm.matmul(a, c, backend="cuda", kernel=kernel)
    assert torch.equal(c, x.roll(64, 0))


@pytest.mark.parametrize("kernel", NAMES)
def test_a_graph_replays_a_chain(kernel):
    a = torch.eye(256, device="cuda", dtype=F16).roll(1, 0)
    x = torch.randn(256, 128, device="cuda", dtype=F16)
    tcgemm.matmul(a, x, backend="cuda", kernel=kernel)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = x
        for _ in range(8):
            c = tcgemm.matmul(a, c, backend="cuda", kernel=kernel)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(c, x.roll(8, 0))


@pytest.mark.parametrize("kernel", NAMES)
def test_threads_share_the_tensor_maps(kernel):
    from concurrent.futures import ThreadPoolExecutor

    def product(size):
        a = torch.randint(-4, 5, (size, size), device="cuda").to(F16)
        b = a[:, :128]
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            c = tcgemm.matmul(a, b, backend="cuda", kernel=kernel, out_dtype=F32)
            torch.cuda.current_stream().synchronize()
        return torch.equal(c, (a.double() @ b.double()).float())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(product, [64, 128, 192, 256] * 8))
