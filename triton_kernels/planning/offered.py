"""Plans worth a look besides those of tables: tiles that were among the fastest where every plan
was timed, with the parts of K that they may have. tcgemm/choosing/plans.py takes one by a model.

The tiles stand in the rungs' own plans (``Planner.offered``). A tile that Triton has compiled once
serves every product with such a layout, so few tiles are few kernels: these are the ones by which a
choice among all that were timed lost least (reports/nvidia-h200/trials/races.csv). Imports no
triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..host.storage import column_major, itemsize
from . import gpus
from .choice import planned_by_user
from .k_division import MOST_PARTS, PARTS, PROGRAMS_BY_ELEMENTS, KDivisionPlanner, by_elements
from .planner import MOST_STAGES, Config, Planner

HOPPER = (9, 0)
"""The compute capability that they were timed on."""


def plans(
    problem: Any, able: Sequence[str], planners: Mapping[str, Planner]
) -> Iterator[tuple[str, Mapping[str, int]]]:
    """(kernel, plan) of kernels in ``able``: of plain products of 16 bits on Hopper, else none.

    Where the length of a row is no multiple of 8 elements, kernels without TMA load one by one.
    What that takes no term of the model says, so such plans are others, and the model knows them
    apart (``named``). None is of a kernel for which the user's own table has a configuration.
    """
    of_16_bits = itemsize(problem.dtype_in) == itemsize(problem.dtype_out) == 2
    if not of_16_bits or problem.capability != HOPPER or problem.batch > 1 or not problem.plain:
        return
    _, limit, sms = gpus.gpu_of(problem)
    limit, sms = limit or gpus.LIMITS[HOPPER].shared_bytes, sms or gpus.LIMITS[HOPPER].sms
    for name in able:
        planner = planners.get(name)
        if planner is None or planned_by_user(problem, name):
            continue
        if planner.offers_its_own and planner.suits({}, problem):
            yield name, planner(problem)
        one_by_one = by_elements(problem) and not planner.by_tma
        if not one_by_one and not planner.reads_in_vectors(problem):
            continue
        transposed = planner.transposes(problem)
        seen = problem.transposed() if transposed else problem
        for config in planner.offered_by_elements if one_by_one else planner.offered:
            if planner.suits(config, seen):
                for found in _of_tile(planner, config, seen, limit, sms, transposed):
                    yield name, found
        for config in planner.in_parts(seen, sms):
            yield name, _fitted(planner, config, seen, limit, sms, transposed)


def named(problem: Any, kernel: str, planners: Mapping[str, Planner]) -> str:
    """As what the model of plans knows a kernel: loading one by one it is another."""
    planner = planners.get(kernel.rpartition("/")[2])
    by_tma = planner is not None and planner.by_tma
    return f"{kernel} by elements" if by_elements(problem) and not by_tma else kernel


def by_rows(
    problem: Any, kernel: str, plan: Mapping[str, int], planners: Mapping[str, Planner]
) -> tuple[Any, Mapping[str, int]]:
    """The same product and plan where C lies by rows: of a column-major C the transpose, which some
    kernels compute and others read so. All that was timed had its C by rows. Tiles that overlap are
    timed as ones that are narrower by it. A kernel that stores both ways (``stores_both_ways``) is
    timed by what it computes: loads and products are the same, and the store is another. One of
    these whose K is divided is timed as a batch of as many products of a part of K, and what adds
    them is apart (``second_launch_us``)."""
    both_ways = kernel in planners and planners[kernel].stores_both_ways
    parts = plan.get("SPLITS", 1) if both_ways else 1
    if parts == 1 and kernel in planners and (overlap := planners[kernel].overlap(problem)):
        plan = {**plan, "BLOCK_N": plan["BLOCK_N"] - overlap}
    if parts > 1:
        problem = replace(problem, K=-(-problem.K // parts), batch=parts)
        plan = {name: value for name, value in plan.items() if name != "SPLITS"}
    if both_ways:
        swap = plan.get("SWAP", int(column_major(problem)))
        plan = {name: value for name, value in plan.items() if name != "SWAP"}
        return (problem.transposed() if swap else problem), plan
    if not column_major(problem):
        return problem, plan
    if "SWAP" in plan:
        plan = {**plan, "SWAP": 1 - plan["SWAP"]}
    elif kernel not in planners or not planners[kernel].transposes(problem):
        plan = {**plan, "BLOCK_M": plan["BLOCK_N"], "BLOCK_N": plan["BLOCK_M"]}
    return problem.transposed(), plan


def second_launch_us(
    problem: Any, kernel: str, plan: Mapping[str, int], planners: Mapping[str, Planner]
) -> float:
    """Microseconds of a plan besides those of what ``by_rows`` makes of it."""
    return planners[kernel].second_launch_us(problem, plan) if kernel in planners else 0.0


def _of_tile(
    planner: Planner, config: Config, problem: Any, limit: int, sms: int, transposed: bool
) -> Iterator[Mapping[str, int]]:
    if not isinstance(planner, KDivisionPlanner):
        yield _fitted(planner, config, problem, limit, sms, transposed)
        return
    config = _with_stages(planner, config, problem, limit)
    tile = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    steps = -(-problem.K // config["BLOCK_K"])
    programs = sms * (PROGRAMS_BY_ELEMENTS if by_elements(problem) else 1)
    for swap in planner.swaps(config):
        tiles = planner.tiles_of(tile, problem, bool(swap))
        divided = planner.tiles_to_divide(tiles, sms)
        for parts in PARTS:
            if parts == 1 or (divided and parts <= min(steps, MOST_PARTS, programs // divided)):
                asked = {**config, "SPLITS": parts, "SWAP": swap}
                yield planner.divide(asked, problem, sms, transposed)


def _with_stages(planner: Planner, config: Config, problem: Any, limit: int) -> Config:
    config = {"NUM_STAGES": MOST_STAGES, **config}
    return planner.fit(config, problem.dtype_out, limit, problem.dtype_in, problem.compute)


def _fitted(
    planner: Planner, config: Config, problem: Any, limit: int, sms: int, transposed: bool
) -> Mapping[str, int]:
    """The plan of a configuration, as many stages as ``limit`` bytes hold."""
    config = _with_stages(planner, config, problem, limit)
    return planner.divide(config, problem, sms, transposed)
