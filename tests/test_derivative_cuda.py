"""derivative.cu in the simulator, what nvcc makes of it, and where it cannot be built."""

from importlib import import_module

import pytest
import records
import torch
from tcgemm.cuda_ref import simulator
from tcgemm.cuda_ref.build import extensions, toolchain
from tcgemm.cuda_ref.fusion import Asked
from test_derivative import ACTIVATIONS, ROUNDED

import tcgemm
from tcgemm import cuda_ref, dispatch
from tcgemm.problem import Fusion

derivative = import_module("tcgemm.cuda_ref.derivative")
TYPES = [(dtype, of_dz) for dtype, all_ in derivative.DTYPES.items() for of_dz in all_]
STEP = 16  # rows that a block has at a time, or a sixteenth of them
needs_gxx = pytest.mark.skipif(toolchain.find_cxx() is None, reason="needs g++")


def observed(above, z, below, epilogue, total, **options):
    asked = Asked(1.0, 0.0, epilogue, "float32", "", bias=total)
    report = simulator.simulate(
        toolchain.source("derivative"), above, z, below, fusion=asked, writes_bias=True, **options
    )
    assert report.findings == ()
    return report


def operands(M, N, dtype, of_dz, pitch=0, first=0):
    """dY, Z and dZ, whose rows begin ``first`` elements into rows of ``pitch``."""
    pitch = pitch or N
    return [
        (3 * torch.randn(M, pitch)).to(kind)[:, first : first + N] for kind in (dtype, dtype, of_dz)
    ]


def near_torch_s(above, z, below, epilogue, total):
    exact = z.double().requires_grad_()
    ACTIVATIONS[epilogue](exact).backward(above.double())
    near = ROUNDED[below.dtype]
    torch.testing.assert_close(below.double(), exact.grad, atol=3 * near, rtol=near)
    if total is not None:
        sums, size = exact.grad.sum(0), exact.grad.abs().sum(0)
        near = ROUNDED[total.dtype]
        assert bool(((total - sums).abs() <= near * sums.abs() + 2e-6 * (size + 1)).all())


@needs_gxx
@pytest.mark.spread(7, "types", "epilogue", "case")
@pytest.mark.parametrize("order", ["reverse", "random:3"])
@pytest.mark.parametrize(
    "case",
    [
        (1, 8, 0, 0),  # less than a warp has
        (45, 264, 0, 0),  # two tiles, the second of one word of 16 bits; the last rows are few
        (45, 264, 272, 8),  # rows of words that are part of longer ones
        (45, 264, 273, 0),  # rows of no words
        (45, 264, 272, 1),  # and rows that begin beside one
        (45, 261, 272, 0),  # and rows that end within one
    ],
)
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_it_reads_and_writes_what_it_should(epilogue, types, case, order):
    M, N, pitch, first = case
    torch.manual_seed(0)
    above, z, below = operands(M, N, *types, pitch, first)
    total = torch.full((2 * N,), torch.nan, dtype=types[0])[::2]
    report = observed(above, z, below, epilogue, total, check=True, order=order)
    near_torch_s(above, z, below, epilogue, total)
    assert report.block == (256, 1, 1)  # of the last launch, the sums
    assert observed(above, z, below, epilogue, None, check=True).block == (128, 1, 1)


