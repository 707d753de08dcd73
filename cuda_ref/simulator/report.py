"""What a simulated run gives: findings, counts, and the modelled L2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import abi
from .findings import Finding
from .timeline import Span

_ELEMENTS = ("f16", "bf16", "tf32", "f32", "f64", "s8", "u8", "s32", "e4m3", "e5m2")
"""Names of the elements, in the order of ``Element`` in include/runtime.hpp."""


class SimulationError(RuntimeError):
    """The kernel did not run to its end: it crashed, hung, stopped at a barrier or was refused."""


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
    timeline: tuple[Span, ...] = ()
    cluster: int = 1
    """Blocks of a cluster, the most of any launch."""

    @property
    def ok(self) -> bool:
        return not self.findings

    def raise_if_stopped(self) -> None:
        """Raises SimulationError where the kernel did not run to its end."""
        stopped = [f for f in self.findings if f.fatal]
        if stopped:
            raise SimulationError("\n".join(f.message for f in stopped))


def counts_of(result: abi.Result, flop: int) -> Counts:
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


def l2_of(raw: abi.L2, machine: Machine) -> L2:
    return L2(
        machine=machine.name,
        hit_rate=raw.hits / raw.accesses if raw.accesses else 0.0,
        dram_read=raw.dram_read,
        dram_written=raw.dram_written,
        blocks_per_sm=raw.blocks_per_sm,
        waves=raw.waves,
    )
