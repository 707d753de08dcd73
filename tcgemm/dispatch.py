"""The backend table and the choice of kernel.

Dispatch knows of a backend module ``KERNELS``, its ladder as a tuple of rows, and ``load(name)``,
which returns a rung's callable, compiled. Where the module has them, it asks besides
``choose(problem, able)`` for the kernel to run of those that accept, ``buildable(problem, able)``
for those that can be built here, ``choosable(problem, able)`` for those that may be taken unnamed,
``tuned_by_user(problem)`` and ``sure(problem, name)`` whether the user's own table, or what the
kernel says, has settled the choice, ``plans(problem, able)`` for more than its tables' plans,
``by_rows`` and ``second_launch_us`` for what was timed and what was not, ``derivative_kernel()``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from . import extras
from .errors import OperandTypeError, ToolchainError, UnknownNameError, UnsupportedError
from .forks import uncollected
from .operands import alignment, dtype_name
from .problem import COMPUTES, Fusion, Plan, Problem
from .vocabulary import AUTO, BACKEND_VARIABLE, either, unknown_kernel

if TYPE_CHECKING:
    import pandas as pd

BACKENDS: dict[str, str] = {
    "triton": "tcgemm.triton_kernels",
    "cuda": "tcgemm.cuda_ref",
    "cublas": "tcgemm.cublas",
}
"""Backend name -> module that holds its KERNELS and load. Add an entry to bring your own."""
if os.environ.get("TCGEMM_OWN_KERNELS"):  # files that a command was given, in its workers too
    BACKENDS["own"] = "tcgemm.own"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One rung of a ladder: a backend's row, with the backend's name."""

    backend: str
    name: str
    adds: str
    """One sentence: what this rung adds over the one before."""
    pairs: tuple[tuple[str, ...], ...]
    """Supported (dtype of A and B, dtype of C), by name; a third entry names how the products are
    summed, where that is not the dtype's default (problem.COMPUTES)."""
    kind: str = "ladder"
    """"ladder": it grows from the rung before; "shape": a specialist for shapes of some kind."""
    capability: tuple[int, int] = (0, 0)
    """Least compute capability."""
    devices: tuple[str, ...] = ("cuda",)
    """Where its operands may live: cuda, cpu."""
    shapes: str = "any shape, stride and alignment"
    """The limits that ``refuse`` enforces, in words."""
    refuse: Callable[[Problem], str | None] = field(default=lambda problem: None)
    """A sentence with the numbers where shape, strides or alignment do not fit, else None."""
    plan: Callable[[Problem], Mapping[str, int | str]] = field(default=lambda problem: {})
    """How the kernel would run the problem: keyword arguments of the callable."""
    unaligned_us: Callable[[Problem], float | None] = field(default=lambda problem: None)
    """Estimated microseconds (H200) of a problem whose rows of A or B are no multiples of 16 bytes
    apart; None where it is not known."""
    deterministic: bool = True
    """Same inputs, same bits."""
    rounds_product: bool = False
    """Rounds the product to C's dtype before it adds beta C, and so once more than was promised."""
    fuses: tuple[str, ...] = ()
    """What it does in the same launch beyond one product: alpha, beta, bias, the epilogues by name,
    scales (of 8-bit floats), batch."""
    mma_shapes: tuple[str, ...] = ()
    """WMMA shapes that a caller may name."""

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
        if not self.takes_types(problem.dtype_in, problem.dtype_out, problem.compute):
            asked = f"{problem.dtype_in} -> {problem.dtype_out} summed as {problem.compute}"
            return f"{asked} is none of its type pairs: {_in_words(self.pairs)}"
        beyond = [name for name in problem.fused if name not in self.fuses]
        if beyond:
            can = f"it fuses {', '.join(self.fuses)}" if self.fuses else "it fuses nothing"
            return f"{can}, and not {', '.join(beyond)} (asked: {problem})"
        if problem.mma_shape and problem.mma_shape not in self.mma_shapes:
            shapes = ", ".join(self.mma_shapes) or "none that can be named"
            return f"mma_shape {problem.mma_shape} is none of its shapes: {shapes}"
        if problem.deterministic and not self.deterministic:
            return (
                "it may give other bits for the same inputs, and "
                "torch.use_deterministic_algorithms(True) is set"
            )
        return self.refuse(problem)

    def takes_types(self, dtype_in: str, dtype_out: str, compute: str) -> bool:
        """Whether the type pair is one of its own."""
        pair: tuple[str, ...] = (dtype_in, dtype_out, compute)
        return pair in self.pairs or (compute == COMPUTES[dtype_in][0] and pair[:2] in self.pairs)


