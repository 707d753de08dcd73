"""wgmma_overlap: what nvcc makes of it, and in the simulator how it waits and what it sends."""

import csv
import random
import re
import threading
import time
from collections import defaultdict
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import records
import torch
from tcgemm.cuda_ref.build import toolchain
from test_overlap import Here, both_products, in_processes, options, partial_sums

from tcgemm.accuracy import error_ratio
from tcgemm.dist import overlap
from tcgemm.dist.options import ALL_GATHER, REDUCE_SCATTER, Options
from tcgemm.dist.overlap import plan as planning
from tcgemm.dist.overlap import protocol
from tcgemm.dist.overlap.plan import MOST_PARTS
from tcgemm.dist.overlap.protocol import Rank
from tcgemm.dist.planning import MOST_TILES, why_not, why_not_tiles
from tcgemm.dist.rows import rows_of
from tcgemm.problem import Fusion

kernels = import_module("tcgemm.cuda_ref.overlap.run")

WAYS = Path(__file__).parents[1] / "reports/nvidia-h100-sxm-x2/trials/overlap_ways.csv"


@pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)
@pytest.mark.parametrize(
    "tile", planning.GATHERED_IN_CUDA, ids=lambda t: f"{t.BLOCK_M}x{t.BLOCK_N}"
)
@pytest.mark.parametrize("epilogue", ["", "gelu"])
def test_nvcc_overlaps_and_spills_next_to_nothing(tile, epilogue):
    if epilogue and not tile.fuses:
        pytest.skip("a tile without room for what is fused")
    fusion = kernels._fusion(torch.empty(8) if epilogue else None, epilogue)
    defines = kernels.defines(torch.bfloat16, fusion, tile)
    report = records.cuda("wgmma_overlap", "sm_90a", defines)
    assert not report.serialized
    products = [kernel for kernel in report.kernels if "wgmma_overlap" in kernel.symbol]
    assert len(products) == 4  # two layouts of B, to gather and to scatter
    for kernel in products:
        assert kernel.sass["HGMMA"] > 0
        assert kernel.sass["UTMALDG"] > 0
        assert kernel.sass["UTMASTG"] > 0
        adds = re.search(r"Lb([01])E", kernel.symbol)[1] == "1"
        # Where the peers' sums are added, behind the products, a bias takes registers as well. The
        # number of the call is read again for each flag that is set.
        assert kernel.spill_bytes <= ((368 if epilogue else 36) if adds else 0)


def in_clusters(tile, blocks):
    return replace(tile, CLUSTER=blocks)


