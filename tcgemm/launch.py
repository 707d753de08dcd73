"""A launch: what calls of one kind run. The first of them makes it, and it is all that any runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch

from . import dispatch, repacking
from .batching import Part, parts, with_vectors
from .choosing.auto import backend_for
from .choosing.sums import as_summed
from .description import Description, describe
from .epilogue import finished, wide_dtype
from .errors import OperandError, OperandTypeError, TcgemmError, ToolchainError
from .forks import collected
from .hooks import BEFORE_CHOICE
from .operands import alignment, check_disjoint, check_output, overlap, span
from .problem import Fusion, Plan, Problem
from .tensors import allocator, check_memory, check_nobody_traces, check_tensors

Start = Callable[..., None]
"""``start(a, b, c, c_in, bias, scale_a, scale_b)`` launches one product: matrices, or batches of
them, of the shapes, strides, dtypes, device and alignment that it was bound to."""

READ = ("A", "B", "C", "bias", "scale_a", "scale_b")
"""What a call may read, in the order in which it hands it over."""

_FUSED = ("c", "bias", "scale_a", "scale_b")


@dataclass(slots=True)
class Launch(Description):
    """What ``gemm`` runs for calls of one kind (see launch_cache.key_of).

    It holds no tensor: a call hands its own over, and what it may differ in from the first one
    (addresses, and so overlap) is looked at in ``check_memory``.
    """

    bytes: tuple[tuple[int, int], ...]
    """(position in READ, bytes from its first element to the end of its last) of what is read."""
    out_bytes: int
    """The same bytes of the result."""
    start: Start | None = None
    """The one kernel, where it takes the caller's tensors as they are, without a view in between;
    a repeated call starts it with no more ado (launch_cache.run_launch)."""
    by_address: bool = False
    """Whether ``start`` reads of its tensors their addresses alone. Then it takes any tensor that
    begins where the operand does and holds its elements, of whatever shape."""
    device: int = -1
    """Number of the operands' GPU; -1 on the CPU."""
    strides: tuple[int, ...] = ()
    """Of a result that the call makes."""
    empty: Callable[..., torch.Tensor] = torch.empty_strided
    """Makes such a result, on the current device: tensors.allocator."""
    misaligned: int = 0
    """Bits that the address of a result has clear."""
    problems: list[Problem] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    """What each launch of a kernel multiplies, how, and the kernel: none where A, B are unread."""
    with_aux: dict[tuple[str, str], Start | None] = field(default_factory=dict)
    """What ``start_with_aux`` found, by its first two arguments."""

    def write(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale_a: Any,
        scale_b: Any,
        out: torch.Tensor,
    ) -> None:
        """Write the result into ``out``; the operands are of this launch's kind."""
        c = c if self.asked.beta else None
        if not self.starts:
            self._without_product(out, c if c is None else c.expand(self.shape), bias)
            return
        with torch.cuda.device(self.device) if self.device >= 0 else nullcontext():
            if self.start is not None:
                self._started(0, a, b, out, c, bias, scale_a, scale_b)
                return
            of_a, of_b = self.scales
            scale_a = scale_a.reshape(-1).contiguous() if of_a else None
            scale_b = scale_b.reshape(-1).contiguous() if of_b else None
            c = c if c is None else c.expand(self.shape)
            for index, part in enumerate(self.parts(a, b, out, c)):
                self._started(index, part.a, part.b, part.c, part.c_in, bias, scale_a, scale_b)

    def check_memory(
        self, a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, out: torch.Tensor
    ) -> None:
        """Raise OperandError where ``out`` shares memory with an operand that is not C itself."""
        start, reach = out.data_ptr(), self.out_bytes
        tensors = (a, b, c, bias, scale_a, scale_b)
        for index, size in self.bytes:
            if -size < tensors[index].data_ptr() - start < reach:
                self._check_overlap(READ[index], tensors[index], out)

    def _check_overlap(self, name: str, read: torch.Tensor, out: torch.Tensor) -> None:
        if name != "C":
            check_disjoint(out, **{name: read})
            return
        c = read.expand(self.shape)
        itself = c.data_ptr() == out.data_ptr() and c.stride() == out.stride()
        if not itself and overlap(out, c):
            raise OperandError(
                "out overlaps C in memory and is not C: pass c=out with the same shape and "
                "strides, another out, or clone C"
            )

    def __str__(self) -> str:
        return "; ".join(
            f"{problem}: {plan}" for problem, plan in zip(self.problems, self.plans, strict=True)
        )

    def parts(self, a: Any, b: Any, out: torch.Tensor, c: Any) -> list[Part]:
        """The matrices of each launch, out of the caller's tensors."""
        vector_a, vector_b = self.vectors
        a = a[None, :] if vector_a else a
        b = b[:, None] if vector_b else b
        out = with_vectors(out, vector_a, vector_b)
        c = None if c is None else with_vectors(c, vector_a, vector_b)
        a, b = a.expand(*self.batch, *a.shape[-2:]), b.expand(*self.batch, *b.shape[-2:])
        return list(parts(self.batch, a, b, out, c, self.row_scales))

    def _without_product(self, out: torch.Tensor, c: Any, bias: Any) -> None:
        """C = epilogue(beta C + bias), where alpha or K is 0: A and B are not read."""
        if not out.numel():
            return
        out = with_vectors(out, *self.vectors)
        c = None if c is None else with_vectors(c, *self.vectors)
        zeros = torch.zeros(out.shape, dtype=wide_dtype(out.dtype), device=out.device)
        asked = replace(self.asked, alpha=1.0, c=c, bias=bias)
        out.copy_(finished(zeros, asked))

    def _started(self, index: int, *tensors: Any) -> None:
        try:
            self.starts[index](*tensors)
        except RuntimeError as error:
            raise self.explained(error, index) from error

    def start_with_aux(
        self, aux: str, epilogue: str, a: Any, b: Any, bias: Any, z: Any, out: Any
    ) -> Start | None:
        """The kernel of this launch that stores ``z`` besides, or multiplies by the derivative at
        it, as Fusion.aux says: ``start(a, b, out, z, bias, None, None)``. None where that kernel
        does not, or the two results do not lie as the plan has them.

        Args:
            aux: "write", "read" or "sums".
            z, out: [M, N], row-major, of the launch's dtype; z is [M] for "sums".
        """
        if self.start is None or (z.data_ptr() | out.data_ptr()) & self.misaligned:
            return None
        if (aux, epilogue) not in self.with_aux:
            part, (plan,) = Part(a, b, out, z), self.plans
            asked = Fusion(c=z, bias=bias, epilogue=epilogue, compute=self.asked.compute, aux=aux)
            problem = dispatch.problem_of(a, b, out, asked)
            start = None
            if dispatch.find(plan.backend, plan.kernel).why_not(problem) is None:
                if aux != "sums":  # which change nothing in how C is made
                    _prepared(problem, plan.backend, plan.kernel)
                    plan = dispatch.plan(problem, plan.backend, plan.kernel)
                start = _bind(plan, problem, asked, part)
            self.with_aux[aux, epilogue] = start
        return self.with_aux[aux, epilogue]

    def explained(self, error: RuntimeError, index: int = 0) -> RuntimeError:
        """What a kernel of this launch that raised the error raises, with the cure."""
        return _explained(error, self.plans[index], self.problems[index], self.device)


