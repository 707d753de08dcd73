"""A C whose rows split sectors of the L2: stored by threads, in rows of a tile, and not by TMA."""

from __future__ import annotations

from importlib import import_module

import one_case
import pytest
import torch

simulator = import_module("tcgemm.cuda_ref.simulator")

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32

# The kernel, its macros, C's type, and whether rows of it are stored at one step along K, and at 4.
BUILDS = {
    "two chunks side by side": ("one_wave", (128, 128, 4), {}, BF16, True, True),
    "the last chunk overlaps": ("one_wave", (128, 112, 4), {}, F16, True, True),
    "chunks in the ring": ("one_wave", (192, 128, 4), {}, BF16, True, True),
    "a warpgroup alone": ("one_wave", (64, 128, 4), {}, BF16, False, False),
    "in ping-pong": ("wgmma_persistent", (128, 128, 6), {"PINGPONG": 1, "CHUNK_BUFFERS": 2},
                     BF16, True, False),
    "two rows of three chunks": ("wgmma_persistent", (256, 192, 3),
                                 {"SHARES_A": 1, "CHUNK_BUFFERS": 3}, F16, True, False),
    "of four chunks two": ("wgmma_persistent", (128, 256, 4), {"CHUNK_BUFFERS": 2},
                           F32, True, False),
    "one chunk, uneven": ("wgmma_persistent", (192, 176, 4), {"SHARES_A": 1}, BF16, True, False),
}  # fmt: skip


def source_of(folder, name, tile, more):
    values = dict(zip(("BLOCK_M", "BLOCK_N", "NUM_STAGES"), tile, strict=True))
    if name == "one_wave":
        values |= {"CLUSTER_M": 1, "CLUSTER_N": 1, "DIVIDES": 0}
    else:
        values |= {"CHUNK_BUFFERS": 1, "PINGPONG": 0, "SHARES_A": 0, **more}
    return one_case.source_of(folder, name, **values)


def stores(source, out, shape, pitch, first=0, order="forward", cluster=1):
    """Stores that threads asked for, of a right C of rows ``pitch`` elements apart."""
    M, N, K = shape
    dtype = F16 if out == F16 else BF16
    a, b = (torch.randint(-2, 3, size).to(dtype) for size in ((M, K), (N, K)))
    b, whole = b.mT, torch.full((M + 1, pitch), 7.0, dtype=out)
    c = whole[:M, first : first + N]
    c.fill_(float("nan"))
    report = simulator.simulate(
        source, a, b, c, check=True, count=True, order=order, plan={"CLUSTER": cluster}
    )
    assert not report.findings, [str(f) for f in report.findings]
    assert torch.equal(c, (a.double() @ b.double()).to(out))
    c.fill_(7.0)
    assert bool((whole == 7).all()), "something beside C was written"
    return report.counts.store_requests


@pytest.mark.spread(4, "build")
@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_rows_that_split_sectors_are_stored_by_threads(build, tmp_path):
    name, tile, more, out, at_once, later = BUILDS[build]
    source = source_of(tmp_path, name, tile, more)
    unit = 16 // out.itemsize
    M, N = tile[0] + 5, tile[1] + unit  # of the second column of tiles 16 bytes are in C
    split, sectors = N + unit * (1 - N // unit % 2), N + unit * (N // unit % 2)
    for K, in_rows in ((40, at_once), (184, at_once), (248, later)):
        assert (stores(source, out, (M, N, K), split, order="random:2") > 0) == in_rows
        assert stores(source, out, (M, N, K), sectors) == 0
    # Rows as long as sectors, that all begin in the middle of one.
    assert (stores(source, out, (M, N, 40), sectors + 2 * unit, unit) > 0) == at_once


@pytest.mark.spread(2, "build")
@pytest.mark.parametrize("order", ["forward", "random:5", "late:1"])
@pytest.mark.parametrize("build", ["in ping-pong", "two rows of three chunks"])
def test_a_tile_does_not_overwrite_what_is_still_read_of_the_one_before(build, order, tmp_path):
    """Three tiles and more to a block."""
    name, tile, more, out, *_ = BUILDS[build]
    source = source_of(tmp_path, name, tile, more)
    shape = 3 * tile[0] + 5, 8 * tile[1] + 24, 136
    assert stores(source, out, shape, shape[1], order=order) > 0


def test_a_row_is_one_run_of_sectors(tmp_path):
    """A warp's stores cover 256 bytes of a row: 9 sectors, where chunks of 128 take 5 each."""
    name, tile, more, out, *_ = BUILDS["in ping-pong"]
    source = source_of(tmp_path, name, tile, more)
    M, N = 64, 128
    a, b = torch.ones(M, 8, dtype=BF16), torch.ones(N, 8, dtype=BF16).mT
    c = torch.empty(M, N + 8, dtype=out)[:, :N]  # every second row begins within a sector
    counts = simulator.simulate(source, a, b, c, count=True).counts
    assert counts.store_bytes == M * N * 2
    assert counts.store_sectors == M // 2 * (8 + 9)


ODD_BUILDS = [build for build, (*_, out, _, _) in BUILDS.items() if out.itemsize == 2]


@pytest.mark.spread(4, "build")
@pytest.mark.parametrize("build", ODD_BUILDS)
def test_odd_rows_are_stored_right(build, tmp_path):
    """Rows that begin at each place of a unit; ends within one; a few columns of a last tile."""
    name, tile, more, out, *_ = BUILDS[build]
    source = source_of(tmp_path, name, tile, more)
    for first, (beyond, gap) in enumerate(((1, 0), (3, 4), (8, 5), (14, 1))):
        M, N = tile[0] + 5, tile[1] + beyond
        assert stores(source, out, (M, N, 72), first + N + gap, first, order="random:2") > 0


@pytest.mark.spread(2, "N")
@pytest.mark.parametrize("N", [128, 129, 135, 136, 137, 248, 249, 255, 256, 257, 400])
def test_each_unit_of_odd_rows_is_all_of_one_tile(N, tmp_path):
    """Tiles of 128 columns begin 120 apart: nothing is missing and nothing stored twice, whichever
    column a unit begins at, and no unit but a row's first and last is stored in parts."""
    name, tile, more, out, *_ = BUILDS["in ping-pong"]
    source = source_of(tmp_path, name, tile, more)
    for first in range(0, 8, 3):
        M, pitch = 24, N + first + (N + first + 1) % 2  # odd
        requests = stores(source, out, (M, N, 40), pitch, first, order="random:3")
        tiles = max(1, -(-(N - 8) // 120))
        assert requests <= 12 * tiles + 18  # of two warps that have rows


@pytest.mark.parametrize("N", [173, 177, 509])
def test_a_block_of_a_pair_past_the_last_tile_stores_nothing_again(N, tmp_path):
    """Side by side, of an odd number of tiles: it begins among the last columns of the last."""
    name, tile, more, out, *_ = BUILDS["one chunk, uneven"]
    source = source_of(tmp_path, name, tile, more)
    assert stores(source, out, (24, N, 40), N, cluster=2) > 0


def test_odd_rows_leave_in_vectors(tmp_path):
    """By elements 64 rows of 128 would take 256 stores of a warp. In vectors they take 32, of which
    some lanes have none, and the ends of rows no more than 6 for each warp."""
    name, tile, more, out, *_ = BUILDS["in ping-pong"]
    source = source_of(tmp_path, name, tile, more)
    requests = stores(source, out, (64, 128, 8), 129)
    assert requests <= 64 * 128 * 2 // 512 + 4 * 6
