"""Drawn problems through the choice, for every GPU of the table and both languages; none is run.

Sizes from 1 to 2^20, any strides and addresses, batches, every type pair: what is chosen takes the
problem, and its plan is one that the kernel can run on that GPU.
"""

from __future__ import annotations

import random
from importlib import import_module

import pytest

from tcgemm import dispatch, gpus, triton_kernels
from tcgemm.choosing import model, within
from tcgemm.errors import UnsupportedError
from tcgemm.problem import DTYPES, ITEMSIZE, Problem
from tcgemm.request import planning_for

cuda_planning = import_module("tcgemm.cuda_ref.planning")
triton_plans = import_module("tcgemm.triton_kernels.by_name")
limits = import_module("tcgemm.triton_kernels.planning.gpus")
launch = import_module("tcgemm.cuda_ref.planning.launch")

DRAWN = 120
"""For each GPU."""

MOST_BYTES = 140 * 10**9
"""Of an operand: an H200's memory."""

WORKSPACE = 256 << 20
"""More than the partial sums of one wave of tiles, in any number of parts."""

SIZES = (1, 2, 3, 7, 8, 16, 17, 63, 64, 100, 129, 1000, 1024, 4096, 10**5, 10**6)


def drawn(draw: random.Random, capability: tuple[int, int]) -> Problem:
    """A problem whose operands a GPU could hold."""

    def size() -> int:
        return draw.choice(SIZES) if draw.random() < 0.6 else int(2 ** draw.uniform(0, 20))

    def strides(rows: int, cols: int) -> tuple[int, int]:
        turned = draw.random() < 0.5
        inside = rows if turned else cols
        pitch = draw.choice((inside, inside, inside, inside + 1, inside + 8, 0, 2**33))
        lying = (pitch, draw.choice((1,) * 9 + (2,)))
        return lying[::-1] if turned else lying

    def extent(rows: int, cols: int, lying: tuple[int, int], apart: int, batch: int) -> int:
        return (rows - 1) * lying[0] + (cols - 1) * lying[1] + (batch - 1) * apart + 1

    while True:
        M, N, K, batch = size(), size(), size(), draw.choice((1,) * 6 + (2, 3, 65536, 2**28))
        dtype = draw.choice(("bfloat16",) * 6 + ("float16",) * 3 + tuple(DTYPES))
        out, compute = draw.choice(DTYPES[dtype].outputs), draw.choice(DTYPES[dtype].computes)
        a, b = strides(M, K), strides(K, N)
        c = draw.choice(((N, 1), (N, 1), (1, M), (N + 1, 1)))
        apart = (draw.choice((0, 8, M * K)), draw.choice((0, 1, K * N)), max(c) * max(M, N))
        held = (
            (extent(M, K, a, apart[0], batch), dtype),
            (extent(K, N, b, apart[1], batch), dtype),
            (extent(M, N, c, apart[2], batch), out),
        )
        if all(elements * ITEMSIZE[of] < MOST_BYTES for elements, of in held):
            break
    least = [max(draw.choice((256, 256, 16, 8, 2)), ITEMSIZE[of]) for _, of in held]
    more = draw.random() < 0.2
    return Problem(
        M, N, K, dtype, out, a, b, c, *least, capability=capability, compute=compute, batch=batch,
        batch_strides=apart if batch > 1 else (0, 0, 0), bias=more, epilogue="relu" if more else "",
    )  # fmt: skip


@pytest.mark.parametrize("board", gpus.GPUS, ids=lambda board: board.slug)
def test_what_is_chosen_can_run(board):
    draw = random.Random(board.slug)
    with planning_for(board):
        for _ in range(DRAWN):
            problem = drawn(draw, board.capability)
            for backend in ("triton", "cuda"):
                try:
                    row = dispatch.choose(problem, backend)
                except UnsupportedError:
                    assert not any(r.why_not(problem) is None for r in dispatch.ladder(backend))
                    continue
                assert row.why_not(problem) is None
                plan = dict(row.plan(problem))
                check_plan(backend, row.name, plan, problem, board)
                cuda_planning.forget()
                triton_plans.forget()
                again = dispatch.choose(problem, backend)
                assert (again.name, dict(again.plan(problem))) == (row.name, plan)


def check_plan(backend, name, plan, problem, board):
    said = f"{backend}/{name} {problem} {problem.a_strides} {problem.b_strides}: {plan}"
    assert all(type(value) is int and value >= 0 for value in plan.values()), said
    parts = plan.get("SPLITS", 1) * plan.get("GROUPS", 1)
    assert 1 <= parts <= max(1, -(-problem.K // plan.get("BLOCK_K", 64))), said
    if "BLOCK_M" not in plan:
        return
    block_m, block_n = plan["BLOCK_M"], plan["BLOCK_N"]
    if plan.get("SWAP"):
        block_m, block_n = block_n, block_m
    tiles = -(-problem.M // block_m) * -(-problem.N // block_n) * problem.batch
    assert tiles * parts < 2**31, said
    if parts > 1:
        divided = tiles - plan.get("WHOLE", 0)
        sums = plan.get("GROUPS", parts if backend == "triton" else 1)
        assert divided * sums * block_m * block_n * 4 <= WORKSPACE, said
    if backend == "cuda":
        assert max(launch.launch_plan(plan)) < 2**16, said
    elif name in triton_kernels.planners():
        most = limits.LIMITS[board.capability].shared_bytes
        types = problem.dtype_out, problem.dtype_in, problem.compute
        assert triton_plans.shared_bytes(name, plan, *types) <= most, said


def test_the_model_moves_a_choice_only_to_what_it_says_is_faster():
    """And never to less than memory or arithmetic take: of that no row can have told it."""
    board, draw, moved, seen = gpus.find("h200"), random.Random(7), 0, []
    faster = within.faster

    def watched(problem, chosen, able, module):
        seen.append((chosen, faster(problem, chosen, able, module)))
        return seen[-1][1]

    with planning_for(board), pytest.MonkeyPatch.context() as patch:
        patch.setattr(within, "faster", watched)
        for _ in range(4000):
            problem = drawn(draw, (9, 0))
            for backend in ("triton", "cuda"):
                try:
                    taken, _ = dispatch.by_models(problem, backend)
                except UnsupportedError:
                    continue
                before, after = seen.pop()
                assert after is taken
                if before is after:
                    continue
                moved += 1
                us = [
                    model.estimated_us(
                        row.full_name, problem, row.plan(problem), board.slug, 132, row is before
                    )
                    for row in (before, after)
                ]
                assert us[1] < us[0] * (1 - within.EARNED), problem
                flop_us = problem.flop / board.peak("bfloat16") / 1e6
                floor = max(problem.bytes / board.bandwidth_gb_s / 1e3, flop_us)
                assert us[1] > 0.8 * floor, (problem, before.name, after.name, us, floor)
    assert moved > 50
