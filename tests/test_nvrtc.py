"""CUDA rungs by NVRTC, without nvcc and g++: compiled without a GPU, started on one."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import struct
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from tcgemm import dispatch
from tcgemm.problem import Fusion, Problem
from tcgemm.tools import doctor

nvrtc = import_module("tcgemm.cuda_ref.nvrtc")
arguments = import_module("tcgemm.cuda_ref.nvrtc.arguments")
compiler = import_module("tcgemm.cuda_ref.nvrtc.compiler")
driver = import_module("tcgemm.cuda_ref.nvrtc.driver")
launchers = import_module("tcgemm.cuda_ref.nvrtc.launchers")
operators = import_module("tcgemm.cuda_ref.nvrtc.operators")
Product = import_module("tcgemm.cuda_ref.nvrtc.product").Product
simulator = import_module("tcgemm.cuda_ref.simulator")
cuda_ref = import_module("tcgemm.cuda_ref")

RUNGS = tuple(launchers.LAUNCHERS)
OF_16_BITS = tuple(name for name in RUNGS if name != "mma_types")  # whose types are TYPES
needs_nvrtc = pytest.mark.skipif(
    compiler.find_library() is None or compiler.find_headers() is None,
    reason="needs libnvrtc (pip install nvidia-cuda-nvrtc) and the headers of Triton's wheel",
)


def tensors(M, N, K, layout="nn", dtype=torch.float16, out=None, device="cpu"):
    """A, B and C; small integers, so that every sum is exact."""

    def draw(rows, cols, transposed):
        if transposed:
            return draw(cols, rows, False).T
        return torch.randint(-4, 5, (rows, cols), device=device).to(dtype)

    a, b = draw(M, K, layout[0] == "t"), draw(K, N, layout[1] == "t")
    return a, b, torch.full((M, N), float("nan"), dtype=out or dtype, device=device)


def plan_of(name, a, b, c):
    M, K = a.shape
    names = [str(tensor.dtype).removeprefix("torch.") for tensor in (a, c)]
    problem = Problem(
        M, c.shape[1], K, *names, a.stride(), b.stride(), c.stride(), capability=(9, 0)
    )
    return dispatch.find("cuda", name).plan(problem)


def test_the_whole_ladder_has_launchers_and_what_takes_every_type():
    ladder = {row.name for row in dispatch.ladder("cuda") if row.kind == "ladder"}
    assert set(RUNGS) == ladder | {"wmma_types", "mma_types"}
    for row in dispatch.ladder("cuda"):
        if row.name in launchers.EVERYTHING:
            assert {"alpha", "beta", "bias", "gelu", "batch"} <= set(row.fuses)


@pytest.mark.spread(5, "name", "layout")
@needs_nvrtc
@pytest.mark.parametrize("layout", ["nn", *(
    pytest.param(layout, marks=pytest.mark.exhaustive) for layout in ("nt", "tn", "tt")
)])  # fmt: skip
@pytest.mark.parametrize("name", OF_16_BITS)
def test_every_rung_is_compiled_to_machine_code(name, layout):
    dtypes = (torch.float16, torch.bfloat16) if layout == "nt" else (torch.bfloat16,)
    for dtype in dtypes:
        a, b, c = tensors(256, 512, 128, layout, dtype)
        for capability in ((8, 0), (9, 0)):
            if capability >= dispatch.find("cuda", name).capability:
                plan = plan_of(name, a, b, c)
                compiled = operators.compiled_for(name, a, b, c, capability, plan)
                assert compiled.cubin[:4] == b"\x7fELF"
                assert name in compiled.symbol
                assert compiled.symbol.encode() in compiled.cubin
                product = Product.of(a, b, c)
                asked = launchers.LAUNCHERS[name].constants(product)
                assert tuple(compiled.constants) == asked
                check_parameters(name, compiled, product)


def parameters_of(cubin):
    """Bytes of each parameter of the kernel, in their order, as the ELF's .nv.info says."""
    found = {}
    for match in re.finditer(rb"\x04\x17\x0c\x00(.{12})", cubin, re.S):  # EIATTR_KPARAM_INFO
        _, ordinal, _, flags = struct.unpack("<IHHI", match[1])
        found[ordinal] = flags >> 18
    assert sorted(found) == list(range(len(found)))
    return [found[ordinal] for ordinal in range(len(found))]


