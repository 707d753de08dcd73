"""What mma_types and mma_odd, which have one loop, are tested with."""

from __future__ import annotations

from importlib import import_module

import torch

from tcgemm import accuracy, cuda_ref
from tcgemm.problem import Fusion

simulator = import_module("tcgemm.cuda_ref.simulator")

F32, F64 = torch.float32, torch.float64
COMPUTES = [("tf32", F32), ("tf32x3", F32), ("float64", F64)]
LAYOUTS = ["nn", "nt", "tn", "tt"]
ONE_ROW = [(1, 20, 200), (20, 1, 200), (20, 30, 1)]
"""M, N and K of products that have a matrix of one row or column."""


def whole_numbers(rows, columns):
    return torch.randint(-8, 9, (rows, columns))


def placed(rows, columns, letter, dtype, place, fill=torch.randn):
    """A matrix with NaN wherever it is not.

    Args:
        place: how far its rows lie apart beyond whole vectors of 16 bytes, and how far behind a
            multiple of 16 bytes the first one begins, in elements.
    """
    if letter == "t":
        return placed(columns, rows, "n", dtype, place, fill).mT
    vector = 16 // dtype.itemsize
    apart = -(-columns // vector) * vector + place[0]
    memory = torch.full((place[1] + rows * apart + vector,), torch.nan, dtype=dtype)
    return memory.as_strided((rows, columns), (apart, 1), place[1]).copy_(fill(rows, columns))


def defines_of(tile, stages):
    """The flags of a build for the tile."""
    numbers = zip(("BLOCK_M", "BLOCK_N", "NUM_STAGES"), (*tile, stages), strict=True)
    return tuple(f"-DTCGEMM_{name}={number}" for name, number in numbers)


def run(kernel, a, b, c, compute, defines, plan=None, fusion=None, **more):
    """C, by a build with these flags; what was found in it is in the report."""
    report = simulator.simulate(
        simulator.source_of(kernel), a, b, c, fusion=fusion or Fusion(compute=compute), plan=plan,
        defines=defines, **more,
    )  # fmt: skip
    report.raise_if_stopped()
    return report


def is_right_with_everything_fused(kernel, a_of, b_of, compute, dtype, c_t):
    """A batch with each activation; one factor, by turns, is the same matrix for all of it.

    Args:
        a_of, b_of: make the factors, of shape (batch, M, K) and (batch, K, N).
        c_t: whether C is column-major.
    """
    for turn, epilogue in enumerate(("relu", "gelu", "gelu_tanh", "silu")):
        a, b = a_of(), b_of()
        (batch, M, K), N = a.shape, b.shape[2]
        a, b = (a[:1].expand(batch, M, K), b) if turn % 2 else (a, b[:1].expand(batch, K, N))
        c_in = torch.randn(batch, M, N).to(dtype)
        fusion = Fusion(
            compute=compute, alpha=0.5, beta=3.0, c=c_in, bias=c_in[0, 0].clone(),
            epilogue=epilogue,
        )  # fmt: skip
        c = accuracy.poisoned((batch, N, M) if c_t else (batch, M, N), dtype, "cpu")
        c = c.mT if c_t else c
        cuda_ref.load(kernel)(a, b, c, fusion)
        assert accuracy.error_ratio(a, b, c, fusion) <= 1, epilogue
