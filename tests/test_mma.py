"""wmma_multistage, mma_multistage, mma_float64: edges, order, conflicts, refusals, instructions."""

from __future__ import annotations

import dataclasses
from functools import cache
from importlib import import_module

import pytest
import records
import torch
from tcgemm.cuda_ref import fusion as numbers
from tcgemm.cuda_ref.build import toolchain

from tcgemm import accuracy, cuda_ref
from tcgemm.dispatch import choose, find
from tcgemm.problem import COMPUTES, Fusion, Problem

simulator = import_module("tcgemm.cuda_ref.simulator")

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
LAYOUTS = ["nn", "nt", "tn", "tt"]
CASES = [
    ("wmma_multistage", F16, F32),
    ("mma_multistage", F16, F16),
    ("mma_multistage", BF16, F32),
    ("mma_float64", F64, F64),
]
# Tiles and their edges, K shorter than the pipeline and no multiple of a step, vectors that the end
# of M, N or K divides.
SIZES = [(1, 8, 8), (129, 17, 1), (64, 40, 200), (130, 264, 72), (257, 259, 71)]


def fused(dtype, **more):
    compute = COMPUTES[str(dtype).removeprefix("torch.")][0]
    return Fusion(compute=compute, **more) if more or dtype == F64 else None


def stored(rows, columns, letter, dtype, seed, integers=False):
    """A matrix in rows of whole vectors; what lies between the rows is NaN."""
    if letter == "t":
        return stored(columns, rows, "n", dtype, seed, integers).T
    generator = torch.Generator().manual_seed(seed)
    vector = 16 // dtype.itemsize
    buffer = torch.full((rows, -(-columns // vector) * vector), float("nan"), dtype=dtype)
    inside = buffer[:, :columns]
    if integers:
        inside.copy_(torch.randint(-8, 9, inside.shape, generator=generator))
    else:
        inside.copy_(torch.randn(inside.shape, generator=generator, dtype=F64))
    return inside


@pytest.mark.spread(3, "layout", "name")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "dtype", "out"), CASES)
def test_both_checks_at_the_edges(name, dtype, out, layout):
    for M, N, K in SIZES:
        for integers in (False, True):
            a = stored(M, K, layout[0], dtype, 0, integers)
            b = stored(K, N, layout[1], dtype, 1, integers)
            c = accuracy.poisoned((M, N), out, "cpu")
            cuda_ref.load(name)(a, b, c, fused(dtype))
            if integers:
                assert torch.equal(c, (a.double() @ b.double()).to(out)), (M, N, K)
            else:
                assert accuracy.error_ratio(a, b, c) <= 1, (M, N, K)


@pytest.mark.spread(4, "order", "layout", "name")
@pytest.mark.parametrize("order", ["forward", "reverse", "random:5"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "dtype", "out"), CASES)
def test_nothing_is_found_in_any_order(name, dtype, out, layout, order):
    a, b = stored(131, 100, layout[0], dtype, 0), stored(100, 265, layout[1], dtype, 1)
    c = accuracy.poisoned((131, 265), out, "cpu")
    report = simulator.simulate(
        simulator.source_of(name), a, b, c, fusion=fused(dtype), order=order, check=True
    )
    assert report.ok, [str(finding) for finding in report.findings]
    assert accuracy.error_ratio(a, b, c) <= 1


@pytest.mark.parametrize("c_t", [False, True])
@pytest.mark.parametrize(("name", "dtype", "out"), CASES)
def test_everything_fused_over_a_batch(name, dtype, out, c_t):
    batch, M, N, K = 3, 24, 40, 56
    for turn, epilogue in enumerate(("relu", "gelu", "gelu_tanh", "silu")):
        a = torch.stack([stored(M, K, "n", dtype, z) for z in range(batch)])
        b = torch.stack([stored(K, N, "t", dtype, z + 9) for z in range(batch)])
        a, b = (a[:1].expand(batch, M, K), b) if turn % 2 else (a, b[:1].expand(batch, K, N))
        c_in = torch.randn(batch, M, N).to(out)
        fusion = fused(
            dtype, alpha=0.5, beta=3.0, c=c_in, bias=c_in[0, 0].clone(), epilogue=epilogue
        )
        c = accuracy.poisoned((batch, N, M) if c_t else (batch, M, N), out, "cpu")
        c = c.mT if c_t else c
        cuda_ref.load(name)(a, b, c, fusion)
        assert accuracy.error_ratio(a, b, c, fusion) <= 1, epilogue


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "dtype", "out"), CASES[1:])
def test_no_load_of_the_mainloop_meets_a_bank_conflict(name, dtype, out, layout):
    def conflicts(K):
        a, b = stored(128, K, layout[0], dtype, 0), stored(K, 256, layout[1], dtype, 1)
        c = accuracy.poisoned((128, 256), out, "cpu")
        return simulator.simulate(
            simulator.source_of(name), a, b, c, fusion=fused(dtype), count=True
        ).counts.bank_conflicts

    # What the epilogue has does not grow with K.
    assert conflicts(64) == conflicts(256)


