"""What warp_specialized is given: its constants, and descriptors of its operands."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .storage import UNIT, letter, why_not_tma

ROUNDS = any(field.name == "round_f32_to_tf32" for field in fields(TensorDescriptor))
"""Whether this Triton's descriptors can be told to round float32 to tf32 on the way."""


TFLOAT32 = 11
"""CU_TENSOR_MAP_DATA_TYPE_TFLOAT32."""


@dataclass(frozen=True)
class How:
    """Constants of a kernel."""

    GROUP_M: int
    A_TRANSPOSED: bool
    B_TRANSPOSED: bool
    TERMS: int
    """2: A and B are float32 as hi and lo, each in tf32."""
    BATCHED: bool
    PROMOTE: bool
    """The sum of each step of K is added outside of the tensor core."""
    FUSED: bool
    STAGED: bool
    """C_in comes by TMA."""
    ROW_SCALES_A: bool
    ROW_SCALES_B: bool
    BIAS_ROWS: bool
    ACTIVATION: str


FINISHING = ("ROW_SCALES_A", "ROW_SCALES_B", "BIAS_ROWS", "ACTIVATION")
"""The constants of ``How`` that ``epilogue.operands`` gives."""


def finishes(fusion: Any) -> bool:
    """Whether anything happens to the accumulator beside narrowing."""
    if fusion is None:
        return False
    tensors = (fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
    return bool(
        fusion.alpha != 1 or fusion.epilogue or any(tensor is not None for tensor in tensors)
    )


def stored(x: torch.Tensor) -> str:
    """Storage of each matrix of x: n by rows, t by columns."""
    return letter(x.shape[-2:], x.stride()[-2:])


def reachable(c_in: torch.Tensor) -> bool:
    """Whether TMA brings blocks of C_in, rows contiguous; a number of others are read in place."""
    address, strides = c_in.data_ptr(), c_in.stride()
    # An address of 0 is that of a tensor without memory, which is compiled for.
    alignment = address & -address or UNIT
    whole = c_in.dim() == 2 or strides[0] * c_in.itemsize % UNIT == 0
    shape = tuple(c_in.shape[-2:])
    reason = why_not_tma("C_in", shape, strides[-2:], alignment, c_in.itemsize)
    return whole and reason is None and stored(c_in) == "n"


def swizzled(base: Any, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    """A descriptor whose blocks lie in shared memory as wgmma reads them."""
    bits = base.dtype.itemsize * 8
    width = min(block[-1] * bits // 8, 128)
    layout = gl.NVMMASharedLayout(width, bits, rank=len(block))
    return TensorDescriptor(base, shape, strides, block, layout)


def rounding(base: Any, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    """The same, and float32 is rounded to tf32 by the TMA unit, to nearest even."""
    made = swizzled(base, shape, strides, block)
    if ROUNDS:
        made.round_f32_to_tf32 = True
    return made


class Rounding:
    """A kernel whose first two descriptors, of A and B, round float32 to tf32.

    Triton 3.6 writes the type of a descriptor's elements into the compiled kernel's metadata and
    reads it when it encodes one; float32 becomes tf32 there before the first launch.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.arg_names = kernel.arg_names

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*args: Any, **constants: Any) -> Any:
            compiled = self.kernel.warmup(*args, grid=grid, **constants)
            for described in compiled.metadata.tensordesc_meta[:2]:
                described["elem_type"] = TFLOAT32
            return self.kernel[grid](*args, **constants)

        return launch
