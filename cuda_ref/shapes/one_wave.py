"""one_wave: one tile to a block; its tile, its cluster and the splits of K.

one_wave_tile.py has the builds, and one_wave_model.py says how long each takes. PDL says whether
the next kernel may start while this one runs (programmatic dependent launch). Every function but
sure, settled, cost and instance is given the problem with M <= N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any

from ..planning.cost import TILE_K, ceil_div
from ..planning.one_wave_fitted import by_columns
from ..planning.one_wave_model import all_us, by_terms_of, least_us_of, modelled_us
from ..planning.one_wave_tile import (
    FEWEST_STAGES,
    among_idle,
    at_once,
    blocks_of,
    divide,
    in_whole_panels,
    nearly_all_have_tiles,
    plan_of,
    refuse_config,
    resident,
    runs_at_once,
    shapes,
    sharing,
    splits_lines,
    stages,
    takes,
)
from ..planning.pairs import SPLIT_LINES, SPLIT_SECTORS, rows_lie, strides_of
from ..planning.refusals import refuse_tma
from ..planning.rows import FUSES_NO_BATCH, TMA_ROWS, row
from ..planning.tables import short_rows
from ..planning.tuning import Tuning, plans_of, wide

ORDER = 140

SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
"""Numbers of parts of K that are tried."""

MOST_BUILDS = 12
"""Settings that tuning tries, each of them a build, and that trees are asked about."""

FEW_ROWS = 16
"""Rows up to which a rung with a narrow tile multiplies less in vain.