def check_parameters(name, compiled, product):
    """What Python hands over has the sizes that the machine code takes."""
    launch = launchers.LAUNCHERS[name].launch(product, compiled.constants, 132)
    given = [
        driver._MAP_BYTES if isinstance(each, arguments.TensorMap) else ctypes.sizeof(each)
        for each in launch.arguments
    ]
    assert parameters_of(compiled.cubin) == given
    return launch


# dtype of A and B, of C, how it is summed: of wmma_types and naive.
TYPES = (
    ("float16", "float16", "float32"), ("float16", "float32", "float16"),
    ("bfloat16", "float32", "float32"), ("int8", "int32", "int32"), ("uint8", "int32", "int32"),
    ("float32", "float32", "tf32"), ("float32", "float32", "tf32x3"),
    ("float32", "float32", "ieee"), ("float64", "float64", "float64"),
    ("float8_e4m3fn", "bfloat16", "float32"), ("float8_e5m2", "float16", "float32"),
)  # fmt: skip


def fused_case(pair, batch=0, columns=False, plain=False, device="cpu"):
    """A, B, C and what follows their product: alpha, C_in, a bias, relu."""
    dtype_in, dtype_out, compute = pair
    lead = (batch,) if batch else ()
    a, b, c_in = (
        torch.randint(0, 4, (*lead, *shape), device=device)
        for shape in ((96, 64), (64, 160), (96, 160))
    )
    a, b = (x.to(getattr(torch, dtype_in)) for x in (a, b))
    c_in = c_in.to(getattr(torch, dtype_out))
    c = torch.empty_like(c_in)
    if columns:
        c, c_in = (x.mT.contiguous().mT for x in (c, c_in))
    bias = torch.randint(-9, 9, (160,), device=device).to(c.dtype)
    follows = {} if plain else {"c": c_in, "beta": 2.0, "bias": bias, "alpha": 3.0,
                                "epilogue": "relu"}  # fmt: skip
    return a, b, c, Fusion(compute=compute, **follows)


CASES = [
    (name, pair)
    for name in launchers.EVERYTHING
    for pair in TYPES
    if dispatch.find("cuda", name).takes_types(*pair)
]
QUICK = {
    ("naive", TYPES[0]), ("wmma_any", TYPES[2]), ("mma_multistage", TYPES[2]),
    ("mma_types", TYPES[6]),
}  # fmt: skip


def test_every_type_of_a_rung_of_everything_is_tried():
    for name in launchers.EVERY_TYPE:
        dtypes = {pair[0] for pair in dispatch.find("cuda", name).pairs}
        assert {pair[0] for each, pair in CASES if each == name} == dtypes


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "pair"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.exhaustive) for case in CASES],
)
def test_types_batches_and_what_follows_are_compiled_and_launched_as_in_the_source(name, pair):
    """Sizes of parameters as in the machine code; grid and block as the simulator was asked."""
    for batch, columns, plain in ((0, False, False), (3, True, False), (0, False, True)):
        if (columns or plain) and pair is not TYPES[0] and "types" not in name:
            continue
        a, b, c, fusion = fused_case(pair, batch, columns, plain)
        compiled = operators.compiled_for(name, a, b, c, (9, 0), None, fusion)
        product = Product.of(a, b, c, fusion)
        launch = check_parameters(name, compiled, product)
        assert product.fused == (not plain)
        report = simulator.simulate(simulator.source_of(name), a, b, c, fusion=fusion)
        assert report.grid == (launch.grid, 1, 1)
        assert report.block[:2] == launch.block
        assert 0 <= report.shared_bytes - launch.shared_bytes < 48 * 1024


