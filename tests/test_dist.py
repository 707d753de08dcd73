"""Products over ranks: values, gradients, rows that do not divide, epilogues, errors, the plan.

The operands of all ranks are drawn on each, so that each knows the answer in float64.
"""

from __future__ import annotations

import os
import time
from importlib import import_module

import pytest
import ranks
import torch
from ranks import two_ranks  # noqa: F401

import tcgemm
from tcgemm.dist import rows
from tcgemm.epilogue import FUNCTIONS
from tcgemm.errors import OperandError, OperandTypeError, PeerError, UnsupportedError

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no distributed package"
)
OPS = ("all_gather", "reduce_scatter")
EPS = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 2**-20, torch.float64: 1e-14}


group = ranks.groups_of(2, 3)


def call(op, a, b, **asked):
    function = tcgemm.dist.all_gather_matmul
    if op == "reduce_scatter":
        function = tcgemm.dist.matmul_reduce_scatter
        asked.pop("rows")
    return function(a, b, **{"backend": "cublas", **asked})


class Drawn:
    """The operands of all ranks, and what one process makes of them in float64."""

    def __init__(self, op, rank, M, N, K, dtype, seed=0):
        self.op, self.world = op, torch.distributed.get_world_size()
        self.M, self.dtype, self.rank = M, dtype, rank
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

        if op == "all_gather":
            self.A, self.B = normal(M, K), [normal(K, N) for _ in range(self.world)]
        else:
            self.A = [normal(M, K) for _ in range(self.world)]
            self.B = [normal(K, N) for _ in range(self.world)]
        self.bias = torch.randn(N, generator=draw, dtype=torch.float64).to(
            dtype if dtype in EPS else torch.bfloat16
        )
        self.first, self.last = rows.rows_of(M, self.world, rank)

    def mine(self):
        if self.op == "all_gather":
            return self.A[self.first : self.last].clone(), self.B[self.rank].clone()
        return self.A[self.rank].clone(), self.B[self.rank].clone()

    def answer(self, bias=False, epilogue=""):
        """In float64, and the sum of absolute products, which bounds its error."""
        wide = torch.float64
        if self.op == "all_gather":
            pairs, of = [(self.A, self.B[self.rank])], slice(None)
        else:
            pairs, of = list(zip(self.A, self.B, strict=True)), slice(self.first, self.last)
        total = sum(a.to(wide) @ b.to(wide) for a, b in pairs)[of]
        size = sum(a.to(wide).abs() @ b.to(wide).abs() for a, b in pairs)[of]
        if bias:
            total = total + self.bias.to(wide)
        return FUNCTIONS[epilogue](total), size + 1


def check_values(rank, op, dtype, way):
    world = torch.distributed.get_world_size()
    for M in (1, 4, 6, 7):
        drawn = Drawn(op, rank, M, 4, 5, dtype, seed=M)
        a, b = drawn.mine()
        asked = {"rows": M, "way": way, "debug": M == 4}
        for bias, epilogue in ((False, ""), (True, ""), (True, "gelu"), (False, "relu")):
            got = call(op, a, b, bias=drawn.bias if bias else None, epilogue=epilogue, **asked)
            wanted, size = drawn.answer(bias, epilogue)
            assert got.shape == wanted.shape, (M, got.shape)
            eps = EPS.get(got.dtype, 0)
            worst = ((got.double() - wanted).abs() / size).max().item() if got.numel() else 0.0
            assert worst <= 2 * world * eps, (M, bias, epilogue, worst)
        out = torch.full_like(got, 7).T.contiguous().T
        assert call(op, a, b, out=out, epilogue="relu", **asked) is out
        assert torch.equal(out, got)
        again = call(op, a.T.contiguous().T, b.T.contiguous().T, epilogue="relu", **asked)
        assert torch.allclose(again.double(), got.double(), atol=50 * eps)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64,
                                   torch.float8_e4m3fn], ids=str)  # fmt: skip
def test_values(group, op, dtype):
    group(check_values, op, dtype, None)


