"""Products over ranks in unusual hands: nothing to multiply, ranks that differ, groups that come
and go, and what a program sets for all of torch."""

from __future__ import annotations

import copy
import threading
import time

import pytest
import ranks
import torch
from ranks import two_ranks  # noqa: F401

import tcgemm
from tcgemm.dist import groups, rows
from tcgemm.errors import OperandError, OperandTypeError, PeerError, TcgemmError, UnknownNameError

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no distributed package"
)
CUBLAS = {"backend": "cublas"}
OVERLAPPED = {"backend": "triton", "way": "overlapped"}


group = ranks.groups_of(1, 2, 3)


def check_nothing(rank):
    world = torch.distributed.get_world_size()
    for M, N, K in ((0, 4, 3), (0, 0, 0), (5, 0, 3), (5, 4, 0), (1, 4, 3)):
        torch.manual_seed(1)
        A, B, bias = torch.randn(M, K), torch.randn(K, N), torch.randn(N)
        first, last = rows.rows_of(M, world, rank)
        x, w, b = (t.clone().requires_grad_() for t in (A[first:last], B, bias))
        y = tcgemm.dist.all_gather_matmul(x, w, rows=M, bias=b, **CUBLAS)
        torch.testing.assert_close(y, A @ B + bias)
        y.sum().backward()
        assert [t.grad.shape for t in (x, w, b)] == [t.shape for t in (x, w, b)]
        x, w, b = (t.clone().requires_grad_() for t in (A, B, bias))
        y = tcgemm.dist.matmul_reduce_scatter(x, w, bias=b, **CUBLAS)
        torch.testing.assert_close(y, (world * (A @ B) + bias)[first:last])
        y.sum().backward()
        assert [t.grad.shape for t in (x, w, b)] == [t.shape for t in (x, w, b)]


def test_an_empty_product(group):
    group(check_nothing)


def check_transforms(rank):
    """Of other tensors than the product's, and of batches of gradients."""
    world = torch.distributed.get_world_size()
    torch.manual_seed(1)
    A, w = torch.randn(2 * world, 4), torch.randn(4, 3, requires_grad=True)
    for op, x in (("all_gather_matmul", A[2 * rank : 2 * rank + 2]), ("matmul_reduce_scatter", A)):
        product = getattr(tcgemm.dist, op)
        y = product(x, w, **CUBLAS)
        by_y = torch.func.grad(lambda z, x=x, product=product: (product(x, w, **CUBLAS) * z).sum())
        torch.testing.assert_close(by_y(torch.ones_like(y)), y)
        one_by_one = torch.autograd.functional.jacobian(
            lambda w, x=x, product=product: product(x, w, **CUBLAS), w
        )
        at_once = torch.autograd.functional.jacobian(
            lambda w, x=x, product=product: product(x, w, **CUBLAS), w, vectorize=True
        )
        torch.testing.assert_close(at_once, one_by_one)


def test_transforms_and_batches_of_gradients(group):
    group(check_transforms)


def check_empty_layers(rank):
    world = torch.distributed.get_world_size()
    column = tcgemm.nn.ColumnParallelLinear(4, 2 * world, **CUBLAS)
    assert column(torch.randn(0, 4)).shape == (0, 2)
    few = max(world - 1, 1)  # of more ranks than features the last has none
    mine = 1 if rank < few else 0
    column = tcgemm.nn.ColumnParallelLinear(4, few, **CUBLAS)
    y = column(torch.randn(2, 3, 4))
    assert y.shape == (2 * world, 3, mine)
    row = tcgemm.nn.RowParallelLinear(few, 5, **CUBLAS)
    z = row(y)
    assert z.shape == (2, 3, 5)
    z.sum().backward()
    assert row.weight.grad.shape == (5, mine)
    assert row(y[:0]).shape == (0, 3, 5)
    with pytest.raises(OperandError, match=r"input has shape \[4\].*unsqueeze"):
        column(torch.randn(4))


def test_layers_of_nothing(group):
    group(check_empty_layers)


