"""Launches that read addresses alone: a layer hands them its tensors as they are, with no views."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from conftest import DEVICE
from test_eager import python_calls
from test_triton_launching import Kernel, gpu, plain, tensor  # noqa: F401 (a fixture)

import tcgemm
from tcgemm import cublas, dispatch, launch_cache
from tcgemm.ops import running

F = torch.nn.functional

handle = import_module("tcgemm.cuda_ref.handle")
launching = import_module("tcgemm.triton_kernels.host.launching")


@pytest.fixture(autouse=True)
def nothing_kept():
    torch.manual_seed(0)
    launch_cache.forget()
    yield
    launch_cache.forget()


GRADIENTS = {
    "as the result": lambda shape: torch.randn(shape, device=DEVICE),
    "of a sum": lambda shape: torch.randn((), device=DEVICE).expand(shape),
    "by columns": lambda shape: torch.randn(shape[::-1], device=DEVICE).permute(
        *range(len(shape) - 1, -1, -1)
    ),
    "with gaps": lambda shape: torch.randn((*shape[:-1], 2 * shape[-1]), device=DEVICE)[..., ::2],
    "some bytes on": lambda shape: torch.randn(shape.numel() + 1, device=DEVICE)[1:].view(shape),
}


@pytest.mark.spread(5, "shape", "epilogue", "above")
@pytest.mark.parametrize("above", GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.parametrize("epilogue", [None, "relu", "gelu"])
@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8), (2, 1, 3, 8)], ids=str)
def test_a_gradient_is_taken_however_it_lies(shape, epilogue, above):
    """Twice as the result lies, and in turns with another way: no call runs what was kept for a
    gradient that lies otherwise."""
    weight, bias = torch.randn(4, 8, device=DEVICE), torch.randn(4, device=DEVICE)
    layers = [
        (lambda x, w, b: tcgemm.linear(x, w, b, epilogue, backend="triton"), weight),
        (lambda x, w, b: tcgemm.linear(x, w, b, epilogue, backend="triton"),
         weight.mT.contiguous().mT),
        (lambda x, w, b: tcgemm.mlp(x, w, b, down, None, epilogue or "silu", backend="triton"),
         weight),
    ]  # fmt: skip
    down = weight.mT.contiguous()
    activation = {None: lambda z: z, "relu": F.relu, "gelu": F.gelu}[epilogue]
    for number, (layer, w) in enumerate(layers):
        x, w, b = operands = [
            t.detach().clone(memory_format=torch.preserve_format).requires_grad_()
            for t in (torch.randn(shape, device=DEVICE), w, bias)
        ]
        for lies in (GRADIENTS["as the result"], above, GRADIENTS["as the result"], above):
            y, z = layer(*operands), activation(F.linear(x, w, b))
            if number == 2:
                z = F.linear(z if epilogue else F.silu(z), down)
                assert type(y.grad_fn).__name__ == "MlpBackward"
            torch.testing.assert_close(y, z)
            grad = lies(z.shape)
            mine = torch.autograd.grad(y, operands, grad)
            theirs = torch.autograd.grad(z, operands, grad)
            for ours, torchs in zip(mine, theirs, strict=True):
                torch.testing.assert_close(ours, torchs, atol=1e-5, rtol=1e-5)


def test_gradients_of_a_batch_add_up_in_place():
    ours = tcgemm.nn.Linear(8, 4, device=DEVICE, backend="triton", accumulate=True)
    torchs = torch.nn.Linear(8, 4, device=DEVICE)
    torchs.load_state_dict(ours.state_dict())
    kept = None
    for _ in range(3):
        x = torch.randn(2, 3, 8, device=DEVICE)
        for layer in (ours, torchs):
            layer(x).square().sum().backward()
        assert kept is None or ours.weight.grad is kept
        kept = ours.weight.grad
        for mine, theirs in zip(ours.parameters(), torchs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-5, rtol=1e-5)


def test_a_kernel_of_triton_gets_matrices_from_whatever_begins_at_their_addresses(gpu):  # noqa: F811
    kernel, lays = Kernel(), []

    def arguments(a, b, c, TILE):
        lays.append([(tuple(t.shape), t.stride()) for t in (a, b, c)])
        return plain(a, b, c, TILE)

    a, b, c = tensor(), tensor(4, 8).mT, tensor(8, 4)
    call = launching.Rung(kernel, arguments).bind(a, b, c, TILE=16)
    assert call.by_address
    for _ in range(2):
        call(a.view(2, 4, 8), b.mT, c.view(2, 4, 4))
    assert lays == [[((8, 8), (8, 1)), ((8, 4), (1, 8)), ((8, 4), (4, 1))]]
    assert list(kernel.short_way[0][13:16]) == [t.data_ptr() for t in (a, b, c)]


def test_views_are_made_for_a_kernel_that_reads_more_than_addresses():
    ran: list[tuple] = []
    launch = SimpleNamespace(misaligned=0, device=-1, start=lambda *given: ran.append(given[:2]))
    for launch.by_address in (False, True):
        same = running.multiply_at(launch, None, 1, 2, None, tensor(), lambda: (3, 4, tensor()))
        assert same is launch
    assert ran == [(3, 4), (1, 2)]


@pytest.fixture
def stand_ins(monkeypatch):
    """The functions of Python that start CUDA's kernels, over a library whose functions do nothing;
    what they got."""
    library = SimpleNamespace(tcgemm_start=lambda *given: 0, tcgemm_start_fused=lambda *given: 0)
    got = []

    def bind(self, a, b, c, fusion):
        start = handle.bound("rung", library, 0, handle.gemm_of(a, b, c, fusion, None), not fusion)

        def seen(a, b, c, *others):
            got.append((a.dim(), b.dim(), c.dim()))
            start(a, b, c, *others)

        seen.by_address = start.by_address
        return seen

    def derivative(backend):
        def bind(dy, z, dz, fusion):
            assert dy.dim() == 2
            start = handle.bound("sums", library, 0, handle.gemm_of(dy, dy, dy, None, None), True)
            return lambda dy, z, dz, none, db: start(dy, dy, db)

        return bind

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 5, raising=False)
    monkeypatch.setattr(cublas._TorchCPU, "bind", bind)
    monkeypatch.setattr(dispatch, "derivative", derivative)
    return got


@pytest.mark.parametrize("shape", [(64, 64), (2, 32, 64)], ids=str)
def test_a_step_of_such_a_layer_makes_few_calls(shape, stand_ins):
    """Beside torch's. A matrix and a batch take as many: with views, the batch took 10 of C's
    more."""
    x = torch.randn(*shape, requires_grad=True)
    above = torch.ones(shape)
    torchs, ours = torch.nn.Linear(64, 64), tcgemm.nn.Linear(64, 64, backend="cublas")

    def step(layer):
        layer(x).backward(above)

    calls, of_c = python_calls(lambda: step(ours), but=__name__)
    torch_calls, torch_of_c = python_calls(lambda: step(torchs), but=__name__)
    assert stand_ins[-3:] == [(len(shape), 2, len(shape))] * 2 + [(len(shape), len(shape), 2)]
    assert calls - torch_calls <= 20
    assert of_c - torch_of_c <= 49
