"""wgmma_overlap: what nvcc makes of it, and in the simulator how it waits and what it sends."""

import csv
import random
import re
import threading
import time
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import records
import torch
from tcgemm.cuda_ref.build import toolchain
from test_overlap import Here, both_products, in_processes, options

from tcgemm.accuracy import error_ratio
from tcgemm.dist import overlap
from tcgemm.dist.options import ALL_GATHER, REDUCE_SCATTER, Options
from tcgemm.dist.overlap import plan as planning
from tcgemm.dist.overlap.plan import MOST_PARTS
from tcgemm.dist.overlap.protocol import Rank
from tcgemm.dist.planning import MOST_WORLD, why_not_tiles
from tcgemm.dist.rows import rows_of
from tcgemm.problem import Fusion

kernels = import_module("tcgemm.cuda_ref.overlap.run")

WAYS = Path(__file__).parents[1] / "reports/nvidia-h100-sxm-x2/trials/overlap_ways.csv"

SCATTERED = Path(__file__).parents[1] / "reports/nvidia-h200-x4/trials/several_runs.csv"


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
        # Where the peers' sums are added, behind the products: a bias takes registers as well.
        assert kernel.spill_bytes <= (640 if adds else 0)


def ranks_of(world):
    """Ranks whose memory the simulator's processes share."""
    pool = {}

    class Shared(Here):
        def share(self, size):
            return [each.share_memory_() for each in super().share(size)]

    return [Rank(Shared(r, world, pool), timeout_s=60) for r in range(world)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_producer_waits_for_parts_that_come_in_any_order(dtype):
    """Three ranks; another thread brings the rows of two, late, and each flag behind its rows."""
    world, M, N, K = 3, 1000, 264, 136
    ranks, draw = ranks_of(world), random.Random(5)
    plan = planning.gather_plan(M, N, K, world, planning.SIMULATED)
    assert plan.parts == 2
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


def test_a_scatter_takes_the_tile_that_was_the_fastest_or_nearly():
    """On four H200: mostly 128 x 256 in one run, 128 x 128 in the other."""
    ms = defaultdict(dict)
    with SCATTERED.open(newline="") as file:
        for row in csv.DictReader(file):
            case = tuple(int(row[name]) for name in "MNK")
            if row["contender"] == "overlapped/cuda" and row["op"] == "reduce_scatter":
                ms[case][row["what"]] = float(row["ms_p50"])
    lost, found = [], set()
    for (M, N, K), of in ms.items():
        tile = planning.sent_tile(M, N, K // 4, 4, planning.SCATTERED_IN_CUDA)
        wide, narrow = of["stored by TMA, a buffer each"], of["after"]
        found.add(tile.BLOCK_N)
        lost.append((wide if tile.BLOCK_N == 256 else narrow) / min(wide, narrow) - 1)
    assert len(lost) == 20
    assert max(lost) < 0.05
    assert sum(lost) / 20 < 0.005
    assert found == {128, 256}


def test_a_tile_has_no_more_tiles_than_flags():
    """Of a rank: with narrow tiles the product would be refused."""
    for M, N, K in ((65536, 28672, 512), (131072, 16384, 256)):
        tile = planning.sent_tile(M, N, K, 2, planning.SCATTERED_IN_CUDA)
        assert why_not_tiles(planning.in_parts(tile, M // 2, 1).tiles(N)) is None
        assert tile.BLOCK_N == 256
    narrow = planning.SCATTERED_IN_CUDA[1:]
    assert planning.with_flags(narrow, 1 << 20, 1 << 15) == narrow  # it has to be refused


def test_as_many_owners_as_ranks():
    header = (Path(kernels.__file__).parents[1] / "csrc/sm90/peers.cuh").read_text()
    assert f"MOST_OWNERS = {kernels.MOST_OWNERS};" in header
    assert kernels.MOST_OWNERS == MOST_WORLD


def test_what_is_fused_has_room_in_its_tile():
    like = SimpleNamespace(is_cuda=True, itemsize=2)

    def tiles(op=ALL_GATHER, backend="cuda", **asked):
        return [t.BLOCK_N for t in overlap._tiles(op, Options(backend, **asked), like)]

    assert tiles() == [256, 128, 224, 192]
    assert tiles(epilogue="gelu") == tiles(bias=torch.ones(8)) == [256, 128, 192]
    assert tiles(backend="triton") == tiles(REDUCE_SCATTER) == [256, 128]
