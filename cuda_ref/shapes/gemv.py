"""gemv: few rows of A; tiles of B, or a column of it, for each warp, and splits of K.

All is said of the problem with M <= N. The model is fitted to some 120 timed cases of an H200
(reports/nvidia-h200/trials/gemv.csv); the tables come before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..planning import gemv_odd
from ..planning.cost import most_splits
from ..planning.refusals import (
    ANY,
    MOST_TILES,
    TMA_MOST,
    column_major,
    operands,
    refuse_other_than_sm90,
    refuse_tma,
    refuse_uncounted,
    storage,
)
from ..planning.rows import FUSES, row
from ..planning.tuning import Tuning, plan, wide

ORDER = 180

MOST_ROWS = 8
"""Rows of A that are multiplied with B at once."""

MOST_READS = 2
"""Of B, for those rows each, with which another rung may be slower."""

COLUMNS = {"SPLITS": 1, "WARPS": 16, "BLOCKS": 1}
"""Settings of a column for each warp; WARPS is COLUMN_WARPS of gemv/columns.cuh."""

MOST_COLUMN_K = 32768
"""As there."""

SIMULATED = {"SPLITS": 1, "WARPS": 8, "BLOCKS": 2}
"""On the simulator: the launcher's own settings where it divides no K."""

MEMORY_BYTES_PER_US = 4.5e6
"""Where no warp waits between tiles, memory delivers more than to other rungs."""

LAUNCH_US = {False: 3.0, True: 3.5}
"""Before the first bytes and after the last, of a row-major B and of a K-major one."""

ROW_US = 0.33
"""A further row of A."""

COLUMN_LAUNCH_US = 1.6
"""As LAUNCH_US, with a column for each warp."""

IN_FLIGHT_BYTES = 48 * 1024
"""Bytes on their way to an SM that keep memory busy."""

WARP_IN_FLIGHT_BYTES = 8192
"""Of which a warp keeps so many,"""

APART_IN_FLIGHT_BYTES = 3500
"""and so many where A comes an element at a time: 9720 x 8 x 4780 (tt, B in odd rows) takes 123 us
by 304 warps, 61 by 608 and 34 by 1824 (reports/nvidia-h200/trials/races.csv)."""


def refuse_gemv(problem: Any) -> str | None:
    """Why the operand with more rows or columns of C has no 16-byte vectors; None when it has.

    The other operand may lie anywhere, and with one row both may.
    """
    if reason := refuse_uncounted(problem, "gemv", TMA_MOST):
        return reason
    index = 1 if problem.M <= problem.N else 0
    name, shape, strides, alignment = operands(problem)[index]
    ld, inner = storage(shape, strides)
    step = problem.batch_strides[index] * 2 if problem.batch > 1 else 0
    if inner != 1:
        return f"{name} has strides {strides} and neither is 1: {ANY}, or copy it"
    seen = wide(problem)
    if gemv_odd.reads(seen):
        if not k_major(seen) or seen.K <= gemv_odd.MOST_K:
            return None
        return f"{name} has odd rows and K={seen.K}: gemv has rows of {gemv_odd.MOST_K}: {ANY}"
    if alignment < 16 or ld * 2 % 16 or step % 16:
        matrices = f" and matrices {step}" if step else ""
        return (
            f"{name} is {alignment}-byte aligned with rows {ld * 2}{matrices} bytes apart, and "
            f"16-byte vectors need multiples of 16: {ANY}"
        )
    return None


def k_major(problem: Any) -> bool:
    """Whether B is read along K: as column_major in select.cuh."""
    return column_major((problem.K, problem.N), problem.b_strides)


def in_vectors(problem: Any) -> bool:
    """Whether A comes in vectors of 16 bytes, along K: a_vectors in gemv.cu."""
    along_k = problem.a_strides[1] == 1 or problem.K == 1
    pitch = problem.a_strides[0] if problem.M > 1 else 0
    return bool(along_k and pitch % 8 == 0 and problem.a_alignment % 16 == 0)


def by_columns(problem: Any) -> bool:
    """Whether each warp has a column of B, where K is not divided."""
    few = problem.M == 1 and problem.batch == 1 and problem.K <= MOST_COLUMN_K
    return few and k_major(problem) and not gemv_odd.reads(problem)


def width(problem: Any) -> int:
    """Columns of a tile."""
    return 16 if k_major(problem) else 128


