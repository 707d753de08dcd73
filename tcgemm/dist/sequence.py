"""The collective and the best local kernel, one after the other: the way that is always there.

Rows that are no multiple of the ranks fill whole chunks (rows.py), so that every rank moves as
much; what lies behind row M is written, and read by nobody.

The partial sums of ``matmul_reduce_scatter`` have the result's dtype while they move. Where NCCL
adds them, it rounds after each addition, in an order of its own that depends on the algorithm that
it picks; bias and epilogue follow, and the result is rounded once more. Elsewhere, and under
torch.use_deterministic_algorithms(True), the ranks exchange them and each adds its own rows in the
order of ranks in float32, then bias and epilogue, and rounds once: calls repeat to the bit.
"""

from __future__ import annotations

from typing import Any

import torch

from ..call import gemm
from ..epilogue import finished, wide_dtype
from ..problem import Fusion
from .groups import Ranks, exchange, gather, is_nccl, sum_parts
from .rows import chunk_of, rows_of


def gathered(part: torch.Tensor, rows: int, ranks: Ranks) -> torch.Tensor:
    """[rows, ...] of all ranks, from the rows of this one; contiguous, but of one rank as it is."""
    if ranks.world == 1:
        return part
    chunk = chunk_of(rows, ranks.world)
    whole = part.new_empty((chunk * ranks.world, *part.shape[1:]))
    if whole.numel():
        gather(ranks, whole, padded_to(part, chunk))
    return whole[:rows]


def padded(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """x [M, N] in whole chunks, contiguous; x itself where it is that."""
    return padded_to(x, chunk_of(len(x), ranks.world) * ranks.world)


def padded_to(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x with rows of zeros behind it, contiguous; x itself where it has so many."""
    if len(x) == rows:
        return x.contiguous()
    whole = x.new_zeros((rows, *x.shape[1:]))
    whole[: len(x)] = x
    return whole


def summed(
    whole: torch.Tensor, rows: int, ranks: Ranks, out: torch.Tensor, fusion: Fusion | None = None
) -> torch.Tensor:
    """out = epilogue(the sum over ranks of their rows of this rank + bias).

    Args:
        whole: [chunk * ranks, N], contiguous: the partial sums of all rows, chunk by chunk.
        rows: M.
        out: [rows of this rank, N].
    """
    fusion = fusion or Fusion()
    first, last = rows_of(rows, ranks.world, ranks.rank)
    chunk = chunk_of(rows, ranks.world)
    if not whole.numel():
        return out
    parts = whole.view(ranks.world, chunk, -1)
    wide = wide_dtype(out.dtype)
    if is_nccl(ranks, whole.device) and not torch.are_deterministic_algorithms_enabled():
        after = fusion.bias is not None or fusion.epilogue
        part = out if not after and len(out) == chunk and out.is_contiguous() else None
        total = torch.empty_like(parts[0]) if part is None else part
        sum_parts(ranks, total, whole)
        total = total[: last - first]
        if part is None:
            out.copy_(finished(total.to(wide), fusion) if after else total)
        return out
    received = torch.empty_like(parts)
    exchange(ranks, received, parts)
    received = received[:, : last - first]
    total = received[0].to(wide, copy=True)
    for of_rank in received[1:]:
        total += of_rank
    return out.copy_(finished(total, fusion))


def all_gather_matmul(
    a_shard: torch.Tensor, b: torch.Tensor, out: torch.Tensor, rows: int, ranks: Ranks, **asked: Any
) -> torch.Tensor:
    """Gather A, then out = epilogue(A B + bias) by the local kernel; returns the gathered A.

    ``asked``: of ``gemm``. A scale of one dimension is of this rank's rows, and is gathered too.
    """
    scale = asked.get("scale_a")
    if isinstance(scale, torch.Tensor) and scale.dim():
        asked["scale_a"] = gathered(scale, rows, ranks)
    a = gathered(a_shard, rows, ranks)
    gemm(a, b, out=out, **asked)
    return a


def matmul_reduce_scatter(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    ranks: Ranks,
    bias: torch.Tensor | None,
    epilogue: str | None,
    **asked: Any,
) -> torch.Tensor:
    """out = epilogue(this rank's rows of the sum over ranks of A B, + bias).

    ``asked``: of ``gemm``, but for what comes after the sum.
    """
    if ranks.world == 1:
        return gemm(a, b, bias=bias, epilogue=epilogue, out=out, **asked)
    rows = a.shape[0]
    whole = out.new_empty((chunk_of(rows, ranks.world) * ranks.world, b.shape[1]))
    whole[rows:].zero_()
    gemm(a, b, out=whole[:rows], **asked)
    return summed(whole, rows, ranks, out, Fusion(bias=bias, epilogue=epilogue or ""))
