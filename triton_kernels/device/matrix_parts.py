"""The second launch of a product whose tiles had their K divided: it adds whole matrices.

    C[M, N] = partials[0] + partials[1] + ... in this order, narrowed once

The parts are matrices of float32, of int32 where integers are multiplied, that are as large as
whole tiles, one behind the other: partials[parts, rows, columns] (k_parts.py). They are added in
their order, whoever finished first, so the same inputs give the same bits. C lies as it likes: TMA
has no part in this.
"""

from __future__ import annotations

from typing import Any

import torch

from ..host.recording import Step
from ..host.runtime import INTERPRETED, cdiv, starts_early, tl, triton
from ..host.units import HALF, unit_of_stride
from .dot import narrow
from .split_k_partials import CHUNK, launch_dependents_and_wait, registers, sum_of_parts

LEAST_ROWS, LEAST_COLUMNS = 64, 16
"""Elements that rows and columns of a workspace are multiples of: sides of tiles are."""

MOST_COLUMNS = 64
"""Of a program: 128 bytes of a C of 16 bits."""


@triton.jit(do_not_specialize=["M", "N", "columns", "apart", "parts"])
def add_kernel(
    partials,
    c,
    M,
    N,
    columns,
    apart,
    parts,
    stride_cm,
    stride_cn,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNIT_M: tl.constexpr,
    UNIT_N: tl.constexpr,
    UNIT_COLUMNS: tl.constexpr,
    UNIT_APART: tl.constexpr,
    UNIT_CM: tl.constexpr,
    UNIT_CN: tl.constexpr,
    PDL: tl.constexpr,
    EMULATED: tl.constexpr,
):
    """Sizes, steps and strides are given in units, of which the compiler then knows that they are
    whole: ``columns`` from a row of a part to the next, ``apart`` from a part to the next."""
    launch_dependents_and_wait(PDL)
    M, N, columns = M * UNIT_M, N * UNIT_N, columns * UNIT_COLUMNS
    blocks = tl.cdiv(N, COLUMNS)
    m = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    # A block that begins inside of C ends inside of the workspace, which needs no mask.
    at = partials + m.to(tl.int64)[:, None] * columns + n[None, :]
    acc = sum_of_parts(at, apart.to(tl.int64) * UNIT_APART, parts, ROWS, COLUMNS)
    c_ptrs = c + m.to(tl.int64)[:, None] * (stride_cm * UNIT_CM)
    c_ptrs += n.to(tl.int64)[None, :] * (stride_cn * UNIT_CN)
    value = narrow(acc, c.dtype.element_ty, EMULATED)
    tl.store(c_ptrs, value, mask=(m < M)[:, None] & (n < N)[None, :])


def workspace(
    parts: int, rows: int, columns: int, like: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Room for the parts of C, of whole tiles, from torch's caching allocator: see
    ``split_k_partials.workspace``."""
    return torch.empty(parts, rows, columns, dtype=dtype, device=like.device)


def add(partials: torch.Tensor, c: torch.Tensor) -> Step:
    """The launch that adds partials[parts, rows, columns] to C[M, N] of no more rows and columns.

    Rows and columns are multiples of LEAST_ROWS and LEAST_COLUMNS; C is float16, bfloat16 or
    float32, or int32 or float64 where the parts are, with any strides.
    """
    (parts, rows, columns), (M, N) = partials.shape, c.shape
    by_columns = c.stride(0) == 1 and c.stride(1) != 1
    # Where C lies by columns as little as a sector of a row is read, and more rows are stored.
    wide = LEAST_COLUMNS if by_columns else min(columns & -columns, MOST_COLUMNS)
    high = min(CHUNK // wide, LEAST_ROWS)
    units = tuple(map(unit_of_stride, c.stride()))
    constants: dict[str, Any] = {
        "ROWS": high,
        "COLUMNS": wide,
        "UNIT_M": HALF if by_columns and M % HALF == 0 else 1,
        "UNIT_N": 1 if by_columns or N % HALF else HALF,
        "UNIT_COLUMNS": LEAST_COLUMNS,
        "UNIT_APART": LEAST_ROWS * LEAST_COLUMNS,
        "UNIT_CM": units[0],
        "UNIT_CN": units[1],
        **starts_early(not INTERPRETED),
        "EMULATED": INTERPRETED and c.dtype == torch.bfloat16,
        "num_warps": 4,
        "maxnreg": registers(partials),
    }
    args = (
        partials, c, M // constants["UNIT_M"], N // constants["UNIT_N"], columns // LEAST_COLUMNS,
        rows * columns // (LEAST_ROWS * LEAST_COLUMNS), parts, c.stride(0) // units[0],
        c.stride(1) // units[1],
    )  # fmt: skip
    return add_kernel, (cdiv(M, high) * cdiv(N, wide),), args, constants
