"""Products that hide their communication, without a GPU: the protocol with several ranks in one
process, the kernels in Triton's interpreter, and processes that share a file."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import threading
import time
import traceback
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import compiling
import pytest
import torch

from tcgemm.accuracy import error_ratio
from tcgemm.dist import overlap
from tcgemm.dist.options import REDUCE_SCATTER, Options
from tcgemm.dist.overlap import plan as planning
from tcgemm.dist.overlap import protocol, times, transports
from tcgemm.dist.overlap.memory import SLOTS, copy_here
from tcgemm.dist.overlap.protocol import Rank
from tcgemm.dist.overlap.transports import GpuTransport
from tcgemm.dist.planning import MOST_TILES
from tcgemm.dist.rows import rows_of
from tcgemm.errors import PeerError
from tcgemm.problem import Fusion


class Here:
    """Ranks in one process: what one shares is there for all. Copies happen at once, or late."""

    device = torch.device("cpu")

    def __init__(self, rank: int, world: int, pool: dict, late=lambda: None) -> None:
        self.rank, self.world, self._pool, self._late = rank, world, pool, late
        self._shared = 0
        self._copies: list[threading.Thread] = []

    def share(self, size):
        key, self._shared = (self._shared, size), self._shared + 1
        made = [torch.zeros(size, dtype=torch.uint8) for _ in range(self.world)]
        return self._pool.setdefault(key, made)

    def follow(self):
        pass

    def fork(self):
        self._queue = []

    def copy(self, to, source, begin=0):
        self._late()
        copy_here(to, source, begin)

    def flag(self, to, value, last):
        self._late()
        to.fill_(value)

    def beside(self):
        return nullcontext()

    def join(self):
        pass

    def capturing(self):
        return False

    def synchronize(self):
        pass


def test_calls_from_several_streams_follow_one_another(monkeypatch):
    """Else the uses of a slot would be counted in the order in which streams come to them."""

    class Stream:
        def __init__(self):
            self.after = []

        def wait_stream(self, other):
            self.after.append(other)

    one, other = Stream(), Stream()
    transport = GpuTransport.__new__(GpuTransport)
    transport.device, transport._calls_on = torch.device("cuda"), None
    captured = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    for stream in (one, one, other, other, one):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, it=stream: it)
        transport.follow()
    assert (one.after, other.after) == ([other], [one])
    captured = True
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: other)
    transport.follow()
    assert other.after == [one]


def triton_kernels():
    return import_module("tcgemm.triton_kernels.overlap.run")


def options(**more):
    return Options("triton", **more)


# What is planned.


def test_parts_cover_the_rows_of_every_rank_once():
    draw = random.Random(0)
    for _ in range(200):
        world, M = draw.randint(2, 8), draw.randint(1, 5000)
        tile = draw.choice([*planning.TILES, *planning.INTERPRETED])
        plan = planning.in_parts(tile, -(-M // world), draw.randint(1, planning.MOST_PARTS))
        assert 1 <= plan.parts <= planning.MOST_PARTS
        covered = 0
        for rank in range(world):
            first, behind = rows_of(M, world, rank)
            at = 0
            for part, begin, end in plan.part_rows(behind - first):
                assert begin == at
                assert begin == part * plan.part_tiles * tile.BLOCK_M
                assert part < plan.parts
                at = end
            assert at == behind - first
            covered += at
        assert covered == M


# The protocol, with kernels of torch's, ranks as threads and delays where they do harm.


def tell_done(ranks, call):
    """Every peer's ``done``: all calls before this one have ended here."""
    for peer in range(call.world):
        if peer != call.rank:
            ranks[peer].memory.slots[0].done[call.rank] = int(call.epoch)


