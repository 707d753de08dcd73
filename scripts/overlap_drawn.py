"""Drawn calls of overlapped products, for overlap_gpus.py: all ranks draw the same calls."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import tcgemm
import tcgemm.dist.overlap as overlap
from tcgemm.dist.options import ALL_GATHER, REDUCE_SCATTER
from tcgemm.dist.rows import rows_of


def say(**fact: Any) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(fact), flush=True)


def rank_and_world() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def scaled(backend: str, seed: int, way: str = "overlapped") -> int:
    """Both products of 8-bit floats with drawn scales, so small whole numbers and powers of two
    that results are exact: how many were wrong here."""
    rank, world = rank_and_world()
    draw, of_all = random.Random(seed), torch.Generator("cuda").manual_seed(seed)
    dtype = draw.choice((torch.float8_e4m3fn, torch.float8_e5m2))
    M, N, K = draw.randint(1, 3000), 8 * draw.randint(1, 200), 16 * draw.randint(1, 100)

    def drawn(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=of_all, device="cuda").float()

    by_rows, by_columns = draw.random() < 0.7, draw.random() < 0.5
    A, B = [drawn(-1, 2, world, *shape) for shape in ((M, K), (N, K))]
    B *= drawn(0, 8, *B.shape) == 0  # so few that sums are exact
    of_rows = 2 ** drawn(-1, 2, world, M) if by_rows else torch.full((world, M), 2.0, device="cuda")
    of_columns = 2 ** drawn(-1, 2, world, N) if by_columns else torch.ones(world, N, device="cuda")
    b = B[rank].to(dtype).mT
    if draw.random() < 0.5:
        b = b.contiguous()
    asked = {
        "backend": backend, "way": way, "scale_b": of_columns[rank] if by_columns else None
    }  # fmt: skip
    first, last = rows_of(M, world, rank)
    one = [
        (A[r].double() @ B[r].double().mT) * of_rows[r, :, None] * of_columns[r]
        for r in range(world)
    ]
    mine = (A[0].double() @ B[rank].double().mT) * of_rows[0, :, None] * of_columns[rank]
    got = tcgemm.dist.all_gather_matmul(
        A[0, first:last].to(dtype), b, rows=M, scale_a=of_rows[0, first:last] if by_rows else 2.0,
        **asked,
    )  # fmt: skip
    wrong = int(not torch.equal(got, mine.bfloat16()))
    got = tcgemm.dist.matmul_reduce_scatter(
        A[rank].to(dtype), b, scale_a=of_rows[rank] if by_rows else 2.0, **asked
    )
    wanted = sum(part[first:last] for part in one)
    exact = torch.stack(one)[:, first:last].bfloat16().double().sum(0) == wanted
    wrong += int(not torch.equal(got[exact], wanted.bfloat16()[exact]))
    say(
        check="8 bits",
        dtype=str(dtype),
        M=M,
        N=N,
        K=K,
        rows=by_rows,
        columns=by_columns,
        wrong=wrong,
    )
    return wrong


@contextmanager
def in_turns(turn: int, lag: int) -> Iterator[None]:
    """Plans of reduce-scatters have these, with ``turn``: drawn sizes are too small to have any."""
    planned = overlap.scatter_plan
    if turn:
        overlap.scatter_plan = lambda *given, **more: replace(
            planned(*given, **more), turn=turn, lag=lag
        )
    try:
        yield
    finally:
        overlap.scatter_plan = planned


def drawn_calls(
    backend: str, seed: int, count: int, ways: tuple[str, ...] = ("overlapped",)
) -> int:
    """How many of so many calls were wrong here. All ranks draw the same calls, each its delays.

    ``ways``: of which each call takes one, so that slots are used by all of them in turns.
    """
    rank, world = rank_and_world()
    draw, own = random.Random(seed), random.Random(1000 * (seed + 1) + rank)
    of_all = torch.Generator("cuda").manual_seed(seed)
    streams, wrong = [torch.cuda.Stream() for _ in range(2)], 0

    def whole(*shape: int, nonzero: float) -> torch.Tensor:
        signs = torch.randint(0, 2, shape, generator=of_all, device="cuda") * 2 - 1
        there = torch.rand(shape, generator=of_all, device="cuda") < nonzero
        return (signs * there).float()

    for number in range(count):
        op = (ALL_GATHER, REDUCE_SCATTER)[number % 2]
        M = max(1, round(2 ** draw.uniform(0, 12)))
        turn, lag = draw.choice((0, 0, 1, 2, 5)), draw.randint(0, 3)
        if turn:  # where all ranks have as many rows, tiles may take turns
            M = -(-M // world) * world
        N, K = (8 * max(1, round(2 ** draw.uniform(0, 8))) for _ in range(2))
        dtype, relu = draw.choice((torch.bfloat16, torch.float16)), draw.random() < 0.5
        # 64 products of 1 and -1 in the mean: no sum is too large to be exact in 8 bits.
        a, b = whole(world, M, K, nonzero=0.5), whole(world, K, N, nonzero=min(1.0, 128 / K))
        bias = whole(N, nonzero=1.0)
        first, last = rows_of(M, world, rank)
        if op == ALL_GATHER:
            exact, mine = a[0] @ b[rank], a[0, first:last]
        else:
            exact, mine = (a @ b).sum(0)[first:last], a[rank]
        exact = exact + bias
        asked: dict[str, Any] = {
            "backend": backend, "way": draw.choice(ways), "bias": bias.to(dtype),
            "epilogue": "relu" if relu else None,
        }  # fmt: skip
        mine, other = mine.to(dtype), b[rank].to(dtype)
        if draw.random() < 0.5:
            other = other.mT.contiguous().mT
        stream = streams[draw.randrange(2)]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if own.random() < 0.5:
                torch.cuda._sleep(own.randrange(0, 1_000_000))
            if op == ALL_GATHER:
                got = tcgemm.dist.all_gather_matmul(mine, other, rows=M, **asked)
            else:
                with in_turns(turn, lag):
                    got = tcgemm.dist.matmul_reduce_scatter(mine, other, **asked)
        torch.cuda.current_stream().wait_stream(stream)
        if not torch.equal(got, (exact.relu() if relu else exact).to(dtype)):
            wrong += 1
            print(f"rank {rank}: {op} {M} x {N} x {K}, {dtype}, call {number} is wrong", flush=True)
        if number % 100 == 99:
            say(check="drawn", calls=number + 1, wrong=wrong)
    return wrong
