"""The CUDA driver, by ctypes: load machine code, encode tensor maps, start kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from .arguments import TensorMap
from .launchers import Launch

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6  # CU_LAUNCH_ATTRIBUTE_...
_MAP_TYPES = {"float16": 6, "float32": 7, "bfloat16": 9}  # CU_TENSOR_MAP_DATA_TYPE_...
_SWIZZLE_128B, _PROMOTION_128B = 3, 2
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_STATIC_LIMIT = 40 * 1024
"""Bytes of dynamic shared memory up to which any kernel may take them, as allow_shared has it."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int32), ("pad", ctypes.c_int32), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    )


@cache
def _cuda() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(
            f"the CUDA driver's library does not load ({error}): install the NVIDIA driver"
        ) from None


def _check(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        _cuda().cuGetErrorString(code, ctypes.byref(text))
        said = (text.value or b"an error without a name").decode()
        raise RuntimeError(f"{what} failed: CUDA error {code}, {said}")


def load(cubin: bytes, symbol: str) -> Any:
    """The kernel of that name, in the current context; kept as long as the process."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(_cuda().cuModuleLoadData(ctypes.byref(module), cubin), f"loading {symbol}")
    _check(
        _cuda().cuModuleGetFunction(ctypes.byref(function), module, symbol.encode()),
        f"finding {symbol}",
    )
    return function


def allow_shared(function: Any, shared_bytes: int) -> None:
    """Let the kernel take that much dynamic shared memory."""
    if shared_bytes > _STATIC_LIMIT:
        _check(
            _cuda().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared_bytes),
            f"asking for {shared_bytes} bytes of shared memory",
        )


def encoded(tensor_map: TensorMap) -> Any:
    """The CUtensorMap, in memory of its own, aligned as the driver asks."""
    memory = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
    start = -ctypes.addressof(memory) % _MAP_ALIGNMENT
    found = (ctypes.c_uint64 * (_MAP_BYTES // 8)).from_buffer(memory, start)
    _check(
        _cuda().cuTensorMapEncodeTiled(
            ctypes.byref(found), _MAP_TYPES[tensor_map.dtype], 2, ctypes.c_void_p(tensor_map.data),
            (ctypes.c_uint64 * 2)(tensor_map.inner, tensor_map.outer),
            (ctypes.c_uint64 * 1)(tensor_map.pitch_bytes),
            (ctypes.c_uint32 * 2)(tensor_map.box_inner, tensor_map.box_outer),
            (ctypes.c_uint32 * 2)(1, 1),
            0, _SWIZZLE_128B, _PROMOTION_128B, 0,
        ),
        "encoding a tensor map",
    )  # fmt: skip
    return found


def start(function: Any, launch: Launch, stream: int, early: bool) -> None:
    """Start the kernel on a stream of the current context.

    Args:
        early: whether a launch of clusters may begin while the kernel before it still runs.
    """
    arguments = [encoded(x) if isinstance(x, TensorMap) else x for x in launch.arguments]
    attributes = _attributes(launch.cluster, early)
    config = _Config(
        (launch.grid, 1, 1), (*launch.block, 1), launch.shared_bytes, stream,
        (_Attribute * len(attributes))(*attributes), len(attributes),
    )  # fmt: skip
    addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    _check(
        _cuda().cuLaunchKernelEx(ctypes.byref(config), function, addresses, None),
        f"starting {launch.grid} blocks of {launch.block[0]} x {launch.block[1]} threads",
    )


def _attributes(cluster: int, early: bool) -> Sequence[_Attribute]:
    if not cluster:
        return ()
    return (
        _Attribute(_CLUSTER_DIMENSION, 0, (ctypes.c_uint32 * 16)(cluster, 1, 1)),
        _Attribute(_PROGRAMMATIC_SERIALIZATION, 0, (ctypes.c_uint32 * 16)(int(early))),
    )
