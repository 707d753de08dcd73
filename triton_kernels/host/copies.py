"""Copies of odd rows of 16-bit elements into aligned ones, a word of two elements at a time.

A load of an odd row moves 2 bytes a thread, since the compiler may take no more from an address
that may be odd. Torch's own copy reaches some 0.9 TB/s so, a fifth of what an H200 has. Here a
thread loads whole words of 4 bytes, whichever way the row lies in them. Where it begins in the
middle of a word, two neighbours make one of the copy: the second half of the first and the first
half of the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .launching import Rung
from .runtime import cdiv, tl, triton

ROWS, WORDS, WARPS = 2, 512, 4
"""Of a program. Of six that were timed on an H200 the fastest, by 2 to 10 %."""


@triton.jit(do_not_specialize=["R", "C", "pitch", "begin", "pitch_of_copy"])
def kernel(x, copy, R, C, pitch, begin, pitch_of_copy, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """copy[r, k] = x[r, k], as int16; what follows a row of an odd length in the copy is anything.

    x lies ``begin`` elements (0 or 1) behind an address that is a multiple of 4 bytes. Nothing
    outside of it is read: a word that only begins or ends in it is made of single elements.
    """
    across = tl.cdiv(tl.cdiv(C, 2), WORDS)
    r = (tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    word = tl.program_id(0) % across * WORDS + tl.arange(0, WORDS)
    inside = (r < R)[:, None] & (2 * word < C)[None, :]
    at = r * pitch + begin  # where a row begins, in elements behind that address
    end = (R - 1).to(tl.int64) * pitch + C + begin
    # Words of x from a row's first one on that lie in x wholly: from ``least`` to before ``most``.
    odd, least = (at % 2 == 1)[:, None], (at < 2 * begin).to(tl.int32)[:, None]
    most = tl.minimum(end // 2 - at // 2, C).to(tl.int32)[:, None]
    k = word[None, :]
    words = (x - begin).to(tl.pointer_type(tl.int32)) + (at // 2)[:, None]
    low = tl.load(words + k, mask=inside & (k >= least) & (k < most), other=0)
    high = tl.load(words + (k + 1), mask=inside & odd & (k + 1 < most), other=0)
    first, last = tl.load(x).to(tl.int32), tl.load(x + (end - begin - 1)).to(tl.int32) & 0xFFFF
    low = tl.where(k < least, first << 16, tl.where(k >= most, last, low))
    high = tl.where(k + 1 >= most, last, high)
    made = tl.where(odd, (low >> 16) & 0xFFFF | high << 16, low)
    to = copy.to(tl.pointer_type(tl.int32)) + (r * (pitch_of_copy // 2))[:, None]
    tl.store(to + k, made, mask=inside)


def arguments(
    x: torch.Tensor, _: torch.Tensor, copy: torch.Tensor
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``.

    Args:
        x: [R, C] of 2 bytes an element, its rows contiguous.
        copy: the same, its rows a multiple of 4 bytes apart.
    """
    R, C = x.shape
    x, copy = x.view(torch.int16), copy.view(torch.int16)
    begin = x.data_ptr() // 2 % 2
    numbers = (R, C, x.stride(0), begin, copy.stride(0))
    constants = {"ROWS": ROWS, "WORDS": WORDS, "num_warps": WARPS}
    return (cdiv(R, ROWS) * cdiv(cdiv(C, 2), WORDS),), (x, copy, *numbers), constants


run = Rung(kernel, arguments)


def copier(x: torch.Tensor, copy: torch.Tensor) -> Callable[..., None] | None:
    """``start(copy, x)``, which copies matrices like these into aligned rows or columns; None where
    torch's own copy has to: of other sizes of elements, or with a step between them."""
    by_columns = x.stride(0) == 1 and x.stride(1) != 1
    if by_columns:
        x, copy = x.mT, copy.mT
    fits = x.itemsize == 2 and x.stride(1) == 1 and copy.stride(1) == 1
    reached = x.data_ptr() % 2 == copy.data_ptr() % 4 == copy.stride(0) % 2 == 0
    if not (fits and reached) or 0 in x.shape:
        return None
    bound = run.bind(x, x, copy)

    def start(copy: torch.Tensor, x: torch.Tensor) -> None:
        if by_columns:
            x, copy = x.mT, copy.mT
        bound(x, x, copy)

    return start
