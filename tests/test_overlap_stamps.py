"""The time line of an overlapped call: which stamps kernels write, and what is made of them."""

from importlib import import_module

import pytest
import records
import torch
from tcgemm.cuda_ref.build import toolchain
from test_overlap import in_processes

from tcgemm.dist.overlap import plan as planning
from tcgemm.dist.overlap import timeline
from tcgemm.dist.rows import rows_of


def test_stamps_of_blocks_become_spans_by_hand():
    into = torch.zeros(timeline.OF_CALL + 2 * 3 * 4, dtype=torch.int64)
    into[:2] = torch.tensor([1000, 2000])
    blocks = into[2:].view(2, 3, 4)
    blocks[0, 0] = torch.tensor([3000, 3000, 9000, 0])  # own rows: no wait, no flag
    blocks[1, 0] = torch.tensor([4000, 4000, 8000, 0])
    blocks[0, 2] = torch.tensor([10_000, 20_000, 30_000, 31_000])  # this block waited longest
    blocks[1, 2] = torch.tensor([15_000, 20_500, 40_000, 42_000])
    assert timeline.pieces(into, 2, 3, zero=1000.0) == [
        ("enter", 0, 0, 1),
        ("tiles", 0, 2, 8),
        ("wait", 2, 9, 19),
        ("tiles", 2, 19, 39),
        ("flags", 2, 39, 41),
    ]


def stamped(rank, world, backend, M, N):
    import torch.distributed as dist

    import tcgemm.dist.overlap as overlap

    K, group = 32, dist.group.WORLD
    first, behind = rows_of(M, world, rank)
    a, b = torch.ones(M, K).half(), torch.ones(K, N).half()
    return {
        op: overlap.stamps(op, a[first:behind] if op == "all_gather" else a, b, group, backend, M)
        for op in ("all_gather", "reduce_scatter")
    }


def check_spans(found, world, backend):
    for rank, of_rank in found.items():
        assert isinstance(of_rank, dict), of_rank
        for op, spans in of_rank.items():
            each = planning.MOST_PARTS if op == "all_gather" else 1
            kinds = [what for what, *_ in spans]
            assert kinds[0] == "enter"
            turns = {piece // each for what, piece, *_ in spans if what == "tiles"}
            assert turns == set(range(world)), (rank, op)  # own rows, and those of every peer
            flags = {piece for what, piece, *_ in spans if what == "flags"}
            if backend == "cuda":  # the interpreter counts, and has no clock
                assert all(begin <= end for _, _, begin, end in spans)
                assert flags == (set() if op == "all_gather" else set(range(world - 1)))
                # The first block tells the peers of earlier calls before any tile leaves.
                assert all(spans[0][3] <= end for what, _, _, end in spans if what == "flags")


def test_the_interpreter_comes_by_every_piece_s_stamps():
    found = in_processes(2, stamped, "triton", 140, 40)
    check_spans(found, 2, "triton")
    for of_rank in found.values():  # own rows, and two parts of the peer's
        assert sum(what == "tiles" for what, *_ in of_rank["all_gather"]) == 3


@pytest.mark.exhaustive
def test_the_simulator_s_stamps_are_in_order():
    check_spans(in_processes(2, stamped, "cuda", 300, 40, timeout_s=300), 2, "cuda")


@pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)
@pytest.mark.exhaustive
def test_only_a_build_that_is_asked_to_stores_stamps():
    kernels = import_module("tcgemm.cuda_ref.overlap.run")
    stores = []
    for stamped in (False, True):
        defines = kernels.defines(torch.bfloat16, None, planning.TILES[1], stamped)
        report = records.cuda("wgmma_overlap", "sm_90a", defines)
        products = [kernel for kernel in report.kernels if "wgmma_overlap" in kernel.symbol]
        assert len(products) == 4
        assert not report.serialized
        assert all(kernel.spill_bytes <= 600 for kernel in products)
        stores.append(sum(kernel.sass["STG"] for kernel in products))
    assert stores[0] < stores[1]
