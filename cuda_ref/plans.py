"""Which settings the rungs that divide K take, and which rung a problem prefers.

First the rows of the user's and of the shipped table of the GPU (tables.py), then a model of the
time, so that an unknown GPU gets a sound choice. All is said of the problem with M <= N.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from . import streams, tables, waves
from .gpu import here
from .gpu import of as gpu_of
from .limits import column_major, refuse_gemv, refuse_skinny, refuse_tma
from .tables import COMPILED_IN, SETTINGS
from .tiles import LEAST, tile_of
from .waves import TILE_K

DIVIDING = tuple(SETTINGS)

# The model, in microseconds and bytes, fitted to the H200 (reports/nvidia-h200/trials).
START = 3.0  # from the end of the kernel before to the first bytes, and from the last to the end
MEMORY = 4.3e6  # bytes a microsecond
TO_AN_SM = 43e3  # bytes a microsecond out of memory to one SM
OF_AN_SM = 85e3  # bytes a microsecond from the L2 into one SM
EXCHANGE = 1.0  # sums between the blocks of a cluster
MEETING = 2.0  # of a tile's parts in a workspace, behind a flag
LAST_ROUND = 0.8  # of the SMs that idle in it, what memory is idle for
APART = 1.4  # reading at other steps along K than the other blocks
SECOND_KERNEL = 2.0  # sums of several clusters, from a workspace
TILE = 2.0  # storing 128 x 128 of C
PERSISTENT_START = 2.4  # of wgmma_persistent
PERSISTENT_STEP = 0.7  # a step along K of 128 x 256
PERSISTENT_TILE = 0.5  # what comes before and after a tile
SMALL_START = 0.6  # of small, whose loads wait for no ring
SMALL_TILE = 1.3  # a tile of it on each SM
SMALL_STEP = {4: 0.05, 2: 0.05, 1: 0.13}  # 16 along K of a tile, by the elements of a word
ANY_TILE, ANY_STEP = 8.0, 4.0  # wmma_any: two tiles of unaligned rows on each SM; 32 along K

SIMULATED = {
    "split_k": {"SPLITS": 1, "GROUPS": 1},
    "skinny": {"BLOCK_N": 64, "SPLITS": 1, "SHARED_KB": 200},
    "stream_k": {"BLOCK_N": 64},
    "gemv": streams.SIMULATED,
    "one_wave": waves.SIMULATED,
}
"""Settings of the simulator, whose clusters have one block."""


def pack(kernel: str, plan: Mapping[str, int], turned: bool) -> int:
    """The settings of a plan as the launcher takes them (Gemm::config); 0 without any."""
    names = [name for name in SETTINGS[kernel] if name not in COMPILED_IN.get(kernel, ())]
    if any(name not in plan for name in names):
        return 0
    values = [plan["BLOCK_M" if turned and name == "BLOCK_N" else name] for name in names]
    return sum(value << 16 * index for index, value in enumerate(values))


@lru_cache(maxsize=4096)
def plan(kernel: str, problem: Any) -> Mapping[str, int]:
    """Keyword arguments of the rung's ``run``: its tile of C, and its settings on a GPU."""
    if kernel == "one_wave" and column_major((problem.M, problem.N), problem.c_strides):
        problem = problem.transposed()  # as the launcher turns it
    turned = problem.M > problem.N
    seen = problem.transposed() if turned else problem
    gpu, sms, _ = gpu_of(problem)
    if problem.device == "cpu":  # the simulator's clusters have one block
        config = SIMULATED[kernel]
        if kernel == "one_wave":
            return config
    else:
        rows = [row for table in _tables(gpu) for row in table["kernels"].get(kernel, [])]
        if kernel == "one_wave":
            rows = [row for row in rows if waves.runs_at_once(row["config"], seen, sms)]
        row = tables.first(rows, seen)
        config = row["config"] if row else fastest(kernel, seen, sms)[1]
    return divide(kernel, config, seen, sms, turned)


