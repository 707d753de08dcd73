"""Operands whose rows begin anywhere, and runs of a CUDA rung on them in the simulator."""

from __future__ import annotations

from importlib import import_module

import torch

from tcgemm import accuracy
from tcgemm.dispatch import find, problem_of

simulator = import_module("tcgemm.cuda_ref.simulator")

BF16 = torch.bfloat16


def among_nan(rows, cols, transposed, fill, gap, before):
    """A matrix with rows, or columns, that begin anywhere, and NaN wherever it is not."""
    height, width = (cols, rows) if transposed else (rows, cols)
    memory = torch.full((before + height * (width + gap) + 16,), float("nan"), dtype=BF16)
    view = memory[before:].as_strided((height, width), (width + gap, 1), before)
    view.copy_(fill(height, width))
    return view.mT if transposed else view


def integers(*size):
    return torch.randint(-2, 3, size)


def product(kernel, a, b, c, plan=None, **options):
    """The report of the last of three runs, in each of which C is written anew and nothing is
    found: with the plan that a GPU without clusters has, or this one."""
    plan = find("cuda", kernel).plan(problem_of(a, b, c)) if plan is None else plan
    report = None
    for _ in range(3):
        c.fill_(float("nan"))
        source = simulator.source_of(kernel)
        report = simulator.simulate(source, a, b, c, check=True, plan=plan, **options)
        assert not report.findings, [str(f) for f in report.findings]
    return report


def is_right_wherever_rows_begin(kernel, shape, layout, places):
    """Both checks, with rows of A and B so many elements apart, behind so many (``places``)."""
    M, N, K = shape
    for place in places:
        for fill in (integers, torch.randn):
            a = among_nan(M, K, layout[0] == "t", fill, *place)
            b = among_nan(K, N, layout[1] == "t", fill, *place)
            c = torch.empty(M, N, dtype=BF16)
            assert find("cuda", kernel).why_not(problem_of(a, b, c)) is None
            product(kernel, a, b, c)
            if fill is integers:
                assert torch.equal(c, (a.double() @ b.double()).to(BF16)), place
            else:
                assert accuracy.error_ratio(a, b, c) < 1, place
