"""Descriptors of a Gluon kernel: what TMA does to a block on its way, and how it lies in shared
memory."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROUNDS = any(field.name == "round_f32_to_tf32" for field in fields(TensorDescriptor))
"""Whether this Triton's descriptors can be told to round float32 to tf32 on the way."""

TFLOAT32 = 11
"""CU_TENSOR_MAP_DATA_TYPE_TFLOAT32."""


class Pairs(NamedTuple):
    """What a descriptor of pairs of int32 reads of a tensor."""

    address: int
    dtype: torch.dtype = torch.int32

    def data_ptr(self) -> int:
        return self.address


def swizzled(base: Any, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    """A descriptor whose blocks lie in shared memory as wgmma reads them."""
    bits = base.dtype.itemsize * 8
    width = min(block[-1] * bits // 8, 128)
    layout = gl.NVMMASharedLayout(width, bits, rank=len(block))
    return TensorDescriptor(base, shape, strides, block, layout)


def of_float64(
    base: Any, shape: list[int], strides: list[int], block: list[int]
) -> TensorDescriptor:
    """The same of float64, which Triton's descriptors do not have: as pairs of int32."""
    pairs = [*shape[:-1], 2 * shape[-1]], [*(2 * step for step in strides[:-1]), 1]
    return swizzled(Pairs(base.data_ptr()), *pairs, [*block[:-1], 2 * block[-1]])


def in_eights(
    base: Any, shape: list[int], strides: list[int], block: list[int]
) -> TensorDescriptor:
    """The same, in rows of 8 elements in shared memory (device/by_mma_sync.py)."""
    made = of_float64(base, shape, strides, block)
    layout = gl.NVMMASharedLayout(64, 32, rank=len(block))
    return TensorDescriptor(made.base, made.shape, made.strides, made.block_shape, layout)


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


def that_rounds(kernel: Any) -> Any:
    """The kernel where A and B are float32 that has yet to be rounded to tf32."""
    return kernel if ROUNDS else Rounding(kernel)
