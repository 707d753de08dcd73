"""Operands in odd rows: copied into aligned ones where that pays, and right either way."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

import tcgemm
from tcgemm import accuracy, dispatch, launch_cache, repacking
from tcgemm.problem import Fusion, Problem


def problem(M=4096, N=4096, K=4096, pitch=4097, **asked):
    return Problem(
        M, N, K, "bfloat16", "bfloat16", (pitch, 1), (pitch, 1), (N, 1), capability=(9, 0), **asked
    )


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_only_a_product_slow_enough_is_worth_a_copy(monkeypatch, backend):
    def worth(**asked):
        return repacking.worth(problem(**asked), backend) is not None

    assert worth()
    assert not worth(M=128, N=128, K=128, pitch=129)
    assert worth(M=512, N=512, K=8001, pitch=8001)  # few tiles and a long K
    assert not worth(M=5391, N=81, K=65, pitch=65)
    assert not worth(batch=2)
    monkeypatch.setenv("TCGEMM_WORKSPACE_MIB", "63")
    assert not worth()
    monkeypatch.setenv("TCGEMM_WORKSPACE_MIB", "66")
    assert worth()
    monkeypatch.setenv("TCGEMM_REPACK", "0")
    assert not worth()


@pytest.mark.parametrize(
    ("shape", "layout", "direct", "measured"),
    [
        ((983, 81, 4411), "nn", 23.9, 14.8), ((89, 123, 9645), "tn", 14.9, 10.1),
        ((3805, 2893, 113), "tn", 35.4, 16.4), ((1419, 4303, 71), "nn", 16.4, 12.7),
        ((8147, 9669, 86), "tn", 200.8, 94.4),
    ],
)  # fmt: skip
def test_copies_and_their_product_take_what_was_measured_in_cuda(shape, layout, direct, measured):
    """Microseconds on an H200 (reports/nvidia-h200/trials/races.csv), by elements and behind copies
    of A and B by one launch."""
    asked = Problem.stored(
        *shape, "bfloat16", "bfloat16", layout, device="cuda", capability=(9, 0)
    )  # fmt: skip
    made = repacking.Copies(repacking.aligned(asked, True, True, False), True, True, False)
    us = repacking.copying_us(asked, made, "cuda") + repacking.fast_us(asked, made, "cuda")
    assert us == pytest.approx(measured, rel=0.12)
    assert us < direct
    assert repacking.worth(asked, "cuda").count == 2


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_a_large_c_in_odd_rows_leaves_little_to_win_where_it_is_stored_by_elements(backend):
    """Of 16 bits it is stored by vectors behind copies: 12609 x 2823 x 59 (nt) takes 38.7 us in
    CUDA and 46.3 in Triton, on an H200, and without copies 72 and 79. One of float32 is not."""

    def worth(N, K=59, **c):
        odd = problem(12609, N, K, pitch=K)
        return repacking.worth(replace(odd, b_strides=(1, K), **c), backend) is not None

    assert worth(2823)
    assert worth(2823, c_strides=(2824, 1))
    assert worth(2823, K=1001)
    if backend == "cuda":
        assert not worth(2823, dtype_out="float32")
        assert worth(2820, dtype_out="float32")  # rows of whole 16 bytes


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_only_odd_operands_are_copied(backend):
    whole = replace(problem(), b_strides=(4096, 1), b_alignment=256)
    copies = repacking.worth(whole, backend)
    assert (copies.a, copies.b, copies.c, copies.count) == (True, False, False, 1)
    assert copies.problem.b_strides == whole.b_strides
    assert repacking.worth(replace(whole, a_strides=(4096, 1), a_alignment=256), backend) is None
    moved = replace(whole, a_strides=(4096, 1), a_alignment=2)
    assert repacking.worth(moved, backend).a


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_copies_unlock_kernels_that_read_by_tma(backend):
    odd = problem(N=4095)
    copies = repacking.worth(odd, backend)
    chosen = dispatch.choose(copies.problem, backend)
    assert chosen.why_not(odd) is not None
    assert chosen.why_not(copies.problem) is None
    assert not copies.c, "it is stored as it lies"


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_a_call_chooses_once_for_each_product_that_it_compares(monkeypatch, backend):
    """And for none that cannot be worth copies, whatever its rows."""
    asked = []
    choose = dispatch.choose
    monkeypatch.setattr(dispatch, "choose", lambda p, *rest: asked.append(p) or choose(p, *rest))
    odd = problem(N=4095)
    once = repacking.chooser(backend)
    copies = repacking.worth(odd, backend, once)
    assert once(copies.problem) is once(copies.problem)
    assert asked == [odd, copies.problem]
    asked.clear()
    assert repacking.worth(problem(bias=True, batch=2), backend) is None
    assert repacking.worth(problem(batch=2), backend) is None
    assert repacking.worth(problem(device="cpu"), backend) is None
    assert not asked


def test_a_copy_of_c_lies_as_c_does():
    by_columns = replace(problem(N=4095), c_strides=(1, 4097))
    assert repacking.aligned(by_columns, True, True, True).c_strides == (1, 4096)
    assert repacking.aligned(problem(N=4095), True, True, True).c_strides == (4096, 1)


@pytest.mark.spread(2, "backend", "layout")
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_a_product_of_copies_is_right(monkeypatch, caplog, backend, layout, device):
    """Any size is copied here; on a CPU the rungs that read by TMA run as well."""
    M, N, K = (77, 83, 37) if device == "cpu" else (445, 683, 537)
    monkeypatch.setattr(repacking, "pays", lambda problem, *_: problem.plain or problem.bias)
    if backend == "triton":  # small as they are, these go to a rung that reads any rows

        def choose(problem, able):
            return "descriptor" if "descriptor" in able else "fused"

        monkeypatch.setattr("tcgemm.triton_kernels.choose", choose)
    launch_cache.forget()
    named = {"backend": backend}
    try:
        for asked in ({}, {"bias": True}):
            for _ in range(3):
                a = torch.randn((M, K) if layout[0] == "n" else (K, M), device=device).half()
                b = torch.randn((K, N) if layout[1] == "n" else (N, K), device=device).half()
                a, b = a if layout[0] == "n" else a.mT, b if layout[1] == "n" else b.mT
                bias = torch.randn(N, device=device).half() if asked else None
                with caplog.at_level(logging.INFO, "tcgemm.repacking"):
                    c = tcgemm.gemm(a, b, bias=bias, **named)
                assert accuracy.error_ratio(a, b, c, Fusion(bias=bias)) <= 1
        plans = [launch.plans[0] for launch in launch_cache.launches.values()]
        assert any("ALIGNED_COPIES" in plan.config for plan in plans)
        assert "B is copied into aligned rows" in caplog.text
    finally:
        launch_cache.forget()


def test_a_kernel_asked_for_by_name_gets_the_operands_as_they_lie(monkeypatch, device):
    monkeypatch.setattr(repacking, "pays", lambda *_: True)
    launch_cache.forget()
    a, b = torch.randn(33, 35, device=device).half(), torch.randn(35, 37, device=device).half()
    tcgemm.matmul(a, b, backend="triton", kernel="naive")
    plans = [launch.plans[0] for launch in launch_cache.launches.values()]
    launch_cache.forget()
    assert plans
    assert not any("ALIGNED_COPIES" in plan.config for plan in plans)
