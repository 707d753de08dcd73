#!/usr/bin/env python3
"""Overlapped and one-shot products on the GPUs of one host: are they right, how long they take.

    torchrun --nproc-per-node 2 scripts/overlap_gpus.py check          # a minute
    torchrun --nproc-per-node 2 scripts/overlap_gpus.py drawn          # 2,000 calls, a minute
    torchrun --nproc-per-node 2 scripts/overlap_gpus.py time           # a minute
    torchrun --nproc-per-node 2 scripts/overlap_gpus.py trace          # what a call is made of

``check`` compares with float64 of the gathered operands, with slots full of NaN, over sizes that do
not divide by ranks or tiles; three calls give the same bits; so do calls from two streams, a
captured graph replayed with other operands, and ranks that begin at random times. In debug mode: a
wait that is too long is an error that names rank and part. Ends with 1 where anything is wrong.

``drawn`` makes ``--drawn`` calls of drawn sizes, dtypes and epilogues, of both products in turns,
from two streams and behind random delays on random ranks. Operands are whole numbers whose sums are
exact, so a result is right to the bit or wrong.

``time``: the local product, NCCL alone, both in sequence, ours, and ours over the longer of product
and transfer. They take turns behind a barrier of all ranks, with nothing of theirs in the L2; the
slowest rank counts, and the median over rounds. ``tcgemm bench --several`` times all contenders.

``--way one_shot`` checks and times the one-shot way, ``--backend`` being that of its local product;
``--way mixed`` has ``drawn`` draw a way for each call.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from statistics import median
from typing import Any

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist
from overlap_drawn import drawn_calls, rank_and_world, say, scaled

import tcgemm.dist.overlap as overlap
from tcgemm import dist as products
from tcgemm.accuracy import error_ratio
from tcgemm.bench.several.contenders import sampler, slowest
from tcgemm.bench.several.pairing import take_rounds
from tcgemm.dist import model as times_model
from tcgemm.dist.calls import gpu_of
from tcgemm.dist.groups import ranks_of
from tcgemm.dist.options import ALL_GATHER, REDUCE_SCATTER, Options
from tcgemm.dist.overlap import plan as planning
from tcgemm.dist.overlap import protocol
from tcgemm.dist.overlap.times import LINK_BYTES_PER_US, gather_us, scatter_us, sent_us
from tcgemm.dist.planning import ONE_SHOT, OVERLAPPED
from tcgemm.dist.rows import chunk_of, rows_of
from tcgemm.problem import Fusion

EARLY, TURNS = -1, -2

SIZES = ((512, 1024, 512), (1000, 1032, 264), (4096, 2048, 1024), (333, 264, 72), (2, 64, 64))
"""M, N, K of a rank: whole tiles, parts of tiles, odd shares of rows, fewer rows than tiles."""

OTHER_WAYS = {
    "triton": [(REDUCE_SCATTER, parts) for parts in (1, 3, EARLY)],
    "cuda": [(REDUCE_SCATTER, TURNS)],
}
"""Backend -> products that no plan takes unasked: see Case.plan_with."""

LAYERS = (("8B", 4096, 14336, 6144), ("70B", 8192, 28672, 10240))
"""Llama's hidden size, feed-forward size and rows of the fused projection of q, k and v."""


