"""Triton's thin: right wherever operands lie, told little of them, and taken where it is faster."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from test_short_k_triton import somewhere

import tcgemm
from tcgemm import dispatch
from tcgemm.problem import Problem

thin = import_module("tcgemm.triton_kernels.shapes.thin")
planned = import_module("tcgemm.triton_kernels.shapes.thin_plan")
skinny = import_module("tcgemm.triton_kernels.shapes.skinny_plan")
gpus = import_module("tcgemm.triton_kernels.planning.gpus")


@pytest.fixture
def on_an_h200(monkeypatch):
    monkeypatch.setattr(gpus, "gpu_here", lambda capability=None: ("nvidia-h200", 232_448, 132))


def problem(M, N, K, layout="nt", **more):
    return Problem.stored(
        M, N, K, "bfloat16", "bfloat16", layout, device="cuda", capability=(9, 0), **more
    )  # fmt: skip


@pytest.mark.spread(4, "ways", "size")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "ways",
    [(a, b) for a in ("rows", "columns", "apart", "off") for b in ("rows", "columns", "longer")],
    ids="-".join,
)
@pytest.mark.parametrize(
    "size", [(1, 1, 1), (1, 3, 6559), (3, 21, 600), (40, 2, 37), (5, 9, 64), (1, 300, 16)], ids=str
)
def test_right_wherever_operands_lie(size, ways, dtype, device):
    """Three times, each into a C of NaN, which lies in longer rows."""
    M, N, K = size
    a = somewhere(M, K, ways[0], dtype, device)
    b = somewhere(K, N, ways[1], dtype, device)
    exact = a.double() @ b.double()
    near = 2 * torch.finfo(dtype).eps * exact.abs() + 1e-5 * (a.double().abs() @ b.double().abs())
    memory = torch.empty(M, N + 2, dtype=dtype, device=device)
    for _ in range(3):
        memory.fill_(float("nan"))
        tcgemm.matmul(a, b, backend="triton", kernel="thin", out=memory[:, :N])
        assert ((memory[:, :N].double() - exact).abs() <= near).all()
        assert memory[:, N:].isnan().all()


@pytest.mark.parametrize(
    ("size", "ways", "units"),
    [
        ((1, 64, 2048), ("rows", "columns"), (8, 8, 0)),
        ((1, 64, 2044), ("rows", "columns"), (1, 1, 0)),  # K is in no whole vectors
        ((2, 64, 2044), ("rows", "columns"), (1, 1, 0)),
        ((1, 64, 2044), ("rows", "rows"), (1, 0, 8)),
        ((1, 63, 2048), ("rows", "rows"), (1, 0, 1)),
        ((1, 64, 2048), ("apart", "columns"), (0, 8, 0)),
        ((1, 64, 2048), ("rows", "apart"), (1, 0, 0)),
        ((2, 1, 2048), ("rows", "apart"), (8, 8, 0)),  # of C' the wide operand is A
    ],
)
def test_it_is_told_what_vectors_need(size, ways, units):
    M, N, K = size
    a, b = (somewhere(*x, torch.bfloat16, "cpu") for x in ((M, K, ways[0]), (K, N, ways[1])))
    plan = {"SWAP": int(M > N), "BLOCK_M": 1, "BLOCK_N": 4, "BLOCK_K": 256, "PDL": 1}
    _, _, told = thin.arguments(a, b, a.new_empty(M, N), **plan, NUM_WARPS=4)
    if M > N:
        units = (0, *units[1:])  # of which B, in every second element, is the other
    assert (told["A_UNIT"], told["B_ALONG_K"], told["B_ALONG_N"]) == units


@pytest.mark.parametrize(
    ("size", "layout"),
    [((1, 3, 6559), "tt"), ((1146, 1, 267), "nt"), ((16, 13, 12145), "nt"), ((1, 64, 2048), "nt")],
)
def test_it_is_taken_where_its_model_says_less(size, layout, on_an_h200):
    asked = problem(*size, layout)
    assert dispatch.choose(asked, "triton").name == "thin"
    for other in (
        replace(asked, dtype_out="float32"),
        replace(asked, bias=True),
        replace(asked, capability=(8, 0)),
    ):
        assert dispatch.choose(other, "triton").name != "thin"


@pytest.mark.parametrize(
    ("size", "layout"), [((744, 3, 14119), "nn"), ((1, 4096, 4096), "nn"), ((1, 4096, 4096), "nt")]
)
def test_it_is_not_where_another_is_faster(size, layout, on_an_h200):
    """B is read again for each row, few programs have a long K, or tables were tuned."""
    assert dispatch.choose(problem(*size, layout), "triton").name != "thin"


def test_its_plan_covers_k_in_a_step_where_a_program_can():
    _, config = planned.fastest(problem(1, 3, 6559, "tt"), 132)
    assert config["BLOCK_K"] == 8192
    for warps, elements in (*planned.ALONG_K[2].ways, *planned.ALONG_N[2].ways):
        assert warps <= 32
        assert elements <= 32, "more are too many registers"


def test_too_many_rows_for_the_grid_are_refused():
    why = dispatch.find("triton", "thin").why_not(problem(70_000, 70_001, 1))
    assert why is not None
    assert "M=70000" in why
    assert "65535" in why
    assert dispatch.find("triton", "thin").why_not(problem(70_000, 2, 1)) is None


@pytest.mark.parametrize(
    ("shape", "layout", "kernel"),
    [
        ((6, 2464, 32), "nn", "skinny"),  # 1.9 us, and 3.1 by thin
        ((1264, 16, 16), "tt", "skinny"),
        ((8, 256, 64), "nn", "thin"),
        ((3, 1024, 32), "nt", "thin"),  # B lies along K
    ],
    ids=str,
)
def test_a_wide_c_over_a_short_k_is_skinny_s_where_b_lies_by_rows(
    shape, layout, kernel, on_an_h200
):
    assert dispatch.choose(problem(*shape, layout), "triton").name == kernel
