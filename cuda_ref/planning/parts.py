"""K in parts, for rungs of other types than 16 bits: how many parts, and of which tile of C.

A rung that divides K stores the sums of each part to a workspace, and a second launch adds them.
That pays where C has too few tiles for the SMs, or tiles that leave most of the last wave idle. The
model weighs the steps of the busiest SM, what memory delivers, and the second launch. A step along
K is 128 bytes of it in each row, whatever the type. The constants were fitted to 1,839 plans of 161
products behind a foreign kernel in a graph on an H200 (reports/nvidia-h200/trials/type_parts.csv),
but for SECOND_US and PART_US, which were then set by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .cost import ceil_div
from .refusals import TMA_MOST

STEP_BYTES = 128
"""Bytes along K of a step, in a row of A or of B."""

MOST_PARTS = 128

LEAST_STEPS = 4
"""Steps along K of a part, the last apart."""

MOST_WAVES = 4
"""Waves of blocks beyond which K stays whole: the last is too small a part of them."""

LEAST_GAIN = 0.05
"""Part of the time that a division has to save by the model."""

LAUNCH_US = 3.4
"""Before the first step and after the last."""

SECOND_US = 0.6
"""The launch that adds the parts, besides what it reads: it is ready when the first one ends. The
rows alone would have 0.2, and say nothing of a K as short as LEAST_STEPS."""

PART_US = 0.04
"""Each part that it adds."""

SUMS_BYTES_PER_US = 5.9e6
"""Bytes of sums that all SMs write, or read, in a microsecond, through the L2."""

L2_BYTES = 40e6
"""Of operands that a repeated product finds in the L2."""

L2_BYTES_PER_US, MEMORY_BYTES_PER_US = 3.5e6, 3.4e6
"""Bytes of operands that the L2, or memory, delivers to all SMs in a microsecond."""

L2_LATENCY_US, MEMORY_LATENCY_US = 1.2, 2.0
"""Until a stage that is asked for has come: all stages of a ring are on their way at once, so that
a step takes at least its share of that. With 32 of a tile's 128 columns, a stage is few bytes and
takes as long."""

L2_TO_SM_BYTES_PER_US = 110e3
"""Bytes of operands that one SM takes in."""

NORM = 4
"""Of what the SMs multiply and what is delivered to them: close to the longer, not its maximum."""


WORKSPACE_VARIABLE, WORKSPACE_MIB = "TCGEMM_WORKSPACE_MIB", 1024
"""Environment variable that bounds the memory of what a call writes beforehand and in parts, and
its default, both as of copies of odd rows (tcgemm/repacking.py): B of 8192 cubed in two terms takes
512 MiB."""


class Way(NamedTuple):
    """One way to multiply: a tile of C, and what a block takes for a step along K of it."""

    block_m: int
    block_n: int
    step_us: float
    stages: int
    """Of its ring."""
    before_us: float = 0.0
    """Of a pass over an operand that other ways do without."""


class Sizes(NamedTuple):
    """A product as a model of time sees it, C by rows."""

    M: int
    N: int
    steps: int
    sum_bytes: int
    """Of an accumulator."""
    batch: int = 1


def room() -> int:
    """Bytes that a call may write beforehand and in parts. What is no number is repacking's to
    refuse."""
    given = os.environ.get(WORKSPACE_VARIABLE, "")
    return (int(given) if given.isdigit() else WORKSPACE_MIB) << 20


def workspace_bytes(of: Sizes, parts: int) -> int:
    """Of the sums of so many parts, in rows of whole 16 bytes."""
    return 0 if parts == 1 else parts * of.M * ceil_div(of.N * of.sum_bytes, 16) * 16


def fits(of: Sizes, parts: int, width: int, room_bytes: int, beside: int = 0) -> bool:
    """Whether there is room for the sums of so many parts, and TMA counts as far as the last ends.

    Args:
        width: elements along K of a step.
        room_bytes: what ``room`` says, asked once for all that a choice looks at.
        beside: bytes that the call writes besides.
    """
    end = ceil_div(of.steps, parts) * parts * width
    return workspace_bytes(of, parts) + beside <= room_bytes and end <= TMA_MOST


def us(of: Sizes, way: Way, parts: int, sms: int) -> float:
    """Microseconds of a product with K in so many parts, as the model has it."""
    tiles = ceil_div(of.M, way.block_m) * ceil_div(of.N, way.block_n) * of.batch
    waves, steps = ceil_div(tiles * parts, sms), ceil_div(of.steps, parts)
    rows = min(way.block_m, of.M) + min(way.block_n, of.N)
    read = (of.M + of.N) * of.steps * STEP_BYTES * of.batch
    in_l2 = read <= L2_BYTES
    latency = L2_LATENCY_US if in_l2 else MEMORY_LATENCY_US
    fed = max(rows * STEP_BYTES / L2_TO_SM_BYTES_PER_US, latency / way.stages)
    multiplied = waves * steps * max(way.step_us, fed)
    delivered = read / (L2_BYTES_PER_US if in_l2 else MEMORY_BYTES_PER_US)
    moved = 2 * workspace_bytes(of, parts)
    second = SECOND_US + parts * PART_US + moved / SUMS_BYTES_PER_US if parts > 1 else 0.0
    both = (multiplied**NORM + delivered**NORM) ** (1 / NORM)
    return LAUNCH_US + way.before_us + both + second


def divisions(of: Sizes, block_m: int, block_n: int, sms: int) -> Iterator[int]:
    """The numbers of parts worth a look, from 2 on: of those that leave the longest part as many
    steps the fewest."""
    tiles = ceil_div(of.M, block_m) * ceil_div(of.N, block_n)
    most = min(MOST_PARTS, of.steps // LEAST_STEPS, MOST_WAVES * sms // max(tiles, 1))
    for parts in range(2, most + 1):
        if ceil_div(of.steps, ceil_div(of.steps, parts)) == parts:
            yield parts


def best(
    of: Sizes, whole: Way, ways: Iterable[tuple[Way, int]], sms: int
) -> tuple[Way, int] | None:
    """The way and the number of parts that end first; None where that is K whole, by ``whole``."""
    times = [(us(of, way, parts, sms), parts, way) for way, parts in ways]
    if not times:
        return None
    least, parts, way = min(times)
    return (way, parts) if least < (1 - LEAST_GAIN) * us(of, whole, 1, sms) else None
