"""Every Triton rung against float64 and exact integers: in the interpreter on a CPU, compiled on a
GPU."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from importlib import import_module

import numpy as np
import pytest
import torch

from tcgemm import dispatch

plans = import_module("tcgemm.triton_kernels.by_name")

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
RUNGS = [
    row.name
    for row in dispatch.ladder("triton")
    if DEVICE in row.devices and ("bfloat16", "bfloat16") in row.pairs
]
TMA_RUNGS = ("descriptor", "split_k", "warp_specialized")
POINTER_RUNGS = [name for name in RUNGS if name not in TMA_RUNGS]
LAYOUTS = ("nn", "nt", "tn", "tt")
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
PAIRS = ((F16, F16), (F16, F32), (BF16, BF16), (BF16, F32))
ROUNDOFF = {F16: 2.0**-11, BF16: 2.0**-8, F32: 2.0**-24}

EDGES = [
    (1, 1, 1),
    (1, 17, 2),
    (2, 3, 7),
    (3, 1, 64),
    (7, 129, 8),
    (8, 8, 15),
    (15, 33, 16),
    (16, 16, 17),
    (17, 31, 31),
    (31, 63, 32),
    (32, 65, 33),
    (33, 32, 63),
    (63, 2, 65),
    (64, 64, 1),
    (65, 127, 127),
    (127, 7, 128),
    (128, 128, 129),
    (129, 15, 3),
    (100, 100, 100),
    (127, 129, 65),
    (255, 1, 255),
    (1, 257, 256),
    (256, 255, 257),
    (257, 256, 31),
    (101, 103, 107),
]

LARGE = [
    (1024, 1024, 1024),
    (4096, 128, 4096),
    (16, 4096, 4096),
    (1, 8192, 512),
    (2000, 2056, 1000),
    (640, 3072, 8192),
    (4104, 4096, 72),
    (64, 14336, 512),
    (70_000, 64, 64),
    (64, 70_000, 64),
]


def matrix(rows: int, columns: int, dtype: torch.dtype, letter: str, fill: str = "normal"):
    """A matrix inside a larger buffer of NaN, rows at 16-byte multiples, in storage order
    ``letter`` (n: row-major, t: column-major)."""
    outer, inner = (rows, columns) if letter == "n" else (columns, rows)
    pitch = -(-inner // 8) * 8 + 8
    buffer = torch.full((outer + 1, pitch), float("nan"), dtype=dtype, device=DEVICE)
    view = buffer[:outer, :inner]
    if fill == "normal":
        view.copy_(torch.randn(outer, inner, device=DEVICE))
    elif fill == "integers":
        most = 8
        view.copy_(torch.randint(-most, most + 1, (outer, inner), device=DEVICE))
    return view if letter == "n" else view.mT


def small(name: str) -> dict[str, int]:
    """A plan of small tiles, so that small problems have many."""
    config = {
        "BLOCK_M": 32,
        "BLOCK_N": 32,
        "BLOCK_K": 32,
        "GROUP_M": 2,
        "FLATTEN": 0,
        "NUM_STAGES": 3,
        "NUM_WARPS": 4,
        "CONSUMERS": 1,
        "SUBTILES": 1,
        "BUFFERS": 1,
        "SPLITS": 3,
        "PDL": 0,
    }
    if name == "warp_specialized":
        # A warpgroup multiplies 64 rows at least.
        config["BLOCK_M"] = 64
    if name == "thin":
        config["BLOCK_M"] = 1
    problem = dispatch.problem_of(*(matrix(32, 32, F16, "n") for _ in range(3)))
    plan = dispatch.find("triton", name).plan(problem)
    return {key: config[key] for key in plan if key in config}


def run(name: str, a, b, c, plan: Mapping[str, int] | None = None) -> None:
    kernel = dispatch.find("triton", name)
    problem = dispatch.problem_of(a, b, c)
    reason = kernel.why_not(problem)
    if reason is not None and CUDA and ("capability" in reason or "whole units" in reason):
        pytest.skip(reason)
    assert reason is None, reason
    if plan is not None:
        # As a table's config: parts, whole tiles and orientation are counted for the problem.
        turned = problem.M > problem.N
        problem = problem.transposed() if turned and name in plans.DIVIDING else problem
        plan = plans.divide(name, dict(plan), problem, 5, turned)
    dispatch.load("triton", name)(a, b, c, **(plan or kernel.plan(problem)))


def assert_right(a, b, c) -> None:
    """Both checks of a result: every element within its error bound."""
    a, b = a.double().cpu(), b.double().cpu()
    exact, magnitude = a @ b, a.abs() @ b.abs()
    bound = 2 * a.shape[1] ** 0.5 * 2.0**-23 * magnitude
    bound += ROUNDOFF[c.dtype] * exact.abs() + 2.0**-25
    error = (c.double().cpu() - exact).abs()
    assert bool((error <= bound).all()), f"worst error over bound: {(error / bound).max():.3g}"


def assert_outside_untouched(c) -> None:
    """C is a view of a buffer that was all NaN: nothing but the view has numbers in it."""
    size = c.untyped_storage().nbytes() // c.element_size()
    buffer = torch.as_strided(c, (size,), (1,), 0)
    written = int((~buffer.isnan()).sum())
    assert written == c.numel()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(2)


@pytest.mark.spread(7, "size", "name")
@pytest.mark.parametrize("size", EDGES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", RUNGS)
def test_edge_sizes(name, size):
    (M, N, K), turn = size, EDGES.index(size) + RUNGS.index(name)
    dtype_in, dtype_out = PAIRS[turn % 4]
    layout = LAYOUTS[turn // 4 % 4] + "nt"[turn % 2]
    a = matrix(M, K, dtype_in, layout[0])
    b = matrix(K, N, dtype_in, layout[1])
    c = matrix(M, N, dtype_out, layout[2], "nan")
    run(name, a, b, c)
    assert_right(a, b, c)
    assert_outside_untouched(c)


@pytest.mark.spread(8, "pair", "layout", "name")
@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p[0]}-{p[1]}".replace("torch.", ""))
@pytest.mark.parametrize("layout", [x + y for x, y in itertools.product(LAYOUTS, "nt")])
@pytest.mark.parametrize("name", RUNGS)
def test_layouts_and_dtypes(name, layout, pair):
    M, N, K = 72, 40, 80
    a = matrix(M, K, pair[0], layout[0], "integers")
    b = matrix(K, N, pair[0], layout[1], "integers")
    c = matrix(M, N, pair[1], layout[2], "nan")
    run(name, a, b, c, small(name))
    exact = (a.double().cpu() @ b.double().cpu()).to(pair[1])
    assert torch.equal(c.cpu(), exact)
    assert_outside_untouched(c)


@pytest.mark.spread(4, "size", "name")
@pytest.mark.parametrize(
    "size", [(128, 320, 64), (320, 128, 33), (161, 97, 31), (32, 352, 32), (96, 224, 96)]
)
@pytest.mark.parametrize("name", RUNGS)
def test_every_tile_is_visited(name, size):
    """Tile rows that are no multiple of GROUP_M, more tiles than persistent programs."""
    assert_every_tile(name, *size)


def test_split_tiles_are_visited_beside_whole_ones():
    """split_k divides one tile among three programs, and leaves twenty whole."""
    assert_every_tile("split_k", 96, 224, 96)


def assert_every_tile(name, M, N, K):
    a, b = matrix(M, K, F16, "n", "integers"), matrix(K, N, F16, "t", "integers")
    c = matrix(M, N, F32, "n", "nan")
    run(name, a, b, c, {k: 4 if k == "GROUP_M" else v for k, v in small(name).items()})
    assert torch.equal(c.cpu(), a.float().cpu() @ b.float().cpu())


@pytest.mark.spread(4, "steps", "name")
@pytest.mark.parametrize("steps", [31, 32, 33, 95, 96, 97, 128])
@pytest.mark.parametrize("name", RUNGS)
def test_k_around_the_stages(name, steps):
    a, b = matrix(40, steps, BF16, "n"), matrix(steps, 48, BF16, "n")
    c = matrix(40, 48, BF16, "n", "nan")
    run(name, a, b, c, small(name))
    assert_right(a, b, c)


@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("name", POINTER_RUNGS)
def test_storage_offsets(name, offset):
    def view(rows, columns, dtype):
        buffer = torch.randn(rows * columns + offset, device=DEVICE).to(dtype)
        return buffer[offset:].view(rows, columns)

    a, b, c = view(45, 50, F16), view(50, 37, F16), view(45, 37, F32).fill_(float("nan"))
    run(name, a, b, c)
    assert_right(a, b, c)


@pytest.mark.parametrize("name", POINTER_RUNGS)
def test_odd_strides(name):
    """Steps along both dimensions, stride 0, overlapping rows, a strided output."""
    a = matrix(80, 120, F16, "n")[::2, ::3]
    b = torch.as_strided(torch.randn(200, device=DEVICE).half(), (40, 50), (3, 1))
    c = matrix(80, 100, F16, "n", "nan")[::2, ::2]
    run(name, a, b, c)
    assert_right(a, b, c)
    expanded = torch.randn(1, 50, device=DEVICE).half().expand(40, 50)
    run(name, a, expanded, c)
    assert_right(a, expanded, c)


@pytest.mark.parametrize("name", RUNGS)
def test_a_nan_row_makes_that_row_nan(name):
    a, b = matrix(50, 41, F16, "n"), matrix(41, 40, F16, "n")
    a[33, 40] = float("nan")
    c = matrix(50, 40, F32, "n", "nan")
    run(name, a, b, c, small(name))
    nan = c.isnan().cpu()
    assert bool(nan[33].all())
    assert int(nan.sum()) == 40


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("name", RUNGS)
def test_infinities(name, dtype):
    """Inf times 0 is NaN, Inf times a number Inf; the tail of K adds neither."""
    a, b = matrix(40, 35, dtype, "n"), matrix(35, 40, dtype, "n").fill_(1.0)
    a[3, 34] = float("inf")
    b[34, 5] = 0.0
    c = matrix(40, 40, dtype, "n", "nan")
    run(name, a, b, c, small(name))
    c = c.float().cpu()
    assert bool(c[3, 5].isnan())
    assert int(c.isnan().sum()) == 1
    assert bool((c[3, :5] == float("inf")).all())
    assert int(c.isinf().sum()) == 39


@pytest.mark.parametrize("name", RUNGS)
def test_float16_overflow_is_inf(name):
    a = torch.full((16, 16), 100.0, dtype=F16, device=DEVICE)
    c = torch.empty(16, 16, dtype=F16, device=DEVICE)
    run(name, a, a, c)
    assert bool((c == float("inf")).all())


@pytest.mark.parametrize("name", RUNGS)
def test_results_midway_between_two_of_bfloat16_go_to_the_even_one(name):
    sums = torch.tensor([[257.0, 259.0, -257.0, -259.0]], device=DEVICE)
    a = torch.tensor([[16.0, 1.0]], device=DEVICE, dtype=BF16).repeat(8, 4)
    b = torch.zeros(8, 8, device=DEVICE, dtype=BF16)
    b[0, :4] = torch.tensor([16.0, 16.0, -16.0, -16.0], device=DEVICE)
    b[1, :4] = torch.tensor([1.0, 3.0, -1.0, -3.0], device=DEVICE)
    c = torch.empty(8, 8, device=DEVICE, dtype=BF16)
    run(name, a, b, c)
    assert torch.equal(a.float() @ b.float(), torch.cat([sums, 0 * sums], 1).repeat(8, 1))
    expected = torch.tensor([256.0, 260.0, -256.0, -260.0], device=DEVICE, dtype=BF16)
    assert torch.equal(c[:, :4], expected.repeat(8, 1))


@pytest.mark.parametrize("name", POINTER_RUNGS)
def test_offsets_past_two_to_the_31(name):
    """A stride times an index past 2^31 elements, over a buffer that is mapped but not touched."""
    if CUDA and torch.cuda.mem_get_info()[0] < 10 << 30:
        pytest.skip("needs 10 GiB of free GPU memory")
    far = 2**30 + 8
    buffer = torch.empty(3 * far, dtype=F16, device=DEVICE)
    for shape, strides in (
        ((3, 16), (far, 1)),
        ((16, 3), (1, far)),
        ((2, 40), (1, 2**26 + 8)),
    ):
        a = buffer.as_strided(shape, strides)
        a.copy_(torch.randn(a.shape))
        b = matrix(a.shape[1], 16, F16, "n")
        c = matrix(a.shape[0], 16, F32, "n", "nan")
        run(name, a, b, c, small(name))
        assert_right(a, b, c)
    del a
    c = buffer.as_strided((3, 16), (far, 1)).fill_(float("nan"))
    a, b = matrix(3, 8, F16, "n"), matrix(8, 16, F16, "n")
    run(name, a, b, c)
    assert_right(a, b, c)


@pytest.mark.parametrize("name", RUNGS)
def test_repeated_calls_agree_to_the_bit(name):
    a, b = matrix(70, 90, BF16, "n"), matrix(90, 50, BF16, "t")
    first, second = matrix(70, 50, F32, "n", "nan"), matrix(70, 50, F32, "n", "nan")
    run(name, a, b, first)
    run(name, a, b, second)
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", RUNGS)
def test_more_than_65535_rows(name):
    a, b = torch.ones(65_700, 8, dtype=F16, device=DEVICE), matrix(8, 8, F16, "n")
    a[65_699] = 2.0
    c = torch.full((65_700, 8), float("nan"), dtype=F32, device=DEVICE)
    plan = small(name)
    block_m, block_n = (1, 4096) if name == "thin" else (4096, 16)
    large = {**plan, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": 16}
    run(name, a, b, c, plan if CUDA else large)
    assert_right(a, b, c)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs an NVIDIA GPU, and there is none here")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "size",
    LARGE,
    ids=lambda s: "x".join(map(str, s)),
)
@pytest.mark.parametrize("name", RUNGS)
def test_large_sizes_with_the_table(name, size, layout):
    M, N, K = size
    for dtype_in, dtype_out in PAIRS:
        a, b = matrix(M, K, dtype_in, layout[0]), matrix(K, N, dtype_in, layout[1])
        c = matrix(M, N, dtype_out, "n", "nan")
        run(name, a, b, c)
        assert_right(a, b, c)
        assert_outside_untouched(c)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs an NVIDIA GPU, and there is none here")
def test_a_cached_descriptor_keeps_no_memory_alive():
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        a = torch.randn(1024, 1024, device="cuda", dtype=BF16)
        c = torch.empty_like(a)
        run("descriptor", a, a, c)
        assert_right(a, a, c)
    del a, c
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs an NVIDIA GPU, and there is none here")
@pytest.mark.parametrize("name", RUNGS)
def test_graph_capture_and_the_current_stream(name):
    a, b = matrix(256, 128, F16, "n"), matrix(128, 192, F16, "n")
    c = matrix(256, 192, F16, "n", "nan")
    run(name, a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(name, a, b, c)
    a.copy_(torch.randn(256, 128))
    c.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert_right(a, b, c)


SPECIALIZED = pytest.mark.skipif(
    not CUDA or torch.cuda.get_device_capability() != (9, 0), reason="needs compute capability 9.0"
)


@SPECIALIZED
@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("pieces", [1, 2, 4])
@pytest.mark.parametrize("buffers", [1, 2])
def test_consumers_pieces_and_buffers(consumers, pieces, buffers):
    plan = {
        "BLOCK_M": 64 * consumers,
        "BLOCK_N": 128,
        "BLOCK_K": 64,
        "GROUP_M": 3,
        "NUM_STAGES": 3,
        "CONSUMERS": consumers,
        "SUBTILES": pieces,
        "BUFFERS": buffers,
    }
    a, b = matrix(1500, 328, BF16, "n"), matrix(328, 1608, BF16, "t")
    c = matrix(1500, 1608, BF16, "n", "nan")
    run("warp_specialized", a, b, c, plan)
    assert_right(a, b, c)
    assert_outside_untouched(c)
    again = matrix(1500, 1608, BF16, "n", "nan")
    run("warp_specialized", a, b, again, plan)
    assert torch.equal(c, again)


@SPECIALIZED
def test_a_kernel_that_starts_early_waits_for_the_one_before():
    """Each product reads what the launch just before it wrote, and overwrites what it read."""
    n = 512
    swap = torch.eye(n, device="cuda", dtype=F16).flip(0).contiguous()
    start = torch.randint(-8, 9, (n, n), device="cuda").to(F16)
    x, y = start.clone(), torch.empty_like(start)
    for _ in range(200):
        run("warp_specialized", swap, x, y)
        run("warp_specialized", swap, y, x)
    assert torch.equal(x, start)


@SPECIALIZED
def test_launches_follow_their_tensors_and_streams():
    stream = torch.cuda.Stream()
    for seed in range(4):
        a, b = matrix(256, 192, F16, "n", "integers"), matrix(192, 256, F16, "n", "integers")
        c = matrix(256, 256, F16, "n", "nan")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run("warp_specialized", a, b, c)
        stream.synchronize()
        assert torch.equal(c, (a.double() @ b.double()).half()), seed


@pytest.mark.parametrize("name", ["skinny", "split_k"])
@pytest.mark.parametrize("parts", [8, 9, 11])
def test_more_parts_than_are_added_at_once(name, parts):
    """The second pass adds eight at a time, and in the last round what is left."""
    a, b = matrix(40, 32 * parts, F16, "n"), matrix(32 * parts, 33, F16, "n")
    c = matrix(40, 33, F32, "n", "nan")
    run(name, a, b, c, {**small(name), "SPLITS": parts})
    assert_right(a, b, c)


@pytest.mark.skipif(CUDA, reason="in the interpreter, which Triton on a GPU does not have")
@pytest.mark.parametrize("name", RUNGS)
def test_every_mask_is_of_type_bool_in_the_interpreter(name, monkeypatch):
    """Triton 3.8's interpreter refuses the numbers that a comparison of two scalars becomes."""
    builder = import_module("triton.runtime.interpreter").InterpreterBuilder
    masks = []

    def keeping(access, place):
        def kept(self, *operands, **settings):
            masks.append(np.asarray(operands[place].data).dtype.name)
            return access(self, *operands, **settings)

        return kept

    for name_, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        monkeypatch.setattr(builder, name_, keeping(getattr(builder, name_), place))
    a, b = matrix(40, 352, F16, "n"), matrix(352, 40, F16, "n")
    c = matrix(40, 40, F16, "n", "nan")
    run(name, a, b, c, {**small(name), **({"SPLITS": 3} if name in ("skinny", "split_k") else {})})
    assert set(masks) == {"bool"}


