"""Blocks of B whose float32 elements are copied one by one, as one row in the order of memory.

Rows that do not begin at multiples of 16 bytes are copied 4 bytes a thread, neighbours by
neighbouring threads. B passes through registers on its way to wgmma, to be split or rounded, and
of a block of two dimensions Triton lets its place in shared memory follow the dimension along which
a thread's own elements lie. That is the other one here: 32 neighbours are then written, and read
again, a row of the block apart, which is one bank, one after the other. A block of 64 x 32 takes
4096 cycles so, and 128 as one row. A block of one dimension has no other order.
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RET505

from __future__ import annotations

import torch

from ..host.runtime import by_wgmma, tl, triton


@triton.jit
def places(BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, FLAT: tl.constexpr):
    """Where along K and along N the elements of a block of B are: [BLOCK_K, 1] and [1, BLOCK_N], or
    of each of [BLOCK_K * BLOCK_N] in the order of memory, in which FLAT comes first."""
    if FLAT == "K":
        each = tl.arange(0, BLOCK_K * BLOCK_N)
        return each % BLOCK_K, each // BLOCK_K
    elif FLAT == "N":
        each = tl.arange(0, BLOCK_K * BLOCK_N)
        return each // BLOCK_N, each % BLOCK_N
    else:
        return tl.arange(0, BLOCK_K)[:, None], tl.arange(0, BLOCK_N)[None, :]


@triton.jit
def block_of(loaded, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, FLAT: tl.constexpr):
    """What was loaded from ``places``, as [BLOCK_K, BLOCK_N]."""
    if FLAT == "K":
        return tl.trans(tl.reshape(loaded, (BLOCK_N, BLOCK_K)))
    elif FLAT == "N":
        return tl.reshape(loaded, (BLOCK_K, BLOCK_N))
    else:
        return loaded


def flat(b: torch.Tensor, compute: str, unit: int) -> str:
    """The constant FLAT of B[K, N]: the dimension along which it lies, where its elements are
    copied one by one on their way to wgmma; else nothing.

    Args:
        compute: how the product is summed (device/dot.py).
        unit: elements that the compiler may know a stride to be a multiple of.
    """
    if compute not in ("tf32", "tf32x3") or not by_wgmma():
        return ""
    stride_k, stride_n = b.stride()[-2:]
    apart = stride_n if stride_k == 1 else stride_k
    in_vectors = 1 in (stride_k, stride_n) and apart % unit == 0 and b.data_ptr() % 16 == 0
    return "" if in_vectors else "K" if stride_k == 1 else "N"