def ranks_of(world):
    """Ranks whose memory the simulator's processes share."""
    pool = {}

    class Shared(Here):
        def share(self, size):
            return [each.share_memory_() for each in super().share(size)]

    return [Rank(Shared(r, world, pool), timeout_s=60) for r in range(world)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_producer_waits_for_parts_that_come_in_any_order(dtype, cluster):
    """Three ranks; another thread brings the rows of two, late, and each flag behind its rows. The
    second tile of a pair may lie past a rank's rows."""
    world, M, N, K = 3, 1000, 264, 136
    ranks, draw = ranks_of(world), random.Random(5)
    plan = planning.in_parts(in_clusters(planning.SIMULATED[0], cluster), -(-M // world), 2)
    assert (plan.parts, plan.part_tiles) == (2, 2)
    me = ranks[1]
    for call in range(2):
        a, b = torch.randn(M, K).to(dtype), torch.randn(N, K).to(dtype).T
        bias = torch.randn(N).to(dtype)
        b = b.contiguous() if call else b
        for rank in ranks:
            rank.memory.take(world * plan.chunk * K * 2)
        for rank in ranks:
            rank.memory._calls = 0
        slot = me.memory.slots[0]
        slot.data[1].fill_(255)
        slot.done[:] = slot.epoch  # the peers have ended the slot's last use
        here = slot.data[1][: world * plan.chunk * K * 2].view(dtype).view(-1, K)

        def deliver(here=here, slot=slot, a=a, now=call + 1):
            coming = [
                (source, first, part)
                for source in (0, 2)
                for first, behind in [rows_of(M, world, source)]
                for part in plan.part_rows(behind - first)
            ]
            draw.shuffle(coming)
            for source, first, (part, begin, end) in coming:
                time.sleep(draw.random())
                at = source * plan.chunk
                here[at + begin : at + end] = a[first + begin : first + end]
                slot.parts[source * MOST_PARTS + part] = now

        thread = threading.Thread(target=deliver)
        thread.start()
        out = torch.full((M, N), float("nan"), dtype=dtype)
        asked = options(bias=bias, epilogue="gelu", rows=M)
        me.gather(kernels, a[slice(*rows_of(M, world, 1))].clone(), b, out, plan, asked)
        thread.join()
        assert error_ratio(a, b, out, Fusion(bias=bias, epilogue="gelu")) <= 1
        assert int(slot.epoch) == call + 1


@pytest.mark.exhaustive
def test_flags_that_come_before_their_rows_give_nan():
    """So the test above does see a producer that does not wait."""
    world, M, N, K = 2, 256, 64, 64
    ranks = ranks_of(world)
    plan = planning.gather_plan(M, N, K, world, planning.SIMULATED)
    me = ranks[0]
    me.memory.take(world * plan.chunk * K * 2)
    me.memory._calls = 0
    slot = me.memory.slots[0]
    slot.data[0].fill_(255)
    slot.parts[:] = 1
    out = torch.zeros(M, N).half()
    steps = me.gather_in_steps(
        kernels, torch.ones(M // 2, K).half(), torch.ones(K, N).half(), out, plan, options(rows=M)
    )
    ranks[1].memory.take(world * plan.chunk * K * 2)
    for _ in steps:
        pass
    assert (out[: M // 2] == K).all()
    assert out[M // 2 :].isnan().all()


def in_cuda(rank, world, M, calls):
    return both_products(rank, world, M, calls, "cuda")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("world", "M"), [(2, 300), (3, 2)])
def test_processes_multiply_together_in_the_simulator(world, M):
    said = in_processes(world, in_cuda, M, 2, timeout_s=300)
    assert said == {rank: [] for rank in range(world)}


def gathered(rank, world, M, tile):
    """All-gathers one after the other, of which only the first of a size is behind ``enter``."""
    import torch.distributed as dist

    N, K, group, wrong = 136, 72, dist.group.WORLD, []
    first, behind = rows_of(M, world, rank)
    plan = planning.in_parts(tile, -(-M // world), 2)
    for call in range(4):
        a, b = partial_sums(1, M, N, K, torch.bfloat16, call)[0]
        out = torch.full((M, N), float("nan")).bfloat16()
        asked = Options("cuda", rows=M, plan=plan)
        overlap.all_gather_matmul(a[first:behind].clone(), b, out, group, asked)
        if not torch.equal(out, (a.double() @ b.double()).bfloat16()):
            wrong.append(call)
    return wrong


@pytest.mark.parametrize(
    ("world", "M", "tile"),
    [
        pytest.param(
            world, M, tile, id=f"{world}-{M}-{tile.BLOCK_M}x{tile.BLOCK_N}",
            marks=() if (tile.BLOCK_M, world) == (64, 2) else pytest.mark.exhaustive,
        )
        for world, M in ((2, 300), (3, 130))
        for tile in planning.GATHERED_IN_CUDA
    ],
)  # fmt: skip
def test_every_tile_of_an_all_gather_begins_its_call_itself(world, M, tile):
    said = in_processes(world, gathered, M, tile, timeout_s=300)
    assert said == {rank: [] for rank in range(world)}


SENT = {
    "two tiles in ping-pong": planning.SIMULATED[0],
    "one tile": planning.TILES[0],
    "pairs in ping-pong": in_clusters(planning.SIMULATED[0], 2),
    "pairs of one tile": in_clusters(planning.TILES[0], 2),
}
"""Tiles of a reduce-scatter that the simulator has builds for."""


def in_order_of_threads(tile, rows, columns, warpgroups):
    """A tile of a partial sum as the slot has it: see csrc/sm90/owners.cuh.

    Eight of a thread's accumulators are two rows, eight apart, of two pairs of neighbours, eight
    columns apart.
    """
    parts = tile.view(warpgroups, rows // 64 // warpgroups, 4, 2, 8, columns // 16, 2, 4, 2)
    part, mma, warp, half, row, block, right, pair, column = range(9)
    return parts.permute(part, mma, block, warp, row, pair, right, half, column).flatten()


@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", SENT.values(), ids=SENT)
def test_tiles_of_partial_sums_lie_in_the_order_of_threads(tile):
    """Rank 1 of 3, its peers' tiles in place beforehand: what it adds, and what it sends."""
    world, M, N, K, dtype = 3, 580, 392, 72, torch.float16
    plan = planning.in_parts(tile, -(-M // world), 1)
    warpgroups = 1 if tile.BLOCK_N == 128 else 2
    count, flags = plan.tiles(N), plan.tiles(N) * warpgroups
    assert kernels.sent_shape(plan, N) == (count, tile.BLOCK_M, tile.BLOCK_N)
    down, across = -(-plan.chunk // tile.BLOCK_M), -(-N // tile.BLOCK_N)
    assert down == 2
    assert across >= 2

    def whole_tiles(sums):
        """[tiles, elements] of an owner's rows, NaN past their ends."""
        held = torch.full((down * tile.BLOCK_M, across * tile.BLOCK_N), float("nan"))
        held[: sums.shape[0], :N] = sums
        cut = held.view(down, tile.BLOCK_M, across, tile.BLOCK_N).transpose(1, 2)
        return torch.stack([
            in_order_of_threads(each.contiguous(), tile.BLOCK_M, tile.BLOCK_N, warpgroups)
            for each in cut.reshape(count, tile.BLOCK_M, tile.BLOCK_N)
        ]).to(dtype)  # fmt: skip

    ranks, operands = ranks_of(world), partial_sums(world, M, N, K, dtype)
    sums = [a.double() @ b.double() for a, b in operands]
    size = world * count * tile.BLOCK_M * tile.BLOCK_N * 2
    for rank in ranks:
        rank.memory.take(size)
        rank.memory.slots[1].data[rank.transport.rank].fill_(255)  # of the next call
    me, (first, behind) = ranks[1], rows_of(M, world, 1)
    slot = me.memory.slots[1]
    here = slot.data[1][:size].view(dtype).view(world, count, -1)
    for source in (0, 2):
        here[source] = whole_tiles(sums[source][first:behind])
        at = slot.tiles_at + source * MOST_TILES
        slot.own[at : at + flags] = 1
    out = torch.full((behind - first, N), float("nan"), dtype=dtype)
    bias = torch.arange(N).remainder(5).to(dtype)
    me.scatter(kernels, *operands[1], out, plan, options(bias=bias, epilogue="relu", rows=M))
    assert torch.equal(out, torch.relu(sum(sums)[first:behind] + bias).to(dtype))
    for owner in (0, 2):
        there = ranks[owner].memory.slots[1]
        sent = there.data[owner][:size].view(dtype).view(world, count, -1)
        begin, end = rows_of(M, world, owner)
        wanted = whole_tiles(sums[1][begin:end])
        inside = ~wanted.isnan()
        assert inside.sum() == (end - begin) * N
        assert torch.equal(sent[1][inside], wanted[inside])
        assert sent[0].isnan().all()
        assert sent[2].isnan().all()
        # Chunks of 64 x 64 that lie outside are not sent.
        chunks = inside.view(-1, 64 * 64).any(dim=1)
        assert sent[1].view(-1, 64 * 64)[~chunks].isnan().all()
        assert (~chunks).sum() > 0
        at = there.tiles_at + MOST_TILES
        assert set(there.own[at : at + flags].tolist()) == {1}
        assert int(there.done[1]) == 0  # the next call tells it


def test_nothing_is_sent_before_the_peers_are_done_with_the_slot():
    """Two calls on one slot, as replays of a graph have them; the peer of the second is late."""
    world, M, N, K, dtype = 2, 256, 128, 72, torch.float16
    plan = planning.in_parts(SENT["two tiles in ping-pong"], M // world, 1)
    ranks, operands = ranks_of(world), partial_sums(world, M, N, K, dtype)
    exact = sum(a.double() @ b.double() for a, b in operands)[: M // world]
    size, me, seen = world * plan.tiles(N) * 128 * 128 * 2, ranks[0], []
    for rank in ranks:
        rank.memory.take(size)
    slot, there = me.memory.slots[0], ranks[1].memory.slots[0].data[1]
    theirs = (operands[1][0].double() @ operands[1][1].double())[: M // world].to(dtype)
    sent = in_order_of_threads(theirs.contiguous(), 128, 128, 1)

    def end_of_call():
        time.sleep(1.5)
        seen.append(bool((there == 255).all()))
        slot.done[1] = 1

    for call in (1, 2):
        me.memory._calls, me._number = 0, None
        slot.data[0][:size].view(dtype).view(world, -1)[1] = sent
        slot.own[slot.tiles_at + MOST_TILES] = call
        there.fill_(255)
        late = threading.Thread(target=end_of_call if call == 2 else lambda: None)
        late.start()
        out = torch.full((M // world, N), float("nan"), dtype=dtype)
        me.scatter(kernels, *operands[0], out, plan, options(rows=M))
        late.join()
        assert torch.equal(out, exact.to(dtype))
        assert not (there == 255).all()
    assert seen == [True]


def scattered(rank, world, M, N, tile, turn, lag):
    """Reduce-scatters of both types, behind slots full of NaN; the calls that were wrong."""
    import torch.distributed as dist

    # Of the 8 that are simulated: a process runs one block or cluster at a time.
    protocol.SPARE_SMS = 8 - tile.CLUSTER
    protocol.TIMEOUT_S = 60.0
    K, group, wrong = 72, dist.group.WORLD, []
    first, behind = rows_of(M, world, rank)
    plan = replace(planning.in_parts(tile, -(-M // world), 1), turn=turn, lag=lag)
    for call, dtype in enumerate((torch.bfloat16, torch.float16, torch.bfloat16)):
        for _, of in overlap._ranks.values():
            for slot in of.memory.slots:
                slot.data[rank].fill_(255)
        dist.barrier()
        operands = partial_sums(world, M, N, K, dtype, call)
        more = {"bias": torch.arange(N).remainder(7).to(dtype), "epilogue": "relu"} if call else {}
        asked = Options("cuda", rows=M, plan=plan, **more)
        out = torch.full((behind - first, N), float("nan"), dtype=dtype)
        overlap.matmul_reduce_scatter(*operands[rank], out, group, asked)
        exact = sum(a.double() @ b.double() for a, b in operands)[first:behind]
        exact = (exact + more["bias"]).relu() if more else exact
        if not torch.equal(out, exact.to(dtype)):
            wrong.append(call)
    return wrong


@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", SENT.values(), ids=SENT)
@pytest.mark.parametrize(
    ("world", "M", "N", "turn", "lag"),
    [
        (2, 521, 392, 0, 0), (3, 431, 264, 0, 0), (4, 260, 136, 0, 0),
        (2, 516, 392, 1, 1), (2, 516, 392, 2, 2), (3, 450, 392, 1, 3), (4, 516, 520, 1, 3),
        (3, 450, 392, 3, 1), (2, 516, 392, 99, 1), (3, 431, 264, 1, 1),
        (2, 516, 392, 2, 0), (3, 450, 392, 1, 0), (4, 516, 520, 3, 0), (2, 128, 392, 99, 0),
    ],
)  # fmt: skip
def test_processes_scatter_tiles_in_the_simulator(world, M, N, turn, lag, tile):
    """Own tiles behind all others, or among them where ranks have as many rows, and more tiles than
    the turns that own ones wait."""
    plan = planning.in_parts(tile, -(-M // world), 1)
    among = M % world == 0 and turn > 0 and plan.visited(N) > turn * lag * tile.CLUSTER
    if not lag and turn:  # own tiles as soon as those of the same turn are sent
        assert among
    elif (tile.BLOCK_N, tile.CLUSTER) == (256, 2):  # half as many, of which few ranks have enough
        assert among == ((world, M, turn) == (2, 516, 1))
    else:
        assert among == ((M, turn) in ((516, 1), (516, 2), (450, 1), (450, 3)))
    said = in_processes(world, scattered, M, N, tile, turn, lag, timeout_s=120)
    assert said == {rank: [] for rank in range(world)}


def test_what_ranks_share_is_counted_in_whole_tiles():
    """Of CUDA's partial sums: 8 ranks with 4 x 65,536 x 256 elements of two bytes each."""
    asked = REDUCE_SCATTER, 8 * 32768, 8, 64, "float16", 8
    assert why_not(*asked, "triton") is None
    assert why_not(*asked, "cuda") is None
    wide = REDUCE_SCATTER, 8 * 32768, 8 * 1024, 64, "float16", 8
    assert why_not(*wide, "triton") is None
    assert why_not(*wide, "cuda") is None  # whole tiles
    uneven = REDUCE_SCATTER, 8 * (32768 - 127), 8 * 1024 + 8, 64, "float16", 8
    assert why_not(*uneven, "triton") is None
    assert "would share 4429185024 bytes" in why_not(*uneven, "cuda")


def test_a_gather_takes_the_tile_that_was_the_fastest_or_nearly():
    """On two H100, CUDA's all-gathers by three tiles in one part."""
    best = defaultdict(dict)
    with WAYS.open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["op"], row["backend"], row["parts"]) == ("all_gather", "cuda", "1"):
                case = tuple(int(row[name]) for name in "MNK")
                best[case][int(row["tile"].split("x")[1])] = float(row["ms"])
    found = {}
    for (M, N, K), ms in best.items():
        tile = planning.gather_plan(M, N, K, 2, planning.GATHERED_IN_CUDA).tile
        found[M, N, K] = tile.BLOCK_N
        assert ms.get(tile.BLOCK_N, 0) <= 1.02 * min(ms.values()), (M, N, K, ms)
    assert {192, 224} <= set(found.values())


def test_a_tile_has_no_more_tiles_than_flags():
    """Of a rank: with narrow tiles the product would be refused."""
    for M, N, K in ((65536, 28672, 512), (131072, 16384, 256)):
        tile = planning.sent_plan(M, N, K, 2, planning.SCATTERED_IN_CUDA).tile
        assert why_not_tiles(planning.in_parts(tile, M // 2, 1).tiles(N)) is None
        assert tile.BLOCK_N == 256
    narrow = planning.SCATTERED_IN_CUDA[1:]
    assert planning.with_flags(narrow, 1 << 20, 1 << 15) == narrow  # it has to be refused


def test_what_is_fused_has_room_in_its_tile():
    def tiles(op=ALL_GATHER, language="cuda", fused=False):
        return [t.BLOCK_N for t in planning.tiles_of(op, language, 2, fused, False)]

    assert tiles() == [256, 128, 224, 192, 128]
    assert tiles(fused=True) == [256, 128, 192, 128]
    assert tiles(REDUCE_SCATTER) == [256, 128, 128]
    assert tiles(language="triton") == [256, 128]

    def planned(**asked):  # for a shape whose plan is one of those without room
        like = SimpleNamespace(is_cuda=True, itemsize=2)
        plan = overlap._plan(ALL_GATHER, 2048, 7168, 4096, 2, Options("cuda", **asked), like)
        return plan.tile.fuses

    assert not planned()
    assert planned(epilogue="gelu")
    assert planned(bias=torch.ones(8))
