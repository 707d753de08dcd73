"""gemv by one row of A and a B in odd rows: how many threads take a column, or a row, of B.

All is said of the problem with M <= N. As gemv/odd.cuh, which reads B in units of 16 bytes.
"""

from __future__ import annotations

from typing import Any

from .cost import MEMORY_TO_SM_BYTES_PER_US, ceil_div
from .refusals import operands, storage

WARPS, BLOCKS = 16, 2
"""Warps of a block, and blocks that an SM has room for."""

UNITS = 6
"""Units of a thread on their way at once: AT_ONCE_UNITS."""

MOST_K = 32768
"""Of a K-major B, whose row of A lies in shared memory: MOST_ODD_K."""

START_US = 1.6
"""Before the first bytes and after the last: as with a column of whole vectors for each warp."""

MEMORY_BYTES_PER_US = 4.5e6
"""As gemv's."""

TRIP_US = 0.82
"""All units of a thread on their way from memory, as small has it of its stages."""

ROW_K, ROW_US = 8192, 0.64
"""Elements of the row of A that a block's threads ask for at once, and their trip, in which what
comes first of B comes into the L2."""

EXCHANGE_US = 1.5
"""The sums of a cluster's blocks."""

COLD_US, COLD_BYTES = 3.0, 5e6
"""What the first bytes of B, so many, take besides. Of products of 0.1 to 250 MB that were timed
those of 5 MB and more took about 3 us more than is said here without
(reports/nvidia-h100-sxm/trials/thin.csv)."""


def reads(problem: Any) -> bool:
    """Whether it is one row of A by one B in rows or columns of neighbours that are no vectors."""
    if problem.M != 1 or problem.batch > 1:
        return False
    _, shape, strides, alignment = operands(problem)[1]
    ld, inner = storage(shape, strides)
    return inner == 1 and bool(alignment < 16 or ld * 2 % 16)


def plan(problem: Any, sms: int, k_major: bool, transposed: bool) -> dict[str, int]:
    """The plan; BLOCK_N has what a block takes of C at once, and says the launcher how many threads
    take a column or a row."""
    _, columns, splits = fastest(problem, sms, k_major)
    tile = {"BLOCK_M": columns, "BLOCK_N": 1} if transposed else {"BLOCK_M": 1, "BLOCK_N": columns}
    return {**tile, "SPLITS": splits, "WARPS": WARPS, "BLOCKS": BLOCKS}


def fastest(problem: Any, sms: int, k_major: bool) -> tuple[float, int, int]:
    """(microseconds, columns of C that a block takes at once, blocks that divide K), by the model.

    In the simulator K is whole, unless a plan says otherwise.
    """
    if k_major:
        return _by_columns(problem, sms)
    most = 1 if problem.device == "cpu" else 8
    ways = [(lanes, splits) for lanes in (32, 16, 8, 4) for splits in range(1, most + 1)]
    return min(_by_rows(problem, sms, lanes, splits) for lanes, splits in ways)


def _by_columns(problem: Any, sms: int) -> tuple[float, int, int]:
    """As many threads to a column as there are for all, each with a unit at least, and as few turns
    of them as bring a column in one."""
    units, threads = ceil_div(problem.K + 7, 8), 32 * WARPS
    blocks = max(8, BLOCKS * sms // 8 * 8)
    each = 4
    while each < threads and each < units:
        one_turn = each >= min(32, units / UNITS)
        if one_turn and problem.N * each * 2 > blocks * threads:
            break
        each *= 2
    columns = threads // each
    turns = ceil_div(problem.N, blocks * columns) * ceil_div(units, UNITS * each)
    row = ceil_div(problem.K, ROW_K) * ROW_US
    share = ceil_div(ceil_div(problem.N, columns), BLOCKS * sms) * BLOCKS * columns  # of an SM
    return (
        START_US + row + _body_us(problem, turns, 2 * min(share, problem.N) * problem.K),
        columns,
        1,
    )


def _by_rows(problem: Any, sms: int, lanes: int, splits: int) -> tuple[float, int, int]:
    """Strips of 8 columns for each lane but one, which has what stands out by shifted rows."""
    columns = 8 * (lanes - 1)
    blocks = ceil_div(problem.N, columns) * splits
    rows = WARPS * 32 // lanes * splits  # of B at once
    turns = ceil_div(blocks, BLOCKS * sms) * ceil_div(problem.K, UNITS * rows)
    into_sm = 2 * problem.K * 8 * lanes / splits * ceil_div(blocks, sms)
    us = START_US + _body_us(problem, turns, into_sm) + EXCHANGE_US * (splits > 1)
    return us, columns, splits


def _body_us(problem: Any, turns: int, into_sm: float) -> float:
    """Trips one after the other, or memory, or what the busiest SM reads."""
    memory = 2 * (problem.K * (problem.N + 1) + problem.N) / MEMORY_BYTES_PER_US
    cold = COLD_US * min(1.0, 2 * problem.K * problem.N / COLD_BYTES)
    return cold + float(max(turns * TRIP_US, memory, into_sm / MEMORY_TO_SM_BYTES_PER_US))
