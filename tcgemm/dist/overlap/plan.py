"""How an overlapped product runs: its tile, and in how many parts a rank's rows are sent.

The models of times.py choose both: many parts let the first tiles of a peer begin early, few waste
less on what each copy costs; small tiles end soon after the last rows arrive, large ones read less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ..options import ALL_GATHER
from ..planning import MOST_BYTES, why_not_tiles
from .times import KEPT_BYTES, LEFT_OUT_US, SMS, gather_us, scatter_us, sent_us

TALL = 512
"""Rows that a part has at least where B is larger than that. Each part reads all of B: with parts
of 256 rows products took a tenth longer."""

CARRIES = True
"""Whether copy engines carry partial sums to their owners where the model says that it pays."""

WIDE = True
EARLY_SCATTER = True
"""What plans of a reduce-scatter that is not carried have of the fields ``wide`` and ``early``."""

LAG = 3
"""Turns that own tiles come behind, of more than two ranks: then the peers' tiles are there. Of two
ranks one turn was enough (reports/nvidia-h100-sxm-x4/trials/overlap_plans.csv and -x2)."""

MOST_PARTS = 8
PARTS = (1, 2, 4, MOST_PARTS)
"""Of a rank's rows, of which a plan takes one number."""

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
    stores_us: float = 0.0
    """What a tile costs besides, where it is sent to its owner: nothing is multiplied meanwhile."""
    CLUSTER: int = 1
    """Blocks that share a B by multicast, in CUDA: 2 have tiles one above the other, of more than
    64 rows."""

    def __post_init__(self) -> None:
        if self.CLUSTER not in (1, 2) or (self.CLUSTER == 2 and self.BLOCK_M == 64):
            raise ValueError(
                f"CLUSTER={self.CLUSTER} blocks with BLOCK_M={self.BLOCK_M} share no B: take 1, or "
                "2 with 128 rows"
            )

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

GATHERED = (Tile(128, 256, 64, 8, 3, 8, 0.92), Tile(128, 128, 64, 8, 4, 8, 0.88))
"""Of Triton's all-gather."""

GATHERED_IN_CUDA = (
    Tile(128, 256, 64, 8, 3, 8, 1.0),
    Tile(128, 128, 64, 8, 4, 8, 0.917),
    Tile(128, 224, 64, 8, 4, 8, 0.99, fuses=False),
    Tile(128, 192, 64, 8, 4, 8, 0.985),
    Tile(64, 128, 64, 8, 8, 4, 0.70),
)
"""Of CUDA's all-gather. Besides the rate a tile costs TILE_US."""

SCATTERED_IN_CUDA = (
    Tile(128, 256, 64, 8, 3, 8, 1.0, stores_us=5.7),
    Tile(128, 128, 64, 8, 4, 8, 0.71, stores_us=0.2),
    Tile(128, 128, 64, 8, 4, 8, 0.90, stores_us=0.2, CLUSTER=2),
)
"""Of CUDA's reduce-scatter: those of 128 columns in ping-pong. See times.sent_us."""

TILES_OF_8_BITS = (Tile(128, 128, 128, 8, 4, 8, 1.0),)
"""Of 8-bit floats, whose sums leave the tensor core every 128 steps of K: it has two sets of
accumulators."""

INTERPRETED = (Tile(32, 32, 32, 2, 2, 4, 1.0),)
"""Where Triton's kernels are interpreted, on a CPU: so that small matrices have many tiles."""

SIMULATED = (Tile(128, 128, 64, 16, 6, 12, 1.0),)
"""Where CUDA's are simulated: the tile of a build that names none."""


