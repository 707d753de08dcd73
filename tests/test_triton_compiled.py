"""Every shipped Triton configuration, cross-compiled for sm_80 and sm_90 and read back as SASS."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib import import_module

import pytest
import records
from triton_requests import (
    DEEP,
    DIVIDED,
    FITTED,
    INSTRUCTION,
    LIMITS,
    SUMMING,
    UNALIGNED,
    problem_on,
    shipped,
    shipped_types,
)

from tcgemm import dispatch
from tcgemm.problem import DTYPES, EPILOGUES, LAYOUTS, Problem

compile_only = import_module("tcgemm.triton_kernels.inspection.compile_only")
plans = import_module("tcgemm.triton_kernels.by_name")
dtypes = import_module("tcgemm.triton_kernels.planning.dtypes")
gluon_launch = import_module("tcgemm.triton_kernels.host.gluon_launch")
gpus = import_module("tcgemm.triton_kernels.planning.gpus")
skinny_plan = import_module("tcgemm.triton_kernels.shapes.skinny_plan")
tables = import_module("tcgemm.triton_kernels.planning.tables")
Request = compile_only.Request

LDGSTS_RUNGS = ("pipelined", "persistent", "skinny")
FUSED = [
    Request("descriptor", plan, layout=layout, c_in=True, bias=True, epilogue=epilogue, batch=batch)
    for plan in [plans.fit("descriptor", {**DEEP, "FLATTEN": 0}, "bfloat16", LIMITS[9, 0])]
    for layout, epilogue, batch in (("nt", "gelu", 0), ("nnt", "silu", 3), ("tn", "gelu_tanh", 0))
]
WARP_SPECIALIZED = {
    "BLOCK_M": 128,
    "BLOCK_N": 256,
    "BLOCK_K": 64,
    "GROUP_M": 8,
    "NUM_STAGES": 4,
    "CONSUMERS": 2,
    "SUBTILES": 4,
    "BUFFERS": 2,
}
SPECIALIZED_FUSED = [
    Request("warp_specialized", plan, layout=layout, batch=batch, **asked)
    for deep in [WARP_SPECIALIZED]
    for staged in [{**deep, "NUM_STAGES": 3, "BUFFERS": 4}]
    for plan, layout, batch, asked in (
        (deep, "nt", 0, {"bias": True}),
        (deep, "nn", 0, {"epilogue": "gelu"}),
        (deep, "nn", 3, {"epilogue": "silu"}),
        (staged, "tn", 0, {"c_in": True}),
        (staged, "nnt", 0, {"c_in": True, "bias": True, "epilogue": "gelu"}),
        (staged, "nt", 3, {"c_in": True, "epilogue": "gelu_tanh"}),
        *((deep, "nt", 0, {"aux": "write", "bias": True, "epilogue": name}) for name in EPILOGUES),
        *((staged, "nn", 0, {"aux": "read", "epilogue": name}) for name in EPILOGUES),
        (staged, "nnt", 0, {"aux": "write", "bias": True, "epilogue": "gelu_tanh"}),
        (staged, "nnt", 0, {"aux": "read", "epilogue": "gelu_tanh"}),
    )
]
SUMS = [
    Request("warp_specialized", tile, layout=layout, aux=aux)
    for tile in SUMMING for layout in ("tn", "tt") for aux in ("", "sums")
]  # fmt: skip
ODD_C = [
    Request("warp_specialized", tile, layout=layout, M=M, N=N)
    for tile in UNALIGNED for layout, M, N in (("nt", 1000, 1003), ("nnt", 1003, 1000))
]  # fmt: skip
FITTED_TILES = [
    Request("warp_specialized", tile, layout=("nn", "nt", "tn", "tt")[number // 2 % 4])
    for number, tile in enumerate(FITTED)
]
DIVIDED_TILES = [
    Request("warp_specialized", tile, layout=("nn", "nt", "tn", "tt")[number // 2 % 4])
    for number, tile in enumerate(DIVIDED)
]
ODD_C += [
    Request("warp_specialized", tile, layout="nt", M=1000, N=1003)
    for tile in FITTED
    if not tile["SWAP"] and tile["BLOCK_M"] == 128
]
SWAPPED = [
    request
    for request in FITTED_TILES
    if request.plan["SWAP"] and request.plan["BLOCK_N"] in (80, 144, 224)
]
SHIPPED = shipped()
TYPES = shipped_types()
C_IN_BY_ROWS = Request("warp_specialized", WARP_SPECIALIZED, layout="nt", c_in=True)
WIDE_RESULT = Request(
    "descriptor",
    plans.plan("descriptor", problem_on((9, 0), dtype_out="float32")),
    dtype_in="float16",
    dtype_out="float32",
    layout="nt",
)
COLUMN_MAJOR_RESULT = Request(
    "descriptor", plans.plan("descriptor", problem_on((9, 0))), layout="ntt"
)
SINGLE = [C_IN_BY_ROWS, WIDE_RESULT, COLUMN_MAJOR_RESULT]


def odd_steps() -> list:
    """Every step along K that skinny may take of odd rows, each for the wide operand as B."""
    found = {}
    for layout in LAYOUTS:
        odd = Problem.stored(49, 1001, 913, "bfloat16", "bfloat16", layout, capability=(9, 0))
        for config in skinny_plan.configs(odd, 132):
            plan = {**config, "SPLITS": 1, "SWAP": 1, "NUM_STAGES": 2}
            tile = config["BLOCK_M"], config["BLOCK_K"]
            found[layout, tile] = Request("skinny", plan, layout=layout, M=49, N=1001, K=913)
    return list(found.values())


@cache
def all_requests() -> list:
    return [
        *SHIPPED, *TYPES, *FUSED, *SPECIALIZED_FUSED, *with_c_in(), *eight_bits(), *SINGLE,
        *SUMS, *ODD_C, *FITTED_TILES, *DIVIDED_TILES,
        *odd_steps(),
    ]  # fmt: skip


@cache
def results(kernel: str, capability: tuple[int, int]) -> dict[str, object]:
    """What a rung's requests are compiled to."""
    records.triton_digests(all_requests())  # one child process for all
    mine = [r for r in all_requests() if (r.kernel, r.capability) == (kernel, capability)]
    return dict(zip(map(repr, mine), records.triton(mine), strict=True))


