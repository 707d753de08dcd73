"""The one-shot way without a GPU: processes that share a file, kernels in Triton's interpreter; and
its protocol with threads as ranks and delays where they do harm."""

from __future__ import annotations

import json
import random
import re
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import compiling
import pytest
import torch
from ranks import groups_of, two_ranks  # noqa: F401
from test_overlap import Here, in_threads, ranks_in_turns, tell_done

import tcgemm
from tcgemm.dist.overlap import one_shot
from tcgemm.dist.overlap.protocol import Rank
from tcgemm.dist.rows import chunk_of, rows_of
from tcgemm.errors import PeerError, UnsupportedError

more = groups_of(3, 4)
OPS = ("all_gather", "reduce_scatter")


def call(op, a, b, rows, **asked):
    if op == "all_gather":
        return tcgemm.dist.all_gather_matmul(a, b, rows=rows, **asked)
    return tcgemm.dist.matmul_reduce_scatter(a, b, **asked)


def poison():
    """NaN, in every dtype, into every slot of this rank, while nobody uses them."""
    from tcgemm.dist import overlap

    torch.distributed.barrier()
    for _, rank in overlap._ranks.values():
        for slot in rank.memory.slots:
            if slot.data:
                slot.data[rank.transport.rank].fill_(255)
            assert not slot.stored.any()
    torch.distributed.barrier()


