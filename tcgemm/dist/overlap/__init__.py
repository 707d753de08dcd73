"""Products over memory that ranks share: the engine behind tcgemm.dist (see ../engine.py).

plan.py chooses tile and parts; memory.py is what ranks share; protocol.py is a call that hides its
communication, step by step, and kinds.py what of it is made once; one_shot.py has collectives of
one kernel beside a product; transports.py reaches the peers; the kernels are
tcgemm.triton_kernels.overlap. Why it is right: docs/lab/several_gpus_protocol.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from math import inf
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist

from ...operands import dtype_name
from ...problem import ITEMSIZE, OUTPUTS
from .. import planning
from ..groups import is_alive
from ..options import ALL_GATHER, REDUCE_SCATTER, Options
from ..planning import OVERLAPS, UNIT_BYTES, Bounds
from ..rows import rows_of
from . import one_shot
from .kinds import Kernels
from .plan import (
    CARRIES,
    GATHERED_IN_CUDA,
    OverlapPlan,
    gather_plan,
    gathered_us,
    scatter_plan,
    tiles_of,
    two_waves_us,
)
from .protocol import Rank
from .timeline import Stamp, stamps_of
from .transports import GpuTransport, ProcessTransport

BACKENDS = {
    "triton": "tcgemm.triton_kernels.overlap.run",
    "cuda": "tcgemm.cuda_ref.overlap.run",
}
"""Language -> the module of its kernels. "auto" takes the first."""

ONE_SHOT_KERNELS = "tcgemm.triton_kernels.overlap.run_one_shot"
"""The module of the one-shot way's kernels."""

CARRYING = ("triton",)
"""Languages that do what a plan says of ``carried``, ``wide`` and ``early``."""

RESULTS: dict[torch.dtype, torch.dtype] = {
    getattr(torch, name): getattr(torch, OUTPUTS[name][0]) for name in OVERLAPS
}
"""The dtypes of operands, and of their result."""

_ranks: dict[tuple[str, str], tuple[Any, Rank]] = {}
_making: dict[tuple[str, str], Lock] = {}
_lock = Lock()


def why_not(op: str, a: torch.Tensor, b: torch.Tensor, group: Any, options: Any) -> str | None:
    """Why the engine does not take the call, in a sentence with the numbers; None where it does.

    The same on every rank of the group: see ../engine.py.
    """
    M, (K, N) = options.rows, b.shape
    world = dist.get_world_size(group)
    if b.dtype != a.dtype:
        return f"operands are {dtype_name(a.dtype)} and {dtype_name(b.dtype)}, and it takes one"
    sentence = planning.why_not(
        op, M, N, K, dtype_name(a.dtype), world, options.backend, options.kernel
    )
    if sentence is None:
        sentence = _why_not_here(a, world)
    if sentence is not None:
        return sentence
    plan = _plan(op, M, N, K, world, options, a)
    return planning.why_not_tiles(plan.tiles(N))


@lru_cache(maxsize=4096)
def bounds_us(op: str, M: int, N: int, K: int, dtype: str, world: int) -> Bounds:
    """Between what microseconds an overlapped product takes by the number of its tiles.

    An all-gather of less than a wave of tiles hides nothing: the tiles of rows that arrive last
    begin when these are there, and take as long as all. A reduce-scatter in CUDA of two waves reads
    B once, which one of more waves does not. Rates of large products say nothing of either.
    """
    if planning.why_not(op, M, N, K, dtype, world) is not None:
        return ()
    only = planning.language_of(None, dtype)
    languages = (only,) if only else tuple(BACKENDS)
    if op == ALL_GATHER:
        size = ITEMSIZE[dtype]
        return tuple((each, (gathered_us(M, N, K, world, each, size), inf)) for each in languages)
    if "cuda" not in languages:
        return ()
    most = two_waves_us(M, N, K, world)
    return () if most is None else (("cuda", (0.0, most)),)


def _why_not_here(a: torch.Tensor, world: int) -> str | None:
    if not a.is_cuda:
        if torch.cuda.is_available():
            return "the operands are on the CPU: move them with .cuda()"
        return None
    capability = torch.cuda.get_device_capability(a.device)
    if capability < (9, 0):
        return "its kernels need compute capability 9.0 and this GPU has {}.{}".format(*capability)
    visible = torch.cuda.device_count()
    if visible < world and visible > 1:
        return f"{world} ranks and {visible} GPUs are visible: it takes GPUs of one host"
    return None


