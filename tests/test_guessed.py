"""A guessed launch is the one that the call's key names, or none: what may differ between two calls
of the same shapes differs here, one thing at a time."""

from __future__ import annotations

import contextlib
from importlib import import_module

import pytest
import torch

import tcgemm
from tcgemm import launch_cache
from tcgemm.errors import OperandError, OperandTypeError

HOW = {"backend": "cublas"}


@pytest.fixture(autouse=True)
def fresh():
    launch_cache.forget()
    yield
    launch_cache.forget()


def operands(dtype=torch.float32):
    return torch.randn(8, 6).to(dtype), torch.randn(6, 4).to(dtype), torch.randn(4).to(dtype)


def keys_asked(monkeypatch, call):
    """How often a call asks for a key, and its result."""
    asked, key_of = [], launch_cache.key_of
    with monkeypatch.context() as patched:
        for module in (launch_cache, import_module("tcgemm.call")):
            patched.setattr(module, "key_of", lambda *of: asked.append(1) or key_of(*of))
        result = call()
    return len(asked), result


@pytest.mark.parametrize("more", ["", "bias", "out"])
def test_a_repeated_call_is_guessed(monkeypatch, more):
    def call(a, b, bias):
        given = {"bias": bias, "out": torch.full((8, 4), 7.0)}
        return tcgemm.gemm(a, b, **{name: given[name] for name in given if name == more}, **HOW)

    call(*operands())
    a, b, bias = operands()
    asked, result = keys_asked(monkeypatch, lambda: call(a, b, bias))
    assert asked == 0
    torch.testing.assert_close(result, a @ b + (bias if more == "bias" else 0))


def test_what_is_forgotten_is_guessed_no_more(monkeypatch):
    a, b, _ = operands()
    tcgemm.matmul(a, b, **HOW)
    launch_cache.forget()
    assert keys_asked(monkeypatch, lambda: tcgemm.matmul(a, b, **HOW))[0] > 0


