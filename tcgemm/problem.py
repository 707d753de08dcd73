"""What is asked, and how it runs: the types in which a caller and a kernel meet.

All are plain data. A backend reads their attributes and never imports this module, so that a
kernel can live anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from .epilogue import ACTIVATIONS

if TYPE_CHECKING:
    import torch


class Dtype(NamedTuple):
    """What a dtype of A and B is multiplied to."""

    itemsize: int
    """Bytes per element."""
    outputs: tuple[str, ...]
    """dtypes that C may have, the default first."""
    computes: tuple[str, ...]
    """How the products may be summed, the default first."""


DTYPES = {
    "float16": Dtype(2, ("float16", "float32"), ("float32", "float16")),
    "bfloat16": Dtype(2, ("bfloat16", "float32"), ("float32",)),
    "float32": Dtype(4, ("float32",), ("tf32x3", "tf32", "ieee")),
    "float64": Dtype(8, ("float64",), ("float64",)),
    "int8": Dtype(1, ("int32",), ("int32",)),
    "uint8": Dtype(1, ("int32",), ("int32",)),
    "float8_e4m3fn": Dtype(1, ("bfloat16", "float16", "float32"), ("float32", "fast")),
    "float8_e5m2": Dtype(1, ("bfloat16", "float16", "float32"), ("float32", "fast")),
}
"""The dtypes of A and B: the type pairs of the project."""

ITEMSIZE = {"int32": 4, **{name: dtype.itemsize for name, dtype in DTYPES.items()}}
"""Bytes per element, by dtype name; of C as well."""

OUTPUTS = {name: dtype.outputs for name, dtype in DTYPES.items()}
"""dtype of A and B -> dtypes that C may have, the default first."""

COMPUTES = {name: dtype.computes for name, dtype in DTYPES.items()}
"""dtype of A and B -> how the products may be summed, the default first.

