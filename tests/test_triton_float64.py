"""warp_specialized with float64: wgmma has none, so threads read blocks for mma.sync."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import SimpleNamespace

import pytest
import records
import torch
from conftest import DEVICE
from triton_requests import LIMITS

from tcgemm import dispatch
from tcgemm.problem import Fusion, Problem

by_mma_sync = import_module("tcgemm.triton_kernels.device.by_mma_sync")
compile_only = import_module("tcgemm.triton_kernels.inspection.compile_only")
divided_tiles = import_module("tcgemm.triton_kernels.rungs.divided_tiles")
gluon_launch = import_module("tcgemm.triton_kernels.host.gluon_launch")
plans = import_module("tcgemm.triton_kernels.by_name")
tables = import_module("tcgemm.triton_kernels.planning.tables")

NAME = "warp_specialized"
SMS = 132
LAYOUTS = ("nn", "nt", "tn", "tt")
TILES = [row["config"] for row in tables.shipped_rows("sm90", NAME, "float64")]
DEPTH = 16


def problem_of(M, N, K, layout="nn", **changes):
    asked = Problem.stored(M, N, K, "float64", "float64", layout, capability=(9, 0))
    return replace(asked, **changes)


def fitted(config):
    return plans.fit(NAME, config, "float64", LIMITS[9, 0], "float64", "float64")


# Which thread reads what.


def lanes(side, rows=32):
    """For each thread of a warp the rows and columns that it reads first."""
    layout = by_mma_sync.lies(rows, side)
    layout = getattr(layout, "value", layout)
    for lane in range(32):
        bases = [base for bit, base in enumerate(layout.lane_bases) if lane >> bit & 1]
        yield sum(base[0] for base in bases), sum(base[1] for base in bases)


@pytest.mark.parametrize("side", [0, 1])
def test_along_k_eight_threads_read_all_banks_once(side):
    """Rows of 8 elements, whose units of 16 bytes TMA exchanges by the number of a pair of rows."""
    read = list(lanes(side))
    for first in range(0, 32, 8):
        banks = []
        for row, k in read[first : first + 8]:
            assert k % 2 == 0, "two neighbours are one vector"
            at = 64 * row + 16 * (k // 2 ^ row // 2 % 4)
            banks += [at // 4 % 32 + word for word in range(4)]
        assert sorted(banks) == list(range(32))


@pytest.mark.parametrize("side", [0, 1])
def test_across_k_half_a_warp_reads_all_banks_once(side):
    """Rows of 16 elements along M or N, whose units are exchanged by the row's number."""
    read = list(lanes(side))
    for first, further in itertools.product((0, 16), (0, 1, 8, 9)):
        banks = []
        for row, k in read[first : first + 16]:
            at = 128 * (k + further) + 16 * (row % 16 // 2 ^ (k + further) % 8) + 8 * (row % 2)
            banks += [at // 4 % 32, at // 4 % 32 + 1]
        assert sorted(banks) == list(range(32))


class Block:
    """What a kernel sees of shared memory, with its elements in a tensor of torch."""

    def __init__(self, elements):
        self.elements, self.shape = elements, elements.shape

    def load(self, layout):
        return self.elements


def test_both_operands_have_k_in_the_same_order(monkeypatch):
    """By the kernel's own function, of tensors of torch."""
    by_torch = SimpleNamespace(
        reshape=torch.reshape, permute=torch.permute, convert_layout=lambda x, layout: x,
        DotOperandLayout=lambda *of: None, DistributedLinearLayout=lambda **of: None,
    )  # fmt: skip
    monkeypatch.setattr(by_mma_sync, "gl", by_torch)
    monkeypatch.setattr(by_mma_sync, "DEPTH", DEPTH)
    monkeypatch.setattr(by_mma_sync, "lies", lambda rows, side: None)
    a = torch.randint(-8, 9, (64, DEPTH)).double()
    b = torch.randint(-8, 9, (DEPTH, 32)).double()
    x, y = by_mma_sync.read.fn(Block(a), 0, None), by_mma_sync.read.fn(Block(b.mT), 1, None)
    assert torch.equal(x @ y, a @ b)
    # The instruction's columns t and t + 4 are neighbours in memory.
    assert all(torch.equal(x[:, t + 4], a[:, 2 * t + 1]) for t in range(4))
    assert torch.equal(x[:, 0], a[:, 0])


# What the compiler makes of it.


@cache
def requests():
    """Each tile in all layouts, and with its K divided."""
    found = [
        compile_only.Request(NAME, tile, "float64", "float64", layout, compute="float64")
        for tile in TILES
        for layout in LAYOUTS
    ]
    parts = {"SWAP": 1, "SPLITS": 3, "BUFFERS": 1, "NUM_STAGES": 10}
    found += [
        compile_only.Request(
            NAME, fitted({**tile, **parts}), "float64", "float64", "nt", compute="float64"
        )
        for tile in TILES
    ]  # fmt: skip
    return found


@pytest.mark.parametrize(
    "number", range(len(TILES)), ids=lambda n: "{BLOCK_M}x{BLOCK_N}".format(**TILES[n])
)
def test_operands_in_registers_stay_there(number):
    """A block is read once for each step, by vectors where it lies along K, and no element is
    exchanged among threads."""
    tile = TILES[number]
    mine = [
        request
        for request in requests()
        if all(request.plan[side] == tile[side] for side in ("BLOCK_M", "BLOCK_N"))
    ]
    assert len(mine) == len(LAYOUTS) + 1
    for request, built in zip(mine, records.triton(mine), strict=True):
        plan = request.plan
        consumers, rows, columns = plan["CONSUMERS"], plan["BLOCK_M"], plan["BLOCK_N"]
        divided = plan.get("SPLITS", 1) > 1
        # Words of registers that hold arguments are kept in memory, outside of all loops.
        assert built.counts["LDL"] == built.counts["STL"] <= 2, built.log
        assert built.counts["STL"] == 0 or (rows, columns) == (128, 128)
        # Code for the last step, and for all before it.
        assert built.counts["DMMA"] == 2 * rows * columns // (4 * 16 * 8)
        swapped = bool(plan.get("SWAP"))
        along = (request.layout[0] == "n", request.layout[1] == "t")
        a_along, b_along = along[::-1] if swapped else along
        of_a = rows // consumers // 2 * DEPTH // 32 // (2 if a_along else 1)
        of_b = columns // 2 * DEPTH // 32 // (2 if b_along else 1)
        assert built.counts["LDS"] == 1 + 2 * consumers * (of_a + of_b)
        assert built.counts["UTMASTG"] == (0 if divided else consumers * plan["SUBTILES"])
        bound = plans.shared_bytes(NAME, plan, "float64", "float64", "float64")
        assert built.shared_bytes <= bound <= LIMITS[9, 0]


# What is launched.


@pytest.mark.parametrize("layout", LAYOUTS)
def test_descriptors_hold_pairs_of_int32(layout, monkeypatch):
    monkeypatch.setattr(gluon_launch, "programs", lambda a: SMS)
    a = torch.empty(
        (200, 1000) if layout[0] == "n" else (1000, 200), dtype=torch.float64, device="meta"
    )
    b = torch.empty(
        (1000, 300) if layout[1] == "n" else (300, 1000), dtype=torch.float64, device="meta"
    )
    a, b = a if layout[0] == "n" else a.mT, b if layout[1] == "n" else b.mT
    c = torch.empty(200, 300, dtype=torch.float64, device="meta")
    _, args, constants = gluon_launch.arguments(a, b, c, Fusion(compute="float64"), **TILES[1])
    of_a, of_b, of_c = args[0], args[1], args[4]
    tile, part = TILES[1], TILES[1]["BLOCK_M"] // TILES[1]["CONSUMERS"]
    assert constants["CONFIG"].FLOAT64
    assert list(of_c.block_shape) == [part, 2 * tile["BLOCK_N"] // tile["SUBTILES"]]
    assert (list(of_c.shape), list(of_c.strides)) == ([200, 600], [600, 1])
    for described, letter, side, block in (
        (of_a, layout[0], 200, part),
        (of_b, "tn"[layout[1] == "t"], 300, tile["BLOCK_N"]),
    ):
        along = letter == "n"
        assert list(described.shape) == ([side, 2000] if along else [1000, 2 * side])
        assert list(described.strides) == ([2000, 1] if along else [2 * side, 1])
        assert list(described.block_shape) == ([block, 32] if along else [16, 2 * block])
        assert described.layout.swizzle_byte_width == (64 if along else 128)
        assert described.base.dtype == torch.int32


@pytest.mark.parametrize(
    ("fusion", "scaled"),
    [
        (Fusion(compute="float64"), False),
        (Fusion(compute="float64", alpha=0.3), True),
        (Fusion(compute="float64", epilogue="relu"), False),
        (None, False),
    ],
)
def test_factors_come_as_they_are(fusion, scaled, monkeypatch):
    """Of types by other names than tl's Triton knows nothing: it would hand on a float32. What is
    declared a number has to be one, asked for or not."""
    kernel = import_module("tcgemm.triton_kernels.rungs.warp_specialized").kernel
    types = {each.name: each.annotation_type for each in kernel.params}
    assert (types["alpha"], types["beta"]) == ("fp64", "fp64")
    monkeypatch.setattr(gluon_launch, "programs", lambda a: SMS)
    a = torch.empty(64, 64, dtype=torch.float64, device="meta")
    _, args, constants = gluon_launch.arguments(a, a, torch.empty_like(a), fusion, **TILES[1])
    given = dict(zip(kernel.arg_names, args, strict=False))
    assert given["alpha"] == (fusion.alpha if fusion else 1.0)
    assert isinstance(given["beta"], float)
    assert constants["CONFIG"].SCALED is scaled


# The choice.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "size", [(4096, 4096, 4096), (1024, 1024, 1024), (13003, 466, 222), (1374, 554, 7830)]
)
def test_rows_of_16_bytes_go_to_it(size, layout):
    M, N, K = (side + side % 2 for side in size)
    problem = problem_of(M, N, K, layout)
    chosen = dispatch.choose(problem, "triton")
    assert chosen.name == NAME
    assert "REPACK" not in chosen.plan(problem), "it is read as it lies"


@pytest.mark.parametrize("size", [(2**30, 8, 8), (8, 2**30, 8), (8, 8, 2**30)])
def test_sides_that_pairs_are_too_many_for_are_refused(size):
    """Twice the coordinate would be beyond an int32."""
    row = dispatch.find("triton", NAME)
    assert "counts" in row.why_not(problem_of(*size))
    fewer = [min(side, 2**30 - 2) for side in size]
    assert row.why_not(problem_of(*fewer)) is None


def test_odd_rows_do_not():
    assert "TMA" in dispatch.find("triton", NAME).why_not(problem_of(64, 77, 64))
    assert dispatch.choose(problem_of(1024, 1025, 1023), "triton").name != NAME


@pytest.mark.parametrize(
    ("tiles", "steps"), [(96, 192), (192, 192), (50, 1000), (132, 100), (1024, 20), (70, 5)]
)
def test_more_parts_leave_fewer_sms_idle(tiles, steps):
    """Than any fewer parts do, over all waves."""

    def busy(parts):
        waves = -(-tiles * parts // SMS)
        return tiles * parts / (waves * SMS)

    found = divided_tiles.parts_in_waves(tiles, steps, SMS)
    for parts in range(2, divided_tiles.MOST_IN_WAVES + 1):
        better = busy(parts) > max(busy(fewer) for fewer in range(1, parts))
        assert (parts in found) == (better and steps // parts >= divided_tiles.LEAST_STEPS)


def test_float64_alone_is_divided_beyond_a_wave():
    """Parts of other types are given where all of them run at once."""
    problem = problem_of(512, 3072, 3072)
    waves = list(divided_tiles.of_types(TILES, problem, SMS))
    whole = -(-512 // 128) * -(-3072 // 128)
    assert any(
        whole * tile["SPLITS"] > SMS for tile in waves if tile["BLOCK_N"] == tile["BLOCK_M"] == 128
    )
    other = replace(problem, dtype_in="float32", dtype_out="float32", compute="tf32")
    for tile in divided_tiles.of_types(TILES, other, SMS):
        down, across = (3072, 512) if tile["SWAP"] else (512, 3072)
        assert -(-down // tile["BLOCK_M"]) * -(-across // tile["BLOCK_N"]) * tile["SPLITS"] <= SMS


# On a GPU.


def operand(rows, columns, transposed, whole):
    if transposed:
        return operand(columns, rows, False, whole).mT
    shape = rows, columns + columns % 2
    made = (
        torch.randint(-8, 9, shape, device=DEVICE).double()
        if whole
        else torch.randn(shape, dtype=torch.float64, device=DEVICE)
    )
    return made[:, :columns]


def surrounded(rows, columns):
    """C poisoned with NaN, and the memory around it."""
    memory = torch.full(
        (rows + 2, columns + columns % 2 + 2), 7.0, dtype=torch.float64, device=DEVICE
    )
    c = memory[1 : rows + 1, :columns]
    c.fill_(float("nan"))
    return memory, c


@pytest.mark.skipif(DEVICE != "cuda", reason="Gluon needs a GPU")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(len(TILES)))
@pytest.mark.parametrize("parts", [1, 3])
def test_it_multiplies(number, layout, parts):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("warp_specialized is for compute capability 9.0")
    run, tile = dispatch.load("triton", NAME), TILES[number]
    divided = {"SWAP": 1, "SPLITS": parts, "BUFFERS": 1, "NUM_STAGES": 10}
    plan = tile if parts == 1 else fitted({**tile, **divided})
    for (M, N, K), by_columns in itertools.product(
        ((200, 130, 98), (33, 258, 1000), (1, 64, 320), (300, 520, 50)), (False, True)
    ):
        for call in range(3):
            a, b = (
                operand(M, K, layout[0] == "t", call == 1),
                operand(K, N, layout[1] == "t", call == 1),
            )
            if by_columns and M % 2:
                continue  # TMA stores whole units of 16 bytes
            memory, c = surrounded(N, M) if by_columns else surrounded(M, N)
            run(a, b, c.mT if by_columns else c, Fusion(compute="float64"), **plan)
            torch.cuda.synchronize()
            want, got = a @ b, c.mT if by_columns else c
            bound = 4 * K**0.5 * 2.0**-52 * (a.abs() @ b.abs()) + 2.0**-52 * want.abs()
            assert torch.equal(got, want) if call == 1 else ((got - want).abs() <= bound).all()
            c.fill_(7.0)
            assert (memory == 7).all()
