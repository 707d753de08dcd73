"""What nvcc makes of the Hopper rungs: TMA and wgmma, nothing spilled, nothing serialized."""

from functools import cache

import pytest
from tcgemm.cuda_ref import inspection, toolchain

from tcgemm import cuda_ref

# Those whose operands and sums go one way; the others are in test_small_shapes.py.
NAMES = [
    row["name"]
    for row in cuda_ref.KERNELS
    if row["capability"] == (9, 0) and row["name"] not in ("split_k", "skinny")
]
SPECIALIZED = [name for name in NAMES if name != "wgmma_tma"]

pytestmark = pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)

report = cache(inspection.compile_only)


@pytest.mark.parametrize("name", NAMES)
def test_there_is_an_instance_for_each_type_pair_and_layout(name):
    assert len(report(name, "sm_90a").kernels) == len(cuda_ref.PAIRS) * 4


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_spilled(name):
    assert report(name, "sm_90a").spill_bytes == 0
    assert report(name, "sm_90a").sass["STL"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_operands_go_by_tma_into_wgmma_and_through_no_register(name):
    for kernel in report(name, "sm_90a").kernels:
        assert kernel.sass["UTMALDG"] > 0
        assert kernel.sass["HGMMA"] > 0
        for other in ("HMMA", "LDSM", "LDS", "LDGSTS", "LDG"):
            assert kernel.sass[other] == 0, other


@pytest.mark.parametrize("name", NAMES)
def test_wgmma_is_not_serialized(name):
    """A serialized wgmma (ptxas C7510) is fenced and waited for one by one."""
    for kernel in report(name, "sm_90a").kernels:
        assert kernel.sass["WARPGROUP"] < kernel.sass["HGMMA"]


@pytest.mark.parametrize("name", SPECIALIZED)
def test_registers_move_to_the_consumers(name):
    """ptxas drops a setmaxnreg that it ignores (C7508)."""
    for kernel in report(name, "sm_90a").kernels:
        assert kernel.sass["USETMAXREG"] == 2


def test_blocks_fit_an_sm():
    assert report("wgmma_tma", "sm_90a").registers * 128 * 3 <= 65536
    for name in SPECIALIZED:
        assert report(name, "sm_90a").registers * 384 <= 65536


def test_only_the_persistent_rung_stores_by_tma():
    stores = {name: report(name, "sm_90a").sass["UTMASTG"] > 0 for name in NAMES}
    assert stores == {name: name == "wgmma_persistent" for name in NAMES}