@pytest.mark.skipif(CUDA, reason="in the interpreter, which Triton on a GPU does not have")
@pytest.mark.parametrize("fails", [False, True])
def test_the_interpreter_changes_the_language_once_a_launch_and_takes_it_back(fails, monkeypatch):
    """skinny has two launches. What their kernels call is ours and sees the language, or is the
    language's own and sees its core, where Triton itself takes nothing back."""
    runtime = import_module("tcgemm.triton_kernels.host.runtime")
    interpreter = import_module("triton.runtime.interpreter")
    language, original = runtime.tl, interpreter._patch_lang
    patched = []

    def patch(function):
        patched.append(function.__module__.partition(".")[0])
        return original(function)

    monkeypatch.setattr(runtime.one_at_a_time, "_patch", patch)
    if fails:

        def store(*operands, **settings):
            raise ArithmeticError("nothing is stored")

        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_masked_store", store)
    a, b, c = matrix(40, 96, F16, "n"), matrix(96, 33, F16, "n"), matrix(40, 33, F32, "n", "nan")
    before = dict(vars(language))
    for _ in range(2):
        patched.clear()
        if fails:
            with pytest.raises(interpreter.InterpreterError, match="nothing is stored"):
                run("skinny", a, b, c, {**small("skinny"), "SPLITS": 3})
        else:
            run("skinny", a, b, c, {**small("skinny"), "SPLITS": 3})
            assert_right(a, b, c)
        assert patched == ["tcgemm", "triton"] * (1 if fails else 2)
        assert vars(language) == before