@cache
def _in_words(pairs: tuple[tuple[str, ...], ...]) -> str:
    """Type pairs in words: "float16 -> float16 or float32, float32 -> float32 by tf32"."""
    outputs: dict[tuple[str, str], list[str]] = {}
    for dtype_in, dtype_out, *compute in pairs:
        outputs.setdefault((dtype_in, "".join(compute)), []).append(dtype_out)
    return ", ".join(
        f"{dtype_in} -> {' or '.join(outs)}{f' by {compute}' if compute else ''}"
        for (dtype_in, compute), outs in outputs.items()
    )


def check_backend(backend: str) -> None:
    """Raise UnknownNameError where no backend has the name."""
    if backend != AUTO:
        _module(backend)


def _module(backend: str) -> Any:
    if not isinstance(backend, str):
        raise OperandTypeError(f"backend is a {type(backend).__name__}, not a str")
    if backend not in BACKENDS:
        names = ", ".join((*BACKENDS, AUTO))
        raise UnknownNameError(f"unknown backend {backend!r}: choose from {names}")
    with nullcontext() if BACKENDS[backend] in sys.modules else uncollected():
        return import_module(BACKENDS[backend])


@cache
def ladder(backend: str) -> tuple[Kernel, ...]:
    """The backend's kernels, from the first rung to the last."""
    return tuple(Kernel(backend=backend, **row) for row in _module(backend).KERNELS)


def find(backend: str, kernel: str) -> Kernel:
    """The row of one kernel. Raises UnknownNameError, listing what exists."""
    for row in ladder(backend):
        if row.name == kernel:
            return row
    names = ", ".join(row.name for row in ladder(backend))
    raise UnknownNameError(f"unknown kernel {kernel!r} of backend {backend!r}: choose from {names}")


def named(full_name: str) -> Kernel:
    """The row of "backend/kernel". Raises UnknownNameError, listing what exists."""
    backend, slash, kernel = full_name.partition("/")
    if not slash:
        known = [row.full_name for row in select()]
        near = [name for name in known if name.endswith(f"/{full_name}")] or known
        raise UnknownNameError(f"{full_name!r} is no BACKEND/KERNEL: choose from {', '.join(near)}")
    return find(backend, kernel)


def select(backends: Sequence[str] = (), kernels: Sequence[str] = ()) -> list[Kernel]:
    """The rows of these backends that have one of these names, in ladder order.

    Args:
        backends: of BACKENDS; by default all.
        kernels: by name, or by "backend/name"; by default all of the backends.

    Raises UnknownNameError, listing what exists.
    """
    rows = [row for backend in backends or BACKENDS for row in ladder(backend)]
    for name in kernels:
        if not any(name in (row.name, row.full_name) for row in rows):
            raise unknown_kernel(name, [row.full_name for row in rows])
    return [row for row in rows if not kernels or {row.name, row.full_name} & set(kernels)]


@cache
def load(backend: str, kernel: str) -> Callable[..., None]:
    """The kernel's callable ``run(a, b, c, fusion=None, **plan)``; compiled on first use.

    It writes C. ``fusion`` is given where the problem is not plain.
    """
    try:
        run: Callable[..., None] = _module(backend).load(kernel)
    except (RuntimeError, ImportError) as error:
        if isinstance(error, ImportError):
            extras.explain(error, f"{backend}/{kernel}")
        raise ToolchainError(
            f"{backend}/{kernel} cannot be loaded: {error} ('tcgemm doctor' says what is missing)"
        ) from error
    return run


