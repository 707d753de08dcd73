"""Which tensors and numbers a kernel takes: those that it can read, and that nobody tracks.

A kernel gets an address. A tensor without memory (fake, functional, wrapped by a subclass or by a
transform of torch.func) has none, and what torch records of an operation (gradients, tangents,
traces) would be lost: such a call goes through the operators of ``ops``, and one that comes here
all the same is refused in a sentence.

What tells of all that in each call are functions in C, some of them torch's private ones: one more
of Python around them would be seen in a small product's time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import has_torch_function, has_torch_function_unary

from .errors import OperandError, OperandTypeError, UnsupportedError

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
"""Types of tensors that hold their elements themselves, if they have memory."""


def _private(path: str) -> Any:
    found: Any = torch._C
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise UnsupportedError(
            f"torch {torch.__version__} has no torch._C.{path}, which tells tcgemm who else has to "
            "see a product: install a newer tcgemm, or torch 2.11 to 2.13"
        )
    return found


grad_mode = torch.is_grad_enabled
"""Whether operations on tensors that require gradients are recorded."""
traces = torch.compiler.is_dynamo_compiling
"""Whether torch.compile traces this very call."""
deterministic = _private("_get_deterministic_algorithms")
modes = _private("_len_torch_dispatch_stack")
"""How many dispatch modes are active."""
transform = _private("_functorch.peek_interpreter_stack")
"""The innermost transform of torch.func, or None."""
jit_trace = _private("_get_tracing_state")
"""The trace of torch.jit.trace, or None."""

_OWN = torch.Tensor.__torch_dispatch__
"""What ``__torch_dispatch__`` is of a tensor that holds its elements itself."""


# What compiled programs allocate, view and compare with: past the dispatcher, in half the time.
_dynamos: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


def allocator(of_cpu: bool) -> Callable[..., torch.Tensor]:
    """``empty(shape, strides, dtype)``: a new tensor on the CPU, or else on the current GPU.

    Shape and strides are tuples, of no subclass.
    """
    kind = "cpu" if of_cpu else "cuda"
    return getattr(_dynamos, f"_empty_strided_{kind}", None) or partial(_empty, kind)


def _empty(device: str, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _laid(t: Any, shape: Any, strides: Any, further: int) -> torch.Tensor:
    laid: torch.Tensor = t.detach().as_strided(shape, strides, t.storage_offset() + further)
    return laid


laid: Callable[..., torch.Tensor] = getattr(_dynamos, "_reinterpret_tensor", _laid)
"""``laid(t, shape, strides, further)``: the memory of ``t``, from ``further`` elements past its
first, with another shape; tuples, of no subclass. It has no derivative."""


def guard(*tensors: torch.Tensor) -> Callable[..., bool]:
    """A function of as many tensors: whether they are like these, and torch's state like now.

    It compares types, shapes, strides, dtypes, devices, needs of gradients, negated views,
    transforms, traces and autocast. Dispatch modes it may pass over, and addresses it does not
    know. It is what Dynamo asks before it runs a graph again; never true where torch lacks it.
    """
    try:
        held = _dynamos.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    except (AttributeError, TypeError):
        return _never
    alike: Callable[..., bool] = held.check
    return alike


def _never(*tensors: Any) -> bool:
    return False


def recorders(given: Any) -> tuple[Any, ...]:
    """What stands for a tensor or a number and is none, and records calls: torch.fx's proxies.

    Args:
        given: a tuple of any objects; of plain ones it takes one call to tell.
    """
    if not has_torch_function(given):  # under a mode of torch's it has, whatever is given
        return ()
    return tuple(
        each for each in given
        if hasattr(type(each), "__torch_function__") and has_torch_function_unary(each)
        and not isinstance(each, torch.Tensor)
    )  # fmt: skip


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """An operand that a kernel can read: strided, in memory, and no derivative is lost.

    Args:
        name: the operand in words, for the message.
        tensor: any object.

    Raises:
        OperandTypeError: no tensor, or one whose elements are not in memory as strides say.
        OperandError: its storage is smaller than its shape.
        UnsupportedError: a gradient or tangent would be lost.
    """
    check_memory(name, tensor)
    if tensor.is_neg():
        raise OperandTypeError(
            f"{name} is a lazily negated view, of which memory holds the negative: "
            "pass .resolve_neg()"
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            f"{name} requires grad, and a factor is taken as a number, without a gradient: "
            "pass .item(), or multiply the result by it"
        )
    if (
        forward_ad._current_level >= 0
        and torch._C._is_fwd_grad_enabled()
        and forward_ad.unpack_dual(tensor).tangent is not None
    ):
        raise UnsupportedError(
            f"{name} carries a forward-mode tangent, and a factor is taken as a number, without "
            "a derivative: pass .item(), or multiply the result by it"
        )


def check_tensors(operands: dict[str, Any]) -> None:
    """``check_tensor`` of each operand that is read; those after B may be None, scales numbers."""
    for name, given in operands.items():
        number = name.startswith("scale") and not isinstance(given, torch.Tensor)
        if name in ("A", "B") or not (given is None or number):
            check_tensor(name, given)


def check_memory(name: str, tensor: torch.Tensor) -> None:
    """A strided tensor whose elements are in memory; raises as ``check_tensor``."""
    check_kind(name, tensor)
    kind = type(tensor)
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise UnsupportedError(
            f"{name} belongs to a transform of torch.func (vmap, grad, jvp, ...), which cannot see "
            "this product: call it outside of the transform, or use torch.matmul inside"
        )
    if kind.__torch_dispatch__ is not _OWN:
        cure = (
            "pass .to_local()"
            if hasattr(kind, "to_local")
            else "pass the plain tensor that it stands for"
        )
        raise OperandTypeError(
            f"{name} is a {kind.__name__}, a tensor without memory of its own: {cure}"
        )
    if torch._is_functional_tensor(tensor) or tensor._is_zerotensor():
        functional = torch._is_functional_tensor(tensor)
        what = "a functional tensor" if functional else "torch's zero tensor"
        raise OperandTypeError(
            f"{name} is {what}, which has no memory: pass a tensor with elements, "
            "e.g. torch.zeros(...) of that shape"
        )
    if tensor.numel():
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        needs = (tensor.storage_offset() + last + 1) * tensor.itemsize
        if tensor.untyped_storage().nbytes() < needs:
            shape = ", ".join(map(str, tensor.shape))
            raise OperandError(
                f"{name} has shape [{shape}] and needs {needs} bytes, and its storage has "
                f"{tensor.untyped_storage().nbytes()}: it was resized or freed, make it anew"
            )


def check_kind(name: str, tensor: Any) -> None:
    """A strided tensor, with memory of its own or not; raises OperandTypeError."""
    if not isinstance(tensor, torch.Tensor):
        cure = ""
        if hasattr(type(tensor), "__dlpack__"):
            cure = f": pass torch.from_dlpack({name})"
        elif name in ("A", "x"):
            cure = ", nor an array of numpy or of anything with __dlpack__, which are taken as well"
        raise OperandTypeError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor{cure}")
    if tensor.is_nested:
        raise OperandTypeError(
            f"{name} is a nested tensor: pass .to_padded_tensor(0.0), or its parts one by one"
        )
    if tensor.is_quantized:
        raise OperandTypeError(
            f"{name} is quantized ({tensor.dtype}): pass .dequantize(), or .int_repr() for the "
            "integers"
        )
    if tensor.layout is not torch.strided:
        raise OperandTypeError(f"{name} is {tensor.layout}: convert it with .to_dense()")


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Whether a kernel finds nothing at the tensor's address, because torch stands between."""
    return bool(
        type(tensor).__torch_dispatch__ is not _OWN
        or tensor.is_meta
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or torch._is_functional_tensor(tensor)
        or tensor._is_zerotensor()
    )


