"""The backend table, the operand checks and the choice of kernel.

Dispatch knows of a backend module two names only: ``KERNELS``, its ladder as a tuple of rows, and
``load(name)``, which returns a rung's callable, compiled. It knows no tile size.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from .errors import (
    OperandError,
    OperandTypeError,
    ToolchainError,
    UnknownNameError,
    UnsupportedError,
)
from .problem import Plan, Problem

if TYPE_CHECKING:
    import pandas as pd

BACKENDS: dict[str, str] = {
    "triton": "tcgemm.triton_kernels",
    "cuda": "tcgemm.cuda_ref",
    "cublas": "tcgemm.cublas",
}
"""Backend name -> module that holds its KERNELS and load. Add an entry to bring your own."""

BACKEND_VARIABLE = "TCGEMM_BACKEND"
"""Environment variable that sets the default backend; the only global setting there is."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One rung of a ladder: a backend's row, with the backend's name."""

    backend: str
    name: str
    adds: str
    """One sentence: what this rung adds over the one before."""
    pairs: tuple[tuple[str, str], ...]
    """Supported (dtype of A and B, dtype of C), by name."""
    capability: tuple[int, int] = (0, 0)
    """Least compute capability."""
    devices: tuple[str, ...] = ("cuda",)
    """Where its operands may live: cuda, cpu."""
    shapes: str = "any shape, stride and alignment"
    """The limits that ``refuse`` enforces, in words."""
    refuse: Callable[[Problem], str | None] = field(default=lambda problem: None)
    """A sentence with the numbers where shape, strides or alignment do not fit, else None."""
    yields: Callable[[Problem], bool] = field(default=lambda problem: False)
    """Whether a lower rung was measured faster: then it is chosen by name only."""
    plan: Callable[[Problem], Mapping[str, int | str]] = field(default=lambda problem: {})
    """How the kernel would run the problem: keyword arguments of the callable."""
    deterministic: bool = True
    """Same inputs, same bits."""

    @property
    def full_name(self) -> str:
        return f"{self.backend}/{self.name}"

    def why_not(self, problem: Problem) -> str | None:
        """Why this kernel refuses the problem, as a sentence; None when it accepts."""
        if problem.device not in self.devices:
            where = " or ".join(self.devices)
            return f"it runs on {where} tensors and these are on {problem.device}"
        if problem.capability is not None and problem.capability < self.capability:
            least, here = ("{}.{}".format(*c) for c in (self.capability, problem.capability))
            return f"it needs compute capability {least} and this GPU has {here}"
        if (problem.dtype_in, problem.dtype_out) not in self.pairs:
            asked = f"{problem.dtype_in} -> {problem.dtype_out}"
            return f"{asked} is none of its type pairs: {_pairs(self)}"
        if problem.deterministic and not self.deterministic:
            return (
                "it may give other bits for the same inputs, and "
                "torch.use_deterministic_algorithms(True) is set"
            )
        return self.refuse(problem)


def _pairs(row: Kernel) -> str:
    """The type pairs in words, e.g. "float16 -> float16 or float32, int8 -> int32"."""
    outputs: dict[str, list[str]] = {}
    for dtype_in, dtype_out in row.pairs:
        outputs.setdefault(dtype_in, []).append(dtype_out)
    return ", ".join(f"{i} -> {' or '.join(o)}" for i, o in outputs.items())


def _module(backend: str) -> Any:
    if not isinstance(backend, str):
        raise OperandTypeError(f"backend is a {type(backend).__name__}, not a str")
    if backend not in BACKENDS:
        raise UnknownNameError(f"unknown backend {backend!r}: choose from {', '.join(BACKENDS)}")
    return import_module(BACKENDS[backend])


@cache
def ladder(backend: str) -> tuple[Kernel, ...]:
    """The backend's kernels, from the first rung to the last."""
    return tuple(Kernel(backend=backend, **row) for row in _module(backend).KERNELS)