class Model:
    """Kernels as plain Python: they look at the same flags and memory as the real ones."""

    looks_per_s = 2000
    AWAITS = False

    def __init__(self, ranks, draw, skip=""):
        self.ranks, self.draw, self.skip = ranks, draw, skip

    def _wait(self, flag, epoch, call, source, part):
        for _ in range(call.limit):
            if int(flag) == epoch or (part < 0 and int(flag) > epoch):
                return
            time.sleep(0.0005)
        call.trouble.copy_(torch.tensor([1, source, part, epoch]))

    def _late(self):
        if self.draw.random() < 0.3:
            time.sleep(self.draw.random() * 0.004)

    def enter(self, call):
        tell_done(self.ranks, call)
        self._late()
        for peer in range(call.world):
            if peer != call.rank and self.skip != "enter":
                self._wait(call.done[peer], int(call.last), call, peer, -1)
        call.epoch.add_(1)
        call.last.copy_(call.epoch)

    fails = False

    def gather(self, own, gathered, b, out, bias, epilogue, call, plan):
        if self.fails:
            raise MemoryError
        if call.begins:
            tell_done(self.ranks, call)
            call.epoch.add_(1)
            call.last.copy_(call.epoch)
        M, now = out.shape[0], int(call.epoch)
        for step in range(call.world):
            source = (call.rank - step) % call.world
            first, behind = rows_of(M, call.world, source)
            for part, begin, end in plan.part_rows(behind - first):
                self._late()
                if step and self.skip != "wait":
                    flag = call.flags[source * call.most + part]
                    self._wait(flag, now, call, source, part)
                rows = gathered[source * plan.chunk :] if step else own
                out[first + begin : first + end] = rows[begin:end] @ b


