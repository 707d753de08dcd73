"""What a repeated call does on the host, counted: Python's functions between the user and a launch.

Time cannot be measured where tests run; calls can. The operands are on the CPU, so the kernels are
stood in for where a launch would begin: Triton's C function, and that of a rung's library.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from test_triton_launching import Kernel, gpu  # noqa: F401 (a fixture)

import tcgemm
from tcgemm import launch_cache

launching = import_module("tcgemm.triton_kernels.host.launching")
handle = import_module("tcgemm.cuda_ref.handle")

A, B, C, OUT = (torch.randn(16, 16).bfloat16() for _ in range(4))
BIAS = torch.randn(16).bfloat16()

CALLS = {
    "matmul": lambda: tcgemm.matmul(A, B),
    "out": lambda: tcgemm.matmul(A, B, out=OUT),
    "gemm": lambda: tcgemm.gemm(A, B, C, beta=1.0),
    "fused": lambda: tcgemm.gemm(A, B, bias=BIAS, epilogue="gelu"),
}

CALLS["bias"] = lambda: tcgemm.gemm(A, B, bias=BIAS)

LIMITS = {"triton": 8, "cuda": 7}
"""matmul, is_dynamo_compiling, default_backend, _call, key_of, run_launch; then Bound and Recorded,
or the function that handle.bound made. Two more look at ``out``, one asks for Triton's hooks."""


def by_triton(asked):
    """A rung of Triton bound to a kernel that does nothing."""

    def arguments(a, b, c, *fusion, TILE):
        return (3,), (a, b, c, 8), {"TILE": TILE}

    bound = launching.Rung(Kernel(), arguments).bind(A, B, C, asked, TILE=16)
    bound(A, B, OUT, *(() if asked is None else (asked.c, asked.bias)))
    return bound


def by_cuda(asked):
    """A rung of CUDA with a library whose functions do nothing."""
    library = SimpleNamespace(tcgemm_start=nothing, tcgemm_start_fused=nothing)
    return handle.bound("rung", library, 0, handle.gemm_of(A, B, C, asked, {}), asked is None)


MAKERS = {"triton": by_triton, "cuda": by_cuda}


def nothing(*passed):
    return 0


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_a_repeated_call_takes_few_steps(gpu, monkeypatch, backend, name):  # noqa: F811
    monkeypatch.delenv("TCGEMM_BACKEND", raising=False)
    monkeypatch.setattr(launch_cache, "current_device", int)
    launch_cache.forget()
    CALLS[name]()
    for launch in launch_cache.launches.values():
        asked = replace(launch.asked, c=None, bias=BIAS if name in ("fused", "bias") else None)
        asked = replace(asked, c=C) if name == "gemm" else asked
        plain = name in ("matmul", "out")
        launch.start = MAKERS[backend](None if plain else asked)
        launch.device, launch.misaligned = 0, 0
    called = steps_of(CALLS[name])
    more = (2 if name == "out" else 0) + (backend == "triton")
    assert len(called) <= LIMITS[backend] + more, called
    launch_cache.forget()


def steps_of(call):
    """The names of the functions of Python's that a call enters, but for the stand-ins."""
    names = []

    def enter(frame, event, argument):
        if event == "call" and frame.f_globals["__name__"] not in (__name__, Kernel.__module__):
            names.append(frame.f_code.co_name)

    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


def test_the_count_sees_a_step_more():
    assert steps_of(int) == []
    assert "typename" in steps_of(lambda: torch.typename(A))


def test_a_launch_is_made_once_wherever_its_results_lie(monkeypatch):
    """torch aligns a result on a CPU to 64 bytes, and often to more: no plan may need more."""
    made = []
    make = launch_cache.make
    monkeypatch.setattr(launch_cache, "make", lambda *call: made.append(1) or make(*call))
    launch_cache.forget()
    places = set()
    for N in range(1, 21):
        a, b = torch.randn(4, 5), torch.randn(5, N)
        results = [tcgemm.matmul(a, b, backend="cublas") for _ in range(64)]
        places |= {result.data_ptr() % 256 for result in results}
        assert len(made) == N
    assert len(places) > 1
