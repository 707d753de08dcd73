"""The tensors of a call: what is checked about them, and how batches become strides.

Every message names the operand, the numbers and the remedy.
"""

from __future__ import annotations

import math
from functools import cache

import torch

from .errors import OperandError, OperandTypeError
from .problem import OUTPUTS
from .tensors import as_float, as_number
from .vocabulary import INTEGERS, check_epilogue, either
from .vocabulary import check_compute as check_compute


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """torch.float16 -> "float16"."""
    return str(dtype).removeprefix("torch.")


def shape_of(tensor: torch.Tensor) -> str:
    """The shape in words: [5, 6]."""
    return f"[{', '.join(map(str, tensor.shape))}]"


def alignment(tensor: torch.Tensor) -> int:
    """Bytes: the largest power of two that divides the address, at most 256, on a CPU 64.

    That is what torch's own allocations have, so that those of a CPU are of one kind.
    """
    address = tensor.data_ptr()
    most = 256 if tensor.is_cuda else 64
    return min(address & -address, most) if address else most


def check_operands(a: torch.Tensor, b: torch.Tensor) -> None:
    """A [..., M, K] and B [..., K, N], or vectors [K]: of one supported dtype, on one device."""
    for name, tensor in (("A", a), ("B", b)):
        if tensor.dim() == 0:
            raise OperandError(
                f"{name} is a scalar, shape []: it needs one dimension at least; "
                "multiply by it with alpha="
            )
    if a.dtype != b.dtype:
        pair = {dtype_name(a.dtype), dtype_name(b.dtype)}
        cure = (
            "integers do not mix: the pairs are "
            + ", ".join(f"{name} with {name}" for name in INTEGERS)
            if pair <= set(INTEGERS)
            else "convert one with .to(), nothing is promoted silently"
        )
        raise OperandTypeError(f"A is {dtype_name(a.dtype)} and B is {dtype_name(b.dtype)}: {cure}")
    if a.device != b.device:
        raise OperandError(f"A is on {a.device} and B is on {b.device}: move one with .to()")
    if dtype_name(a.dtype) not in OUTPUTS:
        raise OperandTypeError(
            f"A and B are {dtype_name(a.dtype)}: a product takes {either(OUTPUTS)}; "
            f"{_converted(a.dtype)}"
        )
    a_k, b_k = a.shape[-1], b.shape[0] if b.dim() == 1 else b.shape[-2]
    if a_k != b_k:
        raise OperandError(
            f"inner dimensions differ: A is {shape_of(a)} and B is {shape_of(b)}, "
            f"so K is {a_k} and {b_k}{_remedy(a, b)}"
        )


def _converted(dtype: torch.dtype) -> str:
    """What to do with operands of a dtype that has no product here."""
    if dtype.is_complex:
        return "multiply real and imaginary parts, or use torch.matmul"
    if dtype.is_floating_point:
        return "convert with .to(torch.bfloat16)"
    return "convert with .to(torch.int8) where the values fit -128 to 127, else .to(torch.float64)"