def operands(op, rank, world, M, N, K, dtype, seed):
    """This rank's A and B, and a bias, of which all ranks draw the same."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(0, 4, shape, generator=generator).to(dtype)

    first, last = rows_of(M, world, rank)
    if op == "all_gather":
        whole, bs = drawn(M, K), [drawn(K, N) for _ in range(world)]
        a = whole[first:last].clone()
    else:
        a, bs = [drawn(M, K) for _ in range(world)][rank], [drawn(K, N) for _ in range(world)]
    out = {torch.int8: torch.int32, torch.uint8: torch.int32}.get(dtype, dtype)
    out = torch.bfloat16 if dtype.itemsize == 1 and dtype.is_floating_point else out
    return a, bs[rank], drawn(N).to(out)


def check_against_the_sequence(rank, dtype, sizes, backend):
    """The same product and the same sum in the same order: the same bits."""
    world = torch.distributed.get_world_size()
    for seed, (M, N, K) in enumerate(sizes):
        for op in OPS:
            if op == "reduce_scatter" and dtype in (torch.float64, torch.int8):
                continue
            a, b, bias = operands(op, rank, world, M, N, K, dtype, seed)
            for fused in ({}, {"bias": bias, "epilogue": "relu"}):
                if fused and not dtype.is_floating_point:
                    continue
                poison()
                asked = {"backend": backend, **fused}
                got = call(op, a, b, M, way="one_shot", **asked)
                wanted = call(op, a, b, M, way="sequence", **asked)
                assert torch.equal(got, wanted), (op, M, N, K, fused)
                assert not got.isnan().any()


SIZES = [(43, 16, 32), (1, 16, 16), (700, 48, 32)]
"""Odd shares of rows, a rank without rows, and more slices than blocks."""


@pytest.mark.spread(2, "dtype")
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8], ids=str
)
def test_results_are_those_of_the_sequence(pair, dtype):
    pair(check_against_the_sequence, dtype, SIZES, "cublas")


def test_the_local_product_is_any_backend_s(pair):
    pair(check_against_the_sequence, torch.bfloat16, [(43, 16, 32)], "triton")


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_results_over_more_ranks_are_those_of_the_sequence(more, dtype):
    more(check_against_the_sequence, dtype, [*SIZES, (2, 8, 8), (333, 264, 72)], "cublas")


def check_strides(rank):
    """Operands and results that lie any way, by rows of 16 bytes from other addresses."""
    world = torch.distributed.get_world_size()
    for op in OPS:
        a, b, bias = operands(op, rank, world, 21, 16, 32, torch.bfloat16, 3)
        asked = {"bias": bias, "epilogue": "gelu", "backend": "cublas", "way": "one_shot"}
        wanted = call(op, a, b, 21, **asked)
        off = torch.empty(a.numel() + 1, dtype=a.dtype)[1:].view(a.shape).copy_(a)
        wide = torch.empty(16, 2, dtype=a.dtype)[:, 0].copy_(bias)
        out = torch.full((wanted.shape[1], wanted.shape[0]), 9.0, dtype=a.dtype).mT
        for other in (a.mT.contiguous().mT, off):
            got = call(op, other, b.mT.contiguous().mT, 21, out=out, **{**asked, "bias": wide})
            assert got is out
            assert torch.equal(got, wanted)


def test_operands_lie_any_way(pair):
    pair(check_strides)


def check_scales(rank, calls):
    """8-bit floats, whose scales travel with their rows, of one number, of rows or of columns."""
    world = torch.distributed.get_world_size()
    draw = random.Random(5)
    for seed in range(calls):
        M, N, K = draw.randint(1, 90), 8 * draw.randint(1, 8), 16 * draw.randint(1, 3)
        dtype = draw.choice((torch.float8_e4m3fn, torch.float8_e5m2))
        generator = torch.Generator().manual_seed(seed)
        by_rows, by_columns = draw.random() < 0.7, draw.random() < 0.5
        of_rows, of_columns = (torch.rand(n, generator=generator) + 0.5 for n in (M, N))
        for op in OPS:
            a, b, bias = operands(op, rank, world, M, N, K, dtype, seed)
            first, last = rows_of(M, world, rank) if op == "all_gather" else (0, M)
            asked = {
                "scale_a": of_rows[first:last] if by_rows else 2.0, "bias": bias,
                "scale_b": of_columns if by_columns else None, "backend": "cublas",
            }  # fmt: skip
            poison()
            got, wanted = (call(op, a, b, M, way=w, **asked) for w in ("one_shot", "sequence"))
            assert torch.equal(got, wanted), (op, seed)


def test_scales_of_8_bit_floats_travel_with_their_rows(pair):
    pair(check_scales, 4)


@pytest.mark.exhaustive
def test_scales_travel_to_more_ranks(more):
    more(check_scales, 20)


def check_mixed(rank, calls, seed, replayed):
    """Calls of all ways in drawn order, with random delays on random ranks. Whole numbers, so that
    every result is exact. ``replayed``: all calls take one slot, as replays of a graph do."""
    from tcgemm.dist import overlap

    world = torch.distributed.get_world_size()
    draw, own = random.Random(seed), random.Random(100 * seed + rank)
    for number in range(calls):
        op, way = draw.choice(OPS), draw.choice(("one_shot", "one_shot", "overlapped", "sequence"))
        M, N, K = draw.randint(1, 150), 8 * draw.randint(1, 9), 8 * draw.randint(1, 5)
        dtype, epilogue = draw.choice((torch.bfloat16, torch.float16)), draw.choice(("", "relu"))
        generator = torch.Generator().manual_seed(1000 * seed + number)

        def whole(*shape, of=generator, dtype=dtype):
            return torch.randint(-2, 3, shape, generator=of).to(dtype)

        bias, first, last = whole(N), *rows_of(M, world, rank)
        if op == "all_gather":
            a, b = whole(M, K), [whole(K, N) for _ in range(world)][rank]
            exact, a = a.double() @ b.double(), a[first:last].clone()
        else:
            pairs = [(whole(M, K), whole(K, N)) for _ in range(world)]
            exact, (a, b) = sum(x.double() @ y.double() for x, y in pairs)[first:last], pairs[rank]
        exact = exact + bias.double()
        time.sleep(own.random() * 0.03)
        backend = draw.choice(("triton", "cublas")) if way == "one_shot" else "triton"
        got = call(op, a, b, M, way=way, bias=bias, epilogue=epilogue, backend=backend)
        wanted = (exact.relu() if epilogue else exact).to(dtype)
        assert torch.equal(got, wanted), (number, op, way, M, N, K)
        for _, of in overlap._ranks.values() if replayed else ():
            of.memory._calls = 0


@pytest.mark.parametrize("replayed", [False, True])
def test_calls_of_all_ways_take_the_slots_in_turns(pair, replayed):
    pair(check_mixed, 8, 1 + replayed, replayed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("replayed", [False, True])
def test_many_calls_of_all_ways_over_more_ranks(more, replayed):
    more(check_mixed, 25, 3 + replayed, replayed)


def check_refused(rank):
    """A product that is refused when all rows have arrived: the next call finds no flags of it."""
    a, b = torch.ones(8, 8, dtype=torch.float16), torch.ones(8, 8, dtype=torch.float16)
    for number in range(4):
        for op in OPS:
            poison()
            asked = {"way": "one_shot", "backend": "triton"}
            with pytest.raises(UnsupportedError, match=r"\d"):
                call(op, a, b, 16, kernel="warp_specialized", **asked)
            if rank == number % 2:
                time.sleep(0.05)
            assert (call(op, a, b, 16, **asked) == (8 if op == OPS[0] else 16)).all()


def test_a_product_that_is_refused_leaves_no_flags_behind(pair):
    pair(check_refused)


def check_gradients(rank):
    for op in OPS:
        a, b, bias = operands(op, rank, 2, 12, 16, 16, torch.float32, 4)
        gradients = []
        for way in ("one_shot", "sequence"):
            given = [t.clone().requires_grad_() for t in (a, b, bias)]
            call(
                op, *given[:2], 12, bias=given[2], epilogue="silu", way=way, backend="cublas"
            ).sum().backward()
            gradients.append([t.grad for t in given])
        assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(*gradients, strict=True))


def test_it_has_gradients(pair):
    pair(check_gradients)


def kernels():
    return import_module("tcgemm.triton_kernels.overlap.run_one_shot")


def multiply(a, b, out, **_):
    return torch.mm(a, b, out=out)


@pytest.mark.parametrize("op", OPS)
def test_a_rank_that_does_not_come_is_named(op):
    a, b = torch.ones(8, 8).half(), torch.ones(8, 8).half()
    rank, peer = ranks_in_turns(2, 0.01)

    def alone():
        if op == "reduce_scatter":
            out = torch.empty(4, 8).half()
            of = rank, kernels(), multiply, a, b, out, False, None, ""
            return one_shot.matmul_reduce_scatter(*of)
        out = torch.empty(16, 8).half()
        return one_shot.all_gather_matmul(rank, kernels(), multiply, a, b, out, 16, False)

    with pytest.raises(PeerError, match="rank 0 of 2 waited in vain for rank 1: block 0 did not"):
        alone()
    with pytest.raises(PeerError, match="an earlier call failed"):
        alone()
    # The peer is late and may still store here: it does not hear that this call has ended.
    assert int(peer.memory.slots[0].done[0]) == 0 < int(rank.memory.slots[0].epoch)


def test_a_slot_that_a_peer_still_reads_is_waited_for():
    """The peer has not left this slot's last use: nothing is stored there."""
    rank = ranks_in_turns(2, 0.01)[0]
    rank.memory.take(1024)
    slot = rank.memory.slots[1]
    slot.last.fill_(1)
    a, b, out = torch.ones(8, 8).half(), torch.ones(8, 8).half(), torch.empty(16, 8).half()
    with pytest.raises(PeerError, match="for rank 1: its word that it has ended this call did not"):
        one_shot.all_gather_matmul(rank, kernels(), multiply, a, b, out, 16, False)
    theirs = slot.words[1][slot.tiles_at :]
    assert not slot.data[1].any()
    assert not theirs.any()