def compiled(request):
    return results(request.kernel, request.capability)[repr(request)]


def name_of(request) -> str:
    settings = "-".join(str(value) for value in request.plan.values())
    aligned = "" if request.K % 16 == 0 else "-unaligned"
    aligned += f"-{request.M}x{request.N}" if request.kernel in plans.DIVIDING else ""
    sm = "{}{}".format(*request.capability)
    return f"{request.kernel}-sm{sm}-{settings}-{request.layout}-{request.dtype_out}{aligned}"


@pytest.mark.parametrize("wanted", SHIPPED, ids=name_of)
def test_a_shipped_configuration_compiles_well(wanted):
    built = compiled(wanted)
    counts = built.counts
    by_warpgroups = wanted.capability >= (9, 0) and wanted.plan["BLOCK_M"] >= 64
    assert counts["HGMMA" if by_warpgroups else "HMMA"] > 0
    if wanted.plan.get("L2_PREFETCH"):
        assert counts["CCTL"] > 0, "nothing is asked for ahead"
    assert not built.serialized, built.log
    assert (built.spill_bytes, counts["LDL"], counts["STL"]) == (0, 0, 0)
    assert built.shared_bytes <= LIMITS[wanted.capability]
    assert built.shared_bytes <= plans.shared_bytes(wanted.kernel, wanted.plan, wanted.dtype_out)
    if wanted.kernel == "descriptor":
        assert counts["UTMALDG"] > 0
        assert counts["UTMASTG"] == 2, "C leaves in two halves"
        assert counts["LDG"] == counts["STG"] == counts["LDGSTS"] == 0
    elif wanted.kernel == "warp_specialized":
        stores = wanted.plan["CONSUMERS"] * wanted.plan["SUBTILES"]
        assert counts["UTMALDG"] > 0
        assert counts["UTMASTG"] == stores, "each consumer stores its pieces, once a tile"
        assert counts["LDG"] == counts["STG"] == counts["LDGSTS"] == 0
        assert "C7508" not in built.log, "registers are not moved to the consumers"
    elif wanted.kernel == "split_k":
        assert counts["UTMALDG"] > 0
        assert counts["UTMASTG"] == (2 if wanted.plan["WHOLE"] else 0), (
            "whole tiles leave in halves"
        )
        assert counts["LDG"] == counts["LDGSTS"] == 0
        assert (counts["STG"] > 0) == (wanted.plan["SPLITS"] > 1), "parts leave by plain stores"
    elif wanted.kernel in LDGSTS_RUNGS and wanted.K == 4096:
        assert counts["LDGSTS"] > 0
        assert counts["LDG"] == 0, "a copy fell to scalar loads"


