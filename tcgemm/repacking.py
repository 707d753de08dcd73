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
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch

from . import dispatch
from .batching import Part
from .choosing.plans import modelled_us
from .errors import OperandError
from .problem import ITEMSIZE, Problem

log = logging.getLogger(__name__)

Copier = Callable[..., Any]

Choose = Callable[[Problem], dispatch.Kernel]
"""``dispatch.choose`` of one backend."""

LINE = 64
"""Elements of 16 bits in a line of the L2: rows of a copy are whole multiples of it."""

FAST, TRAFFIC = 550e6, 2.5e6
"""Of kernels that read aligned rows: operations and bytes in a microsecond (H200)."""

ODD_C = 0.9e6
"""Bytes of a C in odd rows in a microsecond, where they are stored by elements. A language that
stores a plain C of 16 bits faster on HOPPER says how fast by the same name."""

HOPPER = (9, 0)
"""The compute capability of an H100 or H200."""

COPIED, COPIED_IN_WORDS = 1.0e6, 1.6e6
"""Bytes of an operand that are copied in a microsecond, read and written: by torch, and by a
language that has a kernel for it (``copier``; reports/nvidia-h200/trials/copies.csv)."""

COPIED_US = (3.5, 7.0), 5.0
"""Microseconds of one copy and of two, and of the kernel that reads them, besides what they read,
multiply and write, where a language does not say how long its own take (``COPIED_US``)."""

BACK_US = 3.5
"""Of a copy of C back to where it is asked for, by torch, besides what it reads and writes."""

WON_US = 2.0
"""Microseconds by which copies and their product have to be estimated to win. Of 129 drawn products
that were copied 26 were estimated to win by less. They took 2.9 us longer than was estimated, in
the mean, and 1.2 times as long as is estimated of the product itself; at 7 x 141 x 2230 (tn) CUDA
took 10.6 us where 5.7 were estimated, and 5.8 without copies (seeds 573 to 584)."""

WORKSPACE_MIB = 1024


@dataclass(frozen=True, slots=True)
class Copies:
    """Which operands are copied, and what is asked of the kernel then."""

    problem: Problem
    a: bool
    b: bool
    c: bool

    @property
    def count(self) -> int:
        """How many passes of copying there are."""
        return self.a + self.b + self.c


def chooser(backend: str, kernel: str | None = None) -> Choose:
    """``dispatch.choose`` that chooses once for each problem. It is for one call: it hears of no
    table or model that changes."""
    return cache(lambda problem: dispatch.choose(problem, backend, kernel))


def worth(problem: Problem, backend: str, choose: Choose | None = None) -> Copies | None:
    """What to copy, where copies and a kernel that reads aligned rows are quicker; else None.

    Args:
        choose: of the backend; by default a new ``chooser``.

    Raises UnsupportedError where no kernel of the backend takes the problem, if that is found out.
    """
    a = _odd((problem.M, problem.K), problem.a_strides, problem.a_alignment)
    b = _odd((problem.K, problem.N), problem.b_strides, problem.b_alignment)
    if not (a or b):
        return None
    choose = choose or chooser(backend)
    copies = Copies(aligned(problem, a, b, False), a, b, False)
    if pays(problem, copies, backend, choose):
        return copies
    if not problem.plain:
        return None
    of_all = Copies(aligned(problem, a, b, True), True, True, True)
    if not pays(problem, of_all, backend, choose):
        return None
    return of_all if choose(copies.problem).why_not(problem) is None else None


def pays(problem: Problem, copies: Copies, backend: str, choose: Choose) -> bool:
    """Whether the copies and the product of them take less time than the product itself."""
    if problem.device != "cuda" or problem.batch > 1 or ITEMSIZE[problem.dtype_in] != 2:
        return False
    if os.environ.get("TCGEMM_REPACK") == "0":
        return False
    direct = choose(problem)
    direct_us = direct.unaligned_us(problem)
    if direct_us is None or sum(_copied(problem, copies)) > _workspace_mib() << 20:
        return False
    copying = copying_us(problem, copies, backend) + WON_US
    if direct_us <= copying + fast_us(problem, copies, backend):
        return False
    module = import_module(dispatch.BACKENDS[backend])
    if modelled_us(problem, direct, module) is None:  # no time to hold the copies' against
        return True
    row = choose(copies.problem)
    return direct_us > copying + (modelled_us(copies.problem, row, module) or 0.0)


def _of(backend: str, name: str, default: Any) -> Any:
    """What a language says of itself, or the default."""
    return getattr(import_module(dispatch.BACKENDS[backend]), name, default)


def fast_us(problem: Problem, copies: Copies, backend: str) -> float:
    """Microseconds of the kernel that reads the copies."""
    of_c = ITEMSIZE[problem.dtype_out] * problem.M * problem.N
    odd = max(copies.problem.c_strides) * ITEMSIZE[problem.dtype_out] % 16
    by_vectors = problem.plain and ITEMSIZE[problem.dtype_out] == 2
    by_vectors = by_vectors and problem.capability == HOPPER
    of_odd = _of(backend, "ODD_C", ODD_C) if by_vectors else ODD_C
    rate = of_odd if odd else TRAFFIC
    moved_us = (problem.bytes - of_c) / TRAFFIC + of_c / rate
    return float(_of(backend, "COPIED_US", COPIED_US)[1]) + max(problem.flop / FAST, moved_us)


def copying_us(problem: Problem, copies: Copies, backend: str) -> float:
    """Microseconds that the copies take, beside the kernel that reads them."""
    of_a, of_b, of_c = _copied(problem, copies)
    rate = COPIED if copier_of(backend) is None else COPIED_IN_WORDS
    one, two = _of(backend, "COPIED_US", COPIED_US)[0]
    us = two if copies.a and copies.b else one
    return float(us + BACK_US * copies.c + (of_a + of_b) / rate + of_c / COPIED)