def check_scales(rank):
    world = torch.distributed.get_world_size()
    dtype = torch.float8_e4m3fn
    for op in OPS:
        drawn = Drawn(op, rank, 5, 4, 16, dtype)
        a, b = drawn.mine()
        rows_of_a = torch.rand(5) + 0.5
        mine = rows_of_a[drawn.first : drawn.last] if op == "all_gather" else rows_of_a
        got = call(op, a, b, rows=5, scale_a=mine, scale_b=2.0, out_dtype=torch.float32)
        wanted, size = drawn.answer()
        of = slice(None) if op == "all_gather" else slice(drawn.first, drawn.last)
        wanted = wanted * 2 * rows_of_a.double()[of, None]
        assert ((got - wanted).abs() <= 3 * size * world * 2**-20).all()
    with pytest.raises(OperandError, match=r"rank \d of .*scale_a has shape \[1\]"):
        call("all_gather", torch.ones(2, 4).to(dtype), torch.ones(4, 4).to(dtype),
             rows=2 * world, scale_a=torch.ones(1))  # fmt: skip


def test_scales(group):
    group(check_scales)


def check_gradients(rank, op, epilogue, M):
    """Against one process: every rank's loss is the sum of its own result's weighted squares."""
    world = torch.distributed.get_world_size()
    drawn = Drawn(op, rank, M, 4, 3, torch.float64)
    a, b = (t.requires_grad_() for t in drawn.mine())
    bias = drawn.bias.clone().requires_grad_()
    call(op, a, b, rows=M, bias=bias, epilogue=epilogue).square().sum().backward()
    activation = FUNCTIONS[epilogue]
    one_bias = [drawn.bias.clone().requires_grad_() for _ in range(world)]
    if op == "all_gather":
        A = drawn.A.clone().requires_grad_()
        Bs = [t.clone().requires_grad_() for t in drawn.B]
        for B, of_rank in zip(Bs, one_bias, strict=True):
            activation(A @ B + of_rank).square().sum().backward()
        wanted = A.grad[drawn.first : drawn.last], Bs[rank].grad
    else:
        As = [t.clone().requires_grad_() for t in drawn.A]
        Bs = [t.clone().requires_grad_() for t in drawn.B]
        total = sum(A @ B for A, B in zip(As, Bs, strict=True))
        for r, of_rank in enumerate(one_bias):
            part = total[slice(*rows.rows_of(M, world, r))]
            activation(part + of_rank).square().sum().backward(retain_graph=True)
        wanted = As[rank].grad, Bs[rank].grad
    for name, got, want in zip("ab", (a.grad, b.grad), wanted, strict=True):
        assert got.shape == want.shape
        assert torch.allclose(got, want), name
    assert torch.allclose(bias.grad, one_bias[rank].grad)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("epilogue", "M"), [("", 6), ("relu", 7), ("silu", 5)])
def test_gradients_are_those_of_one_process(group, op, epilogue, M):
    group(check_gradients, op, epilogue, M)


def check_one_gradient(rank):
    """Only A's, only B's, of weights that lie by columns; and a derivative of the second order."""
    for op in OPS:
        drawn = Drawn(op, rank, 5, 4, 3, torch.float64)
        both = [t.requires_grad_() for t in drawn.mine()]
        call(op, *both, rows=5).square().sum().backward()
        for which in (0, 1):
            one = [t.detach().clone() for t in both]
            one[which].requires_grad_()
            call(op, *one, rows=5).square().sum().backward()
            assert torch.allclose(one[which].grad, both[which].grad)
            assert one[1 - which].grad is None
        weight = both[1].detach().T.contiguous().requires_grad_()
        call(op, both[0].detach(), weight.T, rows=5).square().sum().backward()
        assert weight.grad.is_contiguous()
        assert torch.allclose(weight.grad.T, both[1].grad)

        # The gradient of |gradient|^2: of a quadratic loss, so also by numbers.
        a, b = (t.detach().clone().requires_grad_() for t in both)
        (of_a,) = torch.autograd.grad(call(op, a, b, rows=5).square().sum(), a, create_graph=True)
        of_a.square().sum().backward()
        step = 1e-4
        shift = torch.zeros_like(b)
        shift[0, 0] = step if rank == 0 else 0.0
        sums = []
        for sign in (1, -1):
            moved = (b.detach() + sign * shift).requires_grad_(False)
            a_ = a.detach().clone().requires_grad_()
            (g,) = torch.autograd.grad(call(op, a_, moved, rows=5).square().sum(), a_)
            total = g.square().sum()
            torch.distributed.all_reduce(total)
            sums.append(total)
        if rank == 0:
            assert abs((sums[0] - sums[1]) / (2 * step) - b.grad[0, 0]) < 1e-4 * b.grad.abs().max()


