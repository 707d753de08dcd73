"""warp_specialized with a C that TMA cannot reach: vectors of 16 bytes that threads store."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import DEVICE
from ptx_lanes import LANES, Warp
from triton_requests import UNALIGNED

from tcgemm import dispatch, repacking
from tcgemm.problem import Problem

blocks = import_module("tcgemm.triton_kernels.device.blocks")
gluon_launch = import_module("tcgemm.triton_kernels.host.gluon_launch")
storage = import_module("tcgemm.triton_kernels.host.storage")
unaligned_rows = import_module("tcgemm.triton_kernels.device.unaligned_rows")

ROW = dispatch.find("triton", "warp_specialized")


def store(C, tile, subtiles, start, pitch):
    """The memory, and how often each element was stored, behind a kernel that stores C, by the
    indices of ``unaligned_rows.store_subtile`` and the PTX itself.

    Args:
        C: [M, N] elements of 16 bits.
        tile: columns of a tile.
        subtiles: how many of it there are.
        start: elements before C in memory.
        pitch: elements from a row to the next.
    """
    M, N = C.shape
    memory = np.zeros(start + (M + 1) * pitch + 64, np.int64)
    warp = Warp(memory, np.zeros_like(memory))
    columns = tile // subtiles
    lanes = columns // storage.OVERLAP
    text = unaligned_rows.store_vector.fn(lanes)
    step = blocks.step_of.fn(tile, SimpleNamespace(UNALIGNED_C=columns))
    for n in range(0, N, step):
        padded = np.full((M + 32, tile), 0xDEAD, np.int64)
        inside = C[:, n : n + tile]
        padded[:M, : inside.shape[1]] = inside
        words = padded[:, ::2] | padded[:, 1::2] << 16
        for m in range(0, M, 32 // lanes):
            row, vector = m + LANES // lanes, LANES % lanes
            before = None
            for subtile in range(subtiles):
                at = (subtile * columns + vector * 8) // 2
                x = [words[row, at + k] for k in range(4)]
                before = x if before is None else before
                same = np.ones(32, np.int64)
                operands = {
                    **{4 + k: x[k] for k in range(4)}, **{8 + k: before[k] for k in range(4)},
                    12: same * 2 * start, 16: same * 2 * pitch, 20: row,
                    24: n + subtile * columns + vector * 8, 28: same * M, 32: same * N,
                    36: same * (n + 1 if n else -8),
                }  # fmt: skip
                warp.run(text, operands)
                before = x
    return memory, warp


@pytest.mark.parametrize(
    ("tile", "subtiles"),
    [(256, 4), (256, 2), (128, 2), (96, 3), (64, 1), (48, 3), (256, 1), (144, 9), (224, 7)],
)
@pytest.mark.parametrize(
    ("N", "start", "pitch"),
    [
        (1, 3, 7), (7, 0, 7), (5, 6, 9), (8, 1, 8), (57, 0, 57), (249, 8, 251), (248, 5, 248),
        (500, 2, 500), (513, 0, 513), (300, 7, 1001), (505, 4, 506),
    ],
)  # fmt: skip
def test_each_element_is_stored_once_and_none_beside_it(tile, subtiles, N, start, pitch):
    M = 19
    C = np.random.default_rng(0).integers(1, 1 << 16, (M, N))
    memory, warp = store(C, tile, subtiles, start, pitch)
    wanted, once = np.zeros_like(memory), np.zeros_like(memory)
    for row in range(M):
        at = start + row * pitch
        wanted[at : at + N], once[at : at + N] = C[row], 1
    assert np.array_equal(warp.times, once)
    assert np.array_equal(memory, wanted)
    whole = sum(
        max(0, (start + row * pitch + N) // 8 + (start + row * pitch) // -8) for row in range(M)
    )
    assert warp.vectors == whole, "what could be stored as vectors was not"


def memory_of(M, N, dtype, transposed, pitch, start, device=DEVICE):
    """C in memory with elements around it, and all of that memory."""
    rows, columns = (N, M) if transposed else (M, N)
    around = torch.full((start + rows * pitch + 64,), torch.nan, device=device, dtype=dtype)
    c = around.as_strided((rows, columns), (pitch, 1), start)
    return around, c.mT if transposed else c


@pytest.mark.gpu
@pytest.mark.parametrize("tile", UNALIGNED, ids=lambda t: f"{t['BLOCK_M']}x{t['BLOCK_N']}")
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "ntt"])
def test_the_product_is_right_and_nothing_beside_it_is_written(tile, layout):
    for M, N, K, more, start, dtype in (
        (1979, 1621, 88, 0, 0, torch.bfloat16), (300, 2044, 1000, 0, 0, torch.float16),
        (257, 1001, 8, 8, 1, torch.float16), (129, 7, 64, 0, 3, torch.bfloat16),
        (5, 249, 72, 1, 7, torch.bfloat16), (2000, 512, 256, 0, 5, torch.bfloat16),
        (1, 1003, 64, 0, 2, torch.float16), (1001, 1, 64, 2, 0, torch.float16),
    ):  # fmt: skip
        a = torch.randn(M, K, device=DEVICE).to(dtype)
        b = torch.randn(K, N, device=DEVICE).to(dtype)
        if layout[0] == "t":
            a = padded(a.mT).mT
        b = padded(b.mT).mT if layout[1] == "t" else padded(b)
        transposed = layout[2:] == "t"
        pitch = (M if transposed else N) + more
        around, c = memory_of(M, N, dtype, transposed, pitch, start)
        is_stored_thrice(a, b, c, around, tile)


def is_stored_thrice(a, b, c, around, tile):
    """The kernel takes such a C with this tile, it is right, and around it nothing is written."""
    problem = dispatch.problem_of(a, b, c)
    assert ROW.why_not(problem) is None, problem
    bound = dispatch.load("triton", ROW.name).bind(a, b, c, **tile)
    product, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    near_by = 2**-8 if c.dtype is torch.bfloat16 else 2**-11
    for _ in range(3):
        around.fill_(torch.nan)
        bound(a, b, c)
        assert bool(((c - product).abs() <= near_by * product.abs() + 1e-5 * size).all())
        assert int((~around.isnan()).sum()) == c.numel(), "wrote outside of C"


def padded(x):
    """The same matrix in aligned rows."""
    room = torch.zeros(x.shape[0], -(-x.shape[1] // 8) * 8, device=x.device, dtype=x.dtype)
    room[:, : x.shape[1]] = x
    return room[:, : x.shape[1]]


@pytest.mark.gpu
def test_a_repeated_call_goes_by_the_address_of_its_own_c():
    a = torch.randn(300, 64, device=DEVICE).bfloat16()
    b = torch.randn(1001, 64, device=DEVICE).bfloat16().mT
    product = (a.double() @ b.double()).bfloat16().double()
    bound = None
    for start in (5, 13, 21, 5, 29, 13):  # behind as many multiples of 16 bytes
        around, c = memory_of(300, 1001, torch.bfloat16, False, 1001, start)
        bound = bound or dispatch.load("triton", ROW.name).bind(a, b, c, **UNALIGNED[0])
        for _ in range(2):
            around.fill_(torch.nan)
            bound(a, b, c)
            assert bool(((c - product).abs() <= 2**-7 * product.abs() + 1e-3).all())
            assert int((~around.isnan()).sum()) == c.numel()


def odd(M=1979, N=16211, K=88, **changed):
    stored = Problem.stored(M, N, K, "bfloat16", "bfloat16", "nt", device="cuda", capability=(9, 0))
    return replace(stored, **changed)


def test_who_takes_a_c_that_tma_cannot_store():
    for taken in (odd(), odd(c_strides=(1, 1981)), odd(N=8, c_strides=(11, 1)),
                  odd(N=16, c_strides=(16, 1), c_alignment=2), odd(N=4)):  # fmt: skip
        assert ROW.why_not(taken) is None, taken
    for refused, sentence in (
        (odd(dtype_out="float32"), "C has a row pitch of 16211 elements"),
        (odd(epilogue="relu"), "C has a row pitch of 16211 elements"),
        (odd(bias=True), "C has a row pitch of 16211 elements"),
        (odd(batch=2), "C has a row pitch of 16211 elements"),
        (odd(K=84), "A has a row pitch of 84 elements"),
        (odd(a_alignment=2), "A starts at an address"),
        (odd(c_strides=(32422, 2)), "C has strides"),
        (odd(c_strides=(16210, 1)), "which overlap"),
        (odd(c_strides=(2**30 + 1, 1)), "C has a row pitch of 1073741825"),
    ):
        assert sentence in (ROW.why_not(refused) or ""), refused


def test_the_launch_has_a_pointer_and_the_grid_of_tiles_that_overlap(monkeypatch):
    monkeypatch.setattr(gluon_launch, "programs", lambda a: 132)
    a, b = (torch.empty(size, 64, dtype=torch.bfloat16, device="meta") for size in (300, 1001))
    for transposed in (False, True):
        _, c = memory_of(300, 1001, torch.bfloat16, transposed, 1003, 0, device="meta")
        grid, args, constants = gluon_launch.arguments(a, b.mT, c, **UNALIGNED[0])
        assert args[4].stride() == (1003, 1), "C, or what is computed in its place, by rows"
        assert 1003 in args[7:]
        assert constants["CONFIG"].UNALIGNED_C == 64
        assert grid == ((5 * 3 if not transposed else 2 * 8),)
    aligned = torch.empty(300, 1000, dtype=torch.bfloat16, device="meta")
    _, args, constants = gluon_launch.arguments(a, b[:1000].mT, aligned, **UNALIGNED[0])
    assert constants["CONFIG"].UNALIGNED_C == 0
    assert not isinstance(args[4], torch.Tensor)


def test_tiles_that_overlap_are_counted_as_they_are():
    """Of 128 x 256, 1095 x 7321 are 9 x 30 tiles and two waves more than half full are three."""
    planner = ROW.plan
    assert (planner.overlap(odd()), planner.overlap(odd(N=16208))) == (8, 0)
    assert ROW.plan(odd(1095, 7320, 56))["BLOCK_N"] == 256
    assert ROW.plan(odd(1095, 7321, 56))["BLOCK_N"] == 128


def test_a_large_c_in_odd_rows_is_stored_from_copies_of_a_and_b():
    problem = odd(K=84)
    copies = repacking.worth(problem, "triton")
    assert (copies.a, copies.b, copies.c) == (True, True, False)
    assert dispatch.choose(copies.problem, "triton").name == "warp_specialized"
    assert dispatch.choose(odd(), "triton").name == "warp_specialized"
    by_elements = replace(problem, dtype_out="float32")
    faster = repacking.fast_us(problem, copies, "triton")
    assert faster < 0.6 * repacking.fast_us(by_elements, copies, "triton")