def check_nobody_traces() -> None:
    """Raise UnsupportedError where a dispatch mode would miss the product: it sees operators."""
    if jit_trace() is not None:
        raise UnsupportedError(
            "torch.jit.trace records operators and cannot see this product, which would be a "
            "constant of the trace: use torch.export or torch.compile"
        )
    if not modes():
        return
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    names = ", ".join(type(mode).__name__ for mode in _get_current_dispatch_mode_stack())
    raise UnsupportedError(
        f"a dispatch mode is active ({names}) and cannot see this product, which would be missing "
        "from what it traces or counts: call it outside of the mode, or use torch.matmul inside"
    )


def as_number(name: str, factor: Any) -> float | int:
    """alpha or beta as a Python number: of an int, a float, a numpy number or a 0-d tensor.

    A tensor on a GPU is waited for, as torch.addmm does. Raises OperandTypeError for all else.
    """
    if type(factor) in (float, int):
        return factor
    if isinstance(factor, torch.Tensor) and factor.dim() == 0:
        check_tensor(name, factor)
        if factor.is_meta:
            raise OperandTypeError(f"{name} is on the meta device and has no value: pass a number")
        factor = factor.item()
    elif hasattr(factor, "dtype") and getattr(factor, "shape", None) == ():  # a numpy scalar
        factor = factor.item()
    if isinstance(factor, bool) or not isinstance(factor, (int, float)):
        raise OperandTypeError(
            f"{name} is a {type(factor).__name__}, not a number: pass a float, an int or a 0-d "
            "tensor"
        )
    return factor


def as_float(name: str, factor: float | int) -> float:
    """The number as float64. Raises OperandError for an integer past its range."""
    try:
        return float(factor)
    except OverflowError:
        raise OperandError(
            f"{name} is an integer of {int(factor).bit_length()} bits, past the range of float64: "
            "pass float('inf'), or a factor below 1.8e308"
        ) from None
