"""The one-shot way without a GPU: processes that share a file, kernels in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from ranks import two_ranks  # noqa: F401

import tcgemm
from tcgemm.dist.rows import rows_of

OPS = ("all_gather", "reduce_scatter")


def call(op, a, b, rows, **asked):
    if op == "all_gather":
        return tcgemm.dist.all_gather_matmul(a, b, rows=rows, **asked)
    return tcgemm.dist.matmul_reduce_scatter(a, b, **asked)


def poison():
    """NaN, in every dtype, into every slot of this rank, while nobody uses them."""
    from tcgemm.dist import overlap

    torch.distributed.barrier()
    for _, rank in overlap._ranks.values():
        for slot in rank.memory.slots:
            if slot.data:
                slot.data[rank.transport.rank].fill_(255)
            assert not slot.stored.any()
    torch.distributed.barrier()


def operands(op, rank, world, M, N, K, dtype, seed):
    """This rank's A and B, and a bias, of which all ranks draw the same."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(0, 4, shape, generator=generator).to(dtype)

    first, last = rows_of(M, world, rank)
    if op == "all_gather":
        whole, bs = drawn(M, K), [drawn(K, N) for _ in range(world)]
        a = whole[first:last].clone()
    else:
        a, bs = [drawn(M, K) for _ in range(world)][rank], [drawn(K, N) for _ in range(world)]
    out = {torch.int8: torch.int32, torch.uint8: torch.int32}.get(dtype, dtype)
    out = torch.bfloat16 if dtype.itemsize == 1 and dtype.is_floating_point else out
    return a, bs[rank], drawn(N).to(out)


def check_against_the_sequence(rank, dtype, sizes, backend):
    """The same product and the same sum in the same order: the same bits."""
    world = torch.distributed.get_world_size()
    for seed, (M, N, K) in enumerate(sizes):
        for op in OPS:
            if op == "reduce_scatter" and dtype in (torch.float64, torch.int8):
                continue
            a, b, bias = operands(op, rank, world, M, N, K, dtype, seed)
            for fused in ({}, {"bias": bias, "epilogue": "relu"}):
                if fused and not dtype.is_floating_point:
                    continue
                poison()
                asked = {"backend": backend, **fused}
                got = call(op, a, b, M, way="one_shot", **asked)
                wanted = call(op, a, b, M, way="sequence", **asked)
                assert torch.equal(got, wanted), (op, M, N, K, fused)
                assert not got.isnan().any()


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8], ids=str
)
def test_results_are_those_of_the_sequence(pair, dtype):
    pair(check_against_the_sequence, dtype, [(43, 16, 32), (1, 16, 16), (700, 48, 32)], "cublas")
