"""Train a GPT with torch's matrix products or with tcgemm's, by one flag.

    python examples/train_gpt.py --kernels torch       # on a GPU: 100 M parameters in bfloat16
    python examples/train_gpt.py --kernels triton
    python examples/train_gpt.py --kernels cuda --compile
    python examples/train_gpt.py --kernels triton --fused-mlp        # an MLP is one tcgemm.mlp
    python examples/train_gpt.py --kernels triton --passes 4         # gradients added in place
    python examples/train_gpt.py --profile --csv losses.csv          # is any kernel cuBLAS's?
    python examples/train_gpt.py --tiny --steps 20 --kernels torch   # on a CPU
    torchrun --nproc-per-node 4 examples/train_gpt.py --tensor-parallel --kernels triton

The text is made by the program: sentences of arithmetic, byte by byte, so that two runs see the
same data with no download. Every tenth step its loss and the mean time of ten steps are printed, at
the end the mean of the last half. No other step waits for the GPU.

With --tensor-parallel each layer is divided over torchrun's ranks, and the rows between layers are
as well (sequence parallelism): by torch's styles with --kernels torch, which gather and scatter
before and after a product, else by tcgemm's, which do so under it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tcgemm


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the model and of a step."""

    width: int
    heads: int
    layers: int
    context: int
    batch: int


LARGE = Config(width=768, heads=12, layers=14, context=512, batch=16)
TINY = Config(width=64, heads=4, layers=2, context=32, batch=4)
VOCABULARY = 256
"""Bytes."""
EVERY = 10
"""Steps between two lines of output."""
MOST = 25
"""Kernels that --profile lists."""
CUBLAS = re.compile(r"cublas|nvjet|cutlass|xmma_gemm|splitKreduce|gemv|gemmk1|gemmSN")
"""What names of cuBLAS's kernels have."""