@pytest.mark.parametrize("wanted", TYPES, ids=lambda r: f"{name_of(r)}-{r.dtype_in}-{r.compute}")
def test_a_shipped_configuration_of_a_type_compiles_well(wanted):
    built = compiled(wanted)
    counts = built.counts
    kind = dtypes.kind(wanted.dtype_in, wanted.compute)
    assert counts[INSTRUCTION[wanted.capability][kind]] > 0
    assert not built.serialized, built.log
    assert (built.spill_bytes, counts["LDL"], counts["STL"]) == (0, 0, 0)
    bound = plans.shared_bytes(
        wanted.kernel, wanted.plan, wanted.dtype_out, wanted.dtype_in, wanted.compute
    )
    assert built.shared_bytes <= bound <= LIMITS[wanted.capability]


@pytest.mark.parametrize("wanted", FUSED, ids=lambda r: f"{r.layout}-{r.epilogue}")
def test_everything_fused_into_the_largest_tile_fits(wanted):
    built = compiled(wanted)
    assert (built.spill_bytes, built.serialized) == (0, False)
    assert built.counts["UTMASTG"] == 2
    assert built.shared_bytes <= LIMITS[9, 0]


@pytest.mark.parametrize(
    "wanted",
    SPECIALIZED_FUSED,
    ids=lambda r: f"{r.layout}-{r.epilogue}-{r.bias}-{r.c_in}-{r.batch}-{r.aux}",
)
def test_warp_specialized_fuses_without_spills_and_brings_c_in_by_tma(wanted):
    built = compiled(wanted)
    plain = compiled(SPECIALIZED_FUSED[0])
    assert (built.spill_bytes, built.serialized) == (0, False)
    results = 2 if wanted.aux == "write" else 1
    assert built.counts["UTMASTG"] == results * wanted.plan["CONSUMERS"] * wanted.plan["SUBTILES"]
    assert built.counts["STG"] == 0
    assert (built.counts["LDG"] > 0) == wanted.bias, "C_in is not read in place"
    if wanted.c_in or wanted.aux == "read":
        assert built.counts["UTMALDG"] > plain.counts["UTMALDG"]
    limit = plans.shared_bytes(wanted.kernel, wanted.plan, wanted.dtype_out)
    assert built.shared_bytes <= limit <= LIMITS[9, 0]


@pytest.mark.parametrize(("plain", "summed"), list(zip(SUMS[::2], SUMS[1::2], strict=True)))
def test_sums_of_rows_cost_no_barrier_and_spill_nothing(plain, summed):
    without, built = compiled(plain), compiled(summed)
    assert (built.spill_bytes, built.serialized) == (0, False)
    assert built.registers == gluon_launch.OF_A_THREAD[summed.plan["CONSUMERS"]]
    for opcode in ("HGMMA", "BAR", "UTMALDG", "UTMASTG"):
        assert built.counts[opcode] == without.counts[opcode], opcode
    assert built.counts["STG"] > 0 == without.counts["STG"]
    limit = plans.shared_bytes(summed.kernel, summed.plan, summed.dtype_out)
    assert built.shared_bytes <= limit <= LIMITS[9, 0]


@pytest.mark.parametrize("wanted", ODD_C, ids=name_of)
def test_threads_store_a_c_in_odd_rows_by_vectors_and_keep_their_registers(wanted):
    built, plan = compiled(wanted), wanted.plan
    assert (built.spill_bytes, built.serialized) == (0, False)
    assert built.counts["UTMASTG"] == 0 < built.counts["UTMALDG"]
    vectors = plan["BLOCK_M"] * plan["BLOCK_N"] // 8 // 128
    assert built.counts["STG"] == vectors * (1 + 8), "each of a vector, and of its elements at ends"
    assert built.counts["LDG"] == 0
    assert "C7508" not in built.log, "registers are not moved to the consumers"
    limit = plans.shared_bytes(wanted.kernel, plan, wanted.dtype_out)
    assert built.shared_bytes <= limit <= LIMITS[9, 0]


