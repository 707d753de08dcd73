"""What growing costs: an epilogue, a dtype and a GPU, each added to a copy of the project.

Each addition is made for real, in at most four files, and used by all that should know it.
"""

from __future__ import annotations

import pytest
from test_adding_a_kernel import copy_of_the_project, run

MOST_FILES = 4


@pytest.fixture
def site(tmp_path):
    return copy_of_the_project(tmp_path)


def add(site, tmp_path, changes, use):
    """Make the changes, (file, text, the text with the addition), and run ``use`` on the copy."""
    assert len({file for file, *_ in changes}) <= MOST_FILES
    for file, before, after in changes:
        path = site / "tcgemm" / file
        text = path.read_text()
        assert text.count(before) == 1, (file, before)
        path.write_text(text.replace(before, after))
    run(site, tmp_path, use)


TANH = [
    (
        "epilogue.py",
        '    "silu": Activation(_silu, 1.1),\n',
        '    "silu": Activation(_silu, 1.1),\n    "tanh": Activation(lambda x: x.tanh(), 1.0),\n',
    ),
    (
        "cuda_ref/csrc/tile/activations.cuh",
        "{ none, relu, gelu, gelu_tanh, silu };",
        "{ none, relu, gelu, gelu_tanh, silu, tanh };",
    ),
    (
        "cuda_ref/csrc/tile/activations.cuh",
        "        case Activation::silu: x[e] = silu(x[e]); break;\n",
        "        case Activation::silu: x[e] = silu(x[e]); break;\n"
        "        case Activation::tanh: x[e] = std::tanh(x[e]); break;\n",
    ),
    (
        "cuda_ref/csrc/tile/activations.cuh",
        "      case Activation::silu:\n",
        "      case Activation::tanh:\n"
        "        return activate([](float x) { return 2 * times_logistic(1, -2.885f * x) - 1; });\n"
        "      case Activation::silu:\n",
    ),
    (
        "triton_kernels/planning/dtypes.py",
        '"gelu_tanh", "silu", "scales"',
        '"gelu_tanh", "silu", "tanh", "scales"',
    ),
    (
        "triton_kernels/device/epilogue.py",
        '    elif ACTIVATION == "silu":\n',
        '    elif ACTIVATION == "tanh":\n'
        "        return 2.0 * logistic(2.0 * x, INTERPRETED) - 1.0\n"
        '    elif ACTIVATION == "silu":\n',
    ),
]

USE_TANH = """
import torch, tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.bench.cases import build
from tcgemm.problem import EPILOGUES, Fusion

a, b = torch.randn(40, 24).half(), torch.randn(24, 48).half()
want = torch.tanh(a.float() @ b.float())
for backend, kernel in (("cublas", None), ("triton", None), ("cuda", "naive")):
    c = tcgemm.gemm(a, b, epilogue="tanh", backend=backend, kernel=kernel)
    assert torch.allclose(c.float(), want, atol=2e-3), backend
    assert accuracy.error_ratio(a, b, c, Fusion(epilogue="tanh")) <= 1, backend
assert EPILOGUES[-1] == "tanh"
assert any(case.fused == "bias tanh" for case in build("fused"))
rows = [row for backend in dispatch.BACKENDS for row in dispatch.ladder(backend)]
able = {row.full_name for row in rows if "tanh" in row.fuses}
assert {"triton/fused", "triton/descriptor", "cuda/naive", "cuda/wgmma_persistent"} <= able
try:
    tcgemm.gemm(a, b, epilogue="tanh", backend="cuda", kernel="tiled")
except tcgemm.TcgemmError as error:
    assert "tanh" in str(error)
else:
    raise AssertionError("tiled fuses nothing")
a.requires_grad_()
tcgemm.gemm(a, b, epilogue="tanh", backend="cublas").float().sum().backward()
assert a.grad is not None
"""


@pytest.mark.exhaustive
def test_an_epilogue_is_a_row_and_a_function_in_each_language(site, tmp_path):
    add(site, tmp_path, TANH, USE_TANH)


