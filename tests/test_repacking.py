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


def test_only_a_product_large_enough_is_worth_a_copy(monkeypatch):
    assert repacking.pays(problem())
    assert not repacking.pays(problem(M=128, N=128, K=128, pitch=129))
    assert not repacking.pays(problem(M=1))
    assert not repacking.pays(problem(batch=2))
    monkeypatch.setenv("TCGEMM_WORKSPACE_MIB", "63")
    assert not repacking.pays(problem())
    monkeypatch.setenv("TCGEMM_WORKSPACE_MIB", "64")
    assert repacking.pays(problem())
    monkeypatch.setenv("TCGEMM_REPACK", "0")
    assert not repacking.pays(problem())


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_copies_unlock_kernels_that_read_by_tma(backend):
    odd = problem(N=4095)
    better = repacking.aligned(odd, with_c=backend == "triton")
    chosen = dispatch.choose(better, backend)
    assert chosen.why_not(odd) is not None
    assert chosen.why_not(better) is None


def test_a_copy_of_c_lies_as_c_does():
    by_columns = replace(problem(N=4095), c_strides=(1, 4097))
    assert repacking.aligned(by_columns, with_c=True).c_strides == (1, 4096)
    assert repacking.aligned(problem(N=4095), with_c=True).c_strides == (4096, 1)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_a_product_of_copies_is_right(monkeypatch, caplog, backend, layout, device):
    """Any size is copied here; on a CPU the rungs that read by TMA run as well."""
    M, N, K = (77, 83, 37) if device == "cpu" else (445, 683, 537)
    monkeypatch.setattr(repacking, "pays", lambda problem: problem.plain or problem.bias)
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
        assert "copied into aligned rows" in caplog.text
    finally:
        launch_cache.forget()


def test_a_kernel_asked_for_by_name_gets_the_operands_as_they_lie(monkeypatch, device):
    monkeypatch.setattr(repacking, "pays", lambda problem: True)
    launch_cache.forget()
    a, b = torch.randn(33, 35, device=device).half(), torch.randn(35, 37, device=device).half()
    tcgemm.matmul(a, b, backend="triton", kernel="naive")
    plans = [launch.plans[0] for launch in launch_cache.launches.values()]
    launch_cache.forget()
    assert plans
    assert not any("ALIGNED_COPIES" in plan.config for plan in plans)
