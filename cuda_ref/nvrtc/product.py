"""A product as launchers in Python see it: matrices, types, and what follows the product."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from .arguments import (
    ITEM,
    PANEL,
    Gemm,
    Matrix,
    epilogue_of,
    fused_gemm,
    plain_gemm,
    tensor_map,
    transpose_fused,
)

CPP = {
    "float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double",
    "int8": "signed char", "uint8": "unsigned char", "int32": "int32_t",
    "float8_e4m3fn": "__nv_fp8_e4m3", "float8_e5m2": "__nv_fp8_e5m2",
}  # fmt: skip
ITEMS = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "uint8": 1, "int32": 4,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip

_ENUMERATORS = ("f32", "fast", "f16", "s32", "f64", "ieee", "tf32", "tf32x3")
"""Of tcgemm::Compute in csrc/host/gemm.cuh, in its order."""


@dataclass(frozen=True)
class Product:
    """C = A @ B. C lies by rows, or any other way but by columns."""

    a: Matrix
    b: Matrix
    c: Matrix
    dtype_in: str
    dtype_out: str
    asked: Gemm | None = None
    """What follows the product; of its a, b and c nothing is read. None: nothing follows."""
    batch: int = 1

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, fusion: Any = None, *follows: Any) -> Product:
        """Of matrices or batches of them, as with_rows_of_c in csrc/host/select.cuh has it.

        ``follows``: C_in, bias and the scales of A and B, each a tensor or None, of a ``fusion``.
        """
        A, B, C = map(Matrix.of, (a, b, c))
        names = [str(tensor.dtype).removeprefix("torch.") for tensor in (a, c)]
        given = follows or (None,) * 4
        if fusion is not None and not follows:
            given = fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b
        asked = None if fusion is None else fused_gemm(a, b, c, fusion, *given)
        if C.column_major:
            A, B, C = B.transposed(), A.transposed(), C.transposed()
            if asked is not None:
                transpose_fused(asked)
        return cls(A, B, C, *names, asked, c.shape[0] if c.dim() == 3 else 1)

    @property
    def fused(self) -> bool:
        """Whether a kernel has more to do than to add products, as is_plain in csrc/host."""
        asked = self.asked
        return asked is not None and bool(
            asked.alpha != 1 or asked.c_in.data or asked.activation
            or asked.bias.data or asked.scale_a.data or asked.scale_b.data
        )  # fmt: skip

    @property
    def compute(self) -> str:
        """How products are summed, as an enumerator of tcgemm::Compute."""
        if self.dtype_in in ("int8", "uint8"):
            return "s32"
        if self.dtype_in == "float64":
            return "f64"
        return _ENUMERATORS[self.asked.compute if self.asked is not None else 0]

    @property
    def accumulator(self) -> str:
        """The type of the accumulators that the epilogue works on."""
        return {"float64": "double", "int8": "int32_t", "uint8": "int32_t"}.get(
            self.dtype_in, "float"
        )

    def epilogue(self) -> ctypes.Structure:
        """What a kernel with an epilogue is given."""
        asked = self.asked
        if asked is None:
            asked = plain_gemm(self.a, self.b, self.c, self.dtype_in, self.dtype_out)
        return epilogue_of(asked, self.accumulator, ITEMS[self.dtype_out])

    @property
    def types(self) -> str:
        return f"{CPP[self.dtype_in]}, {CPP[self.dtype_out]}"

    @property
    def layouts(self) -> str:
        """Whether A and B are stored transposed, as C++ has it."""
        return ", ".join(str(each.column_major).lower() for each in (self.a, self.b))

    @property
    def operand_maps(self) -> tuple[tuple[str, bool], tuple[str, bool]]:
        """(the major in which TMA reads it, whether its rows are K), of A and of B."""
        return major_of(self.a, False, self.dtype_in), major_of(self.b, True, self.dtype_in)


def major_of(matrix: Matrix, rows_are_k: bool, dtype: str) -> tuple[str, bool]:
    """As operand_map in csrc/sm90/tensor_map.cuh: K where TMA can read it so, else MN."""
    k_major = tensor_map(matrix, rows_are_k, dtype, ITEM, (PANEL, PANEL)) is not None
    return ("K" if k_major else "MN"), rows_are_k