def test_each_gradient_alone_and_the_second(group):
    group(check_one_gradient)


def check_errors(rank):
    world = torch.distributed.get_world_size()
    a, b, b4 = torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, 4)
    gather, scatter = tcgemm.dist.all_gather_matmul, tcgemm.dist.matmul_reduce_scatter
    who = f"rank {rank} of {world}: "
    for error, words, function in (
        (OperandError, "a_shard has shape .2, 3., 2 rows, and of 7", lambda: gather(a, b, rows=7)),
        (OperandError, "a_shard has shape .1, 2, 3.", lambda: gather(a[None], b)),
        (OperandError, "out has shape .3, 4., and of its 3 rows over 2 ranks this rank holds "
         f"{2 - rank}, where a_shard has shape .3, 3.: out has as many rows as all shards",
         lambda: gather(torch.ones(3, 3), b, out=torch.empty(3, 4))),
        (OperandError, "inner dimensions differ: A is .2, 3. and B is .2, 4.",
         lambda: scatter(a, b[:2])),
        (OperandError, "bias has shape .3.", lambda: gather(a, b, bias=torch.ones(3))),
        (OperandTypeError, "A is float32 and B is float64", lambda: gather(a, b.double())),
        (OperandTypeError, "A is a list", lambda: scatter([1], b)),
        (OperandError, r"out has shape .2, 4. and C is", lambda: scatter(
            torch.ones(world * 4, 3), b, out=torch.empty(2, 4))),
        (OperandError, "out overlaps A", lambda: scatter(
            square := torch.ones(4 * world, 4), b4, out=square[:4])),
        (OperandError, "automatic differentiation", lambda: scatter(
            torch.ones(world, 3, requires_grad=True), b, out=torch.empty(1, 4))),
        (UnsupportedError, "8-bit operands has no gradient", lambda: gather(
            torch.ones(2, 3).to(torch.float8_e5m2).requires_grad_(),
            torch.ones(3, 4).to(torch.float8_e5m2))),
        (UnsupportedError, "way='overlapped' does not take the call",
         lambda: gather(a, b, way="overlapped", compute="ieee")),
    ):  # fmt: skip
        with pytest.raises(error, match=who + ".*" + words):
            function()
    with pytest.raises(LookupError, match="unknown way 'fast': choose from overlapped, one_shot"):
        gather(a, b, way="fast")
    with pytest.raises(OperandTypeError, match="group is a int"):
        gather(a, b, 3)
    with pytest.raises(PeerError, match="N is 4 on rank 0 and 5 on rank 1"):
        gather(a, torch.ones(3, 4 + (rank == 1)), debug=True)
    with pytest.raises(PeerError, match="epilogue is relu on rank 0 and none on rank 1"):
        scatter(a, b, debug=True, epilogue="relu" if rank == 0 else None)


def test_errors_name_the_rank_and_the_operand(pair):
    pair(check_errors)


def test_without_a_group():
    with pytest.raises(OperandError, match="start the program with torchrun"):
        tcgemm.dist.all_gather_matmul(torch.ones(2, 2), torch.ones(2, 2))


