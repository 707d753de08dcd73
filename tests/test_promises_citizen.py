"""Promises 23, 24, 25 and 27 of docs/contract.md: what torch knows of a tensor is not lost, and a
kernel gets nothing that it was not written for."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch
from promises import made_for, multiply, right
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import tcgemm
from tcgemm import dispatch, launch_cache, repacking
from tcgemm.errors import OperandError, OperandTypeError, TcgemmError, UnsupportedError
from tcgemm.problem import Problem


def test_promise_23_out_raises_the_version_counter(row, device):
    call, made = made_for(row, device=device, size=64)
    for _ in range(2):
        before = made.out._version
        result = multiply(row, made, call, out=made.out)
        if result is None:
            pytest.skip("refused")
        assert made.out._version > before


def test_promise_23_a_saved_tensor_that_is_overwritten_makes_backward_raise(device):
    for backend in ("triton", "cuda", "cublas"):
        a, b, out = (torch.ones(16, 16, device=device) for _ in range(3))
        weight = torch.ones(16, 16, device=device, requires_grad=True)
        y = (weight * out).sum()
        tcgemm.matmul(a, b, out=out, backend=backend)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


DERIVATIVES = {
    "reverse": lambda f, a, b: torch.autograd.grad(f(a.requires_grad_(), b).sum(), a)[0],
    "grad": lambda f, a, b: torch.func.grad(lambda x: f(x, b).sum())(a),
    "jvp": lambda f, a, b: torch.func.jvp(lambda x: f(x, b), (a,), (torch.ones_like(a),))[1],
    "vmap": lambda f, a, b: torch.vmap(lambda x: f(x, b))(torch.stack([a, 2 * a])),
    "dual": lambda f, a, b: tangent(f, a, b),
}


def tangent(f, a, b):
    with forward_ad.dual_level():
        result = f(forward_ad.make_dual(a, torch.ones_like(a)), b)
        return forward_ad.unpack_dual(result).tangent.clone()


@pytest.mark.parametrize("way", DERIVATIVES)
@pytest.mark.parametrize("backend", ["triton", "cuda", "cublas"])
def test_promise_24_no_derivative_is_lost(way, backend, device):
    a, b = (torch.randn(16, 16, device=device, dtype=torch.float64) for _ in range(2))
    wanted = DERIVATIVES[way](torch.matmul, a.clone(), b)
    found = DERIVATIVES[way](lambda x, y: tcgemm.matmul(x, y, backend=backend), a.clone(), b)
    torch.testing.assert_close(found, wanted)


def test_promise_24_a_trace_that_would_miss_the_product_is_refused(device):
    a, b = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    for _ in range(2):  # with no launch of the kind, and with one
        with pytest.raises(UnsupportedError, match=r"torch\.jit\.trace"):
            torch.jit.trace(
                lambda x, y: tcgemm.matmul(x, y, backend="cublas"), (a, b), check_trace=False
            )
        tcgemm.matmul(a, b, backend="cublas")


class Wrapper(torch.Tensor):
    """A tensor that stands for another, and has no memory."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, strides=inner.stride()
        )

    def __init__(self, inner):
        self.held = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        unwrapped = [getattr(x, "held", x) for x in args]
        return function(*unwrapped, **(kwargs or {}))


def freed(x):
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


@pytest.mark.parametrize("kind", ["wrapper", "fake", "meta", "zero", "functional", "freed"])
@pytest.mark.parametrize("backend", ["triton", "cuda", "cublas"])
def test_promise_25_a_tensor_without_memory_reaches_no_kernel(backend, kind, monkeypatch):
    """Right by torch's own rules, or refused in a sentence, its own or ours: a kernel never gets
    an address of nothing."""
    started = []
    monkeypatch.setattr("tcgemm.launch._bind", lambda *given: lambda *t: started.append(t))
    a, b = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    mode = FakeTensorMode()
    bad = {
        "wrapper": Wrapper, "fake": mode.from_tensor, "meta": lambda x: x.to("meta"),
        "zero": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
        "functional": torch._to_functional_tensor, "freed": freed,
    }[kind]  # fmt: skip
    launch_cache.forget()
    for place in ("A", "B", "out"):
        given = {"A": (bad(a), b), "B": (a, bad(b)), "out": (a, b)}[place]
        out = {"out": bad(a)} if place == "out" else {}
        with contextlib.suppress(TcgemmError, RuntimeError, AssertionError):
            tcgemm.matmul(*given, **out, backend=backend)
        if kind in ("meta", "freed"):
            with pytest.raises(TcgemmError):
                tcgemm.matmul(*given, **out, backend=backend)
    launch_cache.forget()
    for tensors in started:
        for t in tensors:
            assert t is None or (type(t) is torch.Tensor and t.data_ptr()), kind


