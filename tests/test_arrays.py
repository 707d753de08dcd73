"""Arrays of numpy, and of whatever speaks DLPack: in, and the same kind out."""

from __future__ import annotations

import warnings
import weakref

import numpy as np
import pytest
import torch

import tcgemm
from tcgemm import arrays, launch_cache
from tcgemm.errors import OperandError, OperandTypeError

BACKEND = {"backend": "cublas"}


def array(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def test_numpy_in_and_numpy_out():
    a, b, bias = array(5, 6), array(6, 7), array(7)
    c = tcgemm.gemm(a, b, alpha=np.float32(2), bias=bias, epilogue="relu", **BACKEND)
    assert type(c) is np.ndarray
    assert np.allclose(c, np.maximum(2 * a @ b + bias, 0), atol=1e-5)
    assert np.allclose(tcgemm.matmul(a.astype(np.float64), b.astype(np.float64), **BACKEND), a @ b,
                       atol=1e-5)  # fmt: skip


def test_out_is_the_array_itself():
    a, b, out = array(5, 6), array(6, 7), np.empty((7, 5), np.float32).T
    assert tcgemm.matmul(a, b, out=out, **BACKEND) is out
    assert np.allclose(out, a @ b, atol=1e-5)
    with pytest.raises(OperandError, match="out overlaps A"):
        tcgemm.matmul(a[:, :5], a[:5, :5], out=a[:, :5], **BACKEND)
    out.flags.writeable = False
    with pytest.raises(OperandTypeError, match=r"out is a numpy\.ndarray .*read-only"):
        tcgemm.matmul(a, b, out=out, **BACKEND)


VIEWS = {
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "stepped": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "field of a record": lambda x: np.rec.fromarrays([x, np.zeros(x.shape, np.int8)])["f0"],
    "read-only": lambda x: (x.setflags(write=False), x)[1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.filterwarnings("error")
def test_any_view(view):
    a, b = array(5, 6), array(6, 7)
    expected = a @ b
    assert np.allclose(tcgemm.matmul(view(a), b, **BACKEND), expected, atol=1e-5)


@pytest.mark.parametrize("view", ["transposed", "stepped", "read-only"])
def test_nothing_is_copied_that_torch_can_read(view, monkeypatch):
    seen = []
    make = launch_cache.make
    monkeypatch.setattr(launch_cache, "make", lambda *call: seen.append(call) or make(*call))
    launch_cache.forget()
    a = VIEWS[view](array(5, 6))
    tcgemm.matmul(a, array(6, 7), **BACKEND)
    assert seen[0][0].data_ptr() == a.ctypes.data


class Array:
    """A foreign array: DLPack, a device and a namespace, as the array API has them."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.dtype = tensor.dtype

    def __dlpack__(self, **asked):
        return self.tensor.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __array_namespace__(self):
        return Space


class Space:
    @staticmethod
    def from_dlpack(tensor):
        return Array(torch.from_dlpack(tensor))


def test_dlpack_in_and_the_same_kind_out(device):
    a, b = torch.randn(5, 6, device=device), torch.randn(6, 7, device=device)
    c = tcgemm.matmul(Array(a), Array(b), **BACKEND)
    assert type(c) is Array
    assert torch.allclose(c.tensor, a @ b, atol=1e-4)
    out = Array(torch.empty(5, 7, device=device))
    assert tcgemm.matmul(Array(a), Array(b), out=out, **BACKEND) is out
    assert torch.allclose(out.tensor, a @ b, atol=1e-4)


def test_what_cannot_be_says_so():
    a = array(4, 4)
    with pytest.raises(OperandTypeError, match=r"A is a numpy\.ndarray and B a torch\.Tensor"):
        tcgemm.matmul(a, torch.from_numpy(a), **BACKEND)
    with pytest.raises(OperandTypeError, match="B is a ndarray, not a torch"):
        tcgemm.matmul(torch.from_numpy(a), a, **BACKEND)
    with pytest.raises(OperandTypeError, match=r"A is a numpy\.ndarray of dtype object"):
        tcgemm.matmul(a.astype(object), a, **BACKEND)
    e4m3 = torch.zeros(16, 16).to(torch.float8_e4m3fn)
    with pytest.raises(OperandTypeError, match=r"the result is bfloat16 .* out_dtype"):
        arrays.as_given(tcgemm.matmul(e4m3, e4m3, **BACKEND), a)
    with pytest.raises(OperandTypeError, match=r"A is a list, .*__dlpack__, which are taken as"):
        tcgemm.matmul([[1.0]], a, **BACKEND)


def test_a_remedy_is_one_of_arrays():
    a, whole = array(4, 4), np.ones((4, 4), np.int64)
    with pytest.raises(OperandTypeError, match=r"\.astype\('int8'\) where .*\.astype\('float64'\)"):
        tcgemm.matmul(whole, whole, **BACKEND)
    assert tcgemm.matmul(whole.astype("int8"), whole.astype("int8"), **BACKEND)[0, 0] == 4
    with pytest.raises(OperandTypeError, match=r"convert one with \.astype\(\)"):
        tcgemm.matmul(a, a.astype("f8"), **BACKEND)
    with pytest.raises(OperandTypeError, match=r"convert C with \.astype\('float32'\)"):
        tcgemm.gemm(a, a, a.astype("f8"), beta=1, **BACKEND)
    tensor = torch.from_numpy(a)
    with pytest.raises(OperandTypeError, match=r"B is a ndarray.*torch\.from_dlpack\(B\)"):
        tcgemm.matmul(tensor, a, **BACKEND)
    tcgemm.matmul(tensor, torch.from_dlpack(a), **BACKEND)


def test_a_read_only_array_is_read_without_a_word_or_a_filter_of_warnings(monkeypatch):
    """What filters warnings is the process's: changed in a call, it stays so where threads meet."""

    def refuse(*args, **asked):
        raise AssertionError("the filters of warnings are changed")

    a, b = np.arange(12, dtype="f4").reshape(3, 4), np.ones((8, 5), "f4")[::2]
    a.flags.writeable = b.flags.writeable = False
    with monkeypatch.context() as patched:
        patched.setattr(warnings, "catch_warnings", refuse)
        patched.setattr(warnings, "simplefilter", refuse)
        patched.setattr(warnings, "warn", refuse)
        result = tcgemm.matmul(a, b, backend="cublas")
    np.testing.assert_array_equal(result, a @ b)
    assert result.flags.writeable
    assert not a.flags.writeable
    alive = weakref.ref(b.base)
    held = arrays.as_tensors((a, b, *(None,) * 13))
    del a, b
    assert held[0].shape == (3, 4)
    assert alive() is not None
    del held
    assert alive() is None
