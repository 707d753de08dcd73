"""Tiles of warp_specialized whose K is divided, for products of few tiles. Imports no triton.

Tiles that fill half of the SMs or less leave the others idle for as long as all of K takes. With K
in SPLITS parts of whole steps each tile keeps as many SMs busy, at the price of a workspace, which
is written and read, and of a second launch (device/matrix_parts.py). Which tile is best then
depends on how tiles times parts fill the SMs, and no rule of one side says: all tiles are rated by
what the busiest SM multiplies and loads, and the OFFERED that take least are offered, each with the
parts that suit it. The model of plans chooses among them and all others. Of types other than 16-bit
floats all tiles of a table may be divided (``of_types``), and rungs/type_times.py chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..planning.planner import MOST_STAGES, Config
from .fitted_tiles import COLUMNS, MOST_OF_256, ROWS, tile_of

WIDTHS = {64: 0, **COLUMNS, 128: 0, 192: 64}
"""BLOCK_N -> REST of tiles that may be divided."""

LEAST_SIDE = 48
"""Of C, in elements: fewer rows or columns are for other kernels."""

LEAST_STEPS = 6
"""Of a part: of fewer its start and its end are most of it."""

PARTS = tuple(range(2, 16))
"""Of K. As a multiple of 16 the number of parts would be a kernel of its own to Triton."""

MOST_IN_WAVES = 6
"""Of K where parts do not run at once: each is written and read."""

OFFERED = 6
"""Tiles, of each the best orientation and parts: each is a kernel of its own."""

FLOP_PER_US, BYTES_PER_US = 5.6e6, 75e3
"""That an SM multiplies, and takes in from the L2."""

SECOND_US = 2.0
"""The second launch behind the first, which it waits for: estimated, not fitted."""

L2_BYTES, L2_BYTES_PER_US, MEMORY_BYTES_PER_US = 30e6, 5.0e6, 4.0e6
"""Of a workspace that stays in the L2; at what rates it, and a larger one, are written or read."""


def second_launch_us(M: int, N: int, parts: int) -> float:
    """Microseconds for parts of C: each is written and read in float32, and a launch follows."""
    if parts == 1:
        return 0.0
    size = 4.0 * parts * M * N
    rate = L2_BYTES_PER_US if size <= L2_BYTES else MEMORY_BYTES_PER_US
    return SECOND_US + 2 * size / rate


def parts_of(tiles: int, steps: int, sms: int) -> list[int]:
    """The parts of K worth a look: all that fill the SMs at most once, and of those that leave the
    longest part as many steps the fewest; none where tiles fill more than half of the SMs, or K is
    short."""
    most = min(sms // max(tiles, 1), steps // LEAST_STEPS, PARTS[-1])
    return sorted({-(-steps // -(-steps // each)) for each in PARTS if each <= most})


def us(config: Mapping[str, int], M: int, N: int, K: int) -> float:
    """A rough time of a tile with its parts, where all run at once: to rank them by."""
    m, n, depth = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    steps = -(-K // depth // config["SPLITS"])
    step = max(2 * m * n * depth / FLOP_PER_US, 2 * (m + n) * depth / BYTES_PER_US)
    loaded = 2 * (M + N) * K / MEMORY_BYTES_PER_US
    return max(steps * step, loaded) + second_launch_us(M, N, config["SPLITS"])


TILES = tuple(
    tile_of(rows, consumers, columns, rest)
    for columns, rest in WIDTHS.items()
    for rows, consumers in ROWS
    if rows < 256 or columns <= MOST_OF_256
)
"""Without SWAP and SPLITS. No subtile is stored by TMA, so all of shared memory is stages."""


def parts_in_waves(tiles: int, steps: int, sms: int) -> list[int]:
    """The parts of K with which tiles, however many, leave fewer SMs idle in the last of their
    waves than with fewer parts."""
    found, best = [], _busy(tiles, sms)
    for parts in PARTS:
        if parts <= min(steps // LEAST_STEPS, MOST_IN_WAVES) and _busy(tiles * parts, sms) > best:
            best = _busy(tiles * parts, sms)
            found.append(parts)
    return found


def _busy(programs: int, sms: int) -> float:
    """The share of SMs that have something to do, over all waves of programs."""
    return programs / (-(-programs // sms) * sms)


@lru_cache(maxsize=4096)
def _offered(M: int, N: int, K: int, sms: int) -> tuple[Config, ...]:
    if min(M, N) < LEAST_SIDE:
        return ()
    best: list[tuple[float, Config]] = []
    for tile in TILES:
        found = []
        for swap in (1, 0):
            down, across = (N, M) if swap else (M, N)
            tiles = -(-down // tile["BLOCK_M"]) * -(-across // tile["BLOCK_N"])
            for parts in parts_of(tiles, -(-K // tile["BLOCK_K"]), sms):
                config = {**tile, "SWAP": swap, "SPLITS": parts}
                found.append((us(config, M, N, K), config))
        if found:
            best.append(min(found, key=lambda each: each[0]))
    best.sort(key=lambda each: each[0])
    return tuple(config for _, config in best[:OFFERED])


def offered(problem: Any, sms: int) -> tuple[Config, ...]:
    """The tiles, with SPLITS, that are offered for a product whose C lies by rows."""
    return _offered(problem.M, problem.N, problem.K, sms)


def of_types(tiles: Sequence[Config], problem: Any, sms: int) -> Iterator[Config]:
    """The tiles of a table for a type other than 16-bit floats, with SWAP and SPLITS, for a product
    whose C lies by rows. No tile is another than those that are whole. A float64 product is so long
    that parts pay which run one wave after the other."""
    M, N, K = problem.M, problem.N, problem.K
    waves = problem.dtype_in == "float64"
    for tile in tiles:
        for swap in (0, 1):
            down, across = (N, M) if swap else (M, N)
            count = -(-down // tile["BLOCK_M"]) * -(-across // tile["BLOCK_N"])
            steps = -(-K // tile["BLOCK_K"])
            many = parts_in_waves(count, steps, sms) if waves else ()
            for parts in sorted({*parts_of(count, steps, sms), *many}):
                given = {"SWAP": swap, "SPLITS": parts, "BUFFERS": 1, "NUM_STAGES": MOST_STAGES}
                yield {**tile, **given}
