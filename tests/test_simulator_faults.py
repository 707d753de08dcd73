"""Planted faults: each is found, named by its place, and the kernel without it has none."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

simulator = import_module("tcgemm.cuda_ref.simulator")
build = import_module("tcgemm.cuda_ref.simulator.build")

FAULTS = Path(__file__).parent / "faults"
ORDERS = ("forward", "reverse", "random:3")


def simulate(name, shape=(40, 40, 40), **options):
    M, N, K = shape
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(M, K, generator=generator).half()
    b = torch.randn(K, N, generator=generator).half()
    c = torch.full((M, N), float("nan"), dtype=torch.float16)
    options.setdefault("check", True)
    return simulator.simulate(FAULTS / f"{name}.cu", a, b, c, **options), c


def line_of(name, text):
    """The line of the fault's source that holds ``text``."""
    lines = (FAULTS / f"{name}.cu").read_text().splitlines()
    return f"{name}.cu:{next(i for i, line in enumerate(lines, 1) if text in line)}"


def only(report, kind):
    """The first finding of that kind; all findings in the failure message."""
    found = [finding for finding in report.findings if finding.kind == kind]
    assert found, [str(finding) for finding in report.findings]
    return found[0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(40, 40, 40), (16, 16, 16), (1, 1, 1), (33, 17, 8)], ids=str)
def test_nothing_is_found_without_a_fault(shape, order):
    report, _ = simulate("correct", shape, order=order)
    assert report.ok, report.findings


@pytest.mark.parametrize("order", ORDERS)
def test_a_removed_barrier_is_a_race(order):
    report, _ = simulate("removed_barrier", order=order)
    finding = only(report, "race")
    assert finding.kernel == "removed_barrier"
    assert {f.kind for f in report.findings} == {"race"}
    assert "no barrier in between" in finding.message
    assert line_of("removed_barrier", "sum +=") in finding.message


def threads_of(message):
    """(block, thread) of everybody whom a message names."""
    return re.findall(r"block (\([^)]*\)), thread (\([^)]*\))", message)


@pytest.mark.parametrize("order", [*ORDERS, "random:4", "random:5"])
def test_a_race_names_two_threads_and_two_places(order):
    report, _ = simulate("removed_barrier", order=order)
    races = [finding for finding in report.findings if finding.kind == "race"]
    assert races
    for finding in races:
        first, second = threads_of(finding.message)
        assert first != second, finding.message
        assert len(re.findall(r"removed_barrier\.cu:\d+", finding.message)) >= 2


RACE_IN_A_WARP = """#include "host/gemm.cuh"
__global__ void neighbours(const __half* a, __half* c) {
  __shared__ __half shared[32];
  shared[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  const __half first = shared[0];  // read by all lanes
  shared[threadIdx.x == 31 ? 0 : threadIdx.x] = first;  // written by the last one
  c[threadIdx.x] = first;
}
int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(neighbours, dim3(1), dim3(32), 0, stream,
                        static_cast<const __half*>(gemm.a.data), static_cast<__half*>(gemm.c.data));
}
"""


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_who_writes_what_all_lanes_read_races_with_another_lane(tmp_path, order):
    """The last reader of the bytes is their writer: the race is with one of the other readers."""
    source = tmp_path / "neighbours.cu"
    source.write_text(RACE_IN_A_WARP)
    a, b, c = torch.zeros(32, 1).half(), torch.zeros(1, 1).half(), torch.zeros(32, 1).half()
    report = simulator.simulate(source, a, b, c, check=True, order=order)
    finding = only(report, "race")
    first, second = threads_of(finding.message)
    assert first != second, finding.message
    assert "neighbours.cu:7" in finding.message
    assert "neighbours.cu:6" in finding.message


def test_a_removed_barrier_gives_another_result_in_another_order():
    """The same seed repeats the same wrong result."""
    results = [
        simulate("removed_barrier", (32, 32, 96), order=order, check=False)[1]
        for order in ("random:1", "random:1", "random:2")
    ]
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_in_a_branch(order):
    report, _ = simulate("barrier_in_branch", order=order)
    finding = only(report, "divergent barrier")
    lines = line_of("barrier_in_branch", "< gemm.c.rows) __syncthreads")
    assert lines in finding.message
    assert report.findings[0] == finding  # the cause before its consequences


def test_a_return_before_a_barrier():
    report, _ = simulate("early_return")
    finding = only(report, "exited before barrier")
    assert finding.thread is not None
    assert finding.thread[1] >= 8


@pytest.mark.parametrize("order", ORDERS)
def test_an_off_by_one_bound(order):
    report, _ = simulate("off_by_one", order=order)
    assert len(report.findings) == 1
    finding = only(report, "out of bounds")
    assert (finding.operand, finding.index[0]) == ("B", 40)
    assert finding.line.startswith(line_of("off_by_one", "k + y <= K"))
    assert "B is [40, 40]" in finding.message