def check_torch(rank):
    """Fake tensors, the flop counter, autocast, and a part of the ranks."""
    from torch._subclasses import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    for op in OPS:
        drawn = Drawn(op, rank, 5, 4, 3, torch.float32)
        a, b = (t.requires_grad_() for t in drawn.mine())
        asked = {"rows": 5, "epilogue": "relu" if op == OPS[0] else "silu"}
        wanted = call(op, a, b, **asked)
        with FakeTensorMode() as mode:
            fakes = mode.from_tensor(a), mode.from_tensor(b)
            made = call(op, *fakes, **asked)
            assert made.shape == wanted.shape
            made.sum().backward()
            assert fakes[0].grad.shape == a.shape
        with FlopCounterMode(display=False) as counter:
            call(op, a.detach(), b.detach(), **asked)
        assert counter.get_total_flops() == 2 * 5 * 4 * 3
        with torch.autocast("cpu", torch.bfloat16):
            low = call(op, a, b, **asked)
        assert low.dtype == torch.bfloat16
    alone = [torch.distributed.new_group([r]) for r in range(2)][rank]
    c = tcgemm.dist.matmul_reduce_scatter(
        torch.ones(3, 2), torch.ones(2, 4), alone, bias=torch.ones(4), backend="cublas"
    )
    assert torch.equal(c, torch.full((3, 4), 3.0))


def test_seen_by_torch(pair):
    pair(check_torch)


def check_compiled(rank):
    for op in OPS:
        drawn = Drawn(op, rank, 5, 4, 3, torch.float32)
        a, b = (t.requires_grad_() for t in drawn.mine())
        asked = {"rows": 5, "epilogue": "relu" if op == OPS[0] else "silu"}
        wanted = call(op, a, b, **asked)
        compiled = torch.compile(
            lambda a, b, op=op, asked=asked: call(op, a, b, **asked),
            fullgraph=True, backend="aot_eager",
        )  # fmt: skip
        got = compiled(a, b)
        assert torch.allclose(got, wanted)
        assert torch.allclose(*(torch.autograd.grad(t.sum(), a)[0] for t in (got, wanted)))
        operator = torch.ops.tcgemm.all_gather_matmul.default
        if op == "reduce_scatter":
            operator = torch.ops.tcgemm.matmul_reduce_scatter.default
        how = {"rows": 5, "group": torch.distributed.group.WORLD.group_name, "backend": "cublas"}
        utils = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(operator, (a, b, None, None, None), how, test_utils=utils)


@pytest.mark.exhaustive
def test_compiled_and_checked_by_torch(pair):
    pair(check_compiled)


def check_repeats(rank, calls, seed):
    """Drawn calls with random delays on random ranks: right each time, and the same bits twice."""
    world = torch.distributed.get_world_size()
    draw = torch.Generator().manual_seed(seed)

    def pick(low, high):
        return int(torch.randint(low, high, (), generator=draw))

    for number in range(calls):
        op = OPS[pick(0, 2)]
        dtype = (torch.float16, torch.bfloat16, torch.float32)[pick(0, 3)]
        M, N, K = pick(1, 40), pick(1, 30), pick(1, 30)
        epilogue = ("", "relu", "gelu", "silu")[pick(0, 4)]
        delays = [pick(0, 3) * 1e-3 for _ in range(world)]
        drawn = Drawn(op, rank, M, N, K, dtype, seed=1000 * seed + number)
        a, b = drawn.mine()
        time.sleep(delays[rank])
        got = call(op, a, b, rows=M, bias=drawn.bias, epilogue=epilogue)
        wanted, size = drawn.answer(True, epilogue)
        error = (got.double() - wanted).abs()
        assert (error <= 3 * world * EPS[dtype] * size).all(), (number, op, dtype, M, N, K)
        time.sleep(delays[rank - 1])
        again = call(op, a, b, rows=M, bias=drawn.bias, epilogue=epilogue)
        assert torch.equal(got, again), (number, op, dtype, M, N, K)


def test_drawn_calls_with_delays(group):
    group(check_repeats, 12, 1)


@pytest.mark.exhaustive
def test_three_ranks(group):
    if group.world == 3:
        group(check_styles)
        group(check_bench, group.world)