@pytest.mark.parametrize(
    "pair", [pair for pair in TYPES if pair[2] in ("tf32", "tf32x3", "float64")]
)
def test_mma_types_is_planned_as_it_is_launched(pair, monkeypatch):
    """By NVRTC K stays whole: no second kernel adds parts of it. The cost is that of this plan."""
    rung, model = (
        import_module(f"tcgemm.cuda_ref.{name}")
        for name in ("shapes.mma_types", "planning.mma_types_model")
    )
    for M, N, K in ((64, 96, 16384), (16, 4096, 4096), (700, 300, 515)):
        asked = Problem.stored(
            M, N, K, *pair[:2], "nn", compute=pair[2], device="cuda", capability=(9, 0)
        )
        by_nvcc, cost_by_nvcc = rung.plan(asked), rung.cost(asked, 132)
        with monkeypatch.context() as patched:
            patched.setattr("tcgemm.cuda_ref.nvrtc.compiles", lambda problem: True)
            plan, cost = dispatch.find("cuda", "mma_types").plan(asked), rung.cost(asked, 132)
        tile = model.Tile(plan["BLOCK_M"], plan["BLOCK_N"], *rung.by_elements(asked))
        assert cost == model.us(pair[2], rung.sizes(asked), tile, 1, 132)
        assert cost > cost_by_nvcc or "SPLITS" not in by_nvcc
        a, b, c = tensors(M, N, K, dtype=getattr(torch, pair[0]))
        product = Product.of(a, b, c, Fusion(compute=pair[2]))
        launcher, of = launchers.LAUNCHERS["mma_types"], {**plan, "THREADS": 128, "SHARED_BYTES": 0}
        constants = {name: of[name.split("::")[-1]] for name in launcher.constants(product)}
        launch = launcher.launch(product, constants, 132)
        tiles = -(-M // plan["BLOCK_M"]) * -(-N // plan["BLOCK_N"])
        assert tiles * plan.get("SPLITS", 1) == launch.grid


def test_nvrtc_compiles_for_a_gpu_of_this_machine_alone(monkeypatch):
    asked = Problem.stored(64, 64, 64, "float32", "float32", "nn", device="cuda", capability=(9, 0))
    monkeypatch.setenv(nvrtc.VARIABLE, "nvrtc")
    for gpu in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        assert nvrtc.compiles(asked) == gpu
        assert not nvrtc.compiles(replace(asked, device="cpu"))
    monkeypatch.setenv(nvrtc.VARIABLE, "nvcc")
    assert not nvrtc.compiles(asked)


def test_what_follows_is_transposed_with_c():
    a, b, c, fusion = fused_case(TYPES[0], columns=True)
    asked = Product.of(a, b, c, fusion).asked
    assert (asked.c_in.rows, asked.c_in.cols, asked.c_in.col_stride) == (160, 96, 1)
    assert (asked.bias.row_stride, asked.bias.col_stride) == (1, 0)
    assert asked.bias.data == fusion.bias.data_ptr()
    epilogue = Product.of(a, b, c, fusion).epilogue()
    assert (epilogue.alpha, epilogue.beta, epilogue.activation) == (3, 2, 1)
    assert epilogue.c_in == fusion.c.data_ptr()
    assert epilogue.c_in_vectors


def test_factors_of_integers_wrap():
    a, b, c, _ = fused_case(TYPES[3])
    product = Product.of(a, b, c, Fusion(compute="int32", alpha=2.0**32 - 3))
    assert product.epilogue().alpha == -3


@pytest.mark.gpu
@needs_nvrtc
@pytest.mark.parametrize(("name", "pair"), CASES)
def test_types_batches_and_what_follows_are_exact_on_a_gpu(name, pair):
    for batch, columns, plain in ((0, False, False), (3, True, False), (0, False, True)):
        a, b, c, fusion = fused_case(pair, batch, columns, plain, "cuda")
        operators.load(name)(a, b, c, fusion)
        wide = a.double() @ b.double()
        if not plain:
            wide = (3 * wide + 2 * fusion.c.double() + fusion.bias.double()).relu()
        assert torch.equal(c, wide.to(c.dtype))


@needs_nvrtc
def test_what_nvrtc_says_of_a_mistake_is_told():
    with pytest.raises(RuntimeError, match=r"NVRTC could not compile tiled\.cu: .*no_such_kernel"):
        compiler.compile_kernel("tiled", "no_such_kernel<float>", (), "sm_80")


STRUCTURES = {
    "wmma_any": {
        "tcgemm::Matrix": arguments.Matrix,
        "tcgemm::Vector": arguments.Vector,
        "tcgemm::Gemm": arguments.Gemm,
        "tcgemm::Operand": arguments.Operand,
        "tcgemm::Epilogue<float>": arguments.Epilogue,
        "tcgemm::Epilogue<double>": arguments.WideEpilogue,
        "tcgemm::Epilogue<int32_t>": arguments.IntegerEpilogue,
    },
    "wgmma_persistent": {
        "tcgemm::sm90::PlainOutput": arguments.PlainOutput,
        "tcgemm::sm90::Output": arguments.Output,
        "tcgemm::sm90::Schedule<128, 256, 8, false>": arguments.Schedule,
        "tcgemm::sm90::Plain": arguments.Plain,
        "CUlaunchAttribute": driver._Attribute,
        "CUlaunchConfig": driver._Config,
    },
}


@needs_nvrtc
@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_are_laid_out_as_in_the_source(name, monkeypatch):
    lines = [f'static_assert(sizeof(CUtensorMap) == {driver._MAP_BYTES}, "CUtensorMap");']
    compared = 0
    for cpp, mirror in STRUCTURES[name].items():
        lines.append(f'static_assert(sizeof({cpp}) == {ctypes.sizeof(mirror)}, "{cpp}");')
        if mirror in (arguments.Plain, driver._Attribute, driver._Config):
            continue  # of the driver's, names differ
        for field, *_ in mirror._fields_:
            offset = getattr(mirror, field).offset
            at = f"__INTADDR__(&(((const {cpp}*)0)->{field}))"  # offsetof, as NVRTC has it
            lines.append(f'static_assert({at} == {offset}, "{cpp} {field}");')
            compared += 1
    assert compared > 10
    text = compiler._text_of(name)
    monkeypatch.setattr(compiler, "_text_of", lambda of: text + "\n".join(lines))
    a, b, c = tensors(256, 256, 64)
    launcher, product = launchers.LAUNCHERS[name], Product.of(a, b, c)
    options = compiler._options("sm_90a", compiler.find_headers())
    compiler._compile(compiler.find_library(), name, launcher.expression(product), (), options)


def launch_of(name, a, b, c, sms=132):
    launcher = launchers.LAUNCHERS[name]
    constants = operators.compiled_for(name, a, b, c, (9, 0)).constants
    return launcher.launch(Product.of(a, b, c), constants, sms)


@needs_nvrtc
@pytest.mark.parametrize(
    ("N", "pitch", "K", "of_c"),
    [
        (256, 256, 64, (False, False, False)), (248, 248, 64, (True, False, False)),
        (248, 248, 512, (False, False, False)), (249, 249, 64, (False, True, True)),
        (249, 256, 512, (False, True, True)), (256, 257, 1024, (False, True, False)),
    ],
)  # fmt: skip
def test_who_stores_c_is_as_in_the_source(N, pitch, K, of_c):
    """Threads in rows, threads in odd rows, and whether tiles overlap: as epilogue_tma.cuh and
    wgmma_persistent.cu have it."""
    a, b, _ = tensors(192, 256, K)
    c = torch.empty(192, pitch, dtype=a.dtype)[:, :N]
    launch = launch_of("wgmma_persistent", a, b[:, :N], c)
    output, schedule = launch.arguments[3:5]
    assert (output.in_rows, output.odd, output.overlap) == of_c
    assert (output.data is None) == (not any(of_c))
    assert schedule.apart == 128 - 8 * of_c[2]
    assert schedule.cols == max(1, -(-(N - 8 * of_c[2]) // schedule.apart))


@pytest.mark.spread(5, "name")
@needs_nvrtc
@pytest.mark.parametrize("name", OF_16_BITS)
def test_the_launch_is_the_one_of_the_source(name):
    """What the simulator, whose GPU has eight SMs, was asked to start by the C++ launcher."""
    a, b, c = tensors(192, 320, 64)
    report = simulator.simulate(simulator.source_of(name), a, b, c)
    launch = launch_of(name, a, b, c)
    if name not in ("wgmma_cluster", "wgmma_epilogue"):
        assert report.grid == (launch.grid, 1, 1)
    assert report.block[:2] == launch.block
    assert 0 <= report.shared_bytes - launch.shared_bytes < 48 * 1024  # the rest is static


def test_a_product_by_columns_is_its_transpose():
    a, b, _ = tensors(8, 16, 32)
    c = torch.empty(16, 8, dtype=torch.float16).T
    product = Product.of(a, b, c)
    assert (product.c.rows, product.c.cols, product.c.col_stride) == (16, 8, 1)
    assert (product.a.data, product.a.rows, product.a.row_stride) == (b.data_ptr(), 16, 1)


def matrix(rows, cols, row_stride, col_stride, data=1 << 20):
    return arguments.Matrix(data, rows, cols, row_stride, col_stride, 0)


def test_a_tensor_map_is_refused_where_tma_cannot_read():
    box = (64, 128)
    found = arguments.tensor_map(matrix(300, 256, 256, 1), False, "float16", 2, box)
    assert (found.inner, found.outer, found.pitch_bytes) == (256, 300, 512)
    assert (found.box_inner, found.box_outer) == box
    by_rows = arguments.tensor_map(matrix(256, 300, 1, 256), True, "float16", 2, box)
    assert by_rows == found
    for bad in (matrix(300, 256, 257, 1), matrix(300, 256, 512, 2), matrix(300, 256, 256, 1, 8)):
        assert arguments.tensor_map(bad, False, "float16", 2, box) is None
    one_row = arguments.tensor_map(matrix(1, 129, 129, 1), False, "float16", 2, box)
    assert one_row.pitch_bytes == 272


CONSTANTS = {
    "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "SHARES_A": 0, "GROUP_M": 12,
    "IN_ROWS_STEPS": 3, "OVERLAP_STEPS": 8, "UNIT_OVERLAP": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "shares_a", "cluster", "rows", "cols", "clusters"),
    [
        ((4096, 4096, 4096), 0, 1, 32, 16, 128),
        ((8192, 8192, 8192), 0, 2, 32, 32, 64),  # 1,024 pairs in 16 waves of 66 clusters
        ((8192, 8192, 8192), 1, 2, 64, 16, 64),
        ((100, 300, 64), 0, 1, 1, 2, 2),
    ],
)
def test_the_schedule_by_hand(shape, shares_a, cluster, rows, cols, clusters):
    M, N, K = shape
    product = Product(
        matrix(M, K, K, 1), matrix(K, N, N, 1), matrix(M, N, N, 1), "float16", "float16"
    )
    constants = {**CONSTANTS, "SHARES_A": shares_a, "CLUSTER": cluster}
    schedule, count = launchers.schedule_of(product, constants, 132)
    assert (schedule.M, schedule.N, schedule.cluster) == (M, N, cluster)
    assert (schedule.rows, schedule.cols, count) == (rows, cols, clusters)
    together = 6 if cluster == 2 and not shares_a else 12
    assert schedule.together == together
    divisors = {
        "by_matrix": rows * cols, "by_group": together * cols, "by_height": together,
        "by_last": rows % together or together,
    }  # fmt: skip
    for name, d in divisors.items():
        of = getattr(schedule, name)
        for x in (*range(rows * cols), 2**31 - 1):
            assert (x * of.factor // 2**32 + x) >> of.shift == x // d, (name, x)


@pytest.mark.parametrize("cluster", [1, 2])
def test_the_planned_cluster_is_what_is_launched(cluster, monkeypatch):
    """The plan decides, here as in C++; of what the source has a constant the source does."""
    started = []
    made = SimpleNamespace(
        constants={**CONSTANTS, "A_BOX": 128, "B_BOX": 256, "L2_PREFETCH": 4, "THREADS": 384,
                   "SHARED_BYTES": 200_000},
    )  # fmt: skip
    monkeypatch.setattr(operators, "compiled_for", lambda *_: made)
    monkeypatch.setattr(operators, "_function", lambda *_: None)
    monkeypatch.setattr(operators.driver, "allow_shared", lambda *_: None)
    monkeypatch.setattr(operators.driver, "start", lambda _, launch, *__: started.append(launch))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda *_: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=0))
    sms = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: sms)
    a, b, c = tensors(512, 512, 64)
    operators.load("wgmma_persistent").bind(a, b, c, CLUSTER=cluster, BLOCK_M=64)(a, b, c)
    (launch,) = started
    assert launch.cluster == cluster
    assert launch.grid == 8  # of 128 x 256, whatever the plan says of the tile