def find(backend: str, kernel: str) -> Kernel:
    """The row of one kernel. Raises UnknownNameError, listing what exists."""
    rows = ladder(backend)
    for row in rows:
        if row.name == kernel:
            return row
    names = ", ".join(row.name for row in rows)
    raise UnknownNameError(f"unknown kernel {kernel!r} of backend {backend!r}: choose from {names}")


@cache
def load(backend: str, kernel: str) -> Callable[..., None]:
    """The kernel's callable ``run(a, b, c, **plan)``, which writes C; compiled on first use."""
    try:
        run: Callable[..., None] = _module(backend).load(kernel)
    except (RuntimeError, ImportError) as error:
        raise ToolchainError(
            f"{backend}/{kernel} cannot be loaded: {error} ('tcgemm doctor' says what is missing)"
        ) from error
    return run


def choose(problem: Problem, backend: str, kernel: str | None = None) -> Kernel:
    """The named kernel, or the highest rung that accepts the problem and does not yield.

    Raises UnsupportedError with every reason and, for a named kernel, what would work.
    """
    rows = ladder(backend)
    if kernel is not None:
        row = find(backend, kernel)
        reason = row.why_not(problem)
        if reason is None:
            return row
        able = [other.name for other in rows if other.why_not(problem) is None]
        cure = (
            f"kernels of {backend} that take it: {', '.join(able)}"
            if able
            else _elsewhere(problem, backend)
        )
        raise UnsupportedError(f"{row.full_name} refuses {problem}: {reason}; {cure}")
    reasons = []
    yielding = None
    for row in reversed(rows):
        reason = row.why_not(problem)
        if reason is not None:
            reasons.append(f"{row.name}: {reason}")
        elif not row.yields(problem):
            return row
        else:
            yielding = yielding or row
    if yielding is not None:
        return yielding
    raise UnsupportedError(
        f"no kernel of {backend} takes {problem}; {_elsewhere(problem, backend)}\n  "
        + "\n  ".join(reasons)
    )


def _elsewhere(problem: Problem, backend: str) -> str:
    others = [
        name
        for name in BACKENDS
        if name != backend and any(row.why_not(problem) is None for row in ladder(name))
    ]
    if others:
        return "backends that take it: " + ", ".join(f"backend={name!r}" for name in others)
    if problem.device == "cpu":
        return "move the operands to a GPU with .cuda()"
    return "no backend takes it"


def default_backend() -> str:
    """TCGEMM_BACKEND where it is set, else triton."""
    return os.environ.get(BACKEND_VARIABLE) or "triton"


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    backend: str | None = None,
    kernel: str | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """C[M, N] = A[M, K] @ B[K, N], accumulated in float32.

    Args:
        a: A, 2-D [M, K], float16 or bfloat16; any strides and storage offset.
        b: B, 2-D [K, N], the dtype and device of A; any strides and storage offset.
        backend: "triton", "cuda" or "cublas"; by default the environment variable
            TCGEMM_BACKEND, or "triton".
        kernel: a rung by name (see ``tcgemm.kernels()``); by default the highest rung of the
            backend that accepts the problem, less those measured slower there than a lower one.
        out: C, written in place: [M, N], any strides without overlap, disjoint from A and B.
        out_dtype: dtype of C: that of A (the default) or float32.

    Returns:
        C, which is ``out`` where that is given; row-major otherwise.

    Raises:
        OperandError: shapes that do not fit, operands on two devices, an ``out`` that overlaps.
        OperandTypeError: A and B of two dtypes, a dtype that no kernel takes, not a tensor.
        UnsupportedError: the kernel or backend refuses this problem; the message says why.
        UnknownNameError: no backend or kernel of that name.
        ToolchainError: the kernel cannot be compiled or run here.

    The work is ordered on the current stream of A's device.
    """
    backend = backend or default_backend()
    _module(backend)
    _check_operands(a, b)
    c = _output(a, b, out, out_dtype)
    if kernel is not None:
        find(backend, kernel)
    if c.numel() == 0:
        return c
    if a.shape[1] == 0:
        return c.zero_()
    problem = problem_of(a, b, c)
    row = choose(problem, backend, kernel)
    run = load(backend, row.name)
    try:
        if a.is_cuda and a.device.index != torch.cuda.current_device():
            with torch.cuda.device(a.device):
                run(a, b, c, **row.plan(problem))
        else:
            run(a, b, c, **row.plan(problem))
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # out of memory, and the like, keep their type
            raise
        raise ToolchainError(f"{row.full_name} failed on {problem}: {error}") from error
    return c