@pytest.mark.parametrize("wanted", FITTED_TILES, ids=name_of)
def test_tiles_that_fit_a_short_side_stay_in_registers(wanted):
    built, plan = compiled(wanted), wanted.plan
    assert (built.spill_bytes, built.serialized) == (0, False), built.log
    assert built.counts["UTMASTG"] == plan["CONSUMERS"] * plan["SUBTILES"]
    assert built.counts["LDG"] == built.counts["STG"] == 0
    blocks = 1 + plan["REST"].bit_count()
    of_64_rows = plan["BLOCK_M"] // 64
    assert built.counts["HGMMA"] == of_64_rows * blocks * plan["BLOCK_K"] // 16
    assert "C7508" not in built.log, "registers are not moved to the consumers"
    bound = plans.shared_bytes(wanted.kernel, plan, wanted.dtype_out)
    assert built.shared_bytes <= bound <= LIMITS[9, 0]


@pytest.mark.parametrize("wanted", DIVIDED_TILES, ids=name_of)
def test_parts_of_k_leave_by_pairs_of_float32(wanted):
    """Each accumulator once, and no shared memory but for stages and barriers."""
    built, plan = compiled(wanted), wanted.plan
    assert (built.spill_bytes, built.serialized) == (0, False), built.log
    assert built.counts["STG"] == plan["BLOCK_M"] * plan["BLOCK_N"] // 2 // 128
    assert built.counts["UTMASTG"] == built.counts["LDG"] == 0
    of_64_rows, blocks = plan["BLOCK_M"] // 64, 1 + plan.get("REST", 0).bit_count()
    assert built.counts["HGMMA"] == of_64_rows * blocks * plan["BLOCK_K"] // 16
    assert "C7508" not in built.log, "registers are not moved to the consumers"
    bound = plans.shared_bytes(wanted.kernel, plan, wanted.dtype_out)
    assert built.shared_bytes <= bound <= LIMITS[9, 0]


def test_c_in_that_tma_does_not_reach_is_read_in_place():
    built = compiled(C_IN_BY_ROWS)
    assert built.counts["LDG"] > 0
    assert built.spill_bytes == 0


@pytest.mark.parametrize("wanted", odd_steps(), ids=name_of)
def test_a_step_of_odd_rows_stays_in_registers(wanted):
    """No vector can be loaded: a thread has each of its elements of a step in a register."""
    built = compiled(wanted)
    assert built.spill_bytes <= FEW_SPILLED, wanted.plan
    assert built.counts["LDG"] > 0


FEW_SPILLED = 64
"""Bytes a thread. A tile that does not fit spills thousands."""


def as_tf32(compute: str):
    problem = replace(
        problem_on((9, 0), "float32"), dtype_in="float32", b_strides=(1, 4096), compute=compute
    )
    plan = dispatch.find("triton", "warp_specialized").plan(problem)
    types = {"dtype_in": "float32", "dtype_out": "float32", "compute": compute}
    return Request("warp_specialized", plan, layout="nt", **types)


PRODUCER_AND_CONSUMERS = Request("warp_specialized", WARP_SPECIALIZED, layout="nt")
SMALL = Request(
    "naive",
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "NUM_WARPS": 4},
    dtype_in="float16",
    dtype_out="float16",
    M=100,
    N=100,
    K=100,
)


@cache
def all_with_texts() -> dict[str, object]:
    """What tests read as texts, which no record keeps: compiled in every run, by one process."""
    wanted = [PRODUCER_AND_CONSUMERS, SMALL, ODD_C[0], *SWAPPED]
    built = compile_only.compile_rungs(wanted, assembly=True)
    return dict(zip(map(repr, wanted), built, strict=True))


def with_texts(request):
    return all_with_texts()[repr(request)]


def test_vectors_of_a_c_in_odd_rows_are_16_bytes():
    texts = with_texts(ODD_C[0]).assembly
    vectors = 128 * 256 // 8 // 128
    assert texts["ptx"].count("st.global.v4.b32") == vectors
    assert texts["sass"].count("STG.E.128") == vectors
    assert texts["sass"].count("STG") == 9 * vectors