@pytest.fixture
def no_nvcc(monkeypatch):
    monkeypatch.delenv(nvrtc.VARIABLE, raising=False)
    monkeypatch.setattr(nvrtc, "find_nvcc", lambda: None)
    monkeypatch.setattr(compiler, "find_library", lambda: "libnvrtc.so")
    monkeypatch.setattr(compiler, "find_headers", lambda: "include")
    nvrtc._instead.cache_clear()
    yield
    nvrtc._instead.cache_clear()


def test_nvrtc_is_taken_where_nvcc_is_missing_and_says_so_once(no_nvcc, caplog):
    with caplog.at_level(logging.WARNING):
        assert nvrtc.in_use()
        assert nvrtc.in_use()
    (record,) = caplog.records
    assert "nvcc was not found" in record.getMessage() or "nvcc and g++" in record.getMessage()
    assert "pip install 'tcgemm[nvcc]'" in record.getMessage()


def test_doctor_says_what_is_done_without_nvcc(no_nvcc, monkeypatch):
    toolchain = import_module("tcgemm.cuda_ref.build.toolchain")
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: None)
    monkeypatch.setattr(toolchain, "find_cxx", lambda: None)
    for found, state in (("there", "limited"), (None, "missing")):
        monkeypatch.setattr(compiler, "find_library", lambda found=found: found)
        monkeypatch.setattr(compiler, "find_headers", lambda: "there")
        for check in (doctor._nvcc(), doctor._host_compiler()):
            assert check.state == state
            assert ("NVRTC compiles the ladder" in check.found) == (state == "limited")
            assert check.cure