def problem(dtype="float16", M=256, N=256, K=256, layout="nn", **changes):
    a = (K, 1) if layout[0] == "n" else (1, M)
    b = (N, 1) if layout[1] == "n" else (1, K)
    asked = Problem(M, N, K, dtype, dtype, a, b, (N, 1), capability=(9, 0))
    return dataclasses.replace(asked, compute=COMPUTES[dtype][0], **changes)


RUNGS = [
    ("wmma_multistage", "float16", 8, "wmma_any"),
    ("mma_multistage", "float16", 8, "wmma_any"),
    ("mma_float64", "float64", 2, "mma_types"),
]


@pytest.mark.parametrize(("name", "dtype", "vector", "instead"), RUNGS)
def test_rows_that_are_no_vectors_are_refused_with_the_numbers(name, dtype, vector, instead):
    def why(**changes):
        return find("cuda", name).why_not(problem(dtype, **changes))

    itemsize = 16 // vector
    for layout in LAYOUTS:
        assert why(layout=layout) is None
        assert (
            why(layout=layout, M=3, N=5, K=7, a_strides=(vector, 1), b_strides=(1, vector)) is None
        )
    assert f"rows {257 * itemsize} bytes apart" in why(b_strides=(257, 1))
    assert "A is 8-byte aligned" in why(a_alignment=8)
    assert "(512, 2) and neither is 1" in why(a_strides=(512, 2))
    assert f"matrices {itemsize} bytes apart" in why(batch=2, batch_strides=(1, 0, 65536))
    assert instead in why(a_alignment=8)


@pytest.mark.parametrize(("capability", "takes"), [((8, 0), True), ((8, 9), False)])
def test_a_block_needs_more_shared_memory_than_some_gpus_have(capability, takes):
    for name in ("wmma_multistage", "mma_multistage"):
        reason = find("cuda", name).why_not(problem(capability=capability))
        assert (reason is None) == takes
        assert takes or "101376" in reason
    assert find("cuda", "mma_float64").why_not(problem("float64", capability=capability)) is None


@pytest.mark.parametrize(("name", "dtype", "vector", "instead"), RUNGS[1:])
def test_an_ampere_gpu_gets_the_rung_and_what_it_refuses_goes_to_the_one_before(
    name, dtype, vector, instead
):
    asked = problem(dtype, M=4096, N=4096, K=4096, capability=(8, 0))
    assert choose(asked, "cuda").name == name
    assert choose(dataclasses.replace(asked, a_alignment=8), "cuda").name == instead


needs_nvcc = pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)


@cache
def compiled(name, target):
    defines = ()
    if macros := toolchain.built_by_case(toolchain.source(name)):
        defines = numbers.case(BF16, None, BF16, False, macros)
    return records.cuda(name, target, defines)


@needs_nvcc
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["mma_multistage", "mma_float64"])
def test_what_nvcc_makes_of_it(name, target):
    report = compiled(name, target)
    assert report.spill_bytes == 0
    constants = toolchain.constants(name)
    products = 2  # in the mainloop, and for what is left of K
    for tile, step in (("WARP_M", "MMA_M"), ("WARP_N", "MMA_N"), ("BLOCK_K", "MMA_K")):
        products *= constants[tile] // constants[step]
    multiplying = [kernel for kernel in report.kernels if "add_partials" not in kernel.symbol]
    assert name != "mma_float64" or len(multiplying) == 8, "four layouts, K whole and in parts"
    for kernel in multiplying:
        if name == "mma_float64":
            assert kernel.sass["DMMA"] == products * (1 if target == "sm_90a" else 4)
        else:
            assert kernel.sass["HMMA"] == products
            # No fragment is loaded twice: ldmatrix brings one of A, or two of B, and the first step
            # of the first tile stands before the loop.
            steps = constants["BLOCK_K"] // constants["MMA_K"]
            fragments = constants["WARP_M"] // 16 + constants["WARP_N"] // 16
            assert kernel.sass["LDSM"] == (2 * steps + 1) * fragments
            assert kernel.sass["MOVM"] == 0