@pytest.mark.parametrize("wanted", SWAPPED, ids=name_of)
def test_a_swapped_tile_is_transposed_by_stmatrix(wanted):
    """Four matrices of 8 x 8 at a time, each row of one 16 bytes of a row of C: in a buffer that is
    swizzled by 128 bytes they lie in all 32 banks. No element is stored by itself."""
    ptx, plan = with_texts(wanted).assembly["ptx"], wanted.plan
    stores = re.findall(r"stmatrix\S+", ptx)
    assert set(stores) == {"stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"}
    assert len(stores) == plan["BLOCK_M"] * plan["BLOCK_N"] // (4 * 64 * 4)
    widths = {plan["BLOCK_N"] - plan["REST"]}
    widths |= {1 << bit for bit in range(8) if plan["REST"] >> bit & 1}
    assert set(re.findall(r"wgmma\.mma_async\S*m64n(\d+)k16", ptx)) == set(map(str, widths))
    assert not re.search(r"st\.shared\.(b8|b16|u8|u16)", ptx)


@pytest.mark.parametrize(("compute", "terms"), [("tf32", 1), ("tf32x3", 3)])
def test_float32_is_multiplied_as_tf32(compute, terms):
    """Four products a step; with two terms three times as many, awaited before they are added."""
    (built,) = records.triton([as_tf32(compute)])
    assert built.counts["HGMMA"] == 2 * 4 * terms
    assert not built.serialized, built.log
    assert built.spill_bytes == 0


@pytest.mark.exhaustive  # the test above counts them by records, which keep no text
@pytest.mark.parametrize(("compute", "columns"), [("tf32", 256), ("tf32x3", 128)])
def test_instructions_of_tf32_take_eight_of_k(compute, columns):
    (built,) = compile_only.compile_rungs([as_tf32(compute)], assembly=True)
    assert built.assembly["sass"].count(f"HGMMA.64x{columns}x8") == built.counts["HGMMA"] > 0


C_IN = [
    ("bfloat16", "bfloat16", "float32"),
    ("bfloat16", "float32", "float32"),
    ("float16", "float16", "float16"),
    ("int8", "int32", "int32"),
    ("float8_e4m3fn", "float32", "float32"),
    ("float32", "float32", "tf32"),
    ("float32", "float32", "tf32x3"),
]


@cache
def with_c_in() -> list:
    """descriptor's plan of each type pair with a C that is read."""
    requests = []
    for dtype_in, dtype_out, compute in C_IN:
        problem = replace(
            problem_on((9, 0), dtype_out),
            dtype_in=dtype_in,
            compute=compute,
            b_strides=(1, 4096),
            beta=1.0,
            c_in_strides=(4096, 1),
        )
        plan = plans.plan("descriptor", problem)
        types = {"dtype_in": dtype_in, "dtype_out": dtype_out, "compute": compute}
        requests.append(Request("descriptor", plan, layout="nt", c_in=True, **types))
    return requests


@pytest.mark.parametrize("number", range(len(C_IN)), ids=lambda n: "-".join(C_IN[n]))
def test_a_c_that_is_read_comes_by_tma_through_memory_that_is_there(number):
    request = with_c_in()[number]
    built = compiled(request)
    assert built.counts["LDG"] == 0, "C_in is not read by the threads"
    assert (built.spill_bytes, built.serialized) == (0, False)
    bound = plans.shared_bytes(
        "descriptor", request.plan, request.dtype_out, request.dtype_in, request.compute
    )
    if request.plan["FLATTEN"]:
        assert request.dtype_out == "bfloat16"
        bound += 128 * 256  # half a tile of C_in in 16 bits
    assert built.shared_bytes <= bound <= LIMITS[9, 0]


def test_a_float32_result_of_the_largest_tile_fits():
    """The table gives it fewer stages: half of C takes 64 KB."""
    built = compiled(WIDE_RESULT)
    assert built.shared_bytes <= LIMITS[9, 0]
    assert built.spill_bytes == 0


def test_a_column_major_result_is_stored_by_tma():
    built = compiled(COLUMN_MAJOR_RESULT)
    assert built.counts["UTMASTG"] == 2
    assert built.spill_bytes == 0


def test_warp_specialized_keeps_one_group_in_flight_and_moves_registers():
    built = with_texts(PRODUCER_AND_CONSUMERS)
    sass = built.assembly["sass"]
    mainloops = re.findall(
        r"HGMMA[^\n]*gsb0[^\n]*\n(?:[^\n]*\n)*?[^\n]*DEPBAR\.LE gsb0, 0x(\d)", sass
    )
    assert mainloops == ["1", "1"], "each consumer waits for all but the newest group"
    assert len(re.findall(r"64x256x16", sass)) == 2 * WARP_SPECIALIZED["BLOCK_K"] // 16
    assert "USETMAXREG.DEALLOC.CTAPOOL 0x18" in sass
    assert "USETMAXREG.TRY_ALLOC.CTAPOOL" in sass
    assert "STSM" in sass, "C reaches shared memory by matrix stores"
    assert sass.count("PREEXIT") == 1
    # The ring's barriers: each consumer releases the stage before the one in flight.
    assert "%empty[%slot]" not in built.assembly["ttgir"]