def tiles(problem: Any) -> int:
    """Of all matrices of the batch."""
    return int(-(-problem.M // MOST_ROWS) * -(-problem.N // width(problem)) * problem.batch)


def divide(config: Mapping[str, int], problem: Any, sms: int, transposed: bool) -> dict[str, int]:
    """The plan of a table's config, clamped as plan_of in gemv.cu clamps it.

    K is divided only where tiles are few: with more, clusters would exchange sums after each.

    Args:
        transposed: the caller's problem is the transpose of this one.
    """
    if gemv_odd.reads(problem):  # whatever a table says, whose rows are of whole vectors
        return gemv_odd.plan(problem, sms, k_major(problem), transposed)
    settings = {
        "SPLITS": min(max(config["SPLITS"], 1), 8, most_splits(problem.K)),
        "WARPS": min(max(config["WARPS"] // 4 * 4, 4), 12),
        "BLOCKS": max(config["BLOCKS"], 1),
    }
    if tiles(problem) * settings["SPLITS"] > settings["BLOCKS"] * sms:
        settings["SPLITS"] = 1
    rows, columns = MOST_ROWS, width(problem)
    if settings["SPLITS"] == 1 and by_columns(problem):
        rows, columns, settings = 1, COLUMNS["WARPS"], COLUMNS
    tile = (columns, rows) if transposed else (rows, columns)
    return {"BLOCK_M": tile[0], "BLOCK_N": tile[1], **settings}


def candidates(problem: Any, sms: int) -> list[dict[str, int]]:
    """Settings worth trying, as tables hold them; of odd rows one, whatever it says."""
    if gemv_odd.reads(problem):
        return [dict(SIMULATED)]
    most = min(4 if k_major(problem) else 8, most_splits(problem.K))
    found = [
        {"SPLITS": splits, "WARPS": warps, "BLOCKS": blocks}
        for splits in range(1, most + 1)
        for warps, blocks in ((4, 2), (8, 1), (8, 2), (12, 1), (4, 3))
        if splits == 1 or tiles(problem) * splits <= blocks * sms
    ]
    if by_columns(problem):  # one setting without splits of K, whatever it says
        found = [c for c in found if c["SPLITS"] > 1 or (c["WARPS"], c["BLOCKS"]) == (8, 2)]
    return found


def modelled_us(config: Mapping[str, int], problem: Any, sms: int) -> float:
    """Microseconds: all that is read and written, and what comes before and after."""
    if gemv_odd.reads(problem):
        return gemv_odd.fastest(problem, sms, k_major(problem))[0]
    M, N, K = problem.M, problem.N, problem.K
    reads = -(-M // MOST_ROWS)  # of B
    memory = 2 * (M * K + reads * K * N + M * N) * problem.batch / MEMORY_BYTES_PER_US
    if config["SPLITS"] == 1 and by_columns(problem):
        in_flight = min(N, COLUMNS["WARPS"] * sms) * WARP_IN_FLIGHT_BYTES
        return COLUMN_LAUNCH_US + memory * max(1, sms * IN_FLIGHT_BYTES / in_flight)
    blocks = min(tiles(problem) * config["SPLITS"], config["BLOCKS"] * sms)
    start = LAUNCH_US[k_major(problem)] + ROW_US * (min(M, MOST_ROWS) - 1)
    each = WARP_IN_FLIGHT_BYTES if in_vectors(problem) else APART_IN_FLIGHT_BYTES
    return start + memory * max(1, sms * IN_FLIGHT_BYTES / (blocks * config["WARPS"] * each))


TUNING = Tuning(
    kernel="gemv",
    settings=("SPLITS", "WARPS", "BLOCKS"),
    simulated=SIMULATED,
    candidates=candidates,
    modelled_us=modelled_us,
    divide=divide,
)


def settled(problem: Any, sms: int) -> bool:
    """Whether it is a batch of few rows: no other rung reads each B of a batch once."""
    return bool(problem.batch > 1 and wide(problem).M <= MOST_ROWS)


SURE_B, SURE_K = 1 << 15, 512
"""Elements of B and of K from which ``sure`` is: of a shorter K the lanes of a warp have little to
do. 1 x 4736 x 384 (nt) takes 4.0 us here and 3.65 by small (reports/nvidia-h200/trials/races.csv).
"""


def sure(problem: Any) -> bool:
    """Whether this rung, once it is chosen, stays: each warp has a column of B, of which the model
    of drawn shapes knows nothing. At 1 x 64 x 2048 and 1 x 1024 x 512 (nt) it takes 2.4 us, and
    small, which the model prefers, 3.2 and 3.0 (reports/nvidia-h100-sxm/trials/thin.csv)."""
    seen = wide(problem)
    if not problem.plain or not by_columns(seen):
        return False
    if seen.K < SURE_K or seen.N * seen.K < SURE_B:
        return False
    return plan("gemv", problem)["SPLITS"] == 1


def only_by_name(problem: Any) -> bool:
    """Whether a rung by TMA takes the product, and A comes an element at a time, or B is read more
    than MOST_READS times. At 77 timed products of the first kind, and at 62 of the second, another
    rung was faster, by 1.2 and by 1.5 times at least
    (reports/nvidia-h200/trials/drawn_kernels.csv and races.csv)."""
    seen = wide(problem)
    many = not in_vectors(seen) or seen.M > MOST_READS * MOST_ROWS
    by_tma = refuse_other_than_sm90(problem) is None and refuse_tma(problem) is None
    return bool(many and problem.batch == 1 and by_tma)


def cost(problem: Any, sms: int) -> float | None:
    """By the model, of as many rows as are multiplied with B at once; None of more."""
    return TUNING.cost(problem, sms) if wide(problem).M <= MOST_ROWS else None


def instance(problem: Any, plan: Mapping[str, Any]) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: see inspection.py."""
    seen = wide(problem)
    columns = by_columns(seen) and plan["SPLITS"] == 1
    return {
        "K_MAJOR": lambda value: value == str(k_major(seen)).lower(),
        "COLUMNS": lambda value: value == str(columns).lower(),
        "ODD": lambda value: value == str(gemv_odd.reads(seen)).lower(),
    }


ROW = row(
    "gemv",
    "up to 8 rows: a ring of cp.async for each warp, which streams B and waits for no other",
    (9, 0),
    shapes="B, or A where M > N, 16-byte aligned, one stride 1, rows a multiple of 8 elements "
    "apart; with one row or column of C one stride 1 alone",
    refuse=refuse_gemv,
    most_tiles=MOST_TILES // 2,
    plan=TUNING.plan,
    tile_of_asked=True,
    fuses=FUSES,
)
