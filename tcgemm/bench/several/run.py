"""A case over the ranks: each contender verified, then all timed in turns.

Every rank runs this; what one of them meets, all are told, so that none waits for another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from ...accuracy import poisoned
from ...dist import engine, model
from ...dist.groups import Ranks
from ...dist.options import ALL_GATHER
from ...dist.planning import ONE_SHOT
from ...errors import OperandTypeError, TcgemmError, UnsupportedError, first_line
from ...problem import ITEMSIZE, OUTPUTS
from ..ahead import Ahead
from ..case import Case as LocalCase
from ..contender import UNASKED
from ..worker import Unit
from .cases import Case
from .contenders import GEMM, LANGUAGES, NCCL, PLANNED, TORCH, call_of, plan_of, sampler, slowest
from .judging import Judge, Operands, drawn
from .pairing import figures, how_many, take_rounds

COMPILES_S = 300.0
"""For which the local products' compilers are waited for; what is left compiles at its first call.
"""


@dataclass
class Outcome:
    """What became of a contender on a case, on all ranks."""

    status: str
    reason: str = ""
    error_ratio: float | None = None
    exact_errors: int | None = None
    call: Callable[[], torch.Tensor] | None = field(default=None, repr=False)


def contenders(languages: Sequence[str] = LANGUAGES) -> list[str]:
    """The names, in order; the overlapped way in each language."""
    return [NCCL, TORCH, PLANNED, ONE_SHOT, *(f"overlapped/{language}" for language in languages)]


def kept(languages: Sequence[str] = LANGUAGES) -> list[str]:
    """Those of the contenders that have a row of their own."""
    return [name for name in contenders(languages) if name not in (NCCL, TORCH)]


def run_case(
    case: Case,
    ranks: Ranks,
    device: torch.device,
    *,
    seed: int,
    budget_s: float,
    backend: str | None = None,
    languages: Sequence[str] = LANGUAGES,
    timed: bool = True,
    timeline: bool = False,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of a case, one for PLANNED, ONE_SHOT and each overlapped language, and its stamps.

    Args:
        backend: of PLANNED and ONE_SHOT; by default as tcgemm.dist has it.
        timed: whether to time; nothing is where there is no GPU.
        timeline: whether to take the stamps.
    """
    normal, whole = (drawn(case, ranks, device, seed, exact) for exact in (False, True))
    judge = Judge(normal, whole)
    found = {name: _verified(name, normal, whole, judge, backend) for name in contenders(languages)}
    calls = {name: of.call for name, of in found.items() if of.status == "ok" and of.call}
    times: dict[str, list[float]] = {}
    if timed and any(name not in (NCCL, TORCH) for name in calls):
        samplers = {name: sampler(call, ranks) for name, call in calls.items()}
        samplers[GEMM] = sampler(call_of(GEMM, normal, None), ranks)
        largest = slowest(ranks, device)
        for sample in samplers.values():
            sample()
        estimates = largest([sample() for sample in samplers.values()])
        times = take_rounds(samplers, how_many(estimates, budget_s), largest)
        for name in calls:
            _verified_again(found[name], normal, judge)
            if found[name].status != "ok":
                times.pop(name)
    del judge
    plan = plan_of(normal)
    torch_is = found[TORCH]
    rows = []
    for name in kept(languages):
        of = found[name]
        row = {
            **{column: getattr(case, column) for column in Case.__slots__},
            "contender": name, "seed": seed, "status": of.status, "reason": of.reason,
            "error_ratio": of.error_ratio, "exact_errors": of.exact_errors,
            "way": plan.way if name == PLANNED else name.partition("/")[0],
            "why": plan.why if name == PLANNED else "it was asked for",
            "torch_status": torch_is.status + (f": {torch_is.reason}" if torch_is.reason else ""),
        }  # fmt: skip
        if name in times:
            row |= figures(times, name, _transfer_ms(case), GEMM, NCCL, TORCH)
        rows.append(row)
    right = [name for name in times if name.startswith("overlapped/")]
    return rows, [stamp for name in right if timeline for stamp in _stamps(name, normal)]


def compile_ahead(
    ranks: Ranks, languages: Sequence[str], cases: Sequence[Case], timeline: bool
) -> None:
    """Have what the cases' overlapped and local products are compiled to, made by one rank while
    the others wait.

    Raises TcgemmError on every rank where it fails on that one.
    """
    trouble = [""]
    if ranks.rank == 0:
        local = Ahead(local_products(cases, languages), "cuda")
        try:
            found: Any = engine.engine()
            if found is not None:
                dtypes = {getattr(torch, case.dtype) for case in cases}
                found.prepare(languages, dtypes, stamped=timeline)
            local.wait(COMPILES_S)
        except Exception as error:
            trouble = [first_line(error)]
        finally:
            local.end()
    dist.broadcast_object_list(trouble, group=ranks.group)
    if trouble[0]:
        raise TcgemmError(f"what the cases need does not compile: {trouble[0]}")