@cache
def derivative(backend: str) -> Callable[..., Callable[..., None]] | None:
    """``bind(dy, z, dz, fusion)`` of the backend's kernel for the derivative of an epilogue, where
    it has one: of matrices [M, N] of 16 bits or float32.

    ``bind`` gives ``start(dy, z, dz, None, db)``, which writes dz = dy act'(z) and, unless db is
    None, its column sums db [N]. ``fusion.epilogue`` names the activation; ``fusion.bias`` is db.
    With neither z nor dz nor an epilogue db gets the column sums of dy.
    """
    kernel = getattr(_module(backend), "derivative_kernel", None)
    return None if kernel is None else kernel()


def choose(problem: Problem, backend: str, kernel: str | None = None) -> Kernel:
    """The named kernel, or of those that accept the problem the one that the backend chooses.

    A backend that offers no ``choose(problem, able)`` gets the highest rung that accepts. Models
    may change the kernel (choosing/within.py) and its plan (choosing/plans.py), which is what the
    row's ``plan`` then gives for the problem.

    Raises UnsupportedError with every reason and, for a named kernel, what would work.
    """
    from .choosing.plans import better, of_named

    if kernel is not None:
        row = find(backend, kernel)
        if (reason := row.why_not(problem)) is None:
            return of_named(problem, row, _module(backend), lambda: choose(problem, backend))
        able = [other.name for other in ladder(backend) if other.why_not(problem) is None]
        cure = (
            f"kernels of {backend} that take it: {', '.join(able)}"
            if able
            else _elsewhere(problem, backend)
        )
        raise UnsupportedError(f"{row.full_name} refuses {problem}: {reason}; {cure}")
    return better(problem, *by_models(problem, backend), _module(backend))


def by_models(problem: Problem, backend: str) -> tuple[Kernel, list[Kernel]]:
    """As ``by_tables``, or the kernel that the model puts in its place, with the plan of tables."""
    from .choosing.within import faster

    chosen, rows = by_tables(problem, backend)
    return faster(problem, chosen, rows, _module(backend)), rows


def by_tables(problem: Problem, backend: str) -> tuple[Kernel, list[Kernel]]:
    """What the backend itself chooses, and of which: all that may be taken here unnamed.

    Raises UnsupportedError with every reason.
    """
    found = {row.name: row for row in ladder(backend) if row.why_not(problem) is None}
    able = [*found]
    if not able:
        reasons = {row.name: row.why_not(problem) for row in ladder(backend)}
        raise UnsupportedError(
            f"no kernel of {backend} takes {problem}; {_elsewhere(problem, backend)}\n  "
            + "\n  ".join(f"{name}: {reason}" for name, reason in reversed(reasons.items()))
        )
    module = _module(backend)
    for which in ("buildable", "choosable"):
        able = getattr(module, which)(problem, able) if hasattr(module, which) else able
    name = module.choose(problem, able) if hasattr(module, "choose") else able[-1]
    return find(backend, name), [found[each] for each in able]


def _elsewhere(problem: Problem, backend: str) -> str:
    others = [name for name in BACKENDS if name != backend]
    others = [name for name in others if any(r.why_not(problem) is None for r in ladder(name))]
    if others:
        return "backends that take it: " + ", ".join(f"backend={name!r}" for name in others)
    on_gpu = replace(problem, device="cuda")
    if problem.device == "cpu" and any(
        row.why_not(on_gpu) is None for name in BACKENDS for row in ladder(name)
    ):
        return "move the operands to a GPU with .cuda()"
    return "no backend takes it"


