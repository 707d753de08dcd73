"""What a Gluon launch refuses of its plan: settings that are not for the operands that it has.

A plan of the project's own never asks for it; one that is given by hand may.
"""

from __future__ import annotations

from typing import Any

import torch

from .descriptors import storable, stored
from .fused_arguments import finishes


def check_parts(c: torch.Tensor, fusion: Any, SPLITS: int, steps: int) -> None:
    """Raise ValueError where K, of so many steps, cannot be divided into SPLITS parts."""
    if c.dim() > 2 or finishes(fusion) or getattr(fusion, "aux", ""):
        what = "a batch" if c.dim() > 2 else "what is fused"
        raise ValueError(
            f"SPLITS={SPLITS} is for plain products of two matrices, not for {what}: leave it out"
        )
    if steps < SPLITS:
        raise ValueError(f"SPLITS={SPLITS} parts of K need as many steps of it, and it has {steps}")


def check_buffers(
    BUFFERS: int, BLOCK_K: int, columns: int, types: tuple[torch.dtype, torch.dtype], fusion: Any,
    by_tma: bool,
) -> None:  # fmt: skip
    """Raise ValueError where subtiles of C, of so many columns, cannot pass through the stages.

    Args:
        types: of A and C.
        by_tma: TMA stores C.
    """
    if BUFFERS:
        return
    name = "BUFFERS=0 stores C through the stages, "
    if types[0] != types[1] or types[0].itemsize != 2:
        raise ValueError(f"{name}of one 16-bit type, and these are {types[0]} and {types[1]}")
    if columns > BLOCK_K:
        raise ValueError(
            f"{name}a subtile in a block of A: {columns} columns do not fit BLOCK_K={BLOCK_K}"
        )
    if not by_tma or getattr(fusion, "c", None) is not None:
        what = "a C_in or a sum beside it" if by_tma else "a C that TMA cannot store"
        raise ValueError(f"{name}and {what} has no place there: BUFFERS=1")


def check_across(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, compute: str, fusion: Any,
    SWAP: int | None, rows: int,
) -> None:  # fmt: skip
    """Raise ValueError where threads cannot read the kernel's A for wgmma.

    Args:
        a, b, c: of the kernel, and so exchanged and transposed with SWAP.
        rows: of A that a consumer multiplies.
    """
    if compute not in ("tf32", "tf32x3") or a.dtype != torch.float32:
        raise ValueError(
            f"ACROSS=1 is for float32 in tf32 and tf32x3, not for {a.dtype} in {compute}"
        )
    if c.dim() > 2 or finishes(fusion) or getattr(fusion, "aux", ""):
        what = "a batch" if c.dim() > 2 else "what is fused"
        raise ValueError(f"ACROSS=1 is for plain products of two matrices, not for {what}")
    if SWAP is None:
        raise ValueError("ACROSS=1 needs a SWAP, which says whose copy is made: SWAP=1 that of A")
    if rows != 64:
        raise ValueError(f"ACROSS=1 reads 64 rows a consumer, and here each has {rows}")
    name = "B" if SWAP else "A"
    if a.dim() > 2:
        raise ValueError(f"ACROSS=1 multiplies {name} as it lies, and here it is a copy")
    if compute == "tf32" and stored(a) != "t":
        raise ValueError(
            f"ACROSS=1 is for an operand across K, and {name} lies along it: leave it out"
        )
    if stored(b.mT) != "n" or (b.dim() > 2) != (compute == "tf32x3"):
        other = "A" if SWAP else "B"
        raise ValueError(f"ACROSS=1 needs a copy of {other}: REPACK=1 makes it")


def check_transposed(rows: torch.Tensor, fusion: Any) -> None:
    """Raise ValueError where accumulators cannot be stored transposed to ``rows``, which is C in
    the order in which it lies."""
    if not storable(rows):
        raise ValueError(
            f"this SWAP needs a C that TMA stores, and it has rows of {rows.shape[-1]} elements "
            f"with strides {tuple(rows.stride())}: leave SWAP out"
        )
    stores = rows.itemsize == 2 or rows.dtype == torch.float32
    if not stores or finishes(fusion) or getattr(fusion, "aux", ""):
        raise ValueError(
            "this SWAP is for plain products with a C of 16 bits or of float32, which is "
            f"{rows.dtype}: leave it out"
        )
