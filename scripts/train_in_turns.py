"""Steps of examples/train_gpt.py's model by several kernels, in turns in one process.

    python scripts/train_in_turns.py [--compile] [--steps 200] [--out FILE.csv] [--losses FILE.csv]
    python scripts/train_in_turns.py --gpu-time       # what the GPU takes, whatever the host does
    python scripts/train_in_turns.py --tiny --steps 12 --turn 4       # on a CPU
    torchrun --nproc-per-node 4 scripts/train_in_turns.py --tensor-parallel

Each contender has a model of its own that starts from the same weights and sees the same data. They
take turns of some steps, so that clock and heat are the same for all; a turn's first step, behind
another's work, is not timed. ``torch-lt`` is torch with cuBLASLt, whose algorithms differ: its
losses show how far two runs of cuBLAS lie apart. A row is a contender: the median milliseconds of a
step, the median of its ratio to torch's beside it (below 1 is faster), the last loss, and the
largest difference of a loss from torch's. With --gpu-time it also has the milliseconds of a step in
which the GPU runs a kernel. Where the host is slow a step takes longer than that. With
--tensor-parallel each layer is divided over the ranks of torchrun, as train_gpt.py does it; the
rows are the first rank's.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before torch's optimizer imports Triton
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import train_gpt

CONTENDERS = {
    "torch": ("torch", False), "torch-lt": ("torch", False), "triton": ("triton", False),
    "triton-fused": ("triton", True), "cuda": ("cuda", False), "cuda-fused": ("cuda", True),
    "cublas": ("cublas", False),
}  # fmt: skip
"""Name -> (kernels, whether an MLP is one tcgemm.mlp)."""
PROFILED = 3
"""Steps of --gpu-time, behind all others."""


class Contender:
    """A model in training, and what its steps took."""

    def __init__(
        self, name: str, config: train_gpt.Config, steps: int, compiled: bool, mesh: Any = None
    ) -> None:
        kernels, fused = CONTENDERS[name]
        self.name, self.losses, self.ms = name, list[torch.Tensor](), list[float]()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._library()
        self.trainer = train_gpt.Trainer(kernels, config, compiled, device, mesh=mesh, fused=fused)
        self.windows = train_gpt.batches(config, steps + PROFILED, 0, device)

    def take(self, steps: int) -> None:
        """A turn."""
        self._library()
        self._step()
        begun = self.trainer.wait()
        for _ in range(steps - 1):
            self._step()
        self.ms.append(1e3 * (self.trainer.wait() - begun) / (steps - 1))

    def gpu_ms(self) -> float:
        """Milliseconds of a step in which some kernel runs, by torch's profiler."""
        self._library()
        cuda = torch.profiler.ProfilerActivity.CUDA
        with torch.profiler.profile(activities=[cuda]) as profile:
            for window in itertools.islice(self.windows, PROFILED):
                self.trainer.step(window)
            self.trainer.wait()
        of_gpu = torch.autograd.DeviceType.CUDA
        return covered(
            (event.time_range.start, event.time_range.end)
            for event in profile.events() if event.device_type == of_gpu
        ) / (1e3 * PROFILED)  # fmt: skip

    def _library(self) -> None:
        if torch.cuda.is_available():
            library = "cublaslt" if self.name == "torch-lt" else "cublas"
            torch.backends.cuda.preferred_blas_library(library)

    def _step(self) -> None:
        self.losses.append(self.trainer.step(next(self.windows)))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what the spans cover; kernels overlap, and where they do it counts once."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def rows(contenders: list[Contender], compiled: bool) -> list[dict[str, str]]:
    """A row for each; the first is what the others are compared with. Its first turn, in which all
    is compiled and chosen, does not count."""
    first = contenders[0]
    expected = [loss.item() for loss in first.losses]
    found = []
    for each in contenders:
        ratios = [ours / theirs for ours, theirs in zip(each.ms, first.ms, strict=True)][1:]
        losses = [loss.item() for loss in each.losses]
        found.append({
            "mode": "compiled" if compiled else "eager", "kernels": each.name,
            "steps": str(len(losses)), "ms_p50": f"{statistics.median(each.ms[1:]):.3f}",
            f"ratio_{first.name}_p50": f"{statistics.median(ratios):.4f}",
            "last_loss": f"{losses[-1]:.4f}",
            "largest_difference": f"{max(map(abs, map(float.__sub__, losses, expected))):.4f}",
        })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernels", nargs="+", choices=CONTENDERS, default=list(CONTENDERS)[:6],
                        help="the first is what the others are compared with")  # fmt: skip
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--gpu-time", action="store_true", help="also what the GPU takes")
    parser.add_argument("--tensor-parallel", action="store_true",
                        help="divide each layer over the ranks of torchrun")  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="a model for a CPU")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--turn", type=int, default=20, help="steps of a turn, two at least")
    parser.add_argument("--out", type=Path, help="a CSV for the rows")
    parser.add_argument("--losses", type=Path, help="a CSV for the loss of each step")
    asked = parser.parse_args()
    turns = asked.steps // asked.turn
    if asked.gpu_time and not torch.cuda.is_available():
        parser.error("--gpu-time needs a GPU")
    if asked.turn < 2 or turns < 2:
        parser.error("--steps holds at least two turns of --turn steps, and a turn two steps")
    config = train_gpt.TINY if asked.tiny else train_gpt.LARGE
    steps = turns * asked.turn
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = train_gpt.ranks(device) if asked.tensor_parallel else None
    contenders = [Contender(name, config, steps, asked.compile, mesh) for name in asked.kernels]
    for turn in range(turns):
        for each in contenders[:: -1 if turn % 2 else 1]:
            each.take(asked.turn)
    table = rows(contenders, asked.compile)
    if asked.gpu_time:
        for each, row in zip(contenders, table, strict=True):
            row["gpu_ms"] = f"{each.gpu_ms():.3f}"
    if mesh is not None:
        rank = mesh.get_rank()
        torch.distributed.destroy_process_group()
        if rank:
            return
    for row in table:
        print("  ".join(f"{value:>12}" for value in row.values()))
    if asked.out:
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
    if asked.losses:
        with asked.losses.open("w", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(["step", *asked.kernels])
            each_step = zip(*([loss.item() for loss in c.losses] for c in contenders), strict=True)
            lines.writerows([n, *losses] for n, losses in enumerate(each_step, start=1))


if __name__ == "__main__":
    main()
