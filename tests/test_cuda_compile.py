"""What nvcc makes of the rungs: no spills, the instructions that each rung is about."""

from functools import cache

import pytest
import records
from tcgemm.cuda_ref.build import inspection, toolchain

from tcgemm import cuda_ref

# naive and wmma_types, which take other types as well, are in test_cuda_types.py.
NAMES = [
    row["name"]
    for row in cuda_ref.KERNELS
    if row["capability"] < (9, 0) and row["pairs"] == cuda_ref.PAIRS
]
TARGETS = ("sm_80", "sm_90a")
TENSOR_CORES = [name for name in NAMES if name.startswith(("wmma", "mma"))]
FUSED = ("wmma_any", "wmma_multistage", "mma_multistage")
ASYNC_COPIES = [name for name in TENSOR_CORES if name != "wmma"]

pytestmark = pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)


@cache
def report(name, target):
    """What a rung becomes. Those that are long to compile have one input type a target, in turn."""
    if name not in FUSED:
        return records.cuda(name, target)
    bfloat16 = (FUSED.index(name) + TARGETS.index(target)) % 2
    # The macro is compared with each instance's PLAIN: both values are built.
    return records.cuda(name, target, (f"-DTCGEMM_IN={bfloat16}", "-DTCGEMM_PLAIN=PLAIN"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_compiles_without_spills(name, target):
    assert report(name, target).spill_bytes == 0
    assert report(name, target).sass["STL"] == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_there_is_an_instance_for_each_type_pair_and_layout(name, target):
    layouts = 4 if name in TENSOR_CORES else 1
    # Of one input type plain and fused, or of both plain.
    assert len(report(name, target).kernels) == len(cuda_ref.PAIRS) * layouts


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_instance_multiplies_where_it_should(name, target):
    wanted, other = ("HMMA", "FFMA") if name in TENSOR_CORES else ("FFMA", "HMMA")
    for kernel in report(name, target).kernels:
        assert kernel.sass[wanted] > 0
        # What is fused is arithmetic of CUDA cores, in half of the instances.
        assert kernel.sass[other] == 0 or name in FUSED


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ASYNC_COPIES)
def test_every_instance_copies_asynchronously_and_loads_with_ldmatrix(name, target):
    for kernel in report(name, target).kernels:
        assert kernel.sass["LDGSTS"] > 0
        assert kernel.sass["LDSM"] > 0
        assert kernel.sass["MOVM"] == 0, "a transposition in registers: see fragment.cuh"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ASYNC_COPIES])
def test_the_first_rungs_do_not_copy_asynchronously(name):
    assert report(name, "sm_90a").sass["LDGSTS"] == 0


@pytest.mark.parametrize("target", TARGETS)
def test_two_blocks_of_wmma_any_fit_the_registers_of_an_sm(target):
    assert report("wmma_any", target).registers * 2 * 128 <= 65536


def test_wmma_compiles_for_gpus_without_bfloat16_fragments():
    assert len(report("wmma", "sm_75").kernels) == 8


def test_a_compile_error_says_what_nvcc_said(tmp_path, monkeypatch):
    (tmp_path / "broken.cu").write_text("int tcgemm_launch( {")
    monkeypatch.setattr(inspection, "source", lambda name: tmp_path / f"{name}.cu")
    with pytest.raises(RuntimeError, match=r"broken\.cu for sm_80[\s\S]*error"):
        inspection.compile_only("broken", "sm_80")


def test_no_nvcc_names_the_remedy(monkeypatch):
    monkeypatch.setattr(inspection, "find_nvcc", lambda: None)
    with pytest.raises(RuntimeError, match="pip install 'nvidia-cuda-nvcc=="):
        inspection.compile_only("naive", "sm_80")


PTXAS = """
ptxas info    : Compiling entry function 'kernel' for 'sm_90a'
ptxas info    : Function properties for kernel
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16384 bytes smem
"""


def test_spills_are_read_from_what_ptxas_says():
    assert inspection._resources(PTXAS) == [("kernel", 40, 20, 16384)]


SASS = """
\t\tFunction : kernel
        /*0000*/                   LDC R1, c[0x0][0x28] ;  /* 0x00 */
        /*0010*/              @!PT LDS RZ, [RZ] ;          /* 0x00 */
        /*0020*/               @P0 HMMA.16816.F32 R8, R16, R26, R8 ;  /* 0x00 */
        /*0030*/                   LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64] ;
"""


def test_instructions_are_counted_by_opcode():
    assert inspection._instructions(SASS) == {"kernel": {"LDC": 1, "HMMA": 1, "LDGSTS": 1}}
