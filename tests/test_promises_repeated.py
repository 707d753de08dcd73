"""Promise 22 of docs/contract.md: the hundredth call gives what the first gives.

A call is made as a user makes it: through ``matmul`` and ``gemm``, mostly with no kernel named,
several times in a row with other data at other addresses, and then with another alignment.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from promises import call_of, is_refusal

import tcgemm
from tcgemm import accuracy, dispatch, launch_cache
from tcgemm.errors import UnsupportedError
from tcgemm.problem import COMPUTES, LAYOUTS, OUTPUTS, Fusion
from tcgemm.verify.calls import Stored
from tcgemm.verify.judge import check_repeated

CUDA = torch.cuda.is_available()
PAIRS = [(i, o, c) for i in OUTPUTS for o in OUTPUTS[i] for c in COMPUTES[i]]
SHAPES = ((48, 64, 80), (100, 100, 100), (17, 33, 65), (1, 512, 256), (320, 512, 512))
ON_A_CPU = 2
"""Combinations of type pair and layout for each entry, others from entry to entry."""
FIRST = 15
"""Where they begin: so the rungs of CUDA multiply types that other tests have built them for."""


def test_promise_22_a_kernel_repeats_what_it_did(row, pair, device):
    call = call_of(row, pair, M=32, N=48, K=32, b=Stored("padded column"))
    outcome = check_repeated(row, call, device)
    if outcome.status == "refused":
        is_refusal(row, call, outcome.reason)
    else:
        assert outcome.status == "ok", f"{row.full_name}: {call}: {outcome.reason}"


def stored(shape, letter, dtype, device, offset=0):
    """A random matrix, or a batch, that lies by rows (n) or columns (t), ``offset`` elements on."""
    *batch, rows, columns = shape if len(shape) > 1 else (1, *shape)
    lies = (*batch, rows, columns) if letter == "n" else (*batch, columns, rows)
    size = torch.Size(lies).numel()
    if dtype.is_floating_point:
        flat = torch.randn(size + offset, device=device).to(dtype)
    else:
        low, high = (-8, 8) if dtype == torch.int8 else (0, 16)
        flat = torch.randint(low, high, (size + offset,), device=device, dtype=dtype)
    whole = flat[offset:].view(lies)
    return whole if letter == "n" else whole.mT


class Entry:
    """A way to call: the product by it, and what is fused, for the reference."""

    def __init__(self, pair, layout, shape, backend, device):
        self.dtype_in, self.dtype_out = (getattr(torch, name) for name in pair[:2])
        self.compute, self.layout, self.backend, self.device = pair[2], layout, backend, device
        self.M, self.N, self.K = shape
        self.batch: tuple[int, ...] = ()
        self.named = {"out_dtype": self.dtype_out, "compute": pair[2], "backend": backend}

    def operands(self, offset=0):
        return (
            stored(
                (*self.batch, self.M, self.K), self.layout[0], self.dtype_in, self.device, offset
            ),
            stored((*self.batch, self.K, self.N), self.layout[1], self.dtype_in, self.device),
        )

    def of_result(self, *shape):
        return stored(shape, "n", self.dtype_out, self.device)

    def __call__(self, a, b):
        return tcgemm.gemm(a, b, **self.named), {}


class Matmul(Entry):
    def __call__(self, a, b):
        if self.compute != COMPUTES[str(self.dtype_in).removeprefix("torch.")][0]:
            return super().__call__(a, b)
        return tcgemm.matmul(a, b, out_dtype=self.dtype_out, backend=self.backend), {}


class Out(Entry):
    def __call__(self, a, b):
        out = self.of_result(self.M, self.N)
        before = out._version
        assert tcgemm.gemm(a, b, out=out, **self.named) is out
        assert out._version > before
        return out, {}


class Fused(Entry):
    def __call__(self, a, b):
        c, bias = self.of_result(self.M, self.N), self.of_result(self.N)[0]
        asked = {"alpha": 2.0, "beta": -1.0, "bias": bias, "epilogue": "relu"}
        return tcgemm.gemm(a, b, c, **asked, **self.named), {"c": c, **asked}


class InPlace(Entry):
    def __call__(self, a, b):
        c = self.of_result(self.M, self.N)
        asked = {"beta": 1.0, "c": c.clone()}
        return tcgemm.gemm(a, b, c, beta=1.0, out=c, **self.named), asked


class Batch(Entry):
    def __init__(self, *given):
        super().__init__(*given)
        self.batch = (3,)


class Captured(Entry):
    """A graph that holds the second call; replayed with the operands' new values."""

    def __init__(self, *given):
        super().__init__(*given)
        self.graph = None

    def __call__(self, a, b):
        if self.graph is None:
            self.a, self.b = a, b
            first = tcgemm.gemm(a, b, **self.named)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.c = tcgemm.gemm(a, b, **self.named)
            return first, {}
        if a.data_ptr() % 256 != self.a.data_ptr() % 256:
            return super().__call__(a, b)
        self.a.copy_(a)
        self.b.copy_(b)
        self.graph.replay()
        return self.c, {}