With more of them this one was the fastest in 310 of 335 timed cases that fit in one wave, by up to
half, and within 9 % in the others (reports/nvidia-h200/trials/waves.csv).
"""

FEW_COLUMNS = 2048
"""Columns up to which the models decide about few rows."""

SHORT_K = 16
"""Elements along K, those of one mma, up to which ``sure`` says nothing."""

LONG_K = 3000
"""Elements along K from which on others are asked too about few rows: below it this rung or small
was the fastest at each of 40 raced products of 2 to 16 rows within lines of the L2, and the models
of others were off by up to a half. 2 x 4568 x 1288 (nt) takes 6.7 us here and 7.7 by gemv, whose
model said 6.5 (reports/nvidia-h200/trials/races.csv)."""

WIDE = (
    (SPLIT_SECTORS, range(8, 97), 4096, range(5, LONG_K)),
    (SPLIT_SECTORS, range(2, 8), 8192, range(5, 33)),
    (SPLIT_LINES, range(8, 193), 10_000, range(5, LONG_K)),
)
"""How rows lie, rows, columns at least, and elements along K. Of 14 such products where small was
taken, whose many blocks ask for parts of the same sectors or lines, it was slower at 12, and by 9 %
in the mean. 8212 x 40 x 136 (nn) takes 3.26 us here and 3.79 by small, 88 x 15016 x 8 (nn) 3.10 and
4.65 (reports/nvidia-h200/trials/races.csv)."""

SIMULATED = {
    "BLOCK_M": 64,
    "BLOCK_N": 64,
    "BLOCK_K": TILE_K,
    "NUM_STAGES": 8,
    "CLUSTER_M": 1,
    "CLUSTER_N": 1,
    "SPLITS": 1,
    "PDL": 1,
}
"""The tile of a build that names none; problems on the CPU all take it."""


def candidates(problem: Any, sms: int) -> list[dict[str, int]]:
    """Settings of one_wave for a problem with M <= N, all of whose blocks run at once.

    One where there is none such.
    """
    return [*fitting(problem, sms)] or [_config(128, 128, 1, 1, 1)]


@lru_cache(maxsize=1024)
def fits(problem: Any, sms: int) -> bool:
    """Whether all blocks of some setting run at once."""
    return any(True for _, found in _by_tile(problem, sms) for _ in found)


def fitting(problem: Any, sms: int) -> tuple[dict[str, int], ...]:
    """The settings all of whose blocks run at once."""
    return tuple(config for _, found in _by_tile(problem, sms) for config in found)


Tile = tuple[int, int, int]
"""BLOCK_M, BLOCK_N, and parts of K."""


def _by_tile(problem: Any, sms: int) -> Iterator[tuple[Tile, Iterator[dict[str, int]]]]:
    """The same by their tiles; no setting is made before it is asked for."""
    transposed, within = by_columns(problem), splits_lines(problem)
    float32 = problem.dtype_out == "float32"
    whole, divided = _tiles(problem, sms)
    for splits in SPLITS:
        if splits > 1 and 4 * TILE_K * splits > problem.K:
            continue
        for tile, (clusters, rows, cols) in (whole if splits == 1 else divided).items():
            if rows * cols * splits > sms:
                continue
            along = tile[::-1] if transposed else tile
            if stages(*along, splits > 1, float32, problem.plain) < FEWEST_STAGES:
                continue
            yield (*tile, splits), _of_tile((*tile, splits), clusters, rows, cols, sms, within)


@lru_cache(maxsize=1024)
def _tiles(problem: Any, sms: int) -> tuple[dict[tuple[int, int], Any], ...]:
    """Tiles that the problem may have, with K whole and with parts of it, of which there are no
    more than SMs: more are not at once, whatever the cluster. Of each its clusters, and how many
    there are along M and N."""
    M, N, K = problem.M, problem.N, problem.K
    whole = {}
    for (block_m, block_n), clusters in shapes(problem, 1, sms).items():
        rows, cols = ceil_div(M, block_m), ceil_div(N, block_n)
        if rows * cols <= sms and block_m < M + 64 and takes(block_m, block_n, problem):
            whole[block_m, block_n] = clusters, rows, cols
    divided = {
        tile: (clusters, *whole[tile][1:])
        for tile, clusters in (shapes(problem, 2, sms) if K >= 8 * TILE_K else {}).items()
        if tile in whole and takes(*tile, problem, 2)
    }
    return whole, divided


def _of_tile(
    tile: Tile, clusters: Any, rows: int, cols: int, sms: int, within: bool
) -> Iterator[dict[str, int]]:
    """The settings of a tile with which all blocks run at once, and nearly all have a tile."""
    splits = tile[2]
    for cluster_m, cluster_n in clusters:
        cluster = cluster_m * cluster_n
        blocks = -(-rows // cluster_m) * -(-cols // cluster_n) * cluster * splits
        if blocks > at_once(cluster, sms):
            continue
        if not nearly_all_have_tiles(blocks, rows * cols * splits, within):
            continue
        config = _config(*tile[:2], cluster_m, cluster_n, splits)
        yield config
        if splits == 1 and among_idle(blocks, sms):
            yield {**config, "PDL": 0}


def _config(
    block_m: int, block_n: int, cluster_m: int, cluster_n: int, splits: int
) -> dict[str, int]:
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "CLUSTER_M": cluster_m,
        "CLUSTER_N": cluster_n,
        "SPLITS": splits,
        "PDL": 1,
    }


@lru_cache(maxsize=1024)
def tried(problem: Any, sms: int) -> Sequence[dict[str, int]]:
    """The candidates that are fastest by terms: of these the model takes the fastest."""
    by_terms, least_us = by_terms_of(problem, sms), least_us_of(problem)
    found: list[tuple[float, int, dict[str, int]]] = []
    number, most = 0, inf
    for tile, configs in _by_tile(problem, sms):
        if least_us(*tile) > most:  # then none of its settings is among the fastest
            continue
        for config in configs:
            number += 1
            us = by_terms(config)
            if us < most:
                found.append((us, number, config))
        if len(found) >= MOST_BUILDS:
            found = sorted(found)[:MOST_BUILDS]
            most = found[-1][0]
    return [config for _, _, config in sorted(found)] or [_config(128, 128, 1, 1, 1)]


def offered(problem: Any, sms: int) -> Iterator[Mapping[str, int]]:
    """Plans worth a look where plans of all rungs are compared: those of ``tried``, and of a short
    K those in which blocks share an SM."""

    def settings(seen: Any, sms: int) -> Iterator[dict[str, int]]:
        yield from tried(seen, sms)
        yield from sharing_sms(seen, sms)

    fit = fits(wide(problem), sms)  # then so does each of them, as it is
    return plans_of("one_wave", problem, sms, settings, plan_of if fit else None)


def sharing_sms(problem: Any, sms: int) -> Iterator[dict[str, int]]:
    """Settings for a problem with M <= N of which an SM has more than one block, all at once."""
    for block_m, block_n in sharing(problem):
        config = _config(block_m, block_n, 1, 1, 1)
        if sms < blocks_of(config, problem) <= sms * resident(config, problem):
            yield config


FORMER = {"EARLY": "PDL"}
"""Name of a setting in older tables -> its name now."""


def _newer(config: Mapping[str, int]) -> dict[str, int]:
    """A configuration as it is written now: of older ones a cluster lay along M or, with SHARES_A,
    along N."""
    new = {FORMER.get(name, name): value for name, value in config.items()}
    if {"CLUSTER", "SHARES_A"} <= set(new):
        cluster, along_n = new.pop("CLUSTER"), new.pop("SHARES_A")
        new |= {"CLUSTER_M": 1 if along_n else cluster, "CLUSTER_N": cluster if along_n else 1}
    return new


TUNING = Tuning(
    kernel="one_wave",
    settings=("BLOCK_M", "BLOCK_N", "CLUSTER_M", "CLUSTER_N", "SPLITS", "PDL"),
    simulated=SIMULATED,
    whole_plan=True,
    candidates=candidates,
    tried=tried,
    modelled_us=modelled_us,
    all_us=all_us,
    divide=divide,
    fits=runs_at_once,
    check=refuse_config,
    may_be_zero=("PDL",),
    newer=_newer,
    as_raced=in_whole_panels,
    oriented=lambda problem: problem.transposed() if by_columns(problem) else problem,
)


def sure(problem: Any) -> bool:
    """Whether this rung, where all of its blocks run at once, is taken before a table or a model of
    all rungs is asked: a few rows that lie side by side in A, beside many columns. All blocks ask
    for the same few lines then, and clusters ask less often. At 4096 x 8 x 128 small takes 2.7 us
    where B lies along K and 3.8 where it lies in such rows; of 27 products whose plans were raced
    it was slower at 24, by up to two thirds, and skinny at all
    (reports/nvidia-h200/trials/drawn_kernels.csv, races.csv and short_rows.csv).

    So it is of few rows and very many columns, as WIDE has them, where rows split sectors of the
    L2 or lines."""
    seen = wide(problem)
    if seen.M == 1 or seen.N <= FEW_COLUMNS:
        return False
    if seen.K > SHORT_K and short_rows(seen):
        return True
    lie = rows_lie(2, *strides_of(seen))
    return any(
        lie == each and seen.M in rows and least <= seen.N and seen.K in depth
        for each, rows, least, depth in WIDE
    )


def settled(problem: Any, sms: int) -> bool:
    """Whether this rung is taken, whatever the models say.

    It is, where all blocks of some setting run at once, and the problem has more than a few rows,
    or is such as ``sure`` speaks of, or has a few rows that begin within lines of the L2, very many
    columns, and a K below LONG_K.
    """
    seen = wide(problem)
    many = seen.M > 1 and FEW_COLUMNS < seen.N and SHORT_K < seen.K < LONG_K
    within_lines = many and splits_lines(seen)
    return (seen.M > FEW_ROWS or within_lines or sure(problem)) and fits(seen, sms)


def cost(problem: Any, sms: int) -> float | None:
    """By the model, where all blocks of some setting run at once; else None."""
    return TUNING.cost(problem, sms) if fits(wide(problem), sms) else None


def instance(problem: Any, plan: Mapping[str, Any]) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: of splits of K, a second kernel makes C."""
    if plan["SPLITS"] == 1:
        return {}
    return {
        "Out": lambda value: value == "float",
        "Extra": lambda value: value.endswith("Plain"),
    }


ROW = row(
    "one_wave",
    "one tile to a block and all at once: what is known to the build, the loop need not ask",
    (9, 0),
    fuses=FUSES_NO_BATCH,
    shapes=TMA_ROWS,
    refuse=refuse_tma,
    wgmma=True,
    plan=TUNING.plan,
    tile_of_asked=True,
)