def test_a_16_byte_copy_of_an_unaligned_row():
    report, _ = simulate("unaligned_copy", (32, 32, 33))
    finding = only(report, "misaligned")
    assert len(report.findings) == 1
    assert finding.operand == "A"
    assert finding.index[0] % 8
    assert finding.line == line_of("unaligned_copy", "cp_async_16")
    report, _ = simulate("unaligned_copy", (32, 32, 32))
    assert report.ok, report.findings


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_that_nobody_waits_for(order):
    report, c = simulate("copy_not_awaited", (32, 32, 32), order=order)
    finding = only(report, "async copy in flight")
    assert line_of("copy_not_awaited", "cp_async_16") in finding.message
    assert not bool(torch.isfinite(c).all())  # the data had not landed


def test_a_tile_left_uncomputed():
    report, c = simulate("uncomputed_tiles", (128, 320, 64))
    finding = only(report, "not written")
    assert len(report.findings) == 1
    assert (finding.times, finding.index) == (4096, (64, 256))
    assert int(c.isnan().sum()) == 4096


def test_an_uninitialised_tail():
    report, _ = simulate("uninitialised_tail", (40, 40, 8))
    finding = only(report, "uninitialised")
    assert len(report.findings) == 1
    assert finding.line == line_of("uninitialised_tail", "sum +=")


@pytest.mark.skipif(not build._poison_flags(), reason="needs g++ 12, which sets what nobody has")
def test_an_accumulator_that_nobody_set_makes_no_plausible_result():
    report, c = simulate("unset_accumulator", (16, 16, 16))
    assert report.ok, report.findings
    assert not c.isfinite().any()


def test_two_blocks_writing_one_tile():
    report, _ = simulate("two_blocks")
    finding = only(report, "written twice")
    assert len(report.findings) == 1
    assert finding.operand == "C"
    assert finding.index[1] >= 32
    assert finding.block[0] in (2, 3)


def test_a_warp_that_diverges_at_a_warp_wide_operation():
    report, _ = simulate("shuffle_in_branch")
    finding = only(report, "divergent warp")
    assert line_of("shuffle_in_branch", "__shfl_sync") in finding.message
    with pytest.raises(simulator.SimulationError, match="divergent warp"):
        report.raise_if_stopped()


def test_an_operand_written():
    report, _ = simulate("writes_input")
    assert only(report, "writes an input").operand == "A"


def test_an_address_of_nothing_is_named_before_it_is_read():
    report, _ = simulate("crashes")
    finding = only(report, "wild address")
    assert finding.line.startswith(line_of("crashes", "element(gemm.b"))


def test_a_crash_ends_with_a_message():
    report, _ = simulate("crashes", check=False)
    finding = only(report, "crash")
    assert "SIGSEGV" in finding.message
    assert finding.line.startswith(line_of("crashes", "element(gemm.b"))
    with pytest.raises(simulator.SimulationError, match="SIGSEGV"):
        report.raise_if_stopped()


@pytest.mark.parametrize("check", [False, True])
def test_a_hang_ends_with_a_message(check):
    report, _ = simulate("hangs", check=check, timeout_s=0.5)
    finding = only(report, "timeout")
    assert finding.fatal
    assert finding.block is not None


def test_no_process_is_left_behind():
    def children():
        return {
            child
            for task in Path("/proc/self/task").iterdir()
            for child in (task / "children").read_text().split()
        }

    before = children()
    simulate("hangs", check=False, timeout_s=0.3)
    simulate("correct")
    assert children() <= before


def test_shared_memory_beyond_what_was_asked_for(tmp_path):
    source = tmp_path / "too_far.cu"
    source.write_text(
        '#include "host/gemm.cuh"\n'
        "__global__ void too_far(__half* c) {\n"
        "  extern __shared__ __half tile[];\n"
        "  tile[threadIdx.x + 1] = __half(1.0f);\n"
        "  c[threadIdx.x] = tile[threadIdx.x + 1];\n}\n"
        "int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {\n"
        "  return tcgemm::launch(too_far, dim3(1), dim3(32), 64, stream,\n"
        "                        static_cast<__half*>(gemm.c.data));\n}\n"
    )
    a = torch.zeros(1, 1).half()
    b, c = torch.zeros(1, 32).half(), torch.zeros(1, 32).half()
    report = simulator.simulate(source, a, b, c, check=True)
    finding = only(report, "out of shared memory")
    assert finding.thread == (31, 0, 0)
    assert finding.line == "too_far.cu:4"
