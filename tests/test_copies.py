"""Copies of odd rows into aligned ones, by either language, in every way in which rows lie."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import compiling
import pytest
import torch
from tcgemm.cuda_ref import simulator
from tcgemm.cuda_ref.build import toolchain
from tcgemm.triton_kernels import copier
from tcgemm.triton_kernels.host import copies, recording
from test_triton_bounds import watched as watched  # a fixture

from tcgemm import cuda_ref, repacking, triton_kernels
from tcgemm.problem import Problem

needs_gxx = pytest.mark.skipif(toolchain.find_cxx() is None, reason="needs g++")
COPIERS = [
    pytest.param(repacking.copier_of("triton"), id="triton"),
    pytest.param(repacking.copier_of("cuda"), id="cuda", marks=needs_gxx),
]
of_both = pytest.mark.parametrize("copier", COPIERS)


def matrix(R, C, pitch, begin, device, by_columns=False):
    """[R, C] of random bits, and a view that begins ``begin`` elements into its memory."""
    bits = torch.randint(-(2**15), 2**15, (R * pitch + begin + 8,), dtype=torch.int32)
    memory = bits.to(torch.int16).view(torch.bfloat16).to(device)
    rows = memory[begin : begin + R * pitch].as_strided((R, C), (pitch, 1), begin)
    return rows.mT if by_columns else rows


def copy_of(x):
    """Aligned memory for x, full of ones."""
    wide = -(-max(x.shape) // 64) * 64
    full = torch.full((2 * wide * wide,), 1.0, dtype=x.dtype, device=x.device)
    if x.stride(0) == 1 and x.stride(1) != 1:
        return full.as_strided(x.shape, (1, wide))
    return full.as_strided(x.shape, (wide, 1))


@of_both
@pytest.mark.spread(3, "by_columns", "begin", "R")
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("begin", range(8))
@pytest.mark.parametrize(
    ("R", "C", "pitch"),
    [(3, 5, 5), (5, 4, 7), (1, 1, 1), (2, 1, 3), (7, 9, 10), (3, 16, 17), (4, 1031, 1033)],
)
def test_a_copy_has_the_bits_of_the_matrix(R, C, pitch, begin, by_columns, copier, device):
    x = matrix(R, C, pitch, begin, device, by_columns)
    copy = copy_of(x)
    start = copier(x, copy)
    for _ in range(3):
        copy.fill_(1.0)
        start(copy, x)
        assert torch.equal(copy.view(torch.int16), x.view(torch.int16))


@of_both
@pytest.mark.parametrize("columns", [(False, False), (True, False), (True, True)])
def test_two_matrices_are_copied_by_one_start(columns, copier, device):
    """Of sizes, places and orders of their own; and later others of their kind."""
    kinds = ((5, 1031, 1033, 1), (7, 9, 11, 3)), ((1, 3, 3, 2), (64, 40, 41, 5))
    for pair in kinds:
        start = None
        for _ in range(3):
            x, y = (
                matrix(*kind, device, by_columns)
                for kind, by_columns in zip(pair, columns, strict=True)
            )
            copy, copy_y = copy_of(x), copy_of(y)
            start = start or copier(x, copy, y, copy_y)
            start(copy, x, copy_y, y)
            for of, made in ((x, copy), (y, copy_y)):
                assert torch.equal(made.view(torch.int16), of.view(torch.int16))


@of_both
def test_two_matrices_of_which_one_is_torch_s_are_not_copied_by_one_start(copier):
    x, copy = torch.empty(4, 5).half(), torch.empty(4, 64).half()[:, :5]
    assert copier(x, copy, x, copy) is not None
    assert copier(x, copy, x.float(), copy.float()) is None


@of_both
def test_a_later_call_has_other_tensors(copier, device):
    """Of the same kind, as ``Repacked`` promises."""
    first = matrix(5, 7, 9, 1, device)
    start = copier(first, copy_of(first))
    for _ in range(3):
        x = matrix(5, 7, 9, 1, device)
        copy = copy_of(x)
        start(copy, x)
        assert torch.equal(copy.view(torch.int16), x.view(torch.int16))


@pytest.mark.skipif(torch.cuda.is_available(), reason="watches Triton's interpreter")
@pytest.mark.parametrize("begin", [0, 1])
@pytest.mark.parametrize(("R", "C", "pitch"), [(3, 5, 5), (3, 4, 7), (2, 6, 6), (1, 1, 1)])
def test_nothing_beside_the_matrix_is_read(R, C, pitch, begin, watched):
    x = matrix(R, C, pitch, begin, "cpu")
    copy = copy_of(x)
    # From the first element to the last: what lies between rows is the matrix's as well.
    span = x.as_strided(((R - 1) * pitch + C,), (1,))
    found = watched(X=span)
    copier(x, copy)(copy, x)
    assert found == []
    assert torch.equal(copy.view(torch.int16), x.view(torch.int16))


@of_both
def test_what_has_other_elements_or_a_step_is_left_to_torch(copier):
    copy = torch.empty(4, 64)
    assert copier(torch.empty(4, 5), copy[:, :5]) is None  # 4 bytes
    half = torch.empty(4, 64).half()
    assert copier(torch.empty(4, 10).half()[:, ::2], half[:, :5]) is None
    assert copier(torch.empty(0, 5).half(), half[:0, :5]) is None
    assert copier(torch.empty(4, 5).half(), half[:, :5]) is not None


@needs_gxx
@pytest.mark.parametrize("begin", [0, 1, 7])
@pytest.mark.parametrize(("R", "C"), [(3, 5), (3, 17), (1, 1), (2, 24)])
def test_nothing_beside_the_matrix_is_read_in_cuda(R, C, begin):
    """A vector that the matrix only begins or ends in would be read beyond it. What lies between
    rows, of which there is nothing here, is the matrix's as well."""
    x = matrix(R, C, C, begin, "cpu")
    copy = copy_of(x)
    report = simulator.simulate(toolchain.source("copies"), x, x, copy, check=True)
    report.raise_if_stopped()
    assert report.findings == ()
    assert torch.equal(copy.view(torch.int16), x.view(torch.int16))


