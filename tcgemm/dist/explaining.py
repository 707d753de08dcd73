"""``explain``: which way a product over several GPUs takes, why, and what its time is made of.

It rests on tables alone: no process group, GPU or torch is needed.
"""

from __future__ import annotations

import math
import operator
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

from .. import gpus
from ..errors import OperandError, UnknownNameError
from ..vocabulary import AUTO, check_backends, check_compute, check_stored
from . import engine, fitted, model
from .model import Host
from .options import ALL_GATHER, OPS
from .planning import (
    WayPlan,
    backend_of,
    language_of,
    plan_of,
    why_not,
    why_not_one_shot,
    why_not_result,
)
from .rows import chunk_of, rows_of


@dataclass(frozen=True, slots=True)
class Explanation:
    """A product over several GPUs before it runs; prints itself."""

    op: str
    world: int
    sizes: tuple[int, int, int]
    """M, N, K of the whole layer."""
    local: tuple[int, int, int]
    """M, N, K of the first rank's product."""
    dtype: str
    gpu: str
    plan: WayPlan

    def facts(self) -> dict[str, Any]:
        """Plain data, for JSON; times in microseconds."""
        times = self.plan.times
        known = {} if times is None else {
            **asdict(times), "sequence_us": times.sequence_us, "limit_us": times.limit_us,
        }  # fmt: skip
        return {
            "op": self.op, "world": self.world, "local": list(self.local), "gpu": self.gpu,
            "way": self.plan.way, "why": self.plan.why, "refused": self.plan.refused,
            "refused_one_shot": self.plan.refused_one_shot, **known,
        }  # fmt: skip

    def __str__(self) -> str:
        M, N, K = self.sizes
        m, n, k = self.local
        lines = [
            f"{self.op} of {M}x{N}x{K} {self.dtype} over {self.world} x {self.gpu}: each rank "
            f"multiplies {m}x{n}x{k}",
            f"way: {self.plan.way}: {self.plan.why}",
            f"rows of the {'first operand' if self.op == ALL_GATHER else 'result'} by rank: "
            + ", ".join(_held(M, self.world)),
        ]
        times = self.plan.times
        if times is not None:
            lines += [
                f"product: {times.gemm_us:.0f} us; NCCL: {times.collective_us:.0f} us; "
                f"one after the other: {times.sequence_us:.0f} us",
                f"limit: {times.limit_us:.0f} us, the longer of the product and the transfer "
                f"({times.transfer_us:.0f} us): no overlap is more than "
                f"{times.sequence_us / times.limit_us:.2f} times as fast",
            ]
        if times is not None and not self.plan.refused:
            lines.append(
                f"overlapped: about {times.overlapped_us:.0f} us in {times.language}. "
                f"{self._measured()}; {self._added(times.language)}"
            )
        if times is not None and not self.plan.refused_one_shot:
            lines.append(
                f"one shot: about {times.one_shot_us:.0f} us, of which "
                f"{times.written_us:.0f} us are stores to the peers. {self._measured()}; "
                f"{self._besides()}"
            )
        return "\n".join(lines)

    def _measured(self) -> str:
        slug = gpus.find(self.gpu).slug
        kin = model.linked_as(slug)
        return "Links and rates are measured" + ("" if kin == slug else f" on {kin}, its relative")

    def _added(self, language: str) -> str:
        known = fitted.of(gpus.find(self.gpu).slug)
        way = known.way(language, self.op, self.world)
        told = f"{way.waits_us(self.world):.0f} us of flags and {way.pieces:.0f} pieces are "
        timed = (language, self.op) in known.ways
        over = f" over {way.world} ranks" if timed and way.world != self.world else ""
        return told + self._how(timed, over)

    def _besides(self) -> str:
        known = fitted.of(gpus.find(self.gpu).slug)
        how = self._how(self.op in known.one_shot)
        return f"{known.one_shot_us(self.op):.0f} us of launches and flags are {how}"

    def _how(self, was_timed: bool, over: str = "") -> str:
        slug = gpus.find(self.gpu).slug
        timed_on = fitted.timed_on(slug)
        if not was_timed:
            return "assumed"
        return f"fitted to timed layers{over}" + ("" if timed_on == slug else f" of {timed_on}")