class Case:
    """A product's operands on this rank, and the same of all ranks for the reference."""

    way = OVERLAPPED

    def __init__(self, op: str, M: int, N: int, K: int, dtype: torch.dtype, seed: int) -> None:
        self.op, (self.rank, world) = op, rank_and_world()
        draw = torch.Generator("cuda").manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=draw, device="cuda").to(dtype)

        self.rows = rows_of(M, world, self.rank)
        pairs = 1 if op == ALL_GATHER else world
        self.all = [(normal(M, K), normal(N, K).mT) for _ in range(pairs)]
        self.bias = normal(N)
        a, b = self.all[0 if op == ALL_GATHER else self.rank]
        self.a, self.b = (a[slice(*self.rows)] if op == ALL_GATHER else a).clone(), b
        height = M if op == ALL_GATHER else self.rows[1] - self.rows[0]
        self.out = torch.full((height, N), float("nan"), dtype=dtype, device="cuda")
        self.M = M
        self.plan: planning.OverlapPlan | None = None

    def plan_with(self, parts: int) -> None:
        """Have copy engines carry partial sums, in so many parts; 0: as is planned; or EARLY, or
        TURNS: in CUDA own tiles come among the others, two at a time."""
        M, (K, N), world = self.M, self.b.shape, dist.get_world_size()
        if parts == EARLY:
            plan = overlap._plan(self.op, M, N, K, world, Options("triton"), self.b)
            self.plan = replace(plan, early=True, wide=True)
        elif parts == TURNS:
            plan = overlap._plan(self.op, M, N, K, world, Options("cuda"), self.b)
            self.plan = replace(plan, turn=2, lag=1)
        elif parts:
            self.plan = planning.carried_plan(M, N, world, parts)

    def run(self, backend: str, debug: bool = False, fused: bool = True) -> torch.Tensor:
        if self.way == ONE_SHOT:
            gathers = self.op == ALL_GATHER
            product = products.all_gather_matmul if gathers else products.matmul_reduce_scatter
            return product(
                self.a, self.b, bias=self.bias if fused else None,
                epilogue="gelu" if fused else None, out=self.out, backend=backend, way=self.way,
                debug=debug,
            )  # fmt: skip
        asked = Options(
            backend,
            bias=self.bias if fused else None,
            epilogue="gelu" if fused else "",
            debug=debug,
            rows=self.M,
            plan=self.plan,
        )
        reason = overlap.why_not(self.op, self.a, self.b, dist.group.WORLD, asked)
        if reason is not None:
            raise SystemExit(f"the engine refuses {self.op}: {reason}")
        product = (
            overlap.all_gather_matmul if self.op == ALL_GATHER else overlap.matmul_reduce_scatter
        )
        return product(self.a, self.b, self.out, dist.group.WORLD, asked)

    def error(self, fused: bool = True) -> float:
        """Worst ratio of error to bound. Of a sum over ranks, with a rounding of each partial sum:
        the bound of the whole product has none of it, so it is added here."""
        if self.op == ALL_GATHER:
            fusion = Fusion(bias=self.bias, epilogue="gelu") if fused else Fusion()
            return error_ratio(*self.all[0], self.out, fusion)
        if not self.out.shape[0]:
            return 0.0
        rows = slice(*self.rows)
        exact = [a[rows].double() @ b.double() for a, b in self.all]
        sizes = sum(a[rows].double().abs() @ b.double().abs() for a, b in self.all)
        K = sum(a.shape[1] for a, _ in self.all)
        total = sum(exact) + (self.bias.double() if fused else 0)
        unit = torch.finfo(self.out.dtype).eps / 2
        slack = 2 * K**0.5 * 2**-23 * sizes + unit * sum(x.abs() for x in exact)
        if fused:  # gelu's slope is at most 1.13
            total, slack = torch.nn.functional.gelu(total), 1.13 * slack + 1e-6
        slack = slack + unit * total.abs() + 2**-25
        return float(((self.out.double() - total).abs() / slack).nan_to_num(1e9).max())


def poison() -> None:
    """NaN into every slot, once nobody uses them."""
    dist.barrier()
    torch.cuda.synchronize()
    for _, rank in overlap._ranks.values():
        for slot in rank.memory.slots:
            if slot.data:
                slot.data[rank.transport.rank].fill_(255)
    torch.cuda.synchronize()
    dist.barrier()


def check(backend: str, seed: int, drawn: int) -> int:
    """How many results were wrong here; ``drawn``: products of 8-bit floats."""
    rank, _ = rank_and_world()
    own, wrong = random.Random(seed + rank), 0

    def judge(case: Case, what: str, fused: bool = True) -> None:
        nonlocal wrong
        worst = case.error(fused)
        ratio = torch.tensor([worst], device="cuda")
        dist.all_reduce(ratio, dist.ReduceOp.MAX)
        wrong += not ratio.item() <= 1
        M, N = case.M, case.out.shape[1]
        plan, dtype = str(case.plan), str(case.out.dtype)
        say(
            check=what,
            way=case.way,
            op=case.op,
            plan=plan,
            M=M,
            N=N,
            dtype=dtype,
            ratio=ratio.item(),
        )

    others = OTHER_WAYS.get(backend, []) if Case.way == OVERLAPPED else []
    products_here = (ALL_GATHER, 0), (REDUCE_SCATTER, 0), *others
    for op, parts in products_here:
        for i, (M, N, K) in enumerate(SIZES):
            case = Case(op, M, N, K, (torch.bfloat16, torch.float16)[i % 2], seed + i)
            case.plan_with(parts)
            case.run(backend, debug=True, fused=False)  # in debug mode first: no hang is for ever
            judge(case, "debug", fused=False)
            poison()
            before = None
            for _ in range(3):
                torch.cuda._sleep(own.randrange(0, 3_000_000))
                case.out.fill_(float("nan"))
                case.run(backend)
                wrong += before is not None and not torch.equal(before, case.out)
                before = case.out.clone()
            judge(case, "three calls, delayed")
            wrong += from_streams(case, backend, own)
    # Once a graph was captured no call goes ahead without ``enter``: those before this did.
    for op, parts in products_here:
        wrong += replay(op, backend, seed, own, parts)
        wrong += from_streams(case, backend, own)
    if backend != "cuda" or Case.way == ONE_SHOT:  # CUDA overlaps no 8-bit floats
        wrong += sum(scaled(backend, seed + i, Case.way) for i in range(drawn))
    return wrong


