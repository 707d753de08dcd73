"""Products that between them need every kernel that calls on a GPU are likely to need.

What is compiled depends on types, layouts, what is fused and on a few facts about sizes, so a set
of shapes that meets those facts in all combinations stands for all shapes. First what is asked for
most: plain products of 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...bench.cases import SUITES, build
from ...bench.drawn import drawn_cases
from ...problem import COMPUTES, ITEMSIZE, LAYOUTS, OUTPUTS, Problem

SEED = 1_000_003
"""Of the drawn shapes; no figure that is shown comes from it."""

DRAWN, OF_OTHERS = 7500, 1000
"""Of 16-bit floats, and of each other type and way of summing it."""

SIXTEEN_BITS = ("bfloat16", "float16")

ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

WEIGHTS = ((1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (4096, 14336), (14336, 4096))
"""(N, K)."""

THIN = tuple(
    size
    for wide in (4096, 4112)
    for K in (4096, 4112, 16384)
    for thin in (5, 16, 24, 32, 48, 64, 128)
    for size in ((thin, wide, K), (wide, thin, K))
)
"""(M, N, K) of few rows or columns, for types other than 16-bit floats: tiles and steps of K that
are whole and that are not, rows of whole vectors and others."""

SMALL = tuple(
    (M, N, K)
    for M, N in ((64, 64), (128, 128), (96, 208), (256, 256), (400, 304))
    for K in (8192, 16400)
)
"""(M, N, K) of a small C and a long K, for the same types."""

FUSED: tuple[dict[str, Any], ...] = (
    {"bias": True}, {"beta": 1.0}, {"bias": True, "epilogue": "gelu"},
    {"bias": True, "epilogue": "relu"}, {"epilogue": "silu"}, {"epilogue": "gelu_tanh"},
    {"bias": True, "epilogue": "gelu_tanh"}, {"beta": 1.0, "bias": True},
)  # fmt: skip


def problems(dtypes: Sequence[str], capability: tuple[int, int]) -> Iterator[Problem]:
    """The products, in the order of need.

    Args:
        dtypes: of A and B; all where there are none.
        capability: of the GPU.
    """
    wanted = tuple(dtypes) or tuple(OUTPUTS)
    half = [dtype for dtype in SIXTEEN_BITS if dtype in wanted]
    if half:
        for suite in SUITES:
            for case in build(suite, dtypes=half, device="cuda"):
                problem = case.product(capability=capability)
                if problem.plain and not case.fused and not case.mma_shape:
                    yield problem
        for case in drawn_cases(SEED, DRAWN, half):
            yield case.product(capability=capability)
    for dtype in wanted:
        for out in OUTPUTS[dtype]:
            for compute in COMPUTES[dtype]:
                if dtype not in SIXTEEN_BITS or compute != COMPUTES[dtype][0] or out != dtype:
                    yield from _sizes(dtype, out, LAYOUTS, capability, [{"compute": compute}])
                if dtype not in SIXTEEN_BITS:
                    for layout in LAYOUTS:
                        for M, N, K in (*THIN, *SMALL):
                            yield Problem.stored(
                                M, N, K, dtype, out, layout, capability=capability, compute=compute
                            )
    for dtype in wanted:
        if ITEMSIZE[dtype] != 8 and "int" not in dtype:
            yield from _sizes(dtype, OUTPUTS[dtype][0], ("nt", "nn"), capability, FUSED)
    for dtype in wanted:
        for compute in COMPUTES[dtype] if dtype not in SIXTEEN_BITS else ():
            for case in drawn_cases(SEED, OF_OTHERS, [dtype], computes=[compute]):
                yield case.product(capability=capability)


def _sizes(
    dtype: str,
    out: str,
    layouts: Iterable[str],
    capability: tuple[int, int],
    asked: Iterable[dict[str, Any]],
) -> Iterator[Problem]:
    for each in asked:
        for layout in layouts:
            for N, K in WEIGHTS:
                for M in ROWS:
                    yield Problem.stored(
                        M, N, K, dtype, out, layout, capability=capability,
                        **each,
                    )  # fmt: skip
