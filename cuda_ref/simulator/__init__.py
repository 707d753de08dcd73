"""CUDA kernels on a CPU: the ladder's .cu files, compiled by g++, run, checked and counted.

``run`` computes C, as fast as this goes. ``simulate`` runs the same kernel with every load and
store observed, and returns what was found wrong and what was counted. See docs/simulator.md.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..build import store
from ..build.toolchain import built_by_case
from ..fusion import ACTIVATIONS, COMPUTES, DTYPES, case, mma_tile
from .build import CSRC, library, lock_of, shared_symbols
from .cures import explained
from .findings import Finding, describe

ORDERS = {"forward": 0, "reverse": 1, "random": 2}
_ELEMENTS = ("f16", "bf16", "tf32", "f32", "f64", "s8", "u8", "s32", "e4m3", "e5m2")
_MAX_FINDINGS = 24
_MAX_MMA_KINDS = 12
_MAX_GUARDS = 62
_MAX_FRAMES = 12
_NUM_OPERANDS = 7


class SimulationError(RuntimeError):
    """The kernel did not run to its end: it crashed, hung, stopped at a barrier or was refused."""


class _Operand(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("col_stride", ctypes.c_int64),
        ("batches", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("item_bytes", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("operands", _Operand * _NUM_OPERANDS),
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("activation", ctypes.c_int32),
        ("compute", ctypes.c_int32),
        ("mma_m", ctypes.c_int32),
        ("mma_n", ctypes.c_int32),
        ("dtype_in", ctypes.c_int32),
        ("dtype_out", ctypes.c_int32),
        ("order", ctypes.c_int32),
        ("check", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("workers", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("timeout_s", ctypes.c_double),
        ("sms", ctypes.c_int32),
        ("threads_per_sm", ctypes.c_int32),
        ("shared_per_sm", ctypes.c_int64),
        ("l2_bytes", ctypes.c_int64),
        ("shared_static", ctypes.c_int64),
        ("writers", ctypes.c_void_p),
        ("guard_count", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("guards", ctypes.c_int32 * _MAX_GUARDS),
    )


class _Position(ctypes.Structure):
    _fields_ = (("block", ctypes.c_uint32 * 3), ("thread", ctypes.c_uint32 * 3))


class _Site(ctypes.Structure):
    _fields_ = (("file", ctypes.c_char_p), ("line", ctypes.c_int32))


class _Finding(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("operand", ctypes.c_int32),
        ("write", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("signal", ctypes.c_int32),
        ("has_other", ctypes.c_int32),
        ("other_write", ctypes.c_int32),
        ("at", _Position),
        ("other", _Position),
        ("row", ctypes.c_int64),
        ("col", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("pc", ctypes.c_uint64),
        ("other_pc", ctypes.c_uint64),
        ("site", _Site),
        ("other_site", _Site),
        ("frames", ctypes.c_uint64 * _MAX_FRAMES),
        ("times", ctypes.c_int64),
    )


class _Counters(ctypes.Structure):
    _fields_ = (
        ("global_requests", ctypes.c_uint64 * 2),
        ("global_sectors", ctypes.c_uint64 * 2),
        ("global_bytes", ctypes.c_uint64 * 2),
        ("shared_requests", ctypes.c_uint64 * 2),
        ("shared_wavefronts", ctypes.c_uint64 * 2),
        ("shared_ideal", ctypes.c_uint64 * 2),
        ("shared_bytes", ctypes.c_uint64 * 2),
        ("operand_bytes", ctypes.c_uint64 * _NUM_OPERANDS),
        ("operand_sectors", ctypes.c_uint64 * _NUM_OPERANDS),
        ("barriers", ctypes.c_uint64),
        ("warp_barriers", ctypes.c_uint64),
        ("shuffles", ctypes.c_uint64),
        ("async_copies", ctypes.c_uint64),
        ("atomics", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("threads", ctypes.c_uint64),
    )


class _Mma(ctypes.Structure):
    _fields_ = (
        ("m", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("element_in", ctypes.c_int32),
        ("element_out", ctypes.c_int32),
        ("instruction", ctypes.c_int32),
        ("count", ctypes.c_uint64),
    )


class _L2(ctypes.Structure):
    _fields_ = (
        ("accesses", ctypes.c_uint64),
        ("hits", ctypes.c_uint64),
        ("dram_read", ctypes.c_uint64),
        ("dram_written", ctypes.c_uint64),
        ("blocks_per_sm", ctypes.c_int64),
        ("waves", ctypes.c_int64),
        ("modelled", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_static", ctypes.c_uint64),
        ("shared_dynamic", ctypes.c_uint64),
        ("kernel_pc", ctypes.c_uint64),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        ("launch_error", ctypes.c_int32),
        ("finding_count", ctypes.c_int32),
        ("findings", _Finding * _MAX_FINDINGS),
        ("counters", _Counters),
        ("mma", _Mma * _MAX_MMA_KINDS),
        ("l2", _L2),
        ("launch", _Launch),
        ("image_base", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """What the L2 model needs of a GPU. Bytes everywhere."""

    name: str
    sms: int
    l2_bytes: int
    shared_per_sm: int = 228 * 1024
    threads_per_sm: int = 2048


@dataclass(frozen=True, slots=True)
class Counts:
    """What one run did, summed over the grid. Loads and stores are the kernel's, in bytes asked
    for by its threads, warp requests and the 32-byte sectors that serve them."""

    load_bytes: int
    store_bytes: int
    load_requests: int
    store_requests: int
    load_sectors: int
    store_sectors: int
    shared_bytes: int
    shared_requests: int
    shared_wavefronts: int
    bank_conflicts: int
    """Wavefronts beyond those that the words themselves need."""
    barriers: int
    warp_barriers: int
    async_copies: int
    mma: Mapping[str, int]
    """Tensor-core instructions by kind, e.g. ``wmma m16n16k16 f16 -> f32``."""
    mma_flop: int
    """Operations of those instructions, padding included."""
    flop: int
    """2 M N K."""
    blocks: int
    threads: int

    @property
    def sectors_per_load_request(self) -> float:
        return self.load_sectors / self.load_requests if self.load_requests else 0.0

    @property
    def load_efficiency(self) -> float:
        """Distinct bytes cannot exceed the sectors': bytes asked for per byte of sector; above 1
        where lanes share an address."""
        return self.load_bytes / (32 * self.load_sectors) if self.load_sectors else 0.0

    @property
    def flop_per_byte(self) -> float:
        """Operations per byte that the threads load from global memory."""
        return self.flop / self.load_bytes if self.load_bytes else 0.0

    @property
    def flop_per_sector_byte(self) -> float:
        """Operations per byte of sectors loaded: what coalescing leaves of flop_per_byte."""
        return self.flop / (32 * self.load_sectors) if self.load_sectors else 0.0


@dataclass(frozen=True, slots=True)
class L2:
    """The modelled L2 of one machine. Sectors are of 32 bytes."""

    machine: str
    hit_rate: float
    """Of the sectors loaded."""
    dram_read: int
    dram_written: int
    blocks_per_sm: int
    """By threads and shared memory; registers, which only nvcc knows, may allow fewer."""
    waves: int


@dataclass(frozen=True, slots=True)
class Report:
    """One simulated run."""

    source: Path
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    order: str
    findings: tuple[Finding, ...]
    counts: Counts | None = None
    l2: L2 | None = None
    checked: bool = False
    shape: tuple[int, int, int] = field(default=(0, 0, 0))

    @property
    def ok(self) -> bool:
        return not self.findings

    def raise_if_stopped(self) -> None:
        """Raises SimulationError where the kernel did not run to its end."""
        stopped = [f for f in self.findings if f.fatal]
        if stopped:
            raise SimulationError("\n".join(f.message for f in stopped))


def parse_order(order: str) -> tuple[int, int]:
    """(number, seed) of ``forward``, ``reverse`` or ``random:SEED``; ValueError otherwise."""
    name, _, seed = order.partition(":")
    try:
        if name not in ORDERS or (seed and name != "random"):
            raise ValueError
        return ORDERS[name], int(seed or 0)
    except ValueError:
        raise ValueError(
            f"order {order!r}: it is forward, reverse or random:SEED, e.g. random:7"
        ) from None


def source_of(name: str) -> Path:
    """The .cu file of a rung."""
    path = CSRC / f"{name}.cu"
    if not path.is_file():
        raise ValueError(f"no rung {name!r}: there is no {path.name} in csrc/")
    return path


def run(name: str, a: Any, b: Any, c: Any, fusion: Any = None, **plan: int | str) -> None:
    """C[M, N] = A[M, K] @ B[K, N] on CPU tensors by the rung's own code; C is written in place.

    ``fusion`` holds what else is asked (see fusion.py), None for a plain product.

    Raises SimulationError where the kernel crashes, hangs or stops at a barrier, and RuntimeError
    where it cannot be compiled (g++ is the only need).
    """
    simulate(source_of(name), a, b, c, fusion=fusion).raise_if_stopped()


def simulate(
    source: str | Path,
    a: Any,
    b: Any,
    c: Any,
    *,
    fusion: Any = None,
    order: str = "forward",
    check: bool = False,
    count: bool = False,
    machine: Machine | None = None,
    writers: Any = None,
    workers: int | None = None,
    timeout_s: float = 600.0,
) -> Report:
    """Runs one .cu file on CPU tensors (strided, K >= 1, M, N, batch >= 1) and writes C.

    The tensors are all 2-D, or all 3-D with the batch first.

    Args:
        source: a file that defines ``int tcgemm_launch(const tcgemm::Gemm&, cudaStream_t)``.
        fusion: what is asked besides the plain product, or None (see ../fusion.py).
        order: in which legal order lanes, warps and blocks run: forward, reverse, random:SEED.
        check: report bad accesses, races, divergent barriers and elements of C left unwritten.
        count: count requests, sectors, wavefronts, barriers and tensor-core instructions.
        machine: the GPU whose L2 is modelled; needs ``count``.
        writers: a contiguous int32 CPU tensor of the shape of C for the number of the block that
            wrote each element, plus 1, blocks counted along x first; 0 where none did. Needs
            ``check``.
        workers: processes that share the blocks; by default one per core.
        timeout_s: seconds after which the kernel counts as hung.

    Findings do not raise: see Report.findings and Report.raise_if_stopped.
    """
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"no file {path}")
    order_number, seed = parse_order(order)
    observed = check or count
    macros = built_by_case(path)
    defines = case(a.dtype, fusion, c.dtype, c.dim() == 3, macros) if macros else ()
    try:
        library_path = library(path, observed, defines)
    except RuntimeError as error:
        raise RuntimeError(explained(path, str(error))) from error
    request = _Request()
    request.alpha, request.compute = 1.0, COMPUTES["float32"]
    operands = [_matrix(a), _matrix(b), _matrix(c)]
    if fusion is not None:
        request.alpha, request.beta = float(fusion.alpha), float(fusion.beta)
        request.activation = ACTIVATIONS[fusion.epilogue]
        request.compute = COMPUTES[fusion.compute]
        request.mma_m, request.mma_n = mma_tile(fusion.mma_shape)
        operands += [
            _matrix(fusion.c),
            _vector(fusion.bias, 1),
            _vector(fusion.scale_a, 0),
            _vector(fusion.scale_b, 1),
        ]
    for i, operand in enumerate(operands):
        request.operands[i] = operand
    request.dtype_in, request.dtype_out = _dtype(a), _dtype(c)
    request.order, request.seed = order_number, seed & (2**64 - 1)
    request.check, request.count = check, count
    request.writers = writers.data_ptr() if writers is not None else None
    request.workers = workers or len(os.sched_getaffinity(0))
    request.timeout_s = timeout_s
    if machine is not None:
        request.sms, request.threads_per_sm = machine.sms, machine.threads_per_sm
        request.shared_per_sm, request.l2_bytes = machine.shared_per_sm, machine.l2_bytes
    request.shared_static, guards = shared_symbols(library_path)
    request.guard_count = min(len(guards), _MAX_GUARDS)
    for i, offset in enumerate(guards[:_MAX_GUARDS]):
        request.guards[i] = offset
    result = _Result()
    # A library runs one request at a time; its blocks use all cores as it is.
    with lock_of(library_path.name):
        failure = _entry(library_path)(ctypes.byref(request), ctypes.byref(result))
    if failure:
        why = {-1: "no memory for the operands' copies", -2: "no process could be started"}
        raise SimulationError(
            f"{path.name} was not run: {why.get(failure, 'no thread-local storage')}"
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
        raise SimulationError(
            f"{path.name}: tcgemm_launch returned CUDA error {result.launch_error} "
            f"for {M}x{N}x{K}{f' and a batch of {batch}' if batch > 1 else ''}: the launcher "
            "refuses this problem, or asks for too large a grid, block or shared memory"
        )
    launch = result.launch
    return Report(
        source=path,
        kernel=kernel or path.stem,
        grid=tuple(launch.grid),
        block=tuple(launch.block),
        shared_bytes=launch.shared_static + launch.shared_dynamic,
        order=order,
        findings=findings,
        counts=_counts(result, 2 * batch * M * N * K) if count else None,
        l2=_l2(result.l2, machine) if machine is not None and result.l2.modelled else None,
        checked=check,
        shape=(M, N, K),
    )


def _matrix(tensor: Any) -> _Operand:
    """A matrix, or a batch of them; empty for None."""
    if tensor is None:
        return _Operand()
    batches, batch_stride = (tensor.shape[0], tensor.stride(0)) if tensor.dim() == 3 else (1, 0)
    return _Operand(
        tensor.data_ptr(),
        *tensor.shape[-2:],
        *tensor.stride()[-2:],
        batches,
        batch_stride,
        tensor.element_size(),
    )


def _vector(tensor: Any, dimension: int) -> _Operand:
    """A bias or scale along the rows (0) or columns (1) of C; empty for None."""
    if tensor is None:
        return _Operand()
    shape, strides = [1, 1], [0, 0]
    if tensor.numel() > 1:
        shape[dimension], strides[dimension] = tensor.numel(), tensor.stride(-1)
    return _Operand(tensor.data_ptr(), *shape, *strides, 1, 0, tensor.element_size())


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
    entry.argtypes = (ctypes.POINTER(_Request), ctypes.POINTER(_Result))
    entry.restype = ctypes.c_int
    return entry


def _counts(result: _Result, flop: int) -> Counts:
    raw = result.counters
    mma: dict[str, int] = {}
    mma_flop = 0
    for m in result.mma:
        if m.count:
            kind = ("mma.sync", "wmma", "wgmma")[m.instruction]
            types = f"{_ELEMENTS[m.element_in]} -> {_ELEMENTS[m.element_out]}"
            mma[f"{kind} m{m.m}n{m.n}k{m.k} {types}"] = m.count
            mma_flop += 2 * m.m * m.n * m.k * m.count
    return Counts(
        load_bytes=raw.global_bytes[0],
        store_bytes=raw.global_bytes[1],
        load_requests=raw.global_requests[0],
        store_requests=raw.global_requests[1],
        load_sectors=raw.global_sectors[0],
        store_sectors=raw.global_sectors[1],
        shared_bytes=sum(raw.shared_bytes),
        shared_requests=sum(raw.shared_requests),
        shared_wavefronts=sum(raw.shared_wavefronts),
        bank_conflicts=sum(raw.shared_wavefronts) - sum(raw.shared_ideal),
        barriers=raw.barriers,
        warp_barriers=raw.warp_barriers,
        async_copies=raw.async_copies,
        mma=mma,
        mma_flop=mma_flop,
        flop=flop,
        blocks=raw.blocks,
        threads=raw.threads,
    )


def _l2(raw: _L2, machine: Machine) -> L2:
    return L2(
        machine=machine.name,
        hit_rate=raw.hits / raw.accesses if raw.accesses else 0.0,
        dram_read=raw.dram_read,
        dram_written=raw.dram_written,
        blocks_per_sm=raw.blocks_per_sm,
        waves=raw.waves,
    )