# The protocol, with kernels in Python, ranks as threads and delays where they do harm.


class Model:
    """Blocks one after the other, each as the kernels have it."""

    looks_per_s = 2000

    def __init__(self, ranks, draw, skip):
        self.ranks, self.draw, self.skip = ranks, draw, skip

    def blocks_of(self, size):
        return 3

    def _late(self):
        if self.draw.random() < 0.3:
            time.sleep(self.draw.random() * 0.003)

    def _wait(self, flags, call, wanted, number):
        for peer in range(call.world):
            for _ in range(call.limit):
                if peer == call.rank or int(flags[peer]) >= wanted:
                    break
                time.sleep(0.0005)
            else:
                call.trouble.copy_(torch.tensor([1, peer, number, wanted]))

    def _slot(self, call):
        """The slot that the call uses, as this rank sees it."""
        slots = self.ranks[call.rank].memory.slots
        return next(slot for slot in slots if slot.last.data_ptr() == call.last.data_ptr())

    def _enter(self, call, number):
        if number == 0:
            tell_done(self.ranks, call)
        if self.skip != "done":
            self._wait(call.done, call, int(call.last), -1)

    def _flag_and_wait(self, call, number):
        now = int(call.epoch) + 1
        for peer in range(call.world):
            self._slot(call).words[peer][call.flags_at + call.rank * call.most + number] = now
        if number == call.blocks - 1:
            call.epoch.fill_(now)
            call.last.fill_(now)
        if self.skip != "flags":
            self._wait(call.flags.view(call.world, -1)[:, number], call, now, number)

    def push(self, call, own, scales):
        data = own.view(-1).view(torch.uint8)
        for number in range(call.blocks):
            self._enter(call, number)
            for turn in range(1, call.world + 1):
                self._late()
                peer = (call.rank + turn) % call.world
                at = call.rank * call.chunk * call.units * 16
                to = self._slot(call).data[peer][at : at + len(data)].view(-1, 16)
                to[number :: call.blocks] = data.view(-1, 16)[number :: call.blocks]
            self._flag_and_wait(call, number)

    def reduce(self, call, partial, out, bias, epilogue):
        part = call.chunk * partial.shape[1]
        rows = [rows_of(len(partial), call.world, r) for r in range(call.world)]
        sums = [partial[slice(*of)].reshape(-1) for of in rows]
        for number in range(call.blocks):
            self._enter(call, number)
            for turn in range(1, call.world):
                self._late()
                owner = (call.rank + turn) % call.world
                to = self._slot(call).data[owner].view(out.dtype)[call.rank * part :]
                mine = sums[owner]
                to[: len(mine)][number :: call.blocks] = mine[number :: call.blocks]
            self._flag_and_wait(call, number)
            self._late()
            here = self._slot(call).data[call.rank].view(out.dtype)
            of = [
                sums[r] if r == call.rank else here[r * part :][: out.numel()]
                for r in range(call.world)
            ]
            out.view(-1)[number :: call.blocks] = sum(x[number :: call.blocks] for x in of)