@pytest.mark.exhaustive
def test_many_drawn_calls_with_delays(group):
    group(check_repeats, 300, 2)


def no_engine():
    from unittest import mock

    from tcgemm.dist import engine

    return mock.patch.object(engine, "engine", return_value=None)


def check_bench(rank, world):
    """A case of ``tcgemm bench --several``: right ones are ok, and a wrong one is seen."""
    from unittest import mock

    from tcgemm.bench.several import cases, judging, run
    from tcgemm.dist.groups import ranks_of

    device = torch.device("cpu")
    for op in OPS:
        case = cases.Case("shape", "", world, op, 7, 8 * world, 16 * world, "bfloat16")
        asked = {"seed": 1, "budget_s": 0.1, "backend": "cublas", "timed": False}
        with no_engine():
            rows, stamps = run.run_case(case, ranks_of(), device, **asked)
        assert [row["contender"] for row in rows] == [
            "planned", "one_shot", "overlapped/triton", "overlapped/cuda",
        ]  # fmt: skip
        planned, one_shot, overlapped, _ = rows
        assert (one_shot["way"], one_shot["status"]) == ("one_shot", "unsupported")
        assert (planned["status"], planned["exact_errors"], stamps) == ("ok", 0, [])
        assert 0 < planned["error_ratio"] <= 1
        assert overlapped["status"] == "unsupported"
        assert planned["torch_status"].startswith("failed: rank")
        normal, whole = (judging.drawn(case, ranks_of(), device, 1, e) for e in (False, True))
        judge = judging.Judge(normal, whole)
        for of in (normal, whole):
            c = call(op, of.a, of.b, rows=7)
            for by in (0, 1) if rank == 0 else (0,):
                c[0, 0] += by
                off = judge.error_ratio(c) > 1 if of is normal else judge.exact_errors(c) > 0
                assert off == bool(by)

        waits = []

        def sampler(call, ranks, waits=waits):
            def sample():
                assert call().shape[1] > 0
                waits.append(rank)
                return 1.0 + rank

            return sample

        with mock.patch.object(run, "sampler", sampler), no_engine():
            rows, _ = run.run_case(case, ranks_of(), device, **{**asked, "timed": True})
        assert len(waits) > 2 * rows[0]["rounds"]
        for name in ("ms_p50", "gemm_ms", "nccl_ms"):
            assert rows[0][name] == world  # what the slowest rank took
        assert (rows[0]["ratio_nccl"], rows[0]["of_limit"]) == (1.0, 1.0)
        assert rows[0]["torch_fused_ms"] is rows[0]["ratio_torch"] is None
        assert "ms_p50" not in rows[1]
        assert rows[2]["way"] == "overlapped"

        def one_rank_is_off(name, of, backend, call_of=run.call_of):
            product = call_of(name, of, backend)
            return product if rank != 1 else lambda: product() + 1

        with mock.patch.object(run, "call_of", one_rank_is_off), no_engine():
            rows, _ = run.run_case(case, ranks_of(), device, **asked)
        assert rows[0]["status"] == "wrong"
        assert rows[0]["reason"].startswith("rank 1: ")
        assert "ms_p50" not in rows[0]

        def wrong_from_the_second_call_on(name, of, backend, call_of=run.call_of):
            product, calls = call_of(name, of, backend), []

            def again():
                calls.append(name)
                return product() + (rank == 1 and name == "planned" and len(calls) > 1)

            return again

        replaced = mock.patch.object(run, "call_of", wrong_from_the_second_call_on)
        with mock.patch.object(run, "sampler", sampler), replaced, no_engine():
            rows, _ = run.run_case(case, ranks_of(), device, **{**asked, "timed": True})
        assert rows[0]["status"] == "wrong"
        assert rows[0]["reason"].startswith("rank 1: right at first, and after it was timed ")
        assert "ms_p50" not in rows[0]


def test_the_benchmark_over_ranks(pair):
    pair(check_bench, pair.world)