def from_streams(case: Case, backend: str, own: random.Random) -> int:
    """Calls from two streams in turns, each delayed: how many results differ here."""
    torch.cuda.synchronize()
    before, streams, found = case.out.clone(), [torch.cuda.Stream() for _ in range(2)], []
    for i in range(6):
        with torch.cuda.stream(streams[i % 2]):
            torch.cuda._sleep(own.randrange(0, 3_000_000))
            found.append(case.run(backend).clone())
    torch.cuda.synchronize()
    return sum(not torch.equal(before, each) for each in found)


def replay(op: str, backend: str, seed: int, own: random.Random, parts: int) -> int:
    """A graph of two calls, replayed with other operands, behind delays that differ by rank."""
    case, wrong = Case(op, 1024, 1024, 512, torch.bfloat16, seed), 0
    case.plan_with(parts)
    case.run(backend)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        case.run(backend)
        case.run(backend)
    for i in range(5):
        other = Case(op, 1024, 1024, 512, torch.bfloat16, seed + 100 + i)
        case.a.copy_(other.a)
        case.b.copy_(other.b)
        case.bias.copy_(other.bias)
        case.all, case.out[:] = other.all, float("nan")
        torch.cuda._sleep(own.randrange(0, 3_000_000))
        graph.replay()
        worst = torch.tensor([case.error()], device="cuda")
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        say(check="graph", op=op, replay=i, ratio=worst.item())
        wrong += not worst.item() <= 1
    case.run(backend)  # and a call after it
    torch.cuda.synchronize()
    return wrong + (not case.error() <= 1)


def milliseconds(launches: dict[str, Callable[[], Any]], rounds: int = 15) -> dict[str, float]:
    """Of each the median over rounds, in which all take turns and the slowest rank counts."""
    ranks, device = ranks_of(), torch.device("cuda", torch.cuda.current_device())
    samplers = {name: sampler(launch, ranks) for name, launch in launches.items()}
    for sample in samplers.values():
        sample()
    times = take_rounds(samplers, rounds, slowest(ranks, device))
    return {name: median(of) for name, of in times.items()}


def layers(sizes: list[int]) -> Any:
    """(name, op, M, N, K) as a rank multiplies: qkv and up gather, o and down scatter."""
    _, world = rank_and_world()
    for model, hidden, wide, qkv in LAYERS:
        for M in sizes:
            yield f"{model} qkv", ALL_GATHER, M, qkv // world, hidden
            yield f"{model} up", ALL_GATHER, M, 2 * wide // world, hidden
            yield f"{model} o", REDUCE_SCATTER, M, hidden, hidden // world
            yield f"{model} down", REDUCE_SCATTER, M, hidden, wide // world


