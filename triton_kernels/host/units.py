"""What a compiled kernel knows of the sizes M, N and K: little, so that few kernels serve all."""

from __future__ import annotations

import torch

VECTOR = 16
"""Elements: of a size that is a multiple of so many, whole vectors are inside or outside."""


def units(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, BLOCK_M: int, BLOCK_N: int, BLOCK_K: int
) -> dict[str, int]:
    """The constants UNIT_M, UNIT_N and UNIT_K, which M, N and K are multiples of.

    K's is BLOCK_K where no step along K is partial: then its mask, the only one that is computed
    anew in each step, is left out. M's and N's are blocks where all tiles are whole. Else a size
    along which an operand is contiguous may be a multiple of VECTOR, without which the masks of
    16-byte copies would fall apart; of any other nothing need be known. Which is more than any
    other difference between sizes is worth a kernel of its own.
    """
    (M, K), N = a.shape[-2:], b.shape[-1]
    whole_tiles = M % BLOCK_M == 0 and N % BLOCK_N == 0
    rows = a.stride(-2) == 1 or c.stride(-2) == 1
    columns = b.stride(-1) == 1 or c.stride(-1) == 1
    depth = a.stride(-1) == 1 or b.stride(-2) == 1
    return {
        "UNIT_M": BLOCK_M if whole_tiles else VECTOR if rows and M % VECTOR == 0 else 1,
        "UNIT_N": BLOCK_N if whole_tiles else VECTOR if columns and N % VECTOR == 0 else 1,
        "UNIT_K": BLOCK_K if K % BLOCK_K == 0 else VECTOR if depth and K % VECTOR == 0 else 1,
    }
