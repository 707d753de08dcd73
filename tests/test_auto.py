"""``backend="auto"``: the faster of what is built, and nothing is built for the choice."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import tcgemm
from tcgemm import cuda_ref, dispatch, gpus, launch_cache
from tcgemm.choosing import auto, measured
from tcgemm.cli import app
from tcgemm.errors import UnknownNameError, UnsupportedError
from tcgemm.problem import Problem
from tcgemm.request import planning_for

H200 = "nvidia-h200"


def problem(*shape, dtype="bfloat16", layout="nt", **asked):
    out = {"uint8": "int32"}.get(dtype, dtype)
    return Problem.stored(*shape, dtype, out, layout, capability=(9, 0), **asked)


@pytest.fixture
def built(monkeypatch):
    """Which of CUDA's kernels are built: a set that a test fills; all others would be."""
    missing: set[str] = set()
    monkeypatch.setattr(cuda_ref, "ready", lambda name, plan, problem: name not in missing)
    monkeypatch.setattr(cuda_ref, "load", None)
    measured.nearest.cache_clear()
    return missing


def rows_of_table():
    path = Path(auto.__file__).with_name(f"measured-{H200}.csv")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_measured_shape_gets_what_was_faster_there(built):
    rows = [row for row in rows_of_table() if row["dtype_in"] == "bfloat16" and not row["fused"]]
    rows = [row for row in rows if row["dtype_out"] == "bfloat16" and row["compute"] == "float32"]
    apart = [row for row in rows if abs(float(row["speedup"]) - 1) > 0.02]
    assert {float(row["speedup"]) > 1 for row in apart} == {True, False}
    for row in apart:
        asked = problem(*(int(row[name]) for name in "MNK"), layout=row["layout"])
        choice = auto.backend_for(asked, gpu=H200)
        assert choice.backend == ("cuda" if float(row["speedup"]) > 1 else "triton"), row
        assert "times as fast at" in choice.why


def test_a_shape_far_from_all_measured_ones_gets_the_default(built):
    far = problem(3, 5, 100_000, dtype="float64")
    assert auto.backend_for(far, gpu=H200) == (
        "triton",
        "nothing near it was measured on nvidia-h200",
    )
    elsewhere = auto.backend_for(problem(4096, 4096, 4096), gpu="nvidia-a100")
    assert elsewhere == ("triton", "nothing near it was measured on nvidia-a100")


def test_between_the_measured_shapes_the_model_decides(built):
    """38 for 58 us and 2.8 for 3.5, in reports/nvidia-h200/trials/drawn.csv."""
    for shape, layout in (((1824, 2528, 2182), "tn"), ((8768, 64, 64), "tt")):
        choice = auto.backend_for(problem(*shape, layout=layout), gpu=H200)
        assert choice.backend == "cuda"
        assert "by the shipped model of nvidia-h200, triton" in choice.why
    named = auto.backend_for(problem(226, 32, 3936), kernel="skinny", gpu=H200)
    assert "by the shipped model" in named.why


@pytest.mark.parametrize("name", ["h200", "h100-pcie", "a100", "l4"])
def test_what_is_said_of_a_gpu_that_is_not_here_is_what_runs_there(name, monkeypatch):
    """Kernels and plans, with the tables and models of that GPU and the number of its SMs."""
    board = gpus.find(name)
    shapes = [(64, 64, 1024), (8, 100, 4096), (512, 4096, 512), (4096, 4096, 4096), (40, 96, 3000)]

    def chosen():
        for module in ("triton_kernels.by_name", "cuda_ref.planning"):
            import_module(f"tcgemm.{module}").forget()
        found = []
        for shape, layout, backend in itertools.product(shapes, ["nn", "nt"], ["triton", "cuda"]):
            asked = Problem.stored(
                *shape, "bfloat16", "bfloat16", layout, capability=board.capability
            )
            row = dispatch.choose(asked, backend)
            found.append((row.full_name, dict(row.plan(asked))))
        return found

    with planning_for(board):
        said = chosen()
    shared = import_module("tcgemm.cuda_ref.planning.gpu").shared_kb(board.capability) * 1024
    there = SimpleNamespace(
        name=board.name,
        multi_processor_count=board.sms,
        shared_memory_per_block_optin=shared,
    )
    planning = [
        import_module(f"tcgemm.{each}")
        for each in ("cuda_ref.planning.gpu", "triton_kernels.planning.gpus", "choosing.measured")
    ]
    for each in planning:
        each._of_device.cache_clear()
    with monkeypatch.context() as here:
        here.setattr(torch.cuda, "is_available", lambda: True)
        here.setattr(torch.cuda, "current_device", lambda: 0)
        here.setattr(torch.cuda, "device_count", lambda: 1)
        here.setattr(torch.cuda, "get_device_name", lambda *index: board.name)
        here.setattr(torch.cuda, "get_device_capability", lambda *index: board.capability)
        here.setattr(torch.cuda, "get_device_properties", lambda index: there)
        runs = chosen()
    for each in planning:
        each._of_device.cache_clear()
    assert said == runs
    without = chosen()
    assert (without == runs) == (name in ("a100", "l4"))