class Block(nn.Module):
    """Attention and an MLP, each added to what comes in."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.heads, self.fused = config.heads, False
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, context, width] -> the same."""
        width = x.shape[2]
        # Head by head, so that a rank that has some columns has whole heads; and all rows.
        qkv = self.qkv(self.norm_1(x)).unflatten(2, (-1, 3, width // self.heads))
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        seen = self.norm_2(x)
        if self.fused:
            up, down = self.up, self.down
            return x + tcgemm.mlp(
                seen, up.weight, up.bias, down.weight, down.bias, "gelu_tanh", backend=up.backend
            )
        up = self.up(seen)
        if not getattr(self.up, "epilogue", None):  # else the layer itself ends with it
            up = F.gelu(up, approximate="tanh")
        return x + self.down(up)


class GPT(nn.Module):
    """A decoder of bytes."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, config.width)
        self.places = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """[batch, context] of bytes -> [batch, context, VOCABULARY]."""
        places = torch.arange(text.shape[1], device=text.device)
        x = self.blocks(self.tokens(text) + self.places(places))
        return self.head(self.norm(x))


def divided(model: GPT, mesh: Any, ours: bool) -> GPT:
    """The model with its layers divided over the ranks of a mesh, in place.

    Between the layers each rank has its part of every sequence: dimension 1.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as torchs

    styles = tcgemm.dist if ours else torchs
    rows = Shard(1)
    plan: dict[str, Any] = {
        "tokens": torchs.RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
        "places": torchs.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "norm": torchs.SequenceParallel(),
        "head": styles.ColwiseParallel(input_layouts=rows, output_layouts=Replicate()),
    }
    for number in range(len(model.blocks)):
        for name in ("norm_1", "norm_2"):
            plan[f"blocks.{number}.{name}"] = torchs.SequenceParallel()
        for name in ("qkv", "up"):
            plan[f"blocks.{number}.{name}"] = styles.ColwiseParallel(input_layouts=rows)
        for name in ("out", "down"):
            plan[f"blocks.{number}.{name}"] = styles.RowwiseParallel(output_layouts=rows)
    torchs.parallelize_module(model, mesh, plan)
    return model


def made_text(size: int, seed: int = 0) -> Tensor:
    """``size`` bytes of sums and their results."""
    draw = random.Random(seed)
    lines, length = [], 0
    while length < size:
        x, y = draw.randrange(1000), draw.randrange(1000)
        lines.append(f"{x} plus {y} is {x + y}.\n")
        length += len(lines[-1])
    return torch.tensor(list("".join(lines)[:size].encode()))


def batches(config: Config, steps: int, seed: int, device: str) -> Iterator[Tensor]:
    """[batch, context + 1] windows of the text for each step, drawn ahead and cut on the device."""
    text = made_text(1 << 20, seed).to(device)
    draw = torch.Generator().manual_seed(seed + 1)
    last = len(text) - config.context
    starts = torch.randint(last, (steps, config.batch, 1), generator=draw).to(device)
    window = torch.arange(config.context + 1, device=device)
    for start in starts:
        yield text[start + window]


class Trainer:
    """A model, its optimizer, and what each step measured.

    Args:
        kernels: "torch", or the backend of the layers.
        fused: whether gelu is an epilogue of the product before it.
        passes: forward and backward passes a step, each over an equal part of the batch; with
            more than one, the layers add their weights' gradients in place.
        keeps: whether a step fills the gradients with zeros, in place of dropping them.
    """

    def __init__(
        self, kernels: str, config: Config, compiled: bool, device: str, seed: int = 0,
        mesh: Any = None, *, fused: bool = False, passes: int = 1, keeps: bool = False,
    ) -> None:  # fmt: skip
        torch.manual_seed(seed)
        self.config, self.device = config, device
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.model = GPT(config).to(device, dtype)
        if kernels != "torch":
            tcgemm.replace_linear(self.model, backend=kernels, accumulate=passes > 1 or keeps)
            if fused:
                for block in self.model.blocks:
                    if mesh is None and passes == 1 and not keeps:
                        block.fused = True
                    else:  # what layers alone do: to gather and scatter rows, to add gradients
                        block.up.epilogue = "gelu_tanh"
        if mesh is not None:
            divided(self.model, mesh, kernels != "torch")
        self.passes, self.keeps = passes, keeps
        self.run = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=device == "cuda")

    def step(self, window: Tensor) -> Tensor:
        """One step of training; its loss, which stays on the device: nothing here waits for it."""
        total = torch.zeros((), device=self.device)
        for part in window.chunk(self.passes):
            logits = self.run(part[:, :-1]).float()
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / self.passes
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.keeps)
        return total

    def wait(self) -> float:
        """The time in seconds when the device has done all that it was asked for."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def train(trainer: Trainer, windows: Iterator[Tensor], steps: int) -> tuple[list[float], float]:
    """Train; the loss of each step, and the mean seconds of a step of the last half."""
    losses = torch.empty(steps, device=trainer.device)
    half = begun = trainer.wait()
    for step, window in zip(range(steps), windows, strict=False):
        if step == steps // 2:
            half = trainer.wait()
        losses[step] = trainer.step(window)
        if step % EVERY == EVERY - 1:
            loss, now = losses[step].item(), time.perf_counter()  # waits for the device
            print(
                f"step {step + 1:4d}  loss {loss:.4f}  {1e3 * (now - begun) / EVERY:.2f} ms a step"
            )
            begun = now
    return losses.tolist(), (trainer.wait() - half) / (steps - steps // 2)


def profiled(trainer: Trainer, windows: Iterator[Tensor]) -> dict[str, float]:
    """Milliseconds of each kernel that runs on the GPU in a few more steps, the longest first."""
    activities = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activities.CPU, activities.CUDA]) as profile:
        for window in windows:
            trainer.step(window)
        trainer.wait()
    found: dict[str, float] = {}
    for event in profile.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.key] = found.get(event.key, 0) + event.self_device_time_total / 1e3
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def is_cublas(kernel: str) -> bool:
    """Whether a kernel of this name is one of cuBLAS's; attention's use CUTLASS as well."""
    return bool(CUBLAS.search(kernel)) and not re.search("flash|fmha|attention", kernel)


def ranks(device: str) -> Any:
    """A mesh of all ranks of torchrun, each on a GPU of its own."""
    from torch.distributed.device_mesh import init_device_mesh

    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))


def main() -> None:
    """Read the flags and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kernels", choices=("torch", "triton", "cuda", "cublas"), default="triton"
    )
    parser.add_argument("--override", action="store_true",
                        help="leave the layers and replace torch's own products")  # fmt: skip
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tiny", action="store_true", help="a model for a CPU")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--fused-mlp", action="store_true",
                        help="an MLP as one tcgemm.mlp, gelu in its first product")  # fmt: skip
    parser.add_argument("--passes", type=int, default=1,
                        help="passes over parts of the batch that a step adds up")  # fmt: skip
    parser.add_argument("--keep-grads", action="store_true",
                        help="zero the gradients after a step, do not drop them")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data")
    parser.add_argument("--csv", type=Path, help="where to write step,loss")
    parser.add_argument("--profile", action="store_true",
                        help="name the kernels on the GPU in three more steps")  # fmt: skip
    parser.add_argument("--tensor-parallel", action="store_true",
                        help="divide each layer over the ranks of torchrun")  # fmt: skip
    asked = parser.parse_args()
    if asked.steps < 1:
        parser.error("--steps is at least 1")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = TINY if asked.tiny else LARGE
    mesh = None
    if asked.tensor_parallel:
        if "RANK" not in os.environ:
            parser.error("--tensor-parallel needs ranks: torchrun --nproc-per-node 2 " + __file__)
        mesh = ranks(device)
        if config.heads % mesh.size() or config.context % mesh.size():
            parser.error(f"{config.heads} heads and {config.context} places over {mesh.size()}")
        if mesh.get_rank():
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the first rank speaks for all
    if asked.passes < 1 or config.batch % asked.passes:
        parser.error(f"--passes is {asked.passes}: it divides the batch, {config.batch}")
    override = asked.override and asked.kernels != "torch"
    if asked.fused_mlp and (override or asked.kernels == "torch"):
        parser.error("--fused-mlp is of layers that are ours: not of --kernels torch or --override")
    trainer = Trainer(
        "torch" if override else asked.kernels, config, asked.compile, device, asked.seed, mesh,
        fused=asked.fused_mlp, passes=asked.passes, keeps=asked.keep_grads,
    )  # fmt: skip
    parameters = sum(p.numel() for p in trainer.model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {asked.kernels}")
    windows = batches(config, asked.steps + 3 * asked.profile, asked.seed, device)
    with tcgemm.override_aten(backend=asked.kernels) if override else contextlib.nullcontext():
        losses, seconds = train(trainer, windows, asked.steps)
        kernels = profiled(trainer, windows) if asked.profile else {}
    tokens = config.batch * config.context / seconds
    print(
        f"{asked.kernels}: last loss {losses[-1]:.4f}, "
        f"{1e3 * seconds:.2f} ms a step in the last half, {tokens:.0f} tokens a second"
    )
    for ran in tcgemm.stats():
        print(f"{ran.calls:6d} {ran.operator} on {ran.where} {ran.reason}")
    for kernel, milliseconds in list(kernels.items())[:MOST]:
        print(f"{milliseconds:9.3f} ms  {'cuBLAS ' if is_cublas(kernel) else ''}{kernel[:100]}")
    if asked.profile:
        of_cublas = [kernel for kernel in kernels if is_cublas(kernel)]
        print(
            f"{len(kernels)} kernels on the GPU, {len(of_cublas)} of cuBLAS", *of_cublas, sep="\n"
        )
    if asked.csv and (mesh is None or not mesh.get_rank()):
        rows = "".join(f"{step},{loss:.6f}\n" for step, loss in enumerate(losses))
        asked.csv.write_text(f"step,loss\n{rows}")
    if mesh is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
