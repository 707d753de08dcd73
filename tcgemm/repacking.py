"""Odd rows: operands that fast kernels cannot read are copied into aligned rows where it pays.

TMA, and vector loads, want rows a multiple of 16 bytes apart. A product of other operands runs at
an eighth of the speed on an H200 (reports/nvidia-h200/trials). One pass over A and B into memory
with aligned rows costs the time of reading and writing them; from some size on that and the fast
kernel are quicker than a kernel that reads any rows. TCGEMM_REPACK=0 turns this off, and
TCGEMM_WORKSPACE_MIB bounds the memory of the copies (1024 by default); both are read when a call
of its kind is first made.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from .batching import Part
from .dispatch import Kernel, choose
from .errors import OperandError
from .problem import ITEMSIZE, Problem

log = logging.getLogger(__name__)

LINE = 64
"""Elements of 16 bits in a line of the L2: rows of a copy are whole multiples of it."""

SLOW, FAST = 110e6, 550e6
"""Operations in a microsecond of kernels for any rows, and of those for aligned ones (H200)."""

COPIED = 1e6
"""Bytes of an operand that are copied in a microsecond, read and written."""

LAUNCH_US = 4.0
"""Of a copy."""

WORKSPACE_MIB = 1024


def pays(problem: Problem) -> bool:
    """Whether copies of A and B in aligned rows, and the fast kernels, would be quicker."""
    if problem.device != "cuda" or problem.batch > 1 or ITEMSIZE[problem.dtype_in] != 2:
        return False
    if os.environ.get("TCGEMM_REPACK") == "0":
        return False
    copied = _bytes((problem.M, problem.K), problem.a_strides)
    copied += _bytes((problem.K, problem.N), problem.b_strides)
    limit = _workspace_mib() << 20
    saved = problem.flop / SLOW - problem.flop / FAST
    return copied <= limit and saved > copied / COPIED + 2 * LAUNCH_US


class Copied(NamedTuple):
    """A product that runs on copies."""

    problem: Problem
    """Of the copies."""
    with_c: bool
    """Whether C is written through a copy, too."""
    row: Kernel


def planned(problem: Problem, backend: str) -> Copied | None:
    """The product of copies in aligned rows, where a kernel wants them and they pay."""
    if not pays(problem):
        return None
    for with_c in (False, True) if problem.plain else (False,):
        better = aligned(problem, with_c)
        row = choose(better, backend)
        if row.why_not(problem) is not None:  # it cannot read the operands as they lie
            return Copied(better, with_c, row)
    return None


def aligned(problem: Problem, with_c: bool) -> Problem:
    """The problem of the copies: the same, with A and B in aligned rows.

    ``with_c``: C as well, in whole units of TMA; its columns beyond N are not used.
    """
    M, N, K = problem.M, problem.N, problem.K
    better = replace(
        problem,
        N=_whole(N) if with_c else N,
        a_strides=_padded((M, K), problem.a_strides),
        b_strides=_padded((K, N), problem.b_strides),
        a_alignment=256,
        b_alignment=256,
    )
    if not with_c:
        return better
    return replace(better, c_strides=_padded((M, N), problem.c_strides), c_alignment=256)


def _workspace_mib() -> int:
    given = os.environ.get("TCGEMM_WORKSPACE_MIB") or str(WORKSPACE_MIB)
    if not given.isdecimal():
        raise OperandError(
            f"TCGEMM_WORKSPACE_MIB is {given!r}: a whole number of MiB fits, e.g. {WORKSPACE_MIB}"
        )
    return int(given)


class Repacked:
    """A kernel behind copies of A and B: ``start(a, b, c, c_in, bias, scale_a, scale_b)``.

    Where C is not in aligned rows either, and the kernel needs it so, it is copied from such.
    """

    def __init__(
        self, part: Part, with_c: bool, bind: Callable[[Part], Callable[..., None]]
    ) -> None:
        """
        Args:
            part: operands of the kind of call.
            with_c: whether C is written through a copy.
            bind: binds the kernel to a part with the copies in it.
        """
        self._with_c = with_c
        a, b, c = self._copies(part.a, part.b, part.c)
        self._start = bind(part._replace(a=a, b=b, c=c))

    def _copies(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Memory of the copies: of A, of B and, where it is copied, of C, else C itself."""
        if not self._with_c:
            return _empty(a, a.shape[1]), _empty(b, b.shape[1]), c
        wide = _whole(c.shape[1])
        return _empty(a, a.shape[1]), _empty(b, wide), _empty(c, wide)

    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *others: Any) -> None:
        log.info("A and B are copied into aligned rows: %d and %d bytes", a.nbytes, b.nbytes)
        a_copy, b_copy, c_copy = self._copies(a, b, c)
        a_copy.copy_(a)
        b_copy[:, : b.shape[1]].copy_(b)
        self._start(a_copy, b_copy, c_copy, *others)
        if self._with_c:
            c.copy_(c_copy[:, : c.shape[1]])


def _whole(columns: int) -> int:
    """Columns of 16 bits in whole units of 16 bytes."""
    return -(-columns // 8) * 8


def _padded(shape: tuple[int, int], strides: tuple[int, int]) -> tuple[int, int]:
    """Strides of a copy in the operand's own order, its rows in whole lines of the L2."""
    if strides[0] == 1 and strides[1] != 1:
        return 1, -(-shape[0] // LINE) * LINE
    return -(-shape[1] // LINE) * LINE, 1


def _bytes(shape: tuple[int, int], strides: tuple[int, int]) -> int:
    first, second = _padded(shape, strides)
    return 2 * (first * shape[0] if second == 1 else second * shape[1])


def _empty(x: torch.Tensor, columns: int) -> torch.Tensor:
    """Memory of a copy of x with so many columns, as many or up to a unit more, in its own order.

    It is of torch's caching allocator: kept, and ordered on the stream.
    """
    rows = x.shape[0]
    strides = _padded((rows, x.shape[1]), (x.stride(0), x.stride(1)))
    size = strides[0] * rows if strides[1] == 1 else strides[1] * columns
    return torch.empty(size, dtype=x.dtype, device=x.device).as_strided((rows, columns), strides)
