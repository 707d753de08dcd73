"""How long an overlapped product takes: small models of time, by which plans are chosen.

They are of measured links, and of constants that are fitted to timed calls. Of the call M, N, K and
the world go into them, and nothing of one rank: so all ranks find the same plan, as flags demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import OverlapPlan, Tile

SMS = 132
"""Of an H200."""

LINK_BYTES_PER_US = 370e3
"""What a copy engine moves from one H200 to another, in one direction: measured at 128 to 512 MiB,
with 18 links of 26.6 GB/s."""

COPY_US = 6.0
"""Before the first byte of a carried part: 9 as fitted to copies of 1 to 32 MiB, of 14, 32 and 99
us, less the flag that stood between two of them then."""

FLOP_PER_US = 740e6
"""Of 16-bit products of a reduce-scatter whose tiles fill the SMs."""

FIRST_COPY_US, NEXT_COPY_US, SEEN_US = 5.0, 2.0, 4.3
"""Of an all-gather: from the begin of a call to its first copy, what a copy and its flag cost
besides the bytes, and until a block that waits has the first rows in shared memory."""

FIRST_TILE_US, TILE_US, LAST_US = 7.0, 1.0, 0.3
"""Of an all-gather: from the begin of a call to its first tile, what a tile costs besides its
products, and what comes behind the last one. The rates of tiles are fitted to 185 calls in CUDA on
two and four H200 and, with two rates of its own, to 32 of Triton; what comes before copies and
tiles to twelve later ones, with no kernel before the product (docs/lab/several_gpus_protocol.md).
"""

TILE_FLOP_PER_US = 850e6
"""Of 16-bit products of tiles of 128 x 256 on all SMs, in CUDA."""

MEMORY_BYTES_PER_US = 4.0e6
"""What an H200 reads of B: 0.83 of its data sheet's bandwidth."""

KEPT_BYTES = 25e6
"""Of B that the L2, of 50 MB, keeps while rows of tiles pass."""

GROUP_ROWS = 2048
"""Of the tiles that go through the columns of B together, in CUDA."""

BOTH = 3
"""Power by which products and the reading of B add up: the longer counts, and a little of the
other. One memory serves all, and one budget of power."""

SENT_BYTES_PER_US = 284e3
"""What TMA moves from tiles of SMs to the peers."""

SENT_CALL_US = 12.3
"""Of a reduce-scatter whose tiles TMA sends: what comes before and behind all else, as fitted to
calls with a kernel at their begin and one at their end, less the 3 and 6 us that these took."""

LEFT_OUT_US = 5.0
"""At most, of the same in two waves: by how much ``sent_us`` is less than was measured."""

READ_BYTES_PER_US = 3.2e6
"""Of the peers' partial sums, that own ones are added to."""

UNHIDDEN = 0.38
"""Of the waves of own tiles, where they are behind all others and the link is what takes longest:
the part that begins only when the last tile has been sent."""

OF_TWO, OF_EACH_MORE = 0.93, {1: 0.083, 2: 0.035}
"""Time of a wave relative to others where own tiles are among them: of two ranks, and what each
rank more adds, since blocks wait for tiles and read rows of A of all owners at once: of single
blocks, and of pairs, which read B once. What is of single blocks, and the constants above, are
fitted to 428 calls on two and four H100 and H200 (reports/nvidia-h100-sxm-x4 and the others,
trials/overlap_plans.csv). Half of them are predicted within 8 %, and the plans they lead to lose
0.6 % to the fastest of each case. What is of pairs is fitted to the choices on four H200
(reports/nvidia-h200-x4/trials/pairs.csv), which lose 0.5 %."""


def wave_us(tile: Tile, K: int, flop_per_us: float, item_bytes: int = 2) -> float:
    """Microseconds in which each SM multiplies a tile. 8-bit floats are taken to be multiplied at
    twice the rate of 16 bits."""
    flop = 2 * tile.BLOCK_M * tile.BLOCK_N * K * item_bytes / 2
    return flop / tile.rate / (flop_per_us / SMS)


def arrivals_us(plan: OverlapPlan, K: int, world: int, item_bytes: int = 2) -> list[float]:
    """When each part of each peer has arrived, in the order in which they do, after the call began.

    Every rank sends its parts to one peer after the other, so each receives from one at a time.
    """
    at, times = FIRST_COPY_US, []
    for _ in range(world - 1):
        for _, first, behind in plan.part_rows(plan.chunk):
            at += NEXT_COPY_US + (behind - first) * K * item_bytes / LINK_BYTES_PER_US
            times.append(at)
    return times


