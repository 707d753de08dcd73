"""The tile that skinny and stream_k share, of few rows of A: as skinny/tile.cuh has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..planning.cost import TILE_K, most_splits
from ..planning.refusals import refuse_tma
from ..planning.rows import TMA_ROWS

SKINNY_ROWS = f"M or N at most 128; {TMA_ROWS}"

SKINNY_MOST = 128
"""Rows of the narrow side."""


MOST_PARTS = 32
"""Parts of K of skinny: up to MOST_SPLITS of them are blocks of a cluster, and more are added by
a second kernel, of which a thread waits for one trip to the L2 up to so many."""


def refuse_skinny(problem: Any) -> str | None:
    """Why neither M nor N is one narrow tile, or TMA cannot read A or B; None when all fits."""
    if min(problem.M, problem.N) > SKINNY_MOST:
        return (
            f"M={problem.M} and N={problem.N} and one of them must be at most {SKINNY_MOST}: "
            "one_wave and wgmma_persistent take it"
        )
    return refuse_tma(problem)


def tile_rows(M: int, block_n: int) -> int:
    """Rows of A in a tile: tile_rows in skinny/tile.cuh."""
    return 16 if M <= 16 and block_n % 64 == 0 else 64 if M <= 64 else 128


def divide(config: Mapping[str, int], problem: Any, sms: int, transposed: bool) -> dict[str, int]:
    """The plan of a table's config: see Tuning.divide.

    An A that is stored transposed comes in panels of 64 rows, and has widths of 64 and 128 alone:
    width_for in skinny/tile.cuh.
    """
    if "SPLITS" in config:
        config = {**config, "SPLITS": min(config["SPLITS"], most_splits(problem.K), MOST_PARTS)}
    width = config["BLOCK_N"]
    rows = tile_rows(problem.M, width)
    if problem.layout[0] == "t":
        rows = max(rows, 64)
        width = width if width % 64 == 0 else rows
    settings = {name: value for name, value in config.items() if name != "BLOCK_N"}
    block_m, block_n = (width, rows) if transposed else (rows, width)
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": TILE_K, **settings}


def instance(problem: Any, plan: Mapping[str, Any]) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: the rungs compute the transposed product of M > N."""
    a_t, b_t = problem.layout[0] == "t", problem.layout[1] == "t"
    a_k, b_k = (b_t, not a_t) if problem.M > problem.N else (not a_t, b_t)
    rows = next(n for n in (16, 64, 128) if min(problem.M, problem.N) <= n)
    rows = max(rows, 16 if a_k else 64)
    return {
        "A": lambda value: value.endswith("0" if a_k else "1"),
        "B": lambda value: value.endswith("0" if b_k else "1"),
        "TILE_M": lambda value: value in (str(rows), str(max(rows, 64))),
    }