def timed(backend: str, sizes: list[int]) -> None:
    rank, world = rank_and_world()
    for name, op, M, N, K in layers(sizes):
        case = Case.__new__(Case)
        case.op, case.M, case.rank, case.rows = op, M, rank, rows_of(M, world, rank)
        case.plan = None
        height = chunk_of(M, world)
        normal = lambda *shape: torch.randn(shape, device="cuda").bfloat16()  # noqa: E731
        case.b, case.bias = normal(N, K).mT, None
        plan = overlap._plan(op, M, N, K, world, Options(backend), case.b)
        whole = normal(M, K)
        product = torch.empty(M, N, dtype=torch.bfloat16, device="cuda")
        if op == ALL_GATHER:
            case.a, case.out = normal(height, K), torch.empty_like(product)
            moved = (world - 1) * height * K * 2
            nccl = lambda w=whole, a=case.a: dist.all_gather_into_tensor(w, a)  # noqa: E731
            first, second = nccl, lambda: torch.mm(whole, case.b, out=product)  # noqa: B023
            predicted = gather_us(plan, N, K, world)
        else:
            case.a = whole
            case.out = torch.empty(height, N, dtype=torch.bfloat16, device="cuda")
            moved = (world - 1) * height * N * 2
            nccl = lambda o=case.out, p=product: dist.reduce_scatter_tensor(o, p)  # noqa: E731
            first, second = lambda: torch.mm(whole, case.b, out=product), nccl  # noqa: B023
            predicted = (sent_us if backend == "cuda" else scatter_us)(plan, N, K, world)
        if case.way == ONE_SHOT:
            host = times_model.Host(gpu_of(case.b.device))
            times = times_model.times(op, M, N, K, "bfloat16", world, host)
            predicted = times.one_shot_us if times else float("nan")
        ms = milliseconds({
            "gemm": lambda: torch.mm(whole, case.b, out=product),  # noqa: B023
            "nccl": nccl,
            "sequence": lambda: (first(), second()),  # noqa: B023
            "ours": lambda: case.run(backend, fused=False),  # noqa: B023
        })  # fmt: skip
        limit = max(ms["gemm"], moved / LINK_BYTES_PER_US / 1e3)
        say(
            layer=name, way=case.way, op=op, world=world, backend=backend, M=M, N=N, K=K,
            **{f"{what}_ms": taken for what, taken in ms.items()}, predicted_ms=predicted / 1e3,
            ratio_nccl=ms["sequence"] / ms["ours"], limit_ms=limit, of_limit=limit / ms["ours"],
        )  # fmt: skip


def trace(backend: str, sizes: list[int]) -> None:
    """The kernels and copies of a call on each rank: when they begin, how long they take."""
    rank, _ = rank_and_world()
    for op in (ALL_GATHER, REDUCE_SCATTER):
        case = Case(op, sizes[0], 4096, 4096, torch.bfloat16, 0)
        for _ in range(3):
            case.run(backend, fused=False)
        torch.cuda.synchronize()
        dist.barrier()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            case.run(backend, fused=False)
            torch.cuda.synchronize()
        events = sorted(
            (e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA),
            key=lambda e: e.time_range.start,
        )
        begin = events[0].time_range.start if events else 0
        for event in events:
            at, took = event.time_range.start - begin, event.time_range.elapsed_us()
            print(f"rank {rank} {op} {event.name[:40]:40} at {at:8.1f} us for {took:8.1f} us")
        dist.barrier()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("check", "drawn", "time", "trace"))
    parser.add_argument("--backend", default="triton", choices=(*overlap.BACKENDS, "auto"))
    parser.add_argument("--way", default=OVERLAPPED, choices=(OVERLAPPED, ONE_SHOT, "mixed"))
    parser.add_argument("--blocks", type=int, help="of a one-shot kernel, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[512, 4096, 8192], help="values of M"
    )
    parser.add_argument(
        "--drawn", type=int, help="calls of drawn (2000); of check, products of 8-bit floats (8)"
    )
    parser.add_argument("--spare-sms", type=int, default=0, help="that grids leave free")
    arguments = parser.parse_args()
    if arguments.way == "mixed" and arguments.what != "drawn":
        parser.error("--way mixed is for drawn alone")
    protocol.SPARE_SMS = arguments.spare_sms
    Case.way = arguments.way
    if arguments.blocks:
        kernels: Any = import_module(overlap.ONE_SHOT_KERNELS)
        kernels.MOST_BLOCKS = arguments.blocks
    here = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(here)
    dist.init_process_group("nccl", device_id=torch.device("cuda", here))
    wrong = 0
    if arguments.backend == "cuda" and here == 0:  # before anything waits for a compiler
        fused = "relu" if arguments.what == "drawn" else "gelu"
        overlap.prepare(["cuda"], (torch.bfloat16, torch.float16), ("", fused))
    dist.barrier()
    try:
        if arguments.what in ("check", "drawn"):
            drawn = {"check": 8, "drawn": 2000}[arguments.what]
            drawn = drawn if arguments.drawn is None else arguments.drawn
            if arguments.what == "check":
                wrong = check(arguments.backend, arguments.seed, drawn)
            else:
                ways = (OVERLAPPED, ONE_SHOT, "sequence")
                ways = ways if arguments.way == "mixed" else (arguments.way,)
                wrong = drawn_calls(arguments.backend, arguments.seed, drawn, ways)
            count = torch.tensor([wrong], device="cuda")
            dist.all_reduce(count)
            wrong = int(count.item())
            say(wrong=wrong)
        else:
            {"time": timed, "trace": trace}[arguments.what](arguments.backend, arguments.rows)
    finally:
        dist.destroy_process_group()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
