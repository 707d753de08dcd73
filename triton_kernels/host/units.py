"""What a compiled kernel knows of the sizes M, N and K: little, so that few kernels serve all."""

from __future__ import annotations

import torch

VECTOR = 16
"""Elements: of a size that is a multiple of so many, whole vectors are inside or outside."""


COPIED = 16
"""Bytes that one thread copies at once: rows that are multiples of so many are whole vectors too,
of which Triton's compiler hears from nobody else."""

HALF = 8
"""Elements of 16 bits in as many bytes."""


def units(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    BLOCK_M: int,
    BLOCK_N: int,
    BLOCK_K: int,
    least: int = VECTOR,
) -> dict[str, int]:
    """The constants UNIT_M, UNIT_N and UNIT_K, which M, N and K are multiples of.

    K's is BLOCK_K where no step along K is partial: then its mask, the only one that is computed
    anew in each step, is left out. M's and N's are blocks where all tiles are whole. Else a size
    along which an operand is contiguous may be a multiple of VECTOR, or of ``least``, without which
    the masks of 16-byte copies would fall apart; of any other nothing need be known. Which is more
    than any other difference between sizes is worth a kernel of its own. ``c`` is None where the
    kernel stores no C: then it knows as much as of a C that is contiguous both ways.
    """
    (M, K), N = a.shape[-2:], b.shape[-1]
    whole_tiles = M % BLOCK_M == 0 and N % BLOCK_N == 0
    rows = a.stride(-2) == 1 or c is None or c.stride(-2) == 1
    columns = b.stride(-1) == 1 or c is None or c.stride(-1) == 1
    depth = a.stride(-1) == 1 or b.stride(-2) == 1

    def unit(size: int, block: int, whole: bool, contiguous: bool) -> int:
        if whole:
            return block
        fits = (x for x in (VECTOR, least) if contiguous and size % x == 0)
        return next(fits, 1)

    return {
        "UNIT_M": unit(M, BLOCK_M, whole_tiles, rows),
        "UNIT_N": unit(N, BLOCK_N, whole_tiles, columns),
        "UNIT_K": unit(K, BLOCK_K, K % BLOCK_K == 0, depth),
    }


def copied_at_once(itemsize: int) -> int:
    """Elements of so many bytes that one thread copies at once."""
    return COPIED // itemsize


def unit_of_stride(stride: int | None, least: int = HALF) -> int:
    """The constant of a stride, in elements: ``least`` where it is a multiple of that and not of
    VECTOR, which Triton finds out by itself; else 1, as where there is none."""
    return least if stride is not None and stride % least == 0 and stride % VECTOR else 1
