"""Settings worth trying for a problem with M <= N, as tables hold them."""

from __future__ import annotations

from typing import Any

from . import streams, waves
from .tables import SETTINGS

RUNGS = tuple(SETTINGS)
"""Rungs that can be tuned."""


MOST_BUILDS = 12
"""Settings of one_wave that are tried, each of them a build."""


def candidates(kernel: str, problem: Any, shared: int, processors: int) -> list[dict[str, int]]:
    """Settings of a rung that keep at least half of the SMs busy, where K is long enough.

    Args:
        problem: with M <= N.
        shared: bytes of shared memory that a block may take; every setting here takes less.
        processors: SMs.

    Raises:
        ValueError: the rung has no candidates.
    """
    if kernel not in SETTINGS:
        raise ValueError(f"{kernel} is not tuned: choose from {', '.join(RUNGS)}")
    parts = waves.most_parts(problem.K)
    if kernel == "gemv":
        return streams.candidates(problem, processors)
    if kernel == "split_k":
        tiles = -(-problem.M // 128) * -(-problem.N // 128)
        pairs = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2), (2, 4), (4, 4), (2, 8))
        return [
            {"SPLITS": splits, "GROUPS": groups}
            for splits, groups in pairs
            if splits == groups == 1
            or (splits * groups <= parts and tiles * groups <= _clusters(splits, processors))
        ]
    if kernel == "one_wave":
        found = sorted(
            waves.candidates(problem, processors),
            key=lambda config: waves.modelled_us(config, problem, processors),
        )
        return found[:MOST_BUILDS]
    if kernel == "stream_k":
        return [{"BLOCK_N": width} for width in (64, 128)]
    found = []
    for width in widths(problem):
        tiles = -(-problem.N // width)
        for splits in range(1, 9):
            blocks = tiles * splits
            if splits > 1 and (splits > parts or blocks > 2 * processors):
                continue
            if blocks * 2 < processors and splits < min(8, parts):
                continue
            rings = (112, 200) if blocks <= processors else (112,) if splits > 1 else (50, 112, 200)
            found += [{"BLOCK_N": width, "SPLITS": splits, "SHARED_KB": kb} for kb in rings]
    return found


def widths(problem: Any) -> tuple[int, ...]:
    """Columns of C that a tile of skinny may have, for a problem with M <= N.

    Others than 64 and 128 are wgmma's n, which for up to 16 rows multiplies mostly in vain; of a
    row-major B they are parts of the lines in which it comes out of memory.
    """
    return (48, 56, 64, 96, 112, 128) if problem.layout == "nt" and problem.M > 16 else (64, 128)


def _clusters(blocks: int, processors: int) -> int:
    """Clusters of so many blocks, one to an SM, that run at once: SMs come in groups that clusters
    do not cross, so an H200's 132 SMs take 30 clusters of 4 and 14 of 8."""
    return int(processors / blocks * {1: 1.0, 2: 1.0, 4: 0.91}.get(blocks, 0.85))
