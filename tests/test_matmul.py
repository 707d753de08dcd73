"""tcgemm.matmul: what it checks, what it says, what it leaves alone. Values: test_promises_*.py."""

from __future__ import annotations

import pytest
import torch

import tcgemm
from tcgemm import dispatch
from tcgemm.errors import OperandError, OperandTypeError, UnknownNameError, UnsupportedError
from tcgemm.operands import overlap


def operands(M=5, N=7, K=6, dtype=torch.float16, device="cpu"):
    return (
        torch.randn(M, K, device=device).to(dtype),
        torch.randn(K, N, device=device).to(dtype),
    )


def test_multiplies(device):
    a, b = operands(device=device)
    c = tcgemm.matmul(a, b, backend="cublas")
    assert c.dtype == torch.float16
    assert torch.allclose(c.float(), a.float() @ b.float(), atol=1e-2)


def refused(error, *words, a=None, b=None, **arguments):
    default_a, default_b = operands()
    arguments.setdefault("backend", "cublas")
    with pytest.raises(error) as caught:
        tcgemm.matmul(default_a if a is None else a, default_b if b is None else b, **arguments)
    for word in words:
        assert word in str(caught.value)
    assert isinstance(caught.value, tcgemm.TcgemmError)


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "words"),
    [
        ((5, 6), (7, 6), ("[5, 6]", "[7, 6]", "6 and 7", "B.mT would fit")),
        ((6, 5), (6, 7), ("[6, 5]", "[6, 7]", "5 and 6", "A.mT would fit")),
        ((6, 5), (7, 6), ("[6, 5]", "[7, 6]", "both A.mT and B.mT")),
        ((5, 6), (8, 7), ("[5, 6]", "[8, 7]", "6 and 8")),
    ],
)
def test_inner_dimensions_differ(a_shape, b_shape, words):
    refused(OperandError, *words, a=torch.zeros(a_shape).half(), b=torch.zeros(b_shape).half())


def test_no_remedy_is_named_where_none_fits():
    with pytest.raises(OperandError) as caught:
        tcgemm.matmul(torch.zeros(5, 6).half(), torch.zeros(8, 7).half())
    assert "mT" not in str(caught.value)


def test_dtypes_differ():
    a, b = operands()
    refused(OperandTypeError, "A is float16", "B is bfloat16", ".to()", a=a, b=b.bfloat16())


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.complex64, torch.bool])
def test_unsupported_dtype(dtype):
    a, b = (t.to(dtype) for t in operands())
    refused(OperandTypeError, str(dtype).removeprefix("torch."), "float16, bfloat16", a=a, b=b)


def test_mixed_signs_name_the_pairs():
    a, b = torch.zeros(5, 6, dtype=torch.int8), torch.zeros(6, 7, dtype=torch.uint8)
    refused(OperandTypeError, "int8 with int8, uint8 with uint8", a=a, b=b)


def test_a_scalar_is_no_operand():
    refused(OperandError, "A is a scalar", "alpha=", a=torch.zeros(()).half())
    refused(OperandError, "B is a scalar", b=torch.zeros(()).half())


def test_not_a_tensor():
    refused(OperandTypeError, "A is a list", a=[[1.0]])
    refused(OperandTypeError, "B is a ndarray", b=torch.zeros(6, 7).numpy())
    refused(OperandTypeError, "out is a list", out=[])


def test_sparse_operand():
    a, _ = operands()
    refused(OperandTypeError, "sparse", ".to_dense()", a=a.to_sparse())


def test_an_operand_whose_storage_was_freed():
    a, b = operands()
    a.untyped_storage().resize_(0)
    refused(OperandError, "A has shape [5, 6] and needs 60 bytes", "storage has 0", a=a, b=b)


def test_unknown_names_list_what_exists():
    refused(UnknownNameError, "'metal'", "triton", "cuda", "cublas", backend="metal")
    refused(UnknownNameError, "'fast'", "torch_cpu", "cublas", kernel="fast")


def test_unknown_name_is_found_before_an_empty_result():
    refused(UnknownNameError, "fast", a=torch.zeros(0, 6).half(), kernel="fast")


def test_requires_grad():
    a, b = operands()
    c = tcgemm.matmul(a.requires_grad_(), b, backend="cublas")
    (gradient,) = torch.autograd.grad(c.sum(), a)
    assert torch.allclose(gradient, torch.ones(5, 7).half() @ b.T, atol=1e-2)
    refused(OperandError, "out=... arguments", "A requires grad", "leave out= away",
            a=a, out=torch.zeros(5, 7).half())  # fmt: skip
    with torch.no_grad():
        assert not tcgemm.matmul(a, b, backend="cublas").requires_grad


