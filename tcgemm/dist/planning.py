"""Which way a product over several GPUs takes: overlapped, or the collective and then the product.

The answer is the same on every rank, as it rests on sizes that all know. Imports no torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from . import model
from .model import Host, Times

OVERLAPPED = "overlapped"
SEQUENCE = "sequence"
WAYS = (OVERLAPPED, SEQUENCE)

WORTH = 1.02
"""The overlapped way has to be this much faster: a model that errs must not cost time."""


class Plan(NamedTuple):
    """The way that a call takes, a sentence that says why, and the times where they are known."""

    way: str
    why: str
    times: Times | None = None


@lru_cache(maxsize=4096)
def plan_of(
    op: str, M: int, N: int, K: int, dtype: str, world: int, host: Host, why_not: str | None,
    language: str = "",
) -> Plan:  # fmt: skip
    """The plan of a product.

    Args:
        op: options.ALL_GATHER or options.REDUCE_SCATTER.
        M: rows of A, of all ranks.
        N, K: of this rank's product.
        dtype: of A and B, by name.
        host: the GPUs; of a CPU its slug is "".
        why_not: why the overlapped way does not take it, or None.
        language: of the overlapped way; "" for the faster.
    """
    times = model.times(op, M, N, K, dtype, world, host, language)
    if why_not is not None:
        return Plan(SEQUENCE, why_not, times)
    if times is None:
        unknown = model.why_unknown(dtype, host.slug)
        return Plan(SEQUENCE, f"no time is known of the overlapped way: {unknown}", times)
    one, other = times.overlapped_us, times.sequence_us
    told = (
        f"about {one:.0f} us overlapped in {times.language}, {other:.0f} us one after the other "
        f"({times.collective_us:.0f} us of NCCL, {times.gemm_us:.0f} us of product)"
    )
    if other >= WORTH * one:
        return Plan(OVERLAPPED, told, times)
    return Plan(SEQUENCE, f"overlap would not pay: {told}", times)