def _plan(
    op: str, M: int, N: int, K: int, world: int, options: Any, like: torch.Tensor
) -> OverlapPlan:
    """As asked, or as is chosen, without what the language does not do."""
    language = _language(options.backend)
    if options.plan is not None:
        return _as_spoken(options.plan, options.backend)
    fused = options.bias is not None or bool(options.epilogue)
    carries = CARRIES and language in CARRYING and not _one_queue()
    return _chosen(
        op, M, N, K, world, language, like.itemsize, fused, not like.is_cuda, carries
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _chosen(
    op: str, M: int, N: int, K: int, world: int, language: str, itemsize: int, fused: bool,
    on_cpu: bool, carries: bool,
) -> OverlapPlan:  # fmt: skip
    tiles = tiles_of(op, language, itemsize, fused, on_cpu)
    if op == ALL_GATHER:
        plan = gather_plan(M, N, K, world, tiles, itemsize)
    else:
        plan = scatter_plan(M, N, world, tiles, K, itemsize, carries=carries)
    return _as_spoken(plan, language)


def _one_queue() -> bool:
    """Whether all streams may share a queue of the hardware, so that copies behind a product wait
    for its end. It was not tried whether streams of other priorities do, too."""
    return os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"


def _as_spoken(plan: OverlapPlan, backend: str) -> OverlapPlan:
    """The plan without what the language does not do."""
    if _language(backend) in CARRYING:
        return plan
    return replace(plan, carried=False, wide=False, early=False)


def _language(backend: str) -> str:
    return next(iter(BACKENDS)) if backend == "auto" else backend


def all_gather_matmul(
    a_shard: torch.Tensor, b: torch.Tensor, out: torch.Tensor, group: Any, options: Any
) -> torch.Tensor:
    """out[M, N] = f(A @ b + bias), A[M, K] being the rows of all ranks, one below the other.

    Args:
        a_shard: [rows of this rank, K], as ../rows.py divides ``options.rows``.
        b: [K, N], of any strides; where TMA cannot reach it, it is copied in each call.
        out: [M, N], of RESULTS' dtype, contiguous; returned.
        group: of ranks of one host, all of which make this call.

    Raises PeerError in debug mode where a peer does not come; RuntimeError where memory that ranks
    share would have to grow while a graph is captured.
    """
    rank, kernels = _rank(group, b), _kernels(options.backend)
    M, (K, N) = options.rows, b.shape
    plan = _plan(ALL_GATHER, M, N, K, rank.transport.world, options, b)
    with _on(b):
        options = _scaled(ALL_GATHER, options, b.device)
        return rank.gather(kernels, _rows(a_shard), _reached(b), out, plan, options)


def matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, group: Any, options: Any
) -> torch.Tensor:
    """out[rows of this rank, N] = f(sum over ranks of a @ b + bias), summed in float32.

    Each peer's partial sum is rounded to the dtype of ``out`` on its way, as NCCL's is; this rank's
    own is not. They are added in the order of ranks: a call repeats to the bit.

    Args:
        a: [M, K of this rank]; b: [K of this rank, N], of any strides.
        out: [rows of this rank, N], as ../rows.py divides M, of RESULTS' dtype, contiguous;
            returned.

    Raises what all_gather_matmul raises.
    """
    rank, kernels = _rank(group, b), _kernels(options.backend)
    (M, K), N = a.shape, b.shape[1]
    plan = _plan(REDUCE_SCATTER, M, N, K, rank.transport.world, options, b)
    with _on(b):
        options = _scaled(REDUCE_SCATTER, options, b.device)
        return rank.scatter(kernels, _rows(a), _reached(b), out, plan, options)


def why_not_one_shot(
    op: str, a: torch.Tensor, b: torch.Tensor, group: Any, rows: int, out_dtype: torch.dtype
) -> str | None:
    """Why the one-shot way does not take the call, in a sentence; None where it does.

    The same on every rank of the group: see ../engine.py.
    """
    world, (K, N) = dist.get_world_size(group), b.shape
    dtype, result = dtype_name(a.dtype), dtype_name(out_dtype)
    sentence = planning.why_not_one_shot(op, rows, N, K, dtype, world, result)
    if sentence is None and not _has_triton():
        sentence = "its kernels are Triton's, and triton is not installed"
    return sentence or _why_not_here(a, world)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def one_shot_product(
    op: str, product: Any, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, group: Any,
    rows: int, debug: bool, *, bias: torch.Tensor | None, epilogue: str | None, **asked: Any,
) -> torch.Tensor:  # fmt: skip
    """Either product by collectives of one kernel, and ``product``, which is called as ``gemm`` is.

    Args:
        a: of an all-gather the rows of this rank, else [rows, K of this rank], of any dtype that
            ``product`` takes; b: likewise.
        out: as for the functions above, of any dtype that the sum over ranks may have.
        asked: of ``product``.

    Raises what all_gather_matmul raises.
    """
    rank, kernels = _rank(group, b), import_module(ONE_SHOT_KERNELS)
    with _on(b):
        if op == ALL_GATHER:
            return one_shot.all_gather_matmul(
                rank, kernels, product, a, b, out, rows, debug,
                bias=bias, epilogue=epilogue, **asked,
            )  # fmt: skip
        return one_shot.matmul_reduce_scatter(
            rank, kernels, product, a, b, out, debug, bias, epilogue or "", **asked
        )


