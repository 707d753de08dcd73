"""How an overlapped product runs: its tile, and in how many parts a rank's rows are sent.

A small model of time, of measured links and one rate of multiplying, chooses both: many parts let
the first tiles of a peer begin early, few waste less on what each copy costs. Nothing but M, N, K,
the world and the machine goes into it, so all ranks find the same plan, as flags demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from .. import fitted
from ..planning import MOST_BYTES, why_not_tiles

LINK_BYTES_PER_US = 370e3
"""What a copy engine moves from one H200 to another, in one direction: measured at 128 to 512 MiB,
with 18 links of 26.6 GB/s."""

COPY_US = 9.0
"""Before the first byte of a copy: fitted to copies of 1 to 32 MiB, of 14, 32 and 99 us."""

_STEPS = fitted.of("nvidia-h200").steps or fitted.ASSUMED_STEPS
NEXT_COPY_US, SIGNAL_US, FLOP_PER_US = (
    _STEPS.next_copy_us, _STEPS.signal_us, _STEPS.flop_per_us,
)  # fmt: skip

REDUCED_BYTES_PER_US = 4e6
"""HBM, for the partial sums that an owner reads."""

KEPT_BYTES = 25e6
"""Of B that the L2, of 50 MB, keeps while rows of tiles pass."""

TALL = True
"""Whether parts of gathered rows are at least as tall as a group of tiles. Each part reads all of
B: with parts of two rows of tiles, products of large B took a tenth longer."""

CARRIES = True
"""Whether copy engines carry partial sums to their owners where the model says that it pays."""

WIDE = True
EARLY_SCATTER = True
"""What plans of a reduce-scatter that is not carried have of the fields ``wide`` and ``early``."""

MOST_PARTS = 8
PARTS = (1, 2, 4, MOST_PARTS)
"""Of a rank's rows, of which a plan takes one number."""

SMS = 132
"""Of an H200."""

SPARE_SMS = 0
"""SMs that a grid leaves free: none, since nothing that a waiting block waits for needs one. Rows
travel by copy engines, and partial sums by the blocks that computed them. Those blocks wait for
blocks of the peers, so a grid is at most one block an SM: then all its blocks are there at once."""


@dataclass(frozen=True)
class Tile:
    """A block tile and how many shared-memory stages and warps it takes."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    GROUP_M: int
    NUM_STAGES: int
    NUM_WARPS: int
    """Triton's; CUDA has them in its own table, by BLOCK_M and BLOCK_N."""
    rate: float
    """Of a busy SM, relative to 128 x 256."""
    fuses: bool = True
    """Whether it can have a bias or an activation."""

    @property
    def config(self) -> dict[str, int]:
        """The constants of a kernel."""
        return {
            name: getattr(self, name)
            for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "NUM_STAGES", "NUM_WARPS")
        }


TILES = (Tile(128, 256, 64, 8, 3, 8, 1.0), Tile(128, 128, 64, 8, 4, 8, 0.85))
"""In the order in which they are preferred. Two of 64 rows or 128 columns less would leave the
tensor cores idle at the sizes that are worth several GPUs."""

GATHERED_IN_CUDA = (
    *TILES,
    Tile(128, 224, 64, 8, 4, 8, 0.99, fuses=False),
    Tile(128, 192, 64, 8, 4, 8, 0.985),
)
"""Of CUDA's all-gather, with the rates of wgmma_persistent: where they save a wave, they save up to
a tenth of the call (reports/nvidia-h100-sxm-x2/trials/overlap_ways.csv)."""

SCATTERED_IN_CUDA = (Tile(128, 256, 64, 8, 3, 8, 1.0), Tile(128, 128, 64, 8, 4, 8, 0.895))
"""Of CUDA's reduce-scatter; see sent_tile. The rate of the second is that of long products on four
H200 (reports/nvidia-h200-x4/trials/several_runs.csv)."""

TILES_OF_8_BITS = (Tile(128, 128, 128, 8, 4, 8, 1.0),)
"""Of 8-bit floats, whose sums leave the tensor core every 128 steps of K: it has two sets of
accumulators."""

INTERPRETED = (Tile(32, 32, 32, 2, 2, 4, 1.0),)
"""Where Triton's kernels are interpreted, on a CPU: so that small matrices have many tiles."""

SIMULATED = (Tile(128, 128, 64, 16, 6, 12, 1.0),)
"""Where CUDA's are simulated: the tile of a build that names none."""


