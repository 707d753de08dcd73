"""How gemv runs a problem: tiles or a column of B for each warp, and the parts of K.

All is said of the problem with M <= N. The model is fitted to some 120 timed cases of an H200
(reports/nvidia-h200/trials/gemv.csv); the tables come before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .limits import column_major
from .waves import most_parts

MOST_ROWS = 8
"""Rows of A that are multiplied with B at once."""

COLUMNS = {"SPLITS": 1, "WARPS": 16, "BLOCKS": 1}
"""Settings of a column for each warp; WARPS is COLUMN_WARPS of shapes/gemv_columns.cuh."""

MOST_COLUMN_K = 32768
"""As there."""

SIMULATED = {"SPLITS": 1, "WARPS": 8, "BLOCKS": 2}
"""The launcher's own settings, on the simulator, whose clusters have one block."""

MEMORY = 4.5e6  # bytes a microsecond, where nobody waits between tiles
START = {False: 3.0, True: 3.5}  # microseconds beside it, of a row-major B and of a K-major one
ROW = 0.33  # microseconds of a further row of A
COLUMN_START = 1.6
FLYING = 48 * 1024  # bytes on their way to an SM that keep memory busy
WARP = 8192  # of which a warp keeps so many


def k_major(problem: Any) -> bool:
    """Whether B is read along K: as column_major in csrc/host/select.cuh."""
    return column_major((problem.K, problem.N), problem.b_strides)


def by_columns(problem: Any) -> bool:
    """Whether each warp has a column of B, where no part of K is asked for."""
    few = problem.M == 1 and problem.batch == 1 and problem.K <= MOST_COLUMN_K
    return few and k_major(problem)


def width(problem: Any) -> int:
    """Columns of a tile."""
    return 16 if k_major(problem) else 128


def tiles(problem: Any) -> int:
    """Of all matrices of the batch."""
    return int(-(-problem.M // MOST_ROWS) * -(-problem.N // width(problem)) * problem.batch)


def divide(
    config: Mapping[str, int], problem: Any, processors: int, turned: bool
) -> dict[str, int]:
    """The plan of a table's config, clamped as plan_of in shapes/gemv.cu clamps it.

    K is divided only where tiles are few: with more, clusters would meet after each of them.

    Args:
        processors: SMs.
        turned: the caller's problem is the transpose of this one.
    """
    settings = {
        "SPLITS": min(max(config["SPLITS"], 1), 8, most_parts(problem.K)),
        "WARPS": min(max(config["WARPS"] // 4 * 4, 4), 12),
        "BLOCKS": max(config["BLOCKS"], 1),
    }
    if tiles(problem) * settings["SPLITS"] > settings["BLOCKS"] * processors:
        settings["SPLITS"] = 1
    rows, columns = MOST_ROWS, width(problem)
    if settings["SPLITS"] == 1 and by_columns(problem):
        rows, columns, settings = 1, COLUMNS["WARPS"], COLUMNS
    tile = (columns, rows) if turned else (rows, columns)
    return {"BLOCK_M": tile[0], "BLOCK_N": tile[1], **settings}


def candidates(problem: Any, processors: int) -> list[dict[str, int]]:
    """Settings worth trying, as tables hold them."""
    most = min(4 if k_major(problem) else 8, most_parts(problem.K))
    found = [
        {"SPLITS": splits, "WARPS": warps, "BLOCKS": blocks}
        for splits in range(1, most + 1)
        for warps, blocks in ((4, 2), (8, 1), (8, 2), (12, 1), (4, 3))
        if splits == 1 or tiles(problem) * splits <= blocks * processors
    ]
    if by_columns(problem):  # one setting without parts of K, whatever it says
        found = [c for c in found if c["SPLITS"] > 1 or (c["WARPS"], c["BLOCKS"]) == (8, 2)]
    return found


def modelled_us(config: Mapping[str, int], problem: Any, processors: int) -> float:
    """Microseconds: all that is read and written, and what comes before and after."""
    M, N, K = problem.M, problem.N, problem.K
    reads = -(-M // MOST_ROWS)  # of B
    memory = 2 * (M * K + reads * K * N + M * N) * problem.batch / MEMORY
    if config["SPLITS"] == 1 and by_columns(problem):
        flying = min(N, COLUMNS["WARPS"] * processors) * WARP
        return COLUMN_START + memory * max(1, processors * FLYING / flying)
    blocks = min(tiles(problem) * config["SPLITS"], config["BLOCKS"] * processors)
    start = START[k_major(problem)] + ROW * (min(M, MOST_ROWS) - 1)
    return start + memory * max(1, processors * FLYING / (blocks * config["WARPS"] * WARP))
