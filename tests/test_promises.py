"""The promises of docs/contract.md, each a test over all KERNELS of all backends.

A kernel keeps a promise or refuses the case with a sentence that has the numbers in it; it never
computes something else. On a machine without a GPU this is the interpreter and the CPU.
"""

from __future__ import annotations

import itertools

import pytest
import torch

import tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.errors import UnsupportedError

DTYPES = [torch.float16, torch.bfloat16]
ANY = dispatch.Kernel.__dataclass_fields__["shapes"].default
SIZES = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 65]


def kept(row, a, b, **arguments):
    """C by this kernel, or None where its row refuses with a sentence that has numbers in it."""
    try:
        return tcgemm.matmul(a, b, backend=row.backend, kernel=row.name, **arguments)
    except UnsupportedError as error:
        refusal = str(error)
    assert row.shapes != ANY, f"{row.full_name} says that it takes {ANY}, yet: {refusal}"
    reason = refusal.partition(f" on {a.device.type}: ")[2].partition("; ")[0]
    assert any(character.isdigit() for character in reason), refusal
    return None


def check(row, a, b, out_dtype=None):
    """Right by the element-wise bound, into poisoned memory; False where refused."""
    out = torch.full((a.shape[0], b.shape[1]), float("nan"), device=a.device)
    out = out.to(out_dtype or a.dtype)
    c = kept(row, a, b, out=out)
    if c is None:
        return False
    worst = accuracy.error_ratio(a, b, c)
    assert worst <= 1, f"error is {worst:.3g} times the bound"
    return True


def normal(rows, columns, dtype, device, seed=0):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, device=device).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sizes_around_every_edge(row, device, dtype):
    pairs = list(itertools.product(SIZES, SIZES))
    for index, (M, N) in enumerate(pairs[:: 1 if device == "cuda" else 7]):
        K = SIZES[index % len(SIZES)]
        check(row, normal(M, K, dtype, device), normal(K, N, dtype, device, 1))


@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(128, 320, 64), (100, 100, 100), (127, 129, 65)], ids=str)
def test_shapes_that_break_published_kernels(row, device, shape, out_dtype):
    M, N, K = shape
    a, b = normal(M, K, torch.float16, device), normal(K, N, torch.float16, device, 1)
    check(row, a, b, out_dtype)


