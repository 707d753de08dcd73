"""How long a product over several GPUs takes: links, collectives, the product, and their overlap.

The links were measured (links-<gpu>.csv); so was cuBLAS's share of the arithmetic's peak. What the
other ways add is fitted to rows, or assumed where there are none (fitted.py). All times are
microseconds, and sizes bytes. Imports no torch.

    sequence = collective + product
    one shot = stores to peers + product + what launches and flags cost
    limit    = max(product, transfer)          what no overlap can beat
    overlap  = limit + what it cannot hide     flags, and the last piece of either
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path

from .. import gpus
from ..problem import COMPUTES, ITEMSIZE, OUTPUTS
from . import fitted
from .options import ALL_GATHER
from .rows import chunk_of

MIB = 2**20
LAUNCH_US = 3.0
"""Of a product, whatever it computes: from the launch to the first tile, and the way out."""

SHARE_OF_PEAK = 0.79
"""Of the dense peak, what large products reach: the median of cuBLAS's bfloat16 products with M, N
and K of 2048 and more in reports/nvidia-h200 (782 of 989 TFLOPS)."""

GPUS_OF_A_HOST = 8
HOST_GB_S = 50.0
"""GB/s for each GPU between hosts: a 400 Gbit/s network card a GPU."""

DIRECT_GB_S = 370.0
"""GB/s of the limit between GPUs of a host: what copies and stores of 128 MiB and more reach."""


@dataclass(frozen=True, slots=True)
class Host:
    """The GPUs of a host, or of several, and what joins them."""

    slug: str
    gpus_of_a_host: int = GPUS_OF_A_HOST
    host_gb_s: float = HOST_GB_S


@dataclass(frozen=True, slots=True)
class Times:
    """What a product over ``world`` GPUs takes, in microseconds."""

    gemm_us: float
    collective_us: float
    """NCCL's, alone."""
    transfer_us: float
    """The same bytes by the links alone, at DIRECT_GB_S within a host."""
    overlapped_us: float
    language: str
    """Of the overlapped way."""
    written_us: float
    """The same bytes by stores to the peers, as measured at their size."""
    one_shot_us: float

    @property
    def sequence_us(self) -> float:
        return self.collective_us + self.gemm_us

    @property
    def limit_us(self) -> float:
        return max(self.gemm_us, self.transfer_us)


@cache
def linked_as(slug: str) -> str:
    """Slug of the GPU whose links are taken for those of this one: itself, or one of the same
    peak rates; "" where neither has been measured."""
    return gpus.kin(slug, lambda each: _links_path(each).is_file(), same_peaks=True)


@cache
def links(slug: str) -> dict[tuple[str, int], tuple[tuple[float, float], ...]]:
    """(what, ranks or 0) -> (MiB, GB/s) as measured, by size; empty for a GPU without.

    A GPU of the same peak rates has the same links: an H100 SXM those of an H200.
    """
    path = _links_path(linked_as(slug))
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    if path.is_file():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                key = row["what"], int(row["world"] or 0)
                found.setdefault(key, []).append((float(row["mib"]), float(row["gb_s"])))
    return {key: tuple(sorted(points)) for key, points in found.items()}


def _links_path(slug: str) -> Path:
    return Path(__file__).with_name(f"links-{slug}.csv")


def _timed(points: Iterable[tuple[float, float]], size: float, share: float = 1.0) -> float:
    """Microseconds for ``size`` bytes: straight lines between the measured times, and beyond.

    Args:
        points: (MiB, GB/s) of which ``share`` of the bytes is what passed a link.
    """
    times = [(mib * MIB, share * mib * MIB / gb_s / 1e3) for mib, gb_s in points]
    low, high = next(((a, b) for a, b in pairwise(times) if size <= b[0]), times[-2:])
    slope = (high[1] - low[1]) / (high[0] - low[0])
    return low[1] + (size - low[0]) * slope