def test_only_a_language_with_such_a_kernel_is_reckoned_with_it(monkeypatch):
    odd = Problem(
        4096, 4096, 4096, "bfloat16", "bfloat16", (4097, 1), (4097, 1), (4096, 1),
        capability=(9, 0),
    )  # fmt: skip
    made = repacking.Copies(repacking.aligned(odd, True, True, False), True, True, False)
    us = repacking.copying_us(odd, made, "cuda")
    later = triton_kernels.COPIED_US[0][1] - cuda_ref.COPIED_US[0][1]
    assert us + later == pytest.approx(repacking.copying_us(odd, made, "triton"))
    monkeypatch.delattr(cuda_ref, "copier")
    assert repacking.copying_us(odd, made, "cuda") > 1.4 * us


def test_what_is_launched_can_be_recorded():
    """What Triton compiled to something else than is expected is not replayed, and is no error."""
    x = matrix(5, 7, 9, 1, "cpu")
    for second, programs in ((None, 1), (SimpleNamespace(c=copy_of(x)), 2)):
        grid, args, constants = copies.arguments(x, x, copy_of(x), second)
        assert grid == (programs,)
        assert [*copies.kernel.arg_names][len(args) :] == ["WORDS", "WORDS_2", "PART"]
    assert recording.record(object(), (None, (3, 4), args, constants), (1, 1, 2)) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("matrices", [1, 2])
def test_the_compiler_loads_words(matrices):
    """For sm_90, without a GPU: 8 bytes a load but at the ends of the matrix, nothing spilled."""
    both = ["both"] * (matrices - 1)
    done = compiling.run(str(Path(__file__).with_name("copies_compile.py")), *both)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout.splitlines()[-1])
    assert made["spill_bytes"] == 0
    loads = re.findall(r"ld\.global\.(\w+)", made["ptx"])
    assert set(loads) == {"b16", "b64"}
    each = copies.PART // (32 * copies.WARPS)
    assert loads.count("b64") == 2 * each * matrices
    assert set(re.findall(r"st\.global\.(\w+)", made["ptx"])) == {"b16", "b64"}
