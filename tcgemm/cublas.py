"""The baseline, behind the same contract as the other two backends.

On a GPU it is cuBLAS as users get it through torch: mm, bmm, addmm, baddbmm, _int_mm and
_scaled_mm, in the mode that the call names. What these do not fuse is torch's own kernels after
the product, on float32 sums where C is narrower, so that the result is rounded once, as the
contract says. On the CPU the same row would be a lie, so torch's own matmul stands there under its
own name: float32 (float64, exact integers) for every type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from threading import RLock
from typing import Any

import torch

from . import cublaslt, forks
from .epilogue import FUNCTIONS, finished, wide_dtype
from .problem import COMPUTES, EPILOGUES, OUTPUTS, Fusion, Problem

_EVERY = tuple(
    (dtype, out, compute)
    for dtype, outs in OUTPUTS.items()
    for out in outs
    for compute in COMPUTES[dtype]
)
_PAIRS = tuple(
    pair
    for pair in _EVERY
    if pair[0] not in ("uint8", "float8_e5m2") and pair != ("float16", "float32", "float16")
)
_FUSES = ("alpha", "beta", "bias", *EPILOGUES, "scales", "batch")
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_UNIT = 16
"""Bytes: 8-bit rows of A, columns of B and their addresses are multiples of it."""


def _refuse(problem: Problem) -> str | None:
    """Why torch's 8-bit products do not take the problem, as a sentence with the numbers."""
    M, N, K = problem.M, problem.N, problem.K
    if problem.dtype_in == "int8":
        if M <= 16:
            return f"M is {M} and torch._int_mm needs more than 16 rows"
        for name, size in (("N", N), ("K", K)):
            if size % 8:
                fits = -(-size // 8) * 8
                return f"{name} is {size} and torch._int_mm needs a multiple of 8: pad it to {fits}"
    elif problem.dtype_in.startswith("float8"):
        if problem.capability is not None and problem.capability < (8, 9):
            least = "{}.{}".format(*problem.capability)
            return f"torch._scaled_mm needs compute capability 8.9 and this GPU has {least}"
        for name, size in (("N", N), ("K", K)):
            if size % 16:
                fits = -(-size // 16) * 16
                return (
                    f"{name} is {size} and torch._scaled_mm needs a multiple of 16: pad it to "
                    f"{fits}"
                )
        if problem.layout != "nt":
            return (
                f"the layout is {problem.layout} and torch._scaled_mm takes nt: A by rows and B by "
                "columns"
            )
    else:
        return None
    sides = (("A", problem.a_alignment), ("B", problem.b_alignment))
    for name, alignment in sides:
        if alignment < _UNIT:
            return (
                f"{name} starts at an address that is a multiple of {alignment} bytes only and "
                f"cuBLAS needs {_UNIT} for 8-bit operands: pass {name}.clone()"
            )
    for name, strides in (("A", problem.a_strides), ("B", problem.b_strides)):
        pitch = max(strides)
        if min(strides) != 1 or pitch % _UNIT:
            return (
                f"{name} has strides {strides} and cuBLAS needs 1 and a multiple of {_UNIT} for "
                f"8-bit operands: pass {name}.contiguous()"
            )
    return None


KERNELS = (
    {
        "name": "torch_cpu",
        "adds": "torch's own matmul on the CPU: values to compare with, no measure of speed",
        "pairs": _EVERY,
        "fuses": _FUSES,
        "devices": ("cpu",),
    },
    {
        "name": "cublas",
        "adds": "cuBLAS through torch.mm, as users get it: the baseline of every ratio",
        "pairs": _PAIRS,
        "fuses": _FUSES,
        "capability": (7, 0),
        "shapes": "any for 16 bits and more; 8-bit N and K in multiples of 8 or 16, aligned rows",
        "refuse": _refuse,
        # torch.addmm and baddbmm: what they lose against one call is part of the baseline.
        "rounds_product": True,
    },
    {
        "name": "cublas_best",
        "adds": "the fastest of cuBLASLt's own candidates, timed for each shape on its first call",
        "pairs": (
            *((dtype, out) for dtype in ("float16", "bfloat16") for out in OUTPUTS[dtype]),
            ("float32", "float32", "ieee"),
            ("float32", "float32", "tf32"),
            ("float64", "float64"),
        ),
        "capability": (8, 0),
        "shapes": "A and B with rows or columns contiguous, C with rows",
        "refuse": cublaslt.refuse,
    },
)


def choose(problem: Problem, able: Sequence[str]) -> str:
    """What users get from torch; cublas_best is taken where it is named."""
    return able[0]


def load(name: str) -> Callable[..., None]:
    """The callable ``run(a, b, c, fusion=None)``, which writes C; 2-D or [batch, ., .] operands.

    For float32 operands, compute "ieee" and "tf32x3" are both SGEMM: the latter asks for float32's
    accuracy, and this is cuBLAS's way to it.
    """
    rows: dict[str, Callable[..., None]]
    rows = {"torch_cpu": _TorchCPU(), "cublas": _cublas, "cublas_best": cublaslt.run}
    return rows[name]


class _TorchCPU:
    """torch's own product on a CPU, in float32 or wider."""

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion | None = None
    ) -> None:
        wide = wide_dtype(c.dtype)
        # With out=, which neither autocast nor override_aten takes for its own.
        x = c.new_empty(c.shape, dtype=wide)
        (torch.mm if a.dim() == 2 else torch.bmm)(a.to(wide), b.to(wide), out=x)
        c.copy_(x if fusion is None else finished(x, fusion))

    def bind(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion | None
    ) -> Callable[..., Any]:
        """One call of torch where it does all that is asked, as for a layer in float32."""
        asked = fusion or Fusion()
        alone = asked.alpha == 1 and asked.c is None and asked.scale_a is asked.scale_b is None
        if (
            alone
            and not asked.epilogue
            and a.dim() == 2
            and a.dtype == c.dtype == wide_dtype(c.dtype)
        ):
            return _mm if asked.bias is None else _addmm
        plain = fusion is None  # and no tensor of this call is kept
        constants = replace(asked, c=None, bias=None, scale_a=None, scale_b=None)

        def start(a: Any, b: Any, c: Any, c_in: Any, bias: Any, scale_a: Any, scale_b: Any) -> None:
            tensors = {"c": c_in, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
            self(a, b, c, None if plain else replace(constants, **tensors))

        return start


# With all arguments by name: to gather the rest takes as long as a tenth of a small product.
def _mm(a: Any, b: Any, c: Any, c_in: Any, bias: Any, scale_a: Any, scale_b: Any) -> None:
    torch.mm(a, b, out=c)


def _addmm(a: Any, b: Any, c: Any, c_in: Any, bias: Any, scale_a: Any, scale_b: Any) -> None:
    torch.addmm(bias, a, b, out=c)


def _cublas(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion | None = None
) -> None:
    if fusion is None and a.dtype == torch.bfloat16:  # no setting concerns it
        _product(a, b, c)
        return
    fusion = fusion or Fusion()
    if a.dtype == torch.int8:
        _integers(a, b, c, fusion)
    elif a.dtype in _FLOAT8:
        _float8(a, b, c, fusion)
    else:
        with _mode(fusion.compute):
            _floats(a, b, c, fusion)


def _product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    if c.dtype == a.dtype:
        multiply(a, b, out=c)
    else:
        multiply(a, b, out_dtype=c.dtype, out=c)


def _floats(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion) -> None:
    """float16, bfloat16, float32 and float64: one cuBLAS call where that can do it."""
    alpha, beta, bias = fusion.alpha, fusion.beta, fusion.bias
    simple = c.dtype == a.dtype and fusion.epilogue in ("", "relu")
    if simple and fusion.c is not None and bias is None:
        add = torch.addmm if a.dim() == 2 else torch.baddbmm
        add(fusion.c, a, b, beta=beta, alpha=alpha, out=c)
    elif simple and fusion.c is None and bias is not None and a.dim() == 2:
        torch.addmm(bias, a, b, alpha=alpha, out=c)
    elif simple and fusion.c is None and bias is None and alpha == 1:
        _product(a, b, c)
    else:
        # What follows sees float32 sums: C is rounded once.
        wide = wide_dtype(c.dtype)
        # Summed in float16, cuBLAS gives float16 only.
        summed = torch.float16 if fusion.compute == "float16" else wide
        direct = c.dtype == summed == wide and fusion.c is None
        x = c if direct else torch.empty(c.shape, dtype=summed, device=c.device)
        _product(a, b, x)
        x = x.to(wide)
        result = finished(x, fusion)
        if result is not c:
            c.copy_(result)
        return
    if fusion.epilogue:
        # relu of the rounded number is the rounded relu.
        c.relu_()


def _integers(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion) -> None:
    plain = fusion.alpha == 1 and fusion.c is None and fusion.bias is None
    x = c if plain else torch.empty(c.shape, dtype=torch.int32, device=c.device)
    for a_part, b_part, x_part in _matrices(a, b, x):
        torch._int_mm(a_part, b_part, out=x_part)
    result = FUNCTIONS[fusion.epilogue](x) if plain else finished(x, fusion)
    if result is not c:
        c.copy_(result)


def _float8(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion) -> None:
    """One call where the scales are one element each; otherwise float32 sums, then torch."""
    one = _one(a.device)
    scales = [one if s is None else s for s in (fusion.scale_a, fusion.scale_b)]
    simple = fusion.c is None and fusion.bias is None and not fusion.epilogue and fusion.alpha == 1
    fast = fusion.compute == "fast"
    if simple and all(scale.numel() == 1 for scale in scales):
        for a_part, b_part, c_part in _matrices(a, b, c):
            torch._scaled_mm(
                a_part,
                b_part,
                scales[0],
                scales[1],
                out_dtype=c.dtype,
                use_fast_accum=fast,
                out=c_part,
            )
        return
    x = torch.empty(c.shape, dtype=torch.float32, device=c.device)
    for a_part, b_part, x_part in _matrices(a, b, x):
        torch._scaled_mm(
            a_part, b_part, one, one, out_dtype=torch.float32, use_fast_accum=fast, out=x_part
        )
    c.copy_(finished(x, fusion))


def _matrices(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """One product after the other: torch has no batch of 8-bit ones."""
    if c.dim() == 2:
        yield a, b, c
    else:
        yield from zip(a, b, c, strict=True)


@cache
def _one(device: torch.device) -> torch.Tensor:
    return torch.ones(1, device=device)


_settings = RLock()
"""Held while torch's settings of matmul, which are the process's, are those of one call.

A fork waits for that call's end: its child has the user's settings, and the lock is free there.
"""
forks.hold_across(_settings)


@contextmanager
def _mode(compute: str) -> Iterator[None]:
    """torch's settings of matmul for the length of one call: tf32 products, float16 sums."""
    flags: Any = torch.backends.cuda.matmul
    precision = "high" if compute == "tf32" else "highest"
    with _settings:
        before = torch.get_float32_matmul_precision(), flags.allow_fp16_accumulation
        if before == (precision, compute == "float16"):
            yield
            return
        try:
            torch.set_float32_matmul_precision(precision)
            flags.allow_fp16_accumulation = compute == "float16"
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            flags.allow_fp16_accumulation = before[1]