def in_threads(work, world):
    """``work(rank)`` of each rank, at the same time; none takes longer than a minute."""
    threads = [threading.Thread(target=work, args=(r,)) for r in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def run_model(world, calls, skip, seed, replayed, M=None, fails=None):
    """As many calls by ranks of one thread each; how many results were wrong or did not come.
    ``fails``: a rank and a call whose product cannot be started.

    ``replayed``: all calls take one slot, as a graph of one call does that is replayed, and no host
    counts them.
    """
    draw, pool, results = random.Random(seed), {}, []

    def late():
        if draw.random() < 0.3:
            time.sleep(draw.random() * 0.003)

    ranks = [Rank(Here(r, world, pool, late), timeout_s=0.2 if skip else 10) for r in range(world)]
    M, K = 13 * world - 2 if M is None else M, 4
    tile = planning.Tile(4, 4, 4, 1, 1, 1, 1.0)
    plan = planning.in_parts(tile, -(-M // world), 3)
    b = torch.eye(K, dtype=torch.float64)

    def work(r):
        kernels = Model(ranks, random.Random(seed + r), skip)
        for call in range(calls):
            if replayed:
                ranks[r]._number = None
            first, behind = rows_of(M, world, r)
            a = torch.full((behind - first, K), 100.0 * call + r, dtype=torch.float64)
            out = torch.full((M, K), float("nan"), dtype=torch.float64)
            kernels.fails = (r, call) == fails
            with suppress(PeerError, MemoryError):
                ranks[r].gather(kernels, a, b, out, plan, options())
            if replayed:
                ranks[r].memory._calls = 0
            a.fill_(-1)  # the call has ended: its operand is the caller's again
            owners = torch.arange(M) // plan.chunk
            right = torch.equal(out, (100.0 * call + owners)[:, None].expand(M, K).double())
            results.append(right)

    in_threads(work, world)
    return world * calls - results.count(True)


@pytest.mark.parametrize("replayed", [False, True])
def test_no_rank_overwrites_what_a_slower_one_still_reads(replayed):
    assert run_model(3, 12, "", 1, replayed) == 0


def test_a_rank_whose_product_cannot_be_started_stays_in_step():
    """Its peers count the call, for which it has sent its rows."""
    assert run_model(3, 8, "", 3, False, fails=(1, 4)) == 1


def test_where_a_rank_has_no_rows_no_call_goes_ahead():
    """Nobody waits for it, so it may still read its slot of the call before last."""
    assert run_model(3, 40, "", 2, False, M=2) == 0


def test_calls_that_go_ahead_of_one_that_waits_for_nobody_are_wrong(monkeypatch):
    """So the delays do find a slot that was taken for free, and was not."""
    monkeypatch.setattr(protocol, "all_have_rows", lambda M, world, plan: True)
    assert any(run_model(3, 40, "", seed, False, M=2) for seed in range(5))


@pytest.mark.parametrize("skip", ["enter", "wait"])
def test_without_either_wait_results_are_wrong(skip):
    """So the delays above do find a protocol that is not one."""
    assert any(run_model(3, 12, skip, seed, replayed=True) for seed in range(5))


# The kernels, interpreted, with ranks that take their steps in turns.


def ranks_in_turns(world, timeout_s=1.0):
    pool = {}
    return [Rank(Here(r, world, pool), timeout_s) for r in range(world)]


def gather_in_turns(ranks, a, b, plan, asked, poison=False):
    world, M = len(ranks), a.shape[0]
    outs = [torch.full((M, b.shape[1]), float("nan"), dtype=a.dtype) for _ in ranks]
    shards = [a[slice(*rows_of(M, world, r))].clone() for r in range(world)]
    kernels = triton_kernels()
    steps = [
        rank.gather_in_steps(kernels, shard, b, out, plan, asked)
        for rank, shard, out in zip(ranks, shards, outs, strict=True)
    ]
    for name in ("enter", "send", "product"):
        for rank, step in zip(ranks, steps, strict=True):
            assert next(step) == name
            if name == "enter" and poison:  # NaN in every dtype, where nothing has arrived yet
                for slot in rank.memory.slots:
                    slot.data[rank.transport.rank].fill_(255)
        if name == "send":
            for shard in shards if poison else ():
                assert not shard.isnan().any()
    for step in steps:  # and that no wait was given up
        assert next(step, None) is None
    return outs


@pytest.mark.parametrize(
    ("world", "M", "dtype"),
    [
        (2, 70, torch.bfloat16),
        pytest.param(3, 40, torch.bfloat16, marks=pytest.mark.exhaustive),
        pytest.param(2, 130, torch.float16, marks=pytest.mark.exhaustive),
    ],
)
def test_the_gather_kernel_multiplies_rows_as_they_arrive(world, M, dtype):
    """M is no multiple of ranks or tiles; as many calls as take a slot a second time, each way."""
    N, K = 24, 48
    ranks, plan = ranks_in_turns(world), planning.gather_plan(M, N, K, world, planning.INTERPRETED)
    assert plan.parts == min(2, -(-plan.chunk // 32))
    generator = torch.Generator().manual_seed(M)
    for call in range(3 * SLOTS + 2):
        if call == SLOTS + 1:
            for rank in ranks:
                rank._number = None  # as behind a capture: the other calls begin by ``enter``
        a = torch.randn(M, K, generator=generator).to(dtype)
        b = torch.randn(N, K, generator=generator).to(dtype).T
        b = b.contiguous() if call == 1 else b
        bias = torch.randn(N, generator=generator).to(dtype)
        asked = options(bias=bias, epilogue="gelu", rows=M)
        outs = gather_in_turns(ranks, a, b, plan, asked, poison=True)
        fusion = Fusion(bias=bias, epilogue="gelu")
        assert error_ratio(a, b, outs[0], fusion) <= 1
        assert all(torch.equal(outs[0], out) for out in outs)


def test_the_gather_kernel_says_whose_rows_did_not_come():
    world, M, N, K = 2, 128, 32, 32
    ranks, plan = (
        ranks_in_turns(world, 0.01),
        planning.gather_plan(M, N, K, world, planning.INTERPRETED),
    )
    a, b = torch.ones(M // 2, K).half(), torch.ones(K, N).half()
    out = torch.empty(M, N).half()
    with pytest.raises(PeerError, match="rank 0 of 2 waited in vain for rank 1: rows 1 did not"):
        ranks[0].gather(triton_kernels(), a, b, out, plan, options(rows=M))
    with pytest.raises(PeerError, match="an earlier call failed"):
        ranks[0].gather(triton_kernels(), a, b, out, plan, options(rows=M))


def test_a_call_goes_ahead_only_where_the_host_knows_its_number(monkeypatch):
    rank = ranks_in_turns(2)[0]

    def number():
        found = rank.begin(64, hears=True)[1]
        rank.end(False, "rows")
        return found

    assert [number(), number()] == [1, 2]
    rank.begin(64, hears=False)
    rank.end(False, "rows")
    assert [number(), number()] == [None, 5]  # the slot's last use was before a call of one's own
    rank.begin(64, hears=True)  # and fails
    assert [number(), number()] == [None, None]
    rank = ranks_in_turns(2)[0]
    assert number() == 1
    monkeypatch.setattr(rank.transport, "capturing", lambda: True)
    assert number() is None
    monkeypatch.setattr(rank.transport, "capturing", lambda: False)
    assert number() is None  # of how often the graph is replayed nothing is known here


def partial_sums(world, M, N, K, dtype, seed=0):
    """Operands of every rank, whole numbers so small that every sum is exact in any dtype."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randint(-2, 3, shape, generator=generator).to(dtype)  # noqa: E731
    return [(draw(M, K), draw(K, N)) for _ in range(world)]


def test_the_scatter_kernel_stores_at_owners_and_adds_in_the_order_of_ranks():
    """Rank 1 of 3, its peers' tiles in place beforehand: what it sends, and what it adds."""
    world, M, N, K = 3, 100, 40, 32
    ranks, plan = ranks_in_turns(world), planning.scatter_plan(M, N, world, planning.INTERPRETED)
    operands = partial_sums(world, M, N, K, torch.float16)
    sums = [a.double() @ b.double() for a, b in operands]
    me, (first, behind) = ranks[1], rows_of(M, world, 1)
    for rank in ranks:
        rank.memory.take(world * plan.chunk * N * 2)
    slot = me.memory.slots[1]  # the next
    size = world * plan.chunk * N * 2
    for rank in ranks:
        rank.memory.slots[1].data[rank.transport.rank].fill_(255)
    here = slot.data[1][:size].view(torch.float16).view(world, plan.chunk, N)
    for source in (0, 2):
        here[source, : behind - first] = sums[source][first:behind]
        at = slot.tiles_at + source * MOST_TILES
        slot.own[at : at + plan.tiles(N)] = 1
    out = torch.full((behind - first, N), float("nan"), dtype=torch.float16)
    bias = torch.randn(N).half()
    asked = options(bias=bias, epilogue="relu", rows=M)
    me.scatter(triton_kernels(), *operands[1], out, plan, asked)
    assert torch.equal(out, torch.relu(sum(sums)[first:behind] + bias).half())
    for owner in (0, 2):
        there = ranks[owner].memory.slots[1]
        sent = there.data[owner][:size].view(torch.float16).view(world, plan.chunk, N)
        begin, end = rows_of(M, world, owner)
        assert torch.equal(sent[1, : end - begin], sums[1][begin:end].half())
        assert sent[1, end - begin :].isnan().all()  # rows that the owner does not have
        assert sent[0].isnan().all()
        flags = there.own[there.tiles_at :][MOST_TILES : MOST_TILES + plan.tiles(N)]
        assert set(flags.tolist()) == {1} or end - begin < plan.chunk
        assert int(there.done[1]) == 0  # the next call tells it
    with pytest.raises(PeerError, match="tile"):  # whose tiles do not come
        me.scatter(triton_kernels(), *operands[1], out, plan, options(rows=M))
    assert all(int(ranks[owner].memory.slots[0].done[1]) == 1 for owner in (0, 2))


def test_every_tile_is_visited_once_in_the_order_of_parts():
    """place() of the kernel, in plain Python, over drawn grids."""
    place = import_module("tcgemm.triton_kernels.overlap.gather").place
    draw = random.Random(3)
    for _ in range(3):
        rows, cols, part_tiles = draw.randint(1, 4), draw.randint(1, 3), draw.randint(1, 3)
        seen = [
            tuple(map(int, visit(place, i, rows, cols, part_tiles))) for i in range(rows * cols)
        ]
        assert Counter((m, n) for _, m, n in seen) == Counter(
            (m, n) for m in range(rows) for n in range(cols)
        )
        assert [part for part, _, _ in seen] == sorted(part for part, _, _ in seen)
        assert all(part == m // part_tiles for part, m, _ in seen)


def visit(place, index, rows, cols, part_tiles):
    runtime = import_module("tcgemm.triton_kernels.host.runtime")
    tl, triton = runtime.tl, runtime.triton
    out = torch.zeros(3, dtype=torch.int32)
    namespace = {"tl": tl, "place": place}

    @triton.jit
    def probe(out, index, rows, cols, PART: tl.constexpr):
        part, m, n = place(index, rows, cols, PART, 2)
        tl.store(out, part)
        tl.store(out + 1, m)
        tl.store(out + 2, n)

    probe.fn.__globals__.update(namespace)
    probe[(1,)](out, index, rows, cols, part_tiles)
    return out.tolist()


# Processes.


def in_processes(world, work, *args, timeout_s=60):
    """``work(rank, world, *args)`` in a group of processes; their results, by rank."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    store = f"/tmp/tcgemm-test-{os.getpid()}-{time.monotonic_ns()}"

    def child(rank):
        import torch.distributed as dist

        torch.set_num_threads(1)
        try:
            dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world)
            results.put((rank, work(rank, world, *args)))
        except BaseException:
            results.put((rank, traceback.format_exc()))
        finally:
            results.close()
            results.join_thread()
            os._exit(0)

    children = [context.Process(target=child, args=(r,)) for r in range(world)]
    for each in children:
        each.start()
    try:
        return dict(results.get(timeout=timeout_s) for _ in children)
    finally:
        for each in children:
            each.kill()
            each.join()
        if os.path.exists(store):
            os.unlink(store)


def both_products(rank, world, M, calls, backend="triton"):
    import torch.distributed as dist

    import tcgemm.dist.overlap as overlap

    N, K, group = 40, 32, dist.group.WORLD
    draw = random.Random(rank)
    first, behind = rows_of(M, world, rank)
    wrong = []
    for call in range(calls):
        time.sleep(draw.random() * 0.2)
        dtype = (torch.float16, torch.bfloat16)[call % 2]
        generator = torch.Generator().manual_seed(call)
        a = torch.randint(-2, 3, (M, K), generator=generator).to(dtype)
        b = torch.randint(-2, 3, (K, N), generator=generator).to(dtype)
        asked = Options(backend, rows=M)
        assert overlap.why_not("all_gather", a[first:behind], b, group, asked) is None
        out = torch.full((M, N), float("nan"), dtype=dtype)
        overlap.all_gather_matmul(a[first:behind].clone(), b, out, group, asked)
        if not torch.equal(out, (a.double() @ b.double()).to(dtype)):
            wrong.append(("all_gather", call))
        operands = partial_sums(world, M, N, K, dtype, call)
        assert overlap.why_not("reduce_scatter", *operands[rank], group, asked) is None
        out = torch.full((behind - first, N), float("nan"), dtype=dtype)
        overlap.matmul_reduce_scatter(*operands[rank], out, group, asked)
        exact = sum(a.double() @ b.double() for a, b in operands)[first:behind]
        if not torch.equal(out, exact.to(dtype)):
            wrong.append(("reduce_scatter", call))
    return wrong


def test_two_processes_multiply_together():
    assert in_processes(2, both_products, 43, 2) == {0: [], 1: []}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("world", "M"), [(3, 70), (3, 2), (4, 133)])
def test_more_processes_multiply_together(world, M):
    assert in_processes(world, both_products, M, 4) == {r: [] for r in range(world)}


def carried_plan(M, N, world, parts):
    return planning.carried_plan(M, N, world, parts, planning.INTERPRETED)


def carried_sums(rank, world, M, calls, parts):
    """Partial sums that are copied to their owners; slots hold NaN before each call."""
    import torch.distributed as dist

    import tcgemm.dist.overlap as overlap

    N, K, group = 72, 32, dist.group.WORLD
    draw = random.Random(rank)
    first, behind = rows_of(M, world, rank)
    wrong = []
    for call in range(calls):
        for _, of in overlap._ranks.values():
            for slot in of.memory.slots:
                slot.data[rank].fill_(255)
                assert not slot.stored.any()
        dist.barrier()
        time.sleep(draw.random() * 0.2)
        operands = partial_sums(world, M, N, K, torch.bfloat16, call)
        bias = torch.arange(N).bfloat16()
        plan = None if call == 1 else carried_plan(M, N, world, parts)  # and another one between
        asked = Options("triton", rows=M, bias=bias, epilogue="relu", plan=plan)
        out = torch.full((behind - first, N), float("nan")).bfloat16()
        overlap.matmul_reduce_scatter(*operands[rank], out, group, asked)
        exact = sum(a.double() @ b.double() for a, b in operands)[first:behind] + bias.double()
        if not torch.equal(out, exact.relu().bfloat16()):
            wrong.append(call)
    return wrong


@pytest.mark.parametrize(
    ("world", "M", "parts"),
    [
        (2, 131, 2),
        pytest.param(2, 200, 4, marks=pytest.mark.exhaustive),
        pytest.param(3, 100, 1, marks=pytest.mark.exhaustive),
        pytest.param(3, 2, 4, marks=pytest.mark.exhaustive),
    ],
)
def test_partial_sums_may_be_carried_by_copies(world, M, parts):
    found = in_processes(world, carried_sums, M, 4, parts)
    assert found == {r: [] for r in range(world)}


def test_the_model_has_copies_carry_where_products_are_long_enough():
    def plan(M, N, K):
        return planning.scatter_plan(M, N, 2, K=K, carries=True)

    assert planning.scatter_plan(8192, 8192, 2, K=4096).carried == planning.CARRIES  # unasked
    assert not plan(512, 4096, 2048).carried
    for M in (2048, 4096, 8192, 16384):
        for N, K in ((4096, 2048), (4096, 7168), (8192, 4096), (8192, 14336)):
            found = plan(M, N, K)
            assert found.carried
            direct = planning.scatter_plan(M, N, 2, K=K, carries=False)
            moved = M // 2 * N * 2 / times.LINK_BYTES_PER_US
            saved = times.scatter_us(direct, N, K, 2) - times.scatter_us(found, N, K, 2)
            assert 0 < saved < moved + 1e-6
    # Partial sums that lie in the slot twice must find room there.
    assert not plan(1 << 18, 8192, 8192).carried


@pytest.mark.parametrize("op", ["gather", "scatter"])
def test_a_product_that_fails_leaves_no_copy_on_its_way(op, monkeypatch):
    """Flags are copied from this rank's count of calls, which the next call changes."""
    rank, joined, kernels = ranks_in_turns(2)[0], [], triton_kernels()
    monkeypatch.setattr(rank.transport, "join", lambda: joined.append(True))

    def fails(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(kernels, op, fails)
    plan = planning.in_parts(planning.INTERPRETED[0], 8, 1, carried=op == "scatter")
    a, b = torch.ones(8 if op == "gather" else 16, 16).half(), torch.ones(16, 8).half()
    out = torch.empty(24 - len(a), 8).half()
    with pytest.raises(RuntimeError, match="out of memory"):
        getattr(rank, op)(kernels, a, b, out, plan, options(rows=16))
    assert joined
    assert int(rank.memory.slots[0].epoch) == 1  # as a peer counts that did not fail


@pytest.mark.parametrize(
    ("callers", "copies", "flags"), [(0, -3, -2), (-1, -3, -2), (-2, -3, -1), (-3, -2, -1)]
)
def test_copies_and_flags_have_priorities_of_their_own(callers, copies, flags, monkeypatch):
    class Stream:
        cuda_stream = 0

        def __init__(self, device, priority=0):
            self.priority, self.waited = priority, []

        def wait_stream(self, other):
            self.waited.append(other)

        def wait_event(self, event):
            self.waited.append(event)

    class Event:
        def record(self, stream):
            self.behind = stream

    written = []
    driver = SimpleNamespace(cuStreamWriteValue32_v2=lambda *asked: written.append(asked) or 0)
    monkeypatch.setattr(transports, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "Event", Event)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    transport = GpuTransport(None, torch.device("cuda", 0))
    here = Stream(None, callers)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: here)
    transport.fork()
    assert transport._stream.priority == copies
    assert transport._stream.waited == [here]
    transport.join()
    assert here.waited == [transport._stream]
    # A flag is behind the copy that is ahead of it, and holds up none behind it.
    word = torch.zeros(1, dtype=torch.int32)
    transport.flag(word, -1, False)
    (copied,) = transport._flags.waited
    assert (transport._flags.priority, copied.behind) == (flags, transport._stream)
    assert written == [(0, word.data_ptr(), 0xFFFFFFFF, 0)]
    here.waited.clear()
    transport.join()
    assert here.waited == [transport._stream, transport._flags]
    # Behind the last copy it holds up none, and is there sooner in the copies' own stream.
    transport.fork()
    transport.flag(word, 5, True)
    transport.join()
    assert here.waited[2:] == [transport._stream]
    assert transport._flags.waited == [copied]


def test_where_streams_may_share_a_queue_nothing_is_carried(monkeypatch):
    """Copies behind a product would wait for its end, and it for the peers' copies."""

    def carried():
        like = torch.empty(0, dtype=torch.bfloat16)
        options = Options("triton")
        return overlap._plan(REDUCE_SCATTER, 8192, 8192, 4096, 2, options, like).carried

    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    assert carried() == planning.CARRIES
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert not carried()


def test_a_language_is_not_asked_for_what_it_does_not_do():
    import tcgemm.dist.overlap as overlap

    plan = replace(carried_plan(128, 32, 2, 2), early=True, wide=True)
    assert overlap._as_spoken(plan, "auto") == plan
    assert overlap._as_spoken(plan, "cuda") == planning.in_parts(plan.tile, plan.chunk, 2)


def test_a_carried_part_that_does_not_come_is_named():
    world, M, N, K = 2, 128, 32, 32
    ranks = ranks_in_turns(world, 0.01)
    operands = partial_sums(world, M, N, K, torch.float16)
    out = torch.empty(M // 2, N).half()
    plan = carried_plan(M, N, world, 2)
    with pytest.raises(PeerError, match="rank 0 of 2 waited in vain for rank 1: rows 1 did not"):
        ranks[0].scatter(triton_kernels(), *operands[0], out, plan, options(rows=M))


def without_a_peer(rank, world):
    """Rank 1 makes one call less: as if it had died."""
    import torch.distributed as dist

    import tcgemm.dist.overlap as overlap
    from tcgemm.dist.overlap import protocol

    protocol.DEBUG_TIMEOUT_S = 0.1
    N, K, M, group = 32, 32, 64, dist.group.WORLD
    a, b = torch.ones(M, K).half(), torch.ones(K, N).half()
    said = ""
    for _ in range(2 - rank):
        try:
            out = torch.empty(M // 2, N).half()
            overlap.matmul_reduce_scatter(a, b, out, group, options(rows=M, debug=True))
        except PeerError as error:
            said = str(error)
    return said


def test_a_rank_that_died_is_named():
    said = in_processes(2, without_a_peer)
    assert "rank 0 of 2 waited in vain for rank 1: tile 0 did not come" in said[0]
    assert said[1] == ""


def test_what_the_engine_refuses_it_refuses_in_numbers(monkeypatch):
    import tcgemm.dist.overlap as overlap

    monkeypatch.setattr(overlap.dist, "get_world_size", lambda group: group)
    a, b = torch.empty(8, 64).half(), torch.empty(64, 64).half()

    def said(a=a, b=b, world=2, op="all_gather", **more):
        asked = SimpleNamespace(
            **{
                "backend": "auto",
                "kernel": None,
                "rows": 16,
                "plan": None,
                "bias": None,
                "epilogue": "",
                **more,
            }
        )
        return overlap.why_not(op, a, b, world, asked)

    assert said() is None
    assert "one rank" in said(world=1)
    assert "9 ranks" in said(world=9)
    assert "'cublas'" in said(backend="cublas")
    assert "'naive'" in said(kernel="naive")
    assert "float32" in said(a=a.float(), b=b.float())
    assert "N=60" in said(b=torch.empty(64, 60).half())
    eight = [x.to(torch.float8_e5m2) for x in (a, b)]
    assert said(*eight) is None
    assert "overlap in triton and 'cuda' is named" in said(*eight, backend="cuda")
    assert "multiples of 16 and of 8" in said(a=eight[0][:, :56], b=eight[1][:56])
    assert "M=0" in said(rows=0)
    assert "bytes" in said(rows=1 << 30)


@pytest.mark.exhaustive
def test_what_the_compiler_makes_of_the_kernels():
    """For sm_90: wgmma that overlaps its loads, and the memory order that the protocol rests on."""
    done = compiling.run(str(Path(__file__).with_name("overlap_compile.py")))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name, made in found.items():
        assert not made["serialized"], name
        assert made["spill_bytes"] <= 128, name  # some bytes where peers' sums are added
        assert made["shared_bytes"] <= 232448, name
    for name, made in found.items():
        assert ("globaltimer" in made["ptx"]) == name.endswith("stamps"), name
    for name in ("gather 8 bits", "scatter 8 bits"):
        assert found[name]["counts"]["QGMMA"] > 0
    for tile in planning.TILES:
        gather = found[f"gather {tile.BLOCK_M}x{tile.BLOCK_N}"]
        scatter = found[f"scatter {tile.BLOCK_M}x{tile.BLOCK_N}"]
        carried = found[f"carried {tile.BLOCK_M}x{tile.BLOCK_N}"]
        early = found[f"early {tile.BLOCK_M}x{tile.BLOCK_N}"]
        for made in (gather, scatter, carried, early):
            assert made["counts"]["HGMMA"] == 2 * tile.BLOCK_K // 16
            assert made["counts"]["UTMALDG"] > 0
            assert "ld.global.sys.acquire" in made["ptx"]
            assert "trap;" in made["ptx"]
        # Tiles are multiplied, and no flag is set, before the kernel before has ended.
        assert early["ptx"].index("wgmma.mma_async") < early["ptx"].index("griddepcontrol.wait")
        assert early["ptx"].index("griddepcontrol.wait") < early["ptx"].index("atom.global")
        narrow = re.compile(r"st\.global\.b16")
        for name in ("wide", "early wide", "carried"):
            assert not narrow.search(found[f"{name} {tile.BLOCK_M}x{tile.BLOCK_N}"]["ptx"])
        # A wait, the block's barrier, the proxy fence, and only then the loads by TMA.
        order = re.findall(
            r"ld\.global\.sys\.acquire|fence\.proxy\.async;|bar\.sync|cp\.async\.bulk\.tensor",
            gather["ptx"],
        )
        last = len(order) - 1 - order[::-1].index("ld.global.sys.acquire")
        after = order[last:]
        fence, loads = after.index("fence.proxy.async;"), after.index("cp.async.bulk.tensor")
        assert after.index("bar.sync") < fence < loads
        # Stores, a barrier of the block, and only then the release by one thread.
        for made, scope in ((scatter, "sys"), (carried, "gpu")):
            released = re.finditer(rf"(atom|red)\.global\.{scope}\.release", made["ptx"])
            places = [m.start() for m in released]
            if made is scatter:  # the first tells the peers of earlier calls, with nothing stored
                assert "st.global" not in made["ptx"][: places.pop(0)]
            assert len(places) == 2
            for at in places:
                before = made["ptx"][:at]
                assert before.rindex("bar.sync") > max(before.rfind("st.global"), 0)
