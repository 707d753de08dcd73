"""The example trains on torch's products and on ours alike."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples/train_gpt.py"


def example():
    spec = spec_from_file_location("train_gpt", EXAMPLE)
    module = sys.modules["train_gpt"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_losses_are_torch_s(device, capsys):
    gpt = example()
    torchs = gpt.train("torch", gpt.TINY, 6, False, device)
    ours = gpt.train("cublas", gpt.TINY, 6, False, device)
    assert max(abs(x - y) for x, y in zip(torchs, ours, strict=True)) < 1e-3
    assert ours[-1] < ours[0]
    assert "loss" in capsys.readouterr().out


def test_it_runs_as_it_is_shipped():
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--tiny", "--steps", "1", "--kernels", "cublas", "--override"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "step    0  loss" in done.stdout
    assert "cublas/" in done.stdout