_OF_TORCH = (torch.OutOfMemoryError, *filter(None, [getattr(torch, "AcceleratorError", None)]))
"""Errors that keep their type: a program looks for them."""


def _explained(error: RuntimeError, plan: Plan, problem: Problem, device: int) -> RuntimeError:
    """What a kernel that cannot be built or started raises, with the cure where there is one."""
    what = f"{plan.backend}/{plan.kernel} failed on {problem}"
    memory = isinstance(error, torch.OutOfMemoryError)
    if device >= 0 and not memory and torch.cuda.is_current_stream_capturing():
        return ToolchainError(
            f"{what} while a graph is captured: call it once with such operands before "
            f"the capture, which loads and tunes it ({error})"
        )
    if isinstance(error, (TcgemmError, *_OF_TORCH)):
        return error
    return ToolchainError(f"{what}: {error}")


def make(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    bias: torch.Tensor | None,
    epilogue: str | None,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    compute: str | None,
    scale_a: Any,
    scale_b: Any,
    mma_shape: str | None,
    backend: str,
    kernel: str | None,
) -> Launch:
    """The launch of a call with these arguments of ``gemm``: checked, chosen and planned.

    Nothing is computed, ``out`` is not written, and of the arguments no tensor is kept.
    """
    for name, given in (("backend", backend), ("kernel", kernel), ("mma_shape", mma_shape)):
        if not isinstance(given, str | None):
            raise OperandTypeError(f"{name} is a {type(given).__name__}, not a str: pass its name")
    dispatch.check_backend(backend)
    if kernel is not None and backend != dispatch.AUTO:
        dispatch.find(backend, kernel)
    check_nobody_traces()
    check_tensors({"A": a, "B": b, "C": c, "bias": bias, "scale_a": scale_a, "scale_b": scale_b})
    if out is not None:
        check_memory("out", out)
    described = describe(
        a, b, c, alpha, beta, bias, epilogue, out, out_dtype, compute, scale_a, scale_b, mma_shape
    )
    if a.is_meta:
        raise OperandTypeError(
            "A and B are on the meta device, which has no memory: pass tensors on a GPU or the CPU"
        )
    if out is not None:
        check_output(out, described.shape, a)
    told = {each.name: getattr(described, each.name) for each in fields(described)}
    made = Launch(**told, bytes=(), out_bytes=0, device=a.get_device())
    shape = made.shape
    made.empty = allocator(of_cpu=made.device < 0)
    c = c if made.asked.beta else None
    result = torch.empty(shape, dtype=made.dtype, device=a.device) if out is None else out
    scale_tensors = [s if isinstance(s, torch.Tensor) else None for s in (scale_a, scale_b)]
    read = enumerate((a, b, c, bias, *scale_tensors))
    made.bytes = tuple((i, _bytes(t)) for i, t in read if t is not None and t.numel())
    made.out_bytes, made.strides = _bytes(result), tuple(result.stride())
    if not (result.numel() and a.shape[-1] and made.asked.alpha):
        return made
    made.misaligned = alignment(result) - 1
    direct = bool(
        a.dim() == b.dim() == 2
        and (c is None or c.shape == shape)
        and all(
            s is None or (isinstance(s, torch.Tensor) and s.dim() == 1 and s.is_contiguous())
            for s in (scale_a, scale_b)
        )
    )
    c = None if c is None else c.expand(shape)
    row_scale, column_scale = (
        None if s is None else s.reshape(-1).contiguous() for s in scale_tensors
    )
    alike: dict[Any, tuple[Plan, Start]] = {}
    for part in made.parts(a, b, result, c):
        fusion = replace(
            made.asked, c=part.c_in, bias=bias, scale_a=row_scale, scale_b=column_scale
        )
        problem = dispatch.problem_of(part.a, part.b, part.c, fusion)
        if (wider := as_summed(problem, backend, kernel)) is not problem:
            problem, fusion = wider, replace(fusion, compute=wider.compute)
            made.asked = replace(made.asked, compute=wider.compute)
        addresses = [t.data_ptr() for t in (*part, bias) if t is not None]
        aligned = part.c_in is not None and alignment(part.c_in)
        kind = problem, aligned, *map(addresses.index, addresses)
        if kind not in alike:
            alike[kind] = _started_by(problem, part, fusion, backend, kernel)
        made.problems.append(problem)
        made.plans.append(alike[kind][0])
        made.starts.append(alike[kind][1])
    if direct:
        (made.start,) = made.starts
        made.by_address = getattr(made.start, "by_address", False)
    return made


