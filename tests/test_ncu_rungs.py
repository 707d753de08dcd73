"""scripts/ncu_rungs.py: its cases, and how it reads ncu's table."""

from __future__ import annotations

import pytest
import scripts_of
import torch

from tcgemm import dispatch

ncu_rungs = scripts_of.script("ncu_rungs")

CASES = [{"rung": "cuda/naive", "M": 8}, {"rung": "cuda/split_k", "M": 16}]
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def page(*kernels):
    """A raw page of ncu: names, units, then (kernel, nanoseconds, barrier, wait) lines."""
    names = ["ID", "Kernel Name", "gpu__time_duration.sum"]
    names += [STALLED.format(reason) for reason in ("barrier", "wait")]
    lines = [names, ["", "", "ns", "inst", "inst"], *([n, *k] for n, k in enumerate(kernels))]
    quoted = (",".join(f'"{cell}"' for cell in line) for line in lines)
    return "==PROF== Connected\n" + "\n".join(quoted) + "\n"


NAIVE = ("void tcgemm::(anonymous namespace)::naive<int, 3>(Gemm)", "1,234,000", "0.5", "2.25")
SPLIT = ("split_k(Gemm)", "2000", "1", "0")
REDUCE = ("reduce(Gemm)", "500", "3", "0")
MARKER = ("at::cuda::spin_kernel(long)", "1", "0", "0")


def test_each_case_has_the_kernels_before_its_marker():
    rows = ncu_rungs.table(page(NAIVE, MARKER, SPLIT, REDUCE, MARKER), CASES)
    assert [(row["rung"], row["kernel"], row["us"]) for row in rows] == [
        ("cuda/naive", "tcgemm::naive", "1234"),
        ("cuda/split_k", "split_k", "2"),
        ("cuda/split_k", "reduce", "0.5"),
    ]
    assert rows[0]["stalls"] == "wait:2.25 barrier:0.50"
    assert rows[0]["l2_pct"] == "", "a counter that this ncu does not have is left empty"


@pytest.mark.parametrize("kernels", [(NAIVE, MARKER), (NAIVE, MARKER, SPLIT, MARKER, NAIVE)])
def test_a_page_of_other_cases_is_refused(kernels):
    with pytest.raises(ValueError, match="ncu saw"):
        ncu_rungs.table(page(*kernels), CASES)


def test_every_rung_of_both_languages_is_launched(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    cases = ncu_rungs.cases([])
    rungs = {row.full_name for name in ("cuda", "triton") for row in dispatch.ladder(name)}
    assert rungs <= {case["rung"] for case in cases}
    computes = {case["compute"] for case in cases if case["rung"] == "cuda/wgmma_types"}
    assert {"fast", "float32", "int32", "tf32", "tf32x3"} <= computes
