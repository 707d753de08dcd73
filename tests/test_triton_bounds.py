"""What the Triton kernels read and write, element by element, in the interpreter.

A product is right although a mask lets a column too many be read, where that column's sums are
never stored; on a GPU such a read may cross into a page that is not mapped.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

from tcgemm import dispatch
from tcgemm.problem import Fusion

F16, F32, U8 = torch.float16, torch.float32, torch.uint8

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="looks at the addresses that Triton's interpreter is given"
)


class Addresses:
    """The addresses of a view's elements, and the range of the buffer around them."""

    def __init__(self, name: str, view: torch.Tensor) -> None:
        self.name = name
        start = view.untyped_storage().data_ptr()
        self.buffer = range(start, start + view.untyped_storage().nbytes())
        element = torch.zeros(view.shape, dtype=torch.int64)
        for dim, (size, stride) in enumerate(zip(view.shape, view.stride(), strict=True)):
            steps = torch.arange(size) * stride * view.itemsize
            element += steps.view(-1, *[1] * (view.dim() - dim - 1))
        self.itemsize = view.itemsize
        self.view = (element + view.data_ptr()).flatten().numpy()

    def outside(self, addresses: np.ndarray) -> int:
        """How many of these addresses are in the buffer and not of the view."""
        here = addresses[(addresses >= self.buffer.start) & (addresses < self.buffer.stop)]
        return int((~np.isin(here, self.view)).sum())


@pytest.fixture
def watched(monkeypatch):
    """``watched(A=a, C=c)``: a list of what is read or written beside these views from then on."""
    import_module(
        "tcgemm.triton_kernels.host.runtime"
    )  # chooses the interpreter before Triton is loaded
    builder = import_module("triton.runtime.interpreter").InterpreterBuilder
    views: list[Addresses] = []
    found: list[str] = []

    def watch(method: str, verb: str, mask_at: int) -> None:
        original = getattr(builder, method)

        def checked(self, pointers, *arguments, **named):
            mask = named["mask"] if "mask" in named else arguments[mask_at]
            inside = np.asarray(mask.data).astype(bool)
            addresses = np.broadcast_to(pointers.data, inside.shape)[inside].astype(np.int64)
            size = pointers.get_element_ty().primitive_bitwidth // 8
            for view in views:
                last = addresses + max(size - view.itemsize, 0)  # the last element of a word
                if count := view.outside(np.union1d(addresses, last)):
                    found.append(f"{count} elements beside {view.name} are {verb}")
            return original(self, pointers, *arguments, **named)

        monkeypatch.setattr(builder, method, checked)

    watch("create_masked_load", "read", 0)
    watch("create_masked_store", "written", 1)

    def start(**named: torch.Tensor) -> list[str]:
        # Earlier views are gone, and their memory may be another's by now.
        views[:] = [Addresses(name, view) for name, view in named.items()]
        return found

    return start


def within(rows, columns, dtype, letter="n"):
    """A matrix whose buffer has 16 elements more at the end of each row, and two rows more."""
    outer, inner = (rows, columns) if letter == "n" else (columns, rows)
    buffer = torch.randint(0, 4, (outer + 2, -(-inner // 8) * 8 + 16)).to(dtype)
    view = buffer[:outer, :inner]
    return view if letter == "n" else view.mT


def test_an_element_beside_a_view_is_seen():
    view = within(3, 5, F16)
    of_view = Addresses("A", view)
    assert of_view.outside(np.array([view[2:, 4:].data_ptr(), view.data_ptr()])) == 0
    beside = view.as_strided((3, 6), view.stride())
    assert of_view.outside(np.array([beside[2:, 5:].data_ptr(), view.data_ptr()])) == 1


# One less, one more than the tiles of 16 to 128 that the interpreter's plans have, and in between.
SHAPES = [(17, 33, 31), (40, 24, 65), (127, 63, 129)]


OF_CPU = [row for row in dispatch.ladder("triton") if "cpu" in row.devices]
WATCHED = [(row.name, F16) for row in OF_CPU if ("float16", "float32") in row.pairs]
WATCHED += [(name, dtype) for name in ("short_k", "thin") for dtype in (F32, torch.float64)]


@pytest.mark.parametrize(("name", "dtype"), WATCHED, ids=str)
def test_nothing_beside_the_operands_is_read_or_written(name, dtype, watched):
    fusion = None if dtype == F16 else Fusion(compute="ieee" if dtype == F32 else "float64")
    for index, (M, N, K) in enumerate(SHAPES):
        K = min(K, 64) if name == "short_k" else K
        a, b = within(M, K, dtype, "nt"[index % 2]), within(K, N, dtype, "tn"[index % 2])
        c = within(M, N, F32 if dtype == F16 else dtype)
        found = watched(A=a, B=b, C=c)
        row = dispatch.find("triton", name)
        problem = dispatch.problem_of(a, b, c, fusion)
        assert row.why_not(problem) is None
        dispatch.load("triton", name)(a, b, c, fusion, **row.plan(problem))
        assert not found, (M, N, K, found)
        assert torch.equal(c, a.to(c.dtype) @ b.to(c.dtype))
