"""Who is measured: cuBLAS alone, NCCL and cuBLAS, torch's fused operators, and tcgemm.dist."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from ... import dist as ours
from ...dist import calls, sequence
from ...dist.groups import Ranks, gather, sum_parts
from ...dist.options import ALL_GATHER
from ...dist.planning import ONE_SHOT, OVERLAPPED
from ...dist.rows import chunk_of
from .judging import Operands

GEMM, NCCL, TORCH, PLANNED = "cublas", "nccl", "torch", "planned"
LANGUAGES = ("triton", "cuda")

Call = Callable[[], torch.Tensor]
"""Runs the product once; this rank's result."""


def call_of(name: str, of: Operands, backend: str | None) -> Call:
    """A contender on these operands.

    Args:
        name: GEMM, NCCL, TORCH, PLANNED, ONE_SHOT or "overlapped/LANGUAGE".
        backend: of PLANNED, and of the local product of ONE_SHOT.
    """
    if name == GEMM:
        return _product(of)
    if name == NCCL:
        return _after_gather(of) if of.case.op == ALL_GATHER else _before_scatter(of)
    if name == TORCH:
        return _fused(of)
    if name == PLANNED:
        return _ours(of, backend=backend)
    if name == ONE_SHOT:
        return _ours(of, backend=backend, way=ONE_SHOT)
    return _ours(of, backend=name.partition("/")[2], way=OVERLAPPED)


def _ours(of: Operands, **asked: Any) -> Call:
    out = of.a.new_empty(of.shape, dtype=of.out_dtype)
    if of.case.op == ALL_GATHER:
        return lambda: ours.all_gather_matmul(of.a, of.b, of.ranks.group, out=out, **asked)
    return lambda: ours.matmul_reduce_scatter(of.a, of.b, of.ranks.group, out=out, **asked)


def plan_of(of: Operands) -> Any:
    """What PLANNED takes, and why."""
    asked = calls.asked_of(of.ranks, of.case.M, None, None, None, None, None, None, None)
    call = calls.check(of.case.op, of.a, of.b, None, None, None, asked)
    return calls.plan(call, of.a, of.b, None, (None, None))


def _whole_a(of: Operands) -> torch.Tensor:
    return sequence.gathered(of.a, of.case.M, of.ranks) if of.case.op == ALL_GATHER else of.a


def _product(of: Operands) -> Call:
    a = _whole_a(of).clone()
    c = a.new_empty((a.shape[0], of.b.shape[1]), dtype=of.out_dtype)
    return lambda: _multiply(a, of.b, c)


def _multiply(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """c = a @ b by cuBLAS; of 8-bit floats with scales of 1, as it takes them only so."""
    if a.itemsize > 1:
        return torch.mm(a, b, out=c)
    one = _one(a.device)
    return torch._scaled_mm(a, b, one, one, out_dtype=c.dtype, out=c)


@cache
def _one(device: torch.device) -> torch.Tensor:
    return torch.ones((), device=device)


def _after_gather(of: Operands) -> Call:
    """As a program without tcgemm would: into one buffer, in whole chunks."""
    M, ranks = of.case.M, of.ranks
    whole = of.a.new_empty((chunk_of(M, ranks.world) * ranks.world, of.a.shape[1]))
    c = of.a.new_empty(of.shape, dtype=of.out_dtype)
    part = sequence.padded_to(of.a, chunk_of(M, ranks.world))

    def call() -> torch.Tensor:
        gather(ranks, whole, part)
        return _multiply(whole[:M], of.b, c)

    return call


def _before_scatter(of: Operands) -> Call:
    M, ranks = of.case.M, of.ranks
    chunk = chunk_of(M, ranks.world)
    whole = of.a.new_zeros((chunk * ranks.world, of.b.shape[1]), dtype=of.out_dtype)
    c = whole.new_empty((chunk, of.b.shape[1]))

    def call() -> torch.Tensor:
        _multiply(of.a, of.b, whole[:M])
        sum_parts(ranks, c, whole)
        return c[: of.shape[0]]

    return call


def _fused(of: Operands) -> Call:
    """torch's operators over symmetric memory; whatever is missing here is its error."""
    symmetric: Any = import_module("torch.distributed._symmetric_memory")

    ranks, name = of.ranks, of.ranks.name
    if of.case.M % ranks.world:
        raise ValueError(f"it takes rows that divide by the ranks, and these are {of.case.M}")
    enable = getattr(symmetric, "enable_symm_mem_for_group", None)
    with warnings.catch_warnings():  # newer versions need it no more, and say so
        warnings.simplefilter("ignore", FutureWarning)
        if enable is not None:
            enable(name)
    operators: Any = torch.ops.symm_mem
    if of.case.op == ALL_GATHER:
        a = symmetric.empty(of.a.shape, dtype=of.a.dtype, device=of.a.device)
        a.copy_(of.a)
        symmetric.rendezvous(a, name)
        gathers = operators.fused_all_gather_matmul
        return lambda: gathers(a, [of.b], 0, name)[1][0]
    scatters = operators.fused_matmul_reduce_scatter
    return lambda: scatters(of.a, of.b, "sum", 0, name)


def slowest(ranks: Ranks, device: torch.device) -> Callable[[list[float]], list[float]]:
    """The largest of each number over the ranks."""

    def of(numbers: list[float]) -> list[float]:
        t = torch.tensor(numbers, dtype=torch.float64, device=device)
        torch.distributed.all_reduce(t, torch.distributed.ReduceOp.MAX, group=ranks.group)
        found: list[float] = t.tolist()
        return found

    return of


DELAY_CYCLES = 2_000_000
"""About 1 ms before each sample, under which the host asks for all of it."""


@cache
def _twice_the_l2(device: int) -> torch.Tensor:
    """What a write of pushes everything else out of the cache."""
    size = torch.cuda.get_device_properties(device).L2_cache_size
    return torch.empty(2 * size, dtype=torch.uint8, device=torch.device("cuda", device))


def sampler(call: Call, ranks: Ranks) -> Callable[[], float]:
    """ms on this rank's stream of one call, from the moment that all ranks have arrived there.

    The operands are not in the L2: between two calls of a layer a model reads all its other
    weights, and contenders that take turns would else find what the one before has loaded.
    """
    token = torch.zeros(1, device="cuda")
    others = _twice_the_l2(torch.cuda.current_device())
    began, ended = torch.cuda.Event(True), torch.cuda.Event(True)

    def sample() -> float:
        torch.distributed.barrier(group=ranks.group)
        torch.cuda.synchronize()
        others.zero_()
        torch.cuda._sleep(DELAY_CYCLES)
        torch.distributed.all_reduce(token, group=ranks.group)
        began.record()
        call()
        ended.record()
        torch.cuda.synchronize()
        ms: float = began.elapsed_time(ended)
        return ms

    return sample
