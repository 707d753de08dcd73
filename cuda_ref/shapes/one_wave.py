"""one_wave: one tile to a block; its tile, its cluster and the splits of K.

one_wave_tile.py has the builds, and one_wave_model.py says how long each takes. PDL says whether
the next kernel may start while this one runs (programmatic dependent launch). Every function but
sure, settled, cost and instance is given the problem with M <= N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..planning.cost import TILE_K, ceil_div
from ..planning.one_wave_fitted import by_columns
from ..planning.one_wave_model import all_us, by_terms_of, modelled_us
from ..planning.one_wave_tile import (
    CLUSTERS,
    FEWEST_STAGES,
    among_idle,
    at_once,
    blocks_of,
    divide,
    nearly_all_have_tiles,
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
    return [dict(each) for each in fitting(problem, sms)] or [_config(128, 128, 1, 1, 1)]


def fits(problem: Any, sms: int) -> bool:
    """Whether all blocks of some setting run at once."""
    return bool(fitting(problem, sms))


@lru_cache(maxsize=1024)
def fitting(problem: Any, sms: int) -> tuple[dict[str, int], ...]:
    """The settings all of whose blocks run at once."""
    return tuple(_fitting(problem, sms))


def _fitting(problem: Any, sms: int) -> Iterator[dict[str, int]]:
    M, N, K, transposed = problem.M, problem.N, problem.K, by_columns(problem)
    float32, within = problem.dtype_out == "float32", splits_lines(problem)
    of_tile: dict[tuple[int, int], tuple[int, int]] = {}
    for block_m, block_n in (whole := shapes(problem, 1, sms)):
        rows, cols = ceil_div(M, block_m), ceil_div(N, block_n)
        # More tiles than SMs are not at once, whatever the cluster.
        if rows * cols <= sms and block_m < M + 64 and takes(block_m, block_n, problem):
            of_tile[block_m, block_n] = rows, cols
    divided = shapes(problem, 2, sms) if K >= 8 * TILE_K else {}
    divided = {
        tile: of for tile, of in divided.items() if tile in of_tile and takes(*tile, problem, 2)
    }
    most = {cluster: at_once(cluster, sms) for cluster in {m * n for m, n in CLUSTERS}}
    for splits in SPLITS:
        if splits > 1 and 4 * TILE_K * splits > K:
            continue
        for tile, clusters in (whole if splits == 1 else divided).items():
            if tile not in of_tile:
                continue
            rows, cols = of_tile[tile]
            tiles = rows * cols * splits
            if tiles > sms:
                continue
            if stages(*(tile[::-1] if transposed else tile), splits > 1, float32) < FEWEST_STAGES:
                continue
            for cluster_m, cluster_n in clusters:
                cluster = cluster_m * cluster_n
                blocks = -(-rows // cluster_m) * -(-cols // cluster_n) * cluster * splits
                if blocks > most[cluster] or not nearly_all_have_tiles(blocks, tiles, within):
                    continue
                config = _config(*tile, cluster_m, cluster_n, splits)
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
    return sorted(candidates(problem, sms), key=by_terms_of(problem, sms))[:MOST_BUILDS]


def offered(problem: Any, sms: int) -> Iterator[Mapping[str, int]]:
    """Plans worth a look where plans of all rungs are compared: those of ``tried``, and of a short
    K those in which blocks share an SM."""
    return plans_of(
        "one_wave", problem, sms, lambda seen, sms: [*tried(seen, sms), *sharing_sms(seen, sms)]
    )


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
