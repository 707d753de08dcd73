"""DTensor's rules of a product, over two gloo ranks: values, placements, gradients, a split MLP."""

from __future__ import annotations

import contextlib

import pytest
import ranks
import torch

import tcgemm

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no distributed package"
)
F = torch.nn.functional


def mlp():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)
    ).double()


def rank_of_two(rank):
    from torch.distributed.tensor import (
        Partial,
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
    )
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    a, b = torch.randn(4, 6).double(), torch.randn(6, 8).double()
    c, bias = torch.randn(1, 8).double(), torch.randn(8).double()
    linear = 0.5 * a @ b + 2 * c + bias

    def product(lies_a, lies_b, epilogue):
        spread = [
            distribute_tensor(t, mesh, [lies])
            for t, lies in zip(
                (a, b, c, bias), (lies_a, lies_b, Replicate(), Replicate()), strict=True
            )
        ]
        a_, b_, c_, bias_ = spread
        asked = {"alpha": 0.5, "beta": 2.0, "bias": bias_, "epilogue": epilogue}
        return tcgemm.gemm(a_, b_, c_, **asked, backend="cublas")

    for lies_a, lies_b, lies in (
        (Shard(0), Replicate(), Shard(0)),
        (Replicate(), Shard(1), Shard(1)),
        (Shard(1), Shard(0), Partial()),
        (Replicate(), Replicate(), Replicate()),
    ):
        result = product(lies_a, lies_b, None)
        assert result.placements == (lies,), (lies_a, lies_b, result.placements)
        assert torch.allclose(result.full_tensor(), linear)
        # The same shapes with an activation, which no partial sum may go through.
        activated = product(lies_a, lies_b, "relu")
        assert not activated.placements[0].is_partial()
        assert torch.allclose(activated.full_tensor(), torch.relu(linear))
    batch = torch.randn(2, 4, 6).double()
    result = tcgemm.matmul(distribute_tensor(batch, mesh, [Shard(0)]),
                           distribute_tensor(b, mesh, [Replicate()]), backend="cublas")  # fmt: skip
    assert result.placements == (Shard(0),)
    assert torch.allclose(result.full_tensor(), batch @ b)

    expected, model = mlp(), tcgemm.replace_linear(mlp(), backend="cublas")
    styles = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh, styles)
    for x in (torch.randn(4, 16).double(), torch.randn(2, 4, 16).double()):
        y, z = model(x), expected(x)
        assert torch.allclose(y, z)
        model.zero_grad()
        expected.zero_grad()
        y.square().sum().backward()
        z.square().sum().backward()
        for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.allclose(mine.grad.full_tensor(), theirs.grad)


def test_two_ranks():
    with contextlib.closing(ranks.Ranks(2)) as two:
        two(rank_of_two)


def rank_of_two_gpus(rank, backend):
    """A split MLP in bfloat16 over NCCL, forward, backward and under torch.compile."""
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (2,))

    def layers():
        torch.manual_seed(1)
        return torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)
        )

    model = tcgemm.replace_linear(layers().cuda().bfloat16(), backend=backend)
    exact = layers().double()
    exact.load_state_dict(model.state_dict())
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for call in (model, model, torch.compile(model)):
        x = torch.randn(3, 128, 256)
        y, z = call(x.cuda().bfloat16()), exact(x.bfloat16().double())
        model.zero_grad()
        exact.zero_grad()
        y.float().square().mean().backward()
        z.square().mean().backward()
        pairs = [(y, z)]
        for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
            pairs.append((mine.grad.full_tensor(), theirs.grad))
        for mine, theirs in pairs:
            error = (mine.detach().double().cpu() - theirs).abs().max()
            assert error <= 0.03 * theirs.abs().max(), (rank, backend, error)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_two_gpus(backend):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with contextlib.closing(ranks.Ranks(2, "nccl", seconds=600)) as two:
        two(rank_of_two_gpus, backend)