def default_backend() -> str:
    """TCGEMM_BACKEND where it is set, else triton. Raises UnknownNameError where it names none."""
    # os.environ.get takes 0.9 us where nothing is set, a tenth of a repeated call: ask its dict.
    value = _environment.get(_backend_key)
    name: str = os.environ.decodevalue(value) if value else "triton"
    if value and name not in BACKENDS and name != AUTO:
        names = either((*BACKENDS, AUTO))
        raise UnknownNameError(f"{BACKEND_VARIABLE} is {name!r}, no backend: set it to {names}")
    return name


_environment = os.environ._data  # type: ignore[attr-defined]
_backend_key = os.environ.encodekey(BACKEND_VARIABLE)


def plan(problem: Problem, backend: str, kernel: str | None = None) -> Plan:
    """How ``gemm`` would run the problem."""
    row = choose(problem, backend, kernel)
    return Plan(backend, row.name, row.plan(problem))


def problem_of(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion | None = None
) -> Problem:
    """The problem that checked tensors pose: all [rows, columns], or all [batch, rows, columns]."""
    asked: dict[str, Any] = {}
    if a.dim() == 3:
        asked["batch"] = a.shape[0]
        asked["batch_strides"] = (a.stride(0), b.stride(0), c.stride(0))
    if fusion is not None:
        scales = [s for s in (fusion.scale_a, fusion.scale_b) if s is not None]
        asked.update(
            c_in_strides=None if fusion.c is None else fusion.c.stride()[-2:],
            bias=fusion.bias is not None,
            scales="" if not scales else "row" if any(s.numel() > 1 for s in scales) else "tensor",
        )
        names = ("alpha", "beta", "epilogue", "compute", "mma_shape", "aux")
        asked |= {name: getattr(fusion, name) for name in names}
    return Problem(
        M=a.shape[-2],
        N=b.shape[-1],
        K=a.shape[-1],
        dtype_in=dtype_name(a.dtype),
        dtype_out=dtype_name(c.dtype),
        a_strides=a.stride()[-2:],  # type: ignore[arg-type]
        b_strides=b.stride()[-2:],  # type: ignore[arg-type]
        c_strides=c.stride()[-2:],  # type: ignore[arg-type]
        a_alignment=alignment(a),
        b_alignment=alignment(b),
        c_alignment=alignment(c),
        device=a.device.type,
        capability=_capability(a.device.index) if a.is_cuda else None,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        **asked,
    )


@cache
def _capability(index: int) -> tuple[int, int]:
    if reason := why_not_this_torch():
        raise UnsupportedError(f"{reason}: use torch.matmul there")
    return torch.cuda.get_device_capability(index)


def why_not_this_torch() -> str | None:
    """Why no GPU that torch sees could run a kernel; None where torch is built for NVIDIA's."""
    if torch.version.hip:
        built = f"this torch is built for AMD's ({torch.version.hip})"
        return f"the kernels are for NVIDIA GPUs and {built}"
    return None


def why_not_here(row: Kernel) -> str | None:
    """Why no operand on this machine could reach the kernel; None when it runs here."""
    if "cuda" in row.devices and torch.cuda.is_available() and why_not_this_torch():
        return why_not_this_torch()
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
    """All kernels of all backends, in ladder order, as a table of pandas (extra ``report``).

    Columns: backend, kernel, kind (ladder: a step for learning; shape: a specialist), adds
    (over the rung before), type_pairs, fuses (what it does in the same launch), shapes,
    capability (least), runs_here, why_not (a sentence where runs_here is False).

    Raises MissingExtraError without pandas.
    """
    extras.need("report", "tcgemm.kernels()")
    import pandas as pd

    return pd.DataFrame(facts_of_kernels())


def facts_of_kernels() -> list[dict[str, Any]]:
    """The rows of ``kernels()``, a dict for each."""
    return [
        {
            "backend": row.backend,
            "kernel": row.name,
            "kind": row.kind,
            "adds": row.adds,
            "type_pairs": _in_words(row.pairs),
            "fuses": ", ".join(row.fuses),
            "shapes": row.shapes,
            "capability": "{}.{}".format(*row.capability),
            "runs_here": (reason := why_not_here(row)) is None,
            "why_not": reason or "",
        }
        for row in select()
    ]