def test_a_lazily_negated_view_is_refused_after_a_like_one_was_multiplied():
    numbers, b = torch.randn(5, 6, dtype=torch.cfloat), torch.randn(6, 7)
    plain, negated = numbers.imag, numbers.conj().imag
    assert (negated.data_ptr(), negated.stride()) == (plain.data_ptr(), plain.stride())
    for _ in range(2):
        tcgemm.matmul(plain, b, backend="cublas")
    refused(OperandTypeError, "A is a lazily negated view", "resolve_neg", a=negated, b=b)
    refused(OperandError, "out is a lazily negated", a=torch.randn(5, 9), b=torch.randn(9, 6),
            out=negated)  # fmt: skip


def test_gpu_only_kernel_on_cpu_tensors_names_the_cure():
    refused(UnsupportedError, "cublas/cublas", "on cpu", "torch_cpu", kernel="cublas")


@pytest.mark.gpu
def test_operands_on_two_devices():
    a, b = operands()
    refused(OperandError, "A is on cuda:0", "B is on cpu", ".to()", a=a.cuda(), b=b)
    refused(OperandError, "out is on cpu", a=a.cuda(), b=b.cuda(), out=torch.zeros(5, 7).half())


class TestOut:
    def test_written_in_place(self):
        a, b = operands()
        out = torch.full((5, 7), float("nan")).half()
        assert tcgemm.matmul(a, b, backend="cublas", out=out) is out
        assert torch.equal(out, tcgemm.matmul(a, b, backend="cublas"))

    def test_bytes_outside_the_view_stay(self):
        a, b = operands()
        base = torch.full((10, 20), -1000.0).half()
        tcgemm.matmul(a, b, backend="cublas", out=base[1:6, 2:16:2])
        outside = torch.ones(10, 20, dtype=torch.bool)
        outside[1:6, 2:16:2] = False
        assert (base[outside] == -1000).all()
        # A sum of six products of normal numbers is nowhere near.
        assert not (base[1:6, 2:16:2] == -1000).any()

    def test_wrong_shape(self):
        refused(OperandError, "[5, 8]", "[5, 7]", out=torch.zeros(5, 8).half())

    def test_wrong_dtype(self):
        refused(OperandTypeError, "bfloat16", "float16", out=torch.zeros(5, 7).bfloat16())
        refused(
            OperandTypeError,
            "float16",
            "float32",
            out=torch.zeros(5, 7).half(),
            out_dtype=torch.float32,
        )
        refused(
            OperandTypeError,
            "out_dtype is float64",
            "float16 or float32",
            out_dtype=torch.float64,
        )

    def test_out_decides_the_dtype(self):
        a, b = operands()
        assert tcgemm.matmul(a, b, backend="cublas", out=torch.zeros(5, 7)).dtype == torch.float32

    @pytest.mark.parametrize(
        "strides", [(0, 1), (1, 0), (1, 1), (3, 2), (0, 0)], ids=lambda s: f"{s[0]},{s[1]}"
    )
    def test_self_overlap(self, strides):
        out = torch.zeros(100).half().as_strided((5, 7), strides)
        refused(OperandError, "share memory", str(strides), out=out)

    @pytest.mark.parametrize("strides", [(7, 1), (1, 5), (20, 2), (2, 11), (5, 6)])
    def test_odd_but_disjoint_strides_are_taken(self, strides):
        a, b = operands()
        out = torch.zeros(200).half().as_strided((5, 7), strides)
        elements = {i * strides[0] + j * strides[1] for i in range(5) for j in range(7)}
        assert len(elements) == 35
        tcgemm.matmul(a, b, backend="cublas", out=out)
        assert torch.equal(out, tcgemm.matmul(a, b, backend="cublas"))

    def test_overlap_with_an_operand(self):
        a, b = operands(6, 6, 6)
        refused(OperandError, "out overlaps A", a=a, b=b, out=a)
        refused(OperandError, "out overlaps B", a=a, b=b, out=b.T)

    @pytest.mark.parametrize("transposed", [False, True])
    def test_neighbouring_windows_of_one_buffer_do_not_overlap(self, transposed):
        base = torch.randn(6, 18).half()
        a, out, b = base[:, :6], base[:, 6:12], base[:, 12:]
        if transposed:
            a, b, out = a.T, b.T, out.T
        expected = (a.float() @ b.float()).half()
        tcgemm.matmul(a, b, backend="cublas", out=out)
        assert torch.allclose(out, expected, atol=1e-2)

    def test_an_out_may_begin_where_an_operand_ends(self):
        base, b = torch.randn(60).half(), torch.randn(6, 5).half()
        a, out = base[:24].view(4, 6), base[24:44].view(4, 5)
        assert not overlap(a, out)
        assert not overlap(out, a)
        expected = (a.float() @ b.float()).half()
        tcgemm.matmul(a, b, backend="cublas", out=out)
        assert torch.allclose(out, expected, atol=1e-2)

    def test_windows_that_do_overlap(self):
        base = torch.randn(6, 18).half()
        refused(OperandError, "overlaps A", a=base[:, :6], b=base[:, 12:], out=base[:, 5:11])

    def test_requires_grad(self):
        out = torch.zeros(5, 7).half().requires_grad_()
        refused(OperandError, "out=... arguments don't support automatic differentiation", out=out)


