"""The tiles of wgmma_persistent: the choice by rounds, and each tile through the simulator."""

import math
import re

import pytest
import torch
from tcgemm.cuda_ref import load, simulator
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.fusion import DTYPES, TILE
from tcgemm.cuda_ref.rungs import wgmma_persistent as tiles

from tcgemm import accuracy
from tcgemm.problem import Problem

SOURCE = toolchain.source("wgmma_persistent")
BLOCK = toolchain.ROOT / "rungs/wgmma_persistent_build.cuh"
IDS = [f"{t.BLOCK_M}x{t.BLOCK_N}" + "-pingpong" * t.PINGPONG for t in tiles.TILES]


def problem(M, N, K=4096, **more):
    more = {"device": "cuda", "c_strides": (N, 1), **more}
    return Problem(M, N, K, "bfloat16", "bfloat16", (K, 1), (N, 1), **more)


def rounds(tile, M, N, processors=132):
    found = -(-(-(-M // tile.BLOCK_M) * -(-N // tile.BLOCK_N)) // processors)
    return max(found, 1 + tile.PINGPONG)


@pytest.mark.parametrize("side", [256, 960, 1536, 2112, 3072, 4096, 8192, 16384])
@pytest.mark.parametrize("rows", [4096, 1024])
def test_no_other_tile_would_end_before(rows, side):
    chosen = tiles.tile_of(problem(rows, side))

    def time(tile):
        rate = tile.n_major_rate or tile.rate
        least = tiles.LEAST * 128 * 256  # what a producer needs for a step of any tile
        count = rounds(tile, rows, side)
        return max(count * tile.BLOCK_M * tile.BLOCK_N / rate, count * least)

    assert time(chosen) == min(map(time, tiles.TILES))


def test_rounding_decides_at_3072():
    """288 tiles of 128 x 256 are three rounds of 132; 384 of 192 x 128 three smaller ones."""
    tile = tiles.tile_of(problem(3072, 3072))
    assert tile.BLOCK_M * tile.BLOCK_N < 128 * 256
    assert rounds(tile, 3072, 3072) * tile.BLOCK_M * tile.BLOCK_N <= 2.25 * 128 * 256


@pytest.mark.parametrize("more", [{"epilogue": "gelu"}, {"bias": True}, {"batch": 2}])
def test_what_is_fused_takes_tiles_with_room_for_it(more):
    for side in (512, 1024, 3072, 4096, 16384):
        assert tiles.tile_of(problem(side, side, **more)).fused_rate > 0


def test_rows_that_split_lines_of_the_l2_take_tiles_that_read_less():
    whole, split = (tiles.tile_of(problem(10000, n, K=n)) for n in (10048, 10000))
    assert split.traffic <= tiles.TILES[0].traffic
    assert split.traffic <= whole.traffic


def test_one_wave_of_192_x_192_goes_before_one_of_a_larger_tile():
    """1056 x 4000 is 126 tiles of 192 x 192, and 105 of 256 x 192, whose time is a third longer."""
    tile = tiles.tile_of(problem(1056, 4000, K=1496))
    assert (tile.BLOCK_M, tile.BLOCK_N) == (192, 192)


def test_a_single_round_is_shared_by_both_consumers():
    tile = tiles.tile_of(problem(1024, 2048, K=512))
    assert (tile.BLOCK_M, tile.BLOCK_N, tile.PINGPONG) == (128, 128, 0)


def test_uneven_tiles_are_for_a_k_major_b():
    """1536 x 1536 is 132 tiles of 128 x 144, but B row-major is read in panels of 64 columns."""
    shape = (1536, 1536, 1536)
    row_major = Problem(*shape, "bfloat16", "bfloat16", (1536, 1), (1536, 1), (1536, 1))
    k_major = Problem(*shape, "bfloat16", "bfloat16", (1536, 1), (1, 1536), (1536, 1))
    assert tiles.tile_of(k_major).BLOCK_N == 144
    assert tiles.tile_of(row_major).BLOCK_N % 64 == 0


def test_pairs_work_beside_each_other_where_that_saves_a_round():
    """79 tile rows are 40 pairs, 25 rounds of 66 with 40 columns; 20 pairs of those make 24."""

    def shares_a(M, N):
        return tiles.plan(problem(M, N, K=10000))["SHARES_A"]

    assert tiles.tile_of(problem(10000, 10000, K=10000)).BLOCK_M == 128
    assert shares_a(10000, 10000) == 1
    assert shares_a(4096, 4096) == shares_a(10240, 10240) == 0


def test_blocks_are_paired_where_that_pays():
    """From five waves of tiles on; where tiles are small or rows split sectors, before that."""

    def cluster(M, N, K=4096, **more):
        return tiles.plan(problem(M, N, K, **more))["CLUSTER"]

    assert cluster(8192, 8192) == 2
    assert cluster(4096, 4096) == 1, "512 tiles of 128 x 256 are four waves"
    assert cluster(4104, 4104, K=4104) == 2, "rows of 8208 bytes begin within a sector"
    small = tiles.tile_of(problem(768, 1024, K=1024))
    assert (small.BLOCK_M, small.BLOCK_N) == (64, 128)
    assert cluster(768, 1024, K=1024) == 2
    assert cluster(768, 1024, K=512) == 1, "one wave with a short K"
    assert cluster(704, 1024, K=1024) == 1, "11 rows of tiles make no pairs"
    assert "CLUSTER" not in tiles.plan(problem(8192, 8192, device="cpu"))


def test_a_column_major_c_is_the_transposed_problem():
    tall = problem(9000, 320, c_strides=(1, 9000))
    turned = Problem(320, 9000, 4096, "bfloat16", "bfloat16", (1, 320), (1, 4096), (9000, 1))
    assert tiles.tile_of(tall) == tiles.tile_of(turned)


def test_the_cpu_has_one_tile_and_it_is_that_of_a_build_without_one():
    found = dict(re.findall(r"^#define TCGEMM_(\w+) (\d+)", BLOCK.read_text(), re.M))
    plan = tiles.plan(problem(4096, 4096, device="cpu"))
    assert {name: int(value) for name, value in found.items()} == {
        key: plan[key] for key in TILE if key in plan
    }


@pytest.mark.parametrize("tile", tiles.TILES, ids=IDS)
def test_the_ring_fits_shared_memory_and_no_stage_is_left_out(tile):
    """As the source: whole panels of 64 columns, buffers of 8 KB, two barriers a stage and two, and
    one for each buffer."""
    consumers = {64: 1, 192: 3}.get(tile.BLOCK_M, 2)
    panels = -(-tile.BLOCK_N // 64)
    assert panels * tile.BLOCK_M // 64 // consumers % tile.CHUNK_BUFFERS == 0
    stage = (tile.BLOCK_M + 64 * panels) * 64 * 2
    used = tile.NUM_STAGES * stage + consumers * tile.CHUNK_BUFFERS * 8192
    used += 8 * (2 * tile.NUM_STAGES + 2 + consumers * tile.CHUNK_BUFFERS)
    assert used <= 232_448
    assert used + stage > 232_448 or tile.NUM_STAGES == 8
    assert (consumers == 2) >= tile.PINGPONG


@pytest.mark.spread(4, "tile")
@pytest.mark.parametrize("tile", tiles.TILES, ids=IDS)
def test_each_tile_is_right_and_nothing_is_found(tile, tmp_path):
    """Several tiles a block, edges on both sides, an odd number of steps along K."""
    source = tmp_path / "tile.cu"
    chosen = {**{key: tile.plan[key] for key in TILE if key in tile.plan}, "PLAIN": 1}
    chosen |= {"IN": DTYPES["float16"], "OUT": DTYPES["float16"]}
    lines = [f"#define TCGEMM_{name} {value}" for name, value in chosen.items()]
    source.write_text("\n".join([*lines, f'#include "{SOURCE.name}"\n']))
    # Taking turns shows where a tile has more steps along K than the ring has stages.
    K = 1032 if tile.PINGPONG else 200
    a, b = accuracy.operands(520, 776, K, torch.float16, "nn", "cpu", 0)
    c = torch.full((520, 776), float("nan"), dtype=torch.float16)
    report = simulator.simulate(source, a, b, c, check=True, timeout_s=60)
    assert not report.findings, [str(finding) for finding in report.findings]
    assert accuracy.error_ratio(a, b, c) <= 1


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0",
)
@pytest.mark.parametrize("tile", tiles.TILES, ids=IDS)
def test_each_tile_is_exact_on_the_gpu(tile):
    """Edges, one and many rounds, clusters of one and two, more steps along K than stages."""
    run = load("wgmma_persistent")
    for M, N, K in ((1, 8, 8), (129, 520, 328), (3000, 2312, 1032), (128, 256 * 133 + 8, 64)):
        for layout in ("nn", "nt", "tn", "tt"):
            height = K if layout[0] == "t" else M
            a = torch.randint(-4, 5, (height, M + K - height), device="cuda").bfloat16()
            b = torch.randint(-4, 5, (N, K) if layout[1] == "t" else (K, N), device="cuda")
            b = b.bfloat16()
            a, b = (x.mT if t == "t" else x for x, t in zip((a, b), layout, strict=True))
            if any(max(x.stride()) % 8 for x in (a, b)):
                continue
            buffer = torch.full((M + 1, N + 8), math.nan, device="cuda").bfloat16()
            c = buffer[:M, :N]
            want = (a.double() @ b.double()).bfloat16()
            for cluster in (1, 2, 1):
                c.fill_(math.nan)
                run(a, b, c, **tile.plan, CLUSTER=cluster)
                assert torch.equal(c, want), (M, N, K, layout)
            assert int((~buffer.isnan()).sum()) == M * N, "wrote outside C"