def collective_us(op: str, size: float, world: int, host: Host) -> float:
    """NCCL's all-gather of ``size`` bytes in all, or its reduce-scatter.

    Up to 4 ranks it is measured; more of one host are taken to be as 4, for which each GPU sends
    and receives its (world - 1) / world of the bytes. Between hosts the network cards carry
    (hosts - 1) / hosts of the bytes at NCCL's share of their rate, at the same time as the links.
    """
    if world == 1:
        return 0.0
    local = min(world, host.gpus_of_a_host)
    measured = [ranks for what, ranks in links(host.slug) if what == op]
    ranks = max((r for r in measured if r <= local), default=min(measured))
    points = links(host.slug)[op, ranks]
    share = (world - 1) / world
    inside = _timed(points, size, share)
    hosts = -(-world // host.gpus_of_a_host)
    if hosts == 1:
        return inside
    efficiency = points[-1][1] / DIRECT_GB_S
    return max(inside, _between(size, hosts, host) / efficiency)


def _between(size: float, hosts: int, host: Host) -> float:
    """(hosts - 1) / hosts of the bytes over the network cards of a host."""
    return size * (hosts - 1) / hosts / (host.gpus_of_a_host * host.host_gb_s * 1e3)


def transfer_us(size: float, world: int, host: Host) -> float:
    """The same bytes over links and network cards that do nothing else, without latency."""
    inside = size * (world - 1) / world / DIRECT_GB_S / 1e3
    hosts = -(-world // host.gpus_of_a_host)
    return max(inside, _between(size, hosts, host))


def written_us(size: float, world: int, host: Host) -> float:
    """Time of what a GPU sends of ``size`` bytes in all, stored at the peers by its SMs."""
    return _timed(links(host.slug)["write", 0], size * (world - 1) / world)


def gemm_us(M: int, N: int, K: int, dtype: str, slug: str) -> float | None:
    """A product of one GPU: arithmetic or memory, whichever is longer. None where it is unknown."""
    board = gpus.lookup(slug)
    peak = board.peak(dtype, COMPUTES[dtype][0])
    if not (peak and board.bandwidth_gb_s):
        return None
    itemsize = ITEMSIZE[dtype]
    moved = (M * K + K * N) * itemsize + M * N * ITEMSIZE[OUTPUTS[dtype][0]]
    arithmetic = 2 * M * N * K / (SHARE_OF_PEAK * peak) / 1e6
    return LAUNCH_US + max(arithmetic, moved / board.bandwidth_gb_s / 1e3)


def why_unknown(dtype: str, slug: str) -> str | None:
    """Why no time is known on this GPU; None where they are."""
    if not links(slug):
        return f"the links of {slug or 'a CPU'} were not measured"
    if gemm_us(1, 1, 1, dtype, slug) is None:
        return f"no peak rate of {dtype} is known on {slug}"
    return None


def times(
    op: str, M: int, N: int, K: int, dtype: str, world: int, host: Host, language: str = "",
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> Times | None:  # fmt: skip
    """Each part of the product, and the overlapped whole; None where ``why_unknown`` has a reason.

    Args:
        op: options.ALL_GATHER or options.REDUCE_SCATTER.
        M: rows of A, of all ranks.
        N, K: of this rank's product: the columns that it has of B, or the rows.
        language: of the overlapped way; "" for the one that takes less.
        bounds: language -> between what microseconds its overlapped product takes by its tiles.
    """
    if why_unknown(dtype, host.slug) is not None:
        return None
    product = gemm_us(M, N, K, dtype, host.slug)
    assert product is not None
    rows = chunk_of(M, world) * world
    size = float(rows * (K * ITEMSIZE[dtype] if op == ALL_GATHER else
                         N * ITEMSIZE[OUTPUTS[dtype][0]]))  # fmt: skip
    moved = transfer_us(size, world, host)
    if world == 1:
        return Times(product, 0.0, 0.0, product, language or fitted.LANGUAGES[0], 0.0, product)
    known = fitted.of(host.slug)
    takes = {}
    for each in (language,) if language else fitted.LANGUAGES:
        least, most = (bounds or {}).get(each, (0.0, inf))
        takes[each] = min(max(known.way(each, op, world).us(product, moved, world), least), most)
    found = min(takes, key=takes.__getitem__)
    written = written_us(size, world, host)
    return Times(
        product, collective_us(op, size, world, host), moved, takes[found], found, written,
        product + written + known.one_shot_us(op),
    )  # fmt: skip
