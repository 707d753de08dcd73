"""Copies of odd rows of 16-bit elements into aligned ones, a word of four elements at a time.

A load of an odd row moves 2 bytes a thread, since the compiler may take no more from an address
that may be odd. Torch's own copy reaches some 0.9 TB/s so, a fifth of what an H200 has. Here a
thread loads whole words of 8 bytes, whichever way the row lies in them. Where it begins within a
word, two neighbours make one of the copy: the upper part of the first and the lower part of the
second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .launching import Rung
from .runtime import cdiv, tl, triton

WORD = tl.constexpr(4)
"""Elements of a word, of 16 bits each."""

ROWS, WORDS, WARPS = 2, 512, 4
"""Of a program."""


@triton.jit(do_not_specialize=["R", "C", "pitch", "begin", "pitch_of_copy"])
def kernel(x, copy, R, C, pitch, begin, pitch_of_copy, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """copy[r, k] = x[r, k], as int16; what follows a row in its last word of the copy is anything.

    x lies ``begin`` elements (0 to 3) behind an address that is a multiple of 8 bytes. Nothing
    outside of it is read: a word that only begins or ends in it is copied by elements.
    """
    across = tl.cdiv(tl.cdiv(C, WORD), WORDS)
    first = tl.program_id(0) // across * ROWS
    r = (first + tl.arange(0, ROWS)).to(tl.int64)
    k = (tl.program_id(0) % across * WORDS + tl.arange(0, WORDS))[None, :]
    inside = (r < R)[:, None] & (WORD * k < C)
    at = r * pitch + begin  # where a row begins, in elements behind that address
    end = (R - 1).to(tl.int64) * pitch + C + begin
    # A row begins ``shift`` elements into the first of its words. These lie in x wholly from
    # ``least`` to before ``most``.
    shift, word = (at % WORD)[:, None], (at // WORD)[:, None]
    least = (at // WORD * WORD < begin).to(tl.int32)[:, None]
    most = tl.minimum(end // WORD - at // WORD, C).to(tl.int32)[:, None]
    whole = inside & (k >= least) & (k + (shift > 0) < most)
    words = (x - begin).to(tl.pointer_type(tl.uint64)) + word
    low = tl.load(words + k, mask=whole, other=0)
    high = tl.load(words + (k + 1), mask=whole & (shift > 0), other=0)
    bits = (16 * shift).to(tl.uint64)
    made = tl.where(shift > 0, low >> bits | high << (64 - tl.maximum(bits, 1)), low)
    to = copy.to(tl.pointer_type(tl.uint64)) + (r * (pitch_of_copy // WORD))[:, None]
    tl.store(to + k, made, mask=whole)
    behind = (R - first - ROWS).to(tl.int64) * pitch  # elements of the rows that follow
    if (first.to(tl.int64) * pitch < WORD) | (behind < 2 * WORD):
        # Here x begins, or ends.
        for element in tl.static_range(4):
            column = WORD * k + element
            left = inside & (column < C)
            mine = left & ((k < least) | (k + (shift > 0) >= most))
            of_x = x + (r * pitch)[:, None] + column
            value = tl.load(of_x, mask=mine, other=0)
            tl.store(copy + (r * pitch_of_copy)[:, None] + column, value, mask=mine)


def arguments(
    x: torch.Tensor, _: torch.Tensor, copy: torch.Tensor
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``.

    Args:
        x: [R, C] of 2 bytes an element, its rows contiguous.
        copy: the same, its rows a multiple of 8 bytes apart.
    """
    R, C = x.shape
    x, copy = x.view(torch.int16), copy.view(torch.int16)
    begin = x.data_ptr() // 2 % 4
    numbers = (R, C, x.stride(0), begin, copy.stride(0))
    constants = {"ROWS": ROWS, "WORDS": WORDS, "num_warps": WARPS}
    return (cdiv(R, ROWS) * cdiv(cdiv(C, 4), WORDS),), (x, copy, *numbers), constants


run = Rung(kernel, arguments)


def copier(x: torch.Tensor, copy: torch.Tensor) -> Callable[..., None] | None:
    """``start(copy, x)``, which copies matrices like these into aligned rows or columns; None where
    torch's own copy has to: of other sizes of elements, or with a step between them."""
    by_columns = x.stride(0) == 1 and x.stride(1) != 1
    if by_columns:
        x, copy = x.mT, copy.mT
    fits = x.itemsize == 2 and x.stride(1) == 1 and copy.stride(1) == 1
    reached = x.data_ptr() % 2 == copy.data_ptr() % 8 == copy.stride(0) % 4 == 0
    if not (fits and reached) or 0 in x.shape:
        return None
    bound = run.bind(x, x, copy)

    def start(copy: torch.Tensor, x: torch.Tensor) -> None:
        if by_columns:
            x, copy = x.mT, copy.mT
        bound(x, x, copy)

    return start