def moved(x, elements):
    """The same numbers, so many elements further on in memory."""
    room = torch.zeros(x.numel() + 64, dtype=x.dtype)
    room = room[-(room.data_ptr() // room.itemsize) % 64 :]  # from a whole line on
    return room[elements : elements + x.numel()].view(x.shape).copy_(x)


OTHERS = {
    "strides of A": lambda a, b, s: (a.mT.contiguous().mT, b, s),
    "strides of B": lambda a, b, s: (a, b.mT.contiguous().mT, s),
    "a dtype": lambda a, b, s: (a.double(), b.double(), s.double()),
    "where A begins": lambda a, b, s: (moved(a, 3), b, s),
    "where B begins": lambda a, b, s: (a, moved(b, 3), s),
    "where the bias begins": lambda a, b, s: (a, b, moved(s, 3)),
    "the bias lies in A": lambda a, b, s: (a, b, a.view(-1)[:4]),
    "a parameter": lambda a, b, s: (a, torch.nn.Parameter(b, requires_grad=False), s),
}


@pytest.mark.parametrize("which", OTHERS)
def test_another_kind_of_the_same_shapes_is_seen(which):
    a, b, bias = operands()
    a, b, bias = moved(a, 0), moved(b, 0), moved(bias, 0)
    for _ in range(2):
        tcgemm.gemm(a, b, bias=bias, **HOW)
    first = (a, b, None, 1.0, 0.0, bias, *[None] * 7, "cublas", None)
    assert launch_cache.guessed(first) is launch_cache.launches[launch_cache.key_of(*first)]
    x, y, z = OTHERS[which](a, b, bias)
    second = (x, y, None, 1.0, 0.0, z, *[None] * 7, "cublas", None)
    assert launch_cache.guessed(second) is None
    for _ in range(3):
        result = tcgemm.gemm(x, y, bias=z, **HOW)
        torch.testing.assert_close(result, (x @ y + z).detach())


def rows_apart(c):
    return torch.zeros(8, 8)[:, :4]


OUTS = {
    "strides": lambda a, b, c: rows_apart(c),
    "where it begins": lambda a, b, c: moved(c, 3),
    "a parameter": lambda a, b, c: torch.nn.Parameter(c, requires_grad=False),
}


@pytest.mark.parametrize("which", OUTS)
def test_another_kind_of_out_is_seen(which):
    a, b, _ = operands()
    c = moved(torch.zeros(8, 4), 0)
    for _ in range(2):
        assert tcgemm.matmul(a, b, out=c, **HOW) is c
    other = OUTS[which](a, b, c)
    asked = (a, b, None, 1.0, 0.0, None, None, other, *[None] * 5, "cublas", None)
    assert launch_cache.guessed((*asked[:7], c, *asked[8:])) is not None
    assert launch_cache.guessed(asked) is None
    for _ in range(3):
        other.zero_()
        torch.testing.assert_close(tcgemm.matmul(a, b, out=other, **HOW).detach(), a @ b)


def test_with_a_bias_and_out_the_key_is_asked():
    a, b, bias = operands()
    c = torch.zeros(8, 4)
    for given in ({"out": c}, {"bias": bias}, {"bias": bias, "out": c}, {"out": c}):
        for _ in range(2):
            result = tcgemm.gemm(a, b, **given, **HOW)
            torch.testing.assert_close(result, a @ b + given.get("bias", 0))


def test_an_out_that_overlaps_is_refused_however_often_another_was_right():
    room = torch.randn(64 + 64)
    a, b, right = room[:64].view(8, 8), torch.randn(8, 8), torch.zeros(8, 8)
    for _ in range(3):
        tcgemm.matmul(a, b, out=right, **HOW)
    overlapping = room[32:96].view(8, 8)
    for out in (overlapping, a):
        with pytest.raises(OperandError, match="overlap"):
            tcgemm.matmul(a, b, out=out, **HOW)


def test_an_out_that_may_not_be_written_now_is_refused_as_ever():
    a, b, _ = operands()
    for _ in range(2):
        tcgemm.matmul(a, b, out=torch.zeros(8, 4), **HOW)
    with torch.inference_mode():
        frozen = torch.zeros(8, 4)
        for _ in range(3):
            torch.testing.assert_close(tcgemm.matmul(a, b, out=frozen, **HOW), a @ b)
    assert not any(guess.check(a, b, frozen) for guess in launch_cache.guesses.values())
    with pytest.raises(OperandError, match="inference"):
        tcgemm.matmul(a, b, out=frozen, **HOW)
    learning = torch.zeros(8, 4, requires_grad=True)
    with torch.no_grad():
        for _ in range(3):
            tcgemm.matmul(a, b, out=learning, **HOW)
    with pytest.raises(OperandError, match="grad"):
        tcgemm.matmul(a, b, out=learning, **HOW)


def test_an_out_of_inference_mode_is_no_other_out_that_was_right_within_it():
    a, b, _ = operands()
    with torch.inference_mode():
        for _ in range(3):
            tcgemm.matmul(a, b, out=torch.zeros(8, 4), **HOW)
        frozen = a.clone(), b.clone(), torch.zeros(8, 4)
    usual = torch.zeros(8, 4)
    with torch.inference_mode():
        launch_cache.forget()
        for _ in range(3):
            tcgemm.matmul(a, b, out=usual, **HOW)
    assert any(guess.check(*frozen) for guess in launch_cache.guesses.values())
    with pytest.raises(OperandError, match="inference"):
        tcgemm.matmul(*frozen[:2], out=frozen[2], **HOW)
    assert not frozen[2].any()


def test_a_sign_that_is_not_in_memory_is_refused_as_ever():
    a, b, _ = operands()
    for _ in range(2):
        tcgemm.matmul(a, b, **HOW)
    with pytest.raises(OperandTypeError, match="lazily negated"):
        tcgemm.matmul(torch._neg_view(a), b, **HOW)


def test_one_tensor_for_both_is_not_guessed():
    a, b = moved(torch.randn(8, 8), 0), moved(torch.randn(8, 8), 0)
    for x, y in ((a, b), (a, a), (a, b), (b, b.view(8, 8))):  # torch's check knows objects alone
        torch.testing.assert_close(tcgemm.matmul(x, y, **HOW), x @ y)
        same = (x, y, None, 1.0, 0.0, *[None] * 8, "cublas", None)
        assert (launch_cache.guessed(same) is None) == (x.data_ptr() == y.data_ptr())


def test_a_gradient_that_somebody_asks_for_is_not_lost():
    a, b, bias = operands()
    for _ in range(2):
        tcgemm.gemm(a, b, bias=bias, **HOW)
    a.requires_grad_()
    with torch.no_grad():  # as in an evaluation between steps of training
        for _ in range(3):
            assert not tcgemm.gemm(a, b, bias=bias, **HOW).requires_grad
    tcgemm.gemm(a, b, bias=bias, **HOW).sum().backward()
    torch.testing.assert_close(a.grad, b.sum(1).expand(8, 6))


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


MODES = {
    "deterministic": deterministic,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_heard(mode):
    a, b, _ = operands()
    for _ in range(2):
        tcgemm.matmul(a, b, **HOW)
    with MODES[mode]():
        results = [tcgemm.matmul(a, b, **HOW) for _ in range(4)]
        wanted = a @ b
    assert {(r.dtype, r.is_inference()) for r in results} == {(wanted.dtype, wanted.is_inference())}
    assert tcgemm.matmul(a, b, **HOW).dtype == torch.float32
    if mode == "deterministic":
        assert len({launch.problems[0] for launch in launch_cache.launches.values()}) == 2


def test_weights_are_guessed_while_nobody_records_a_gradient(monkeypatch):
    """Inference by a layer, whose Parameter requires one; the guess is not taken where somebody
    does."""
    x, weight = torch.randn(8, 6), torch.nn.Parameter(torch.randn(6, 4))
    with torch.no_grad():
        tcgemm.matmul(x, weight, **HOW)
        asked, result = keys_asked(monkeypatch, lambda: tcgemm.matmul(x, weight, **HOW))
    assert asked == 0
    torch.testing.assert_close(result, x @ weight)
    tcgemm.matmul(x, weight, **HOW).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0)[:, None].expand(6, 4))


def test_calls_that_are_not_guessed_use_up_no_guess():
    a, b, _ = operands()
    for _ in range(2):
        tcgemm.matmul(a, b, **HOW)
    for _ in range(20):
        tcgemm.gemm(a, b, alpha=2.0, **HOW)
    assert [each.missed for each in launch_cache.guesses.values()] == [0]


def test_a_transform_sees_its_own_tensors():
    a, b, _ = operands()
    for _ in range(2):
        tcgemm.matmul(a, b, **HOW)
    batch = torch.randn(3, 8, 6)
    mapped = torch.func.vmap(lambda x: tcgemm.matmul(x, b, **HOW))(batch)
    torch.testing.assert_close(mapped, batch @ b)


def test_a_tensor_whose_memory_is_gone_is_refused_as_ever():
    a, b, _ = operands()
    for _ in range(2):
        tcgemm.matmul(a, b, **HOW)
    a.untyped_storage().resize_(0)
    gone = (a, b, None, 1.0, 0.0, *[None] * 8, "cublas", None)
    assert launch_cache.guessed(gone) is None


def test_other_factors_are_asked_by_key():
    a, b, bias = operands()
    for _ in range(2):
        tcgemm.gemm(a, b, bias=bias, **HOW)
    for alpha in (2.0, 1, 1.0):
        result = tcgemm.gemm(a, b, alpha=alpha, bias=bias, **HOW)
        torch.testing.assert_close(result, alpha * (a @ b) + bias)


def test_kinds_that_alternate_are_guessed_anew_ever_more_rarely(monkeypatch):
    a, b, _ = operands()
    other = a.mT.contiguous().mT
    made, make = [], launch_cache._make
    monkeypatch.setattr(
        launch_cache, "_make", lambda *of, **how: made.append(1) or make(*of, **how)
    )
    for _ in range(64):
        for x in (a, other):
            torch.testing.assert_close(tcgemm.matmul(x, b, **HOW), a @ b)
    assert 2 <= len(made) <= 10


def test_a_torch_without_such_a_check_has_keys_alone(monkeypatch):
    monkeypatch.setattr(launch_cache, "_make", None)
    a, b, _ = operands()
    for _ in range(3):
        torch.testing.assert_close(tcgemm.matmul(a, b, **HOW), a @ b)
    assert not launch_cache.guesses


def test_a_check_of_another_signature_is_not_used(monkeypatch):
    def refuses(*tensors, **how):
        raise TypeError("another signature")

    monkeypatch.setattr(launch_cache, "_make", refuses)
    a, b, _ = operands()
    for _ in range(3):
        torch.testing.assert_close(tcgemm.matmul(a, b, **HOW), a @ b)
    assert not launch_cache.guesses


def test_torch_has_the_check_in_the_versions_that_are_tested():
    assert callable(launch_cache._make)
