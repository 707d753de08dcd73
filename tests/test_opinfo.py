"""PyTorch's own samples of its matrix products, with their gradients, through the override."""

from __future__ import annotations

import pytest
import torch

import tcgemm


@pytest.fixture(scope="module")
def operators():
    """What torch has samples of: its import takes longer than all of this file's collection."""
    pytest.importorskip("expecttest", reason="torch's samples import it: pip install expecttest")
    return pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    tcgemm.stats(reset=True)


PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "nn.functional.linear")
DTYPES = {
    "cublas": (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64),
    "triton": (torch.float32,),
    "cuda": (torch.float16,),
}
FEW = 4
"""Samples of an operator where Triton's interpreter or the simulator multiplies."""
ELSEWHERE = ("the dtype is", "the operands' dimensions differ", "a factor is not a real number",
             "C has shape")  # fmt: skip


@pytest.mark.spread(3, "name", "backend")
@pytest.mark.parametrize("backend", DTYPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_opinfo_samples_through_the_override(name, backend, operators):
    (info,) = (op for op in operators if op.name == name and not op.variant_test_name)
    for dtype in DTYPES[backend]:
        if dtype not in info.dtypes:
            continue
        samples = list(info.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point))
        if backend != "cublas":  # matmul's samples are of vectors too
            samples = [s for s in samples if s.args[0].dim() > 1]
        step = 1 if backend == "cublas" else -(-len(samples) // FEW)
        for sample in samples[::step]:
            operands = (sample.input, *sample.args)
            expected = info(*operands, **sample.kwargs)
            with tcgemm.override_aten(backend=backend):
                result = info(*operands, **sample.kwargs)
                wanted = [t for t in operands if isinstance(t, torch.Tensor) and t.requires_grad]
                mine = gradients(result, wanted)
            torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
            for gradient, reference in zip(mine, gradients(expected, wanted), strict=True):
                torch.testing.assert_close(gradient, reference, rtol=2e-2, atol=2e-2)
    ran = tcgemm.stats()
    assert any(each.where.startswith(f"{backend}/") for each in ran)
    for each in ran:
        assert (each.where == "torch") == bool(each.reason)
        assert each.where != "torch" or each.reason.startswith(ELSEWHERE), each


def gradients(result, wanted):
    if not wanted or not result.requires_grad or not result.numel():
        return []
    return torch.autograd.grad(result.sum(), wanted, allow_unused=True)
