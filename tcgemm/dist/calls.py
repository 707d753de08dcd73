"""One call over the ranks: what is checked of it, and the way that it takes.

Everything here is below autograd; operators.py records derivatives.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..call import gemm
from ..description import describe
from ..dispatch import AUTO, check_backend
from ..errors import (
    OperandError,
    OperandTypeError,
    TcgemmError,
    UnknownNameError,
    UnsupportedError,
)
from ..operands import check_disjoint, check_output, dtype_name, shape_of
from ..tensors import PLAIN, check_kind
from ..vocabulary import BACKEND_VARIABLE
from . import engine, sequence
from .groups import Ranks, check_device, check_same, is_alive, named, ranks_of, tell
from .model import Host
from .options import ALL_GATHER, Options
from .planning import (
    ONE_SHOT,
    OVERLAPPED,
    SEQUENCE,
    WAYS,
    WayPlan,
    backend_of,
    language_of,
    plan_of,
    why_not_result,
)
from .rows import rows_of

DEBUG_VARIABLE = "TCGEMM_DIST_DEBUG"
"""Environment variable that, set to 1, makes every call a debug one."""


class Asked(NamedTuple):
    """All of a call but its tensors, as the operators take it."""

    rows: int
    """M, of all ranks."""
    group: str
    epilogue: str = ""
    out_dtype: torch.dtype | None = None
    compute: str = ""
    backend: str = ""
    rung: str = ""
    way: str = ""
    debug: bool = False

    def of_gradient(self) -> Asked:
        """A product of the backward pass. The rung and the result's dtype are the forward's. The
        one-shot way does not take all dtypes in both operations, and a plan rests on sizes that
        ranks need not share with it: so behind it comes the sequence."""
        way = SEQUENCE if self.way == ONE_SHOT else self.way
        return self._replace(epilogue="", out_dtype=None, rung="", way=way)


def asked_of(
    ranks: Ranks,
    rows: int,
    epilogue: str | None,
    out_dtype: torch.dtype | None,
    compute: str | None,
    backend: str | None,
    kernel: str | None,
    way: str | None,
    debug: bool | None,
) -> Asked:
    """The names of a call, checked; the environment says what the caller does not."""
    if way and way not in WAYS:
        raise UnknownNameError(f"unknown way {way!r}: choose from {', '.join(WAYS)}")
    if backend and backend not in _named_before:
        check_backend(backend)
        _named_before.append(backend)
    if isinstance(rows, bool) or not isinstance(rows, int | torch.SymInt) or rows < 0:
        raise OperandError(f"rows is {rows!r}: an int fits, the rows of all ranks, 0 or more")
    return Asked(
        rows, ranks.name, epilogue or "", out_dtype, compute or "", backend or "", kernel or "",
        way or "", _debug(debug),
    )  # fmt: skip


_named_before: list[str] = []
"""Backends that were found: to look one up takes a lock."""


class Call(NamedTuple):
    """A checked call."""

    op: str
    ranks: Ranks
    asked: Asked
    shape: tuple[int, int]
    """Of this rank's result."""
    dtype: torch.dtype
    """Of the result."""


def check(
    op: str, a: Any, b: Any, bias: Any, scale_a: Any, scale_b: Any, asked: Asked, out: Any = None
) -> Call:
    """The call, from shapes and dtypes alone.

    Raises as ``gemm`` does, with the rank in front of the message.
    """
    kind: Any = None
    tensors = (a, b) if bias is None else (a, b, bias)
    if scale_a is scale_b is out is None and PLAIN.issuperset(map(type, tensors)):
        kind = op, asked, *((t.shape, t.dtype, t.device) for t in tensors)  # all that is looked at
        known = _checked.get(kind)
        if known is not None and is_alive(known.ranks.group):
            return known
    ranks = ranks_of(asked.group)
    with named(ranks):
        for name, t in (("a_shard" if op == ALL_GATHER else "A", a), ("B", b)):
            if not isinstance(t, torch.Tensor):
                raise OperandTypeError(f"{name} is a {type(t).__name__}, not a torch.Tensor")
            if t.dim() != 2:
                raise OperandError(
                    f"{name} has shape {shape_of(t)} and a product over ranks takes matrices: "
                    "flatten leading dimensions with .flatten(0, -2)"
                )
        if out is not None:
            check_kind("out", out)
        told = describe(
            a, b, None, 1.0, 0.0, bias, asked.epilogue, out, asked.out_dtype,
            asked.compute or None, scale_a, scale_b, None,
        )  # fmt: skip
        check_device(ranks, a.device)
        first, last = rows_of(asked.rows, ranks.world, ranks.rank)
        if op == ALL_GATHER:
            _check_shard(a, ranks, asked.rows, last - first, out)
            _check_scale(a, scale_a)
            shape = asked.rows, b.shape[1]
        else:
            shape = last - first, b.shape[1]
        if out is not None:
            check_output(out, shape, a)
            check_disjoint(out, A=a, B=b, bias=bias)
    call = Call(op, ranks, asked, shape, told.dtype)
    if kind is not None:
        if len(_checked) >= MOST_PLANS:
            _checked.clear()
        _checked[kind] = call
    return call


