"""NumPy's own tests of matmul, from the installed numpy, with ours in the place of numpy's.

They go through every dtype of numpy. What is refused is refused for a reason that is listed here,
and only then does numpy's matmul answer, so that the rest of such a test still runs.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import tcgemm
from tcgemm.errors import OperandError, OperandTypeError

SUITE = Path(np.__file__).parent / "_core/tests/test_multiarray.py"
if not SUITE.exists():
    pytest.skip(f"this numpy comes without its tests, {SUITE}", allow_module_level=True)


NUMPYS = np.matmul
TAKEN = {"b", "B", "e", "f", "d"}
"""numpy's letters of int8, uint8, float16, float32, float64."""

REFUSED = {
    "dtype": "no type pair: bool, integers of 16 bits and more, complex, long double, objects",
    "out": "out is of another dtype, or broadcast: numpy casts, tcgemm says so",
    "shape": "shapes that do not fit, which numpy refuses as well",
}
ran: Counter[str] = Counter()
"""Backend -> products that it computed; reason -> products that were refused."""


def reason_of(error: Exception, operands: list[np.ndarray], out: np.ndarray | None) -> str:
    """A key of REFUSED; an error that belongs to none of them is raised again."""
    if isinstance(error, OperandTypeError) and {x.dtype.char for x in operands} - TAKEN:
        return "dtype"
    if out is not None and "out" in str(error):
        return "out"
    if isinstance(error, OperandError) and not isinstance(error, TypeError):
        return "shape"
    raise error


def ours(backend: str):
    """``np.matmul`` by tcgemm: numpy's arrays in and out, on a GPU by way of its memory."""

    def product(a, b, out):
        if not torch.cuda.is_available() or {a.dtype.char, b.dtype.char} - TAKEN:
            return tcgemm.matmul(a, b, backend=backend, out=out)
        a, b = (torch.from_numpy(x.copy(order="K")).cuda() for x in (a, b))
        to = None if out is None else torch.from_numpy(out)
        c = tcgemm.matmul(a, b, backend=backend, out=None if to is None else to.cuda())
        return c.cpu().numpy() if to is None else to.copy_(c).numpy()

    def matmul(a, b, out=None):
        operands = [np.asarray(a), np.asarray(b)]
        try:
            result = product(*operands, out)
        except tcgemm.TcgemmError as error:
            reason = reason_of(error, operands, out)
            ran[reason] += 1
            if reason == "shape":
                with pytest.raises(ValueError, match=r"matmul|broadcast"):
                    NUMPYS(a, b, out=out)
            return NUMPYS(a, b, out=out)
        ran[backend] += 1
        if out is not None:
            return out
        # 8-bit integers are summed in int32, where numpy keeps their type: modulo 2^8 the same.
        return result.astype(operands[0].dtype, copy=False)[()]

    return matmul


class WithMatmul(ModuleType):
    """numpy, but for its matmul; numpy itself stays whole for those who multiply by it."""

    def __init__(self, matmul):
        super().__init__("numpy")
        self.matmul = matmul

    def __getattr__(self, name):
        return getattr(np, name)


body = ast.parse(SUITE.read_text()).body


def suite(backend: str) -> type:
    """numpy's TestMatmul by a backend, without the rest of its file, which takes ten seconds."""
    found: dict[str, Any] = {}

    def run(nodes):
        exec(compile(ast.Module(nodes, []), SUITE, "exec"), found)

    run([node for node in body if isinstance(node, ast.Import | ast.ImportFrom)])
    found["np"] = WithMatmul(ours(backend))
    names = ("MatmulCommon", "TestMatmul")
    run([node for node in body if isinstance(node, ast.ClassDef) and node.name in names])
    found["TestMatmul"].matmul = staticmethod(found["np"].matmul)
    return found["TestMatmul"]


class Ours:
    """What is looked at besides."""

    backend: str

    @pytest.fixture(autouse=True)
    def counted(self):
        ran.clear()
        yield
        assert set(ran) <= {self.backend, *REFUSED}


@pytest.mark.exhaustive
class TestCuda(Ours, suite("cuda")):
    backend = "cuda"


@pytest.mark.exhaustive
class TestTriton(Ours, suite("triton")):
    backend = "triton"


class TestCublas(Ours, suite("cublas")):
    backend = "cublas"


@pytest.mark.parametrize("backend", ["cuda", "triton", "cublas"])
def test_a_backend_computes_all_types_that_are_taken_and_no_others(backend):
    tests = suite(backend)()
    ran.clear()
    tests.test_matrix_matrix_values()
    assert ran == {backend: 5 * len(TAKEN), "dtype": 5 * (len(tests.types) - len(TAKEN))}
    tests.test_out_contiguous()
    assert set(ran) == {backend, "dtype"}
