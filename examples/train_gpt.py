"""Train a GPT with torch's matrix products or with tcgemm's, by one flag.

    python examples/train_gpt.py --kernels torch       # on a GPU: 100 M parameters in bfloat16
    python examples/train_gpt.py --kernels triton
    python examples/train_gpt.py --kernels cuda --compile
    python examples/train_gpt.py --tiny --steps 20 --kernels torch   # on a CPU

The text is made by the program: sentences of arithmetic, byte by byte, so that two runs see the
same data with no download. Each line of output is a step, its loss and its time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import time

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


class Block(nn.Module):
    """Attention and an MLP, each added to what comes in."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, context, width] -> the same."""
        batch, context, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, context, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, context, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


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


def made_text(size: int, seed: int = 0) -> Tensor:
    """``size`` bytes of sums and their results."""
    draw = random.Random(seed)
    lines, length = [], 0
    while length < size:
        x, y = draw.randrange(1000), draw.randrange(1000)
        lines.append(f"{x} plus {y} is {x + y}.\n")
        length += len(lines[-1])
    return torch.tensor(list("".join(lines)[:size].encode()))


def train(kernels: str, config: Config, steps: int, compiled: bool, device: str) -> list[float]:
    """The loss of each step; prints it with the step's time in milliseconds."""
    torch.manual_seed(0)
    text = made_text(1 << 20).to(device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = GPT(config).to(device, dtype)
    if kernels != "torch":
        tcgemm.replace_linear(model, backend=kernels)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {kernels}")
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    places = torch.Generator().manual_seed(1)
    losses = []
    for step in range(steps):
        start = time.perf_counter()
        first = torch.randint(len(text) - config.context - 1, (config.batch,), generator=places)
        window = torch.stack([text[i : i + config.context + 1] for i in first.tolist()])
        logits = run(window[:, :-1]).float()
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())  # waits for the GPU
        print(
            f"step {step:4d}  loss {losses[-1]:.4f}  {1e3 * (time.perf_counter() - start):.1f} ms"
        )
    return losses


def main() -> None:
    """Read the flags and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kernels", choices=("torch", "triton", "cuda", "cublas"), default="triton"
    )
    parser.add_argument("--override", action="store_true",
                        help="replace torch's own products too, attention's left out")  # fmt: skip
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tiny", action="store_true", help="a model for a CPU")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    everywhere = contextlib.nullcontext()
    if asked.override and asked.kernels != "torch":
        everywhere = tcgemm.override_aten(backend=asked.kernels)
    with everywhere:
        train(asked.kernels, TINY if asked.tiny else LARGE, asked.steps, asked.compile, device)
    for ran in tcgemm.stats():
        print(f"{ran.calls:6d} {ran.operator} on {ran.where} {ran.reason}")


if __name__ == "__main__":
    main()