def test_without_nvrtc_the_official_way_names_what_is_missing(no_nvcc, monkeypatch):
    monkeypatch.setattr(compiler, "find_library", lambda: None)
    assert not nvrtc.in_use()


def test_the_way_can_be_named(no_nvcc, monkeypatch):
    monkeypatch.setenv(nvrtc.VARIABLE, "nvcc")
    assert not nvrtc.in_use()
    monkeypatch.setattr(nvrtc, "find_nvcc", lambda: ("nvcc", "PATH"))
    monkeypatch.setenv(nvrtc.VARIABLE, "nvrtc")
    assert nvrtc.in_use()
    monkeypatch.setenv(nvrtc.VARIABLE, "clang")
    with pytest.raises(RuntimeError, match="is 'clang': set it to nvcc or nvrtc"):
        nvrtc.in_use()


def test_what_has_no_launcher_is_refused_with_what_is_missing(no_nvcc):
    plain = Problem.stored(64, 64, 64, "float16", "float16", "nn", capability=(9, 0))
    fused = Problem.stored(64, 64, 64, "float16", "float16", "nn", capability=(9, 0), bias=True)
    wide = Problem.stored(64, 64, 64, "float64", "float64", "nn", capability=(9, 0))
    assert nvrtc.why_not("tiled", plain) is None
    for name in launchers.EVERYTHING:
        assert nvrtc.why_not(name, fused) is None
    for name in launchers.EVERY_TYPE:
        assert nvrtc.why_not(name, wide) is None
    for name, problem, word in (
        ("gemv", plain, "gemv"), ("wgmma_persistent", fused, "fuses"), ("wmma", wide, "float64"),
    ):  # fmt: skip
        reason = nvrtc.why_not(name, problem)
        assert word in reason
        assert "it needs nvcc" in reason
        assert "pip install 'tcgemm[nvcc]'" in reason
    with pytest.raises(RuntimeError, match=r"gemv has no launcher in Python.* it needs nvcc"):
        operators.load("gemv")


