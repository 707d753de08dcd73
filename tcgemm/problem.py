"""What is asked, and how it runs: the two types in which a caller and a kernel meet.

Both are plain data. A backend reads their attributes and never imports this module, so that a
kernel can live anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes per element, by dtype name."""


@dataclass(frozen=True, slots=True)
class Problem:
    """C[M, N] = A[M, K] @ B[K, N]: everything a kernel may base a decision on.

    Strides are in elements. ``a_strides`` is (along M, along K), ``b_strides`` (along K, along N),
    ``c_strides`` (along M, along N). Alignments are in bytes: the largest power of two, at most
    256, that divides the operand's address.
    """

    M: int
    N: int
    K: int
    dtype_in: str
    dtype_out: str
    a_strides: tuple[int, int]
    b_strides: tuple[int, int]
    c_strides: tuple[int, int]
    a_alignment: int = 256
    b_alignment: int = 256
    c_alignment: int = 256
    device: str = "cuda"
    capability: tuple[int, int] | None = None
    """Compute capability of the GPU, e.g. (9, 0); None on the CPU."""
    deterministic: bool = False
    """Whether the same inputs have to give the same bits."""

    @property
    def layout(self) -> str:
        """Storage of A, then of B: n is row-major, t is stored transposed, s is neither."""
        return _letter(self.a_strides, (self.M, self.K)) + _letter(self.b_strides, (self.K, self.N))

    @property
    def flop(self) -> int:
        """Operations counted as 2 M N K."""
        return 2 * self.M * self.N * self.K

    @property
    def bytes(self) -> int:
        """Least traffic: A, B read once and C written once."""
        return (self.M + self.N) * self.K * ITEMSIZE[self.dtype_in] + self.M * self.N * ITEMSIZE[
            self.dtype_out
        ]

    def __str__(self) -> str:
        pair = f"{self.dtype_in} -> {self.dtype_out}"
        return f"{self.M}x{self.N}x{self.K} {pair} {self.layout} on {self.device}"


def _letter(strides: tuple[int, int], shape: tuple[int, int]) -> str:
    if strides[1] == 1 or shape[1] == 1:
        return "n"
    return "t" if strides[0] == 1 or shape[0] == 1 else "s"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a problem runs: the kernel, and the values its row chose (tile, stages, warps, ...)."""

    backend: str
    kernel: str
    config: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def settings(self) -> str:
        """The configuration alone, e.g. ``BLOCK_M=128 BLOCK_N=256``."""
        return " ".join(f"{key}={value}" for key, value in self.config.items())

    def __str__(self) -> str:
        return f"{self.backend}/{self.kernel} {self.settings}".rstrip()