def _remedy(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.dim() < 2 or b.dim() < 2:
        return ""
    fits = []
    if a.shape[-1] == b.shape[-1]:
        fits.append("B.mT")
    if a.shape[-2] == b.shape[-2]:
        fits.append("A.mT")
    if not fits and a.shape[-2] == b.shape[-1]:
        fits.append("both A.mT and B.mT")
    return f"; {' or '.join(fits)} would fit" if fits else ""


def batch_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """The leading dimensions of the product, broadcast as torch.matmul does."""
    if a.dim() == b.dim() == 2:
        return ()
    try:
        return tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    except RuntimeError:
        raise OperandError(
            f"leading dimensions do not broadcast: A is {shape_of(a)} and B is {shape_of(b)}; "
            "each pair of them must be equal, or one of them 1"
        ) from None


def output_dtype(
    a: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.dtype:
    """The dtype of C, checked against the type pairs."""
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise OperandTypeError(
            f"out_dtype is a {type(out_dtype).__name__}, not a torch.dtype: pass e.g. torch.float32"
        )
    allowed = OUTPUTS[dtype_name(a.dtype)]
    if out_dtype is None and out is None:
        dtype: torch.dtype = getattr(torch, allowed[0])
        return dtype
    dtype = out_dtype if out_dtype is not None else out.dtype  # type: ignore[union-attr]
    if dtype_name(dtype) not in allowed:
        given = "out_dtype" if out_dtype is not None else "out.dtype"
        raise OperandTypeError(
            f"{given} is {dtype_name(dtype)}: with A and B {dtype_name(a.dtype)}, "
            f"C is {either(allowed)}"
        )
    if out is not None and out.dtype != dtype:
        raise OperandTypeError(f"out is {dtype_name(out.dtype)} and out_dtype {dtype_name(dtype)}")
    return dtype


def check_output(out: torch.Tensor, shape: tuple[int, ...], a: torch.Tensor) -> None:
    """``out`` holds C: its shape, device, no two elements in one place, no gradient."""
    if tuple(out.shape) != shape:
        raise OperandError(f"out has shape {shape_of(out)} and C is [{', '.join(map(str, shape))}]")
    if out.device != a.device:
        raise OperandError(f"out is on {out.device} and A and B on {a.device}: move it with .to()")
    if out.is_neg():
        raise OperandError("out is a lazily negated view: write into a plain tensor")
    if out.is_inference() and not torch.is_inference_mode_enabled():
        raise OperandError(
            "out is an inference tensor, which is written under torch.inference_mode() alone: "
            "pass out.clone(), or call it under that mode"
        )
    if out.requires_grad and torch.is_grad_enabled():
        raise OperandError(
            "matmul(): functions with out=... arguments don't support automatic differentiation, "
            "but out requires grad"
        )
    if self_overlaps(out):
        raise OperandError(
            f"out has strides {out.stride()} for shape {shape_of(out)}: two elements share memory; "
            "use a contiguous out and copy"
        )


def check_disjoint(out: torch.Tensor, **operands: torch.Tensor | None) -> None:
    """No operand shares memory with ``out``."""
    for name, operand in operands.items():
        if operand is not None and overlap(out, operand):
            raise OperandError(f"out overlaps {name} in memory: use another out, or clone {name}")


def check_c(c: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, a: torch.Tensor) -> None:
    """C as it is read: broadcasts to the result, has its dtype and device."""
    if c.dtype != dtype:
        allowed = dtype_name(c.dtype) in OUTPUTS[dtype_name(a.dtype)]
        cure = f"pass out_dtype=torch.{dtype_name(c.dtype)} or " if allowed else ""
        raise OperandTypeError(
            f"C is {dtype_name(c.dtype)} and the result {dtype_name(dtype)}: "
            f"{cure}convert C with .to(torch.{dtype_name(dtype)})"
        )
    if c.device != a.device:
        raise OperandError(f"C is on {c.device} and A and B on {a.device}: move it with .to()")
    try:
        fits = tuple(torch.broadcast_shapes(c.shape, shape)) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise OperandError(
            f"C has shape {shape_of(c)}, which does not broadcast to the result's "
            f"[{', '.join(map(str, shape))}]"
        )


def check_bias(bias: torch.Tensor, N: int, dtype: torch.dtype, a: torch.Tensor) -> None:
    """A row vector [N] of the result's dtype and device."""
    if tuple(bias.shape) != (N,):
        raise OperandError(
            f"bias has shape {shape_of(bias)} and it is a row vector, one number for each column "
            f"of C: [{N}]"
        )
    if bias.dtype != dtype:
        raise OperandTypeError(
            f"bias is {dtype_name(bias.dtype)} and the result {dtype_name(dtype)}: "
            "convert it with .to()"
        )
    if bias.device != a.device:
        raise OperandError(f"bias is on {bias.device} and A and B on {a.device}")


def check_scale(
    name: str, scale: float | torch.Tensor | None, size: int, dim: str, a: torch.Tensor
) -> float:
    """A scale of 8-bit floats, a number or a float32 tensor of one element or [size].

    Returns the factor that alpha takes up: 1 where the scale is a tensor, or is not there.
    """
    if scale is None:
        return 1.0
    if not dtype_name(a.dtype).startswith("float8"):
        raise OperandTypeError(
            f"{name} scales 8-bit floats, and A and B are {dtype_name(a.dtype)}: use alpha"
        )
    if not isinstance(scale, torch.Tensor):
        return as_float(name, as_number(name, scale))
    if scale.dtype != torch.float32:
        raise OperandTypeError(f"{name} is {dtype_name(scale.dtype)}: convert it with .float()")
    if scale.device != a.device:
        raise OperandError(f"{name} is on {scale.device} and A and B on {a.device}")
    if scale.numel() not in (1, size):
        raise OperandError(
            f"{name} has {scale.numel()} elements, shape {shape_of(scale)}: it takes one, or one "
            f"for each of the {size} {dim}"
        )
    return 1.0


def check_factors(
    dtype: str, alpha: float, beta: float, epilogue: str | None
) -> tuple[float, float]:
    """alpha and beta as kernels take them; integers take whole factors, and relu only.

    Factors of integer products are reduced to int32 modulo 2^32, as their sums are.
    """
    factors = []
    for name, given in (("alpha", alpha), ("beta", beta)):
        factor = as_number(name, given)
        if dtype in INTEGERS:
            if not math.isfinite(factor) or factor != int(factor):
                raise OperandError(
                    f"{name} is {factor} and {dtype} products are summed in int32: a whole number "
                    "fits"
                )
            factor = modulo_32_bits(int(factor))
        factors.append(as_float(name, factor))
    check_epilogue(dtype, epilogue)
    return factors[0], factors[1]


def modulo_32_bits(factor: int) -> int:
    """A factor of integer products as int32 holds it."""
    return (factor + 2**31) % 2**32 - 2**31


def self_overlaps(t: torch.Tensor) -> bool:
    """Whether two elements share an address: exact for two dimensions, else never a false no."""
    dims = [(s, n) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1]
    if t.numel() <= 1:
        return False
    if any(s == 0 for s, _ in dims):
        return True
    if len(dims) == 2:
        (s0, n0), (s1, n1) = dims
        # i * s0 == j * s1 has its least solution at i = s1 / g, j = s0 / g.
        g = math.gcd(s0, s1)
        return s1 // g < n0 and s0 // g < n1
    reach = 0
    for stride, size in sorted(dims):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two views may share a byte.

    Exact for views that are disjoint as ranges, and for two windows of columns of one row-major
    buffer (or of rows of a column-major one), with any leading dimensions; any other interleaving
    counts as overlap.
    """
    if x.numel() == 0 or y.numel() == 0:
        return False
    (x0, x1), (y0, y1) = span(x), span(y)
    if x1 <= y0 or y1 <= x0:
        return False
    x_dims, y_dims = _merged(x), _merged(y)
    for pitch, size in x_dims:
        for y_pitch, y_size in y_dims:
            if pitch != y_pitch or pitch == 0:
                continue
            x_width = x1 - x0 - pitch * (size - 1)
            y_width = y1 - y0 - pitch * (y_size - 1)
            gap = (y0 - x0) % pitch
            if gap >= x_width and gap + y_width <= pitch:
                return False
    return True


def span(t: torch.Tensor) -> tuple[int, int]:
    """The bytes between the first element and the end of the last: (start, end)."""
    start = t.data_ptr()
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return start, start + (last + 1) * t.itemsize


def _merged(t: torch.Tensor) -> list[tuple[int, int]]:
    """(stride in bytes, size) of the dimensions, those merged that step as one."""
    merged: list[tuple[int, int]] = []
    for stride, size in sorted(
        (s * t.itemsize, n) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1
    ):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0], merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return merged