_checked: dict[Any, Call] = {}
"""Kinds of calls in which nothing was wrong."""


def _check_shard(a: torch.Tensor, ranks: Ranks, rows: int, mine: int, out: Any) -> None:
    if a.shape[0] == mine:
        return
    if out is not None and out.dim() and out.shape[0] == rows:
        raise OperandError(
            f"out has shape {shape_of(out)}, and of its {rows} rows over {ranks.world} ranks this "
            f"rank holds {mine}, where a_shard has shape {shape_of(a)}: out has as many rows as "
            "all shards together"
        )
    raise OperandError(
        f"a_shard has shape {shape_of(a)}, {a.shape[0]} rows, and of {rows} rows over "
        f"{ranks.world} ranks this rank holds {mine}: ceil(rows / ranks) on each rank until they "
        "run out, as torch.chunk divides; pass rows= where that is not the sum of the shards"
    )


def _check_scale(a: torch.Tensor, scale: Any) -> None:
    if isinstance(scale, torch.Tensor) and scale.dim() and scale.shape != a.shape[:1]:
        raise OperandError(
            f"scale_a has shape {shape_of(scale)} and a_shard {shape_of(a)}: it is a number, a "
            "tensor of no dimension for all of A, or one of a number for each row of the shard"
        )


class told_to_others(named):
    """What this rank finds wrong with its call the others hear, where calls are compared."""

    __slots__ = ("debug",)

    def __init__(self, ranks: Ranks, debug: bool | None) -> None:
        super().__init__(ranks)
        self.debug = debug

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, TcgemmError) and _compared(self.ranks, _debug(self.debug)):
            tell(self.ranks, self.of(error))
        super().__exit__(kind, error, trace)


def _compared(ranks: Ranks, debug: bool) -> bool:
    """Whether calls of all ranks are compared: gloo itself ends a process where they differ."""
    return ranks.world > 1 and (debug or dist.get_backend(ranks.group) == "gloo")


def _debug(given: bool | None) -> bool:
    return os.environ.get(DEBUG_VARIABLE) == "1" if given is None else given


def check_ranks_agree(
    call: Call, a: torch.Tensor, b: torch.Tensor, bias: Any, scale_a: Any
) -> None:
    """All ranks ask for the same."""
    asked = call.asked
    gathers = call.op == ALL_GATHER
    told: dict[str, Any] = {
        "the operation": call.op,
        **asked._replace(out_dtype=None, group="")._asdict(),
        "the dtype of A": dtype_name(a.dtype),
        "the dtype of the result": dtype_name(call.dtype),
    }
    if gathers:
        told["whether scale_a is by rows"] = isinstance(scale_a, torch.Tensor) and scale_a.dim() > 0
    else:
        told["whether there is a bias"] = bias is not None
    overlaps = asked.way not in (SEQUENCE, ONE_SHOT)  # as it may
    if gathers or overlaps:
        told["K"] = a.shape[1]
    if not gathers or overlaps:
        told["N"] = b.shape[1]
    said = {name: "none" if value == "" else str(value) for name, value in told.items()}
    check_same(call.ranks, said)


def plan(
    call: Call, a: torch.Tensor, b: torch.Tensor, bias: Any, scales: tuple[Any, Any]
) -> WayPlan:
    """The way that the call takes; the same on every rank.

    Raises UnsupportedError where a way is asked for that does not take the call.
    """
    if not _remembers(a.device):
        return _plan(call, a, b, bias, scales)
    # All that a plan rests on: to find it out anew takes ten times as long.
    kind = (
        call.op, call.ranks.world, call.asked, call.dtype, a.shape[1], b.shape[1], a.dtype, b.dtype,
        a.device, bias is None, *map(os.environ.get, _VARIABLES),
    )  # fmt: skip
    known = _plans.get(kind)
    if known is None:
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        known = _plans[kind] = _plan(call, a, b, bias, scales)
    return known


MOST_PLANS = 4096
_VARIABLES = (BACKEND_VARIABLE, "CUDA_DEVICE_MAX_CONNECTIONS")
_plans: dict[Any, WayPlan] = {}


def _remembers(device: torch.device) -> bool:
    return device.type == "cuda"


