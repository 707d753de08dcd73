"""Promises 17 to 21 of docs/contract.md over every kernel: streams, threads, processes, caches.

Those of building (19, in part, and 21) stand in tests/test_cuda_build.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from promises import PADDED, call_of, multiply

import tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.errors import OperandError, UnsupportedError
from tcgemm.problem import Fusion
from tcgemm.verify.calls import pairs_of
from tcgemm.verify.judge import make

ROOT = Path(__file__).parent.parent


def made_for(row, seed=0, device="cpu", size=192):
    pair = pairs_of(row)[0]
    call = call_of(row, pair, M=size, N=size, K=size, seed=seed)
    return call, make(call, device)


def right(call, made, result):
    return accuracy.error_ratio(made.a, made.b, result, Fusion(compute=call.compute)) <= 1


def test_every_promise_has_a_test():
    page = (ROOT / "docs" / "contract.md").read_text()
    promised = {int(number) for number in re.findall(r"^(\d+)\. ", page, re.M)}
    assert promised == set(range(1, 22))
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
        assert accuracy.error_ratio(made.a, made.b, made.out, fusion) <= 1


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
