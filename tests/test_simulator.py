"""The CUDA ladder in the simulator: right in every order of threads, and nothing to find in it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
import torch
from conftest import built_by_type

import tcgemm
from tcgemm import accuracy, cuda_ref, dispatch
from tcgemm.problem import Fusion
from tcgemm.verify.calls import pairs_of

simulator = import_module("tcgemm.cuda_ref.simulator")

HERE = Path(__file__).parent
RUNGS = [row for row in dispatch.ladder("cuda") if "cpu" in row.devices]
NAMES = [row.name for row in RUNGS]
ORDERS = ("forward", "reverse", "random:7")
LAYOUTS = ("nn", "nt", "tn", "tt")
SHAPES = (
    (1, 1, 1),
    (2, 65, 8),
    (17, 33, 31),
    (63, 15, 65),
    (16, 48, 32),
    (64, 64, 32),
    (128, 320, 64),
    (64, 192, 97),
)


def takes(rung, M, N, K, pair, layout):
    a, b = accuracy.operands(M, N, K, accuracy.as_dtype(pair[0]), layout, "cpu", 0)
    c = torch.empty(M, N, dtype=accuracy.as_dtype(pair[1]))
    return rung.why_not(dispatch.problem_of(a, b, c)) is None


# The other types are in test_cuda_types.py.
PLAIN = [
    pytest.param(row, pair, id=f"{row.name}-{'-'.join(pair)}")
    for row in RUNGS
    for pair in cuda_ref.PAIRS
    if pair in row.pairs
]


# From the first block to the last, and from pair to pair the other way or in no order. Of a rung's
# four pairs `make test` takes one, in the first order or in another; where each is a build, that of
# test_a_k_that_goes_around_the_ring_twice.
IN_ORDER = [
    pytest.param(
        *param.values, order, id=f"{param.id}-{order}",
        marks=[] if index % 8 == kept else pytest.mark.exhaustive,
    )
    for index, param in enumerate(PLAIN)
    for kept, order in (
        (2 if built_by_type(param.values[0]) else 0, ORDERS[0]),
        (6, ORDERS[1 + index // 8 % 2]),
    )
]  # fmt: skip


@pytest.mark.parametrize(("rung", "pair", "order"), IN_ORDER)
def test_right_in_any_order_and_nothing_found(rung, pair, order):
    ran = 0
    for index, (M, N, K) in enumerate(SHAPES):
        layout = LAYOUTS[(index + ORDERS.index(order)) % 4]
        # A rung without tiles makes a request an element: the largest shape adds nothing there.
        if not takes(rung, M, N, K, pair, layout) or (
            rung.name in ("naive", "tiled") and M * N * K > 2**18
        ):
            continue
        found = []

        def run(a, b, c, found=found):
            report = simulator.simulate(
                simulator.source_of(rung.name), a, b, c, order=order, check=True
            )
            found.extend(report.findings)

        verdict = accuracy.check(run, M, N, K, *pair, layout=layout)
        assert verdict.ok, (M, N, K, layout, verdict.reason)
        assert not found, (M, N, K, layout, [str(finding) for finding in found])
        ran += 1
    assert ran >= 2


# Eight stages, the most that a rung has, of 128 bytes of K each, twice and once more: a ring comes
# to its first slot again, and its barriers to their first parity.
WRAPPED_BYTES = 17 * 128


RINGLESS = "naive", "tiled", "wmma", "wmma_any", "short_k"


@pytest.mark.parametrize(
    "rung", [row for row in RUNGS if row.name not in RINGLESS], ids=lambda row: row.name
)
def test_a_k_that_goes_around_the_ring_twice(rung):
    # The types of test_simulator_counts.py's ladder where the rung has them: no build of its own.
    pairs = list(pairs_of(rung))
    usual = ("bfloat16", "bfloat16", "float32")
    dtype_in, dtype_out, compute = usual if usual in pairs else pairs[0]
    dtype = accuracy.as_dtype(dtype_in)
    K = WRAPPED_BYTES // dtype.itemsize
    if takes(rung, 64, 64, K + 8, (dtype_in, dtype_out), "nt"):
        K += 8  # and a step that is not whole
    a, b = accuracy.operands(64, 64, K, dtype, "nt", "cpu", 5)
    c = accuracy.poisoned((64, 64), accuracy.as_dtype(dtype_out), "cpu")
    fusion = Fusion(compute=compute)
    more = {} if dispatch.problem_of(a, b, c, fusion).plain else {"fusion": fusion}
    report = simulator.simulate(simulator.source_of(rung.name), a, b, c, check=True, **more)
    assert not report.findings, [str(finding) for finding in report.findings]
    assert accuracy.error_ratio(a, b, c, fusion) <= 1


@pytest.mark.exhaustive  # promise_19_two_threads multiplies by each of them
@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_the_plain_run_is_matmul(rung):
    types = (torch.bfloat16, torch.int8, torch.float64)
    dtype = next(t for t in types if any(pair[0] == str(t)[6:] for pair in rung.pairs))
    a, b = accuracy.operands(128, 320, 64, dtype, "nt", "cpu", 3)
    c = tcgemm.matmul(a, b, backend="cuda", kernel=rung.name)
    assert accuracy.error_ratio(a, b, c) <= 1


@pytest.mark.parametrize("check", [False, True])
def test_strided_operands_far_offsets_and_untouched_neighbours(check):
    M, N, K = 33, 20, 17
    buffer = torch.randn(4 * K, 3 * M + 5).half()
    a = buffer[::4, 5::3].T
    b = torch.randn(K, 1).half().expand(K, N)
    whole = torch.full((2 * M, 2 * N), 5.0)
    c = whole[::2, ::2]
    report = simulator.simulate(simulator.source_of("wmma_any"), a, b, c, check=check)
    assert report.ok, report.findings
    assert accuracy.error_ratio(a, b, c) <= 1
    assert bool((whole[1::2] == 5).all() and (whole[:, 1::2] == 5).all())


def test_offsets_beyond_two_to_the_31():
    a = torch.randn(2, 8).half()
    b = torch.randn(8, 4).half()
    ld = 2**31 + 8
    try:
        flat = torch.empty(ld + 4, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("there is no room for an address range of 4 GiB")
    c = flat.as_strided((2, 4), (ld, 1))
    report = simulator.simulate(simulator.source_of("naive"), a, b, c, check=True)
    assert report.ok, report.findings
    assert accuracy.error_ratio(a, b, c) <= 1


def test_one_worker_and_many_give_the_same_bits():
    a, b = accuracy.operands(128, 192, 64, torch.float16, "nn", "cpu", 1)
    results = []
    for workers in (1, 2, 5):
        c = torch.full((128, 192), float("nan"))
        simulator.simulate(simulator.source_of("wmma_any"), a, b, c, workers=workers)
        results.append(c)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_two_threads_at_once():
    cases = [accuracy.operands(65, 33, 40, torch.float16, "nn", "cpu", seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda ab: tcgemm.matmul(*ab, backend="cuda"), cases))
    for (a, b), c in zip(cases, results, strict=True):
        assert accuracy.error_ratio(a, b, c) <= 1


def test_speed_of_a_small_problem():
    """256 cubed: a second without checks, five with them; compiled before."""
    a, b = accuracy.operands(256, 256, 256, torch.float16, "nn", "cpu", 1)
    c = torch.empty(256, 256, dtype=torch.float16)
    for check, limit_s in ((False, 1.0), (True, 5.0)):
        times = []
        for _ in range(4):
            start = time.perf_counter()
            simulator.simulate(simulator.source_of("wmma_any"), a, b, c, check=check)
            times.append(time.perf_counter() - start)
        assert min(times[1:]) < limit_s, times


def test_unknown_orders_and_types_are_refused():
    a = torch.zeros(2, 2)
    with pytest.raises(ValueError, match="random:SEED"):
        simulator.simulate(simulator.source_of("naive"), a, a, a, order="sideways")
    with pytest.raises(ValueError, match="complex64"):
        simulator.simulate(simulator.source_of("naive"), a.to(torch.complex64), a, a)
    with pytest.raises(ValueError, match="no rung"):
        simulator.source_of("nonsense")


def test_a_file_that_does_not_compile_names_its_line(tmp_path):
    source = tmp_path / "broken.cu"
    source.write_text('#include "host/gemm.cuh"\nint x = nonsense;\n')
    a = torch.zeros(2, 2).half()
    with pytest.raises(RuntimeError, match=r"broken\.cu:2.*nonsense"):
        simulator.simulate(source, a, a, a)


def test_a_refused_launch_says_so(tmp_path):
    source = tmp_path / "wide.cu"
    source.write_text(
        '#include "host/gemm.cuh"\n'
        "__global__ void wide() {}\n"
        "int tcgemm_launch(const tcgemm::Gemm&, cudaStream_t stream) {\n"
        "  return tcgemm::launch(wide, dim3(1), dim3(2048), 0, stream);\n}\n"
    )
    a = torch.zeros(2, 2).half()
    with pytest.raises(simulator.SimulationError, match="CUDA error 9"):
        simulator.simulate(source, a, a, a)


# What kernels may use: types, warps, tensor cores.

WMMA_SHAPES = [(16, 16, 16), (32, 8, 16), (8, 32, 16)] * 5 + [(16, 16, 8), (8, 8, 4), (8, 8, 4)]


@pytest.mark.parametrize("check", [False, True])
def test_every_wmma_type_and_shape(check):
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(0, 8, (32, 16), generator=generator).float()
    b = torch.randint(0, 8, (16, 32), generator=generator).float()
    c = torch.full((32 * len(WMMA_SHAPES), 32), float("nan"))
    report = simulator.simulate(HERE / "simulated" / "wmma_types.cu", a, b, c, check=check)
    assert report.ok, [str(f) for f in report.findings]
    for block, (m, n, k) in enumerate(WMMA_SHAPES):
        expected = torch.zeros(32, 32)
        expected[:m, :n] = a[:m, :k] @ b[:k, :n]
        assert torch.equal(c[32 * block : 32 * block + 32], expected), (block, m, n, k)


def test_narrow_types_round_as_the_hardware():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, generator=generator) * torch.exp2(
        torch.randint(-18, 9, (4096,), generator=generator).float()
    )
    special = torch.tensor([0.0, -0.0, 1.0, 448.0, -(2.0**-24), 2.0**-25, 1 + 2.0**-11, 65504.0])
    x[: len(special)] = special
    c = torch.full((5, 4096), float("nan"))
    report = simulator.simulate(
        HERE / "simulated" / "rounding.cu", torch.zeros(5, 1), x[None], c, check=True
    )
    assert report.ok
    bits = x.view(torch.int32)
    tf32 = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    assert torch.equal(c[0], x.half().float())
    assert torch.equal(c[1], x.bfloat16().float())
    assert torch.equal(c[2], tf32)
    fits = x.abs() < 448
    assert torch.equal(c[3][fits], x.to(torch.float8_e4m3fn).float()[fits])
    assert torch.equal(c[4][fits], x.to(torch.float8_e5m2).float()[fits])
    assert float(c[3][7]) == 448.0  # saturates
    assert torch.equal(torch.signbit(c[0]), torch.signbit(x))


@pytest.mark.parametrize("order", ORDERS)
def test_warp_wide_operations_and_three_dimensions(order):
    threads, blocks = 64, 6
    c = torch.zeros(9, threads * blocks)
    a, b = torch.zeros(9, 1), torch.zeros(1, threads * blocks)
    report = simulator.simulate(HERE / "simulated" / "warp.cu", a, b, c, order=order)
    assert report.ok, [str(f) for f in report.findings]
    assert (report.grid, report.block) == ((2, 1, 3), (4, 8, 2))
    t = torch.arange(threads)
    lane, warp = t % 32, t // 32 * 32
    down = torch.where(lane % 8 + 3 < 8, t + 3, t)
    up = torch.where(lane >= 2, t - 2, t)
    expected = torch.stack([
        63 - t, warp + (lane ^ 5), down, up, warp + lane // 16 * 16 + 7,
        torch.full_like(t, 11), torch.full_like(t, 16), torch.full_like(t, 13),
    ]).float()  # fmt: skip
    assert torch.equal(c[:8], expected.repeat(1, blocks))
    sums = torch.zeros(threads)
    sums[0] = t.sum()
    assert torch.equal(c[8], sums.repeat(blocks))


def test_ldmatrix_and_mma_sync():
    a, b = torch.randn(16, 16).half(), torch.randn(16, 8).half()
    c = torch.full((16, 8), float("nan"))
    report = simulator.simulate(
        HERE / "simulated" / "fragments.cu", a, b, c, check=True, count=True
    )
    assert report.ok, [str(f) for f in report.findings]
    assert torch.allclose(c, a.float() @ b.float(), atol=1e-5)
    assert report.counts.mma == {"mma.sync m16n8k16 f16 -> f32": 1}
    assert report.counts.async_copies == 32 + 16


@pytest.mark.parametrize("order", ORDERS)
def test_pipeline_primitives(order):
    generator = torch.Generator().manual_seed(2)
    a = torch.randint(-8, 9, (20, 8), generator=generator).half()
    b = torch.randint(-8, 9, (30, 8), generator=generator).half().T
    c = torch.full((20, 30), float("nan"))
    report = simulator.simulate(
        HERE / "simulated" / "pipeline.cu", a, b, c, order=order, check=True, count=True
    )
    assert report.ok, report.findings
    assert torch.equal(c, a[:, :4].float() @ b[:4].float())
    assert report.counts.load_bytes == 20 * 16 + 30 * 8
    assert report.counts.async_copies == 50


def test_a_build_depends_on_the_headers_that_it_includes_and_on_no_other(tmp_path):
    """An edited header builds anew what reads it, however deep, and nothing else."""
    headers = import_module("tcgemm.cuda_ref.simulator.headers")
    names = {file.name for file in headers.included(simulator.source_of("naive"))}
    assert {"gemm.cuh", "epilogue.cuh", "activations.cuh", "simulator.hpp", "types.hpp"} <= names
    assert not {"scheduler.cuh", "mma.cuh"} & names
    (tmp_path / "beside.cuh").write_text('#include "deeper.cuh"\n')
    (tmp_path / "deeper.cuh").write_text("// one\n")
    (tmp_path / "other.cuh").write_text("// one\n")
    kernel = tmp_path / "kernel.cu"
    kernel.write_text('#include "beside.cuh"\n#include <cuda_fp16.h>\n')
    before = headers.digest_of(kernel)
    (tmp_path / "other.cuh").write_text("// two\n")
    assert headers.digest_of(kernel) == before
    (tmp_path / "deeper.cuh").write_text("// two\n")
    assert headers.digest_of(kernel) != before
    assert "simulator.hpp" in {file.name for file in headers.included(kernel)}
    # A macro, or a file of somewhere else: all headers count, and all that lie beside.
    kernel.write_text('#define BESIDE "beside.cuh"\n#include BESIDE\n')
    before = headers.digest_of(kernel)
    (tmp_path / "other.cuh").write_text("// three\n")
    assert headers.digest_of(kernel) != before


def test_headers_that_have_not_changed_are_not_read_again(tmp_path, monkeypatch):
    headers = import_module("tcgemm.cuda_ref.simulator.headers")
    monkeypatch.setattr(
        headers, "_SETTLED_NS", -(10**9)
    )  # of files that were written just now, too
    (tmp_path / "beside.cuh").write_text('#include "tile/order.cuh"\n')
    kernel = tmp_path / "kernel.cu"
    kernel.write_text('#include "beside.cuh"\n')
    digests = [headers.digest_of(kernel)]
    with monkeypatch.context() as unread:
        unread.setattr(headers, "text_of", None)
        unread.setattr(headers, "_bytes_of", None)
        assert headers.digest_of(kernel) == digests[0]
    (tmp_path / "beside.cuh").write_text('// Longer.\n#include "tile/order.cuh"\n')
    digests.append(headers.digest_of(kernel))
    # One that is found before the other, in a folder that was not there.
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "order.cuh").write_text("// Another.\n")
    (tmp_path / "made").rename(tmp_path / "tile")
    assert (tmp_path / "tile" / "order.cuh") in headers.included(kernel)
    digests.append(headers.digest_of(kernel))
    assert len(set(digests)) == 3