def test_inputs_are_not_modified():
    a, b = operands()
    a0, b0 = a.clone(), b.clone()
    tcgemm.matmul(a, b, backend="cublas")
    assert torch.equal(a, a0)
    assert torch.equal(b, b0)


def test_environment_variable_sets_the_default_backend(monkeypatch):
    a, b = operands()
    monkeypatch.setenv(dispatch.BACKEND_VARIABLE, "cublas")
    assert dispatch.default_backend() == "cublas"
    assert torch.equal(tcgemm.matmul(a, b), tcgemm.matmul(a, b, backend="cublas"))
    monkeypatch.setenv(dispatch.BACKEND_VARIABLE, "metal")
    with pytest.raises(UnknownNameError, match="metal"):
        tcgemm.matmul(a, b)
    monkeypatch.delenv(dispatch.BACKEND_VARIABLE)
    assert dispatch.default_backend() == "triton"


def test_an_unknown_default_names_the_variable(monkeypatch):
    monkeypatch.setenv("TCGEMM_BACKEND", "tritn")
    a, b = operands()
    for call in (tcgemm.matmul, lambda a, b: tcgemm.linear(a, b.mT)):
        with pytest.raises(UnknownNameError, match=r"TCGEMM_BACKEND is 'tritn'.*cublas or auto"):
            call(a, b)


def test_kernels_lists_every_row():
    frame = tcgemm.kernels()
    assert list(frame.columns) == [
        "backend",
        "kernel",
        "kind",
        "adds",
        "type_pairs",
        "fuses",
        "shapes",
        "capability",
        "runs_here",
        "why_not",
    ]
    named = set(zip(frame.backend, frame.kernel, strict=True))
    for backend in dispatch.BACKENDS:
        assert {(backend, row.name) for row in dispatch.ladder(backend)} <= named
    assert (frame.runs_here == (frame.why_not == "")).all()
    assert frame.adds.str.len().min() > 10


def test_choice_takes_the_highest_rung_that_accepts(monkeypatch, tmp_path):
    module = tmp_path / "stand_in_backend.py"
    module.write_text(
        "def refuse(p):\n"
        "    return f'M={p.M} is no multiple of 16' if p.M % 16 else None\n"
        "PAIRS = (('float16', 'float16'),)\n"
        "def row(name, **more):\n"
        "    return dict(name=name, adds='a rung', pairs=PAIRS, devices=('cpu',), **more)\n"
        "KERNELS = (row('low'), row('high', refuse=refuse))\n"
        "def choose(problem, able):\n"
        "    return able[0] if problem.N == 9 else able[-1]\n"
        "def load(name):\n"
        "    return lambda a, b, c: c.fill_({'low': 1, 'high': 2}[name])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(dispatch.BACKENDS, "stand_in", "stand_in_backend")
    arguments = {"backend": "stand_in"}
    assert (tcgemm.matmul(*operands(M=16), **arguments) == 2).all()
    assert (tcgemm.matmul(*operands(M=17), **arguments) == 1).all()
    assert (tcgemm.matmul(*operands(M=16, N=9), **arguments) == 1).all()
    assert (tcgemm.matmul(*operands(M=16, N=9), kernel="high", **arguments) == 2).all()
    with pytest.raises(UnsupportedError) as caught:
        tcgemm.matmul(*operands(M=17), kernel="high", **arguments)
    assert "M=17 is no multiple of 16" in str(caught.value)
    assert "low" in str(caught.value)
    with pytest.raises(UnsupportedError, match="float16 -> float32 summed as float32 is none"):
        tcgemm.matmul(*operands(M=16), out_dtype=torch.float32, **arguments)


def test_deterministic_algorithms_rule_out_what_is_not(monkeypatch, tmp_path):
    module = tmp_path / "fickle_backend.py"
    module.write_text(
        "def row(name, deterministic):\n"
        "    return dict(name=name, adds='a rung', pairs=(('float16', 'float16'),),\n"
        "                devices=('cpu',), deterministic=deterministic)\n"
        "KERNELS = (row('steady', True), row('fickle', False))\n"
        "def load(name):\n"
        "    return lambda a, b, c: c.fill_({'steady': 1, 'fickle': 2}[name])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(dispatch.BACKENDS, "fickle", "fickle_backend")
    assert (tcgemm.matmul(*operands(), backend="fickle") == 2).all()
    # Setting torch's own flag would import triton, before the interpreter can be chosen.
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setattr("tcgemm.launch_cache.deterministic", lambda: True)
    assert (tcgemm.matmul(*operands(), backend="fickle") == 1).all()
    with pytest.raises(UnsupportedError, match=r"other bits.*kernels of fickle .*: steady"):
        tcgemm.matmul(*operands(), backend="fickle", kernel="fickle")
