"""Overlapped products on GPUs: all that scripts/overlap_gpus.py checks, in ranks of torchrun."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "scripts" / "overlap_gpus.py"


@pytest.mark.gpu
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_ranks_of_gpus_multiply_together(world, seed):
    if torch.cuda.device_count() < world:
        pytest.skip(f"{torch.cuda.device_count()} GPUs are visible, and this test takes {world}")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [*run, str(world), str(SCRIPT), "check", "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert '"wrong": 0' in done.stdout