@dataclass(frozen=True)
class OverlapPlan:
    """How a product runs; the same on every rank."""

    tile: Tile
    chunk: int
    """Rows of a rank, of all but the last ones."""
    parts: int
    part_tiles: int
    """Rows of tiles in a part; the last part of a rank has what is left."""
    carried: bool = False
    """Of a reduce-scatter, in Triton: copy engines carry partial sums to their owners, a part at a
    time, and blocks store them here. Else blocks store them there."""
    wide: bool = False
    """Of a reduce-scatter that is not carried, in Triton: stores to owners are of 16 bytes. Else
    they are of 2, since the compiler knows nothing of a peer's address."""
    early: bool = False
    """Of a reduce-scatter that is not carried, in Triton: the product multiplies its first tile
    while ``enter`` runs, and ``leave`` is launched while the product runs (programmatic dependent
    launch)."""

    def part_rows(self, rows: int) -> Iterator[tuple[int, int, int]]:
        """(part, first row, row behind its last) of a rank that has ``rows``: those not empty."""
        step = self.part_tiles * self.tile.BLOCK_M
        for part in range(self.parts):
            first, behind = part * step, min((part + 1) * step, rows)
            if first < behind:
                yield part, first, behind

    def tiles(self, N: int) -> int:
        """Tiles of a rank, those past its last row included."""
        return -(-self.chunk // self.tile.BLOCK_M) * -(-N // self.tile.BLOCK_N)


def in_parts(tile: Tile, chunk: int, parts: int, carried: bool = False) -> OverlapPlan:
    """The plan with as many parts, or fewer where the tiles' rows are few."""
    rows = max(-(-chunk // tile.BLOCK_M), 1)
    part_tiles = -(-rows // parts)
    return OverlapPlan(tile, chunk, -(-rows // part_tiles), part_tiles, carried)


def fastest_tile(
    M: int, N: int, world: int, tiles: tuple[Tile, ...] = TILES, sms: int = SMS
) -> Tile:
    """The tile whose waves end first; each rank's rows begin with a tile of their own."""
    chunk = -(-M // world)

    def time(tile: Tile) -> float:
        waves = -(-(world * -(-chunk // tile.BLOCK_M) * -(-N // tile.BLOCK_N)) // sms)
        return waves * tile.BLOCK_M * tile.BLOCK_N / tile.rate

    return min(tiles, key=time)


def with_flags(tiles: tuple[Tile, ...], chunk: int, N: int) -> tuple[Tile, ...]:
    """Those of which a rank has no more than flags. Where none is, all: then it is refused."""
    plans = [in_parts(tile, chunk, 1) for tile in tiles]
    return tuple(p.tile for p in plans if why_not_tiles(p.tiles(N)) is None) or tiles


def sent_tile(M: int, N: int, K: int, world: int, tiles: tuple[Tile, ...]) -> Tile:
    """The tile of a product whose tiles TMA sends to their owners while the next are multiplied.

    The last wave hides nothing: it is multiplied, and sent by all SMs at once.
    """
    chunk = -(-M // world)
    moved = chunk * (world - 1) * N * 2 / LINK_BYTES_PER_US

    def us(tile: Tile) -> float:
        waves = -(-in_parts(tile, chunk, 1).tiles(N) * world // SMS)
        wave, last = wave_us(tile, K), SMS * tile.BLOCK_M * tile.BLOCK_N * 2 / LINK_BYTES_PER_US
        return max(waves * wave, moved) + wave + last

    return min(with_flags(tiles, chunk, N), key=us)


def wave_us(tile: Tile, K: int, item_bytes: int = 2) -> float:
    """Microseconds in which each SM multiplies a tile. 8-bit floats are taken to be multiplied at
    twice the rate of 16 bits."""
    flop = 2 * tile.BLOCK_M * tile.BLOCK_N * K * item_bytes / 2
    return flop / tile.rate / (FLOP_PER_US / SMS)


def arrivals_us(plan: OverlapPlan, K: int, world: int, item_bytes: int = 2) -> list[float]:
    """When each part of each peer has arrived, in the order in which they do, after the call began.

    Every rank sends its parts to one peer after the other, so each receives from one at a time.
    """
    at, times = COPY_US - NEXT_COPY_US, []
    for _ in range(world - 1):
        for _, first, behind in plan.part_rows(plan.chunk):
            at += NEXT_COPY_US + (behind - first) * K * item_bytes / LINK_BYTES_PER_US
            times.append(at)
    return times


def gather_us(plan: OverlapPlan, N: int, K: int, world: int, item_bytes: int = 2) -> float:
    """Microseconds of all-gather and product: each part is multiplied when it is there."""
    return max(_gathered(plan, N, K, world, item_bytes))


def _gathered(plan: OverlapPlan, N: int, K: int, world: int, item_bytes: int) -> tuple[float, ...]:
    """When SMs that share all work evenly have ended, and when whole tiles have: what comes last
    takes a tile's time, however few its tiles are."""
    tile, of_row = plan.tile, -(-N // plan.tile.BLOCK_N)
    wave, each = wave_us(tile, K, item_bytes), plan.tiles(N)
    arrivals = arrivals_us(plan, K, world, item_bytes)
    at, arrived = each / SMS * wave, iter(arrivals)
    for _ in range(world - 1):
        for _, first, behind in plan.part_rows(plan.chunk):
            tiles = -(-(behind - first) // tile.BLOCK_M) * of_row
            at = max(at, next(arrived)) + tiles / SMS * wave
    waves = -(-each * world // SMS)
    whole = max(arrivals[-1] + wave if arrivals else 0.0, waves * wave)
    return at + 2 * SIGNAL_US, whole + 2 * SIGNAL_US


def scatter_us(plan: OverlapPlan, N: int, K: int, world: int, item_bytes: int = 2) -> float:
    """Microseconds of product and reduce-scatter, whose partial sums have two bytes an element.

    Blocks come to the ends of their tiles together, and a block of Triton's multiplies nothing
    while it stores: where blocks store to owners, all of the transfer shows. Where copy engines
    carry, a part leaves a wave after its last tile, since blocks tell of a tile when they have the
    next, and own tiles wait for the same part of the peers'.
    """
    tile, of_row = plan.tile, -(-N // plan.tile.BLOCK_N)
    sms = SMS - int(plan.carried)
    wave, each = wave_us(tile, K, item_bytes), plan.tiles(N)
    sent = plan.chunk * (world - 1) * N * 2
    fixed = sent / REDUCED_BYTES_PER_US + 2 * SIGNAL_US
    if not plan.carried:
        return -(-each * world // sms) * wave + sent / LINK_BYTES_PER_US + fixed
    others, arrived, ends = each * (world - 1), 0.0, {}
    for turn in range(world - 1):
        for part, first, behind in plan.part_rows(plan.chunk):
            last = turn * each + -(-behind // tile.BLOCK_M) * of_row
            stored = min(-(-last // sms) + 1, -(-others // sms)) * wave
            moved = (behind - first) * N * 2 / LINK_BYTES_PER_US
            arrived = max(arrived, stored) + COPY_US + moved
            ends[part] = arrived
    at = others / sms * wave
    for part, first, behind in plan.part_rows(plan.chunk):
        # What is multiplied first is wanted a wave later.
        waves = -(-(behind - first) // tile.BLOCK_M) * of_row / sms
        at = max(at, ends[part] - min(waves, 1) * wave) + waves * wave
    return max(at, -(-(others + each) // sms) * wave) + fixed


@cache
def gather_plan(
    M: int, N: int, K: int, world: int, tiles: tuple[Tile, ...] = TILES, item_bytes: int = 2,
    tall: bool = TALL,
) -> OverlapPlan:  # fmt: skip
    """The plan of an all-gather and product: tile and parts by the model."""
    plans: list[OverlapPlan] = []
    for tile in with_flags(tiles, -(-M // world), N):
        of_tile = [in_parts(tile, -(-M // world), parts) for parts in PARTS]
        if tall and N * K * item_bytes > KEPT_BYTES:
            of_tile = [plan for plan in of_tile if plan.part_tiles >= tile.GROUP_M] or of_tile[:1]
        plans += of_tile
    if tiles in (INTERPRETED, SIMULATED):
        return in_parts(tiles[0], -(-M // world), 2)  # on a CPU: so that small sizes have several

    def ended(plan: OverlapPlan) -> tuple[float, float]:
        even, whole = _gathered(plan, N, K, world, item_bytes)
        return max(even, whole), even

    return min(plans, key=ended)


@cache
def scatter_plan(
    M: int, N: int, world: int, tiles: tuple[Tile, ...] = TILES, K: int = 0, item_bytes: int = 2,
    carries: bool = CARRIES,
) -> OverlapPlan:  # fmt: skip
    """The plan of a product and reduce-scatter. Where blocks store partial sums at their owners,
    there is a flag for each tile, and no parts.

    Args:
        K: of a rank's product.
        carries: whether copy engines may carry partial sums, where the model says that it pays.
    """
    tile = fastest_tile(M, N, world, tiles)
    if tiles == SCATTERED_IN_CUDA:
        tile = sent_tile(M, N, K, world, tiles)
    plans = [replace(in_parts(tile, -(-M // world), 1), wide=WIDE, early=EARLY_SCATTER)]
    # Partial sums then lie in the slot twice: here, and at their owners.
    if carries and K and 2 * plans[0].chunk * world * N * 2 <= MOST_BYTES:
        plans += [carried_plan(M, N, world, parts, tiles) for parts in PARTS]
    return min(plans, key=lambda plan: scatter_us(plan, N, K, world, item_bytes))


def carried_plan(
    M: int, N: int, world: int, parts: int, tiles: tuple[Tile, ...] = TILES
) -> OverlapPlan:
    """The plan of a product and reduce-scatter whose partial sums copy engines carry."""
    return in_parts(fastest_tile(M, N, world, tiles), -(-M // world), parts, carried=True)