def calls_that_differ(rank):
    odd = rank == 1
    gather, scatter = tcgemm.dist.all_gather_matmul, tcgemm.dist.matmul_reduce_scatter
    x, w = torch.ones(2, 8), torch.ones(8, 8)
    f8 = torch.ones(2, 16).to(torch.float8_e4m3fn)
    scale = torch.ones(2) if odd else torch.ones(())
    return {
        "rows is 4 on rank 0 and 6 on rank 1": lambda: gather(torch.ones(2 + odd, 8), w, **CUBLAS),
        "dtype of A is float32 .* and float64": lambda: gather(
            x.double() if odd else x, w.double() if odd else w, **CUBLAS
        ),
        "the operation is": lambda: (gather if odd else scatter)(x, w, **CUBLAS),
        "whether there is a bias": lambda: scatter(x, w, bias=w[0] if odd else None, **CUBLAS),
        "whether scale_a is by rows": lambda: gather(f8, f8.mT, scale_a=scale, **CUBLAS),
        "way is": lambda: gather(x, w, way="sequence" if odd else None, **CUBLAS),
    }


def check_differ(rank):
    for words, call in calls_that_differ(rank).items():
        with pytest.raises(PeerError, match=words):
            call()
    x = torch.ones(2, 8)
    refused = {
        "inner dimensions": lambda odd: tcgemm.dist.all_gather_matmul(
            x, torch.ones(8 + odd, 8), **CUBLAS
        ),
        "unknown backend": lambda odd: tcgemm.dist.matmul_reduce_scatter(
            x, torch.ones(8, 8), backend="none" if odd else "cublas"
        ),
        "requires grad": lambda odd: tcgemm.dist.matmul_reduce_scatter(
            x, torch.ones(8, 8, requires_grad=odd), out=torch.empty(1, 8), **CUBLAS
        ),
    }
    for words, call in refused.items():
        with pytest.raises(TcgemmError, match=rf"rank 1 of 2: .*{words}") as caught:
            call(rank == 1)
        assert (type(caught.value) is PeerError) == (rank == 0)


def test_ranks_that_differ_are_told_on_every_rank(pair):
    pair(check_differ)


def check_rows(rank):
    for given in (-1, 2.0, "2", True):
        with pytest.raises(OperandError, match="rows is"):
            tcgemm.dist.all_gather_matmul(torch.ones(1, 2), torch.ones(2, 2), rows=given)


def test_rows_are_a_number(pair):
    pair(check_rows)


def check_groups(rank):
    x = torch.ones(2, 2)
    with pytest.raises(OperandError, match="no process group named 'nobody'"):
        tcgemm.dist.all_gather_matmul(x, x, "nobody")
    gone = torch.distributed.new_group([0, 1])
    torch.distributed.barrier()  # gone before the other rank has joined it, it fails there
    torch.distributed.destroy_process_group(gone)
    with pytest.raises(OperandError, match="the process group was destroyed"):
        tcgemm.dist.all_gather_matmul(x, x, gone)


def test_a_group_that_is_not_there(pair):
    pair(check_groups)


def check_forgotten(rank):
    from tcgemm.dist import overlap

    x = torch.ones(8, 8, dtype=torch.float16)
    held = []
    for _ in range(3):
        passing = torch.distributed.new_group([0, 1])
        tcgemm.dist.all_gather_matmul(x, x, passing, **OVERLAPPED)
        torch.distributed.destroy_process_group(passing)
        held.append(len(overlap._ranks))
    assert held[0] == held[-1]


def test_what_ranks_shared_is_let_go_with_their_group(pair):
    pair(check_forgotten)


def check_checked_once(rank):
    """A call whose kind was found right is not checked again; another one, or group, is."""
    from tcgemm.dist import calls

    group = torch.distributed.new_group([0, 1])
    of_group = groups.ranks_of(group)
    a, b, bias = torch.ones(4, 8), torch.ones(8, 6), torch.ones(6)
    asked = calls.asked_of(of_group, 8, None, None, None, None, None, None, None)
    check = lambda *tensors, asked=asked: calls.check(  # noqa: E731
        "all_gather", *tensors, None, None, asked
    )
    right = check(a, b, bias)
    assert check(a.clone(), b.mT.contiguous().mT, bias + 1) is right
    assert check(a, b, None) is not right
    assert check(a.double(), b.double(), bias.double()).dtype == torch.float64
    for wrong in ((a, b, bias[1:]), (a, b[1:], bias), (a[1:], b, bias)):
        for _ in range(2):
            with pytest.raises(OperandError):
                check(*wrong)
    assert check(a[1:], b, bias, asked=asked._replace(rows=6)) is not right
    torch.distributed.barrier()
    torch.distributed.destroy_process_group(group)
    with pytest.raises(OperandError, match="no process group named"):
        check(a, b, bias)


