"""The one door to the overlapped engine, tcgemm.dist.overlap, and its functions.

``why_not(op, a, b, group, options) -> str | None``: a sentence that says why it does not take the
call, None where it does. The answer is the same on every rank: it may look at dtypes, at N, K and
``options.rows``, at the group and the GPUs, and not at the rows that this rank happens to hold.

``all_gather_matmul(a_shard, b, out, group, options) -> out``: a_shard [rows of this rank, K] as
rows.rows_of divides ``options.rows``, b [K, N], out [options.rows, N].

``matmul_reduce_scatter(a, b, out, group, options) -> out``: a [options.rows, K of this rank],
b [K of this rank, N], out [rows of this rank, N].

``why_not_one_shot(op, a, b, group, rows, out_dtype) -> str | None``: the same of the one-shot way.

``one_shot_product(op, product, a, b, out, group, rows, debug, bias=, epilogue=, **asked) -> out``:
either product by the one-shot way. ``product`` is called as ``gemm``, with ``asked``.

``bounds_us(op, M, N, K, dtype, world) -> ((language, (least, most)), ...)``: between what
microseconds an overlapped product takes by the tiles of its plan, where they say so; M of all
ranks, N and K of one.

``stamps(op, a, b, group, backend, rows) -> list of (what, piece, begin_us, end_us)``: the clock
stamps of one more call on this rank, on one clock of all ranks, such as ("copy", 3, ...),
("wait", 3, ...) and ("tiles", 3, ...). The benchmark keeps them for the report's time line.

``prepare(backends, dtypes, ...)``: compile ahead what takes long to, by one rank for all.

``op`` is one of options.OPS; a call of ``why_not`` has a_shard or a as its ``a``. ``out`` has the
first dtype of problem.OUTPUTS for that of A, and is contiguous. Work is ordered on the current
stream of A's device. No gradient is recorded: the operators see to that.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .planning import Bounds

NOT_THERE = "this installation has no overlapped engine (tcgemm.dist.overlap)"


_NAME = f"{__package__}.overlap"


@cache
def is_there() -> bool:
    """Whether this installation has the engine. It is not imported for that."""
    return find_spec(_NAME) is not None


@cache
def engine() -> ModuleType | None:
    """The engine; None where this installation has none. An error within it is an error."""
    return import_module(_NAME) if is_there() else None


def bounds_us(op: str, M: int, N: int, K: int, dtype: str, world: int) -> Bounds:
    """The engine's, and nothing where there is no engine."""
    found: Any = engine()
    return () if found is None else found.bounds_us(op, M, N, K, dtype, world)
