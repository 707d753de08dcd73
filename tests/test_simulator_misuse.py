"""Atomics, copies, warps and barriers used in ways that a GPU does not allow, and in right ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

simulator = import_module("tcgemm.cuda_ref.simulator")
build = import_module("tcgemm.cuda_ref.simulator.build")

MISUSE = Path(__file__).parent / "faults" / "misuse.cu"


def simulate(case, **options):
    a, b = torch.arange(64.0).reshape(64, 1), torch.ones(1, 1)
    c = torch.full((64, 1), float("nan"))
    options.setdefault("check", True)
    options.setdefault("workers", 2)
    return simulator.simulate(MISUSE, a, b, c, plan={"SPLITS": case}, **options), c.flatten()


WRONG = {
    "atomic_past_the_end": (1, "out of bounds", r"C\[64, 0\] at misuse.cu:11"),
    "atomic_on_an_input": (2, "writes an input", r"A\[0, 0\] at misuse.cu:15"),
    "atomics_not_awaited": (3, "race", "read there with no barrier in between"),
    "atomics_beside_a_store": (5, "written twice", "wrote too"),
    "memcpy_past_the_end": (10, "out of bounds", r"reads 4 bytes at A\[64, 0\]"),
    "reads_what_another_block_writes": (11, "reads another block's", r"block \(0, 0, 0\) wrote"),
    "shuffles_from_outside": (12, "misuse", "lane 20, which is not in the mask 0x0000ffff"),
    "barrier_16": (13, "misuse", "named barriers 0 to 15, and this is number 16"),
    "barrier_of_40": (14, "misuse", "40 threads are no multiple of 32"),
    "barrier_of_two_counts": (15, "misuse", "threads are said to meet at this barrier"),
    "copies_12_bytes": (16, "misuse", "copies 4, 8 or 16 bytes, not 12"),
    "copies_nothing_of_an_odd_address": (24, "misuse", "4 bytes past a multiple of 16"),
    "arrives_at_nothing": (17, "misuse", "nobody has called mbarrier_init"),
    "recursion": (18, "misuse", "stack of 256 KB"),
    "large_local": (19, "misuse", "stack of 256 KB"),
    "divides": (20, "crash", "an integer divided by zero"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "order"),
    # In reverse the one that reads another block's elements runs first, and they are nobody's.
    [(name, "forward") for name in WRONG]
    + [(name, "reverse") for name in WRONG if "reads" not in name],
)
def test_the_first_finding_is_the_mistake(name, order):
    case, kind, words = WRONG[name]
    report, _ = simulate(case, order=order, workers=1)
    assert report.findings
    finding = report.findings[0]
    assert (finding.kind, finding.kernel) == (kind, name), report.findings
    assert re.search(words, finding.message), finding.message


@pytest.mark.parametrize("case", [16, 17, 18, 19, 20])
def test_what_cannot_go_on_stops_every_run(case):
    """Without the checks too, but for the size of a copy, which only they see."""
    with pytest.raises(simulator.SimulationError):
        simulate(case, check=case == 16)[0].raise_if_stopped()


RIGHT = {4: 64.0, 6: 2.0, 7: 0.0, 8: 1.0, 9: None, 21: 2.0, 23: 1.0}


@pytest.mark.parametrize("order", ["forward", "reverse", "random:5"])
@pytest.mark.parametrize("case", RIGHT)
def test_nothing_is_found_in_a_right_kernel(case, order):
    report, c = simulate(case, order=order)
    assert report.ok, report.findings
    value = RIGHT[case]
    assert torch.equal(c, torch.arange(64.0) if value is None else torch.full((64,), value))


@pytest.mark.parametrize("check", [False, True])
def test_a_global_variable_is_one_for_all_blocks(check):
    _, c = simulate(8, check=check, workers=4)
    assert torch.equal(c, torch.ones(64))


def test_shared_memory_is_counted_whole_and_limited():
    # An E within the array's name is not the one that ends the function's.
    assert build._owner("_ZZ12shared_twicePfE6TILE_A") == "12shared_twicePf"
    with pytest.raises(simulator.SimulationError, match="232,704 bytes of shared memory"):
        simulate(22)


def test_too_large_static_arrays_are_refused_as_by_nvcc(tmp_path):
    source = tmp_path / "large.cu"
    source.write_text(
        '#include "host/gemm.cuh"\n'
        "__global__ void large(float* c) {\n"
        "  __shared__ float tile[12289];\n"
        "  tile[threadIdx.x] = 0;\n"
        "  c[threadIdx.x] = tile[threadIdx.x];\n}\n"
        "int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {\n"
        "  return tcgemm::launch(large, dim3(1), dim3(1), 0, stream,\n"
        "                        static_cast<float*>(gemm.c.data));\n}\n"
    )
    a, c = torch.zeros(1, 1), torch.zeros(1, 1)
    with pytest.raises(RuntimeError, match="49,156 bytes of __shared__ arrays"):
        simulator.simulate(source, a, a, c)


@pytest.mark.exhaustive
def test_a_compiler_that_checks_buffers_by_itself_changes_nothing(tmp_path):
    """Ubuntu's g++ calls memcpy by another name: without more the copy would be seen by nobody."""
    wrapper = tmp_path / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {build.compiler()} -D_FORTIFY_SOURCE=2 "$@"\n')
    wrapper.chmod(0o755)
    program = "import test_simulator_misuse as t; print(t.simulate(9)[0].findings)"
    environment = {**os.environ, "CXX": str(wrapper), "TCGEMM_CACHE_DIR": str(tmp_path / "kept")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=Path(__file__).parent,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "()", done.stdout + done.stderr