def _bytes(t: torch.Tensor) -> int:
    first, end = span(t)
    return end - first


def _started_by(
    problem: Problem, part: Part, fusion: Fusion, backend: str, kernel: str | None
) -> tuple[Plan, Start]:
    """The plan of a part, and what starts it."""
    if backend == dispatch.AUTO:
        backend = backend_for(problem, kernel).backend
    choose = repacking.chooser(backend, kernel)
    if kernel is None and (copies := repacking.worth(problem, backend, choose)) is not None:
        plan = _planned(copies.problem, backend, choose)
        bind = partial(_bind, plan, copies.problem, fusion)
        start = repacking.Repacked(part, copies, backend, bind)
        return replace(plan, config={**plan.config, "ALIGNED_COPIES": copies.count}), start
    if _prepared(problem, backend, kernel):
        choose = repacking.chooser(backend, kernel)
    plan = _planned(problem, backend, choose)
    return plan, _bind(plan, problem, fusion, part)


def _planned(problem: Problem, backend: str, choose: repacking.Choose) -> Plan:
    row = choose(problem)
    return Plan(backend, row.name, row.plan(problem))


def _prepared(problem: Problem, backend: str, kernel: str | None) -> bool:
    """Do what is to be done before a choice; whether it may have changed what is chosen."""
    with collected():
        changed = [prepare(problem, backend, kernel) for prepare in BEFORE_CHOICE]
    return any(changed)


def _bind(plan: Plan, problem: Problem, fusion: Fusion, part: Part) -> Start:
    """The kernel of a plan, for products like this one; it may be compiled for them."""
    device = part.a.get_device()
    try:
        with torch.cuda.device(device) if device >= 0 else nullcontext():
            return _bind_here(plan, problem, fusion, part)
    except RuntimeError as error:
        raise _explained(error, plan, problem, device) from error


def _bind_here(plan: Plan, problem: Problem, fusion: Fusion, part: Part) -> Start:
    run: Any = dispatch.load(plan.backend, plan.kernel)
    asked = None if problem.plain else fusion
    if hasattr(run, "bind"):
        with collected():
            start: Start = run.bind(part.a, part.b, part.c, asked, **plan.config)
        return start
    config = dict(plan.config)
    if asked is None:
        return lambda a, b, c, *none: run(a, b, c, **config)
    constants = replace(fusion, c=None, bias=None, scale_a=None, scale_b=None)

    def with_fusion(a: Any, b: Any, c: Any, *tensors: Any) -> None:
        run(a, b, c, fusion=replace(constants, **dict(zip(_FUSED, tensors, strict=True))), **config)

    return with_fusion