def _copied(problem: Problem, copies: Copies) -> tuple[int, int, int]:
    """Bytes of the copies of A, B and C."""
    better = copies.problem
    return (
        _bytes((problem.M, problem.K), better.a_strides) * copies.a,
        _bytes((problem.K, problem.N), better.b_strides) * copies.b,
        _bytes((problem.M, problem.N), better.c_strides) * copies.c,
    )


def copier_of(backend: str) -> Callable[..., Copier | None] | None:
    """``copier(x, copy)`` of a language that copies odd rows faster than torch does; else None. It
    gives ``start(copy, x)`` for matrices like these, or None for such as it does not take. With a
    second matrix and its copy it gives ``start(copy, x, copy of the second, second)``, or None
    where one launch does not copy both."""
    by_rows = _of(backend, "copier", None)
    return None if by_rows is None else partial(_by_rows, by_rows)


def _by_rows(copier: Callable[..., Copier | None], *tensors: torch.Tensor) -> Copier | None:
    """The start of ``copier``, which takes matrices by contiguous rows: of matrices and copies like
    these, each pair by rows or by columns."""
    by_columns = [x.stride(0) == 1 and x.stride(1) != 1 for x in tensors[::2]]

    def rows(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return [x.mT if by_columns[i // 2] else x for i, x in enumerate(tensors)]

    start = copier(*rows(tensors))
    return None if start is None else lambda *tensors: start(*rows(tensors))


def _odd(shape: tuple[int, int], strides: tuple[int, int], alignment: int) -> bool:
    """Whether rows of 16-bit elements, or columns, are no multiples of 16 bytes apart."""
    for inner in (0, 1):
        if strides[inner] == 1 or shape[inner] == 1:
            apart = shape[1 - inner] > 1 and strides[1 - inner] % 8 != 0
            return apart or alignment < 16
    return True


def aligned(problem: Problem, a: bool, b: bool, c: bool) -> Problem:
    """The problem of copies of these operands: the same, with theirs in aligned rows.

    ``c``: A, B and C, which is in whole units of TMA then; its columns beyond N are not used.
    """
    M, N, K = problem.M, problem.N, problem.K
    changed: dict[str, Any] = {"N": _whole(N)} if c else {}
    if a or c:
        changed |= {"a_strides": _padded((M, K), problem.a_strides), "a_alignment": 256}
    if b or c:
        changed |= {"b_strides": _padded((K, N), problem.b_strides), "b_alignment": 256}
    if c:
        changed |= {"c_strides": _padded((M, N), problem.c_strides), "c_alignment": 256}
    return replace(problem, **changed)


def _workspace_mib() -> int:
    given = os.environ.get("TCGEMM_WORKSPACE_MIB") or str(WORKSPACE_MIB)
    if not given.isdecimal():
        raise OperandError(
            f"TCGEMM_WORKSPACE_MIB is {given!r}: a whole number of MiB fits, e.g. {WORKSPACE_MIB}"
        )
    return int(given)


class Repacked:
    """A kernel behind copies of its operands: ``start(a, b, c, c_in, bias, scale_a, scale_b)``.

    Where C is not in aligned rows either, and the kernel needs it so, it is copied from such.
    """

    def __init__(
        self, part: Part, copies: Copies, backend: str, bind: Callable[[Part], Callable[..., None]]
    ) -> None:
        """
        Args:
            part: operands of the kind of call.
            copies: which of them are copied.
            backend: whose copier makes them, where it has one.
            bind: binds the kernel to a part with the copies in it.
        """
        self._copies = copies
        a, b, c = self._memory(part.a, part.b, part.c)
        self._copy = _copying(copies, backend, part.a, a, part.b, b[:, : part.b.shape[1]])
        self._start = bind(part._replace(a=a, b=b, c=c))

    def _memory(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Memory of each copy, and each operand that is not copied."""
        wide = _whole(c.shape[1]) if self._copies.c else c.shape[1]
        return (
            _empty(a, a.shape[1]) if self._copies.a else a,
            _empty(b, wide) if self._copies.b else b,
            _empty(c, wide) if self._copies.c else c,
        )

    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *others: Any) -> None:
        copies = self._copies
        to_a, to_b, to_c = self._memory(a, b, c)
        for name, is_copied, x in (("A", copies.a, a), ("B", copies.b, b)):
            if is_copied:
                log.info("%s is copied into aligned rows: %d bytes", name, x.nbytes)
        self._copy(to_a, a, to_b[:, : b.shape[1]], b)
        self._start(to_a, to_b, to_c, *others)
        if copies.c:
            c.copy_(to_c[:, : c.shape[1]])


def _copying(
    copies: Copies, backend: str, a: torch.Tensor, to_a: torch.Tensor, b: torch.Tensor,
    to_b: torch.Tensor,
) -> Copier:  # fmt: skip
    """``start(to_a, a, to_b, b)``, which makes the copies of A and B: by one launch, where the
    language has that."""
    copier = copier_of(backend) or (lambda *tensors: None)
    both = copier(a, to_a, b, to_b) if copies.a and copies.b else None
    if both is not None:
        return both
    of_a = (copier(a, to_a) or torch.Tensor.copy_) if copies.a else None
    of_b = (copier(b, to_b) or torch.Tensor.copy_) if copies.b else None

    def start(to_a: torch.Tensor, a: torch.Tensor, to_b: torch.Tensor, b: torch.Tensor) -> None:
        if of_a is not None:
            of_a(to_a, a)
        if of_b is not None:
            of_b(to_b, b)

    return start


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