def _plan(
    call: Call, a: torch.Tensor, b: torch.Tensor, bias: Any, scales: tuple[Any, Any]
) -> WayPlan:
    asked, ranks = call.asked, call.ranks
    M, N, K = asked.rows, b.shape[1], a.shape[1]
    why_not = not_one_shot = None
    if asked.way in ("", OVERLAPPED):
        why_not = _why_not_overlapped(call, a, b, bias, scales)
    if asked.way in ("", ONE_SHOT):
        not_one_shot = _why_not_one_shot(call, a, b)
    dtype, host = dtype_name(a.dtype), Host(gpu_of(a.device))
    language = language_of(backend_of(asked.backend), dtype)
    bounds = engine.bounds_us(call.op, M, N, K, dtype, ranks.world)
    found = plan_of(
        call.op, M, N, K, dtype, ranks.world, host, why_not, language, not_one_shot, bounds
    )
    if not asked.way:
        return found
    reason = why_not if asked.way == OVERLAPPED else not_one_shot
    if reason is not None:
        raise UnsupportedError(
            f"rank {ranks.rank} of {ranks.world}: way={asked.way!r} does not take the call: "
            f"{reason}; leave way= away"
        )
    return found._replace(way=asked.way, why="it was asked for")


def options_of(
    call: Call, bias: Any, scales: tuple[Any, Any], chosen: WayPlan | None = None
) -> Options:
    """The call for the overlapped engine; in the plan's language where none is named."""
    asked, backend = call.asked, backend_of(call.asked.backend)
    if backend == AUTO and chosen is not None and chosen.times is not None:
        backend = chosen.times.language
    return Options(
        backend, asked.rung or None, bias, asked.epilogue, asked.debug, asked.rows, *scales
    )


def _why_not_overlapped(
    call: Call, a: torch.Tensor, b: torch.Tensor, bias: Any, scales: tuple[Any, Any]
) -> str | None:
    of, asked = dtype_name(call.dtype), call.asked
    reason = why_not_result(call.ranks.world, dtype_name(a.dtype), of, asked.compute)
    if reason is not None:
        return reason
    found = engine.engine()
    if found is None:
        return engine.NOT_THERE
    options = options_of(call, bias, scales)
    refusal: str | None = found.why_not(call.op, a, b, call.ranks.group, options)
    return refusal


def _why_not_one_shot(call: Call, a: torch.Tensor, b: torch.Tensor) -> str | None:
    found: Any = engine.engine()
    if found is None:
        return engine.NOT_THERE
    refusal: str | None = found.why_not_one_shot(
        call.op, a, b, call.ranks.group, call.asked.rows, call.dtype
    )
    return refusal


@cache
def gpu_of(device: torch.device) -> str:
    """Slug of the GPU; "" of a CPU."""
    if device.type != "cuda":
        return ""
    from .. import gpus

    return gpus.lookup(torch.cuda.get_device_name(device)).slug


def run(
    call: Call, a: Any, b: Any, bias: Any, scale_a: Any, scale_b: Any, out: Any = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The result, and the gathered A where the way that was taken has it."""
    asked, ranks = call.asked, call.ranks
    with torch.no_grad(), named(ranks):
        if _compared(ranks, asked.debug):
            check_ranks_agree(call, a, b, bias, scale_a)
        chosen = plan(call, a, b, bias, (scale_a, scale_b))
        result = out
        if out is None or (chosen.way != SEQUENCE and not out.is_contiguous()):
            result = a.new_empty(call.shape, dtype=call.dtype)
        whole = None
        if chosen.way == OVERLAPPED:
            found: Any = engine.engine()
            product = found.all_gather_matmul if call.op == ALL_GATHER else (
                found.matmul_reduce_scatter
            )  # fmt: skip
            product(a, b, result, ranks.group, options_of(call, bias, (scale_a, scale_b), chosen))
        else:
            local = {
                "compute": asked.compute or None, "scale_a": scale_a, "scale_b": scale_b,
                "backend": backend_of(asked.backend), "kernel": asked.rung or None,
            }  # fmt: skip
            after = {"bias": bias, "epilogue": asked.epilogue or None}
            if chosen.way == ONE_SHOT:
                found = engine.engine()
                found.one_shot_product(
                    call.op, gemm, a, b, result, ranks.group, asked.rows, asked.debug,
                    **local, **after,
                )  # fmt: skip
            elif call.op == ALL_GATHER:
                whole = sequence.all_gather_matmul(
                    a, b, result, asked.rows, ranks, **local, **after
                )
            else:
                sequence.matmul_reduce_scatter(a, b, result, ranks, **local, **after)
        if out is not None and result is not out:
            out.copy_(result)
            result = out
    return result, whole