def stamps(
    op: str, a: torch.Tensor, b: torch.Tensor, group: Any, backend: str, rows: int
) -> list[Stamp]:
    """Clock stamps of a call on this rank; all ranks make it. See timeline.py."""

    def call(into: torch.Tensor) -> None:
        asked = Options(backend, rows=rows, stamps=into)
        first, behind = rows_of(rows, dist.get_world_size(group), dist.get_rank(group))
        height = rows if op == ALL_GATHER else behind - first
        product = all_gather_matmul if op == ALL_GATHER else matmul_reduce_scatter
        out = b.new_empty(height, b.shape[1], dtype=RESULTS[b.dtype])
        product(a, b, out, group, asked)

    return stamps_of(op, _rank(group, b).transport, group, call)


def prepare(
    backends: Iterable[str],
    dtypes: Iterable[torch.dtype],
    epilogues: Iterable[str] = ("",),
    stamped: bool = False,
) -> None:
    """Compile what nvcc makes for a GPU of these products, with a bias where there is an epilogue,
    and of ``stamped`` what writes clock stamps besides. Triton compiles in seconds at first use."""
    if "cuda" in backends:
        module: Any = import_module(BACKENDS["cuda"])
        module.prepare(dtypes, epilogues, GATHERED_IN_CUDA, stamped)


def _on(x: torch.Tensor) -> Any:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _rows(a: torch.Tensor) -> torch.Tensor:
    """A as copies and TMA take it: its rows one after the other, from a multiple of 16 bytes on."""
    a = a.contiguous()
    return a if a.data_ptr() % 16 == 0 else a.clone()


def _scaled(op: str, options: Options, device: torch.device) -> Options:
    """The options with scales as kernels read them: float32, one behind the other, and without a
    dimension where one is for all."""

    def tensor(scale: torch.Tensor | float | None, of_a_shard: bool) -> torch.Tensor | None:
        if scale is None:
            return None
        if not isinstance(scale, torch.Tensor):
            return torch.full((), scale, dtype=torch.float32, device=device)
        # A shard of one row has a scale of one row.
        return scale.contiguous() if of_a_shard or scale.numel() > 1 else scale.reshape(())

    a, b = options.scale_a, options.scale_b
    if a is None and b is None:
        return options
    return replace(options, scale_a=tensor(a, op == ALL_GATHER), scale_b=tensor(b, False))


def _reached(b: torch.Tensor) -> torch.Tensor:
    """B as TMA takes it: rows or columns contiguous, in steps of 16 bytes. 8-bit floats lie by
    columns: the tensor cores read them along K only."""
    if b.itemsize == 1 and not (
        b.stride(0) == 1 and b.stride(1) % UNIT_BYTES == 0 and b.stride(1) >= b.shape[0]
        and b.data_ptr() % UNIT_BYTES == 0
    ):  # fmt: skip
        return b.mT.clone(memory_format=torch.contiguous_format).mT
    for x in (b, b.mT):
        pitch = x.stride(0) * x.itemsize
        whole = pitch % 16 == 0 and x.stride(0) >= x.shape[1]
        if x.stride(1) == 1 and whole and b.data_ptr() % 16 == 0:
            return b
    return (
        b.contiguous() if b.data_ptr() % 16 == 0 else b.clone(memory_format=torch.contiguous_format)
    )


def _kernels(backend: str) -> Kernels:
    module: Any = import_module(BACKENDS[_language(backend)])
    return module


def _rank(group: Any, like: torch.Tensor) -> Rank:
    """This rank of the group, with the memory that it shares; made at the group's first call."""
    group = group if group is not None else dist.group.WORLD
    key = group.group_name, str(like.device)
    with _lock:
        making = _making.setdefault(key, Lock())
    # A lock a group: what is made together with peers waits for no other group's peers.
    with making:
        known = _ranks.get(key)
        # A group that was destroyed may have left its name to another.
        if known is None or known[0] is not group:
            _forget_destroyed()
            transport = (
                GpuTransport(group, like.device) if like.is_cuda else ProcessTransport(group)
            )
            known = _ranks[key] = group, Rank(transport)
        return known[1]


def _forget_destroyed() -> None:
    """Let go of groups that are destroyed, and of the memory that was shared with their ranks."""
    with _lock:
        for key, (group, rank) in list(_ranks.items()):
            if not is_alive(group):
                rank.transport.synchronize()
                del _ranks[key]