ENTRIES = {
    "matmul": Matmul, "gemm": Entry, "out": Out, "fused": Fused, "in place": InPlace,
    "batch": Batch, "captured": Captured,
}  # fmt: skip


def combinations(entry, backend):
    """(pair, layout, shape): on a GPU all, else a few."""
    every = list(itertools.product(PAIRS, LAYOUTS))
    if CUDA:
        return [(*each, SHAPES[i % len(SHAPES)]) for i, each in enumerate(every)] + [
            (pair, layout, SHAPES[-1]) for pair, layout in every
        ]
    first = FIRST + sum(map(ord, entry + backend))
    step = len(every) // ON_A_CPU + 1
    return [
        (*every[(first + i * step) % len(every)], SHAPES[(first + i) % 2]) for i in range(ON_A_CPU)
    ]


@pytest.mark.spread(2, "entry", "backend")
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_promise_22_a_user_s_calls_in_a_row(entry, backend, device):
    if entry == "captured" and not CUDA:
        pytest.skip("needs an NVIDIA GPU, and there is none here")
    for pair, layout, shape in combinations(entry, backend):
        called = ENTRIES[entry](pair, layout, shape, backend, device)
        kept = []
        for turn in range(4):
            a, b = called.operands(offset=int(turn == 3))
            kept.append((a, b))
            try:
                result, asked = called(a, b)
            except UnsupportedError:
                if turn in (0, 3):
                    break
                raise
            fusion = Fusion(compute=called.compute, **asked)
            ratio = accuracy.error_ratio(a, b, result, fusion)
            assert ratio <= 1, f"{pair} {layout} {shape}, call {turn + 1}: {ratio}"


def test_a_repeated_call_runs_the_launch_of_the_first(monkeypatch, device):
    """No second choice, plan or check: what the first call made is the object that others run."""
    launch_cache.forget()
    a, b, out = (torch.randn(64, 64, device=device).half() for _ in range(3))
    tcgemm.matmul(a, b, out=out, backend="cublas")
    (launch,) = launch_cache.launches.values()
    for name in ("choose", "plan", "load"):
        monkeypatch.setattr(dispatch, name, None)
    monkeypatch.setattr("tcgemm.launch_cache.make", None)
    for _ in range(2):
        tcgemm.matmul(a, b, out=out, backend="cublas")
        # gemm, asked for the same, runs the same.
        tcgemm.gemm(a, b, out=out, backend="cublas")
    assert list(launch_cache.launches.values()) == [launch]
    assert "64x64x64 float16 nn" in str(launch)
    assert "cublas/" in str(launch)


