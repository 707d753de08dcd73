"""``tcgemm simulate --trace``: Chrome trace JSON of what each warp does when."""

from __future__ import annotations

import json
from collections import defaultdict
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tcgemm.cli import app
from tcgemm.errors import OperandError, ResultsError
from tcgemm.tools.simulate.chrome_trace import ASYNCHRONOUS

simulator = import_module("tcgemm.cuda_ref.simulator")
COMMITTED = Path(__file__).parent.parent / "docs" / "_static" / "wgmma_specialized.trace.json"


def traced(tmp_path, kernel, shape, *more):
    """The row of counts and the trace that one command gives."""
    file = tmp_path / f"{kernel}.json"
    arguments = ["simulate", kernel, "--shape", shape, "--json", "--trace", str(file), *more]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)[0], json.loads(file.read_text())


def tracks(trace):
    """(block, track) -> its events in the order of the file."""
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def operations(trace, phase):
    return sum(e["args"]["operations"] for e in trace["traceEvents"] if e["name"] == phase)


KERNELS = {
    "tiled": "64x64x64",
    "wmma_double_buffered": "64x64x96",
    "mma_multistage": "128x128x160",
    "wgmma_specialized": "128x256x448",
    "wgmma_persistent": "256x128x128",
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_warp_does_one_thing_at_a_time_and_the_counts_are_the_simulator_s(tmp_path, kernel):
    row, trace = traced(tmp_path, kernel, KERNELS[kernel])
    assert "timeline" not in row
    blocks = {pid for pid, _ in tracks(trace)}
    assert len(blocks) == row["grid"][0] * row["grid"][1] * row["grid"][2]
    for (_, tid), events in tracks(trace).items():
        for one, after in pairwise(events):
            assert one["ts"] + one["dur"] <= after["ts"], (tid, one, after)
        assert all(e["ts"] >= 0 and e["dur"] > 0 for e in events)
        warp = tid % ASYNCHRONOUS
        assert warp < row["block"][0] * row["block"][1] // 32
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert named == set(tracks(trace))
    by_hand = sum(n for kind, n in row["mma"].items() if not kind.startswith("wgmma"))
    assert operations(trace, "mma") == by_hand
    assert operations(trace, "wgmma") == 4 * (sum(row["mma"].values()) - by_hand)
    of_mma = sum(e["dur"] for e in trace["traceEvents"] if e["name"] in ("mma", "tensor cores"))
    assert of_mma == row["mma_flop"] / (2 * 16 * 8 * 16)
    requests = sum(operations(trace, phase) for phase in ("load", "copy"))
    assert requests == row["load_requests"]


def waited(trace, phase):
    return sum(e["dur"] for e in trace["traceEvents"] if e["name"] == phase)


def test_deep_rings_hide_a_latency_that_shallow_ones_wait_for(tmp_path):
    """Two stages of K = 16 wait for each copy; four stages of K = 64 wait for the first alone."""
    _, shallow = traced(tmp_path, "wmma_double_buffered", "64x64x96")
    assert waited(shallow, "wait for copies") > 0.5 * waited(shallow, "mma") * 4
    _, deep = traced(tmp_path, "wgmma_specialized", "128x256x448")
    consumer = tracks(deep)[1, 4]
    waits = [e for e in consumer if e["name"] == "wait at mbarrier" and e["dur"] > 8]
    assert [e["ts"] for e in waits] == [0]
    (work,) = tracks(deep)[1, 4 + ASYNCHRONOUS]  # without a gap
    assert work["dur"] == 448 // 16 * 256 // 8
    producer = [e["name"] for e in tracks(deep)[1, 0]]
    assert producer == [
        "TMA load",
        *["wait at mbarrier", "TMA load"] * 3,
    ]  # four stages, then one each
    _, long = traced(tmp_path, "wgmma_specialized", "128x256x448", "--trace-latency", "2000")
    assert len(tracks(long)[1, 4 + ASYNCHRONOUS]) == 2  # the ring ran dry once
    assert long["otherData"]["latency_ticks"] == 2000


def test_warps_leave_a_barrier_together(tmp_path):
    _, trace = traced(tmp_path, "tiled", "64x64x64")
    left = defaultdict(set)
    for (pid, tid), events in tracks(trace).items():
        for e in events:
            if e["name"] == "wait at barrier":
                left[pid].add(e["ts"] + e["dur"])
        stores = [e["ts"] for e in events if e["name"] == "shared store"]
        left[pid, "stores"].add((tid, tuple(stores)))
    # All warps of a block do the same here: none waits, and each stores at the same ticks.
    assert all(len({s for _, s in left[p, "stores"]}) == 1 for p, _ in tracks(trace))


SLOW_WARP = """
#include "host/gemm.cuh"
__global__ void slow(tcgemm::Gemm gemm) {
  __shared__ float s[64];
  float x = 0;
  if (threadIdx.x < 32)
    for (int i = 0; i < 10; ++i) x += static_cast<volatile float*>(s)[threadIdx.x] = 1.0f + i;
  __syncthreads();
  if (threadIdx.x == 40) static_cast<__half*>(gemm.c.data)[0] = __float2half(x);
}
int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(slow, dim3(1), dim3(64), 0, stream, gemm);
}
"""


def test_a_copy_of_some_lanes_is_waited_for_before_what_follows(tmp_path):
    """Where lanes took different ways, requests stand in the order in which lanes made them."""
    from tcgemm.tools.exercise.catalogue import find

    file = tmp_path / "async_wait.cu"  # a quarter of the lanes copy, all of them wait
    file.write_text(find("async_wait").text("solution"))
    simulated = simulator.simulate(
        file, torch.ones(16, 48).half(), torch.ones(48, 16).half(), torch.empty(16, 16).half(),
        count=True, timeline=simulator.Timeline(latency=100, blocks=1), workers=1,
    )  # fmt: skip
    phases = [span.phase for span in simulated.timeline if span.warp == 0]
    step = ["wait for copies", "copy", "shared load"]
    assert phases == ["copy", *step, *step, "wait for copies", "shared load", "store"]


def test_who_comes_early_to_a_barrier_waits_for_who_comes_late(tmp_path):
    source = tmp_path / "slow.cu"
    source.write_text(SLOW_WARP)
    a, c = torch.ones(1, 1).half(), torch.ones(1, 1).half()
    report = simulator.simulate(source, a, a, c, count=True, timeline=simulator.Timeline())
    by_warp = {w: [s for s in report.timeline if s.warp == w] for w in (0, 1)}
    last = max(s.end for s in by_warp[0])
    assert last >= 10
    wait = by_warp[1][0]
    assert (wait.phase, wait.start, wait.end) == ("wait at barrier", 0, last)
    assert SLOW_WARP.splitlines()[wait.line - 1].strip() == "__syncthreads();"
    assert [(s.phase, s.start) for s in by_warp[1][1:]] == [("store", last)]


def test_blocks_beyond_those_asked_for_are_not_followed():
    a, b, c = (torch.ones(64, 64).half() for _ in range(3))
    source = simulator.source_of("tiled")
    report = simulator.simulate(source, a, b, c, count=True, timeline=simulator.Timeline(blocks=3))
    assert report.grid[0] * report.grid[1] == 4
    assert {span.block for span in report.timeline} == {0, 1, 2}
    assert simulator.simulate(source, a, b, c, count=True).timeline == ()


def test_what_a_trace_cannot_be_of_is_said(tmp_path):
    for kernel in ("ladder", "order"):
        result = CliRunner().invoke(app, ["simulate", kernel, "--trace", str(tmp_path / "t")])
        assert isinstance(result.exception, OperandError)
    nowhere = str(tmp_path / "no" / "folder.json")
    result = CliRunner().invoke(
        app, ["simulate", "tiled", "--shape", "32x32x32", "--trace", nowhere]
    )
    assert isinstance(result.exception, ResultsError)
    with pytest.raises(ValueError, match="at least 1 block"):
        simulator.Timeline(blocks=0)


def test_the_picture_s_trace_is_today_s(tmp_path):
    """Where it is not: the command of docs/simulator.md writes it anew, scripts/pages draws it."""
    _, trace = traced(tmp_path, "wgmma_specialized", "128x256x512")
    assert trace == json.loads(COMMITTED.read_text())
