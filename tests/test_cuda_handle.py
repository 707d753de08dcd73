"""What crosses the border to C++ in a call: a handle, a stream and addresses.

binding.cpp is compiled by g++ over a rung that writes down what it is asked, and over stand-ins for
the headers of CUDA and of torch's allocator: no nvcc and no GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from tcgemm.cuda_ref import handle
from tcgemm.cuda_ref.build.toolchain import CSRC, find_cxx
from tcgemm.cuda_ref.fusion import ACTIVATIONS, COMPUTES, DTYPES
from tcgemm.cuda_ref.planning.launch import FIELDS

from tcgemm.problem import Fusion

HEADERS = {
    "cuda_runtime.h": """
        #pragma once
        #include <cstddef>
        typedef void* cudaStream_t;
        enum cudaError_t { cudaSuccess = 0, cudaErrorNotSupported = 801 };
        inline cudaError_t cudaGetLastError() { return cudaSuccess; }
        inline const char* cudaGetErrorString(cudaError_t e) { return "not supported here"; }""",
    **dict.fromkeys(("cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h", "mma.h"), "#pragma once"),
    "c10/util/Exception.h": """
        #pragma once
        #include <stdexcept>
        namespace c10 { struct OutOfMemoryError : std::runtime_error {
          using std::runtime_error::runtime_error; }; }""",
    "c10/cuda/CUDACachingAllocator.h": """
        #pragma once
        #include <cuda_runtime.h>
        #include <cstdlib>
        #include "c10/util/Exception.h"
        inline long lent = 0;
        namespace c10::cuda::CUDACachingAllocator {
        inline void* raw_alloc_with_stream(size_t bytes, cudaStream_t) {
          if (bytes > 1000) throw OutOfMemoryError("no memory left");
          ++lent;
          return malloc(bytes);
        }
        inline void raw_delete(void* p) { --lent; free(p); }
        }""",
}

RUNG = """
#include <cstdio>
#include <stdexcept>
#include <string>
#include "host/binding.cpp"
static std::string said;
static void say(const char* name, double value) {
  char line[80];
  snprintf(line, sizeof line, "%s %.17g\\n", name, value);
  said += line;
}
static void say(const std::string& name, const tcgemm::Matrix& x) {
  say((name + ".data").c_str(), (double)(size_t)x.data);
  say((name + ".rows").c_str(), x.rows);
  say((name + ".cols").c_str(), x.cols);
  say((name + ".row_stride").c_str(), x.row_stride);
  say((name + ".col_stride").c_str(), x.col_stride);
  say((name + ".batch_stride").c_str(), x.batch_stride);
}
static void say(const std::string& name, const tcgemm::Vector& x) {
  say((name + ".data").c_str(), (double)(size_t)x.data);
  say((name + ".row_stride").c_str(), x.row_stride);
  say((name + ".col_stride").c_str(), x.col_stride);
}
#define SAY(x) say(#x, (double)gemm.x)
int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  said.clear();
  say("stream", (double)(size_t)stream);
  say("a", gemm.a); say("b", gemm.b); say("c", gemm.c); say("c_in", gemm.c_in);
  say("bias", gemm.bias); say("scale_a", gemm.scale_a); say("scale_b", gemm.scale_b);
  SAY(in); SAY(out); SAY(batch); SAY(alpha); SAY(beta); SAY(activation); SAY(compute);
  SAY(mma_m); SAY(mma_n);
  PLAN
  if (gemm.plan->warps == 91) return cudaErrorNotSupported;
  if (gemm.plan->warps == 92) throw std::runtime_error("a launcher that throws");
  for (int i = 0; i < gemm.plan->splits; ++i) gemm.scratch.allocate(gemm.plan->blocks, stream);
  say("lent", lent);
  return 0;
}
TCGEMM_EXPORT const char* words() { return said.c_str(); }
TCGEMM_EXPORT long lent_now() { return lent; }
""".replace("PLAN", "".join(f"SAY(plan->{name.lower()}); " for name in FIELDS))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if find_cxx() is None:
        pytest.skip("needs a C++ compiler, and there is none here")
    folder = tmp_path_factory.mktemp("binding")
    for name, text in HEADERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "rung.cpp").write_text(RUNG)
    made = folder / "rung.so"
    command = [
        str(find_cxx()), "-std=c++17", "-O0", "-shared", "-fPIC", "-fvisibility=hidden",
        f"-I{folder}", f"-I{CSRC}", str(folder / "rung.cpp"), "-o", str(made),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    opened = handle.open_library(str(made))
    opened.words.restype = ctypes.c_char_p
    opened.lent_now.restype = ctypes.c_long
    return opened


@pytest.fixture(autouse=True)
def stream(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 70 + device, False)


def started(library, a, b, c, fusion=None, **plan):
    """What the rung says that it was asked, by the names of gemm.cuh."""
    gemm = handle.gemm_of(a, b, c, fusion, plan)
    start = handle.bound("rung", library, 3, gemm, fusion is None)
    fused = () if fusion is None else (fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
    start(a, b, c, *fused)
    lines = library.words().decode().splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines)}


def matrix(name, x):
    values = [0] * 6
    if x is not None:
        batch_stride = x.stride(0) * (x.dim() == 3)
        values = [x.data_ptr(), *x.shape[-2:], *x.stride()[-2:], batch_stride]
    names = ("data", "rows", "cols", "row_stride", "col_stride", "batch_stride")
    return {f"{name}.{n}": value for n, value in zip(names, values, strict=True)}


def vector(name, x, row, col):
    return {
        f"{name}.data": 0 if x is None else x.data_ptr(),
        f"{name}.row_stride": row,
        f"{name}.col_stride": col,
    }


def test_a_plain_product_arrives_under_its_names(library):
    a, b, c = torch.zeros(3, 5).half(), torch.zeros(7, 5).half().mT, torch.zeros(3, 7)
    plan = {name: i + 2 for i, name in enumerate(FIELDS) if name != "NO_PDL"}
    plan |= {"PDL": 0, "SPLITS": 0}
    said = started(library, a, b, c, **plan)
    expected = {
        "stream": 73,
        **matrix("a", a), **matrix("b", b), **matrix("c", c), **matrix("c_in", None),
        **vector("bias", None, 0, 0), **vector("scale_a", None, 0, 0),
        **vector("scale_b", None, 0, 0),
        "in": DTYPES["float16"], "out": DTYPES["float32"], "batch": 1, "alpha": 1, "beta": 0,
        "activation": 0, "compute": 0, "mma_m": 0, "mma_n": 0, "lent": 0,
        **{f"plan->{name.lower()}": plan.get(name, 1) for name in FIELDS},
    }  # fmt: skip
    assert said == expected


def test_what_is_fused_and_a_batch_arrive_under_their_names(library):
    a, b = torch.zeros(2, 3, 5, dtype=torch.float8_e5m2), torch.zeros(2, 5, 7)
    c, c_in = torch.zeros(2, 3, 7), torch.zeros(2, 7, 3).mT
    bias, scale_a, scale_b = torch.zeros(14)[::2], torch.zeros(3), torch.zeros(1)
    fusion = Fusion(
        alpha=2.5, beta=-3.0, c=c_in, bias=bias, epilogue="silu", scale_a=scale_a, scale_b=scale_b,
        compute="fast", mma_shape="32x8x16",
    )  # fmt: skip
    said = started(library, a, b, c, fusion)
    expected = {
        **matrix("c_in", c_in), **vector("bias", bias, 0, 2), **vector("scale_a", scale_a, 1, 0),
        **vector("scale_b", scale_b, 0, 0), **matrix("a", a), "batch": 2, "alpha": 2.5, "beta": -3,
        "activation": ACTIVATIONS["silu"], "compute": COMPUTES["fast"], "mma_m": 32, "mma_n": 8,
        "in": DTYPES["float8_e5m2"],
    }  # fmt: skip
    assert {name: said[name] for name in expected} == expected


def test_a_call_s_own_addresses_arrive_and_the_kind_keeps_none(library):
    first, second = ([torch.zeros(4, 4) for _ in range(3)] for _ in range(2))
    gemm = handle.gemm_of(*first, None, None)
    start = handle.bound("rung", library, 0, gemm, True)
    for operands in (first, second):
        start(*operands)
        said = library.words().decode()
        for name, x in zip("abc", operands, strict=True):
            assert f"{name}.data {x.data_ptr()}\n" in said
    assert {gemm.a.data, gemm.b.data, gemm.c.data} == {None}


def test_borrowed_memory_is_given_back(library):
    a = torch.zeros(4, 4)
    assert started(library, a, a, a, SPLITS=3, BLOCKS=64)["lent"] == 3
    assert library.lent_now() == 0


@pytest.mark.parametrize(
    ("plan", "error", "says"),
    [
        ({"WARPS": 91}, RuntimeError, "launch of rung failed at M=4 N=4 K=4 batch=1: not supp"),
        ({"WARPS": 92}, RuntimeError, "a launcher that throws"),
        ({"SPLITS": 2, "BLOCKS": 1001}, torch.OutOfMemoryError, "no memory left"),
    ],
)
def test_a_failure_becomes_python_s_error(library, plan, error, says):
    a = torch.zeros(4, 4)
    with pytest.raises(error, match=says) as raised:
        started(library, a, a, a, **plan)
    assert type(raised.value) is error
    assert library.lent_now() == 0


def test_a_library_without_the_function_is_not_taken(tmp_path, caplog):
    from tcgemm.cuda_ref.build import extensions

    assert not extensions._opens(Path(torch._C.__file__))
    assert "does not load" in caplog.text