def key(a, b, c=None, bias=None, out=None, scale=None, **asked):
    asked = {
        "alpha": 1.0, "beta": 0.0, "epilogue": None, "out_dtype": None, "compute": None,
        "mma_shape": None, "backend": "cublas", "kernel": None, **asked,
    }  # fmt: skip
    return launch_cache.key_of(
        a, b, c, asked["alpha"], asked["beta"], bias, asked["epilogue"], out, asked["out_dtype"],
        asked["compute"], scale, None, asked["mma_shape"], asked["backend"], asked["kernel"],
    )  # fmt: skip


def flat(rows=8, columns=8, dtype=torch.float16, offset=0):
    room = torch.zeros(rows * columns + 256, dtype=dtype)
    start = -room.data_ptr() % 256 // room.itemsize + offset
    return room[start : start + rows * columns].view(rows, columns)


CHANGES = {
    "shape of A": lambda: ((flat(4, 8), flat()), {}),
    "shape of B": lambda: ((flat(), flat(8, 4)), {}),
    "strides of A": lambda: ((flat().T, flat()), {}),
    "strides of B": lambda: ((flat(), flat().T), {}),
    "dtype of A": lambda: ((flat(dtype=torch.bfloat16), flat()), {}),
    "dtype of B": lambda: ((flat(), flat(dtype=torch.bfloat16)), {}),
    "alignment of A": lambda: ((flat(offset=1), flat()), {}),
    "alignment of B": lambda: ((flat(), flat(offset=8)), {}),
    "A is B": lambda: ((t := flat(), t), {}),
    "out": lambda: ((flat(), flat()), {"out": flat()}),
    "strides of out": lambda: ((flat(), flat()), {"out": flat().T}),
    "alignment of out": lambda: ((flat(), flat()), {"out": flat(offset=4)}),
    "dtype of out": lambda: ((flat(), flat()), {"out": flat(dtype=torch.float32)}),
    "out_dtype": lambda: ((flat(), flat()), {"out_dtype": torch.float32}),
    "alpha": lambda: ((flat(), flat()), {"alpha": 2.0}),
    "C": lambda: ((flat(), flat()), {"c": flat(), "beta": 1.0}),
    "beta": lambda: ((flat(), flat()), {"c": flat(), "beta": 2.0}),
    "strides of C": lambda: ((flat(), flat()), {"c": flat().T, "beta": 1.0}),
    "alignment of C": lambda: ((flat(), flat()), {"c": flat(offset=1), "beta": 1.0}),
    "C is out": lambda: ((flat(), flat()), {"c": (c := flat()), "out": c, "beta": 1.0}),
    "C is not out": lambda: ((flat(), flat()), {"c": flat(), "out": flat(), "beta": 1.0}),
    "bias": lambda: ((flat(), flat()), {"bias": flat()[0]}),
    "strides of bias": lambda: ((flat(), flat()), {"bias": flat().T[0]}),
    "alignment of bias": lambda: ((flat(), flat()), {"bias": flat(offset=1)[0]}),
    "dtype of bias": lambda: ((flat(), flat()), {"bias": flat(dtype=torch.float32)[0]}),
    "length of bias": lambda: ((flat(), flat()), {"bias": flat()[0, :1]}),
    "A begins with bias": lambda: (((a := flat()), flat()), {"bias": a[0]}),
    "B begins with bias": lambda: ((flat(), (b := flat())), {"bias": b[0]}),
    "both begin with bias": lambda: (((a := flat()), a), {"bias": a[0]}),
    "bias and alpha": lambda: ((flat(), flat()), {"bias": flat()[0], "alpha": 2.0}),
    "bias and beta": lambda: ((flat(), flat()), {"bias": flat()[0], "beta": 2.0}),
    "bias and epilogue": lambda: ((flat(), flat()), {"bias": flat()[0], "epilogue": "relu"}),
    "bias and compute": lambda: ((flat(), flat()), {"bias": flat()[0], "compute": "float16"}),
    "bias and shape": lambda: ((flat(), flat()), {"bias": flat()[0], "mma_shape": "16x16x16"}),
    "bias and out": lambda: ((flat(), flat()), {"bias": flat()[0], "out": flat()}),
    "bias and C": lambda: ((flat(), flat()), {"bias": flat()[0], "c": flat(), "beta": 1.0}),
    "bias and scale": lambda: ((flat(), flat()), {"bias": flat()[0], "scale": 2.0}),
    "bias and backend": lambda: ((flat(), flat()), {"bias": flat()[0], "backend": "cuda"}),
    "epilogue": lambda: ((flat(), flat()), {"epilogue": "relu"}),
    "compute": lambda: ((flat(), flat()), {"compute": "float16"}),
    "scale": lambda: ((flat(), flat()), {"scale": 2.0}),
    "scale's tensor": lambda: ((flat(), flat()), {"scale": torch.ones(1)}),
    "mma_shape": lambda: ((flat(), flat()), {"mma_shape": "16x16x16"}),
    "backend": lambda: ((flat(), flat()), {"backend": "cuda"}),
    "kernel": lambda: ((flat(), flat()), {"kernel": "naive"}),
}