class Pair(torch.nn.Module):
    """A model of one MLP after a norm; ``wide`` features between."""

    def __init__(self, wide, first=None, second=None):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up = torch.nn.Linear(8, wide) if first is None else first
        self.down = torch.nn.Linear(wide, 8) if second is None else second

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


def pair_of(wide):
    torch.manual_seed(3)
    return Pair(wide).double()


def check_layers(rank):
    """The pair of layers against one process: result, and the gradient of every parameter."""
    world = torch.distributed.get_world_size()
    for wide, shape in ((4 * world, (2 * world, 3, 8)), (7, (2 * world + 1, 8))):
        whole = pair_of(wide)
        x = torch.randn(*shape, dtype=torch.float64)
        wanted = whole(x)
        (wanted.square().sum()).backward()
        up = tcgemm.nn.ColumnParallelLinear.from_linear(whole.up, backend="cublas", epilogue="relu")
        down = tcgemm.nn.RowParallelLinear.from_linear(whole.down, backend="cublas")
        mine = slice(*rows.rows_of(shape[0], world, rank))
        hidden = up(torch.nn.functional.layer_norm(x, (8,))[mine], rows=shape[0])
        got = down(hidden)
        assert torch.allclose(got, wanted[mine])
        got.square().sum().backward()
        of_up = slice(*rows.rows_of(wide, world, rank))
        assert torch.allclose(up.weight.grad, whole.up.weight.grad[of_up])
        assert torch.allclose(up.bias.grad, whole.up.bias.grad[of_up])
        assert torch.allclose(down.weight.grad, whole.down.weight.grad[:, of_up])
        assert torch.allclose(down.bias.grad, whole.down.bias.grad)
    drawn = tcgemm.nn.RowParallelLinear(16, 5)
    assert drawn.weight.shape[0] == 5
    assert drawn.weight.abs().max() <= 0.25
    assert f"weight of this rank={list(drawn.weight.shape)}" in repr(drawn)
    with pytest.raises(OperandError, match="first dimension does not divide"):
        drawn(torch.ones(world + 1, 3, drawn.weight.shape[1]))


def test_the_pair_of_layers(group):
    group(check_layers)


def check_styles(rank):
    """parallelize_module on replaced linears, with SequenceParallel, against one process."""
    from unittest import mock

    from torch.distributed.tensor import Shard, init_device_mesh
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    from tcgemm.dist import calls

    world = torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    for wide, shape, dim, fused in (
        (4 * world, (2, 2 * world, 8), 1, True), (4 * world, (2 * world, 8), 0, True),
        (3 * world, (1, 2 * world, 8), 1, True),
        (4 * world, (2, 2 * world, 8), -1, False),
    ):  # fmt: skip
        if not fused and 8 % world:
            continue  # torch's style takes columns of plain tensors that divide only
        whole = pair_of(wide)
        model = tcgemm.replace_linear(pair_of(wide), backend="cublas")
        torch.manual_seed(5)
        x = torch.randn(*shape, dtype=torch.float64)
        styles = {
            "up": tcgemm.dist.ColwiseParallel(input_layouts=Shard(dim), use_local_output=dim != 1),
            "down": tcgemm.dist.RowwiseParallel(output_layouts=Shard(dim)),
        }
        if fused:
            styles["norm"] = SequenceParallel(sequence_dim=dim, use_local_output=dim != 0)
        asked = []
        check = calls.check

        def seen(op, *arguments, check=check, asked=asked, **named):
            asked.append(op)
            return check(op, *arguments, **named)

        parallelize_module(model, mesh, styles)
        mine = x.chunk(world, dim)[rank].clone().requires_grad_()
        with mock.patch.object(calls, "check", seen):
            got = model(mine) if fused else model.down(torch.relu(model.up(mine)))
        assert set(asked) == (set(OPS) if fused else set())
        wanted = whole(x) if fused else whole.down(torch.relu(whole.up(x)))
        assert torch.allclose(got, wanted.chunk(world, dim)[rank])
        got.square().sum().backward()
        wanted.square().sum().backward()
        for (name, ours), theirs in zip(model.named_parameters(), whole.parameters(), strict=True):
            if theirs.grad is not None:
                grad = ours.grad
                if hasattr(grad, "full_tensor") and "norm" not in name:  # a layer of torch's
                    assert not any(each.is_partial() for each in grad.placements), name
                full = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
                assert torch.allclose(full, theirs.grad), name