EIGHT_BITS = [
    ("int8", "int32", "", "", "IGMMA"),
    ("float8_e4m3fn", "bfloat16", "fast", "tensor", "QGMMA"),
    ("float8_e5m2", "float32", "fast", "row", "QGMMA"),
    ("float8_e4m3fn", "float16", "float32", "", "QGMMA"),
    ("float8_e4m3fn", "bfloat16", "float32", "row", "QGMMA"),
]


@cache
def eight_bits() -> list:
    requests = []
    for dtype_in, dtype_out, compute, scales, _ in EIGHT_BITS:
        problem = replace(
            problem_on((9, 0), dtype_out),
            dtype_in=dtype_in,
            b_strides=(1, 4096),
            compute=compute or "int32",
            scales=scales,
        )
        row = dispatch.find("triton", "warp_specialized")
        request = {"dtype_in": dtype_in, "dtype_out": dtype_out, "compute": compute}
        plan = row.plan(problem)
        requests.append(Request(row.name, plan, layout="nt", scales=scales, **request))
    return requests


@pytest.mark.parametrize("number", range(len(EIGHT_BITS)), ids=lambda n: "-".join(EIGHT_BITS[n]))
def test_warp_specialized_multiplies_eight_bits(number):
    request = eight_bits()[number]
    built = compiled(request)
    assert built.counts[EIGHT_BITS[number][-1]] > 0
    assert not built.serialized, built.log
    assert built.spill_bytes == 0
    assert built.counts["STG"] == 0
    assert (built.counts["LDG"] > 0) == bool(request.scales)
    limit = plans.shared_bytes(
        request.kernel, request.plan, request.dtype_out, request.dtype_in, request.compute
    )
    assert built.shared_bytes <= limit <= LIMITS[9, 0]


def test_texts_come_when_asked_for():
    built = with_texts(SMALL)
    assert "wgmma.mma_async" in built.assembly["ptx"]
    assert "HGMMA" in built.assembly["sass"]
    assert +Counter(built.counts) == compile_only.opcodes(built.assembly["sass"])
    assert "tt.dot" in built.assembly["ttgir"] or "warp_group_dot" in built.assembly["ttgir"]


@pytest.mark.exhaustive  # other tests read what this one compiles for
@pytest.mark.spread(2, "capability")
@pytest.mark.parametrize("capability", [(10, 0), (12, 0)])
def test_a_kernel_for_another_assembler_is_read(capability):
    """From sm_100 on Triton has another ptxas, and the usual one does not know its PTX."""
    plan = plans.fit("pipelined", {**DEEP, "NUM_STAGES": 3}, "float32", 101_376)
    request = Request("pipelined", plan, dtype_out="float32", capability=capability)
    (built,) = compile_only.compile_rungs([request])
    assert built.registers > 0
    assert built.spill_bytes == 0
    assert built.shared_bytes <= gpus.LIMITS[capability].shared_bytes


def test_a_failed_compilation_names_the_request():
    plan = {"BLOCK_M": 48, "BLOCK_N": 64, "BLOCK_K": 32, "NUM_WARPS": 4}
    with pytest.raises(RuntimeError, match="BLOCK_M': 48"):
        compile_only.compile_rungs([Request("naive", plan)])


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_a_gpu_without_a_table_gets_what_fits_its_shared_memory(capability):
    limit = gpus.LIMITS[capability].shared_bytes
    types = [
        (dtype, out, compute)
        for dtype, known in DTYPES.items()
        for out in known.outputs
        for compute in known.computes
    ]
    for row, (dtype_in, dtype_out, compute) in itertools.product(dispatch.ladder("triton"), types):
        problem = replace(
            problem_on(capability), dtype_in=dtype_in, dtype_out=dtype_out, compute=compute
        )
        if capability < row.capability or not row.takes_types(dtype_in, dtype_out, compute):
            continue
        if row.refuse(problem) is not None:
            continue
        plan = row.plan(problem)
        most = plans.shared_bytes(row.name, plan, dtype_out, dtype_in, compute)
        assert most <= limit, (row.name, dtype_in, dtype_out, compute, plan)