ARCHITECTURES = [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


@pytest.mark.parametrize("capability", ARCHITECTURES, ids=lambda c: "sm_{}{}".format(*c))
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_promise_27_what_an_architecture_lacks_is_not_chosen(backend, capability):
    """wgmma exists on sm_90a alone: no rung that is built on it is taken elsewhere."""
    least = (8, 0) if backend == "triton" else (7, 0)
    for M, N, K in ((4096, 4096, 4096), (16, 4096, 4096), (1, 8192, 8192), (512, 512, 512)):
        problem = Problem.stored(M, N, K, "float16", "float16", "nt", capability=capability)
        if capability < least:
            with pytest.raises(UnsupportedError, match="compute capability"):
                dispatch.choose(problem, backend)
            continue
        chosen = dispatch.choose(problem, backend)
        assert chosen.why_not(problem) is None
        for row in dispatch.ladder(backend):
            if capability != (9, 0) and "wgmma" in row.name:
                assert row.why_not(problem) is not None


def test_promise_27_what_a_launcher_refuses_its_row_refuses(row):
    """No launcher that counts in 32 bits gets a size past 2^31."""
    big = 2**31 - 8
    problem = Problem.stored(big, 8, 8, *row.pairs[0][:2], "nt", capability=(9, 0))
    reason = row.why_not(replace(problem, device=row.devices[0]))
    if reason is not None:
        assert any(character.isdigit() for character in reason)
    elif row.full_name == "cuda/small":
        raise AssertionError("small's launcher counts to 2^31 - 256")


def test_what_cannot_be_built_is_explained(monkeypatch, tmp_path):
    """A kernel is built as a call binds it: its failure is of the family, as one of a launch is."""
    module = tmp_path / "broken_backend.py"
    module.write_text(
        "KERNELS = (dict(name='one', adds='a rung', pairs=(('float16', 'float16'),),"
        " devices=('cpu',)),)\n"
        "def load(name):\n"
        "    def run(a, b, c): pass\n"
        "    def bind(*given, **plan): raise RuntimeError('nvcc was not found: install it')\n"
        "    run.bind = bind\n"
        "    return run\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(dispatch.BACKENDS, "broken", "broken_backend")
    a = torch.ones(8, 8).half()
    with pytest.raises(TcgemmError, match=r"broken/one failed on 8x8x8.*nvcc was not found"):
        tcgemm.matmul(a, a, backend="broken")


@pytest.mark.parametrize("name", ["backend", "kernel", "mma_shape"])
def test_a_name_that_is_no_str_is_refused(name):
    a = torch.ones(8, 8).half()
    with pytest.raises(OperandTypeError, match=f"{name} is a list"):
        tcgemm.gemm(a, a, **{"backend": "cublas", name: ["triton"]})


def test_factors_of_any_kind_find_the_launch_that_is_kept():
    a = torch.ones(8, 8).half()
    launch_cache.forget()
    for alpha in (2.0, torch.tensor(2.0), torch.tensor(2.0).numpy()[()]):
        for _ in range(3):
            assert (tcgemm.gemm(a, a, alpha=alpha, backend="cublas") == 16).all()
    assert {launch.asked.alpha for launch in launch_cache.launches.values()} == {2.0}
    tcgemm.gemm(a, a, alpha=float("nan"), backend="cublas")
    assert {launch.asked.alpha for launch in launch_cache.launches.values()} == {2.0}


def test_parts_of_a_batch_share_a_kernel_only_where_c_is_aligned_alike():
    M, N, K = 3, 5, 8
    a, b = torch.ones(2, 3, M, K)[:, :2], torch.ones(2, 2, K, N)
    c = torch.zeros(2 * (2 * M * N + 1)).as_strided((2, 2, M, N), (2 * M * N + 1, M * N, N, 1))
    launch_cache.forget()
    result = tcgemm.gemm(a, b, c, beta=1.0, backend="cublas")
    assert (result == K).all()
    parts = next(iter(launch_cache.launches.values())).starts
    assert parts[0] is not parts[1]


def test_a_workspace_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("TCGEMM_WORKSPACE_MIB", "1GiB")
    with pytest.raises(OperandError, match="TCGEMM_WORKSPACE_MIB is '1GiB'"):
        repacking._workspace_mib()


def test_promise_27_rows_say_no_more_than_they_keep(row, device):
    """A product that the row accepts here is right: what it names, it can."""
    call, made = made_for(row, device=device, size=64)
    result = multiply(row, made, call)
    if result is not None:
        assert right(call, made, result)
