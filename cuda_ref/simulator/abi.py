"""What Python and the simulator's C++ pass each other: the structures of src/internal.hpp."""

from __future__ import annotations

import ctypes
from typing import Any

from ..planning.launch import FIELDS

MAX_FINDINGS = 24
MAX_MMA_KINDS = 12
MAX_SHARED = 227 * 1024  # of a block
MAX_STATIC_SHARED = 48 * 1024  # of a kernel; dynamic shared memory may be more
MAX_GUARDS = 62
MAX_FRAMES = 12
NUM_OPERANDS = 7


class Operand(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("col_stride", ctypes.c_int64),
        ("batches", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("item_bytes", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class Request(ctypes.Structure):
    _fields_ = (
        ("operands", Operand * NUM_OPERANDS),
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("activation", ctypes.c_int32),
        ("aux", ctypes.c_int32),
        ("compute", ctypes.c_int32),
        ("mma_m", ctypes.c_int32),
        ("mma_n", ctypes.c_int32),
        ("dtype_in", ctypes.c_int32),
        ("dtype_out", ctypes.c_int32),
        ("order", ctypes.c_int32),
        ("check", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("workers", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("timeout_s", ctypes.c_double),
        ("sms", ctypes.c_int32),
        ("threads_per_sm", ctypes.c_int32),
        ("shared_per_sm", ctypes.c_int64),
        ("l2_bytes", ctypes.c_int64),
        ("shared_static", ctypes.c_int64),
        ("writers", ctypes.c_void_p),
        ("guard_count", ctypes.c_int32),
        ("writes_bias", ctypes.c_int32),
        ("writes_c_in", ctypes.c_int32),
        ("guards", ctypes.c_int32 * MAX_GUARDS),
        ("plan", ctypes.c_int32 * len(FIELDS)),
        ("timeline_path", ctypes.c_char_p),
        ("timeline_latency", ctypes.c_int64),
        ("timeline_blocks", ctypes.c_int64),
        ("environment", ctypes.c_char_p),
        ("environment_bytes", ctypes.c_int64),
    )


class Position(ctypes.Structure):
    _fields_ = (("block", ctypes.c_uint32 * 3), ("thread", ctypes.c_uint32 * 3))


class Site(ctypes.Structure):
    _fields_ = (("file", ctypes.c_char_p), ("line", ctypes.c_int32))


class Finding(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("operand", ctypes.c_int32),
        ("write", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("signal", ctypes.c_int32),
        ("has_other", ctypes.c_int32),
        ("other_write", ctypes.c_int32),
        ("other_sends", ctypes.c_int32),
        ("at", Position),
        ("other", Position),
        ("has_owner", ctypes.c_uint32),
        ("owner", ctypes.c_uint32 * 3),
        ("row", ctypes.c_int64),
        ("col", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("pc", ctypes.c_uint64),
        ("other_pc", ctypes.c_uint64),
        ("site", Site),
        ("other_site", Site),
        ("frames", ctypes.c_uint64 * MAX_FRAMES),
        ("times", ctypes.c_int64),
    )


class Counters(ctypes.Structure):
    _fields_ = (
        ("global_requests", ctypes.c_uint64 * 2),
        ("global_sectors", ctypes.c_uint64 * 2),
        ("global_bytes", ctypes.c_uint64 * 2),
        ("shared_requests", ctypes.c_uint64 * 2),
        ("shared_wavefronts", ctypes.c_uint64 * 2),
        ("shared_ideal", ctypes.c_uint64 * 2),
        ("shared_bytes", ctypes.c_uint64 * 2),
        ("operand_bytes", ctypes.c_uint64 * NUM_OPERANDS),
        ("operand_sectors", ctypes.c_uint64 * NUM_OPERANDS),
        ("barriers", ctypes.c_uint64),
        ("warp_barriers", ctypes.c_uint64),
        ("shuffles", ctypes.c_uint64),
        ("async_copies", ctypes.c_uint64),
        ("atomics", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("threads", ctypes.c_uint64),
    )


class Mma(ctypes.Structure):
    _fields_ = (
        ("m", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("element_in", ctypes.c_int32),
        ("element_out", ctypes.c_int32),
        ("instruction", ctypes.c_int32),
        ("count", ctypes.c_uint64),
    )


class L2(ctypes.Structure):
    _fields_ = (
        ("accesses", ctypes.c_uint64),
        ("hits", ctypes.c_uint64),
        ("dram_read", ctypes.c_uint64),
        ("dram_written", ctypes.c_uint64),
        ("blocks_per_sm", ctypes.c_int64),
        ("waves", ctypes.c_int64),
        ("modelled", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_static", ctypes.c_uint64),
        ("shared_dynamic", ctypes.c_uint64),
        ("kernel_pc", ctypes.c_uint64),
        ("cluster", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class Result(ctypes.Structure):
    _fields_ = (
        ("launch_error", ctypes.c_int32),
        ("finding_count", ctypes.c_int32),
        ("findings", Finding * MAX_FINDINGS),
        ("counters", Counters),
        ("mma", Mma * MAX_MMA_KINDS),
        ("l2", L2),
        ("launch", Launch),
        ("refused", Launch),
        ("image_base", ctypes.c_uint64),
    )


def matrix(tensor: Any) -> Operand:
    """A matrix, or a batch of them; empty for None."""
    if tensor is None:
        return Operand()
    batches, batch_stride = (tensor.shape[0], tensor.stride(0)) if tensor.dim() == 3 else (1, 0)
    return Operand(
        tensor.data_ptr(),
        *tensor.shape[-2:],
        *tensor.stride()[-2:],
        batches,
        batch_stride,
        tensor.element_size(),
    )


def vector(tensor: Any, dimension: int) -> Operand:
    """A bias or scale along the rows (0) or columns (1) of C; empty for None."""
    if tensor is None:
        return Operand()
    shape, strides = [1, 1], [0, 0]
    if tensor.numel() > 1:
        shape[dimension], strides[dimension] = tensor.numel(), tensor.stride(-1)
    return Operand(tensor.data_ptr(), *shape, *strides, 1, 0, tensor.element_size())