def test_the_choice_is_among_rungs_that_can_be_built(no_nvcc, monkeypatch):
    problem = Problem.stored(1, 4096, 4096, "bfloat16", "bfloat16", "nn", capability=(9, 0))
    able = [row.name for row in dispatch.ladder("cuda") if row.why_not(problem) is None]
    if not torch.cuda.is_available():
        assert nvrtc.preferred(problem, able) == able  # of a GPU that is elsewhere
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    here = cuda_ref.buildable(problem, able)
    assert here == [name for name in able if name in RUNGS]
    assert cuda_ref.buildable(problem, ["gemv"]) == ["gemv"]
    assert len(here) < len(able)
    monkeypatch.undo()
    monkeypatch.setattr(cuda_ref, "buildable", lambda problem, able: ["naive"])
    assert dispatch.choose(problem, "cuda").name == "naive"


SHAPES = ((128, 256, 64), (1024, 512, 320), (256, 128, 4096), (8192, 8192, 128))


@pytest.mark.gpu
@needs_nvrtc
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("name", OF_16_BITS)
def test_every_rung_is_exact_on_a_gpu(name, layout):
    row = dispatch.find("cuda", name)
    ran = 0
    for M, N, K in SHAPES:
        for dtype, out in ((torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16)):
            a, b, c = tensors(M, N, K, layout, dtype, out, "cuda")
            problem = dispatch.problem_of(a, b, c)
            if row.why_not(problem) is None:
                expected = (a.float() @ b.float()).to(out)
                operators.load(name)(a, b, c, **row.plan(problem))
                assert torch.equal(c, expected), f"{M}x{N}x{K} {layout}"
                ran += 1
    assert ran or torch.cuda.get_device_capability() < row.capability


