"""The sweep of the reference BLAS's level-3 test programs over tcgemm.gemm, and its error exits.

All transposes, sizes, alpha and beta of those programs, C in place in memory that is wider than it,
NaN in C where beta is 0 and beside every operand. The programs themselves run by
scripts/blas_level3 where they are installed.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tcgemm

ROOT = Path(__file__).parent.parent
SIZES = (0, 1, 2, 3, 5, 9, 35, 65)
ALPHAS = (0.0, 1.0, 0.7)
BETAS = (0.0, 1.0, 1.3)
CALLS = tuple(itertools.product(SIZES, SIZES, SIZES, ALPHAS, BETAS))
FEW = 461
"""Of so many calls ``make test`` takes one; a prime, so that each value meets every other."""

THRESHOLD = 16
"""Errors in units of rounding of the sum of magnitudes, as the reference's programs allow."""


def stored(rows: int, cols: int, dtype: torch.dtype, device: str, seed: int):
    """A column-major matrix with a spare row, and its memory, NaN where the matrix is not."""
    drawn = torch.Generator().manual_seed(seed)
    values = torch.rand(cols, rows, generator=drawn, dtype=torch.float64) - 0.5
    memory = torch.full((cols + 1, rows + 1), torch.nan, dtype=dtype)
    memory[:cols, :rows] = values
    memory = memory.to(device)
    return memory[:cols, :rows].T, memory


def is_right(backend, dtype, transposes, call, device):
    """Whether one call writes the product into C and nothing beside it."""
    m, n, k, alpha, beta = call
    a, _ = stored(*((k, m) if transposes[0] == "T" else (m, k)), dtype, device, 1)
    b, _ = stored(*((n, k) if transposes[1] == "T" else (k, n)), dtype, device, 2)
    a, b = (x.T if t == "T" else x for x, t in zip((a, b), transposes, strict=True))
    c, memory = stored(m, n, dtype, device, 3)
    before = c.double().cpu()
    if beta == 0:
        c.fill_(torch.nan)
        before.zero_()
    wide_a, wide_b = a.double().cpu(), b.double().cpu()
    expected = alpha * (wide_a @ wide_b) + beta * before
    terms = abs(alpha) * (wide_a.abs() @ wide_b.abs()) + abs(beta) * before.abs()
    result = tcgemm.gemm(a, b, c, alpha=alpha, beta=beta, out=c, backend=backend)
    assert result.data_ptr() == c.data_ptr()
    error = (c.double().cpu() - expected).abs()
    beside = torch.ones_like(memory, dtype=torch.bool)
    beside[:n, :m] = False
    return bool((error <= THRESHOLD * torch.finfo(dtype).eps * terms).all()) and bool(
        memory[beside].isnan().all()
    )


def wrong(backend, dtype, transposes, calls, device):
    return [call for call in calls if not is_right(backend, dtype, transposes, call, device)]


TRANSPOSES = ("NN", "NT", "TN", "TT")


@pytest.mark.parametrize("transposes", TRANSPOSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", ["cuda", "triton", "cublas"])
def test_a_few_calls_of_the_sweep(backend, dtype, transposes, device):
    first = 7 * TRANSPOSES.index(transposes) + 31 * (dtype == torch.float32)
    calls = CALLS[first::FEW]
    for values in zip(*calls, strict=True):
        assert len(set(values)) >= 3
    assert wrong(backend, dtype, transposes, calls, device) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("transposes", TRANSPOSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", ["cuda", "triton", "cublas"])
def test_the_whole_sweep(backend, dtype, transposes, device):
    assert wrong(backend, dtype, transposes, CALLS, device) == []


def test_a_wrong_product_and_a_write_beside_c_are_seen(monkeypatch):
    call = (9, 5, 3, 0.7, 1.3)
    gemm = tcgemm.gemm
    for spoil in (
        lambda c: c[0, 0].add_(1e-4),
        lambda c: c.as_strided((1,), (1,), c.storage_offset() + c.shape[0]).zero_(),
    ):

        def faulty(*operands, spoil=spoil, **asked):
            result = gemm(*operands, **asked)
            spoil(result)
            return result

        monkeypatch.setattr(tcgemm, "gemm", faulty)
        assert wrong("cublas", torch.float32, "NN", [call], "cpu") == [call]
    monkeypatch.setattr(tcgemm, "gemm", gemm)
    assert wrong("cublas", torch.float32, "NN", [call], "cpu") == []


A, B, C = torch.ones(4, 3), torch.ones(3, 5), torch.ones(4, 5)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"a": torch.ones(4, 2)}, r"A is \[4, 2\] and B is \[3, 5\], so K is 2 and 3"),
        ({"a": torch.ones(())}, "A is a scalar"),
        ({"b": torch.ones(())}, "B is a scalar"),
        ({"a": A.double()}, "A is float64 and B is float32"),
        ({"c": torch.ones(5, 4)}, r"C has shape \[5, 4\]"),
        ({"c": C.double()}, "C is float64"),
        ({"c": None}, "beta"),
        ({"out": torch.ones(4, 4)}, r"out has shape \[4, 4\]"),
        ({"out": C.double()}, "out.dtype is float64"),
        ({"out": torch.ones(8).as_strided((4, 5), (1, 1))}, "out"),
        ({"out": torch.ones(1).expand(4, 5)}, "out"),
        ({"alpha": "one"}, "alpha"),
        ({"beta": 1j}, "beta"),
        ({"bias": torch.ones(4)}, "bias"),
        ({"epilogue": "swish"}, "swish"),
        ({"compute": "float128"}, "float128"),
        ({"backend": "cudnn"}, "cudnn"),
        ({"kernel": "unheard"}, "unheard"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["cuda", "triton", "cublas"])
def test_each_bad_argument_ends_in_an_error_that_names_it(backend, changed, said):
    c = C.clone()
    asked = {"a": A, "b": B, "c": c, "alpha": 0.7, "beta": 1.3, "backend": backend} | changed
    with pytest.raises(tcgemm.TcgemmError, match=said):
        tcgemm.gemm(asked.pop("a"), asked.pop("b"), asked.pop("c"), **asked)
    assert c.equal(C)


def test_without_the_programs_the_script_says_what_to_install(tmp_path):
    command = [sys.executable, ROOT / "scripts/blas_level3", "--programs", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "apt-get install libblas-test" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["cuda", "triton", "cublas"])
def test_the_reference_programs(backend):
    command = [sys.executable, ROOT / "scripts/blas_level3", "--backend", backend]
    if not torch.cuda.is_available():
        command += ["--sizes", "0 1 5"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED THE COMPUTATIONAL TESTS") == 2