def test_a_model_of_another_gpu_says_nothing(monkeypatch, request):
    """On an H200, of a problem for an A100."""
    measured._of_device.cache_clear()
    request.addfinalizer(measured._of_device.cache_clear)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *index: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *index: (9, 0))
    asked = Problem.stored(64, 64, 1024, "bfloat16", "bfloat16", "nn", capability=(9, 0))
    assert measured.slug_of(asked) == H200
    assert measured.slug_of(replace(asked, capability=(8, 0))) == "cpu"


def test_what_is_not_built_is_not_chosen(built):
    faster = problem(2048, 2048, 2048)
    chosen = dispatch.choose(faster, "cuda").name
    built.add(chosen)
    backend, why = auto.backend_for(faster, gpu=H200)
    assert (backend, why) == ("triton", "what cuda would run is not built here")


def test_what_only_one_takes_it_gets(built):
    only = auto.backend_for(problem(64, 64, 64), kernel="mma_multistage", gpu=H200)
    assert only == ("cuda", "no kernel of triton takes it")
    built.add("mma_multistage")
    assert auto.backend_for(problem(64, 64, 64), "mma_multistage", H200).backend == "cuda"
    assert auto.backend_for(problem(64, 64, 64), "pipelined", H200).backend == "triton"


def test_what_neither_takes_is_refused_as_by_the_default(built, monkeypatch):
    refused = problem(64, 64, 64, dtype="float16", mma_shape="1x2x3")
    with pytest.raises(UnsupportedError) as theirs:
        dispatch.choose(refused, "triton")
    with pytest.raises(UnsupportedError) as mine:
        auto.backend_for(refused, gpu=H200)
    assert str(mine.value) == str(theirs.value)


def test_a_call_runs_what_is_chosen(monkeypatch, device):
    a, b = (torch.randn(24, 24, device=device).half() for _ in range(2))
    for backend in ("triton", "cublas"):
        launch_cache.forget()
        monkeypatch.setattr(
            "tcgemm.launch.backend_for", lambda *asked, of=backend: auto.Choice(of, "")
        )
        torch.testing.assert_close(tcgemm.matmul(a, b, backend="auto"), a @ b)
        plans = [launch.plans[0] for launch in launch_cache.launches.values()]
        assert {plan.backend for plan in plans} == {backend}
    launch_cache.forget()


def test_the_name_is_known_wherever_a_backend_is_named(monkeypatch, device):
    a = torch.randn(8, 8, device=device)
    monkeypatch.setenv("TCGEMM_BACKEND", "auto")
    torch.testing.assert_close(tcgemm.matmul(a, a), a @ a)
    with tcgemm.override_aten(backend="auto"):
        torch.mm(a, a)
    with pytest.raises(UnknownNameError, match="cublas, auto"):
        tcgemm.matmul(a, a, backend="fastest")


def test_explain_says_why(built):
    result = CliRunner().invoke(
        app, ["explain", "4096x4096x4096", "--gpu", "h200"], env={"COLUMNS": "200"}
    )
    assert "backend='auto': " in result.output
    assert "times as fast at 4096x4096x4096" in result.output


def test_the_table_is_of_cases_that_the_report_has():
    rows = rows_of_table()
    assert len(rows) > 200
    assert all(0.1 < float(row["speedup"]) < 10 for row in rows)
    keys = [tuple(row.values())[:-1] for row in rows]
    assert len(set(keys)) == len(keys)
    results = Path(__file__).parent.parent / "reports" / H200 / "results.csv"
    with results.open(newline="") as file:
        measured = {
            (r["dtype_in"], r["dtype_out"], r["compute"], r["layout"], r["M"], r["N"], r["K"])
            for r in csv.DictReader(file)
        }
    assert {(*key[:3], *key[4:]) for key in keys} <= measured
