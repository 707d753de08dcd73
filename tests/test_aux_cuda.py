"""wgmma_persistent with a pre-activation: stored as well, or read for its derivative."""

import math
from types import SimpleNamespace

import pytest
import records
import torch
from tcgemm.cuda_ref import KERNELS, load, simulator
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.fusion import DTYPES
from tcgemm.cuda_ref.fusion import case as flags
from tcgemm.cuda_ref.rungs import wgmma_persistent as tiles
from test_derivative import ACTIVATIONS, ROUNDED
from test_hopper_fused import FUSING, IN_TURNS, ONE_BUFFER, SOURCE, WIDE, built_for, ids

from tcgemm.problem import Fusion, Problem

F16, BF16 = torch.float16, torch.bfloat16
needs_gxx = pytest.mark.skipif(toolchain.find_cxx() is None, reason="needs g++")
THREE_BUFFERS = next(t for t in FUSING if t.CHUNK_BUFFERS == 3)
SMALL = tiles.TILES[-1]


def placed(M, N, dtype, place):
    """A matrix of NaN in a buffer of it, whose rows TMA can write or not."""
    if place == "columns":
        buffer = torch.full((N + 1, -(-M // 8) * 8 + 8), math.nan).to(dtype)
        return buffer, buffer[:N, :M].mT
    buffer = torch.full((M + 1, -(-N // 8) * 8 + 8 + (place == "odd")), math.nan).to(dtype)
    return buffer, buffer[:M, :N]


def operand(rows, cols, dtype):
    """In rows that TMA reads."""
    return (torch.randn(rows, -(-cols // 8) * 8) / 2).to(dtype)[:, :cols]


def case(shape, dtype, aux, epilogue, c="rows", z="rows", bias="", alpha=1.0):
    """The operands, C and Z, what is asked of them, and both as float64 has them."""
    M, N, K = shape
    a, b = operand(M, K, dtype), operand(N, K, dtype).mT
    buffer, below = placed(M, N, dtype, c)
    buffer_z, at = placed(M, N, dtype, z)
    terms = {"": None, "row": torch.randn(N).to(dtype), "steps": torch.randn(2 * N).to(dtype)[::2]}
    product = alpha * (a.double() @ b.double())
    if aux == "write":
        want_z = product if not bias else product + terms[bias].double()
        want = ACTIVATIONS[epilogue](want_z)
    else:
        at.copy_(3 * torch.randn(M, N))
        want_z = at.double().requires_grad_()
        ACTIVATIONS[epilogue](want_z).backward(product)
        want, want_z = want_z.grad, want_z.detach()
    fusion = Fusion(alpha=alpha, c=at, bias=terms[bias], epilogue=epilogue, aux=aux)
    both = (buffer, below, want), (buffer_z, at, want_z)
    return SimpleNamespace(a=a, b=b, c=below, z=at, fusion=fusion, both=both, dtype=dtype)


def is_right(x):
    for buffer, mine, want in x.both:
        near = ROUNDED[x.dtype]
        torch.testing.assert_close(mine.double(), want, atol=near, rtol=near)
        assert int((~buffer.isnan()).sum()) == mine.numel()  # and nothing beside it
    return True


def observed(x, source=SOURCE, **options):
    report = simulator.simulate(
        source, x.a, x.b, x.c, fusion=x.fusion, check=True, timeout_s=60, **options
    )
    assert not report.findings, [str(finding) for finding in report.findings]
    assert is_right(x)
    return report


WAYS = [
    (0, {"c": "rows", "z": "rows"}),
    (3, {"c": "rows", "z": "rows", "alpha": 0.5}),
    (0, {"c": "odd", "z": "rows"}),
    (0, {"c": "rows", "z": "odd"}),
    (3, {"c": "odd", "z": "odd"}),
    (0, {"c": "rows", "z": "columns", "alpha": -2.0}),
    (0, {"c": "columns", "z": "columns"}),
    (2, {"c": "columns", "z": "rows"}),
]
"""By how many M and N are less than a multiple of 8, which TMA writes; the places of C and Z."""


@needs_gxx
@pytest.mark.spread(6, "tile", "aux", "dtype")
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("aux", ["write", "read"])
@pytest.mark.parametrize("tile", [IN_TURNS, WIDE, ONE_BUFFER, THREE_BUFFERS, SMALL], ids=ids)
def test_each_way_of_c_and_of_z_is_right_and_nothing_is_found(tile, aux, dtype, tmp_path_factory):
    """Several tiles a block, so that buffers are used again; edges on both sides."""
    torch.manual_seed(0)
    source = built_for(tile, dtype, dtype, tmp_path_factory)
    M, N = 2 * tile.BLOCK_M + 80, 5 * tile.BLOCK_N + 24
    for number, (less, way) in enumerate(WAYS):
        epilogue = list(ACTIVATIONS)[number % len(ACTIVATIONS)]
        bias = ("row", "steps")[number % 2] if aux == "write" else ""
        shape = M - less, N - less, (203, 72)[number % 2]
        x = case(shape, dtype, aux, epilogue, bias=bias, **way)
        report = observed(x, source, order=("reverse", "random:3")[number % 2])
        assert report.grid[0] < -(-M // tile.BLOCK_M) * -(-N // tile.BLOCK_N)


@needs_gxx
@pytest.mark.parametrize("aux", ["write", "read"])
def test_every_activation_in_three_calls(aux):
    """By way of the kernel's name; the calls give the same bits."""
    torch.manual_seed(0)
    for epilogue in ACTIVATIONS:
        x = case((77, 40, 65), BF16, aux, epilogue)
        start = load("wgmma_persistent").bind(x.a, x.b, x.c, x.fusion)
        results = []
        for _ in range(3):
            start(x.a, x.b, x.c, x.z, None, None, None)
            assert is_right(x)
            results.append((x.c.clone(), x.z.clone()))
            x.c.fill_(math.nan)
        for c, z in results:
            assert torch.equal(c, results[0][0])
            assert torch.equal(z, results[0][1])


@needs_gxx
def test_the_activation_is_of_what_was_not_yet_rounded():
    torch.manual_seed(0)
    wide = case((64, 64, 64), BF16, "write", "gelu", alpha=4.0)
    simulator.run("wgmma_persistent", wide.a, wide.b, wide.c, wide.fusion)
    rounded = ACTIVATIONS["gelu"](wide.z.double()).to(BF16)
    assert not torch.equal(wide.c, rounded)
    assert is_right(wide)


@pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)
@pytest.mark.parametrize(("tile", "aux"), [(IN_TURNS, "write"), (IN_TURNS, "read"), (WIDE, "read")])
def test_nvcc_keeps_all_in_registers(tile, aux):
    macros = toolchain.built_by_case(SOURCE)
    bias = torch.zeros(8) if aux == "write" else None
    asked = Fusion(c=torch.zeros(8, 8), bias=bias, epilogue="gelu_tanh", aux=aux)
    defines = flags(BF16, asked, BF16, False, macros, tile.plan)
    assert f"-DTCGEMM_FUSES={3 + (16 + 64 if aux == 'write' else 128)}" in defines
    report = records.cuda("wgmma_persistent", "sm_90a", defines)
    assert not report.serialized
    assert len(report.kernels) == 4
    chunks = tile.BLOCK_M // 64 * tile.BLOCK_N // 64 // (1 if tile.PINGPONG else 2)
    for kernel in report.kernels:
        assert kernel.spill_bytes == kernel.sass["STL"] == 0
        assert kernel.sass["UTMASTG"] == (2 * chunks if aux == "write" else chunks)
        assert (kernel.sass["LDSM"] == 4 * chunks) == (aux == "read")


def test_who_knows_no_pre_activation_refuses_it():
    x = case((8, 8, 8), BF16, "write", "relu")
    with pytest.raises(ValueError, match="'naive' takes no pre-activation"):
        load("naive").bind(x.a, x.b, x.c, x.fusion)
    rows = {row["name"]: row for row in KERNELS}
    takes = [name for name, row in rows.items() if "derivative" in row.get("fuses", ())]
    assert takes == ["wgmma_persistent"]
    asked = Problem.stored(64, 64, 64, "bfloat16", "bfloat16", epilogue="gelu", aux="read")
    assert rows["wgmma_persistent"]["refuse"](asked) is None
    wide = Problem.stored(64, 64, 64, "bfloat16", "float32", epilogue="gelu", aux="read")
    assert "of A's type, bfloat16" in rows["wgmma_persistent"]["refuse"](wide)


@needs_gxx
def test_a_launcher_that_is_built_for_something_else_refuses_it(tmp_path):
    x = case((64, 64, 64), BF16, "write", "relu")
    source = tmp_path / "other.cu"
    built = {"IN": DTYPES["bfloat16"], "OUT": DTYPES["bfloat16"], "PLAIN": 0, "FUSES": 128 + 7}
    lines = [f"#define TCGEMM_{name} {value}" for name, value in built.items()]
    source.write_text("\n".join([*lines, f"#include <{SOURCE}>\n"]))
    with pytest.raises(simulator.SimulationError, match="CUDA error 801"):
        simulator.simulate(source, x.a, x.b, x.c, fusion=x.fusion, check=True)
