"""The time of one_wave, foretold for a tile, a cluster and the splits of K.

It is fitted to some 5,200 timed cases of an H200 (reports/nvidia-h200/trials/waves.csv, run 3),
each timed behind launches of itself. Its choice is 2 % slower than the fastest on average, and less
with the table that comes before it. Where K is divided it is fitted to rows among other kernels
(tile_choice.csv there), and where rows of A or B begin within lines of the L2 to races of plans
(races.csv). Trees correct what the terms here leave over (one_wave_trees.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from . import one_wave_trees
from .cost import TILE_K
from .one_wave_tile import among_idle, splits_lines, whole_panels
from .tables import short_rows

# BLOCK_M, BLOCK_N: microseconds of a step along K.
STEP = {
    (64, 48): 0.131,
    (64, 64): 0.133,
    (64, 96): 0.158,
    (64, 112): 0.185,
    (64, 128): 0.187,
    (128, 48): 0.155,
    (128, 64): 0.172,
    (128, 96): 0.275,
    (128, 112): 0.298,
    (128, 128): 0.333,
    (64, 192): 0.275,
    (192, 64): 0.245,
    (192, 96): 0.405,
    (96, 192): 0.38,
    (128, 192): 0.46,
    (128, 256): 0.6,
}
STEP |= {  # of fitted tiles: interpolated by their columns; of most of them there are a few races
    (64, 80): 0.146,
    (64, 144): 0.209,
    (64, 160): 0.231,
    (64, 176): 0.253,
    (64, 208): 0.297,
    (64, 224): 0.319,
    (128, 80): 0.224,
    (128, 144): 0.365,
    (128, 160): 0.397,
    (128, 176): 0.428,
    (128, 208): 0.495,
    (128, 224): 0.53,
    (192, 80): 0.325,
    (192, 112): 0.433,
    (192, 144): 0.54,
    (192, 160): 0.58,
    (192, 176): 0.63,
    (256, 80): 0.4,
    (256, 96): 0.46,
    (256, 112): 0.53,
    (256, 144): 0.68,
    (256, 160): 0.75,
    (256, 176): 0.82,
}
STEP |= {(n, m): us for (m, n), us in STEP.items() if (n, m) not in STEP}

LAUNCH_US = 2.2  # microseconds before the first step and after the last, among other kernels,
PREFETCHED_US = 0.35  # by which a divided K begins sooner where the L2 prefetches the first steps
MEMORY_BYTES_PER_US = 3.9e6
STREAMED = 16e6  # bytes of B from which on it comes from memory as it is multiplied,
REREAD = 1.25  # which takes longer where blocks that do not share it ask for the same lines
L2_BYTES_PER_US = 12.6e6  # that all blocks together read of the L2
CLUSTER_US = 0.66  # by which a cluster starts later
SECOND_KERNEL_US = 1.16  # the kernel that adds partial sums
PARTIALS_BYTES_PER_US = 2.0e6  # float32 partial sums, there and back
SPLIT_LINES = 1.7  # by which more is read where rows begin and end within lines of the L2
NO_PDL_US = 0.86  # by which the next kernel starts later without PDL
AMONG_IDLE = 1.12  # by which a kernel takes longer with it,
OUTSIDE = 1.26  # steps of tiles with boxes that are partly outside, beside others that are not
BETWEEN_LINES = 1.31  # what a row-major B is asked for by tiles that begin within lines of the L2

# Of rows that begin within lines of the L2 (reports/nvidia-h200/trials/races.csv): steps of a
# block, what each row of a box adds to them, which is two lines and in a cluster asked for by one
# of the blocks that share it, what each block that asks for the same line adds to a step, clusters
# by their blocks, and the kernel that adds partial sums, which takes longer with each part.
SPLIT_STEP = 1.05
ROW_US = 0.0004
ASKER_US = 0.0023
SPLIT_CLUSTER_US = {1: 0.0, 2: 0.5, 4: 0.8, 8: 0.88}
SPLIT_SECOND_US = 2.0
PART_US = 0.07

EACH_ASKER_US = 0.002  # what each that asks for the same line adds to a step in any case

SHORT_ROWS_PER_US = 6e3  # of A, shorter than half a line, that all blocks ask for, and
SHORT_STEP_ROWS_PER_US = 450  # rows of A and B then, that one does


def modelled_us(config: Mapping[str, int], problem: Any, sms: int) -> float:
    """Microseconds of a problem with M <= N by the model."""
    return all_us([config], problem, sms)[0]


def all_us(configs: Sequence[Mapping[str, int]], problem: Any, sms: int) -> list[float]:
    """The same with each of these settings, one at least."""
    times = list(map(by_terms_of(problem, sms), configs))
    asked = zip(configs, times, strict=True)
    known = [one_wave_trees.facts(config, problem, sms, us) for config, us in asked]
    return [us * factor for us, factor in zip(times, one_wave_trees.factors(known), strict=True)]


def by_terms(config: Mapping[str, int], problem: Any, sms: int) -> float:
    """The same without trees: the longest of a block's own steps, what all ask of the L2, and what
    comes from memory, and what comes before and after."""
    return by_terms_of(problem, sms)(config)


def by_terms_of(problem: Any, sms: int) -> Callable[[Mapping[str, int]], float]:
    """``by_terms`` of a problem's settings: what is the same with each is worked out once."""
    M, N, K = problem.M, problem.N, problem.K
    within, short = splits_lines(problem), short_rows(problem)
    a_by_columns, b_by_rows = problem.layout[0] == "t", problem.layout[1] == "n"
    all_steps, moved_us = -(-K // TILE_K), 2 * (M * K + K * N + M * N) / MEMORY_BYTES_PER_US

    @cache
    def of_tile(block_m: int, block_n: int) -> tuple[Any, ...]:
        panels = whole_panels(block_n)
        between = b_by_rows and block_n % 64 > 0
        columns = panels * BETWEEN_LINES if between else block_n
        in_panels = a_by_columns and block_m % 64 > 0
        lines = whole_panels(block_m) * BETWEEN_LINES if in_panels else block_m
        tiles = -(-M // block_m), -(-N // block_n)
        return *tiles, panels, between, columns, lines, STEP[block_m, block_n]

    def us(config: Mapping[str, int]) -> float:
        block_m, block_n, splits = config["BLOCK_M"], config["BLOCK_N"], config["SPLITS"]
        a_peers, b_peers = config["CLUSTER_N"], config["CLUSTER_M"]
        cluster = a_peers * b_peers
        rows_of_tiles, cols_of_tiles, panels, between, columns, lines, step = of_tile(
            block_m, block_n
        )
        blocks = -(-rows_of_tiles // b_peers) * -(-cols_of_tiles // a_peers) * cluster * splits
        waves = -(-blocks // sms)
        steps = waves * -(-all_steps // splits)
        asked = 2 * TILE_K * (lines / a_peers + columns / b_peers)
        own, same, start, memory = steps * step, 0.0, 0.0, moved_us
        if within:
            asked *= SPLIT_LINES
            rows = min(block_m, M) / a_peers + panels / b_peers
            own = own * SPLIT_STEP + steps * rows * ROW_US
            askers = max(rows_of_tiles / b_peers, cols_of_tiles / a_peers)
            same = steps * askers * SPLIT_LINES * ASKER_US
            start = EACH_ASKER_US * steps * askers
        elif block_m < M and M % (block_m // a_peers):
            own *= OUTSIDE
        if (between or rows_of_tiles > b_peers) and 2 * K * N > STREAMED:
            memory *= REREAD
        if short:
            rows = TILE_K / a_peers
            own = max(own, steps * (rows + panels / b_peers) / SHORT_STEP_ROWS_PER_US)
            memory = max(memory, steps * blocks * rows / waves / SHORT_ROWS_PER_US)
        of_l2 = steps * blocks * asked / waves / L2_BYTES_PER_US
        body = (own**6 + same**6 + of_l2**6 + memory**6) ** (1 / 6)
        start += LAUNCH_US - PREFETCHED_US * (splits > 1 and block_m * block_n <= 64 * 64)
        added = SPLIT_CLUSTER_US[cluster] if within else CLUSTER_US * (cluster > 1)
        if splits > 1:  # the kernel that adds partial sums, and these there and back
            added += SPLIT_SECOND_US + PART_US * splits if within else SECOND_KERNEL_US
            added += 4 * M * N * splits / PARTIALS_BYTES_PER_US
        if not config["PDL"]:
            start += NO_PDL_US
        elif splits == 1 and cluster < 4 and among_idle(blocks, sms):
            body *= AMONG_IDLE
        return waves * start + body + added

    return us


def least_us_of(problem: Any) -> Callable[[int, int, int], float]:
    """Of a problem's tile, by BLOCK_M, BLOCK_N and SPLITS, what ``by_terms`` says at least, in
    whatever cluster: the longer of its steps and of what comes from memory, and the second
    kernel."""
    M, N, K = problem.M, problem.N, problem.K
    within, all_steps = splits_lines(problem), -(-K // TILE_K)
    step, memory = SPLIT_STEP if within else 1.0, 2 * (M * K + K * N + M * N) / MEMORY_BYTES_PER_US
    second = SPLIT_SECOND_US if within else SECOND_KERNEL_US
    of_part = 4 * M * N / PARTIALS_BYTES_PER_US + (PART_US if within else 0.0)

    def us(block_m: int, block_n: int, splits: int) -> float:
        own = -(-all_steps // splits) * STEP[block_m, block_n] * step
        after = second + of_part * splits - PREFETCHED_US if splits > 1 else 0.0
        return (LAUNCH_US + max(own, memory) + after) * ROUNDED

    return us


ROUNDED = 1 - 1e-9
"""So much less than a time is at least, however sums are rounded."""
