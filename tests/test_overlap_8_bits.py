"""Overlapped products of 8-bit floats with their scales, of drawn sizes, over processes."""

from __future__ import annotations

import random

import pytest
import torch
from test_overlap import in_processes

import tcgemm
from tcgemm.dist.overlap import plan as planning
from tcgemm.dist.overlap import times
from tcgemm.dist.rows import rows_of
from tcgemm.epilogue import FUNCTIONS

DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def drawn(world, seed, most):
    """A call's sizes and operands of all ranks: so small whole numbers, and powers of two as
    scales, that every result is exact."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    M, N, K = draw.randint(1, most), 8 * draw.randint(1, 8), 16 * draw.randint(1, 3)
    dtype = draw.choice(DTYPES)

    def whole(*shape):
        return torch.randint(-1, 2, shape, generator=generator).to(dtype)

    def scales(size):
        return 2.0 ** torch.randint(-1, 2, (size,), generator=generator)

    def b():
        return whole(K, N) if draw.random() < 0.5 else whole(N, K).mT

    of_rows, of_columns = draw.random() < 0.7, draw.random() < 0.5
    one = draw.choice([None, 2.0, torch.tensor(0.5)])
    made = {
        "A": whole(M, K), "As": [whole(M, K) for _ in range(world)],
        "Bs": [b() for _ in range(world)],
        "scale_a": [scales(M) if of_rows else one for _ in range(world)],
        "scale_b": [scales(N) if of_columns else one for _ in range(world)],
        "bias": torch.randint(-3, 4, (N,), generator=generator).bfloat16(),
        "epilogue": draw.choice(["", "relu"]),
    }  # fmt: skip
    return M, N, made


def factor(scale, dim):
    """A scale as it multiplies a product."""
    if scale is None:
        return 1.0
    scale = torch.as_tensor(scale, dtype=torch.float64)
    return scale.unsqueeze(dim) if scale.dim() else scale


def wrong_calls(rank, world, backend, seeds, most):
    """The operation and seed of each call whose result is not exact."""
    wrong = []
    for seed in seeds:
        M, N, of = drawn(world, seed, most)
        first, last = rows_of(M, world, rank)
        mine = slice(first, last)
        asked = {
            "bias": of["bias"], "epilogue": of["epilogue"], "backend": backend, "way": "overlapped",
            "scale_b": of["scale_b"][rank],
        }  # fmt: skip
        scale_a = of["scale_a"][0]  # of all rows of the one A
        shard = scale_a[mine] if isinstance(scale_a, torch.Tensor) and scale_a.dim() else scale_a
        got = tcgemm.dist.all_gather_matmul(
            of["A"][mine].clone(), of["Bs"][rank], rows=M, scale_a=shard, **asked
        )
        wanted = of["A"].double() @ of["Bs"][rank].double()
        wanted = wanted * factor(scale_a, 1) * factor(of["scale_b"][rank], 0)
        wanted = FUNCTIONS[of["epilogue"]](wanted + of["bias"].double())
        if not torch.equal(got, wanted.bfloat16()):
            wrong.append(("all_gather", seed, M, N))
        got = tcgemm.dist.matmul_reduce_scatter(
            of["As"][rank], of["Bs"][rank], scale_a=of["scale_a"][rank], **asked
        )
        total = of["bias"].double() + sum(
            a.double() @ b.double() * factor(s, 1) * factor(t, 0)
            for a, b, s, t in zip(of["As"], of["Bs"], of["scale_a"], of["scale_b"], strict=True)
        )
        if not torch.equal(got, FUNCTIONS[of["epilogue"]](total)[mine].bfloat16()):
            wrong.append(("reduce_scatter", seed, M, N))
    return wrong


def test_triton_multiplies_them_with_their_scales():
    found = in_processes(2, wrong_calls, "triton", range(6), 90)
    assert found == {0: [], 1: []}


@pytest.mark.exhaustive
@pytest.mark.parametrize("world", [3, 4])
def test_triton_multiplies_them_over_more_ranks(world):
    found = in_processes(world, wrong_calls, "triton", range(10, 22), 150, timeout_s=300)
    assert found == {rank: [] for rank in range(world)}


def test_their_plan_counts_bytes():
    """Half of the bytes and of the product's time: a part comes as early as half as many rows."""
    plan = planning.gather_plan(8192, 8192, 8192, 2, planning.TILES_OF_8_BITS, 1)
    assert plan.tile.BLOCK_K == 128
    one, two = (times.arrivals_us(plan, 8192, 2, size)[-1] for size in (1, 2))
    rest = times.FIRST_COPY_US + plan.parts * times.NEXT_COPY_US
    assert two - rest == pytest.approx(2 * (one - rest))
    assert times.gather_us(plan, 8192, 8192, 2, 1) < 0.6 * times.gather_us(plan, 8192, 8192, 2, 2)
