"""The plain Hopper rungs whose blocks stay: tile after tile, in clusters, stored by TMA.

The simulator's GPU has eight SMs, so ten tiles of 128 x 256 give two of its blocks a second one.
Pairs of blocks share B there as well.
"""

import pytest
import records
import torch
from tcgemm.cuda_ref import simulator
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.planning.gpu import SIMULATED_SMS

from tcgemm import accuracy

NAMES = ("wgmma_tile_loop", "wgmma_cluster", "wgmma_epilogue")
LOOP, CLUSTER, EPILOGUE = NAMES
compiled = pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)


def simulated(name, M, N, K, *, layout="nt", columns=0, order="forward", seed=3):
    """The report of a product whose C has rows of ``columns`` elements, and its error ratio."""
    a, b = accuracy.operands(M, N, K, torch.float16, layout, "cpu", seed)
    c = torch.full((M, columns or N), float("nan"), dtype=torch.float16)[:, :N]
    report = simulator.simulate(
        toolchain.source(name), a, b, c, order=order, check=True, count=True, timeout_s=60
    )
    return report, accuracy.error_ratio(a, b, c)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", NAMES)
def test_a_block_computes_tile_after_tile(name, order):
    """An odd number of steps along K, so that a tile begins anywhere in the ring of four."""
    report, error = simulated(name, 600, 264, 200, order=order)
    tiles = -(-600 // 128) * -(-264 // 256)
    assert tiles > SIMULATED_SMS == report.grid[0]
    assert not report.findings, [str(finding) for finding in report.findings]
    assert error <= 1


@pytest.mark.parametrize("name", NAMES)
def test_few_tiles_start_few_blocks(name):
    report, error = simulated(name, 130, 40, 64)
    assert report.grid[0] == 2
    assert error <= 1


@pytest.mark.parametrize(("N", "columns"), [(264, 264), (264, 265), (259, 264)])
def test_c_is_right_whether_or_not_tma_can_store_it(N, columns):
    """TMA takes rows that begin at multiples of 16 bytes and end in whole units of 16 bytes."""
    report, error = simulated(EPILOGUE, 600, N, 72, columns=columns)
    assert not report.findings, [str(finding) for finding in report.findings]
    assert error <= 1


def test_stores_by_tma_fill_whole_sectors():
    """wgmma's accumulators lie in pairs: a plain store of a warp fills half of each sector."""
    sectors = {
        name: simulated(name, 256, 256, 64)[0].counts.store_sectors for name in (CLUSTER, EPILOGUE)
    }
    assert sectors == {CLUSTER: 256 * 256 * 2 // 32 * 2, EPILOGUE: 256 * 256 * 2 // 32}


@compiled
@pytest.mark.parametrize("name", NAMES)
def test_what_nvcc_makes_of_each(name):
    """One idea each: barriers of a cluster from the second on, stores by TMA in the third."""
    before, kernels = (records.cuda(rung, "sm_90a").kernels for rung in ("wgmma_specialized", name))
    assert len(kernels) == len(before) == 16
    for kernel in kernels:
        assert kernel.spill_bytes == kernel.sass["STL"] == 0
        assert kernel.registers == 168
        assert kernel.sass["HGMMA"] == 12
        assert kernel.sass["USETMAXREG"] == 2
        # Arrive and wait, at the start and at the end.
        assert kernel.sass["UCGABAR"] == (0 if name == LOOP else 4)
        # A chunk is 64 columns of 16 bits or 32 of float32.
        assert kernel.sass["UTMASTG"] in ((4, 8) if name == EPILOGUE else (0,))
