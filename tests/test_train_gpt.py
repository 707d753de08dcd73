"""The example trains on torch's products and on ours alike."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from tcgemm.ops import layer

EXAMPLE = Path(__file__).parent.parent / "examples/train_gpt.py"


def example():
    spec = spec_from_file_location("train_gpt", EXAMPLE)
    module = sys.modules["train_gpt"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def losses(gpt, kernels, device, steps=12, **asked):
    trainer = gpt.Trainer(kernels, gpt.TINY, False, device, **asked)
    found, seconds = gpt.train(trainer, gpt.batches(gpt.TINY, steps, 0, device), steps)
    assert seconds > 0
    return found


def test_losses_are_torch_s(device, capsys):
    gpt = example()
    torchs, ours = losses(gpt, "torch", device), losses(gpt, "cublas", device)
    assert max(abs(x - y) for x, y in zip(torchs, ours, strict=True)) < 1e-3
    assert ours[-1] < ours[0]
    assert "step   10  loss" in capsys.readouterr().out


def test_losses_are_torch_s_with_all_flags(device, monkeypatch):
    """gelu within a layer, and gradients that products add to, dropped after a step or kept."""
    gpt = example()
    in_place = []
    added = layer.added
    monkeypatch.setattr(layer, "added", lambda *call: in_place.append(added(*call)) or in_place[-1])
    steps, layers = 3, 4 * gpt.TINY.layers + 1
    torchs = losses(gpt, "torch", device, steps)
    for keeps, rate in ((False, 0.5), (True, 1.0)):
        in_place.clear()
        ours = losses(gpt, "cublas", device, steps, fused=True, passes=2, keeps=keeps)
        assert max(abs(x - y) for x, y in zip(torchs, ours, strict=True)) < 2e-3
        # Of the two passes of a step the first finds no gradient, but for one that was kept.
        assert len(in_place) == 2 * steps * layers
        assert sum(in_place) == rate * len(in_place) - (layers if keeps else 0)


def test_it_runs_as_it_is_shipped(tmp_path, monkeypatch, capsys):
    def run(*flags):
        command = [str(EXAMPLE), "--tiny", "--steps", "2", *map(str, flags)]
        monkeypatch.setattr(sys, "argv", command)
        runpy.run_path(command[0], run_name="__main__")
        return capsys.readouterr().out

    file = tmp_path / "losses.csv"
    output = run("--kernels", "cublas", "--override", "--csv", file, "--profile", "--passes", "2")
    assert re.search(r"cublas: last loss \d\.\d+, .* ms a step .* \d+ tokens a second", output)
    assert "mm on cublas/" in output
    assert "0 kernels on the GPU" in output or torch.cuda.is_available()
    step, loss = file.read_text().splitlines()[2].split(",")
    assert (step, f"last loss {float(loss):.4f}" in output) == ("1", True)


def test_kernels_of_cublas_are_told_by_name():
    gpt = example()
    for name in ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "sm90_xmma_gemm_bf16bf16_bf16f32",
                 "void cutlass::Kernel2<cutlass_80_tensorop_bf16>"):  # fmt: skip
        assert gpt.is_cublas(name)
    for name in ("kernel", "void pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>",
                 "void at::native::vectorized_elementwise_kernel<4>"):  # fmt: skip
        assert not gpt.is_cublas(name)


@pytest.mark.exhaustive
def test_divided_over_two_ranks_it_learns_the_same(tmp_path):
    """By torch's styles and by ours, over gloo, beside one process."""
    found = {}
    for name, kernels in (("one", "torch"), ("torch", "torch"), ("ours", "cublas")):
        ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if name != "one" else []
        command = [sys.executable, *ranks, EXAMPLE, "--tiny", "--steps", "4", "--kernels", kernels,
                   "--csv", tmp_path / name, *(["--tensor-parallel"] if ranks else [])]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = (tmp_path / name).read_text().splitlines()[1:]
        found[name] = [float(line.split(",")[1]) for line in lines]
    for name in ("torch", "ours"):
        assert max(abs(x - y) for x, y in zip(found[name], found["one"], strict=True)) < 1e-3


@pytest.mark.exhaustive  # test_it_runs_as_it_is_shipped trains once
def test_contenders_in_turns_see_the_same_data(tmp_path):
    script = EXAMPLE.parent.parent / "scripts" / "train_in_turns.py"
    asked = ["--tiny", "--steps", "4", "--turn", "2", "--kernels", "torch", "cublas"]
    files = ["--out", tmp_path / "steps.csv", "--losses", tmp_path / "losses.csv"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, script, *asked, *files], env=environment,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    torchs, ours = csv.DictReader((tmp_path / "steps.csv").open())
    assert (torchs["kernels"], torchs["ratio_torch_p50"]) == ("torch", "1.0000")
    assert (ours["kernels"], ours["steps"]) == ("cublas", "4")
    assert float(ours["largest_difference"]) < 1e-3
    losses = list(csv.DictReader((tmp_path / "losses.csv").open()))
    assert [loss["step"] for loss in losses] == ["1", "2", "3", "4"]
    assert len({loss["torch"] for loss in losses}) == 4, "each step has data of its own"


def test_time_in_which_kernels_overlap_counts_once():
    script = EXAMPLE.parent.parent / "scripts" / "train_in_turns.py"
    spec = importlib.util.spec_from_file_location("train_in_turns", script)
    turns = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(turns)
    assert turns.covered([]) == 0
    assert turns.covered([(5, 7), (0, 3), (2, 4), (1, 2)]) == 6
