"""skinny: few rows of A as wgmma's narrow side, and B streamed out of memory.

SPLITS are the parts of K: up to MOST_SPLITS of them meet in a cluster, and more in a workspace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..planning.cost import (
    LAUNCH_US,
    MEMORY_TO_SM_BYTES_PER_US,
    MOST_SPLITS,
    TILE_K,
    ceil_div,
    into_sm_us,
    memory_us,
    most_splits,
    store_us,
)
from ..planning.gpu import of as gpu_of
from ..planning.pairs import SPLIT_LINES, SPLIT_SECTORS, WHOLE, rows_lie
from ..planning.refusals import refuse_tma
from ..planning.rows import FUSES_NO_BATCH, row
from ..planning.tables import short_rows
from ..planning.tuning import Tuning, fastest, plans_of, wide
from . import one_wave, skinny_tile, small

ORDER = 160

EXCHANGE_US = 1.0
"""Exchanging partial sums between the blocks of a cluster."""

SHORT_ROWS, SPLIT = 1.7, {WHOLE: 1.0, SPLIT_LINES: 1.1, SPLIT_SECTORS: 1.2}
"""What it takes longer where A lies in rows of its few rows, of which each step asks for 64, and
where rows of B begin within lines or sectors of the L2: between 1.2 and 2.2 of the model at 19
raced products, and 0.9 to 1.4 at 21 (reports/nvidia-h200/trials/races.csv)."""

ADDED = (12, 16, 20, 24, skinny_tile.MOST_PARTS)
"""Parts that are tried where a second kernel adds them,"""

ADDED_WIDTH, ADDED_ROWS, ADDED_KB = 64, 64, 112
"""of tiles of so many columns, for so many rows at most: with 128 columns, and with 40 parts, each
of 27 raced products took longer."""

ADDED_US, ADDED_STEP_US, ADDED_SPLIT_US = 2.84, {16: 0.147, 64: 0.258}, 0.09
"""What comes before and after then, a step of K by the rows of a tile, and what it takes longer
where rows of B begin within lines of the L2,"""

BLOCK_US, BLOCK_ROW_US = 1.6, 0.038
"""and as many blocks as SMs, and each row of their tiles, whose sums go to the L2 and back. Fitted
to 54 plans of 23 products, of which it is off by 4 % (tree 253f7fa of
reports/nvidia-h200/trials/races.csv)."""

LAST_WAVE = 0.8
"""Of the SMs that idle in the last wave, the share for which memory idles too."""


def widths(problem: Any) -> tuple[int, ...]:
    """Columns of C that a tile may have, for a problem with M <= N.

    Others than 64 and 128 are wgmma's n, which for up to 16 rows multiplies mostly in vain; of a
    row-major B they are parts of the lines in which it comes out of memory.
    """
    return (48, 56, 64, 96, 112, 128) if problem.layout == "nt" and problem.M > 16 else (64, 128)


def candidates(problem: Any, sms: int) -> list[dict[str, int]]:
    """Those that keep at least half of the SMs busy, where K is long enough."""
    found = []
    most = most_splits(problem.K)
    for width in widths(problem):
        tiles = ceil_div(problem.N, width)
        for splits in range(1, 9):
            blocks = tiles * splits
            if splits > 1 and (splits > most or blocks > 2 * sms):
                continue
            if blocks * 2 < sms and splits < min(8, most):
                continue
            rings = (112, 200) if blocks <= sms else (112,) if splits > 1 else (50, 112, 200)
            found += [{"BLOCK_N": width, "SPLITS": splits, "SHARED_KB": kb} for kb in rings]
    return found + list(_added(problem, sms))


def _added(problem: Any, sms: int) -> Iterator[dict[str, int]]:
    """Those with a second kernel, all of whose blocks run at once."""
    tiles = ceil_div(problem.N, ADDED_WIDTH)
    few = problem.M <= ADDED_ROWS and not short_rows(problem)
    for parts in ADDED if few else ():
        if parts <= most_splits(problem.K) and tiles * parts <= sms:
            yield {"BLOCK_N": ADDED_WIDTH, "SPLITS": parts, "SHARED_KB": ADDED_KB}


def modelled_us(config: Mapping[str, int], problem: Any, sms: int) -> float:
    """Memory, which idles where the last wave is not full, or the busiest SM, and the exchange."""
    splits, tile_n = config["SPLITS"], config["BLOCK_N"]
    if splits > MOST_SPLITS:
        return _added_us(config, problem, sms)
    tile_m = skinny_tile.tile_rows(problem.M, tile_n)
    tiles = ceil_div(problem.N, tile_n)
    memory = memory_us(problem)
    if splits == 1 and tiles > sms:
        memory *= 1 + LAST_WAVE * (ceil_div(tiles, sms) * sms / tiles - 1)
    most = ceil_div(tiles * splits, sms) * tile_n * 2 * problem.K / splits  # bytes of B for an SM
    memory = max(memory, most / MEMORY_TO_SM_BYTES_PER_US)
    steps = math.ceil(math.ceil(problem.K / TILE_K) / splits)
    into_sm = into_sm_us(max(1, tiles * splits / sms), steps, tile_m, tile_n)
    body = max(memory, into_sm) * _slower(problem)
    return LAUNCH_US + body + store_us(tile_m, tile_n) + EXCHANGE_US * (splits > 1)


def _added_us(config: Mapping[str, int], problem: Any, sms: int) -> float:
    """Steps one after the other, and the sums of all blocks, there and back."""
    parts = config["SPLITS"]
    rows = skinny_tile.divide(config, problem, sms, False)["BLOCK_M"]
    filled = ceil_div(problem.N, ADDED_WIDTH) * parts / sms
    step = ADDED_STEP_US[rows] + ADDED_SPLIT_US * (rows_lie(2, problem.b_strides) != WHOLE)
    steps = ceil_div(ceil_div(problem.K, TILE_K), parts)
    return ADDED_US + steps * step + filled * (BLOCK_US + BLOCK_ROW_US * rows)


MOST_OFFERED = 4
"""Settings that are worth a look where plans of all rungs are compared."""


def offered(problem: Any, sms: int) -> Iterator[Mapping[str, int]]:
    """Plans with the settings that are fastest by the model."""

    def settings(seen: Any, sms: int) -> list[dict[str, int]]:
        found = candidates(seen, sms)
        return sorted(found, key=lambda config: modelled_us(config, seen, sms))[:MOST_OFFERED]

    return plans_of("skinny", problem, sms, settings)


def _slower(problem: Any) -> float:
    """What reading takes longer than of rows that are whole lines of the L2."""
    if short_rows(problem):
        return SHORT_ROWS
    return SPLIT[rows_lie(2, problem.b_strides)]


TUNING = Tuning(
    kernel="skinny",
    settings=("BLOCK_N", "SPLITS", "SHARED_KB"),
    simulated={"BLOCK_N": 64, "SPLITS": 1, "SHARED_KB": 200},
    candidates=candidates,
    modelled_us=modelled_us,
    divide=skinny_tile.divide,
)
cost = TUNING.cost


def settled(problem: Any, sms: int) -> bool:
    """Whether this rung is taken, whatever models of all rungs say: its K is divided for a second
    kernel, and its own model is below those of others that divide it. Their models know no such
    plan: 4 x 96 x 15456 (nn) takes 5.7 us so and 7.2 by one_wave."""
    if problem.batch > 1 or refuse_tma(problem) is not None:
        return False
    us, config = fastest("skinny", wide(problem), sms)
    if config["SPLITS"] <= MOST_SPLITS or us > small.fastest(problem, sms)[2]:
        return False
    by_one_wave = one_wave.cost(problem, sms)
    return by_one_wave is None or us <= by_one_wave


def sure(problem: Any) -> bool:
    """Whether it stays what is taken: the model of drawn shapes knows no such plan either."""
    return settled(problem, gpu_of(problem).sms)


instance = skinny_tile.instance

ROW = row(
    "skinny",
    "few rows as wgmma's narrow side; a cluster divides K, so that memory is never idle",
    (9, 0),
    shapes=skinny_tile.SKINNY_ROWS,
    refuse=skinny_tile.refuse_skinny,
    wgmma=True,
    plan=TUNING.plan,
    tile_of_asked=True,
    fuses=FUSES_NO_BATCH,
)