def plan(problem: Problem, backend: str, kernel: str | None = None) -> Plan:
    """How ``matmul`` would run the problem."""
    row = choose(problem, backend, kernel)
    return Plan(backend, row.name, row.plan(problem))


def problem_of(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Problem:
    """The problem that three checked tensors pose."""
    return Problem(
        M=a.shape[0],
        N=b.shape[1],
        K=a.shape[1],
        dtype_in=_dtype_name(a.dtype),
        dtype_out=_dtype_name(c.dtype),
        a_strides=a.stride(),  # type: ignore[arg-type]
        b_strides=b.stride(),  # type: ignore[arg-type]
        c_strides=c.stride(),  # type: ignore[arg-type]
        a_alignment=_alignment(a),
        b_alignment=_alignment(b),
        c_alignment=_alignment(c),
        device=a.device.type,
        capability=_capability(a.device.index) if a.is_cuda else None,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


_capability = cache(torch.cuda.get_device_capability)


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _alignment(tensor: torch.Tensor) -> int:
    address = tensor.data_ptr()
    return min(address & -address, 256) if address else 256


def _shape(tensor: torch.Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def _check_operands(a: torch.Tensor, b: torch.Tensor) -> None:
    for name, tensor in (("A", a), ("B", b)):
        if not isinstance(tensor, torch.Tensor):
            raise OperandTypeError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor")
        if tensor.layout is not torch.strided:
            raise OperandTypeError(f"{name} is {tensor.layout}: convert it with .to_dense()")
        if tensor.dim() != 2:
            raise OperandError(
                f"{name} has shape {_shape(tensor)}: matmul takes 2-D operands "
                "(use [None, :] or [:, None] for a vector, a loop or reshape for a batch)"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                f"{name} requires grad and matmul has no backward pass: "
                "call it under torch.no_grad() or pass .detach()"
            )
    if a.dtype != b.dtype:
        raise OperandTypeError(
            f"A is {_dtype_name(a.dtype)} and B is {_dtype_name(b.dtype)}: "
            "convert one with .to(), nothing is promoted silently"
        )
    if a.device != b.device:
        raise OperandError(f"A is on {a.device} and B is on {b.device}: move one with .to()")
    if a.dtype not in (torch.float16, torch.bfloat16):
        raise OperandTypeError(
            f"A and B are {_dtype_name(a.dtype)}: matmul takes float16 or bfloat16; "
            "convert with .to(torch.bfloat16)"
        )
    if a.shape[1] != b.shape[0]:
        message = (
            f"inner dimensions differ: A is {_shape(a)} and B is {_shape(b)}, "
            f"so K is {a.shape[1]} and {b.shape[0]}"
        )
        fits = []
        if a.shape[1] == b.shape[1]:
            fits.append("B.mT")
        if a.shape[0] == b.shape[0]:
            fits.append("A.mT")
        if not fits and a.shape[0] == b.shape[1]:
            fits.append("both A.mT and B.mT")
        raise OperandError(message + (f"; {' or '.join(fits)} would fit" if fits else ""))


def _output(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    shape = (a.shape[0], b.shape[1])
    if out is not None and not isinstance(out, torch.Tensor):
        raise OperandTypeError(f"out is a {type(out).__name__}, not a torch.Tensor")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise OperandTypeError(f"out_dtype is a {type(out_dtype).__name__}, not a torch.dtype")
    dtype = out_dtype or (a.dtype if out is None else out.dtype)
    if dtype not in (a.dtype, torch.float32):
        given = "out_dtype" if out_dtype is not None else "out.dtype"
        raise OperandTypeError(
            f"{given} is {_dtype_name(dtype)}: C is {_dtype_name(a.dtype)}, as A and B are, "
            "or float32"
        )
    if out is None:
        return a.new_empty(shape, dtype=dtype)
    if tuple(out.shape) != shape:
        raise OperandError(f"out has shape {_shape(out)} and C is [{shape[0]}, {shape[1]}]")
    if out.dtype != dtype:
        raise OperandTypeError(
            f"out is {_dtype_name(out.dtype)} and out_dtype {_dtype_name(dtype)}"
        )
    if out.device != a.device:
        raise OperandError(f"out is on {out.device} and A and B on {a.device}: move it with .to()")
    if out.requires_grad:
        raise OperandError(
            "matmul(): functions with out=... arguments don't support automatic differentiation, "
            "but out requires grad"
        )
    if _self_overlaps(out):
        raise OperandError(
            f"out has strides {out.stride()} for shape {_shape(out)}: two elements share memory; "
            "use a contiguous out and copy"
        )
    for name, operand in (("A", a), ("B", b)):
        if _overlap(out, operand):
            raise OperandError(f"out overlaps {name} in memory: use another out, or clone {name}")
    return out


def _self_overlaps(t: torch.Tensor) -> bool:
    """Whether two elements of a 2-D tensor share an address; exact."""
    (n0, n1), (s0, s1) = t.shape, t.stride()
    if n0 * n1 <= 1:
        return False
    if n0 == 1 or n1 == 1:
        return (s1 if n0 == 1 else s0) == 0
    # i * s0 == j * s1 has its least solution at i = s1 / g, j = s0 / g.
    g = math.gcd(s0, s1)
    return g == 0 or (s1 // g < n0 and s0 // g < n1)


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two 2-D views may share a byte.

    Exact for views that are disjoint as ranges, and for two column windows of one row-major
    buffer (or two row windows of a column-major one); any other interleaving counts as overlap.
    """
    if x.numel() == 0 or y.numel() == 0:
        return False
    (x0, x1), (y0, y1) = _span(x), _span(y)
    if x1 <= y0 or y1 <= x0:
        return False
    for dim in (0, 1):
        pitch = x.stride(dim) * x.itemsize
        if pitch != y.stride(dim) * y.itemsize or pitch == 0:
            continue
        x_width, y_width = (
            (t.shape[1 - dim] - 1) * t.stride(1 - dim) * t.itemsize + t.itemsize for t in (x, y)
        )
        gap = (y0 - x0) % pitch
        if gap >= x_width and gap + y_width <= pitch:
            return False
    return True


def _span(t: torch.Tensor) -> tuple[int, int]:
    start = t.data_ptr()
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return start, start + (last + 1) * t.itemsize


def why_not_here(row: Kernel) -> str | None:
    """Why no operand on this machine could reach the kernel; None when it runs here."""
    if "cuda" in row.devices and torch.cuda.is_available():
        here = torch.cuda.get_device_capability()
        if here >= row.capability:
            return None
        if "cpu" not in row.devices:
            least, have = ("{}.{}".format(*c) for c in (row.capability, here))
            return f"needs compute capability {least}, this GPU has {have}"
    if "cpu" in row.devices:
        return None
    return "needs an NVIDIA GPU, and there is none here"


def kernels() -> pd.DataFrame:
    """All kernels of all backends, in ladder order.

    Columns: backend, kernel, adds (over the rung before), type_pairs, shapes, capability (least),
    runs_here, why_not (a sentence where runs_here is False).
    """
    import pandas as pd

    rows = []
    for backend in BACKENDS:
        for row in ladder(backend):
            reason = why_not_here(row)
            rows.append(
                {
                    "backend": backend,
                    "kernel": row.name,
                    "adds": row.adds,
                    "type_pairs": _pairs(row),
                    "shapes": row.shapes,
                    "capability": "{}.{}".format(*row.capability),
                    "runs_here": reason is None,
                    "why_not": reason or "",
                }
            )
    return pd.DataFrame(rows)
