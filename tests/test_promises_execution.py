"""Promises 17 to 21 of docs/contract.md over every kernel: streams, threads, processes, caches.

Those of building (19, in part, and 21) stand in tests/test_cuda_build.py, tests/test_cache_abuse.py
and tests/test_cache_folder.py, that of forks (26) in tests/test_fork.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from promises import PADDED, call_of, made_for, multiply, right

import tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.errors import OperandError, UnsupportedError
from tcgemm.problem import Fusion
from tcgemm.verify.judge import make

ROOT = Path(__file__).parent.parent


def test_every_promise_has_a_test():
    page = (ROOT / "docs" / "contract.md").read_text()
    promised = {int(number) for number in re.findall(r"^(\d+)\. ", page, re.M)}
    assert promised >= {*range(1, 23), 26}
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    assert {int(n) for n in re.findall(r"def test_promise_(\d+)_", tests)} == promised


@pytest.mark.gpu
def test_promise_17_work_is_ordered_on_the_current_stream(row):
    call, made = made_for(row, device="cuda")
    multiply(row, made, call)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    late = made.a.clone()
    made.a.zero_()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        made.a.copy_(late)
        result = multiply(row, made, call)
        # What comes after on this stream must see the result, and the operands may go.
        copied = result.clone()
        made.a.zero_()
    stream.synchronize()
    made.a.copy_(late)
    assert right(call, made, copied)


@pytest.mark.gpu
def test_promise_17_graph_capture_and_replay(row):
    call, made = made_for(row, device="cuda")
    c = torch.randn(made.out.shape, device="cuda").to(made.out.dtype)
    asked = {"c": c, "beta": 1.0} if "beta" in row.fuses else {}
    multiply(row, made, call, out=made.out, **asked)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        multiply(row, made, call, out=made.out, **asked)
    _, other = made_for(row, seed=9, device="cuda")
    made.a.copy_(other.a)
    for _ in range(2):
        made.out.fill_(float("nan") if made.out.is_floating_point() else 7)
        graph.replay()
        torch.cuda.synchronize()
        fusion = Fusion(compute=call.compute, beta=1.0, c=c) if asked else None
        fusion = fusion or Fusion(compute=call.compute)
        operands = made.a, made.b, made.out
        assert accuracy.error_ratio(*operands, fusion, row.rounds_product) <= 1


FIRST_CALL = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import torch
from promises import made_for, multiply, right
from tcgemm import dispatch
from tcgemm.errors import TcgemmError

row = dispatch.find(*sys.argv[1].split("/"))
"""
"""A process that has called no kernel yet: what is loaded and compiled, is so by the first call."""

IN_A_CAPTURE = """
call, made = made_for(row, device="cuda")
torch.cuda.synchronize()
graph, refusal = torch.cuda.CUDAGraph(), ""
with torch.cuda.stream(torch.cuda.Stream()):
    graph.capture_begin()
    try:
        multiply(row, made, call, out=made.out)
    except TcgemmError as error:
        refusal = str(error)
    try:
        graph.capture_end()
    except RuntimeError:
        assert refusal, "the capture broke without a word"
if refusal:
    assert "before the capture" in refusal, refusal
    assert right(call, made, multiply(row, made, call)), "wrong after a refused capture"
else:
    made.out.fill_(float("nan") if made.out.is_floating_point() else 7)
    graph.replay()
    torch.cuda.synchronize()
    assert right(call, made, made.out), "captured, and wrong"
print(row.full_name, "in a capture:", refusal or "captured", flush=True)
"""

FROM_THREADS = """
together = Barrier(4)

def work(seed):
    with torch.cuda.stream(torch.cuda.Stream()):
        call, made = made_for(row, seed, "cuda")
        together.wait()
        result = multiply(row, made, call)
        return right(call, made, result)

with ThreadPoolExecutor(4) as pool:
    assert all(pool.map(work, range(4)))
"""


def in_a_fresh_process(row, program):
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL + program, row.full_name],
        cwd=ROOT / "tests",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout


@pytest.mark.gpu
def test_promise_17_a_first_call_in_a_capture_is_right_or_says_what_to_do(row):
    in_a_fresh_process(row, IN_A_CAPTURE)


@pytest.mark.gpu
def test_promise_19_first_calls_from_four_threads_on_four_streams(row):
    in_a_fresh_process(row, FROM_THREADS)


@pytest.mark.gpu
def test_promise_18_a_repeated_call_follows_its_tensors_from_gpu_to_gpu(row):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    call, first = made_for(row, seed=1, device="cuda:0")
    _, second = made_for(row, seed=2, device="cuda:1")
    for current in (0, 1):
        with torch.cuda.device(current):
            for made in (first, second, first, second):
                named = {"backend": row.backend, "kernel": row.name, "out_dtype": made.out.dtype}
                result = tcgemm.matmul(made.a, made.b, **named)
                assert result.device == made.a.device
                assert torch.cuda.current_device() == current
                assert right(call, made, result)


@pytest.mark.gpu
def test_promise_18_tensors_on_another_device_than_the_current_one(row):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    call, made = made_for(row, device="cuda:1")
    with torch.cuda.device(0):
        result = multiply(row, made, call)
        assert torch.cuda.current_device() == 0
    assert result.device == made.a.device
    assert right(call, made, result)


def test_promise_18_operands_on_two_devices_are_an_error_that_names_both(row, device):
    call, made = made_for(row, device=device, size=64)
    made.b = made.b.to("cpu" if device == "cuda" else "meta")
    with pytest.raises(OperandError, match=f"A is on {device}.* and B is on {made.b.device}"):
        multiply(row, made, call)


def test_promise_19_two_threads_first_call_included(row, device):
    dispatch.load.cache_clear()
    streams = device == "cuda"

    def work(seed):
        if not streams:
            call, made = made_for(row, seed, device, size=64)
            return right(call, made, multiply(row, made, call))
        with torch.cuda.stream(torch.cuda.Stream()):
            call, made = made_for(row, seed, device)
            return all(right(call, made, multiply(row, made, call)) for _ in range(10))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.exhaustive
def test_promise_19_two_processes_share_one_empty_cache(tmp_path, device):
    """Both compile, or wait for the other, and both are right; a third compiles nothing."""
    program = (
        "import time, torch, tcgemm\n"
        f"a = torch.ones(20, 30, device={device!r}).half()\n"
        "start = time.perf_counter()\n"
        "c = tcgemm.matmul(a, a.T, backend='cuda', kernel='tiled')\n"
        "assert (c == 30).all()\n"
        "print(time.perf_counter() - start)\n"
    )
    import os

    environment = {**os.environ, "TCGEMM_CACHE_DIR": str(tmp_path)}

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    both = [start(), start()]
    for process in both:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    built = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")}
    assert built, "nothing was put into the cache"
    third = start()
    _, errors = third.communicate(timeout=300)
    assert third.returncode == 0, errors
    assert built == {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")}


def test_promise_20_same_inputs_give_the_same_bits(row, pair, device):
    call = call_of(row, pair, M=64, N=64, K=320, **PADDED)
    made = make(call, device)
    if not row.deterministic:
        with _deterministic(), pytest.raises(UnsupportedError, match="other bits"):
            tcgemm.gemm(made.a, made.b, backend=row.backend, kernel=row.name)
        return
    with _deterministic():
        first = multiply(row, made, call)
        for _ in range(1 if device == "cpu" else 10):
            assert torch.equal(multiply(row, made, call), first)


class _deterministic:
    def __enter__(self):
        self.before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *error):
        torch.use_deterministic_algorithms(self.before)
