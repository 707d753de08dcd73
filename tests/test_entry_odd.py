"""Calls in unusual hands: results of nothing, vectors with C, arrays that may not be written,
overrides that nest and threads that go on, and whether the remedy in a message works."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

import tcgemm
from tcgemm.errors import OperandError, OperandTypeError, UnsupportedError

CUBLAS = {"backend": "cublas"}


def drawn(*shape, grad=False):
    return torch.randn(*shape, requires_grad=grad)


@pytest.mark.parametrize("backend", ["cublas", "triton", "cuda"])
def test_a_product_of_vectors_has_a_c_of_no_dimension(backend):
    a, b, c = drawn(4, grad=True), drawn(4), drawn(())
    got = tcgemm.gemm(a, b, c, alpha=2, beta=-0.5, backend=backend)
    torch.testing.assert_close(got, 2 * (a @ b) - 0.5 * c)
    got.backward()
    torch.testing.assert_close(a.grad, 2 * b)


@pytest.mark.parametrize(
    "shapes", [((2, 3, 4), (0, 4)), ((2, 0, 4), (5, 4)), ((2, 3, 0), (5, 0)), ((2, 3, 0), (0, 0))]
)
def test_the_backward_pass_of_an_empty_batch(shapes):
    x, w = (drawn(*shape, grad=True) for shape in shapes)
    tcgemm.linear(x, w, **CUBLAS).sum().backward()
    wanted = [drawn(*shape, grad=True) for shape in shapes]
    torch.nn.functional.linear(*wanted).sum().backward()
    assert [x.grad.shape, w.grad.shape] == [t.grad.shape for t in wanted]
    assert not x.grad.any()


def test_a_layer_takes_auto_as_its_calls_do():
    layer = tcgemm.nn.Linear(4, 5, backend="auto")
    assert tcgemm.replace_linear(torch.nn.Linear(4, 5), backend="auto").backend == "auto"
    assert layer(drawn(3, 4)).shape == (3, 5)


def test_out_within_a_transform_is_refused_in_a_sentence():
    out = torch.empty(3, 5)
    with pytest.raises(UnsupportedError, match="leave out= away"):
        torch.vmap(lambda a: tcgemm.matmul(a, torch.ones(4, 5), out=out, **CUBLAS))(drawn(2, 3, 4))


def test_a_mapped_bias_is_checked_as_any():
    def call(a, bias):
        return tcgemm.gemm(a, torch.ones(4, 5), bias=bias, **CUBLAS)

    assert torch.vmap(call)(drawn(6, 3, 4), drawn(6, 5)).shape == (6, 3, 5)
    with pytest.raises(OperandError, match=r"bias has shape \[1\]"):
        torch.vmap(call)(drawn(6, 3, 4), drawn(6, 1))
    with pytest.raises(OperandTypeError, match="bias is float64"):
        torch.vmap(call)(drawn(6, 3, 4), drawn(6, 5).double())


def test_linear_speaks_of_x_and_weight_and_takes_arrays():
    with pytest.raises(OperandError, match=r"x is \[3, 4\] and weight \[4, 5\].*weight.mT"):
        tcgemm.linear(drawn(3, 4), drawn(4, 5), **CUBLAS)
    with pytest.raises(OperandTypeError, match="weight is a list"):
        tcgemm.linear(drawn(3, 4), [1.0], **CUBLAS)
    x, weight = drawn(3, 4), drawn(5, 4)
    for given, words in (
        ((x, weight.bfloat16()), "x is float32 and weight is bfloat16: convert one with"),
        ((x.long(), weight.long()), "x and weight are int64"),
        ((x.to_sparse(), weight), "x is torch.sparse_coo"),
        ((x, weight, drawn(3)), r"bias has shape \[3\].* of the result: \[5\]"),
        (
            (x.numpy(), weight),
            r"x is a numpy\.ndarray and weight a torch\.Tensor.*from_dlpack\(x\)",
        ),
        ((x, weight.numpy()), r"weight is a ndarray.*pass torch\.from_dlpack\(weight\)"),
        (([1.0], weight), "x is a list, not a torch.Tensor, nor an array of numpy"),
        ((x.long().numpy(), weight.long().numpy()), r"weight are int64.*\.astype\('int8'\)"),
    ):
        with pytest.raises((OperandError, OperandTypeError), match=words):
            tcgemm.linear(*given, **CUBLAS)
    x, weight, bias = (drawn(*shape).numpy() for shape in ((3, 4), (5, 4), (5,)))
    got = tcgemm.linear(x, weight, bias, epilogue="relu", **CUBLAS)
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, np.maximum(x @ weight.T + bias, 0), rtol=1e-5, atol=1e-6)


class OfDlpack:
    """An array of which one knows DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **asked):
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("kind", [np.asarray, OfDlpack])
def test_memory_that_is_read_only_is_not_written(kind):
    a, b, out = np.ones((3, 4), "f4"), np.ones((4, 5), "f4"), np.zeros((3, 5), "f4")
    assert tcgemm.matmul(kind(a), kind(b), out=kind(out), **CUBLAS) is not None
    assert (out == 4).all()
    out[:] = 0
    out.flags.writeable = False
    with pytest.raises(OperandTypeError, match=r"out is .*read-only"):
        tcgemm.matmul(kind(a), kind(b), out=kind(out), **CUBLAS)
    assert not out.any()
    a.flags.writeable = False  # what is read may be
    result = np.empty((3, 5), "f4")
    tcgemm.matmul(kind(a), kind(b), out=kind(result), **CUBLAS)
    assert (result == 4).all()