def local_products(cases: Sequence[Case], languages: Sequence[str]) -> list[Unit]:
    """The products of one GPU that ways other than the overlapped one take, once each."""
    products = dict.fromkeys((*case.local, case.dtype) for case in cases)
    local = [
        LocalCase("several", M, N, K, dtype, OUTPUTS[dtype][0], "nt", "of one GPU of several")
        for M, N, K, dtype in products
    ]
    return [
        Unit(number, case, language, UNASKED)
        for number, case in enumerate(local)
        for language in languages
    ]


def _transfer_ms(case: Case) -> float:
    """Of the bytes that each rank has to receive, by the links alone."""
    M, N, K = case.local
    size = M * (K * ITEMSIZE[case.dtype] if case.op == ALL_GATHER else
                N * ITEMSIZE[OUTPUTS[case.dtype][0]])  # fmt: skip
    return model.transfer_us(size, case.world, model.Host("")) / 1e3


def _verified(
    name: str, normal: Operands, whole: Operands, judge: Judge, backend: str | None
) -> Outcome:
    """Run a contender on both sets of operands, and agree with the other ranks on what it is."""
    mine = Outcome("ok")
    try:
        call = call_of(name, normal, backend)
        exactly = call_of(name, whole, backend)
    except UnsupportedError as error:
        mine = Outcome("unsupported", first_line(error))
    except Exception as error:
        mine = Outcome("failed", first_line(error))
    agreed = _agreed(mine, normal.ranks)
    if agreed.status != "ok":
        return agreed
    try:
        _poison(normal)
        mine.error_ratio = judge.error_ratio(call())
        mine.exact_errors = judge.exact_errors(exactly())
        if not mine.error_ratio <= 1 or mine.exact_errors:
            mine.status, mine.reason = "wrong", _wrong(mine)
    except (UnsupportedError, OperandTypeError) as error:
        mine = Outcome("unsupported", first_line(error))
    except Exception as error:
        mine = Outcome("failed", first_line(error))
    agreed = _agreed(mine, normal.ranks)
    agreed.call = call
    return agreed


def _verified_again(of: Outcome, normal: Operands, judge: Judge) -> None:
    """Run what was timed once more; where it is right no longer, on any rank, the outcome says so.

    Raises nothing that one rank alone would meet: all ranks agree on what became of it.
    """
    assert of.call is not None
    mine = Outcome("ok")
    try:
        _poison(normal)
        mine.error_ratio = judge.error_ratio(of.call())
        if not mine.error_ratio <= 1:
            mine.status = "wrong"
            mine.reason = f"right at first, and after it was timed {_wrong(mine)}"
    except Exception as error:
        mine.status, mine.reason = "failed", first_line(error)
    agreed = _agreed(mine, normal.ranks)
    if agreed.status != "ok":
        of.status, of.reason, of.error_ratio = agreed.status, agreed.reason, agreed.error_ratio


def _poison(of: Operands) -> None:
    """Leave NaN in memory that a contender's buffers may come from."""
    for _ in range(2):
        poisoned(of.shape, of.out_dtype, of.a.device)


def _wrong(of: Outcome) -> str:
    if of.exact_errors:
        return f"{of.exact_errors} elements differ on exact integers"
    ratio = of.error_ratio
    if ratio is None or not math.isfinite(ratio):
        return "elements are not finite or never written"
    return f"the worst error is {ratio:.3g} times its bound"


ORDER = ("ok", "unsupported", "failed", "wrong")
"""Of what the ranks met, the last one counts."""


def _agreed(mine: Outcome, ranks: Ranks) -> Outcome:
    told: list[Any] = [None] * ranks.world
    dist.all_gather_object(
        told, (mine.status, mine.reason, mine.error_ratio, mine.exact_errors), group=ranks.group
    )
    worst = max(range(ranks.world), key=lambda rank: ORDER.index(told[rank][0]))
    status, reason, *_ = told[worst]
    where = f"rank {worst}: " if reason and not reason.startswith("rank ") else ""
    ratios = [ratio for _, _, ratio, _ in told if ratio is not None]
    errors = [count for _, _, _, count in told if count is not None]
    return Outcome(
        status, where + reason, max(ratios, default=None), sum(errors) if errors else None
    )


def _stamps(name: str, of: Operands) -> list[dict[str, Any]]:
    """One call's clock stamps of all ranks (dist/engine.py)."""
    found: Any = engine.engine()
    told: list[Any] = [None] * of.ranks.world
    language = name.partition("/")[2]
    stamps = found.stamps(of.case.op, of.a, of.b, of.ranks.group, language, of.case.M)
    dist.all_gather_object(told, list(stamps), group=of.ranks.group)
    case = {name: getattr(of.case, name) for name in ("op", "M", "N", "K", "dtype")}
    return [
        {
            **case, "contender": name, "rank": rank, "what": what, "piece": piece,
            "begin_us": begin, "end_us": end,
        }
        for rank, of_rank in enumerate(told)
        for what, piece, begin, end in of_rank
    ]  # fmt: skip
