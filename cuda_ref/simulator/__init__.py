"""CUDA kernels on a CPU: the ladder's .cu files, compiled by g++, run, checked and counted.

``run`` computes C, as fast as this goes. ``simulate`` runs the same kernel with every load and
store observed, and returns what was found wrong and what was counted. See docs/simulator.md.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..build import store
from ..build.toolchain import built_by_case
from ..build.toolchain import source as rung_source
from ..fusion import ACTIVATIONS, AUX, COMPUTES, DTYPES, case, mma_tile
from ..planning.launch import launch_plan
from . import abi, fork_server
from .build import function_at, library, lock_of, shared_symbols
from .clusters import refusal
from .cures import explained
from .findings import Finding, describe
from .report import L2, Counts, Machine, Report, SimulationError, counts_of, l2_of
from .timeline import Span, Timeline, read

__all__ = [
    "L2", "ORDERS", "Counts", "Finding", "Machine", "Report", "SimulationError", "Span",
    "Timeline", "parse_order", "run", "simulate", "source_of",
]  # fmt: skip

ORDERS = {"forward": 0, "reverse": 1, "random": 2, "late": 3}


def parse_order(order: str) -> tuple[int, int]:
    """(number, seed or warp) of ``forward``, ``reverse``, ``random:SEED`` or ``late:WARP``.

    Raises ValueError for anything else.
    """
    name, _, number = order.partition(":")
    try:
        if name not in ORDERS or (number and name not in ("random", "late")):
            raise ValueError
        return ORDERS[name], int(number or 0)
    except ValueError:
        raise ValueError(
            f"order {order!r}: it is forward, reverse, random:SEED or late:WARP, e.g. random:7"
        ) from None


def source_of(name: str) -> Path:
    """The .cu file of a rung."""
    try:
        return rung_source(name)
    except LookupError as error:
        raise ValueError(str(error)) from None


def run(name: str, a: Any, b: Any, c: Any, fusion: Any = None, **plan: int) -> None:
    """C[M, N] = A[M, K] @ B[K, N] on CPU tensors by the rung's own code; C is written in place.

    ``fusion`` holds what else is asked (see fusion.py), None for a plain product; ``plan`` what the
    launcher is to obey.

    Raises SimulationError where the kernel crashes, hangs or stops at a barrier, and RuntimeError
    where it cannot be compiled (g++ is the only need).
    """
    simulate(source_of(name), a, b, c, fusion=fusion, plan=plan).raise_if_stopped()


def simulate(
    source: str | Path,
    a: Any,
    b: Any,
    c: Any,
    *,
    fusion: Any = None,
    plan: Mapping[str, int] | None = None,
    order: str = "forward",
    check: bool = False,
    count: bool = False,
    machine: Machine | None = None,
    writers: Any = None,
    timeline: Timeline | None = None,
    workers: int | None = None,
    timeout_s: float = 600.0,
    defines: tuple[str, ...] = (),
    writes_bias: bool = False,
    told: bool = False,
) -> Report:
    """Runs one .cu file on CPU tensors (strided, K >= 1, M, N, batch >= 1) and writes C.

    The tensors are all 2-D, or all 3-D with the batch first.

    Args:
        source: a file that defines ``int tcgemm_launch(const tcgemm::Gemm&, cudaStream_t)``.
        fusion: what is asked besides the plain product, or None (see ../fusion.py).
        plan: numbers for the launcher, by name (see planning/launch.py); those of the build, as the
            tile of wgmma_persistent, are not among them.
        order: in which legal order lanes, warps and blocks run: forward, reverse, random:SEED, or
            late:WARP, where that warp of a block goes on only when no other one can.
        check: report bad accesses, races, divergent barriers and elements of C left unwritten.
        count: count requests, sectors, wavefronts, barriers and tensor-core instructions.
        machine: the GPU whose L2 is modelled; needs ``count``.
        writers: a contiguous int32 CPU tensor of the shape of C for the number of the block that
            wrote each element, plus 1, blocks counted along x first; 0 where none did. Needs
            ``check``.
        timeline: follow each warp and return what it did when; needs ``count``.
        workers: processes that share the blocks; by default one per core.
        timeout_s: seconds after which the kernel counts as hung.
        defines: further flags of its build.
        writes_bias: the kernel writes the bias, which is a result as C is.
        told: the library's variables have been set in this process, or it reads memory of this
            process besides its operands. So this process forks, and no fork server.

    Findings do not raise: see Report.findings and Report.raise_if_stopped.
    """
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"no file {path}")
    order_number, seed = parse_order(order)
    observed = check or count
    macros = built_by_case(path)
    if macros:
        defines = case(a.dtype, fusion, c.dtype, c.dim() == 3, macros) + defines
    try:
        library_path = library(path, observed, defines)
    except RuntimeError as error:
        raise RuntimeError(explained(path, str(error))) from error
    request = abi.Request()
    request.alpha, request.compute = 1.0, COMPUTES["float32"]
    operands = [abi.matrix(a), abi.matrix(b), abi.matrix(c)]
    if fusion is not None:
        request.alpha, request.beta = float(fusion.alpha), float(fusion.beta)
        request.activation, request.aux = ACTIVATIONS[fusion.epilogue], AUX[fusion.aux]
        request.compute = COMPUTES[fusion.compute]
        request.mma_m, request.mma_n = mma_tile(fusion.mma_shape)
        operands += [
            abi.matrix(fusion.c),
            abi.vector(fusion.bias, 1),
            abi.vector(fusion.scale_a, 0),
            abi.vector(fusion.scale_b, 1),
        ]
    for i, operand in enumerate(operands):
        request.operands[i] = operand
    for i, number in enumerate(launch_plan(plan or {})):
        request.plan[i] = number
    request.dtype_in, request.dtype_out = _dtype(a), _dtype(c)
    request.order, request.seed = order_number, seed & (2**64 - 1)
    request.check, request.count = check, count
    request.writes_bias = writes_bias
    request.writes_c_in = fusion is not None and fusion.aux == "write"
    request.writers = writers.data_ptr() if writers is not None else None
    request.workers = workers or len(os.sched_getaffinity(0))
    request.timeout_s = timeout_s
    if timeline is not None:
        request.timeline_latency, request.timeline_blocks = timeline.latency, timeline.blocks
        request.workers = 1  # which writes down all blocks, and of several launches the order
    if machine is not None:
        request.sms, request.threads_per_sm = machine.sms, machine.threads_per_sm
        request.shared_per_sm, request.l2_bytes = machine.shared_per_sm, machine.l2_bytes
    arrays, guards = shared_symbols(library_path)
    request.shared_static = max(arrays.values(), default=0)
    if request.shared_static > abi.MAX_STATIC_SHARED:
        raise RuntimeError(
            f"{path.name} has {request.shared_static:,} bytes of __shared__ arrays in one kernel "
            f"and nvcc takes {abi.MAX_STATIC_SHARED:,}: declare extern __shared__ instead and "
            "give tcgemm::launch the bytes"
        )
    request.guard_count = min(len(guards), abi.MAX_GUARDS)
    for i, offset in enumerate(guards[: abi.MAX_GUARDS]):
        request.guards[i] = offset
    environment = fork_server.environment()
    request.environment, request.environment_bytes = environment, len(environment)
    result = abi.Result()
    # A library runs one request at a time; its blocks use all cores as it is.
    with lock_of(library_path.name), _file_for(timeline) as written:
        request.timeline_path = str(written).encode() if written else None
        run = partial(_entry(library_path), ctypes.byref(request), ctypes.byref(result))
        failure = run(fork_server.THIS_PROCESS) if told else fork_server.call(run)
        spans = read(written) if written and written.exists() else ()
    if failure:
        why = {-1: "no memory for the operands' copies", -3: "no thread-local storage"}
        raise SimulationError(
            f"{path.name} was not run: {why.get(failure, 'no process could be started')}"
        )
    batch = c.shape[0] if c.dim() == 3 else 1
    (M, K), N = a.shape[-2:], b.shape[-1]
    raw = list(result.findings[: result.finding_count])
    kernel, findings = describe(
        path,
        library_path,
        raw,
        result.launch.kernel_pc,
        tuple((operand.batches * operand.rows, operand.cols) for operand in operands),
        timeout_s,
    )
    if result.launch_error:
        why = refusal(result.refused) if any(result.refused.block) else "the launcher refuses it"
        raise SimulationError(
            f"{path.name}: tcgemm_launch returned CUDA error {result.launch_error} "
            f"for {M}x{N}x{K}{f' and a batch of {batch}' if batch > 1 else ''}: {why}"
        )
    launch = result.launch
    shared = launch.shared_dynamic + arrays.get(function_at(library_path, launch.kernel_pc), 0)
    if shared > abi.MAX_SHARED:
        raise SimulationError(
            f"{path.name}: {kernel or path.stem} has {shared:,} bytes of shared memory, __shared__ "
            f"arrays and those of the launch together, and a block has at most {abi.MAX_SHARED:,}"
        )
    return Report(
        source=path,
        kernel=kernel or path.stem,
        grid=tuple(launch.grid),
        block=tuple(launch.block),
        shared_bytes=launch.shared_static + launch.shared_dynamic,
        order=order,
        findings=findings,
        counts=counts_of(result, 2 * batch * M * N * K) if count else None,
        l2=l2_of(result.l2, machine) if machine is not None and result.l2.modelled else None,
        checked=check,
        shape=(M, N, K),
        timeline=spans,
        cluster=launch.cluster,
    )


@contextmanager
def _file_for(timeline: Timeline | None) -> Iterator[Path | None]:
    if timeline is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tcgemm-") as folder:
        yield Path(folder) / "timeline"


def _dtype(tensor: Any) -> int:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"the simulator takes {', '.join(DTYPES)}, not {name}")
    return DTYPES[name]


@cache
def _entry(path: Path) -> Any:
    try:
        entry = ctypes.CDLL(str(path)).tcgemm_simulate
    except OSError as error:
        store.discard(path)
        raise SimulationError(
            f"the cached library {path.name} cannot be loaded ({error}); it has been removed, "
            "so the next call builds it again"
        ) from None
    entry.argtypes = (ctypes.POINTER(abi.Request), ctypes.POINTER(abi.Result), ctypes.c_int)
    entry.restype = ctypes.c_int
    return entry