@pytest.mark.parametrize(
    "out", [np.zeros((3, 5), "f4")[::-1], np.zeros((3, 5), ">f4")], ids=["backward", "big-endian"]
)
def test_an_out_that_torch_cannot_write_is_named(out):
    with pytest.raises(OperandTypeError, match="copy from it"):
        tcgemm.matmul(np.ones((3, 4), "f4"), np.ones((4, 5), "f4"), out=out, **CUBLAS)


def test_a_mask_is_not_passed_over():
    masked = np.ma.array(np.ones((3, 4), "f4"), mask=np.eye(3, 4))
    with pytest.raises(OperandTypeError, match=r"A is a masked array.*filled"):
        tcgemm.matmul(masked, np.ones((4, 5), "f4"), **CUBLAS)
    assert tcgemm.matmul(masked.filled(0), np.ones((4, 5), "f4"), **CUBLAS)[0, 0] == 3


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_remedy_works():
    quantized = torch.quantize_per_tensor(drawn(4, 4), 0.1, 0, torch.qint8)
    with pytest.raises(OperandTypeError, match=r"A is quantized.*dequantize.*int_repr"):
        tcgemm.matmul(quantized, quantized, **CUBLAS)
    tcgemm.matmul(quantized.dequantize(), quantized.dequantize(), **CUBLAS)
    tcgemm.matmul(quantized.int_repr(), quantized.int_repr(), **CUBLAS)
    with pytest.raises(OperandTypeError, match=r"alpha is on the meta device.*pass a number"):
        tcgemm.gemm(drawn(3, 4), drawn(4, 5), alpha=torch.ones((), device="meta"), **CUBLAS)
    with pytest.raises(UnsupportedError, match="no backend takes it") as caught:
        tcgemm.gemm(drawn(3, 4), drawn(4, 5), mma_shape="1x1x1", **CUBLAS)
    assert ".cuda()" not in str(caught.value)


def where():
    """The backend that a product of torch runs on now; None where it is torch's own."""
    tcgemm.stats(reset=True)
    torch.ones(3, 4) @ torch.ones(4, 5)
    return next((ran.where.partition("/")[0] for ran in tcgemm.stats(reset=True)), None)


def test_of_nested_overrides_the_inner_one_holds_whatever_was_within():
    with tcgemm.override_aten("cublas"), tcgemm.override_aten("triton"):
        with tcgemm.override_aten("cublas"):
            assert where() == "cublas"
        assert where() == "triton"
    assert where() is None


def test_a_call_of_ours_within_the_override_runs_where_it_says():
    a, x = drawn(8, 8).bfloat16(), drawn(4, 8).bfloat16().requires_grad_()
    tcgemm.stats(reset=True)
    with tcgemm.override_aten("triton"):
        tcgemm.matmul(a, a, **CUBLAS)
        tcgemm.linear(x, a, epilogue="gelu", **CUBLAS).sum().backward()
    assert tcgemm.stats(reset=True) == []


def test_the_override_leaves_forward_mode_and_torchs_messages():
    a, b = drawn(3, 4), drawn(4, 5)
    with tcgemm.override_aten("cublas"):
        _, tangent = torch.func.jvp(lambda x: x @ b, (a,), (a,))
        with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
            a @ b.half()
        for wrong in (drawn(3, 3), drawn(1, 3, 5), drawn(3, 5).double()):  # a C that is not read
            with pytest.raises(RuntimeError, match=r"size|dtype"):
                torch.addmm(wrong, a, b, beta=0)
        unread = torch.full((5,), torch.nan)
        torch.testing.assert_close(torch.addmm(unread, a, b, beta=0), tcgemm.matmul(a, b, **CUBLAS))
    torch.testing.assert_close(tangent, a @ b)


def test_threads_go_on_as_overrides_begin_and_end():
    a, b = drawn(8, 8), drawn(8, 8)
    wanted, ended, wrong = a @ b, threading.Event(), []

    def multiply():
        while not ended.is_set():
            try:
                torch.testing.assert_close(a @ b, wanted)
                torch.testing.assert_close(torch.addmm(a, a, b), wanted + a)
            except BaseException as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=multiply) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        with tcgemm.override_aten("cublas"):
            time.sleep(0.005)
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert where() is None
    with tcgemm.override_aten("cublas"):
        assert where() == "cublas"
    assert where() is None


def test_factors_in_a_graph_are_those_of_a_call():
    def call(a, alpha):
        return tcgemm.gemm(a, a, alpha=alpha, **CUBLAS)

    whole, x = torch.ones(2, 2, dtype=torch.int8), drawn(4, 4)
    compiled = torch.compile(call, backend="aot_eager", dynamic=True)
    for alpha in (2, 3, 2**60 + 1, -(2**61) - 3):
        assert torch.equal(compiled(whole, alpha), call(whole, alpha))
    for alpha in (2.5, np.float32(2), torch.tensor(3.0)):
        torch.testing.assert_close(compiled(x, alpha), call(x, alpha))
    with pytest.raises(UnsupportedError, match="alpha requires grad"):
        compiled(x, torch.tensor(2.0, requires_grad=True))