float32, float16, float64, int32: the type of the running sum. ieee, tf32, tf32x3: float32 operands
multiplied as they are, rounded to tf32, or as three products of their tf32 halves. fast: the
tensor core's own accumulator for 8-bit floats, never promoted.
"""

INTEGERS = tuple(name for name, dtype in DTYPES.items() if dtype.computes == ("int32",))
"""dtypes of A and B whose products are whole numbers."""

LAYOUTS = ("nn", "nt", "tn", "tt")
"""Storage of A, then of B: t is stored transposed."""

EPILOGUES = tuple(ACTIVATIONS)
"""Functions that may be applied to each element before it is narrowed."""


def type_pair(dtype_in: str, dtype_out: str, compute: str) -> str:
    """The types in words: "bfloat16", "float16 -> float32", "float32 by tf32"."""
    pair = dtype_in if dtype_out == dtype_in else f"{dtype_in} -> {dtype_out}"
    is_default = compute == COMPUTES.get(dtype_in, (compute,))[0]
    return pair if is_default else f"{pair} by {compute}"


@dataclass(frozen=True, slots=True)
class Fusion:
    """All that a call asks for beyond C = A @ B; the tensors of it, and how it is summed."""

    alpha: float = 1.0
    beta: float = 0.0
    """Zero exactly where ``c`` is None, or is ``aux``."""
    c: torch.Tensor | None = None
    """C before: [M, N] or [batch, M, N], dtype of the output, any strides; maybe the output."""
    bias: torch.Tensor | None = None
    """[N], dtype of the output."""
    epilogue: str = ""
    scale_a: torch.Tensor | None = None
    """float32, one element or [M]."""
    scale_b: torch.Tensor | None = None
    """float32, one element or [N]."""
    compute: str = "float32"
    mma_shape: str = ""
    """m x n x k of the WMMA instruction, where the caller names it."""
    aux: str = ""
    """What ``c`` is, if not C before: Z, the pre-activation, [M, N] of one product. "write": Z =
    alpha A B + bias is stored there as well as its epilogue in C. "read": C = alpha A B times the
    epilogue's derivative at Z. beta is 0 then. "sums": [M], the sums of A's rows, which are stored
    there besides a C = A B with which nothing else is done."""


_OF_AUX = {"write": "preactivation", "read": "derivative", "sums": "row_sums"}


@dataclass(frozen=True, slots=True)
class Problem:
    """C[M, N] = epilogue(alpha A[M, K] @ B[K, N] + beta C + bias), ``batch`` times.

    Everything a kernel may base a decision on. Strides are in elements. ``a_strides`` is (along M,
    along K), ``b_strides`` (along K, along N), ``c_strides`` (along M, along N). Alignments are in
    bytes: the largest power of two, at most 256, that divides the operand's address.
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
    compute: str = ""
    """How the products are summed (see COMPUTES); by default the dtype's first."""
    batch: int = 1
    batch_strides: tuple[int, int, int] = (0, 0, 0)
    """From one product of the batch to the next: of A, B and C."""
    alpha: float = 1.0
    beta: float = 0.0
    c_in_strides: tuple[int, int] | None = None
    """Strides of the C that is read, or of ``aux``; None where there is neither."""
    bias: bool = False
    epilogue: str = ""
    scales: str = ""
    """Scales of 8-bit operands: none, "tensor" (one each) or "row" (one per row of A, column of B,
    or both)."""
    mma_shape: str = ""
    aux: str = ""
    """As in Fusion."""
    fused: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """What is asked beyond one product C = A @ B, in the words of a row's ``fuses``."""
    plain: bool = field(init=False, repr=False, compare=False)
    """One or many products of 16-bit operands summed in float32, and nothing more."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A choice asks for these some hundred times.
        compute = self.compute or COMPUTES.get(self.dtype_in, ("",))[0]
        fused = _fused(
            self.batch > 1, self.scales, self.alpha != 1, self.beta != 0, self.bias, self.epilogue,
            self.aux,
        )  # fmt: skip
        plain = self.dtype_in in ("float16", "bfloat16") and compute == "float32"
        plain = plain and not self.mma_shape and fused in ((), ("batch",))
        for name, value in (("compute", compute), ("fused", fused), ("plain", plain)):
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash(_given(self)))
            return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Problem, _given(self)  # another process hashes names to other numbers

    @classmethod
    def stored(
        cls, M: int, N: int, K: int, dtype_in: str, dtype_out: str, layout: str = "nn", **asked: Any
    ) -> Problem:
        """The problem of contiguous operands stored as ``layout`` says; C is row-major."""
        return cls(
            M,
            N,
            K,
            dtype_in,
            dtype_out,
            a_strides=(K, 1) if layout[0] == "n" else (1, M),
            b_strides=(N, 1) if layout[1] == "n" else (1, K),
            c_strides=(N, 1),
            batch_strides=(M * K, K * N, M * N) if asked.get("batch", 1) > 1 else (0, 0, 0),
            c_in_strides=(N, 1) if asked.get("beta") else None,
            **asked,
        )

    def transposed(self) -> Problem:
        """C' = B' A': what is called M here is the caller's N. What is fused stays as it is."""
        return _transposed(self)

    @property
    def layout(self) -> str:
        """Storage of A, then of B: n is row-major, t is stored transposed, s is neither."""
        return _letter(self.a_strides, (self.M, self.K)) + _letter(self.b_strides, (self.K, self.N))

    @property
    def flop(self) -> int:
        """Operations counted as 2 M N K for each product of the batch."""
        return 2 * self.M * self.N * self.K * self.batch

    @property
    def bytes(self) -> int:
        """Least traffic: A, B (C, where beta is not 0) read once, C written once; aux besides."""
        operands = (self.M + self.N) * self.K * ITEMSIZE[self.dtype_in]
        c = self.M * self.N * ITEMSIZE[self.dtype_out]
        if self.aux == "sums":
            return operands + c + self.M * ITEMSIZE[self.dtype_out]
        return self.batch * (operands + c * (2 if self.beta or self.aux else 1))

    def __str__(self) -> str:
        pair = type_pair(self.dtype_in, self.dtype_out, self.compute)
        batch = f"{self.batch} x " if self.batch > 1 else ""
        named = {"alpha": f"alpha={self.alpha:g}", "beta": f"beta={self.beta:g}"}
        more = [named.get(name, name) for name in self.fused if name != "batch"]
        more += [f"mma_shape={self.mma_shape}"] if self.mma_shape else []
        extra = f" with {', '.join(more)}" if more else ""
        return f"{batch}{self.M}x{self.N}x{self.K} {pair} {self.layout}{extra} on {self.device}"


_given = attrgetter(*(each.name for each in fields(Problem) if each.init))
"""All that a problem was made of, in the order of its arguments."""


@lru_cache(maxsize=1024)
def _transposed(problem: Problem) -> Problem:
    """A choice asks for it some ten times."""
    a, b, c = problem.batch_strides
    return replace(
        problem,
        M=problem.N,
        N=problem.M,
        a_strides=problem.b_strides[::-1],
        b_strides=problem.a_strides[::-1],
        c_strides=problem.c_strides[::-1],
        a_alignment=problem.b_alignment,
        b_alignment=problem.a_alignment,
        batch_strides=(b, a, c),
    )


@cache
def _fused(
    batch: bool, scales: str, alpha: bool, beta: bool, bias: bool, epilogue: str, aux: str
) -> tuple[str, ...]:
    asked = {
        "batch": batch,
        "scales": scales,
        "alpha": alpha,
        "beta": beta,
        "bias": bias,
        epilogue: epilogue,
        _OF_AUX.get(aux, ""): aux,
    }
    return tuple(name for name, is_asked in asked.items() if is_asked)


def _letter(strides: tuple[int, int], shape: tuple[int, int]) -> str:
    if strides[1] == 1 or shape[1] == 1:
        return "n"
    return "t" if strides[0] == 1 or shape[0] == 1 else "s"


def settings(config: Mapping[str, int | str]) -> str:
    """The values of a configuration: ``BLOCK_M=128 BLOCK_N=256``."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def stage_bytes(plan: Mapping[str, Any], problem: Problem) -> int | None:
    """Bytes of A and B in all stages of one block, without padding; None if the plan is silent."""
    if not {"BLOCK_M", "BLOCK_N", "BLOCK_K"} <= plan.keys():
        return None
    step = (plan["BLOCK_M"] + plan["BLOCK_N"]) * plan["BLOCK_K"] * ITEMSIZE[problem.dtype_in]
    return int(step * plan.get("NUM_STAGES", 1))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a problem runs: the kernel, and the values its row chose (tile, stages, warps, ...)."""

    backend: str
    kernel: str
    config: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def settings(self) -> str:
        """The configuration alone."""
        return settings(self.config)

    def __str__(self) -> str:
        return f"{self.backend}/{self.kernel} {self.settings}".rstrip()