@pytest.mark.parametrize("c_layout", ["row-major", "column-major"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts(row, device, layout, c_layout):
    M, N, K = 64, 96, 80
    a, b = normal(M, K, torch.float16, device), normal(K, N, torch.float16, device, 1)
    if layout[0] == "t":
        a = a.T.contiguous().T
    if layout[1] == "t":
        b = b.T.contiguous().T
    out = torch.full((M, N) if c_layout == "row-major" else (N, M), float("nan"), device=device)
    out = out.half() if c_layout == "row-major" else out.half().T
    c = kept(row, a, b, out=out)
    if c is not None:
        assert accuracy.error_ratio(a, b, c) <= 1


def test_sliced_stepped_expanded_and_overlapping_views(row, device):
    base = normal(80, 80, torch.float16, device)
    views = {
        "sliced rows": base[:40, 8:56],
        "step slice": base[::2, ::3][:40, :20],
        "stride 0": base[:1, :48].expand(40, 48),
        "overlapping": base.as_strided((40, 48), (3, 1)),
    }
    for a in views.values():
        b = normal(a.shape[1], 24, torch.float16, device, 1)
        check(row, a, b)
        check(row, b.T, a.T)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_storage_offsets(row, device, offset):
    M, N, K = 33, 17, 31
    flat = normal(1, 4096, torch.float16, device)[0]
    a = flat[offset : offset + M * K].view(M, K)
    b = flat[offset + 1 : offset + 1 + K * N].view(K, N)
    check(row, a, b)


def test_exact_integers_are_equal_to_the_bit(row, device):
    for dtype, out_dtype in itertools.product(DTYPES, (None, torch.float32)):
        M, N, K = 64, 128, 64
        largest = accuracy.largest_integer(K, out_dtype or dtype)
        a, b = accuracy.operands(M, N, K, dtype, "nn", device, 3, largest)
        c = kept(row, a, b, out_dtype=out_dtype)
        if c is not None:
            assert torch.equal(c, (a.double() @ b.double()).to(c.dtype))


def test_empty_inner_dimension_gives_zeros(row, device):
    out = torch.full((3, 4), float("nan"), device=device).half()
    a, b = torch.empty(3, 0, device=device).half(), torch.empty(0, 4, device=device).half()
    c = tcgemm.matmul(a, b, backend=row.backend, kernel=row.name, out=out)
    assert (c == 0).all()


@pytest.mark.parametrize(("M", "N"), [(0, 4), (3, 0), (0, 0)])
def test_empty_result(row, device, M, N):
    a, b = torch.empty(M, 5, device=device).half(), torch.empty(5, N, device=device).half()
    c = tcgemm.matmul(a, b, backend=row.backend, kernel=row.name, out_dtype=torch.float32)
    assert c.shape == (M, N)
    assert c.dtype == torch.float32
    assert c.device.type == device


def test_nan_in_one_row_stays_in_that_row(row, device):
    a, b = normal(32, 48, torch.float16, device), normal(48, 64, torch.float16, device, 1)
    a[5, 7] = float("nan")
    c = kept(row, a, b)
    if c is not None:
        assert c[5].isnan().all()
        assert not c[torch.arange(32, device=device) != 5].isnan().any()


@pytest.mark.parametrize("K", [16, 17, 33])
def test_padding_never_multiplies_infinity(row, device, K):
    a, b = normal(20, K, torch.float16, device).abs() + 1, normal(K, 24, torch.float16, device, 1)
    b = b.abs() + 1
    a[3, K - 1] = float("inf")
    c = kept(row, a, b)
    if c is not None:
        assert (c[3] == float("inf")).all()
        assert c[torch.arange(20, device=device) != 3].isfinite().all()


def test_float16_overflow_gives_infinity(row, device):
    a = torch.full((16, 64), 200.0, device=device).half()
    b = torch.full((64, 16), 200.0, device=device).half()
    c = kept(row, a, b)
    if c is not None:
        assert (c == float("inf")).all()
    c = kept(row, a, b, out_dtype=torch.float32)
    if c is not None:
        assert (c == 64 * 200 * 200).all()


def test_inputs_stay_as_they_are(row, device):
    a, b = normal(48, 32, torch.float16, device), normal(32, 64, torch.float16, device, 1)
    a0, b0 = a.clone(), b.clone()
    kept(row, a, b)
    assert torch.equal(a, a0)
    assert torch.equal(b, b0)


def test_bytes_outside_out_stay_as_they_are(row, device):
    a, b = normal(48, 32, torch.float16, device), normal(32, 64, torch.float16, device, 1)
    base = torch.full((60, 96), 7.0, device=device).half()
    window = base[8:56, 16:80]
    if kept(row, a, b, out=window) is not None:
        assert accuracy.error_ratio(a, b, window) <= 1
    outside = torch.ones(60, 96, dtype=torch.bool, device=device)
    outside[8:56, 16:80] = False
    assert (base[outside] == 7).all()


def test_same_inputs_give_the_same_bits(row, device):
    a, b = normal(128, 320, torch.float16, device), normal(320, 128, torch.float16, device, 1)
    if not row.deterministic:
        pytest.skip(f"{row.full_name} does not promise it")
    first = kept(row, a, b)
    if first is not None:
        for _ in range(3 if device == "cpu" else 20):
            assert torch.equal(kept(row, a, b), first)


# What only a GPU can show.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=str)
def test_larger_sizes_around_every_edge(row, dtype, out_dtype):
    sizes = [127, 128, 129, 255, 256, 257, 509]
    shapes = [*itertools.product(sizes, sizes[::2], sizes[1::2]), (1, 4099, 517), (4099, 1, 517)]
    shapes += [(64, 64, 2**17), (128, 128, 95), (128, 128, 97), (4096, 128, 4096)]
    for M, N, K in shapes:
        check(row, normal(M, K, dtype, "cuda"), normal(K, N, dtype, "cuda", 1), out_dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(70001, 16, 32), (16, 70001, 32), (70016, 64, 32)], ids=str)
def test_dimensions_above_65535(row, shape):
    M, N, K = shape
    check(row, normal(M, K, torch.float16, "cuda"), normal(K, N, torch.float16, "cuda", 1))


@pytest.mark.gpu
def test_offsets_are_64_bit(row):
    big = torch.empty(2**32 + 2**20, dtype=torch.float16, device="cuda")
    pitch = 2**26
    for step in (pitch, pitch + 1):
        a = big.as_strided((64, 64), (step, 1))
        a.copy_(normal(64, 64, torch.float16, "cuda"))
        check(row, a, normal(64, 64, torch.float16, "cuda", 1))
        out = big.as_strided((64, 64), (step, 1), 128)
        b = normal(64, 64, torch.float16, "cuda", 2)
        c = kept(row, normal(64, 64, torch.float16, "cuda", 3), b, out=out)
        if c is not None:
            assert accuracy.error_ratio(normal(64, 64, torch.float16, "cuda", 3), b, c) <= 1


@pytest.mark.gpu
def test_work_is_ordered_on_the_current_stream(row):
    a, b = normal(256, 256, torch.float16, "cuda"), normal(256, 256, torch.float16, "cuda", 1)
    if kept(row, a, b) is None:
        pytest.skip("refused")
    stream = torch.cuda.Stream()
    late = torch.zeros_like(a)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(a)
        c = kept(row, late, b)
    stream.synchronize()
    assert accuracy.error_ratio(a, b, c) <= 1


@pytest.mark.gpu
def test_graph_capture_and_replay(row):
    a, b = normal(256, 256, torch.float16, "cuda"), normal(256, 256, torch.float16, "cuda", 1)
    out = torch.empty(256, 256, dtype=torch.float16, device="cuda")
    if kept(row, a, b, out=out) is None:
        pytest.skip("refused")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept(row, a, b, out=out)
    a.copy_(normal(256, 256, torch.float16, "cuda", 9))
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert accuracy.error_ratio(a, b, out) <= 1


@pytest.mark.gpu
def test_two_threads_on_two_streams(row):
    from concurrent.futures import ThreadPoolExecutor

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            a = normal(192, 256, torch.float16, "cuda", seed)
            b = normal(256, 320, torch.float16, "cuda", seed + 100)
            for _ in range(10):
                c = kept(row, a, b)
                if c is not None:
                    assert accuracy.error_ratio(a, b, c) <= 1

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.gpu
def test_tensors_on_another_device_than_the_current_one(row):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = normal(64, 64, torch.float16, "cuda:1"), normal(64, 64, torch.float16, "cuda:1", 1)
    with torch.cuda.device(0):
        c = kept(row, a, b)
    if c is not None:
        assert c.device == a.device
        assert accuracy.error_ratio(a, b, c) <= 1