def _held(M: int, world: int) -> list[str]:
    held = [str(last - first) for first, last in (rows_of(M, world, r) for r in range(world))]
    return held if world <= 8 else [*held[:3], "...", held[-1]]


def explain(
    op: str,
    M: int,
    N: int,
    K: int,
    dtype: str = "bfloat16",
    *,
    world: int,
    gpu: str = "h200",
    gpus_of_a_host: int = model.GPUS_OF_A_HOST,
    host_gb_s: float = model.HOST_GB_S,
    backend: str | None = None,
    kernel: str | None = None,
    out_dtype: str | None = None,
    compute: str | None = None,
) -> Explanation:
    """Which way a product over ranks would take, and why.

    Args:
        op: "all_gather" (rows of A are gathered, B is divided by columns) or "reduce_scatter" (A
            is divided by columns, B by rows, and the sums are scattered).
        M, N, K: of the whole layer.
        dtype: of A and B, by name.
        world: ranks, a GPU each.
        gpu: as in gpus.py.
        gpus_of_a_host, host_gb_s: for more ranks than a host has: GB/s for each GPU between hosts.
        backend: as the call names it; by default TCGEMM_BACKEND, else "auto".
        kernel, out_dtype, compute: as the call names them, dtypes by name.

    Returns:
        An Explanation: ``print`` it; ``plan`` and ``facts()`` have the numbers. What the overlapped
        engine refuses by sizes and names is refused here; what it says of GPUs and addresses, it
        says when it sees them.

    Raises:
        UnknownNameError: no operation, backend or GPU of that name. OperandError: no dtype of that
        name, sizes that are no whole numbers of at least 1, a rate that is none.
    """
    if op not in OPS:
        raise UnknownNameError(f"unknown operation {op!r}: choose from {', '.join(OPS)}")
    check_stored(dtype, out_dtype, "nn")
    check_compute(dtype, compute)
    check_backends([] if backend in (None, AUTO) else [backend])
    backend = backend_of(backend)
    sizes = {"M": M, "N": N, "K": K, "world": world, "gpus_of_a_host": gpus_of_a_host}
    M, N, K, world, gpus_of_a_host = (_whole(name, size) for name, size in sizes.items())
    board = gpus.find(gpu)
    host = Host(board.slug, gpus_of_a_host, _rate(host_gb_s))
    local = (M, chunk_of(N, world), K) if op == ALL_GATHER else (M, N, chunk_of(K, world))
    here = _why_not(host, world)
    reason = (
        why_not_result(world, dtype, out_dtype, compute)
        or here
        or why_not(op, *local, dtype, world, backend, kernel)
    )
    not_one_shot = here or why_not_one_shot(op, *local, dtype, world, out_dtype)
    divided, size = ("N", N) if op == ALL_GATHER else ("K", K)
    if size % world:
        uneven = f"{divided}={size} does not divide by {world} ranks"
        reason = reason or f"{uneven}, whose parts then differ: it takes equal ones"
        not_one_shot = not_one_shot or (
            f"{uneven}: where parts differ it has to be asked for, by way="
        )
    language = language_of(backend, dtype)
    bounds = engine.bounds_us(op, *local, dtype, world)
    found = plan_of(op, *local, dtype, world, host, reason, language, not_one_shot, bounds)
    return Explanation(op, world, (M, N, K), local, dtype, board.name, found)


def _whole(name: str, size: Any) -> int:
    try:
        number = 0 if isinstance(size, bool) else operator.index(size)
    except TypeError:
        number = 0
    if number < 1:
        raise OperandError(f"{name} is {size!r}: at least 1, and a whole number")
    return number


def _rate(given: Any) -> float:
    try:
        rate = float(given) if isinstance(given, Real) and not isinstance(given, bool) else 0.0
    except OverflowError:
        rate = math.inf
    if not 0 < rate < math.inf:
        raise OperandError(f"host_gb_s is {given!r}: GB/s, a number above 0")
    return rate


def _why_not(host: Host, world: int) -> str | None:
    if world > host.gpus_of_a_host:
        return "all ways but NCCL are of one host: they read and write the memory of peers"
    return None if engine.is_there() else engine.NOT_THERE
