"""Configurations worth trying for a problem, as tables hold them. Imports no triton.

Not a grid of everything: tiles whose shape fits the problem, each with the steps of K, parts and
warps that have been among the fastest somewhere, and as many stages as shared memory holds.
"""

from __future__ import annotations

from typing import Any

from . import plans

RUNGS = ("pipelined", "descriptor", "skinny", "split_k")
"""Rungs that can be tuned."""

MOST_STAGES = 10

MOST_ACCUMULATORS = 192
"""Registers of a thread that may hold C, of 255: the rest is addresses and what is on its way."""


def candidates(kernel: str, problem: Any, shared: int, processors: int) -> list[dict[str, int]]:
    """Configurations of a rung, for the problem with M <= N where the rung divides K.

    Args:
        problem: as ``plan`` reads it.
        shared: bytes of shared memory that a program may take.
        processors: SMs.

    Raises:
        ValueError: the rung has no candidates.
    """
    if kernel not in RUNGS:
        raise ValueError(f"{kernel} is not tuned: choose from {', '.join(RUNGS)}")
    early = int((problem.capability or (9, 0)) >= (9, 0))
    thin = min(problem.M, problem.N)
    found: list[dict[str, int]] = []
    for m, n, k in _tiles(kernel, problem):
        base = {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": k,
            "NUM_WARPS": 8 if m * n > 128 * 128 else 4,
        }
        swaps = (0, 1) if kernel == "split_k" and m != n else (0,)
        for swap in swaps:
            for extra in _extras(kernel, m, n, k, swap, problem, processors, early):
                if swap and thin > 128:
                    continue
                config = {**base, **extra, **({"SWAP": swap} if kernel == "split_k" else {})}
                config["NUM_STAGES"] = _stages(kernel, config, problem.dtype_out, shared)
                if accumulators(config) > MOST_ACCUMULATORS:
                    continue
                if config["NUM_STAGES"] >= 2 and config not in found:
                    found.append(config)
    return found


def accumulators(config: dict[str, int]) -> int:
    """Registers of a thread that hold the sums of a tile, 32 bits each."""
    return config["BLOCK_M"] * config["BLOCK_N"] // (32 * config["NUM_WARPS"])


def _tiles(kernel: str, problem: Any) -> list[tuple[int, int, int]]:
    thin = min(problem.M, problem.N)
    side = max(16, 1 << (thin - 1).bit_length())
    if kernel == "skinny":
        if thin > 128:
            return []
        return [(m, side, k) for m, k in ((32, 256), (64, 64), (64, 128), (64, 256), (128, 64))]
    if kernel == "split_k":
        if thin <= 128:
            wide = ((64, 128), (128, 64), (128, 128))
            shapes = [(m, side, k) for m, k in wide]
            rows = max(side, 64)
            return [*shapes, (rows, 32, 256), (rows, 64, 128), (rows, 128, 64)]
        return [(64, 64, 128), (64, 128, 128), (128, 64, 128), (128, 128, 64), (256, 128, 64)]
    if thin <= 128:
        rows = 64 if problem.M <= 64 else 128
        return [(rows, 32, 128), (rows, 32, 256), (rows, 64, 128), (rows, 128, 64), (rows, 256, 64)]
    return [(64, 64, 128), (64, 128, 64), (128, 64, 64), (128, 128, 64), (128, 256, 64)]


def _extras(
    kernel: str,
    m: int,
    n: int,
    k: int,
    swap: int,
    problem: Any,
    processors: int,
    early: int,
) -> list[dict[str, int]]:
    """What else a configuration of that tile sets."""
    if kernel not in plans.DIVIDING:
        groups = (1,) if min(problem.M, problem.N) <= 128 else (4, 8)
        flat = [{"FLATTEN": f} for f in (0, 1)] if kernel == "descriptor" else [{}]
        return [{"GROUP_M": g, **f} for g in groups for f in flat]
    M, N = sorted((problem.M, problem.N))
    M, N = (N, M) if kernel == "skinny" or swap else (M, N)
    tiles = -(-M // m) * -(-N // n)
    most = min(-(-problem.K // k), plans.MOST_PARTS)
    left = tiles if kernel == "skinny" else tiles % processors
    fills = processors // max(left, 1)
    parts = {x for x in (1, 0 if fills > 1 else 1, fills // 2) if x <= most and x >= 0}
    if tiles * 3 < processors and most > 1:
        parts.discard(1)  # most SMs would idle
    parts = {x for x in parts if x != fills or x == 1} or {1}
    starts = {early, 0}
    group = {"GROUP_M": 4 if tiles > 2 * processors else 1} if kernel == "split_k" else {}
    return [{"SPLITS": x, "EARLY": e, **group} for x in sorted(parts) for e in sorted(starts)]


def _stages(kernel: str, config: dict[str, int], dtype_out: str, shared: int) -> int:
    stages = MOST_STAGES
    while stages >= 2:
        if plans.shared_bytes(kernel, {**config, "NUM_STAGES": stages}, dtype_out) <= shared:
            break
        stages -= 1
    return stages
