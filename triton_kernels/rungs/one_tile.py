"""Plans of warp_specialized where a program has one tile at most. Imports no triton.

Its C then needs no shared memory of its own: when all is multiplied, a consumer stores its subtiles
through those blocks of A in the ring that it alone has read. So there is room for a stage more, or
two. Of a K of few steps there are as few stages: each is two barriers to be set up before the first
load.
"""

from __future__ import annotations

from typing import Any

from ..host.storage import itemsize
from ..host.tile_blocks import subtile_columns
from ..planning import gpus
from ..planning.planner import Config, Planner
from ..planning.refusals import refuse_tma

FEW_STEPS = 4
"""Steps along K for which there are no more stages than that. Each number of stages is a kernel to
be compiled: of a tile there are those of few steps, of many, and the one with buffers."""

MOST_STAGES = 12
"""Of each two barriers are set up. 64 x 4096 x 14336 took 30.7 us with twelve of 16 KB and 32.4
with as many bytes in six (reports/nvidia-h200/trials/triton-last.csv)."""

BARRIERS = 512
"""Bytes, at most."""


def takes(config: Config, problem: Any, processors: int) -> bool:
    """Whether C may pass through the stages.

    Args:
        problem: as ``transposes`` left it.
        processors: SMs.
    """
    of_16_bits = problem.dtype_in == problem.dtype_out and itemsize(problem.dtype_in) == 2
    if problem.device == "cpu" or config.get("SPLITS", 1) > 1 or not of_16_bits:
        return False
    if problem.beta or problem.aux:
        return False
    M, N = (problem.N, problem.M) if config.get("SWAP") else (problem.M, problem.N)
    tiles = -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"]) * problem.batch
    if tiles > processors:
        return False
    if refuse_tma(problem, "C"):
        return False
    columns = subtile_columns(config["BLOCK_N"], config.get("REST", 0), config["SUBTILES"])
    return columns <= config["BLOCK_K"]


def through_stages(planner: Planner, config: Config, problem: Any, processors: int) -> Config:
    """The plan without buffers for C, and with as many stages as there is room for then; where it
    takes buffers, with some."""
    through = takes(config, problem, processors)
    if problem.device == "cpu" or (not through and config["BUFFERS"]):
        return config
    _, limit, _ = gpus.gpu_of(problem)
    limit = limit or gpus.LIMITS[(9, 0)].shared_bytes
    if not through:
        types = problem.dtype_in, problem.compute
        return planner.fit({**config, "BUFFERS": 1}, problem.dtype_out, limit, *types)
    stage = (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * 2
    few = -(-problem.K // config["BLOCK_K"]) <= FEW_STEPS
    most = min(FEW_STEPS if few else MOST_STAGES, (limit - BARRIERS) // stage)
    return {**config, "BUFFERS": 0, "NUM_STAGES": most}