GPU = [
    (
        "gpus.py",
        '    _gpu(\n        "NVIDIA H200 NVL"',
        '    _gpu(\n        "NVIDIA X900", (9, 9), H100, 6000, 64, 160, 2000, "made up",\n    ),\n'
        '    _gpu(\n        "NVIDIA H200 NVL"',
    ),
    (
        "gpus.py",
        "    (9, 0): (228, 2048),\n",
        "    (9, 0): (228, 2048),\n    (9, 9): (256, 2048),\n",
    ),
    (
        "triton_kernels/planning/gpus.py",
        "    (9, 0): Limits(132, 232_448),\n",
        "    (9, 0): Limits(132, 232_448),\n    (9, 9): Limits(160, 131_072),\n",
    ),
    (
        "cuda_ref/planning/gpu.py",
        "    (9, 0): (132, 227),\n",
        "    (9, 0): (132, 227),\n    (9, 9): (160, 40),\n",
    ),
]

USE_GPU = """
import json
from typer.testing import CliRunner
from tcgemm import cuda_ref, dispatch, gpus
from tcgemm.cli import app
from tcgemm.problem import Problem
from tcgemm.tools.simulate.measure import machine

board = gpus.find("x900")
assert (board.slug, gpus.capability(board)) == ("nvidia-x900", (9, 9))
assert board.peak("bfloat16") == 989.4
assert (machine(board).sms, machine(board).shared_per_sm) == (160, 256 * 1024)

def problem(capability):
    return Problem.stored(4096, 4096, 4096, "bfloat16", "bfloat16", capability=capability)

asked, row = problem((9, 9)), dispatch.find("triton", "pipelined")

def stages(plan):
    return (plan["BLOCK_M"] + plan["BLOCK_N"]) * plan["BLOCK_K"] * 2 * plan["NUM_STAGES"]

assert stages(row.plan(asked)) <= 131_072 < stages(row.plan(problem((9, 0))))
why = dispatch.find("cuda", "mma_multistage").why_not(asked)
assert str(40 * 1024) in why, why
assert "9.9" in dispatch.find("cuda", "wgmma_tma").why_not(asked)

done = CliRunner().invoke(app, ["explain", "4096x4096x4096", "--gpu", "x900", "--json"])
assert done.exit_code == 0, done.output
told = json.loads(done.stdout)
assert "X900" in json.dumps(told)
"""


def test_a_gpu_is_a_row_and_the_limits_of_its_architecture(site, tmp_path):
    add(site, tmp_path, GPU, USE_GPU)


INT16 = [
    (
        "problem.py",
        '    "int8": Dtype(1, ("int32",), ("int32",)),\n',
        '    "int8": Dtype(1, ("int32",), ("int32",)),\n'
        '    "int16": Dtype(2, ("int32",), ("int32",)),\n',
    ),
    (
        "triton_kernels/planning/dtypes.py",
        '    ("uint8", "int32"),\n',
        '    ("uint8", "int32"),\n    ("int16", "int32"),\n',
    ),
    (
        "triton_kernels/device/dot.py",
        '    if COMPUTE == "int32":\n        return tl.dot(a, b',
        '    if COMPUTE == "int32" and a.dtype == tl.int16:\n'
        "        wide = tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64)\n"
        "        return acc + wide.to(tl.int64).to(tl.int32)\n"
        '    elif COMPUTE == "int32":\n        return tl.dot(a, b',
    ),
]

USE_INT16 = """
import torch, tcgemm
from tcgemm import accuracy, dispatch
from tcgemm.bench.cases import build

for layout in ("nn", "tt"):
    a, b = accuracy.operands(40, 48, 70, torch.int16, layout, "cpu", 0)
    c = tcgemm.gemm(a, b, backend="triton", kernel="fused", epilogue="relu")
    assert c.dtype == torch.int32
    sums = a.double() @ b.double()
    wrapped = ((sums + 2**31) % 2**32 - 2**31).relu()
    assert torch.equal(c.double(), wrapped)

def run(a, b, c):
    tcgemm.matmul(a, b, backend="triton", out=c)

verdict = accuracy.check(run, 33, 40, 72, "int16", "int32")
assert verdict.ok, verdict.reason
assert torch.equal(tcgemm.gemm(a, b, backend="cublas", epilogue="relu").double(), wrapped)
try:
    tcgemm.matmul(a, b, backend="cuda")
except tcgemm.TcgemmError as error:
    assert "int16" in str(error)
else:
    raise AssertionError("no rung of CUDA multiplies it")
try:
    tcgemm.matmul(a, b.to(torch.int8))
except tcgemm.TcgemmError as error:
    assert "int16 with int16" in str(error)
"""


def test_a_dtype_is_a_row_and_a_pair_where_it_is_multiplied(site, tmp_path):
    add(site, tmp_path, INT16, USE_INT16)