def test_a_kind_of_call_is_checked_once(pair):
    pair(check_checked_once)


def check_threads(rank):
    first, second = (torch.distributed.new_group([0, 1]) for _ in range(2))
    x = torch.ones(8, 8, dtype=torch.float16)
    sums = []

    def call(of):
        sums.append(tcgemm.dist.all_gather_matmul(x, x, of, **OVERLAPPED).sum().item())

    threads = []
    for of in (first, second) if rank == 0 else (second, first):
        threads.append(threading.Thread(target=call, args=(of,), daemon=True))
        threads[-1].start()
        time.sleep(0.3)
    for thread in threads:
        thread.join(20)
    assert sums == [1024, 1024]


def test_two_groups_begin_in_two_threads(pair):
    pair(check_threads)


def check_kernels_that_wait(rank, way):
    """On each rank a kernel waits for what a second thread of the other rank has yet to send."""
    from tcgemm.triton_kernels.overlap import run

    from tcgemm.dist.overlap import protocol

    groups = [torch.distributed.new_group([0, 1]) for _ in range(2)]
    x, asked = torch.ones(8, 8, dtype=torch.float16), {"backend": "triton", "way": way}
    threads, begin = [], protocol.Rank.begin

    def begin_in_turn(self, size, hears):
        if threading.current_thread() in threads[1:]:
            time.sleep(0.2)
        return begin(self, size, hears)

    for op, total in (
        (tcgemm.dist.all_gather_matmul, 1024),
        (tcgemm.dist.matmul_reduce_scatter, 512),
    ):
        for of in groups:
            op(x, x, of, **asked)  # nothing is left to be made
        sums = []

        def call(of, op=op, sums=sums):
            sums.append(op(x, x, of, **asked).sum().item())

        of_threads = groups if rank == 0 else groups[::-1]
        threads[:] = [threading.Thread(target=call, args=(of,), daemon=True) for of in of_threads]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protocol.Rank, "begin", begin_in_turn)
            patch.setattr(run, "LOOKS_OF_A_TURN", 200)  # a turn in vain is time of all cores
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
        assert sums == [total, total], op


@pytest.mark.parametrize("way", ["overlapped", "one_shot"])
def test_two_threads_wait_in_kernels_of_two_groups(pair, way):
    pair(check_kernels_that_wait, way)


def check_defaults(rank):
    f8 = torch.ones(2, 16).to(torch.float8_e4m3fn)
    wide = {"out_dtype": torch.float32, **CUBLAS}
    torch.set_default_dtype(torch.bfloat16)
    try:
        y = tcgemm.dist.all_gather_matmul(f8, f8.mT, scale_a=2.0, scale_b=1, **wide)
    finally:
        torch.set_default_dtype(torch.float32)
    assert y[0, 0] == 32
    number = torch.ones(()).numpy()[()]
    assert tcgemm.dist.all_gather_matmul(f8, f8.mT, scale_a=number, **wide)[0, 0] == 16
    x = torch.ones(8, 8, dtype=torch.float16)
    fresh = torch.distributed.new_group([0, 1])
    torch.set_default_device("meta")
    try:
        y = tcgemm.dist.all_gather_matmul(x, x, fresh, **OVERLAPPED)
    finally:
        torch.set_default_device(None)
    assert (y == 8).all()


def test_defaults_of_torch_change_nothing(pair):
    pair(check_defaults)