@needs_gxx
@pytest.mark.parametrize(("M", "N", "rows"), [(2610, 8, 33), (300, 2056, 38)])
def test_a_block_has_many_rows_where_there_are_many(M, N, rows):
    """With the simulator's 8 SMs there are at most 80 blocks, as far as columns allow."""
    torch.manual_seed(0)
    above, z, below = operands(M, N, torch.bfloat16, torch.bfloat16)
    total = torch.empty(N, dtype=torch.bfloat16)
    observed(above, z, below, "gelu", total, check=True)
    near_torch_s(above, z, below, "gelu", total)
    again, sums = torch.empty_like(below), torch.empty_like(total)
    observed(above, z, again, "gelu", sums, check=True, order="random:1")
    assert torch.equal(again, below)
    assert torch.equal(sums, total)
    writers = torch.zeros(M, N, dtype=torch.int32)
    report = observed(above, z, below, "gelu", None, check=True, writers=writers)
    assert writers[-1, -1] == 1  # which what wrote dY has left in the L2
    assert writers[0, 0] == writers.max()
    assert report.grid == (-(-M // rows) * -(-N // 256), 1, 1)


@needs_gxx
@pytest.mark.spread(2, "dtype", "case")
@pytest.mark.parametrize(
    "case",
    [
        (1, 8, 0, 1),
        (300, 264, 0, 1),  # words, several blocks, a tile that is not full
        (300, 264, 272, 2),  # db lies apart
        (333, 513, 0, 1),  # rows of no words
        (2610, 8, 0, 1),  # more rows than a block reads at once
    ],
)
@pytest.mark.parametrize("dtype", derivative.DTYPES)
def test_the_column_sums_alone(dtype, case):
    """Of dY, which nothing else is made from; three calls give the same bits in any order."""
    M, N, pitch, step = case
    torch.manual_seed(0)
    above, _, _ = operands(M, N, dtype, dtype, pitch)
    total = torch.full((step * N,), torch.nan, dtype=dtype)[::step]
    start = derivative.bind(above, None, None, Fusion(bias=total))
    for order in ("reverse", "random:3"):
        start(above, None, None, None, total)
        sums, size = above.double().sum(0), above.double().abs().sum(0)
        near = ROUNDED[dtype]
        assert bool(((total - sums).abs() <= near * sums.abs() + 2e-6 * (size + 1)).all())
        again = torch.full((step * N,), torch.nan, dtype=dtype)[::step]
        report = simulator.simulate(
            toolchain.source("derivative"), above, above, again[None], check=True, order=order
        )
        assert report.findings == ()
        assert torch.equal(again, total)


@needs_gxx
def test_words_are_asked_for_where_rows_have_them():
    def requests(*lies):
        above, z, below = operands(32, 256, torch.float16, torch.float16, *lies)
        return observed(above, z, below, "silu", None, count=True).counts

    words, elements = requests(), requests(257)
    assert words.load_requests == 2 * 32
    assert words.store_requests == 32
    assert elements.load_requests == 8 * words.load_requests
    assert words.load_sectors == words.load_bytes // 32


def test_other_dtypes_are_refused_in_a_sentence():
    x, wide = torch.ones(2, 2, dtype=torch.float16), torch.ones(2, 2)
    for dy, z, dz, db in (
        (x, wide, x, None),
        (x, x, wide, None),
        (wide, wide, wide, x[0]),
        (*[x.double()] * 3, None),
    ):
        with pytest.raises(TypeError, match="dY, Z and db are of one dtype"):
            derivative.bind(dy, z, dz, Fusion(epilogue="relu", bias=db))
    for dy, db in ((x, wide[0]), (x.double(), x[0].double())):
        with pytest.raises(TypeError, match="both are of one floating dtype"):
            derivative.bind(dy, None, None, Fusion(bias=db))


@pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_nvcc_keeps_all_in_registers(types):
    report = records.cuda("derivative", "sm_90a", derivative.defines(*types))
    alone = types[0] == types[1]
    assert len(report.kernels) == 2 * (len(ACTIVATIONS) + alone) + 1
    for kernel in report.kernels:
        assert kernel.spill_bytes == 0
        words = "Lb1E" in kernel.symbol
        if "add_sums" in kernel.symbol:
            continue
        if "ActivationE0E" in kernel.symbol:  # sums alone: two blocks of 16 warps to an SM
            assert kernel.registers <= 65536 // (2 * 512)
            assert kernel.sass["LDG"] == (8 if words else 16 // types[0].itemsize)
            assert kernel.sass["STG"] == 1
        else:
            assert kernel.registers <= 65536 // (5 * 128)  # five blocks to an SM
            assert kernel.sass["LDG"] == (8 if words else 32 // types[0].itemsize)


@pytest.fixture
def found_anew():
    dispatch.derivative.cache_clear()
    yield
    dispatch.derivative.cache_clear()


@pytest.mark.parametrize("missing", ["a compiler", "nvcc", "nothing but NVRTC"])
def test_without_compilers_it_is_left_to_torch(missing, monkeypatch, found_anew):
    if missing == "a compiler":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(toolchain, "find_cxx", lambda: None)
    else:
        nvrtc = import_module("tcgemm.cuda_ref.nvrtc")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(nvrtc, "in_use", lambda: missing != "nvcc")
        monkeypatch.setattr(extensions, "find_nvcc", lambda: None)
    assert cuda_ref.derivative_kernel() is None
    assert dispatch.derivative("cuda") is None


@needs_gxx
def test_a_layer_without_it_is_torch_s(monkeypatch, found_anew):
    monkeypatch.setattr(cuda_ref, "derivative_kernel", lambda: None)
    x, w, bias = (torch.randn(*s, requires_grad=True) for s in ((10, 17), (19, 17), (19,)))
    y = tcgemm.linear(x, w, bias, "gelu", backend="cuda")
    theirs = ACTIVATIONS["gelu"](torch.nn.functional.linear(x, w, bias))
    mine = torch.autograd.grad(y.sum(), (x, w, bias))
    for a, b in zip(mine, torch.autograd.grad(theirs.sum(), (x, w, bias)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_a_module_that_was_imported_does_not_hide_it(backend, found_anew):
    package = {"triton": "tcgemm.triton_kernels", "cuda": "tcgemm.cuda_ref"}[backend]
    import_module(f"{package}.derivative")
    assert backend == "cuda" or callable(dispatch.derivative(backend))
    assert dispatch.derivative(backend) is not import_module(f"{package}.derivative")
