"""Copies of odd rows of 16-bit elements into aligned ones, a word of four elements at a time.

A load of an odd row moves 2 bytes a thread, since the compiler may take no more from an address
that may be odd. Torch's own copy reaches some 0.9 TB/s so, a fifth of what an H200 has. Here a
thread loads whole words of 8 bytes, whichever way the row lies in them. Where it begins within a
word, two neighbours make one of the copy: the upper part of the first and the lower part of the
second.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from .launching import Rung
from .runtime import cdiv, tl, triton

WORD = tl.constexpr(4)
"""Elements of a word, of 16 bits each."""

WORDS = 64, 512
"""Of a row that a program copies, at most: the fewest that cover it, or the most."""

PART, WARPS = 1024, 4
"""Words and warps of a program."""


@triton.jit
def copy_rows(
    program, x, copy, R, C, pitch, begin, pitch_of_copy, WORDS: tl.constexpr, PART: tl.constexpr
):
    """copy[r, k] = x[r, k], as int16; what follows a row in its last word of the copy is anything.

    x lies ``begin`` elements (0 to 3) behind an address that is a multiple of 8 bytes. Nothing
    outside of it is read: a word that only begins or ends in it is copied by elements. It is the
    part of one program of all that copy x.
    """
    ROWS: tl.constexpr = PART // WORDS
    across = tl.cdiv(tl.cdiv(C, WORD), WORDS)
    first = program // across * ROWS
    r = (first + tl.arange(0, ROWS)).to(tl.int64)
    k = (program % across * WORDS + tl.arange(0, WORDS))[None, :]
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


@triton.jit(
    do_not_specialize=[
        *("R", "C", "pitch", "begin", "pitch_of_copy"),
        *("R_2", "C_2", "pitch_2", "begin_2", "pitch_of_copy_2", "programs"),
    ]
)
def kernel(
    x, copy, R, C, pitch, begin, pitch_of_copy, x_2, copy_2, R_2, C_2, pitch_2, begin_2,
    pitch_of_copy_2, programs, WORDS: tl.constexpr, WORDS_2: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Copies x, and by the programs from number ``programs`` on a second matrix, if any."""
    program = tl.program_id(0)
    if x_2 is None:
        copy_rows(program, x, copy, R, C, pitch, begin, pitch_of_copy, WORDS, PART)
    else:
        if program < programs:
            copy_rows(program, x, copy, R, C, pitch, begin, pitch_of_copy, WORDS, PART)
        else:
            program -= programs
            copy_rows(
                program, x_2, copy_2, R_2, C_2, pitch_2, begin_2, pitch_of_copy_2, WORDS_2, PART
            )


def arguments(
    x: torch.Tensor, x_2: torch.Tensor, copy: torch.Tensor, second: Any = None
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The launch as (grid, positional arguments, constants and options) of ``kernel``.

    Args:
        x: [R, C] of 2 bytes an element, its rows contiguous.
        x_2: a second such matrix, where there is one.
        copy: x again, its rows a multiple of 8 bytes apart.
        second: its ``c`` is the copy of x_2; None where x alone is copied.
    """
    programs, words, *of_x = _arguments(x, copy)
    all_programs, words_2, of_second = programs, WORDS[0], [None, None, 0, 0, 0, 0, 0]
    if second is not None:
        more, words_2, *of_second = _arguments(x_2, second.c)
        all_programs += more
    constants = {"WORDS": words, "WORDS_2": words_2, "PART": PART, "num_warps": WARPS}
    return (all_programs,), (*of_x, *of_second, programs), constants


def _arguments(x: torch.Tensor, copy: torch.Tensor) -> tuple[Any, ...]:
    """How many programs copy x, words of a row of each, and what they are told."""
    R, C = x.shape
    words = next((words for words in WORDS if 4 * words >= C), WORDS[-1])
    x, copy = x.view(torch.int16), copy.view(torch.int16)
    begin = x.data_ptr() // 2 % 4
    programs = cdiv(R, PART // words) * cdiv(cdiv(C, 4), words)
    return programs, words, x, copy, R, C, x.stride(0), begin, copy.stride(0)


run = Rung(kernel, arguments)


def copier(
    x: torch.Tensor, copy: torch.Tensor, *second: torch.Tensor
) -> Callable[..., None] | None:
    """``start(copy, x)``, which copies matrices like these, of contiguous rows, into aligned rows;
    given a second matrix and its copy, ``start(copy, x, copy of the second, second)``, by one
    launch. None where torch's own copy has to: of other sizes of elements, or with a step between
    them."""
    if not (_takes(x, copy) and (not second or _takes(*second))):
        return None
    if not second:
        one = run.bind(x, x, copy)
        return lambda copy, x: one(x, x, copy)
    x_2, copy_2 = second
    both = run.bind(x, x_2, copy, _second(copy_2))
    return lambda copy, x, copy_2, x_2: both(x, x_2, copy, copy_2)


def _takes(x: torch.Tensor, copy: torch.Tensor) -> bool:
    fits = x.itemsize == 2 and x.stride(1) == 1 and copy.stride(1) == 1
    reached = x.data_ptr() % 2 == copy.data_ptr() % 8 == copy.stride(0) % 4 == 0
    return fits and reached and 0 not in x.shape


def _second(copy: torch.Tensor) -> SimpleNamespace:
    """The copy of the second matrix, in the place of a pre-activation that is written."""
    return SimpleNamespace(
        alpha=1.0, beta=0.0, c=copy, epilogue="", compute="float32", mma_shape="", aux="write"
    )
