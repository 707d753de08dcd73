"""mbarriers, bulk copies and wgmma in the simulator: a kernel of a ring of stages, and its faults.

Whatever is asynchronous happens as late as it may, so a missing wait shows in every order.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

from tcgemm import accuracy

simulator = import_module("tcgemm.cuda_ref.simulator")

HERE = Path(__file__).parent / "simulated"
ORDERS = ("forward", "reverse", "random:3")


@pytest.fixture
def run(tmp_path):
    """Simulates the kernel with these macros defined."""

    def simulate(shape, *macros, stages=2, **options):
        M, N, K = shape
        source = tmp_path / "hopper.cu"
        (tmp_path / "hopper.cuh").write_text((HERE / "hopper.cuh").read_text())
        lines = [f"#define NUM_STAGES {stages}", *(f"#define {macro}" for macro in macros)]
        source.write_text("\n".join([*lines, '#include "hopper.cuh"\n']))
        a, b = accuracy.operands(M, N, K, torch.float16, "nn", "cpu", 0)
        c = torch.full((M, N), float("nan"))
        report = simulator.simulate(
            source, a, b, c, check=True, count=True, timeout_s=30, **options
        )
        return report, accuracy.error_ratio(a, b, c)

    return simulate


@pytest.mark.spread(3, "order", "stages")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_right_and_nothing_found(run, order, stages):
    for shape in ((64, 128, 64), (128, 256, 320), (72, 136, 200)):
        report, error = run(shape, stages=stages, order=order)
        assert not report.findings, [str(f) for f in report.findings]
        assert error <= 1, shape


def test_counts_of_bulk_copies_and_wgmma(run):
    report, _ = run((128, 256, 128))
    assert report.counts.mma == {"wgmma m64n128k16 f16 -> f32": 2 * 2 * 128 // 16}
    assert report.counts.flop_per_byte == pytest.approx(64 * 128 / (64 + 128))
    assert report.counts.store_bytes == 128 * 256 * 4


@pytest.mark.spread(2, "fault", "order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("NO_FULL_WAIT", {"async copy in flight", "uninitialised"}),
        ("NO_EMPTY_WAIT", {"async copy in flight", "race"}),
        ("LATE_WAIT", {"async copy in flight", "race"}),
        ("NO_MULTIPLY_WAIT", {"not awaited"}),
        ("FEWER_BYTES", {"deadlock"}),
        ("NO_READ_WAIT", {"race"}),
    ],
)
def test_a_missing_wait_is_found(run, fault, kinds, order):
    report, error = run((64, 128, 320), fault, order=order)
    found = {finding.kind for finding in report.findings}
    assert found & kinds, [str(f) for f in report.findings]
    assert not error <= 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("NO_MULTIPLY_FENCE", "follows no wgmma_fence()"),
        ("NO_PROXY_FENCE", "call fence_proxy_async() after the writes"),
    ],
)
def test_a_missing_fence_is_found_where_the_result_is_right_here(run, fault, words):
    report, error = run((64, 128, 320), fault)
    assert {finding.kind for finding in report.findings} == {"misuse"}
    assert words in report.findings[0].message
    assert error <= 1