def tiles_of(op: str, language: str, itemsize: int, fused: bool, on_cpu: bool) -> tuple[Tile, ...]:
    """Those that a language has for operands of so many bytes an element."""
    cuda = language == "cuda"
    if on_cpu:
        return SIMULATED if cuda else INTERPRETED
    if itemsize != 2:
        return TILES_OF_8_BITS
    if op != ALL_GATHER:
        return SCATTERED_IN_CUDA if cuda else TILES
    if not cuda:
        return GATHERED
    return tuple(tile for tile in GATHERED_IN_CUDA if tile.fuses or not fused)


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
    while ``enter`` runs, where there is one (programmatic dependent launch)."""
    turn: int = 0
    """Of a reduce-scatter in CUDA, where all ranks have as many rows: so many tiles of each owner,
    those of a cluster counted as one, take turns; 0: own tiles come behind all others."""
    lag: int = 0
    """Turns that those of this rank come later; 0: behind the others of the same turn."""

    def __post_init__(self) -> None:
        if self.part_tiles % self.tile.CLUSTER:
            raise ValueError(
                f"part_tiles={self.part_tiles} is no multiple of the {self.tile.CLUSTER} blocks of "
                "a cluster, which wait for one flag: take one that is"
            )

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

    def visited(self, N: int) -> int:
        """The same, with those of clusters that lie past an odd row of tiles."""
        tile = self.tile
        of_clusters = -(-self.chunk // (tile.BLOCK_M * tile.CLUSTER)) * -(-N // tile.BLOCK_N)
        return of_clusters * tile.CLUSTER


def in_parts(tile: Tile, chunk: int, parts: int, carried: bool = False) -> OverlapPlan:
    """The plan with as many parts, or fewer where the tiles' rows are few. A part has whole
    clusters."""
    rows = max(-(-chunk // (tile.BLOCK_M * tile.CLUSTER)), 1)
    of_part = -(-rows // parts)
    return OverlapPlan(tile, chunk, -(-rows // of_part), of_part * tile.CLUSTER, carried)


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


@lru_cache(maxsize=4096)
def gather_plan(
    M: int, N: int, K: int, world: int, tiles: tuple[Tile, ...] = GATHERED, item_bytes: int = 2,
    tall: int = TALL,
) -> OverlapPlan:  # fmt: skip
    """The plan of an all-gather and product: tile and parts by the model."""
    if tiles in (INTERPRETED, SIMULATED):
        return in_parts(tiles[0], -(-M // world), 2)  # on a CPU: so that small sizes have several
    plans: list[OverlapPlan] = []
    for tile in with_flags(tiles, -(-M // world), N):
        of_tile = [in_parts(tile, -(-M // world), parts) for parts in PARTS]
        if N * K * item_bytes > KEPT_BYTES:
            of_tile = [p for p in of_tile if p.part_tiles * tile.BLOCK_M >= tall] or of_tile[:1]
        plans += of_tile

    # Of equals the one with the fewest copies, which the host starts.
    return min(plans, key=lambda plan: (gather_us(plan, N, K, world, item_bytes), plan.parts))


def gathered_us(M: int, N: int, K: int, world: int, language: str, item_bytes: int) -> float:
    """Microseconds of an all-gather and product on GPUs by the model of its plan, which knows how
    many tiles there are."""
    tiles = tiles_of(ALL_GATHER, language, item_bytes, fused=False, on_cpu=False)
    return gather_us(gather_plan(M, N, K, world, tiles, item_bytes), N, K, world, item_bytes)


@lru_cache(maxsize=4096)
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
    if tiles == SCATTERED_IN_CUDA:
        return sent_plan(M, N, K, world, tiles)
    tile = fastest_tile(M, N, world, tiles)
    plans = [replace(in_parts(tile, -(-M // world), 1), wide=WIDE, early=EARLY_SCATTER)]
    # Partial sums then lie in the slot twice: here, and at their owners.
    if carries and K and 2 * plans[0].chunk * world * N * 2 <= MOST_BYTES:
        plans += [carried_plan(M, N, world, parts, tiles) for parts in PARTS]
    return min(plans, key=lambda plan: scatter_us(plan, N, K, world, item_bytes))


def sent_plan(M: int, N: int, K: int, world: int, tiles: tuple[Tile, ...]) -> OverlapPlan:
    """The plan of a reduce-scatter whose tiles TMA sends to their owners while the next ones are
    multiplied. Own tiles are among the others only where all ranks have as many rows."""
    chunk = -(-M // world)
    # The second of a pair would find no tile where a rank has one row of tiles.
    tiles = tuple(tile for tile in tiles if tile.CLUSTER == 1 or chunk > tile.BLOCK_M)
    plans = [in_parts(tile, chunk, 1) for tile in with_flags(tiles, chunk, N)]
    if chunk * world == M and world > 1:
        for plan in [*plans]:
            turn = max(SMS // plan.tile.CLUSTER // world, 1)
            lag = 0 if has_two_waves(plan, N, world) else 1 if world == 2 else LAG
            # Of few tiles all own ones would come behind the others still.
            if plan.visited(N) > turn * lag * plan.tile.CLUSTER:
                plans.append(replace(plan, turn=turn, lag=lag))
    return min(plans, key=lambda plan: sent_us(plan, N, K, world))


def has_two_waves(plan: OverlapPlan, N: int, world: int) -> bool:
    """Whether each block has two tiles, one for either consumer of a tile in ping-pong: then an own
    tile may come as soon as the same one of the peers is sent, since no tile comes behind the wait.
    Half of the columns of all ranks' rows are a wave, so B is read once."""
    in_pingpong = plan.tile.BLOCK_N == 128
    return in_pingpong and -(-plan.visited(N) * world // SMS) == 2


def two_waves_us(M: int, N: int, K: int, world: int) -> float | None:
    """At most what a reduce-scatter in CUDA takes in microseconds whose plan has own tiles at once;
    None where it has not."""
    plan = scatter_plan(M, N, world, SCATTERED_IN_CUDA, K)
    at_once = plan.turn > 0 and not plan.lag
    return sent_us(plan, N, K, world) + LEFT_OUT_US if at_once else None


def carried_plan(
    M: int, N: int, world: int, parts: int, tiles: tuple[Tile, ...] = TILES
) -> OverlapPlan:
    """The plan of a product and reduce-scatter whose partial sums copy engines carry."""
    return in_parts(fastest_tile(M, N, world, tiles), -(-M // world), parts, carried=True)