@pytest.mark.gpu
@needs_nvrtc
@pytest.mark.parametrize("name", ["naive", "tiled", "wmma_any", "wgmma_tma", "wgmma_persistent"])
def test_odd_sizes_and_a_c_by_columns_on_a_gpu(name):
    row = dispatch.find("cuda", name)
    for M, N, K, columns in ((129, 136, 72, False), (200, 129, 64, False), (136, 264, 80, True)):
        a, b, c = tensors(M, -(-N // 8) * 8, K, "nt", torch.bfloat16, device="cuda")
        b = b[:, :N]
        c = torch.empty(N, M, device="cuda", dtype=torch.bfloat16).T if columns else c[:, :N]
        problem = dispatch.problem_of(a, b, c)
        if row.why_not(problem) is None:
            operators.load(name)(a, b, c, **row.plan(problem))
            assert torch.equal(c, (a.float() @ b.float()).bfloat16()), f"{M}x{N}x{K}"


@pytest.mark.gpu
@needs_nvrtc
def test_it_is_captured_and_replayed_on_a_gpu():
    a, b, c = tensors(512, 512, 512, device="cuda", dtype=torch.bfloat16)
    name = "wgmma_persistent" if torch.cuda.get_device_capability() == (9, 0) else "wmma_any"
    plan = dispatch.find("cuda", name).plan(dispatch.problem_of(a, b, c))
    start = operators.load(name).bind(a, b, c, **plan)
    start(a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        start(a, b, c)
    expected = (a.float() @ b.float()).bfloat16()
    c.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(c, expected)


@pytest.mark.gpu
@needs_nvrtc
def test_a_machine_without_compilers_runs_backend_cuda(tmp_path):
    code = (
        "import torch, tcgemm\n"
        "a = torch.randn(1000, 512, device='cuda').bfloat16()\n"
        "b = torch.randn(512, 768, device='cuda').bfloat16()\n"
        "for _ in range(2):\n"
        "    torch.testing.assert_close(tcgemm.matmul(a, b, backend='cuda'), a @ b)\n"
        "try:\n    tcgemm.matmul(a, b, backend='cuda', kernel='split_k')\n"
        "except tcgemm.TcgemmError as error:\n    print(error)\n"
    )
    bare = {**os.environ, "TCGEMM_CUDA_COMPILER": "nvrtc", "TCGEMM_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "split_k has no launcher in Python" in done.stdout