def gather_us(plan: OverlapPlan, N: int, K: int, world: int, item_bytes: int = 2) -> float:
    """Microseconds of all-gather and product.

    Each block has a list of tiles, and takes one after the other as their rows arrive. It ends as
    late as its latest run of tiles without a wait does: when the rows of one have arrived, it and
    all that follow are still to be multiplied. The rows of a part arrive together, so of each part
    only the first tile counts: behind it are the most.
    """
    tile, of_row = plan.tile, -(-N // plan.tile.BLOCK_N)
    tiles = max(world * plan.tiles(N), 1)
    blocks = -(-tiles // -(-tiles // SMS))
    multiplied = wave_us(tile, K, TILE_FLOP_PER_US, item_bytes)
    read = read_us(plan, N, K, blocks, item_bytes)
    one = TILE_US + (multiplied**BOTH + read**BOTH) ** (1 / BOTH)
    ends, before = [FIRST_TILE_US + one * -(-tiles // blocks)], plan.tiles(N)
    arrivals = iter(arrivals_us(plan, K, world, item_bytes))
    for _ in range(world - 1):
        for _, first, behind in plan.part_rows(plan.chunk):
            begins = max(next(arrivals) + SEEN_US, FIRST_TILE_US)
            ends.append(begins + one * -(-(tiles - before) // blocks))
            before += -(-(behind - first) // tile.BLOCK_M) * of_row
    return max(ends) + LAST_US


def read_us(plan: OverlapPlan, N: int, K: int, blocks: int, item_bytes: int = 2) -> float:
    """Microseconds in which memory gives what so many tiles of an all-gather, one for each block,
    read of B. Few rows of a rank go through many columns, and each rank's rows read them anew."""
    if N * K * item_bytes <= KEPT_BYTES:
        return 0.0
    rows = max(min(plan.chunk, GROUP_ROWS) / plan.tile.BLOCK_M, 1)  # of tiles, one above the other
    return blocks / rows * plan.tile.BLOCK_N * K * item_bytes / MEMORY_BYTES_PER_US


def scatter_us(plan: OverlapPlan, N: int, K: int, world: int, item_bytes: int = 2) -> float:
    """Microseconds of product and reduce-scatter, whose partial sums have two bytes an element.

    Blocks come to the ends of their tiles together, and a block of Triton's multiplies nothing
    while it stores: where blocks store to owners, all of the transfer shows. Where copy engines
    carry, a part leaves a wave after its last tile, since blocks tell of a tile when they have the
    next, and own tiles wait for the same part of the peers'.
    """
    tile, of_row = plan.tile, -(-N // plan.tile.BLOCK_N)
    sms = SMS - int(plan.carried)
    wave, each = wave_us(tile, K, FLOP_PER_US, item_bytes), plan.tiles(N)
    sent = plan.chunk * (world - 1) * N * 2
    fixed = sent / READ_BYTES_PER_US
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


def sent_us(plan: OverlapPlan, N: int, K: int, world: int) -> float:
    """Microseconds of product and reduce-scatter whose tiles TMA sends while the next ones are
    multiplied.

    Where own tiles are behind all others, the link idles while they are multiplied; where they are
    among them, products and link end together, and only the sums of the last wave follow.
    """
    tile, each = plan.tile, max(plan.visited(N), 1)
    one = tile.stores_us + wave_us(tile, K, TILE_FLOP_PER_US)
    waves = -(-each * world // SMS)
    blocks = -(-each * world // waves)
    own = -(-each // blocks)
    read = (world - 1) * tile.BLOCK_M * tile.BLOCK_N * 2 * SMS / READ_BYTES_PER_US
    link = (world - 1) * plan.chunk * N * 2 / SENT_BYTES_PER_US
    if plan.turn:
        if not plan.lag:  # two waves, that read rows of all owners and half of B each
            return SENT_CALL_US + max(waves * one * OF_TWO, link) + read
        busy = waves * one * (OF_TWO + OF_EACH_MORE[tile.CLUSTER] * (world - 2)) + own * read
        return SENT_CALL_US + max(busy, link) + read
    others = max(each * (world - 1) / blocks * one, link)
    return SENT_CALL_US + own * read + max(waves * one, others + UNHIDDEN * own * one)