def test_all_that_a_launch_rests_on_makes_another_key():
    keys = {"nothing": key(flat(), flat())}
    assert keys["nothing"] == key(flat(), flat())
    for name, change in CHANGES.items():
        operands, asked = change()
        assert key(*operands, **asked) is not None, name
        assert key(*operands, **asked) == key(*operands, **asked)
        keys[name] = key(*operands, **asked)
    torch.use_deterministic_algorithms(True)
    try:
        keys["deterministic"] = key(flat(), flat())
    finally:
        torch.use_deterministic_algorithms(False)
    by_key = {}
    for name, each in keys.items():
        assert each not in by_key, f"{name} and {by_key[each]} are one kind of call"
        by_key[each] = name


def test_a_bias_that_has_to_be_looked_at_whole_has_no_key():
    bias = flat()[0]
    assert key(flat(), flat(), bias=bias) is not None
    for given in (
        {"alpha": math.nan},
        {"beta": math.nan},
        {"alpha": True},
        {"alpha": torch.ones(1)},
    ):
        assert key(flat(), flat(), bias=bias, **given) is None, given
    learnt = flat()[0].requires_grad_()
    assert key(flat(), flat(), bias=learnt) is None
    with torch.no_grad():
        assert key(flat(), flat(), bias=learnt) == key(flat(), flat(), bias=bias)
    assert key(flat(), flat(), bias=torch.empty(8, device="meta", dtype=torch.float16)) is None
    assert key(flat(), flat(), bias=[0.0] * 8) is None


def test_launches_are_bounded(monkeypatch):
    monkeypatch.setattr(launch_cache, "MOST", 3)
    launch_cache.forget()
    for size in range(1, 9):
        tcgemm.matmul(torch.ones(size, 4), torch.ones(4, 4), backend="cublas")
        assert 1 <= len(launch_cache.launches) <= 3


def test_a_result_that_is_aligned_worse_takes_a_launch_of_its_own(monkeypatch):
    """torch hands out memory as it likes: a kernel planned for an aligned C gets no other."""
    room = torch.zeros(4096, dtype=torch.float16)
    start = -room.data_ptr() % 256 // 2
    offsets = iter((64, 64, 64, 129, 129))
    placed = []

    def new_empty(*shape, **how):
        first = start + next(offsets)
        placed.append(room[first : first + 64].view(8, 8).fill_(float("nan")))
        return placed[-1]

    a, b = torch.randn(8, 8).half(), torch.randn(8, 8).half()
    launch_cache.forget()
    monkeypatch.setattr(torch, "empty", new_empty)
    monkeypatch.setattr("tcgemm.launch.allocator", lambda of_cpu: new_empty)
    for _ in range(3):  # planned with one, then a result each
        c = tcgemm.matmul(a, b, backend="cublas") if len(placed) < 4 else None
        if c is not None:
            assert accuracy.error_ratio(a, b, c) <= 1
    problems = [launch.problems[0] for launch in launch_cache.launches.values()]
    assert sorted(problem.c_alignment for problem in problems) == [2, 64]
