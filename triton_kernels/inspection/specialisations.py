"""Which kernels Triton compiles for a product, and compiling them, without a GPU.

A kernel is compiled once for each set of constants, types and marked arguments (a multiple of 16,
1): a specialisation, which Triton keeps on disk. These functions form the launches that a product
would have, on the meta device, and ask Triton's own front end which specialisations they are. They
want a process that compiles (TRITON_INTERPRET=0) and has no other driver at work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from .compile_only import _Driver


class Specialisation(NamedTuple):
    """One kernel as Triton compiles it."""

    kernel: str
    """The function's name and module, e.g. ``skinny.kernel``."""
    key: str
    """Differs from that of every other specialisation."""


def steps_of(name: str, plan: Mapping[str, int], problem: Any) -> list[Any]:
    """The launches of a product, as launching.Step, of tensors without memory.

    Args:
        name: the kernel's.
        plan: how it runs the problem.
        problem: whose addresses are taken to be aligned.
    """
    rung = import_module(__package__.rpartition(".")[0]).module_of(name)
    a, b, c, fusion = _operands(problem)
    bound = rung.run.bind(a, b, c, fusion, **plan)
    steps: list[Any] = []
    if bound.repack is not None and (size := bound.repack.room(a, b)):
        room = torch.empty(size, dtype=torch.uint8, device="meta")
        a, b, steps = bound.repack.steps(a, b, room)
    return [*steps, *bound.steps(a, b, c, fusion)]


def specialisations(name: str, plan: Mapping[str, int], problem: Any) -> list[Specialisation]:
    """What Triton compiles for a product; nothing is compiled here."""
    return [_specialisation(*step) for step in _on(problem, name, plan)]


def compile_all(name: str, plan: Mapping[str, int], problem: Any) -> int:
    """Compile what a product needs and Triton's cache does not hold; how many kernels that were.

    Raises what Triton raises.
    """
    from triton import knobs

    compiled = 0

    def listen(*, cache_hit: bool, **_: Any) -> None:
        nonlocal compiled
        compiled += not cache_hit

    before, knobs.compilation.listener = knobs.compilation.listener, listen
    try:
        for kernel, grid, args, constants in _on(problem, name, plan):
            _jitted(kernel).warmup(*args, grid=grid, **constants)
    finally:
        knobs.compilation.listener = before
    return compiled


def _on(problem: Any, name: str, plan: Mapping[str, int]) -> list[Any]:
    from triton.runtime import driver

    driver.set_active(_Driver(problem.capability or (9, 0)))
    return steps_of(name, plan, problem)


def _jitted(kernel: Any) -> Any:
    """Triton's function, without what wraps it (gluon_descriptors.Rounding)."""
    return getattr(kernel, "kernel", None) or kernel


def _specialisation(
    kernel: Any, grid: Any, args: tuple[Any, ...], constants: Mapping[str, Any]
) -> Specialisation:
    from triton.runtime import driver

    kernel = _jitted(kernel)
    *_, binder = kernel.device_caches[driver.active.get_current_device()]
    _, marked, options = binder(*args, **constants)
    target = driver.active.get_current_target()
    text = f"{kernel.__module__}.{kernel.__name__} {marked} {options} {target.arch}"
    where = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"
    return Specialisation(where, hashlib.sha256(text.encode()).hexdigest()[:24])


def _operands(problem: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any]:
    """A, B, C and the fusion of a problem, on the meta device."""
    dtype_in, dtype_out = getattr(torch, problem.dtype_in), getattr(torch, problem.dtype_out)
    M, N, K = problem.M, problem.N, problem.K
    batch = (problem.batch,) if problem.batch > 1 else ()

    def matrix(shape: Any, strides: Any, dtype: torch.dtype, step: int) -> torch.Tensor:
        every = (*((step,) if batch else ()), *strides)
        return torch.empty_strided((*batch, *shape), every, dtype=dtype, device="meta")

    def vector(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    step_a, step_b, step_c = problem.batch_strides
    a = matrix((M, K), problem.a_strides, dtype_in, step_a)
    b = matrix((K, N), problem.b_strides, dtype_in, step_b)
    c = matrix((M, N), problem.c_strides, dtype_out, step_c)
    if problem.plain:
        return a, b, c, None
    rows = problem.scales == "row"
    fusion = SimpleNamespace(
        alpha=problem.alpha, beta=problem.beta, epilogue=problem.epilogue,
        compute=problem.compute, mma_shape=problem.mma_shape, aux=problem.aux,
        c=vector(M, dtype_out) if problem.aux == "sums"
        else matrix((M, N), problem.c_in_strides, dtype_out, step_c)
        if problem.beta or problem.aux else None,
        bias=vector(N, dtype_out) if problem.bias else None,
        scale_a=vector(M if rows else 1) if problem.scales else None,
        scale_b=vector(N if rows else 1) if problem.scales else None,
    )  # fmt: skip
    return a, b, c, fusion