def run_model(world, calls, skip, seed, replayed):
    """How many results of so many calls, by ranks of a thread each, were wrong or did not come."""
    pool, right = {}, []
    ranks = [Rank(Here(r, world, pool), timeout_s=0.2 if skip else 20) for r in range(world)]
    M, K = 13 * world - 2, 4
    b = torch.eye(K, dtype=torch.float32)

    def work(r):
        of = Model(ranks, random.Random(100 * seed + r), skip)
        first, last = rows_of(M, world, r)
        for number in range(calls):
            op = OPS[number // 3 % 2]
            out = torch.full((M if op == OPS[0] else last - first, K), float("nan"))
            value = 100.0 * number + r
            with suppress(PeerError):
                if op == OPS[0]:
                    a = torch.full((last - first, K), value)
                    one_shot.all_gather_matmul(ranks[r], of, multiply, a, b, out, M, False)
                    owners = torch.arange(M) // chunk_of(M, world)
                    wanted = (100.0 * number + owners)[:, None].expand(M, K)
                else:
                    a = torch.full((M, K), value)
                    one_shot.matmul_reduce_scatter(
                        ranks[r], of, multiply, a, b, out, False, None, ""
                    )
                    wanted = torch.full_like(out, sum(100.0 * number + s for s in range(world)))
                right.append(torch.equal(out, wanted))
            if replayed:
                ranks[r].memory._calls = 0

    in_threads(work, world)
    return world * calls - right.count(True)


@pytest.mark.parametrize("replayed", [False, True])
def test_no_rank_overwrites_what_a_slower_one_still_reads(replayed):
    assert run_model(3, 12, "", 1, replayed) == 0


@pytest.mark.parametrize("skip", ["done", "flags"])
def test_without_either_wait_results_are_wrong(skip):
    """So the delays above do find a protocol that is not one."""
    assert any(run_model(3, 12, skip, seed, replayed=True) for seed in range(5))


# Launches on a GPU, without one.


def test_a_launch_is_recorded_once_for_each_kind_of_call(monkeypatch):
    run, launched, again = kernels(), [], []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **constants: launched.append((grid, args, constants))

    def record(compiled, step, addresses, room, ahead):
        return lambda stream, there: again.append((stream, there))

    starting = import_module("tcgemm.triton_kernels.overlap.run")
    monkeypatch.setattr(starting, "INTERPRETED", False)
    monkeypatch.setattr(starting, "record", record)
    monkeypatch.setattr(run, "check", lambda like: None)
    monkeypatch.setattr(run.one_shot, "push", Kernel())
    monkeypatch.setattr(run.one_shot, "reduce", Kernel())
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    rank = ranks_in_turns(2)[0]
    a, b, out = torch.ones(8, 8).half(), torch.ones(8, 8).half(), torch.empty(16, 8).half()
    for _ in range(6):  # each slot has kinds of its own
        one_shot.all_gather_matmul(rank, run, multiply, a, b, out, 16, False)
    assert len(launched) == 2
    assert len(again) == 4
    (grid, args, constants), *_ = launched
    assert (grid, args[2:9]) == ((1,), (8, 1, 8, 0, rank.kinds and 1 << 16, 16, -32))
    assert constants["WORLD"] == constants["LANES"] == 2
    calls = list(rank.kinds.values())
    assert again[0] == (7, (a.data_ptr(), 0, *calls[0].addresses))
    assert again[1] == (7, (a.data_ptr(), 0, *calls[1].addresses))
    places = {t.data_ptr() for t in args if isinstance(t, torch.Tensor)}
    assert places <= {a.data_ptr(), *calls[0].addresses}
    launched.clear()
    again.clear()
    mine = torch.empty(8, 8).half()
    off = torch.empty(65).half()[1:].view(8, 8)  # another alignment is another kernel
    for to in (mine, mine, mine, mine, off, off, off, off):
        one_shot.matmul_reduce_scatter(rank, run, multiply, torch.ones(16, 8).half(), b, to,
                                       False, None, "")  # fmt: skip
    assert len(launched) == len(again) == 4


@pytest.mark.exhaustive
def test_what_the_compiler_makes_of_the_kernels():
    """For sm_90: stores and loads of 16 bytes, and the memory order that the protocol rests on."""
    done = compiling.run(str(Path(__file__).with_name("overlap_compile.py")), "one_shot")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 5
    for name, made in found.items():
        assert made["spill_bytes"] == 0, name
        assert made["registers"] <= 128, name  # 512 threads of a block
        order = re.findall(
            r"[ls][td]\.global\.v4|st\.global|bar\.sync|atom\.global\.\w+\.\w+|fence\.proxy|trap",
            made["ptx"],
        )
        # Stores, a barrier of the block, and only then the release by threads of one warp. Another
        # release tells the peers of earlier calls, and no store of this kernel.
        releases = [at for at, what in enumerate(order) if what == "atom.global.sys.release"]
        assert len(releases) == 2, name
        (release,) = (at for at in releases if order[at - 1] == "bar.sync")
        assert order.count("trap") == 2, name
        first = order.index("atom.global.sys.acquire")  # peers are done with the slot
        stores = [at for at, what in enumerate(order) if what == "st.global.v4"]
        flags = order.index("atom.global.sys.acquire", release)
        assert first < stores[0] < release < flags, name
        assert "ld.global.v4" in order[:first], name  # on its way meanwhile
        if name.startswith("push"):
            assert not [at for at in stores if at > release], name
            assert flags < order.index("fence.proxy"), name
        else:
            assert release < stores[-1], name