def check_layers(rank):
    other = torch.distributed.new_group([0, 1])
    for kind in (tcgemm.nn.ColumnParallelLinear, tcgemm.nn.RowParallelLinear):
        layer = kind(4, 4, other, backend="auto")
        copied = copy.deepcopy(layer)
        assert copied.group is other
        assert torch.equal(copied.weight, layer.weight)
        assert copied.weight is not layer.weight
        assert copied.backend == "auto"
        with pytest.raises(UnknownNameError, match="unknown backend"):
            kind(4, 4, backend="cubla")
        with pytest.raises(OperandError, match="unknown epilogue"):
            kind(4, 4, epilogue="tanh")
    column, row = tcgemm.nn.ColumnParallelLinear, tcgemm.nn.RowParallelLinear
    who = f"rank {rank} of 2: "
    for layer, x, words in (
        (column(8, 6, **CUBLAS), torch.ones(3, 7), r"x is \[3, 7\] and weight \[3, 8\].*x has 7"),
        (row(8, 6, **CUBLAS), torch.ones(4, 6), r"x is \[4, 6\] and weight \[6, 4\].*mT would fit"),
        (column(8, 6, **CUBLAS), torch.ones(3, 8).half(), "x is float16 and weight is float32"),
        (row(8, 6, bias=False, **CUBLAS), torch.ones(4, 4).long(), "x is int64 and weight is"),
    ):
        with pytest.raises((OperandError, OperandTypeError), match=who + words):
            layer(x)


def test_layers_are_copied_in_their_group_and_know_names(pair):
    pair(check_layers)


def check_no_tensors(rank):
    """What one rank says of its own operands the other hears: both stay in step."""
    odd = rank == 1
    x, w = torch.ones(2, 4), torch.ones(4, 4)
    layers = (
        tcgemm.nn.ColumnParallelLinear(4, 4, **CUBLAS),
        tcgemm.nn.RowParallelLinear(8, 4, **CUBLAS),
    )
    calls = [
        (f"input is a {kind}, not a torch.Tensor", lambda given=given, of=of: of(given))
        for kind, given in (("ndarray", x.numpy()), ("NoneType", None))
        for of in layers
    ]
    calls = [(words, lambda call=call, of=of: call() if odd else of(x))
             for (words, call), of in zip(calls, layers * 2, strict=True)]  # fmt: skip
    calls.append(("input has shape", lambda: layers[0](x[0] if odd else x)))
    for function in (tcgemm.dist.all_gather_matmul, tcgemm.dist.matmul_reduce_scatter):
        calls.append((
            "out is a int, not a torch.Tensor",
            lambda function=function: function(x, w, out=3 if odd else None, **CUBLAS),
        ))  # fmt: skip
    for words, call in calls:
        with pytest.raises(TcgemmError, match=f"rank 1 of 2: {words}") as caught:
            call()
        assert (type(caught.value) is PeerError) == (rank == 0)
    assert tcgemm.dist.all_gather_matmul(x, w, **CUBLAS).shape == (4, 4)


def test_what_is_no_tensor_is_told_on_every_rank(pair):
    pair(check_no_tensors)


def check_second_order(rank):
    """The sum of all ranks' penalties, as one process differentiates it."""
    draw = torch.Generator().manual_seed(5)
    X, W = (torch.randn(4, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    bias = torch.randn(4, generator=draw, dtype=torch.float64)
    whole = torch.nn.Linear(4, 4, dtype=torch.float64)
    whole.load_state_dict({"weight": W, "bias": bias})
    layer = tcgemm.nn.RowParallelLinear.from_linear(whole, **CUBLAS)
    (got,) = torch.autograd.grad(
        layer(X[:, 2 * rank : 2 * rank + 2]).pow(3).sum(), layer.bias, create_graph=True
    )
    got.square().sum().backward()
    (wanted,) = torch.autograd.grad(whole(X).pow(3).sum(), whole.bias, create_graph=True)
    (2 * wanted.square().sum()).backward()  # each of the two ranks has such a penalty
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(layer.bias.grad, whole.bias.grad)
    torch.testing.assert_close(layer.weight.grad, whole.weight.grad[:, 2 * rank : 2 * rank + 2])


def test_the_second_derivative_by_a_bias(pair):
    pair(check_second_order)


def check_compiled(rank):
    world = torch.distributed.get_world_size()
    model = torch.nn.Sequential(
        tcgemm.nn.ColumnParallelLinear(4, 2 * world, epilogue="gelu", **CUBLAS),
        tcgemm.nn.RowParallelLinear(2 * world, 4, **CUBLAS),
    )
    x = torch.randn(2, 4)
    y = model(x)
    y.sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    got = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    got.sum().backward()
    torch.testing.assert_close(got, y)
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.exhaustive  # test_layers_in_torch.py compiles layers
def test_the_pair_of_layers_compiles_in_one_piece(pair):
    pair(check_compiled)
