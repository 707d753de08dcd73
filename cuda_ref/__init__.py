"""The CUDA C++ ladder. All that tcgemm knows of it: KERNELS and load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

if __name__ != "tcgemm.cuda_ref":
    raise ImportError("import tcgemm.cuda_ref: cuda_ref is not a package of its own")

from .fusion import arguments
from .limits import (
    refuse_skinny,
    refuse_tiled_copies,
    refuse_tma,
    refuse_wmma_loads,
    skinny_yields,
    split_k_yields,
)
from .toolchain import constants

PAIRS = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)

TMA_SHAPES = (
    "A and B 16-byte aligned, one stride 1, rows a multiple of 8 elements apart; C anywhere"
)

FUSED = ("alpha", "beta", "bias", "relu", "gelu", "gelu_tanh", "silu")


@cache
def _constants(name: str) -> dict[str, int]:
    return constants(name)


def _plan(name: str, problem: Any) -> Mapping[str, int]:
    """The constants of the rung's source, which alone decides them."""
    return _constants(name)


def _row(name: str, adds: str, capability: tuple[int, int], **limits: Any) -> dict[str, Any]:
    return {
        "name": name,
        "adds": adds,
        "pairs": PAIRS,
        "capability": capability,
        "devices": ("cuda", "cpu"),
        "plan": partial(_plan, name),
        **limits,
    }


KERNELS: tuple[dict[str, Any], ...] = (
    _row("naive", "one thread per element of C", (7, 0)),
    _row("tiled", "tiles in shared memory, 2 x 2 elements of C per thread", (7, 0)),
    _row(
        "wmma",
        "tensor cores: one warp per 16 x 16 tile, fragments straight from global memory",
        (7, 0),
        shapes="M, N and K multiples of 16; 32-byte aligned A and B, rows 8 elements apart or a "
        "multiple; bfloat16 from compute capability 8.0",
        refuse=refuse_wmma_loads,
    ),
    _row(
        "wmma_double_buffered",
        "cp.async in 16-byte vectors into the other half of shared memory; 32 x 32 per warp",
        (8, 0),
        shapes="M and N multiples of 64, K of 16; 16-byte aligned rows",
        refuse=lambda problem: refuse_tiled_copies(problem, _constants("wmma_double_buffered")),
    ),
    _row(
        "wmma_grouped",
        "grouped ordering of the tiles, padded shared memory, BLOCK_K 32, fragments reused",
        (8, 0),
        shapes="M and N multiples of 64, K of 32; 16-byte aligned rows",
        refuse=lambda problem: refuse_tiled_copies(problem, _constants("wmma_grouped")),
    ),
    _row(
        "wmma_any",
        "checked copies for any size, stride and alignment; 64 x 64 per warp, four stages",
        (8, 0),
    ),
    _row(
        "wgmma_tma",
        "TMA copies whole tiles, an mbarrier counts them in, wgmma reads them from shared memory",
        (9, 0),
        shapes=TMA_SHAPES,
        refuse=refuse_tma,
    ),
    _row(
        "wgmma_specialized",
        "a producer warp fills a ring of stages for two consumer warpgroups; 128 x 256 tiles",
        (9, 0),
        shapes=TMA_SHAPES,
        refuse=refuse_tma,
    ),
    _row(
        "wgmma_persistent",
        "blocks that stay: loads and stores under multiplies, clusters that multicast B",
        (9, 0),
        shapes=TMA_SHAPES,
        refuse=refuse_tma,
    ),
    _row(
        "split_k",
        "blocks divide K; their sums meet in a cluster, or in a workspace, in the order of K",
        (9, 0),
        shapes=TMA_SHAPES,
        refuse=refuse_tma,
        yields=split_k_yields,
        fuses=FUSED,
    ),
    _row(
        "skinny",
        "few rows as wgmma's narrow side; a cluster divides K, so that memory is never idle",
        (9, 0),
        shapes=f"M or N at most 128; {TMA_SHAPES}",
        refuse=refuse_skinny,
        yields=skinny_yields,
        fuses=FUSED,
    ),
)


def load(name: str) -> Callable[..., None]:
    """The rung's callable ``run(a, b, c, fusion=None, **plan)``, compiled on first use.

    ``a``, ``b`` and ``c`` are all 2-D, or all 3-D with the batch first; ``fusion`` says what is
    asked besides the plain product (see fusion.py), None that nothing is. CPU tensors take the
    same source through the simulator, compiled by g++.

    Raises LookupError for an unknown name, RuntimeError without a working compiler, or without a
    GPU where the simulator does not run the rung.
    """
    rows = {row["name"]: row for row in KERNELS}
    if name not in rows:
        raise LookupError(f"unknown CUDA kernel {name!r}: choose from {', '.join(rows)}")

    import torch

    if not torch.cuda.is_available() and "cpu" not in rows[name]["devices"]:
        raise RuntimeError(
            f"the CUDA kernel {name!r} needs an NVIDIA GPU and torch sees none: "
            "check nvidia-smi and that torch was installed with CUDA (torch.version.cuda is "
            f"{torch.version.cuda})"
        )
    from .build import Operators, operators
    from .simulator import run as simulate

    prepared: dict[int, Operators] = {}

    def prepare(device: int) -> Operators:
        prepared[device] = operators(name, torch.cuda.get_device_capability(device))
        return prepared[device]

    def run(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> None:
        device = a.get_device()
        if device < 0:
            simulate(name, a, b, c, fusion)
            return
        plain, fused = prepared.get(device) or prepare(device)
        if fusion is None:
            plain(a, b, c)
        else:
            fused(a, b, c, *arguments(fusion))

    if torch.cuda.is_available():
        prepare(torch.cuda.current_device())
    return run
