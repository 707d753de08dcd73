"""Constants of the kernels, as their sources and plans have them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent
CONSTANT = re.compile(r"constexpr (?:int|int64_t) (\w+) = ([^;]+);")


@cache
def of_source(path: str) -> dict[str, int]:
    """The integer constants of a CUDA file that follow from numbers and constants before them."""
    known: dict[str, int] = {}
    found = CONSTANT.findall((ROOT / path).read_text())
    several = [f"{name} = {rest}".split(", ") for name, rest in found if ", " in rest]
    found += [tuple(each.split(" = ")) for parts in several for each in parts if " = " in each]
    for name, expression in found:
        chosen = re.fullmatch(r"(.+?) > (.+?) \? (.+?) : (.+)", expression)
        if chosen:
            expression = f"({chosen[3]}) if ({chosen[1]}) > ({chosen[2]}) else ({chosen[4]})"
        words = set(re.findall(r"[A-Za-z_]\w*", expression)) - {"if", "else"}
        if words <= set(known) and re.fullmatch(r"[\w\s+*/%()<>-]+", expression):
            known[name] = int(eval(expression.replace("/", "//"), {}, dict(known)))
    return known


SHAPES = {
    "cuda/one_wave": (1024, 1024, 1024),
    "cuda/split_k": (256, 256, 16384),
    "cuda/skinny": (16, 4096, 4096),
    "cuda/mma_types": (256, 256, 4096),
    "cuda/mma_odd": (3551, 25, 10119),
    "cuda/stream_k": (64, 28672, 4096),
    "cuda/gemv": (1, 8192, 8192),
    "cuda/gemv_types": (2, 4096, 4096),
    "cuda/short_k": (10000, 10000, 3),
    "cuda/small": (100, 100, 100),
    "cuda/thin": (4, 1000, 300),
    "triton/short_k": (10000, 10000, 3),
    "triton/thin": (1, 1000, 700),
    "triton/skinny": (16, 4096, 4096),
    "triton/split_k": (4096, 2112, 7168),
}
"""Kernel -> M, N, K that its picture shows; 4096 cubed unless told."""
TYPES = {
    "cuda/mma_float64": ("float64", "float64"), "cuda/mma_types": ("float32", "float32"),
    "cuda/short_k": ("float32", "float32"), "cuda/wgmma_types": ("int8", "int32"),
    "cuda/gemv_types": ("float32", "float32"), "cuda/mma_odd": ("float64", "float64"),
    "triton/short_k": ("float32", "float32"),
}  # fmt: skip
BYTES = {"float64": 8, "float32": 4, "int8": 1}


def item(kernel: str) -> int:
    """Bytes of an element of A in the kernel's picture."""
    return BYTES.get(TYPES.get(kernel, ("bfloat16",))[0], 2)


@cache
def _planned(kernel: str) -> dict[str, int | str]:
    from tcgemm import dispatch
    from tcgemm.problem import COMPUTES, Problem

    M, N, K = SHAPES.get(kernel, (4096, 4096, 4096))
    dtype_in, dtype_out = TYPES.get(kernel, ("bfloat16", "bfloat16"))
    problem = Problem(
        M, N, K, dtype_in, dtype_out, (K, 1), (N, 1), (N, 1), device="cuda", capability=(9, 0),
        compute=COMPUTES[dtype_in][0],
    )  # fmt: skip
    return dict(dispatch.named(kernel).plan(problem))


def of_kernel(kernel: str) -> dict[str, int]:
    """The plan of a kernel on an H200 for its shape, and where it is CUDA its source's constants."""
    backend, name = kernel.split("/")
    known: dict[str, int] = {}
    if backend == "cuda":
        for folder in ("rungs", "shapes"):
            if (ROOT / f"cuda_ref/{folder}/{name}.cu").exists():
                known |= of_source(f"cuda_ref/{folder}/{name}.cu")
    return known | {k: v for k, v in _planned(kernel).items() if isinstance(v, int)}
