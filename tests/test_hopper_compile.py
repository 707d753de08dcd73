"""What nvcc makes of the Hopper rungs: TMA and wgmma, nothing spilled, nothing serialized."""

import re
from functools import cache

import pytest
import records
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.fusion import COMPUTES, DTYPES, TILE
from tcgemm.cuda_ref.planning import wgmma_types_model as tilings
from tcgemm.cuda_ref.rungs import wgmma_persistent as tiles

pytestmark = pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)


def case(dtype_in, dtype_out, compute="float32", plain=False, tile=None):
    return (
        *(f"-DTCGEMM_{name}={tile.plan[name]}" for name in TILE if tile and name in tile.plan),
        f"-DTCGEMM_IN={DTYPES[dtype_in]}",
        f"-DTCGEMM_OUT={DTYPES[dtype_out]}",
        f"-DTCGEMM_COMPUTE={COMPUTES[compute]}",
        f"-DTCGEMM_PLAIN={int(plain)}",
    )


TILES = {(t.BLOCK_M, t.BLOCK_N, t.NUM_STAGES): t for t in tiles.TILES}
PLAIN = [
    ("wgmma_tma", ()),
    ("wgmma_specialized", ()),
    ("wgmma_tile_loop", ()),
    ("wgmma_cluster", ()),
    ("wgmma_epilogue", ()),
    ("wgmma_persistent", case("bfloat16", "bfloat16", plain=True)),
    ("wgmma_persistent", case("float16", "float32", plain=True)),
    *(
        ("wgmma_persistent", case("bfloat16", "bfloat16", plain=True, tile=TILES[key]))
        for key in ((128, 256, 4), (256, 192, 3), (192, 176, 4), (64, 128, 8))
    ),
]
FUSED = [
    ("wgmma_persistent", case("float16", "float16")),
    *(
        ("wgmma_persistent", (*case(*pair, tile=TILES[128, 256, 4]), f"-DTCGEMM_FUSES={fuses}"))
        for pair, fuses in (
            (("bfloat16", "bfloat16"), 2 + 8 + 16),  # gelu, C_in, bias
            (("bfloat16", "bfloat16"), 32),  # a batch
            (("float16", "float32"), 2 + 8 + 16),
        )
    ),
]
WHOLE, PARTS = "-DTCGEMM_DIVIDES=0", "-DTCGEMM_DIVIDES=1"  # of K
ALONG, ACROSS = "-DTCGEMM_ACROSS=0", "-DTCGEMM_ACROSS=1"  # K, A
TYPES = [
    ("wgmma_types", (*case(*pair), divides, ALONG))
    for divides in (WHOLE, PARTS)
    for pair in (
        ("int8", "int32", "int32"),
        ("float8_e4m3fn", "bfloat16", "fast"),
        ("float8_e4m3fn", "float16", "float32"),
        ("float32", "float32", "tf32x3"),
    )
]
TYPES += [
    ("wgmma_types", (*case("float32", "float32", compute), divides, ACROSS))
    for compute, divides in (("tf32", WHOLE), ("tf32", PARTS), ("tf32x3", WHOLE))
]
BUILDS = PLAIN + FUSED + TYPES
MULTIPLIES = ("HGMMA", "QGMMA", "IGMMA")


@cache
def kernels(name, defines):
    """All kernels of a build that multiply."""
    report = records.cuda(name, "sm_90a", defines)
    assert report.spill_bytes == 0
    assert report.sass["STL"] == 0
    others = ("pack", "add_partials")
    return [kernel for kernel in report.kernels if not any(of in kernel.symbol for of in others)]


def multiplies(kernel):
    return sum(kernel.sass[name] for name in MULTIPLIES)


@pytest.mark.parametrize(("name", "defines"), BUILDS)
def test_nothing_is_spilled_and_each_case_is_there(name, defines):
    """One for each layout of 16-bit types and each tile; for all types where built whole."""
    if name == "wgmma_types":
        assert len(kernels(name, defines)) in {
            sum(len(tilings.TILINGS[kind]) for kind in kinds)
            for kinds in (
                (("plain",), ("promoted",), ("split", "split beforehand"), ("across",))
                if PARTS in defines
                else (
                    ("plain", "fused"),
                    ("promoted", "promoted fused"),
                    2 * ("split", "split beforehand"),
                    ("across", "fused"),
                )
            )
        }
        return
    assert len(kernels(name, defines)) == {"wgmma_persistent": 4}.get(name, 16)


@pytest.mark.parametrize(("name", "defines"), BUILDS)
def test_operands_go_by_tma_into_wgmma(name, defines):
    for kernel in kernels(name, defines):
        assert kernel.sass["UTMALDG"] > 0
        assert multiplies(kernel) > 0
        for other in ("HMMA", "LDGSTS"):
            assert kernel.sass[other] == 0, other
        if (name, defines) not in FUSED:  # which read C_in from shared memory
            assert kernel.sass["LDSM"] == 0


@pytest.mark.parametrize(("name", "defines"), PLAIN)
def test_a_plain_product_reads_through_no_register(name, defines):
    """But for chunks of a C in odd rows, which wgmma_persistent copies out of shared memory."""
    for kernel in kernels(name, defines):
        assert kernel.sass["LDG"] == 0
        assert kernel.sass["LDS"] == 0 or name == "wgmma_persistent"


@pytest.mark.parametrize(("name", "defines"), BUILDS)
def test_wgmma_is_not_serialized(name, defines):
    """A serialized wgmma (ptxas C7510) is fenced and waited for one by one."""
    for kernel in kernels(name, defines):
        assert kernel.sass["WARPGROUP"] < multiplies(kernel)


@pytest.mark.parametrize(("name", "defines"), BUILDS[1:])
def test_registers_move_to_two_consumers(name, defines):
    """ptxas drops a setmaxnreg that it ignores (C7508); one consumer needs no more than it has."""
    for kernel in kernels(name, defines):
        one = re.search(r"6TilingI\w+?_Li1ELi", kernel.symbol)  # of consumers
        if kernel.registers in (128, 168) and not one:
            assert kernel.sass["USETMAXREG"] == 2
        else:
            assert name in ("wgmma_persistent", "wgmma_types")
            assert kernel.sass["USETMAXREG"] == 0
            assert kernel.registers * 256 <= 65536


def test_three_blocks_fit_an_sm():
    assert max(kernel.registers for kernel in kernels("wgmma_tma", ())) * 128 * 3 <= 65536


@pytest.mark.parametrize(("name", "defines"), BUILDS)
def test_persistent_rungs_store_by_tma(name, defines):
    stores = any(kernel.sass["UTMASTG"] for kernel in kernels(name, defines))
    assert stores == (name in ("wgmma_epilogue", "wgmma_persistent", "wgmma_types"))