def divide(
    kernel: str, config: Mapping[str, int], problem: Any, processors: int, turned: bool
) -> dict[str, int]:
    """The plan of a table's config: with the tile of C as the caller's M and N have it.

    Args:
        problem: with M <= N.
        processors: SMs.
        turned: the caller's problem is the transpose of this one.
    """
    if kernel == "one_wave":
        return waves.divide(config, problem, turned)
    if kernel == "gemv":
        return streams.divide(config, problem, processors, turned)
    if "SPLITS" in config:
        config = {**config, "SPLITS": min(config["SPLITS"], waves.most_parts(problem.K))}
    if kernel == "split_k":
        return {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": TILE_K, **config}
    wide = config["BLOCK_N"]
    rows = _rows(problem.M, wide)
    if problem.layout[0] == "t":  # such an A comes in panels of 64 rows; see width_for
        rows = max(rows, 64)
        wide = wide if wide % 64 == 0 else rows
    settings = {name: value for name, value in config.items() if name != "BLOCK_N"}
    tile = (wide, rows) if turned else (rows, wide)
    return {"BLOCK_M": tile[0], "BLOCK_N": tile[1], "BLOCK_K": TILE_K, **settings}


SMALL = 32
"""Rows and columns of C that a block of small computes."""


def small_plan(problem: Any) -> Mapping[str, int]:
    """As tcgemm_launch in shapes/small.cu: VECTOR elements are loaded at once."""
    vector = small_vector(problem)
    tile = {"BLOCK_M": SMALL, "BLOCK_N": SMALL, "BLOCK_K": 16}
    return {**tile, "WARPS": _small_warps(problem, gpu_of(problem).sms), "VECTOR": vector}


def small_vector(problem: Any) -> int:
    """How many elements of A and B are words that no end of them divides: 4, 2 or 1."""
    sides = (
        ((problem.M, problem.K), problem.a_strides, problem.a_alignment),
        ((problem.K, problem.N), problem.b_strides, problem.b_alignment),
    )

    def fits(elements: int) -> bool:
        apart = problem.batch_strides[:2] if problem.batch > 1 else ()
        return not any(stride % elements for stride in apart) and all(
            alignment % (2 * elements) == 0
            and any(
                strides[inner] == 1
                and shape[inner] % elements == 0
                and (shape[1 - inner] == 1 or strides[1 - inner] % elements == 0)
                for inner in (0, 1)
            )
            for shape, strides, alignment in sides
        )

    return next(elements for elements in (4, 2, 1) if elements == 1 or fits(elements))


def _small_tiles(problem: Any) -> int:
    return int(-(-problem.M // SMALL) * -(-problem.N // SMALL) * problem.batch)


def _small_warps(problem: Any, sms: int) -> int:
    steps = max(1, -(-problem.K // 16))
    ahead = 1 if small_vector(problem) == 1 else 2
    most = max(8, -(-steps // ahead)) if _small_tiles(problem) <= sms else 8
    return min(steps, most, 16)


def _rows(M: int, block_n: int) -> int:
    """As tile_rows in shapes/skinny_tile.cuh."""
    return 16 if M <= 16 and block_n % 64 == 0 else 64 if M <= 64 else 128


@lru_cache(maxsize=4096)
def preferred(problem: Any) -> str:
    """The rung that is expected to be fastest of those that divide K, wgmma_persistent, which reads
    by TMA, and small and wmma_any, which read any rows."""
    seen = problem.transposed() if problem.M > problem.N else problem
    gpu, sms, _ = gpu_of(problem)
    by_tma = refuse_tma(problem) is None
    refusals = {
        "gemv": refuse_gemv,
        "skinny": refuse_skinny,
        "stream_k": refuse_skinny,
        "split_k": refuse_tma,
        "one_wave": refuse_tma,
    }
    able = [name for name, refuse in refusals.items() if refuse(problem) is None]
    if seen.M > streams.MOST_ROWS and "gemv" in able:
        able.remove("gemv")
    times = {} if by_tma else {"small": _small_us(problem, sms), "wmma_any": _any_us(problem, sms)}
    if problem.batch > 1:
        if "gemv" in able:
            return "gemv"
        return min(times, key=lambda name: times[name], default="wgmma_persistent")
    row = tables.first([row for table in _tables(gpu) for row in table["prefer"]], seen)
    if row and row["kernel"] in (*able, "small", *(["wgmma_persistent"] if by_tma else [])):
        return str(row["kernel"])
    if "split_k" in able and not _divided_pays(seen, sms):
        able.remove("split_k")
    if "one_wave" in able and not waves.fits(seen, sms):
        able.remove("one_wave")
    elif "one_wave" in able and seen.M > FEW:
        return "one_wave"
    times |= {name: fastest(name, seen, sms)[0] for name in able}
    if by_tma:
        times["wgmma_persistent"] = _persistent_us(problem, sms)
    return min(times, key=lambda name: times[name])


FEW = 16
"""Rows up to which skinny multiplies less in vain than one_wave.

With more of them one_wave was the fastest in 310 of 335 timed cases that fit in one wave, by up to
half, and within 9 % in the others (reports/nvidia-h200/trials/waves.csv).
"""

LEAST_K = 2048
"""K from which on dividing it can pay for adding the sums."""


def _divided_pays(problem: Any, sms: int) -> bool:
    """Whether K is long and tiles of 64 x 128 leave half of the SMs idle.

    Of cuBLAS on an H200, bfloat16: 512 cubed 0.62 by split_k and 1.40 by one_wave.
    """
    return problem.K >= LEAST_K and sms // 2 >= -(-problem.M // 64) * -(-problem.N // 128)


def yields(kernel: str, problem: Any) -> bool:
    """Whether another rung is preferred."""
    return preferred(problem) != kernel


def fastest(kernel: str, problem: Any, sms: int) -> tuple[float, dict[str, int]]:
    """(microseconds, settings) of the rung's best settings by the model, for M <= N."""
    from .candidates import candidates

    return min(
        ((modelled_us(kernel, config, problem, sms), config) for config in
         candidates(kernel, problem, 0, sms)),
        key=lambda pair: pair[0],
    )  # fmt: skip


def modelled_us(kernel: str, config: Mapping[str, int], problem: Any, sms: int) -> float:
    """Microseconds by the model: bytes out of memory, bytes into the busiest SM, and what comes
    before and after."""
    if kernel == "one_wave":
        return waves.modelled_us(config, problem, sms)
    if kernel == "gemv":
        return streams.modelled_us(config, problem, sms)
    M, N, K = problem.M, problem.N, problem.K
    splits = config.get("SPLITS", 1)
    memory = 2 * (M * K + K * N + M * N) / MEMORY
    tile_n = config.get("BLOCK_N", 128)  # split_k has tiles of 128 x 128 alone
    tile_m = 128 if kernel == "split_k" else _rows(M, tile_n)
    tiles = -(-N // tile_n) * (-(-M // tile_m) if kernel == "split_k" else 1)
    if kernel == "stream_k":
        return _stream_k_us(problem, tile_m, tile_n, memory, sms)
    blocks = tiles * splits * config.get("GROUPS", 1)
    steps = math.ceil(math.ceil(K / TILE_K) / (splits * config.get("GROUPS", 1)))
    if kernel == "skinny":
        if splits == 1 and tiles > sms:  # the last round is not full
            memory *= 1 + LAST_ROUND * (-(-tiles // sms) * sms / tiles - 1)
        most = -(-tiles * splits // sms) * tile_n * 2 * K / splits  # of B, for an SM
        memory = max(memory, most / TO_AN_SM)
    rounds = max(1, blocks / sms) if kernel == "skinny" else -(-blocks // sms)
    into_sm = rounds * steps * (tile_m + tile_n) * 2 * TILE_K / OF_AN_SM
    stored = TILE * tile_m * tile_n / 128 / 128
    if kernel == "split_k" or splits > 1:
        stored += EXCHANGE * (splits > 1)
    second = SECOND_KERNEL * (config.get("GROUPS", 1) > 1)
    return START + max(memory, into_sm) + stored + second


def _stream_k_us(problem: Any, tile_m: int, tile_n: int, memory: float, sms: int) -> float:
    """Of whole tiles in step, and of ranges of the rest, as in shapes/stream_k.cu."""
    k_tiles, tiles = -(-problem.K // TILE_K), -(-problem.N // tile_n)
    blocks = max(1, min(k_tiles * tiles // 4, 8 * tiles, sms))
    rounds, ends = divmod(tiles, blocks)
    apart = ends * k_tiles / blocks
    into_sm = (rounds * k_tiles + apart * APART) * (tile_m + tile_n) * 2 * TILE_K / OF_AN_SM
    if tile_n == 64:  # fewer bytes of a row of memory at a time
        memory *= 1.3 if problem.layout[1] == "n" else 1.1
    stored = TILE * tile_m * tile_n / 128 / 128
    return START + max(memory, into_sm) + stored + MEETING * (ends > 0 and rounds == 0)


def _persistent_us(problem: Any, sms: int) -> float:
    tile = tile_of(problem)
    rate = tile.rate if problem.plain and problem.batch == 1 else tile.fused_rate
    rounds = -(-(-(-problem.M // tile.BLOCK_M) * -(-problem.N // tile.BLOCK_N)) // sms)
    step = PERSISTENT_STEP * max(tile.BLOCK_M * tile.BLOCK_N / (128 * 256) / rate, LEAST)
    memory = 2 * (problem.M + problem.N) * problem.K / MEMORY
    steps = -(-problem.K // TILE_K)
    return max(START + memory, PERSISTENT_START + rounds * (steps * step + PERSISTENT_TILE))


def _small_us(problem: Any, sms: int) -> float:
    rounds, steps = -(-_small_tiles(problem) // sms), -(-problem.K // 16)
    return SMALL_START + rounds * (SMALL_TILE + steps * SMALL_STEP[small_vector(problem)])


def _any_us(problem: Any, sms: int) -> float:
    tiles = -(-problem.M // 128) * -(-problem.N // 128) * problem.batch
    return START + -(-tiles // (2 * sms)) * (ANY_TILE + -(-problem.K // 32) * ANY_STEP)


def forget() -> None:
    """Read all tables anew from now on."""
    tables.forget()
    for kept in (plan, preferred):
        kept.cache_clear()


def _tables(gpu: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return tables.of_user(gpu), tables.shipped(gpu)


def gpu_here() -> tuple[str, int, int]:
    """(table's name, bytes of shared memory a block, SMs); nothing where there is no GPU."""
    found = here()
    return (found.name, found.shared_bytes, found.sms) if found else ("", 0, 0)
