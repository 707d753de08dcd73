"""compute="float16", which leaves open how float16 is summed where float32 costs nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from tcgemm import dispatch, launch
from tcgemm.choosing.sums import as_summed
from tcgemm.cli import app
from tcgemm.problem import Plan, Problem


def problem_on(capability, **changes):
    asked = Problem.stored(
        1024, 1024, 1024, "float16", "float16", "nn", capability=capability, compute="float16"
    )
    return replace(asked, **changes)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_data_center_boards_sum_in_float32(capability, backend):
    summed = as_summed(problem_on(capability), backend)
    assert summed == problem_on(capability, compute="float32")
    assert summed.plain


@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (8, 9), (12, 0), None])
def test_boards_that_gain_by_it_sum_in_float16(capability):
    assert as_summed(problem_on(capability), "cuda").compute == "float16"


def test_what_is_named_sums_as_it_is_asked_to():
    problem = problem_on((9, 0))
    assert as_summed(problem, "cuda", "wmma_types") is problem
    assert as_summed(problem, "cublas") is problem
    assert as_summed(problem, "own") is problem
    shaped = replace(problem, mma_shape="16x16x16")
    assert as_summed(shaped, "cuda") is shaped
    whole = replace(problem, dtype_in="float32", dtype_out="float32", compute="tf32")
    assert as_summed(whole, "cuda") is whole


@pytest.mark.parametrize(
    ("kernel", "compute", "name"), [(None, "float32", ""), ("wmma_types", "float16", "wmma_types")]
)
def test_a_call_gets_the_kernel_and_the_sums(kernel, compute, name, monkeypatch):
    """The kernel is given what it is chosen for."""
    bound = []

    def bind(plan, problem, fusion, part):
        bound.append((plan.kernel, problem.compute, fusion.compute))
        return lambda *tensors: None

    on_cpu = dispatch.problem_of
    monkeypatch.setattr(
        launch.dispatch,
        "problem_of",
        lambda *of: replace(on_cpu(*of), device="cuda", capability=(9, 0)),
    )
    monkeypatch.setattr(launch, "_bind", bind)
    monkeypatch.setattr(
        launch, "_planned", lambda problem, backend, choose: Plan(backend, choose(problem).name, {})
    )
    a, b = torch.ones(256, 256).half(), torch.ones(256, 256).half()
    none = (None,) * 4
    launch.make(a, b, None, 1.0, 0.0, None, None, None, None, "float16", *none[:3], "cuda", kernel)
    ((taken, of_problem, of_fusion),) = bound
    assert (of_problem, of_fusion) == (compute, compute)
    row = dispatch.find("cuda", taken)
    assert row.takes_types("float16", "float16", compute)
    assert taken == (name or taken)


def test_auto_weighs_the_kernels_that_run():
    """Of sums that are then not formed it would compare others."""
    asked = problem_on((9, 0))
    assert as_summed(asked, "auto") == problem_on((9, 0), compute="float32")
    command = ["explain", "4096x4096x4096", "--dtype", "float16", "--gpu", "h200", "--json"]
    said = {
        compute: json.loads(CliRunner().invoke(app, [*command, "--compute", compute]).output)[
            "auto"
        ]
        for compute in ("float16", "float32")
    }
    assert said["float16"] == said["float32"]


def test_explain_speaks_of_the_kernel_that_is_taken():
    asked = ["explain", "4096x4096x4096", "--dtype", "float16", "--gpu", "h100", "--json"]
    taken = {}
    for compute in ("float16", "float32"):
        output = CliRunner().invoke(app, [*asked, "--compute", compute]).output
        choices = json.loads(output)["choices"]
        taken[compute] = {each["backend"]: each["kernel"] for each in choices}
    for backend in ("triton", "cuda"):
        assert taken["float16"][backend] == taken["float32"][backend] is not None