def test_parallelize_module_uses_them_without_a_change_in_the_model(pair):
    pair(check_styles)


class FakeEngine:
    """What the overlapped engine is asked, and an answer by torch alone."""

    def __init__(self, reason=None):
        self.reason, self.seen = reason, []

    def why_not(self, op, a, b, group, options):
        self.seen.append((op, options))
        return self.reason

    def why_not_one_shot(self, op, a, b, group, rows, out_dtype):
        return self.reason

    def bounds_us(self, op, M, N, K, dtype, world):
        return ()

    def one_shot_product(self, op, product, a, b, out, group, rows, debug, **asked):
        self.seen.append((op, product, rows, debug, asked))
        return out.zero_()

    def all_gather_matmul(self, a_shard, b, out, group, options):
        self.seen.append(("all_gather", out.shape))
        parts = [torch.empty(2, 3) for _ in range(2)]
        torch.distributed.all_gather(parts, a_shard.contiguous(), group=group)
        assert out.is_contiguous()
        return out.copy_(torch.cat(parts) @ b + options.bias)

    def matmul_reduce_scatter(self, a, b, out, group, options):
        whole = a @ b
        torch.distributed.all_reduce(whole, group=group)
        rank = group.rank()
        return out.copy_((whole[2 * rank : 2 * rank + 2] + options.bias).relu())


def check_engine(rank):
    from unittest import mock

    from tcgemm.dist import engine

    fake = FakeEngine()
    gather, scatter = tcgemm.dist.all_gather_matmul, tcgemm.dist.matmul_reduce_scatter
    with mock.patch.object(engine, "engine", return_value=fake):
        drawn = Drawn("all_gather", rank, 4, 4, 3, torch.float32)
        a, b = drawn.mine()
        asked = {"bias": drawn.bias, "way": "overlapped", "backend": "cublas"}
        out = torch.empty(4, 4).T
        assert gather(a, b, **asked, out=out, kernel="named") is out
        assert torch.allclose(out.double(), drawn.answer(True)[0], atol=1e-5)
        op, options = fake.seen[0]
        assert (op, options.rows, options.backend, options.kernel, options.debug) == (
            "all_gather", 4, "cublas", "named", False,
        )  # fmt: skip
        assert options.bias is drawn.bias
        drawn = Drawn("reduce_scatter", rank, 4, 4, 3, torch.float32)
        asked["bias"] = drawn.bias
        got = scatter(*drawn.mine(), **asked, epilogue="relu")
        assert torch.allclose(got.double(), drawn.answer(True, "relu")[0], atol=1e-5)
        fake.seen.clear()
        gather(a, b, backend="cublas")  # planned: no time is known of a CPU
        gather(a, b, backend="cublas", way="sequence")
        gather(a, b, backend="cublas", out_dtype=torch.float32, compute="ieee")
        assert [op for op, _ in fake.seen] == ["all_gather"]
        fake.seen.clear()
        out = torch.empty(4, 4).T
        asked = {"bias": drawn.bias, "backend": "cublas", "kernel": "named", "way": "one_shot"}
        assert gather(a, b, **asked, out=out, debug=True) is out
        assert not out.any()
        op, product, rows_of_all, debug, told = fake.seen.pop()
        assert (op, product, rows_of_all, debug) == ("all_gather", tcgemm.gemm, 4, True)
        assert (told["kernel"], told["backend"], told["epilogue"]) == ("named", "cublas", None)
        assert fake.seen == []  # of the overlapped way nothing is asked
        fake.reason = "it rains"
        for way in ("overlapped", "one_shot"):
            with pytest.raises(UnsupportedError, match=f"{way}' does not take the call: it rains"):
                gather(a, b, **{**asked, "way": way})


def test_the_overlapped_engine_is_asked_and_used(pair):
    pair(check_engine)


