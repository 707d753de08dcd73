"""``override_aten``: torch's own products on our kernels; ``stats``: which of them ran where.

While it is active, torch's kernels of mm, addmm, bmm and baddbmm are replaced below autograd, so
matmul, linear, einsum and every backward pass that is made of these are ours too. No other operator
of torch becomes slower.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from .dispatch import check_backend, default_backend
from .errors import OperandError, OperandTypeError, UnsupportedError
from .forks import hold_across
from .launch_cache import launch_of, run_launch

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_REFUSED = (OperandError, OperandTypeError, UnsupportedError)


class Ran(NamedTuple):
    """Calls of one operator of torch that ran at one place."""

    operator: str
    """mm, addmm, bmm or baddbmm."""
    where: str
    """backend/kernel, or "torch"."""
    reason: str
    """Why it ran on torch's kernel; empty elsewhere."""
    calls: int


_counts: Counter[tuple[str, str, str]] = Counter()
_lock = threading.RLock()
"""Held across a fork, so that it is free in the child."""
hold_across(_lock)
_backends: list[str] = []
"""Of the regions that are open, the inner ones last."""
_callers: set[int] = set()
"""Threads that have multiplied under it."""
_inside = threading.local()


def stats(reset: bool = False) -> list[Ran]:
    """Which products of torch ran where under ``override_aten``, the most frequent first.

    Args:
        reset: count from zero again afterwards.
    """
    with _lock:
        found = [Ran(*key, calls) for key, calls in _counts.most_common()]
        if reset:
            _counts.clear()
    return found


@contextmanager
def override_aten(backend: str | None = None) -> Iterator[None]:
    """Within it, torch's matrix products run on tcgemm's kernels, those of backward too.

    mm, addmm, bmm and baddbmm of float16, bfloat16, float32 and float64, and what torch makes of
    them: matmul, linear, einsum, ``@``. What is refused runs on torch's kernel, and is counted with
    its reason in ``stats()``. float32 is multiplied at float32's accuracy, or as tf32 where
    torch.set_float32_matmul_precision allows it. It holds for all threads of the process; of two,
    the inner one holds. Where other threads that have multiplied within it go on after its end,
    torch's kernels are called by way of it until another one ends. What torch.compile has made
    within it or before it is left as it is.

    Args:
        backend: "triton", "cuda", "cublas" or "auto"; by default TCGEMM_BACKEND, or "triton".

    Raises:
        UnknownNameError: no backend of that name.
        ToolchainError: from a product, where a kernel cannot be compiled or run here.
    """
    name = backend or default_backend()
    check_backend(name)
    with _lock:
        if not _libraries:
            _install()
        _backends.append(name)
    try:
        yield
    finally:
        with _lock:
            last = len(_backends) - 1 - _backends[::-1].index(name)
            del _backends[last]
            if not (_backends or _others_multiply()):
                _libraries.clear()
                _callers.clear()


_libraries: list[Any] = []


def _others_multiply() -> bool:
    """Whether other threads may be in one of the kernels, which torch would free under them."""
    here = threading.get_ident()
    return any(t.ident in _callers and t.ident != here for t in threading.enumerate())


def _install() -> None:
    library = torch.library.Library("aten", "IMPL")
    installed = _Installed(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch's kernel is replaced, which is meant
        for key in ("CPU", "CUDA"):
            for name, function in (("mm", _mm), ("addmm", _addmm), ("bmm", _bmm),
                                   ("baddbmm", _baddbmm)):  # fmt: skip
                library.impl(name, function, key)
    _libraries.append(installed)


class _Installed:
    """The replaced kernels; torch's come back when it is dropped."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __del__(self) -> None:
        self.library._destroy()


def _mm(a: Any, b: Any) -> torch.Tensor:
    return _product("mm", (a, b), a, b)


def _bmm(a: Any, b: Any) -> torch.Tensor:
    return _product("bmm", (a, b), a, b)


def _addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    return _product("addmm", (c, a, b), a, b, c, beta, alpha)


def _baddbmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    return _product("baddbmm", (c, a, b), a, b, c, beta, alpha)


_RANKS = {"mm": 2, "addmm": 2, "bmm": 3, "baddbmm": 3}


def _product(
    name: str, operands: Any, a: Any, b: Any, c: Any = None, beta: Any = 0, alpha: Any = 1
) -> torch.Tensor:
    backend = next(reversed(_backends), None)
    # The baseline multiplies by torch itself, and so does a thread after the region's end.
    if backend is None or getattr(_inside, "active", False):
        return _torchs(name, operands, alpha, beta)
    _callers.add(threading.get_ident())
    reason = _not_ours(name, a, b, alpha, beta)
    if reason is None:
        _inside.active = True
        try:
            with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
                arguments = _arguments(a, b, c, alpha, beta, backend)
                launch = launch_of(arguments)
                result = run_launch(launch, arguments)
            where = launch.plans[0] if launch.plans else None
            _count(name, f"{where.backend}/{where.kernel}" if where else "no kernel needed")
            return result
        except _REFUSED as error:
            reason = str(error).splitlines()[0]
        finally:
            _inside.active = False
    result = _torchs(name, operands, alpha, beta)
    _count(name, "torch", reason)
    return result


def _not_ours(name: str, a: Any, b: Any, alpha: Any, beta: Any) -> str | None:
    """Why a call is torch's by what it means, not by what a kernel takes."""
    if a.dtype not in _DTYPES:
        return f"the dtype is {str(a.dtype).removeprefix('torch.')}"
    if a.dim() != _RANKS[name] or b.dim() != a.dim() or a.shape[:-2] != b.shape[:-2]:
        return "the operands' dimensions differ"
    if not all(type(factor) in (int, float) for factor in (alpha, beta)):
        return "a factor is not a real number"
    return None


def _arguments(a: Any, b: Any, c: Any, alpha: Any, beta: Any, backend: str) -> tuple[Any, ...]:
    """Of ``gemm``: a C that is one row, added once, is a bias, which more kernels fuse."""
    bias = None
    if c is not None and beta == 1 and c.dim() == 1 and c.shape[0] == b.shape[-1]:
        c, bias, beta = None, c, 0
    compute = None
    if a.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        compute = "tf32"
    return (
        a, b, c, float(alpha), float(beta), bias, None, None, None, compute, None, None, None,
        backend, None,
    )  # fmt: skip


def _torchs(name: str, operands: Any, alpha: Any, beta: Any) -> torch.Tensor:
    """By torch's kernel, which its form with out= still is."""
    factors = {"alpha": alpha, "beta": beta} if len(operands) == 3 else {}
    out = operands[-2].new_empty(0)
    result: torch.Tensor = getattr(torch.ops.aten, name).out(*operands, **factors, out=out)
    return result


def _count(operator: str, where: str, reason: str = "") -> None:
    with _lock:
        _counts[operator, where, reason] += 1
