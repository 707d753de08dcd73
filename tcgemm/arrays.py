"""Arrays of others: numpy's and any that speaks DLPack go in, and the same kind comes out."""

from __future__ import annotations

import ctypes
import re
import sys
from typing import Any

import torch

from .errors import OperandTypeError

_NAMES = {0: "A", 1: "B", 2: "C", 5: "bias", 7: "out", 10: "scale_a", 11: "scale_b"}
"""Where launch_cache.key_of's order has tensors, and their names."""


def is_array(given: Any) -> bool:
    """Whether it is an array that is no tensor of torch."""
    return hasattr(given, "__dlpack__") and not isinstance(given, torch.Tensor)


def as_tensors(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of ``gemm`` with tensors in the place of arrays, on the same memory.

    A numpy array of negative strides or of another byte order is copied, as torch has neither.

    Raises:
        OperandTypeError: arrays beside tensors, or one that torch cannot take.
    """
    changed = list(arguments)
    for index, name in _NAMES.items():
        given = arguments[index]
        if isinstance(given, torch.Tensor):
            raise OperandTypeError(
                f"A is a {_kind(arguments[0])} and {name} a torch.Tensor: pass arrays of one kind, "
                "e.g. torch.from_dlpack(A)"
            )
        if is_array(given):
            changed[index] = _as_tensor(name, given)
    return tuple(changed)


def in_words_of_arrays(error: OperandTypeError) -> OperandTypeError:
    """The error with what arrays have in place of a tensor's ``to``."""
    text = re.sub(r"\.to\(torch\.(\w+)\)", r".astype('\1')", str(error))
    return type(error)(text.replace(".to()", ".astype()").replace(".float()", ".astype('float32')"))


def as_given(result: torch.Tensor, given: Any) -> Any:
    """The result as an array of the kind of ``given``, on the result's memory.

    Raises:
        OperandTypeError: that kind has no such dtype, or no from_dlpack.
    """
    try:
        if _is_numpy(given):
            return result.numpy()
        space = sys.modules[type(given).__module__.partition(".")[0]]
        if not hasattr(space, "from_dlpack"):
            space = given.__array_namespace__()
        return space.from_dlpack(result)
    except (TypeError, AttributeError, BufferError, RuntimeError) as error:
        raise OperandTypeError(
            f"the result is {str(result.dtype).removeprefix('torch.')} and cannot become a "
            f"{_kind(given)}: pass torch.from_dlpack(A), or another out_dtype ({error})"
        ) from error


def _as_tensor(name: str, given: Any) -> torch.Tensor:
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(given, masked.MaskedArray):
        raise OperandTypeError(
            f"{name} is a masked array, of which a kernel sees the values and not the mask: pass "
            ".filled(0), or .data"
        )
    if name == "out":
        _check_written(given)
    try:
        if not _is_numpy(given):
            return torch.from_dlpack(given)
        plain = given if given.dtype.isnative else given.astype(given.dtype.newbyteorder("="))
        size = plain.itemsize
        if any(step < 0 or step % size for step in plain.strides):
            plain = plain.copy()
        if not plain.flags.writeable:
            plain = _Unmarked(plain).array()
        return torch.from_numpy(plain)
    except (TypeError, BufferError, RuntimeError, ValueError) as error:
        raise OperandTypeError(
            f"{name} is a {_kind(given)} of dtype {getattr(given, 'dtype', 'unknown')} that torch "
            f"cannot take: convert it, e.g. to float32 ({error})"
        ) from error


class _Unmarked:
    """The memory of a read-only array of numpy, which is read alone, without that mark.

    torch warns of the mark; what filters warnings is the process's, and other threads' too.
    """

    def __init__(self, given: Any) -> None:
        start = given.__array_interface__["data"][0]
        self.__array_interface__ = {**given.__array_interface__, "data": (start, False)}
        self._given = given

    def array(self) -> Any:
        """An array of numpy that keeps the given one alive."""
        return sys.modules["numpy"].asarray(self)


def _check_written(out: Any) -> None:
    """Raise OperandTypeError for memory that nobody may write, or that torch cannot."""
    if _is_numpy(out):
        read_only = not out.flags.writeable
        if not out.dtype.isnative or any(step < 0 or step % out.itemsize for step in out.strides):
            raise OperandTypeError(
                f"out has strides {out.strides} and dtype {out.dtype.str}, and torch writes no "
                "negative strides and no other byte order: pass a new array, and copy from it"
            )
    else:
        read_only = _marked_read_only(out)
    if read_only:
        raise OperandTypeError(
            f"out is a {_kind(out)} that is read-only: pass an array that may be written, e.g. a "
            "copy"
        )


_FLAGS_AT, _READ_ONLY = 24, 1
"""Of DLPack's DLManagedTensorVersioned: bytes before its flags, and one of these."""


def _marked_read_only(given: Any) -> bool:
    """Whether DLPack says that nobody may write the array; torch does not look."""
    try:
        capsule = given.__dlpack__(max_version=(1, 0))
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        start = address(capsule, b"dltensor_versioned")
    except (TypeError, ValueError):  # of an older version of DLPack, which knows no flags
        return False
    except BufferError:
        return True
    return bool(ctypes.c_uint64.from_address(start + _FLAGS_AT).value & _READ_ONLY)


def _is_numpy(given: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(given, numpy.ndarray)


def _kind(given: Any) -> str:
    kind = type(given)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