def check_real_engine(rank):
    """The engine that is installed, by Triton's interpreter: what the plan calls is what it has."""
    from tcgemm.dist import engine

    assert engine.engine() is not None
    for op in OPS:
        drawn = Drawn(op, rank, 20, 16, 16, torch.bfloat16)
        a, b = (t.requires_grad_() for t in drawn.mine())
        asked = {"rows": 20, "bias": drawn.bias, "backend": "triton", "way": "overlapped"}
        got = call(op, a, b, epilogue="relu", debug=True, **asked)
        wanted, size = drawn.answer(True, "relu")
        assert ((got.double() - wanted).abs() <= 4 * EPS[torch.bfloat16] * size).all()
        got.sum().backward()
        plain = [t.detach().clone().requires_grad_() for t in (a, b)]
        asked |= {"way": "sequence", "backend": "cublas"}
        call(op, *plain, epilogue="relu", **asked).sum().backward()
        for ours, theirs in zip((a, b), plain, strict=True):
            assert torch.allclose(ours.grad, theirs.grad, rtol=0.05, atol=0.2)


@pytest.mark.exhaustive
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for CPU tensors")
def test_the_engine_that_is_installed(pair):
    pair(check_real_engine)


def leave(rank):
    word = torch.zeros(1)
    if rank == 1:
        torch.distributed.recv(word, 0)  # else rank 0 may still be joining the group
        os._exit(0)
    torch.distributed.send(word, 1)
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    with pytest.raises(PeerError, match=r"over 2 ranks failed: .*another rank ended"):
        tcgemm.dist.all_gather_matmul(a, b, backend="cublas")


def test_a_rank_that_dies_leaves_the_others_with_an_error():
    made = ranks.Ranks(2)
    with pytest.raises(AssertionError, match=r"^rank 1: its process died$"):
        made(leave)
    made.close()


@pytest.mark.gpu
def test_on_gpus_by_nccl():
    """The same calls as over gloo, on two GPUs."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, and there is {torch.cuda.device_count()}")
    engine = import_module("tcgemm.dist.overlap")
    engine.prepare(["cuda"], (torch.float16, torch.bfloat16), ("", "gelu"))  # half a minute each
    made = ranks.Ranks(2, "nccl", seconds=600)
    try:
        for op in OPS:
            made(check_on_gpu, op, 1000)
    finally:
        made.close()


def check_on_gpu(rank, op, calls):
    """Drawn calls with random delays of the host and of the stream on random ranks."""
    world = torch.distributed.get_world_size()
    draw = torch.Generator().manual_seed(7)

    def pick(*values):
        return values[int(torch.randint(0, len(values), (), generator=draw))]

    for number in range(calls):
        dtype = pick(torch.float16, torch.bfloat16)
        M, N, K = pick(1, 7, 64, 333, 512), pick(8, 64, 200, 1024), pick(8, 64, 520)
        epilogue, way = pick("", "gelu"), pick(None, "sequence", "overlapped")
        backend = pick("triton", "cuda")
        delays = [pick(0, 0, 20_000, 2_000_000) for _ in range(world)]
        drawn = Drawn(op, rank, M, N, K, dtype, seed=number)
        a, b = (t.cuda() for t in drawn.mine())
        bias = drawn.bias.cuda() if epilogue else None
        torch.cuda._sleep(delays[rank])
        asked = {"rows": M, "bias": bias, "epilogue": epilogue, "backend": backend}
        try:
            got = call(op, a, b, way=way, **asked)
        except UnsupportedError:
            assert way == "overlapped"  # refused on all ranks alike, before anything moves
            continue
        wanted, size = drawn.answer(bias is not None, epilogue)
        error = (got.cpu().double() - wanted).abs()
        assert (error <= 3 * world * EPS[dtype] * size).all(), (number, way, dtype, M, N, K)
        if way == "overlapped":
            torch.cuda._sleep(delays[rank - 1])
            assert torch.equal(got, call(op, a, b, way=way, **asked)), (number, M, N, K)
